;;;; A peer whose every frame a test controls: the http2 core over a blocking socket, driven by the
;;;; thread that uses it. As a client it sends any header fields and octets; as a server it answers
;;;; by a script.

(in-package #:clgrpc.tests.server)

(defstruct (exchange (:copier nil))
  "One stream as the peer saw it: the fields of the header block that came first and of the
trailers, as alists; the octets of DATA; ENDED once the other side has ended it; RESET, an error
code, if it was reset."
  stream
  (headers '())
  (data (make-buffer))
  (trailers '())
  (ended nil)
  (reset nil))

(defstruct (peer (:copier nil))
  "SCRIPT, of a server, is called with the peer and each exchange that SCRIPT-AT, :headers or :end,
has been reached on."
  socket
  http2
  (output (make-buffer :size 65536))
  (input (make-buffer :size 65536))
  (received 0)                          ; octets, in all
  (exchanges '())
  (script nil)
  (script-at :end)
  (goaway nil)                          ; (last-stream-id error-code)
  (closed nil))

(defun fields-alist (list)
  (let ((fields '()))
    (hpack:do-fields (field list)
      (push (cons (hpack:field-name-string field) (hpack:field-value-string field)) fields))
    (nreverse fields)))

(defun exchange-data-octets (exchange)
  (let ((data (exchange-data exchange)))
    (subseq-octets (buffer-octets data) (buffer-start data) (buffer-end data))))

(defun field-of (name alist)
  "The value of the field NAME in ALIST, or nil."
  (cdr (assoc name alist :test #'string=)))

(defun framed (octets &key (flag 0) (length (length octets)))
  "OCTETS as a length-prefixed message whose prefix has FLAG and LENGTH."
  (concatenate 'octets (list flag)
               (loop for shift in '(24 16 8 0) collect (ldb (byte 8 shift) length))
               octets))

(defun note-octets (number &rest arguments)
  "The octets of a note, with its prefix."
  (framed (grpc:serialize (apply #'note number arguments))))

;;; The sink

(defun peer-of (stream) (http2:connection-user (http2:stream-connection stream)))

(defun run-script (peer exchange at)
  (when (and (peer-script peer) (eq at (peer-script-at peer)))
    (funcall (peer-script peer) peer exchange)))

(defun peer-headers (stream list ended)
  (let ((exchange (or (http2:stream-user stream)
                      (setf (http2:stream-user stream) (make-exchange :stream stream))))
        (peer (peer-of stream)))
    (pushnew exchange (peer-exchanges peer))
    (setf (exchange-headers exchange) (fields-alist list)
          (exchange-ended exchange) ended)
    (run-script peer exchange :headers)
    (when ended (run-script peer exchange :end))))

(defun peer-data (stream octets start end ended)
  (let ((exchange (http2:stream-user stream)))
    (append-octets (exchange-data exchange) octets :start start :end end)
    (http2:consume-data stream (- end start))
    (when ended
      (setf (exchange-ended exchange) t)
      (run-script (peer-of stream) exchange :end))))

(defun peer-trailers (stream list)
  (let ((exchange (http2:stream-user stream)))
    (setf (exchange-trailers exchange) (fields-alist list)
          (exchange-ended exchange) t)))

(defun peer-reset (stream code source)
  (declare (ignore source))
  (setf (exchange-reset (http2:stream-user stream)) code))

(defun peer-sink ()
  (http2:make-sink :on-output (lambda (http2) (peer-output (http2:connection-user http2)))
                   :on-headers #'peer-headers :on-data #'peer-data :on-trailers #'peer-trailers
                   :on-reset #'peer-reset
                   :on-goaway (fn (http2 last-id code _debug)
                                (setf (peer-goaway (http2:connection-user http2))
                                      (list last-id code)))))

;;; Octets in and out

(defun flush-peer (peer)
  "Send the octets that PEER has written."
  (let ((output (peer-output peer)))
    (http2:write-queued (peer-http2 peer) (ash 1 40))
    (handler-case
        (loop while (plusp (buffer-fill output))
              do (let ((octets (subseq-octets (buffer-octets output) (buffer-start output)
                                              (buffer-end output))))
                   (incf (buffer-start output)
                         (sb-bsd-sockets:socket-send (peer-socket peer) octets (length octets)))))
      (sb-bsd-sockets:socket-error () (setf (peer-closed peer) t)))
    (http2:give-output-back (peer-http2 peer))
    (clear-buffer output)))

(defun send-octets (peer octets)
  "Send OCTETS unchanged, without the core."
  (flush-peer peer)
  (append-octets (peer-output peer) octets)
  (flush-peer peer))

(defun read-peer (peer seconds)
  "Read once from PEER's socket and pass the octets to the core; false if none came in SECONDS."
  (let ((socket (peer-socket peer))
        (area (make-octets 65536)))
    (when (sb-sys:wait-until-fd-usable (sb-bsd-sockets:socket-file-descriptor socket) :input seconds
                                       nil)
      (let ((count (handler-case (nth-value 1 (sb-bsd-sockets:socket-receive socket area nil))
                     (sb-bsd-sockets:socket-error () 0)))
            (input (peer-input peer)))
        (cond ((zerop count)
               (setf (peer-closed peer) t)
               (http2:receive-eof (peer-http2 peer)))
              (t
               (incf (peer-received peer) count)
               (append-octets input area :start 0 :end count)
               (setf (buffer-start input)
                     (http2:receive-octets (peer-http2 peer) (buffer-octets input)
                                           (buffer-start input) (buffer-end input)
                                           (monotonic-ns)))))
        t))))

(defun await-peer (peer predicate &key (seconds +patience+))
  "Send and read until PREDICATE is true, PEER is closed or the time is up; return its value."
  (loop with end = (+ (monotonic-ns) (seconds-ns seconds))
        for value = (progn (flush-peer peer) (funcall predicate))
        for left = (ns-seconds (- end (monotonic-ns)))
        until (or value (peer-closed peer) (minusp left))
        do (read-peer peer left)
        finally (return (or value (funcall predicate)))))

(defun open-peer (socket role options)
  (let ((peer (make-peer :socket socket)))
    (setf (peer-http2 peer) (http2:make-connection role (peer-sink) (apply #'make-options options)
                                                   :user peer))
    (http2:start-connection (peer-http2 peer) (monotonic-ns))
    peer))

;;; As a client

(defun call-with-raw-client (function address options)
  (let ((peer (open-peer (connect-socket address) :client options)))
    (unwind-protect
         (progn (await-peer peer (lambda () (http2:connection-ready-p (peer-http2 peer))))
                (funcall function peer))
      (close-socket (peer-socket peer)))))

(defmacro with-raw-client ((peer address &rest options) &body body)
  "Evaluate BODY with PEER bound to a raw client of the server at ADDRESS, with OPTIONS of the
core."
  `(call-with-raw-client (lambda (,peer) ,@body) ,address (list ,@options)))

(defun send-fields (stream fields end)
  "Send a header block of FIELDS, an alist of strings, on STREAM."
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (loop for (name . value) in fields
          do (hpack:encode-literal encoder buffer (ascii-octets name)
                                   (map 'octets #'char-code value) :plain))
    (http2:end-headers stream end)))

(defun send-request (peer path &key (method "POST") (content-type "application/grpc") fields
                                 (data nil) (end t))
  "Send a request to PATH with FIELDS in addition to the usual ones, and DATA; end it if END is
true. Return the exchange."
  (let* ((stream (http2:open-stream (peer-http2 peer)))
         (exchange (make-exchange :stream stream)))
    (setf (http2:stream-user stream) exchange)
    (push exchange (peer-exchanges peer))
    (send-fields stream `((":method" . ,method) (":scheme" . "http") (":path" . ,path)
                          ("te" . "trailers")
                          ,@(when content-type `(("content-type" . ,content-type)))
                          ,@fields)
                 (and end (null data)))
    (when data
      (http2:send-data stream data 0 (length data) end))
    (flush-peer peer)
    exchange))

(defun await-answer (peer exchange)
  "Wait until EXCHANGE has ended or was reset; return it."
  (await-peer peer (lambda () (or (exchange-ended exchange) (exchange-reset exchange))))
  exchange)

(defun ask-raw (peer path &rest arguments)
  "SEND-REQUEST and AWAIT-ANSWER."
  (await-answer peer (apply #'send-request peer path arguments)))

(defun status-of (exchange)
  "The grpc-status of EXCHANGE as a keyword, from its trailers or its only headers."
  (let ((value (field-of "grpc-status" (or (exchange-trailers exchange)
                                           (exchange-headers exchange)))))
    (and value (status:code-status (parse-integer value)))))

;;; As a server

(defun serve-connection (socket script at options)
  (let ((peer (open-peer socket :server options)))
    (setf (peer-script peer) script
          (peer-script-at peer) at)
    (await-peer peer (constantly nil) :seconds (* 2 +patience+))))

(defun call-with-raw-server (function script at options)
  (support:call-with-served-sockets
   function (lambda (socket) (serve-connection socket script at options))))

(defmacro with-raw-server ((address &key (at :end) options) script &body body)
  "Evaluate BODY with ADDRESS bound to that of a raw server. For one connection at a time, it calls
the function SCRIPT with the peer and each exchange that has reached AT, :headers or :end."
  `(call-with-raw-server (lambda (,address) ,@body) ,script ,at (list ,@options)))

(defun ok-response (exchange &rest messages)
  "Answer EXCHANGE as a gRPC server does, with MESSAGES, octets with their prefixes."
  (let ((stream (exchange-stream exchange)))
    (send-fields stream '((":status" . "200") ("content-type" . "application/grpc")) nil)
    (dolist (message messages)
      (http2:send-data stream message 0 (length message) nil))
    (http2:send-trailers-later stream
                               (lambda (stream) (send-fields stream '(("grpc-status" . "0")) t)))))
