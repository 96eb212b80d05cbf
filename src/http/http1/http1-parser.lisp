;;;; The parser: it takes octets in any portions, and returns the parts of messages one by one. The
;;;; parser keeps at most a head, or a line between chunks; it does not copy bodies.
;;;;
;;;;     (multiple-value-bind (at event) (parse parser octets start end) …)
;;;;
;;;;     :head   PARSER-MESSAGE is the message; its body follows
;;;;     :body   octets from PARSER-BODY-START to PARSER-BODY-END of those given are of the body
;;;;     :end    the message is complete; the octets after it wait for NEXT-MESSAGE
;;;;     nil     all octets were taken, more are needed
;;;;
;;;; AT is the position of the next octet to take. A head that comes in one portion is not copied.

(in-package #:clgrpc.http1)

(defstruct (parser (:constructor %make-parser (role max-head-octets max-fields)) (:copier nil))
  "A parser of the messages of one peer, in order. One thread at a time may use a parser."
  (role :server :type (member :server :client) :read-only t) ; :server if the parser reads requests
  (max-head-octets 0 :type index :read-only t) ; the most octets of a head, and of the trailers
  (max-fields 0 :type index :read-only t) ; the most fields of a head, and of the trailers
  ;; the parser's position in a message
  (state :start :type (member :start :half-line :head :octets :chunk-line :chunk :chunk-end
                              :trailers :until-close :whole :done))
  (message nil :type (or null message)) ; the newest message, once its head has been read
  (requests '() :type list) ; methods of the requests whose responses are awaited, oldest first
  (left 0 :type index)                  ; octets left of the body, or of its chunk
  (kept (make-octets 0) :type octets)   ; the beginning of a head or of a line
  (fill 0 :type index)                  ; the number of octets in KEPT
  (body-start 0 :type index)            ; the beginning of the present part of the body
  (body-end 0 :type index)              ; the end of that part
  (trailers '() :type list)             ; HPACK's fields after a chunked body
  (interim 0 :type index)               ; responses of 1xx in a row
  ;; the octets of the head of MESSAGE, with its empty line, in case it is repeated
  (last-head nil :type (or null octets))
  (last-request nil :type (or null simple-string))) ; the method of MESSAGE's request

(declaim (freeze-type parser))

(document-functions
  parser-message "The MESSAGE whose head PARSER has read last, or nil if it has read none."
  parser-body-start "The start of the part of the body that an event :body reports."
  parser-body-end "The end of the part of the body that an event :body reports."
  parser-trailers "The trailers after a chunked body, as HPACK's fields, when MESSAGE is complete.")

(define-printer (parser parser)
  "~(~A, ~A~)" (parser-role parser) (parser-state parser))

(defun make-parser (role &key (max-head-octets 16384) (max-fields 100))
  "Return a parser of requests, if ROLE is :server, or of responses, if it is :client. Heads, and
trailers, have at most MAX-HEAD-OCTETS octets and MAX-FIELDS fields."
  (%make-parser role max-head-octets max-fields))

(defun parser-begun-p (parser)
  "True if PARSER is within a message, of which the peer must still send the rest."
  (not (or (member (parser-state parser) '(:start :half-line :done))
           (and (eq :head (parser-state parser)) (zerop (parser-fill parser))))))

(defun expect-response (parser http-method)
  "Note that PARSER, a parser of responses, will read the response to a request with HTTP-METHOD
after the responses to earlier requests."
  (setf (parser-requests parser)
        (append (parser-requests parser) (list (coerce http-method 'simple-string))))
  nil)

(defconstant +kept-octets+ 1024
  "The maximum length in octets of a vector for incomplete heads that is kept for the next
message.")
(defconstant +repeated-octets+ 4096
  "The maximum length in octets of a head that is kept because the peer may repeat it.")

(defun parser-octets (parser)
  "The number of octets of memory that PARSER keeps, without its message."
  (+ (length (parser-kept parser))
     (let ((last (parser-last-head parser))) (if last (length last) 0))))

(defun next-message (parser)
  "Prepare PARSER, whose message is complete, for the next message."
  (assert (eq :done (parser-state parser)))
  (when (< +kept-octets+ (length (parser-kept parser)))
    (setf (parser-kept parser) (make-octets 0)))
  (let ((last (parser-last-head parser)))
    (when (and last (< +repeated-octets+ (length last)))
      (setf (parser-last-head parser) nil
            (parser-message parser) nil)))
  (setf (parser-state parser) :start
        (parser-trailers parser) '())
  nil)

;;; Heads and lines: parts that end with an empty line, or with a line

(define-hot find-line-end ((octets octets) (start index) (end index)) (or null index)
  "Return the position after the first LF from START to END, or nil if there is none."
  (loop for i of-type index from start below end
        when (= +lf+ (aref octets i)) return (1+ i)))

(define-hot head-end ((octets octets) (start index) (end index)) (or null index)
  "Return the end of the first empty line in the octets from START to END, or nil if there is none.
This function searches only for LF; other errors in the lines are found when the lines are read."
  (loop with at of-type index = start
        for line-end = (find-line-end octets at end)
        while line-end
        do (setf at line-end)
           (cond ((= at end) (return nil))
                 ((= +lf+ (aref octets at)) (return (1+ at)))
                 ((and (= +cr+ (aref octets at))
                       (< (1+ at) end)
                       (= +lf+ (aref octets (1+ at))))
                  (return (+ 2 at))))))

(define-hot keep ((parser parser) (octets octets) (start index) (end index)) null
  "Add the octets from START to END to the octets that PARSER keeps."
  (let* ((fill (parser-fill parser))
         (need (+ fill (- end start))))
    (when (< (length (parser-kept parser)) need)
      (let ((kept (make-octets (max 256 (* 2 need)))))
        (copy-octets (parser-kept parser) 0 fill kept 0)
        (setf (parser-kept parser) kept)))
    (copy-octets octets start end (parser-kept parser) fill)
    (setf (parser-fill parser) need))
  nil)

(defun read-through (parser octets start end limit find-end too-long read)
  "Read a part whose end the function FIND-END finds; its arguments are octets, start and end. If
the part is complete, call READ with the octets and the part's start and end, and return the part's
end. Otherwise keep the octets and return nil. If the part has more than LIMIT octets, call
TOO-LONG, a function that signals an error."
  (declare (type octets octets) (type index start end limit)
           (type function find-end too-long read))
  (cond ((zerop (parser-fill parser))
         (let ((at (funcall find-end octets start end)))
           (cond ((< limit (- (or at end) start)) (funcall too-long))
                 (at (funcall read octets start at) at)
                 (t (keep parser octets start end) nil))))
        (t
         (let* ((fill (parser-fill parser))
                (more (min end (+ start (- (1+ limit) fill)))))
           (keep parser octets start more)
           ;; the first octets of the end may be among the last three that were kept
           (let ((at (funcall find-end (parser-kept parser) (max 0 (- fill 3))
                              (parser-fill parser))))
             (cond ((< limit (or at (parser-fill parser))) (funcall too-long))
                   (at (setf (parser-fill parser) 0)
                       (funcall read (parser-kept parser) 0 at)
                       (+ start (- at fill)))))))))

;;; Heads

(defun same-request-p (parser)
  "True if the next response from PARSER and the newest response belong to requests with the same
method."
  (string= (parser-last-request parser) (first (parser-requests parser))))

(define-hot repeated-head-end ((parser parser) (octets octets) (start index) (end index))
    (or null index)
  "Return the end of the head that begins at START, if it equals the head of PARSER's newest message
octet for octet, or nil if it differs or is incomplete. No search is needed, because equal heads
have their empty line at the same position."
  (let* ((last (parser-last-head parser))
         (at (if last (+ start (length last)) 0)))
    (declare (type index at))
    (and last
         (<= at end)
         (octets-equal last octets :start start :end at)
         (or (eq :server (parser-role parser)) (same-request-p parser))
         at)))

(defun read-head (parser octets start end)
  "Return the message whose head is the octets from START to END, which end with an empty line."
  (unless (eql end (repeated-head-end parser octets start end))
    (let ((lines-end (- end 2))
          (request (first (parser-requests parser))))
      (unless (= +cr+ (aref octets lines-end))
        (bad-message 400 "a line ends with something else than CR LF"))
      (setf (parser-message parser)
            (ecase (parser-role parser)
              (:server (request-from octets start lines-end (parser-max-fields parser)))
              (:client (response-from octets start lines-end (parser-max-fields parser)
                                      (or request
                                          (bad-message 502 "a response was received without a ~
                                                            request")))))
            (parser-last-head parser) (subseq-octets octets start end)
            (parser-last-request parser) request)))
  (begin-body parser (parser-message parser)))

(defconstant +most-interim+ 16
  "The maximum number of 1xx responses in a row. A further such response is an error.")

(defun note-response (parser message)
  "Note that PARSER, a parser of responses, has read the head of MESSAGE. The next response belongs
to the next request, unless MESSAGE is an interim response (RFC 9110 section 15.2)."
  (cond ((and (< (message-status message) 200) (/= 101 (message-status message)))
         (when (< +most-interim+ (incf (parser-interim parser)))
           (bad-message 502 "there are too many 1xx responses in a row")))
        (t (setf (parser-interim parser) 0)
           (pop (parser-requests parser)))))

(defun begin-body (parser message)
  "Note that the head of MESSAGE has been read."
  (when (eq :client (parser-role parser)) (note-response parser message))
  (let ((body (message-body message)))
    (setf (parser-state parser)
          (case body
            (:chunked :chunk-line)
            ((:until-close :tunnel) :until-close)
            ((0) :whole)
            (t (setf (parser-left parser) body)
               :octets)))))

(defun skip-empty-line (parser octets at)
  "Skip an empty line before a message, which is allowed before requests (RFC 9112 section 2.2).
PARSER must be before a message or within an empty line. Return the position at which to continue,
AT or the next."
  (let ((octet (aref octets at)))
    (cond ((eq :half-line (parser-state parser))
           (unless (= +lf+ octet) (bad-message 400 "a line ends with something else than CR LF"))
           (setf (parser-state parser) :head)
           (1+ at))
          ((and (= +cr+ octet) (eq :server (parser-role parser)))
           (setf (parser-state parser) :half-line)
           (1+ at))
          (t (setf (parser-state parser) :head)
             at))))

;;; The parts of a message

(defun too-large (what limit)
  (bad-message 431 "~A has more than ~D octets" what limit))

(defun parse-new-head (parser octets start end)
  "Do what PARSE-HEAD does, for a head that differs from the previous message's head, or is received
in portions."
  (let* ((limit (parser-max-head-octets parser))
         (at (read-through parser octets start end limit #'head-end
                           (lambda () (too-large "the head" limit))
                           (lambda (octets start end) (read-head parser octets start end)))))
    (if at (values at :head) (values end nil))))

(define-hot parse-head ((parser parser) (octets octets) (start index) (end index))
    (values index symbol)
  (let ((at (if (zerop (parser-fill parser))
                (repeated-head-end parser octets start end)
                nil)))
    (cond (at (begin-body parser (the message (parser-message parser)))
              (values at :head))
          (t (parse-new-head parser octets start end)))))

(define-hot parse-octets ((parser parser) (start index) (end index)) (values index symbol)
  "Process the next octets of a body or chunk, of which PARSER-LEFT octets are still to come."
  (let ((stop (min end (+ start (parser-left parser)))))
    (setf (parser-body-start parser) start
          (parser-body-end parser) stop)
    (when (zerop (decf (parser-left parser) (- stop start)))
      (setf (parser-state parser) (if (eq :chunk (parser-state parser)) :chunk-end :whole)))
    (values stop :body)))

(defun parse-line (parser octets start end read)
  "Call READ with the line that begins at START, without its CR LF, and return the end of the line;
return nil if the line is incomplete."
  (read-through parser octets start end +longest-chunk-line+ #'find-line-end
                (lambda () (too-large "the line before a chunk" +longest-chunk-line+))
                (lambda (octets start end)
                  (unless (and (<= (+ start 2) end) (= +cr+ (aref octets (- end 2))))
                    (bad-message 400 "a line ends with something else than CR LF"))
                  (funcall (the function read) octets start (- end 2)))))

(defun begin-chunk (parser octets start end)
  "Read the line before a chunk, from START to END."
  (let ((length (chunk-length octets start end)))
    (setf (parser-left parser) length
          (parser-state parser) (if (zerop length) :trailers :chunk))))

(defun end-chunk (parser start end)
  (unless (= start end) (bad-message 400 "a chunk is longer than its length line says"))
  (setf (parser-state parser) :chunk-line))

(defun forbidden-trailer-p (field)
  "True if FIELD may not be a trailer: it must be known before the body (RFC 9110, 6.5.1)."
  (or (connection-field-p field)
      (named-p field "content-length")
      (named-p field "content-encoding")
      (named-p field "content-type")
      (named-p field "authorization")))

(defun read-trailers (parser octets start end)
  "Read the lines after the last chunk, from START to END, which end with an empty line."
  (unless (= +cr+ (aref octets (- end 2)))
    (bad-message 400 "a line ends with something else than CR LF"))
  (setf (parser-trailers parser)
        (remove-if #'forbidden-trailer-p
                   (read-fields octets start (- end 2) (parser-max-fields parser)))
        (parser-state parser) :whole))

(defun trailers-end (octets start end)
  "Return the end of the empty line after the trailers that begin at START, or nil if it has not
been received."
  (cond ((and (<= (+ start 2) end)
              (= +cr+ (aref octets start))
              (= +lf+ (aref octets (1+ start))))
         (+ start 2))
        (t (head-end octets start end))))

(defun parse-trailers (parser octets start end)
  (let ((limit (parser-max-head-octets parser)))
    (flet ((find-end (vector from to)
             ;; only at the very beginning the empty line may be the first line
             (if (or (eq vector octets) (<= (parser-fill parser) (- to from)))
                 (trailers-end vector from to)
                 (head-end vector from to))))
      (read-through parser octets start end limit #'find-end
                    (lambda () (too-large "the trailers" limit))
                    (lambda (octets start end) (read-trailers parser octets start end))))))

(define-hot parse ((parser parser) (octets octets) (start index) (end index))
    (values index symbol)
  "Process the octets from START to END that PARSER's peer has sent, up to the next event. Return
two values: the position at which to continue, and the event: :head, :body, :end, or nil if all
octets were processed and more are needed (see the head of this file). Signal HTTP1-ERROR if the
peer breaks the protocol or exceeds a limit."
  (let ((at start))
    (declare (type index at))
    (flet ((line (read)
             (let ((next (parse-line parser octets at end read)))
               (unless next (return-from parse (values end nil)))
               (setf at next))))
      (declare (dynamic-extent #'line))
      (loop
        (ecase (parser-state parser)
          (:whole (setf (parser-state parser) :done)
           (return (values at :end)))
          (:done (return (values at nil)))
          (:until-close
           (setf (parser-body-start parser) at
                 (parser-body-end parser) end)
           (return (if (= at end) (values at nil) (values end :body))))
          ((:start :half-line)
           (when (= at end) (return (values at nil)))
           (setf at (skip-empty-line parser octets at)))
          (:head (return (if (= at end)
                             (values at nil)
                             (parse-head parser octets at end))))
          ((:octets :chunk)
           (return (if (= at end) (values at nil) (parse-octets parser at end))))
          (:chunk-line (line (lambda (octets start end) (begin-chunk parser octets start end))))
          (:chunk-end (line (lambda (octets start end)
                              (declare (ignore octets))
                              (end-chunk parser start end))))
          (:trailers
           (let ((next (parse-trailers parser octets at end)))
             (unless next (return (values end nil)))
             (setf at next))))))))

(defun parse-end (parser)
  "Note that the peer has closed the connection. Return :end if the end of input ends a message, nil
if PARSER is between two messages. Signal HTTP1-ERROR if the rest of a message is missing."
  (cond ((eq :until-close (parser-state parser))
         (setf (parser-state parser) :done)
         :end)
        ((parser-begun-p parser) (bad-message 400 "the connection has ended within a message"))))
