;;;; Exchanges over HTTP/2: a stream that is not a gRPC call carries a request and its answer.

(in-package #:clgrpc.exchange)

(defstruct (http2-request (:include http-request) (:copier nil))
  "A request over HTTP/2."
  (stream nil :type (or null http2:stream))) ; nil once the stream is closed

(declaim (sb-ext:freeze-type http2-request))

;;; The responder

(define-hot write-http2-date ((encoder hpack:encoder) (buffer buffer)) null
  "Append the date of an answer to the header block in BUFFER."
  (when-let ((date (current-date)))
    (hpack:encode-field encoder buffer (answer-date-field (the answer-date date)) :index))
  nil)

(defun write-http2-head (request stream answer length)
  "Write the headers of ANSWER on STREAM. LENGTH is the number of octets of its body, or nil if that
is not known. Return true if the headers end the answer."
  (let* ((http-status (plain-answer-http-status answer))
         (bodiless (http1:bodiless-p (http-request-method request) http-status))
         (ends (or bodiless (eql 0 length))))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (flet ((write-field (name value)
               (hpack:encode-literal encoder buffer (ascii-octets name) (ascii-octets value)
                                     :plain)))
        (write-field ":status" (format nil "~D" http-status))
        (loop for (name . value) in (plain-answer-headers answer)
              do (write-field name value))
        (unless (find-header "date" (plain-answer-headers answer))
          (write-http2-date encoder buffer))
        (unless (or bodiless (null length))
          (write-field "content-length" (format nil "~D" length))))
      (http2:end-headers stream ends))
    ends))

(defun end-http2-answer (request stream)
  "Note that the answer of REQUEST, whose stream was STREAM, is complete."
  ;; the rest of the request is not needed (RFC 9113 8.1)
  (unless (or (http-request-whole request)
              (null (http2-request-stream request))
              (not (http2:stream-queue-empty-p stream)))
    (http2:reset-stream stream http2:+no-error+)))

(defun answer-over-http2 (request answer)
  (let ((stream (http2-request-stream request))
        (body (plain-answer-body answer)))
    (when stream
      (unless (write-http2-head request stream answer (length body))
        (http2:send-data stream body 0 (length body) t))
      (end-http2-answer request stream))))

(defun begin-over-http2 (request answer)
  (when-let ((stream (http2-request-stream request)))
    (write-http2-head request stream answer nil)))

(defun chunk-over-http2 (request octets)
  (let ((stream (http2-request-stream request)))
    (unless (or (null stream) (ended-by-head-p request))
      (http2:send-data stream octets 0 (length octets) nil))))

(defun end-over-http2 (request whole)
  (let ((stream (http2-request-stream request)))
    (cond ((null stream))
          ((not whole) (http2:reset-stream stream http2:+internal-error+))
          (t (unless (ended-by-head-p request)
               (http2:send-data stream (make-octets 0) 0 0 t))
             (end-http2-answer request stream)))))

(defun unsent-over-http2 (request)
  (let ((stream (http2-request-stream request)))
    (if stream (http2:stream-queued-octets stream) 0)))

;;; The answer to a request that is claimed

(define-hot head-over-http2 ((request http2-request) (head answer-head) (more list) length) null
  "The responder's HEAD."
  (when-let ((stream (http2-request-stream request)))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (hpack:encode-fields encoder buffer (answer-head-fields head))
      (loop for (name . value) in more
            do (hpack:encode-literal encoder buffer (ascii-octets name) (ascii-octets value)
                                     :plain))
      (write-http2-date encoder buffer)
      (http2:end-headers stream (or (eql 0 length)
                                    (http1:bodiless-p (http-request-method request)
                                                      (answer-head-http-status head))))))
  nil)

(defun end-late (stream)
  "End the answer on STREAM, whose queued octets have all been sent, and the request, which is
incomplete."
  (http2:send-data stream (make-octets 0) 0 0 t)
  (http2:reset-stream stream http2:+no-error+))

(define-hot part-over-http2 ((request http2-request) (octets octets) (start index) (end index)
                             (storable boolean) (last boolean))
    null
  "The responder's PART."
  (let ((stream (http2-request-stream request)))
    (cond ((or (null stream) (not (http2:stream-sendable-p stream))))
          ((or (not last) (http-request-whole request))
           (http2:send-data stream octets start end last storable))
          (t (http2:send-data stream octets start end nil storable)
             (http2:send-trailers-later stream #'end-late))))
  nil)

(define-load-time-global **http2-responder**
    (make-responder :answer #'answer-over-http2 :begin #'begin-over-http2 :chunk #'chunk-over-http2
                    :end #'end-over-http2 :unsent #'unsent-over-http2
                    :head #'head-over-http2 :part #'part-over-http2
                    ;; do nothing: instead the stream's window is withheld
                    :pause #'identity :resume #'identity))

;;; The request

(defun join-cookies (headers)
  "Return HEADERS, an alist, with one cookie header in place of several. HTTP/2 allows several (RFC
9113 section 8.2.3)."
  (flet ((cookie-p (entry) (string= "cookie" (car entry))))
    (let ((cookies (remove-if-not #'cookie-p headers)))
      (if (rest cookies)
          ;; by an index of one octet a peer may repeat a long cookie
          (cons (cons "cookie"
                      (with-output-to-string
                          (stream nil :element-type
                                  (if (every (lambda (cookie) (typep (cdr cookie) 'base-string))
                                             cookies)
                                      'base-char
                                      'character))
                        (loop for ((nil . text) . more) on cookies
                              do (write-string text stream)
                                 (when more (write-string "; " stream)))))
                (remove-if #'cookie-p headers))
          headers))))

(defun read-http2-request (list stream router sink options refusal)
  "Return the request with the header LIST on STREAM, with its route in ROUTER. SINK and OPTIONS are
those of STREAM's owner. REFUSAL, which may be nil, is the answer if the request has no handler."
  (let ((request (make-http2-request :responder **http2-responder** :sink sink :options options
                                     :stream stream
                                     :refusal (or refusal **not-found**))))
    (hpack:do-fields (field list)
      (let ((kind (http2:field-kind-of field))
            (value (hpack:field-value-string field)))
        (cond ((= kind http2:+kind-method+) (setf (http-request-method request) value))
              ((= kind http2:+kind-path+) (setf (http-request-target request) value)))
        (let ((entry (field-entry field)))
          (when entry (push entry (http-request-source request))))))
    (setf (http-request-source request) (join-cookies (nreverse (http-request-source request))))
    (find-request-route router request)
    request))

(define-hot claimed-http2-request ((stream http2:stream) (sink sink) (options options)
                                   (http-method string) claim)
    http2-request
  "Return the request with HTTP-METHOD on STREAM, claimed by CLAIM. SINK and OPTIONS are those of
STREAM's owner."
  (make-http2-request :responder **http2-responder** :sink sink :options options :stream stream
                      :method http-method :claimed t :route claim))

(defun refused-http2-request (stream sink options http-method answer)
  "Return the request with HTTP-METHOD on STREAM, which ANSWER answers. SINK and OPTIONS are those
of STREAM's owner."
  (make-http2-request :responder **http2-responder** :sink sink :options options :stream stream
                      :method http-method :refusal answer))

(defun leave-stream (request)
  "Forget the stream of REQUEST, which is closed."
  (setf (http2-request-stream request) nil))
