;;;; A call: it is made when it is due, gets a stream, sends its requests, reads the responses, and
;;;; ends exactly once, by END-LOAD-CALL. Requests are framed beforehand and responses only counted,
;;;; so that a call has only the cost of HTTP/2.
;;;;
;;;; A load call that has ended may still be in a queue or a chain; it is used again only after it
;;;; has left both.

(in-package #:clgrpc.load)

(defconstant +code-cancelled+ 1)
(defconstant +code-unknown+ 2)
(defconstant +code-deadline-exceeded+ 4)
(defconstant +code-resource-exhausted+ 8)
(defconstant +code-unimplemented+ 12)
(defconstant +code-internal+ 13)
(defconstant +code-unavailable+ 14)

;;; Making calls, and the list of calls by age

(define-hot take-load-call ((generator generator)) load-call
  (let ((load-call (generator-free generator)))
    (cond (load-call
           (setf (generator-free generator) (load-call-next load-call)
                 (load-call-next load-call) nil)
           load-call)
          (t (%make-load-call generator)))))

(define-hot give-load-call-back ((generator generator) (load-call load-call)) null
  "Make LOAD-CALL, which has ended, available for another call, unless a queue or a chain still
contains it."
  (unless (or (load-call-queued load-call) (load-call-chained load-call))
    (setf (load-call-next load-call) (generator-free generator)
          (generator-free generator) load-call))
  nil)

(define-hot make-load-call ((connection-slot connection-slot) (intended-ns nanoseconds)) load-call
  (let* ((generator (the generator (connection-slot-generator connection-slot)))
         (plan (generator-plan generator))
         (load-call (take-load-call generator))
         (turns (plan-turns plan))
         (number (logand most-positive-fixnum
                         (+ (* (generator-made generator) (plan-generators plan))
                            (generator-number generator))))
         (request (the request (svref turns (if (= 1 (length turns))
                                                0
                                                (mod number (length turns))))))
         (youngest (generator-youngest generator))
         (behind (<= (generator-measure-ns generator) intended-ns))
         (counted (and behind (<= (generator-skip generator) (generator-counted generator)))))
    (setf (load-call-connection-slot load-call) connection-slot
          (load-call-number load-call) number
          (load-call-request load-call) request
          (load-call-intended-ns load-call) intended-ns
          (load-call-made-ns load-call) (generator-now generator)
          (load-call-sent-ns load-call) 0
          (load-call-counted load-call) counted
          (load-call-waited load-call) nil
          (load-call-retried load-call) nil
          (load-call-frames load-call) (payload-frames (request-payload request))
          (load-call-ended load-call) nil
          (load-call-previous load-call) youngest
          (generator-youngest generator) load-call)
    (if youngest
        (setf (load-call-next youngest) load-call)
        (setf (generator-oldest generator) load-call))
    (incf (generator-made generator))
    (when behind
      (incf (generator-counted generator))
      (decf (generator-left generator)))
    (incf (generator-flying generator))
    (incf (connection-slot-flying connection-slot))
    (when (and counted (not (generator-measuring generator)))
      (setf (generator-measuring generator) t)
      (begin-tally (generator-tally generator) (generator-measure-ns generator)))
    load-call))

(defun load-call-data (generator load-call)
  "The values for the templates of LOAD-CALL: GENERATOR's CALL-DATA, valid until the next call of
this function."
  (let ((data (generator-data generator)))
    (setf (call-data-method data) (request-method (load-call-request load-call))
          (call-data-number data) (load-call-number load-call)
          (call-data-worker data) (connection-slot-number (load-call-connection-slot load-call)))
    data))

(defun expand-frames (generator load-call)
  "The frames of LOAD-CALL, with the templates expanded again."
  (setf (load-call-frames load-call)
        (funcall (payload-maker (request-payload (load-call-request load-call)))
                 (load-call-data generator load-call))))

(define-hot unlink-load-call ((generator generator) (load-call load-call)) null
  (let ((next (load-call-next load-call)) (previous (load-call-previous load-call)))
    (if next
        (setf (load-call-previous next) previous)
        (setf (generator-youngest generator) previous))
    (if previous
        (setf (load-call-next previous) next)
        (setf (generator-oldest generator) next))
    (setf (load-call-next load-call) nil
          (load-call-previous load-call) nil)
    nil))

;;; The end

(define-hot note-stages ((tally tally) (load-call load-call) (now nanoseconds)) null
  "Note the durations of the stages of LOAD-CALL, which was sent and has ended at NOW."
  (record-value (if (load-call-waited load-call) (tally-connect tally) (tally-queue tally))
                (max 0 (- (load-call-begun-ns load-call) (load-call-intended-ns load-call))))
  (record-value (tally-send tally)
                (max 0 (- (load-call-sent-ns load-call) (load-call-begun-ns load-call))))
  (record-value (tally-wait tally) (max 0 (- now (load-call-sent-ns load-call)))))

(define-hot leave-stream ((load-call load-call)) null
  "Separate LOAD-CALL from its stream, if it has a stream."
  (let ((stream (load-call-stream load-call)))
    (when stream
      (setf (load-call-stream load-call) nil
            (http2:stream-user stream) nil)
      (decf (connection-slot-begun (the connection-slot (load-call-connection-slot load-call))))
      (when (http2:stream-open-p stream)
        (http2:reset-stream stream http2:+cancel+))
      (http2:release-stream stream))
    (loop:stop-timer (generator-loop (load-call-generator load-call)) (load-call-timer load-call))
    nil))

(define-hot end-load-call ((load-call load-call) (code (integer 0 16)) (text (or null string))) null
  "End LOAD-CALL now with the status CODE; TEXT is the status message if CODE is not OK."
  (let* ((generator (the generator (load-call-generator load-call)))
         (connection-slot (the connection-slot (load-call-connection-slot load-call)))
         (connection (load-call-connection load-call))
         (tally (generator-tally generator))
         (now (generator-now generator)))
    (leave-stream load-call)
    (unlink-load-call generator load-call)
    (decf (generator-flying generator))
    (decf (connection-slot-flying connection-slot))
    (when (and (load-call-counted load-call) (not (generator-dropping generator)))
      (note-end tally
                (or (and connection (connection-backend (the connection connection)))
                    (connection-slot-backend connection-slot)
                    (setf (connection-slot-backend connection-slot)
                          (find-backend
                           tally (loop:target-text (connection-slot-target connection-slot)))))
                (request-number (the request (load-call-request load-call)))
                (load-call-intended-ns load-call) now code text)
      (incf (tally-messages-sent tally) (load-call-next-frame load-call))
      (incf (tally-messages-received tally) (load-call-responses load-call))
      (setf (generator-last-end-ns generator) now)
      (unless (zerop (load-call-sent-ns load-call)) (note-stages tally load-call now)))
    (setf (load-call-connection load-call) nil
          (load-call-ended load-call) t)
    (give-load-call-back generator load-call)))

;;; Sending

(define-hot send-frame ((stream http2:stream) (frame octets) (end-stream-p boolean)) null
  (let ((count (length frame)))
    (cond ((http2:reserve-data stream count)
           (multiple-value-bind (octets at) (http2:begin-data stream count)
             (copy-octets frame 0 count octets at)
             (http2:end-data stream count end-stream-p)))
          (t (http2:send-data stream frame 0 count end-stream-p)))
    nil))

(defconstant +queued-enough+ 131072
  "The number of waiting octets at which a stream stops sending requests until some octets are
sent.")

(defun load-call-overdue-p (load-call)
  "True if LOAD-CALL has sent or received for as long as the plan allows."
  (let* ((generator (load-call-generator load-call))
         (limit (plan-call-duration-ns (generator-plan generator))))
    (and (plusp limit) (<= (+ (load-call-begun-ns load-call) limit) (generator-now generator)))))

(defun wake-load-call (load-call due-ns)
  (loop:start-timer (generator-loop (load-call-generator load-call))
                    (or (load-call-timer load-call)
                        (setf (load-call-timer load-call) (make-timer #'go-on load-call)))
                    due-ns))

(defun go-on (load-call)
  "Handle the timer of LOAD-CALL: the next request is due, or the call has lasted long enough."
  (let ((generator (load-call-generator load-call)))
    (note-now generator)
    (when (load-call-stream load-call)
      (cond ((sends-stream-p (load-call-request load-call)) (send-stream load-call))
            ((load-call-overdue-p load-call)
             (end-load-call load-call +code-cancelled+ "cancelled after its duration"))))
    (after-event generator)))

(defun send-stream (load-call)
  "Send the requests of LOAD-CALL that are due, as far as its peer accepts them. After the last
request end our side of the stream."
  (let* ((generator (load-call-generator load-call))
         (plan (generator-plan generator))
         (stream (load-call-stream load-call))
         (interval-ns (plan-interval-ns plan))
         (total (or (plan-messages plan)
                    (if (plusp (plan-call-duration-ns plan))
                        most-positive-fixnum
                        (length (load-call-frames load-call))))))
    (loop
      (let* ((sent (load-call-next-frame load-call))
             (frames (load-call-frames load-call))
             (over (or (<= total sent) (zerop (length frames)) (load-call-overdue-p load-call))))
        (cond ((or (load-call-half-closed load-call) (not (http2:stream-sendable-p stream)))
               (return))
              (over (setf (load-call-half-closed load-call) t)
                    (return (http2:send-data stream (make-octets 0) 0 0 t)))
              ((<= +queued-enough+ (http2:stream-queued-octets stream)) (return)))
        (when (and (plusp sent) (plan-fresh-messages plan)) (expand-frames generator load-call))
        (setf (load-call-half-closed load-call) (= total (1+ sent))
              (load-call-next-frame load-call) (1+ sent))
        (send-frame stream (svref frames (mod sent (length frames))) (= total (1+ sent)))
        (when (= total (1+ sent)) (return))
        (when (plusp interval-ns)
          (return (wake-load-call load-call (+ (generator-now generator) interval-ns))))))))

(defun resume-sending (stream)
  "The sink's ON-WRITABLE."
  (let ((load-call (http2:stream-user stream)))
    (when (and load-call
               (zerop (plan-interval-ns (generator-plan (load-call-generator load-call))))
               (not (load-call-half-closed load-call)))
      (send-stream load-call))))

(define-hot send-requests ((load-call load-call) (plan plan)) null
  "Send the first octets of LOAD-CALL, which has just got its stream."
  (let ((frames (load-call-frames load-call)))
    (cond ((sends-stream-p (load-call-request load-call)) (send-stream load-call))
          (t
           (setf (load-call-half-closed load-call) t
                 (load-call-next-frame load-call) 1)
           (send-frame (the http2:stream (load-call-stream load-call))
                       (svref frames (if (= 1 (length frames))
                                         0
                                         ;; each load call takes the next request of a mix
                                         (mod (floor (load-call-number load-call)
                                                     (length (plan-turns plan)))
                                              (length frames))))
                       t)
           (when (plusp (plan-call-duration-ns plan))
             (wake-load-call load-call (logand most-positive-fixnum
                                               (+ (load-call-begun-ns load-call)
                                                  (plan-call-duration-ns plan)))))))
    nil))

(define-hot (output-full-p :inline t) ((connection connection)) boolean
  "True if no call may begin on CONNECTION, because too much of its output is unsent, as when its
peer does not read."
  (let ((socket (the loop:connection (connection-socket connection))))
    (< (loop:connection-max-unsent socket) (loop:connection-unsent socket))))

(define-hot begin-load-call ((connection connection) (load-call load-call)) boolean
  "Begin LOAD-CALL on CONNECTION; return false if no stream may be opened there now."
  (let* ((generator (the generator (load-call-generator load-call)))
         (plan (generator-plan generator))
         (request (the request (load-call-request load-call)))
         (maker (request-metadata-maker request))
         (stream (and (not (output-full-p connection))
                      (http2:open-stream (the http2:connection (connection-http2 connection))))))
    (when stream
      (setf (http2:stream-user stream) load-call
            (load-call-stream load-call) stream
            (load-call-connection load-call) connection
            (load-call-begun-ns load-call)
            (max (generator-now generator) (load-call-intended-ns load-call))
            (load-call-next-frame load-call) 0
            (load-call-half-closed load-call) nil
            (load-call-prefix load-call) 0
            (load-call-left load-call) 0
            (load-call-responses load-call) 0
            (load-call-response-ns load-call) (load-call-begun-ns load-call)
            (load-call-encoded load-call) nil
            (connection-used connection) t)
      (incf (connection-slot-begun (the connection-slot (load-call-connection-slot load-call))))
      (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
        (hpack:encode-fields encoder buffer (request-fields request))
        (when maker
          (loop for field across
                (the simple-vector (funcall maker (load-call-data generator load-call)))
                do (hpack:encode-field encoder buffer field :plain)))
        (http2:end-headers stream nil))
      (unless (load-call-chained load-call)
        (setf (load-call-chained load-call) t
              (load-call-later load-call) (connection-unflushed connection)
              (connection-unflushed connection) load-call))
      (send-requests load-call plan)
      t)))

;;; Responses

(defun problem-of-headers (list)
  "Return two values, the status code and the text of the error in LIST, the headers of a response,
or nil if LIST shows no error."
  (let ((status (hpack:find-field list ":status"))
        (content-type (hpack:find-field list "content-type")))
    (cond ((hpack:find-field list "grpc-status") nil)
          ((string/= "200" (hpack:field-value-string status))
           (let ((code (hpack:field-value-string status)))
             (values (status:status-code
                      (client:http-status-status (parse-integer code :junk-allowed t)))
                     (format nil "HTTP status ~A instead of a gRPC response" code))))
          ((not (and content-type (uiop:string-prefix-p "application/grpc"
                                                        (hpack:field-value-string content-type))))
           (values +code-unknown+ "the content-type is not application/grpc")))))

(declaim (ftype (function (hpack:field-list) (values (integer 0 16) string)) status-of-trailers))
(defun status-of-trailers (list)
  (multiple-value-bind (code text) (client:trailers-status list)
    (cond ((null code) (values +code-unknown+ "the response has no valid grpc-status"))
          ((not (<= 0 code 16)) (values +code-unknown+ (format nil "grpc-status ~D" code)))
          (t (values code (or text ""))))))

(define-hot end-with-trailers ((load-call load-call) (list hpack:field-list)) null
  (if (eq :ok (hpack:field-list-memo list))
      (end-with-ok load-call)
      (multiple-value-bind (code text) (status-of-trailers list)
        (cond ((zerop code)
               (setf (hpack:field-list-memo list) :ok)
               (end-with-ok load-call))
              (t (end-load-call load-call code text))))))

(define-hot end-with-ok ((load-call load-call)) null
  (let ((single (member (request-kind (the request (load-call-request load-call)))
                        '(:unary :client-streaming))))
    (cond ((or (plusp (load-call-left load-call)) (plusp (load-call-prefix load-call)))
           (end-load-call load-call +code-internal+ "the response ends in the middle of a message"))
          ((and single (/= 1 (load-call-responses load-call)))
           (end-load-call load-call +code-unimplemented+
                          (format nil "the call ended with OK after ~D responses instead of one"
                                  (load-call-responses load-call))))
          (t (end-load-call load-call 0 nil)))))

(define-hot take-headers ((stream http2:stream) (list hpack:field-list) (ended boolean)) null
  "The sink's ON-HEADERS."
  (let ((load-call (http2:stream-user stream)) (memo (hpack:field-list-memo list)))
    (when load-call
      (unless (member memo '(:good :encoded :ok))
        (multiple-value-bind (code text) (problem-of-headers list)
          (when code
            (end-load-call load-call code text)
            (return-from take-headers nil)))
        (unless ended                   ; a LIST that comes for the first time keeps no memo
          (setf memo (if (hpack:find-field list "grpc-encoding") :encoded :good)
                (hpack:field-list-memo list) memo)))
      (when (eq :encoded memo) (setf (load-call-encoded load-call) t))
      (when ended (end-with-trailers load-call list)))
    nil))

(define-hot count-responses ((load-call load-call) (octets octets) (start index) (end index))
            boolean
  "Count the responses in OCTETS from START to END; a response may begin before START and end after
END. Return false if a response has an invalid prefix, for instance the mark of compression without
a header that names the encoding."
  (let ((at start) (prefix (load-call-prefix load-call)) (left (load-call-left load-call))
        (compressed (if (load-call-encoded load-call) 1 0)) (sound t))
    (declare (type index at) (type (unsigned-byte 32) left) (type (integer 0 5) prefix)
             (type bit compressed))
    (loop while (< at end)
          do (cond ((< prefix 5)
                    (setf left (logior (ldb (byte 32 0) (ash left 8)) (aref octets at)))
                    (when (zerop prefix) ; the octet that says whether the message is compressed
                      (when (< compressed left) (setf sound nil))
                      (setf left 0))
                    (incf prefix)
                    (incf at))
                   (t (let ((taken (min left (- end at))))
                        (incf at taken)
                        (decf left taken))))
             (when (and (= 5 prefix) (zerop left))
               (incf (load-call-responses load-call))
               (setf prefix 0)))
    (setf (load-call-prefix load-call) prefix
          (load-call-left load-call) left)
    sound))

(define-hot note-responses ((load-call load-call) (count quantity)) null
  "Note the time since the previous response of LOAD-CALL, a stream, of which COUNT responses were
received with these octets."
  (let* ((generator (the generator (load-call-generator load-call)))
         (now (generator-now generator)))
    (when (and (plusp count) (load-call-counted load-call))
      (let ((histogram (tally-message (generator-tally generator))))
        (record-value histogram (max 0 (- now (load-call-response-ns load-call))))
        ;; the other responses came at the same time
        (loop repeat (1- count) do (record-value histogram 0)))
      (setf (load-call-response-ns load-call) now))
    nil))

(define-hot take-data ((stream http2:stream) (octets octets) (start index) (end index)
                       (ended boolean))
    null
  "The sink's ON-DATA."
  (let ((load-call (http2:stream-user stream)))
    (http2:consume-data stream (- end start))
    (when load-call
      (let* ((load-call load-call)
             (before (load-call-responses (the load-call load-call)))
             (sound (count-responses load-call octets start end))
             (kind (request-kind (the request (load-call-request load-call)))))
        (declare (type load-call load-call))
        (when (member kind '(:server-streaming :bidi))
          (note-responses load-call (logand most-positive-fixnum
                                            (- (load-call-responses load-call) before))))
        (cond ((not sound)
               (end-load-call load-call +code-internal+
                              "a response is compressed, but grpc-encoding is missing"))
              (ended (end-load-call load-call +code-internal+ "the response has no trailers"))
              ((eq :server-streaming kind)
               (let ((most (plan-messages (generator-plan (the generator
                                                               (load-call-generator load-call))))))
                 (when (and most (<= most (load-call-responses load-call)))
                   (end-load-call load-call 0 nil)))))))
    nil))

(define-hot take-trailers ((stream http2:stream) (list hpack:field-list)) null
  "The sink's ON-TRAILERS."
  (let ((load-call (http2:stream-user stream)))
    (when load-call (end-with-trailers load-call list))
    nil))

(defun had-its-time-p (load-call)
  "True if the deadline of LOAD-CALL has passed."
  (let* ((generator (load-call-generator load-call))
         (timeout-ns (plan-timeout-ns (generator-plan generator))))
    (and (plusp timeout-ns)
         (<= (+ (load-call-made-ns load-call) timeout-ns) (note-now generator)))))

(defun take-reset (stream error-code source)
  "The function ON-RESET of the sink. A call that the peer has not processed is made once more (gRFC
A6)."
  (when-let ((load-call (http2:stream-user stream)))
    (let ((connection (load-call-connection load-call))
          (connection-slot (load-call-connection-slot load-call)))
      (cond ((and (not (load-call-retried load-call))
                  (or (eq :goaway source)
                      (and (eq :peer source) (= error-code http2:+refused-stream+))))
             (setf (load-call-retried load-call) t)
             (leave-stream load-call)
             (setf (load-call-sent-ns load-call) 0)
             (queue-load-call connection-slot load-call))
            ((eq :connection source)
             (end-load-call load-call +code-unavailable+
                            (or (connection-failure connection) "the connection was lost")))
            ((eq :goaway source)
             (end-load-call load-call +code-unavailable+ "the server is going away"))
            ((and (eq :local source) (= error-code http2:+enhance-your-calm+))
             (end-load-call load-call +code-resource-exhausted+
                            "the response's header list is too large"))
            ((and (eq :peer source) (= error-code http2:+cancel+)
                  (had-its-time-p load-call))
             ;; the peer keeps the same deadline, and has noticed first that it has passed
             (end-load-call load-call +code-deadline-exceeded+ "the deadline has passed"))
            (t (end-load-call load-call (status:status-code (client:error-code-status error-code))
                              (format nil
                                      "the stream was reset~:[ because of an error of the ~
                                       peer~;~]: ~A"
                                      (eq :peer source)
                                      (http2:error-code-name error-code))))))))

;;; Waiting for a stream

(define-hot queue-load-call ((connection-slot connection-slot) (load-call load-call)) null
  "Put LOAD-CALL into the queue of CONNECTION-SLOT, where it waits for a stream. If it was refused
before it was sent, end it instead."
  (cond ((load-call-chained load-call)  ; the call was refused before it was even sent
         (end-load-call load-call +code-unavailable+ "the server did not process the request"))
        (t
         (setf (load-call-queued load-call) t
               (load-call-later load-call) nil)
         (if (connection-slot-queue-tail connection-slot)
             (setf (load-call-later (the load-call (connection-slot-queue-tail connection-slot)))
                   load-call)
             (setf (connection-slot-queue-head connection-slot) load-call))
         (setf (connection-slot-queue-tail connection-slot) load-call)))
  nil)

(define-hot queue-first ((connection-slot connection-slot)) (or null load-call)
  "Remove ended calls from the beginning of CONNECTION-SLOT's queue, and return the first call that
is left."
  (loop
    (let ((load-call (connection-slot-queue-head connection-slot)))
      (cond ((null load-call) (return nil))
            ((not (load-call-ended load-call)) (return load-call))
            (t (unqueue-first connection-slot)
               (give-load-call-back (the generator (connection-slot-generator connection-slot))
                                    load-call))))))

(define-hot unqueue-first ((connection-slot connection-slot)) null
  "Remove the first call from CONNECTION-SLOT's queue."
  (let ((load-call (the load-call (connection-slot-queue-head connection-slot))))
    (unless (setf (connection-slot-queue-head connection-slot) (load-call-later load-call))
      (setf (connection-slot-queue-tail connection-slot) nil))
    (setf (load-call-later load-call) nil
          (load-call-queued load-call) nil)
    nil))
