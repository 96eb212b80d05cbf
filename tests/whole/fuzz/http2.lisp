;;;; The http2 core as server and as client: whatever comes, nothing is signalled, what goes out is
;;;; whole frames with fields that a peer can decode, a connection that ends says so once, by GOAWAY
;;;; and ON-CLOSE, and when it is over nothing is left: no stream, no octet queued, each stream
;;;; closed once.

(in-package #:clgrpc.tests.fuzz)

(define-condition connection-ended (error) ()
  (:report "The connection has ended with an error, in order.")
  (:documentation "What a session that ends its connection is refused with."))

(defun string-fields (&rest names-and-values)
  (coerce (loop for (name value) on names-and-values by #'cddr
                collect (hpack:string-field name value))
          'simple-vector))

(defparameter *request-fields*
  (string-fields ":method" "POST" ":scheme" "http" ":path" "/greeter/hello"
                 ":authority" "localhost" "content-type" "application/grpc" "te" "trailers"))
(defparameter *response-fields*
  (string-fields ":status" "200" "content-type" "application/grpc"))
(defparameter *trailer-fields* (string-fields "grpc-status" "0"))

(defstruct (tally (:copier nil))
  "What the owner of a connection was told: streams SEEN and CLOSED, CLOSES of the connection."
  (seen 0 :type index)
  (closed 0 :type index)
  (closes 0 :type index))

(defun put-headers (stream fields end-p)
  (declare (type simple-vector fields))
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (loop for field across fields
          do (hpack:encode-field encoder buffer field :index)))
  (http2:end-headers stream end-p))

(defun answer-somehow (stream)
  "What an owner may do with STREAM, at random: reset it, begin an answer, add to it, end it."
  (case (below 6)
    (0 (http2:reset-stream stream http2:+cancel+))
    ((1 2) (when (http2:stream-sendable-p stream)
             (unless (http2::stream-flag-p stream http2::+sent-headers+)
               (put-headers stream *response-fields* nil))
             (let ((count (if (chance-p 10) 70000 (below 300))))
               (http2:send-data stream (make-octets count) 0 count nil))))
    (3 (when (and (http2:stream-sendable-p stream)
                  (null (http2::stream-trailers-function stream))
                  (http2::stream-flag-p stream http2::+sent-headers+))
         (http2:send-trailers-later stream (lambda (stream)
                                             (put-headers stream *trailer-fields* t)))))))

(defun session-sink (tally buffer role)
  (http2:make-sink
   :on-output (lambda (connection) (declare (ignore connection)) buffer)
   :on-headers (fn (stream _list _end-p)
                 (when (eq role :server)
                   (incf (tally-seen tally))
                   (answer-somehow stream)))
   :on-data (fn (stream _octets start end _end-p)
              (unless (chance-p 4) (http2:consume-data stream (- end start)))
              (when (eq role :server) (answer-somehow stream)))
   :on-writable (lambda (stream) (when (eq role :server) (answer-somehow stream)))
   :on-stream-closed (lambda (stream)
                       (incf (tally-closed tally))
                       (http2:release-stream stream))
   :on-close (fn (_connection _code _text) (incf (tally-closes tally)))))

(defvar *pools* '() "The pools that the connections of a role share, as those of one loop do.")

(defun pool-of (role)
  (or (getf *pools* role) (setf (getf *pools* role) (http2:make-pool))))

(defun run-session (role octets)
  "Give OCTETS to a connection in ROLE."
  (declare (type octets octets))
  (let* ((tally (make-tally))
         (buffer (make-buffer))
         (octets (copy-seq octets))     ; RECEIVE-OCTETS may overwrite them
         (pool (pool-of role))
         (connection (http2:make-connection role (session-sink tally buffer role)
                                            (load-time-value (make-options))
                                            :pool pool))
         (peer (dialogue:make-peer))
         (frames '()))                  ; that went out, the last one first
    (flet ((flush ()
             (http2:write-queued connection 65536)
             (http2:give-output-back connection)
             (let ((start (buffer-start buffer)))
               ;; a client begins with its preface
               (when (and (< start (buffer-end buffer))
                          (= #x50 (aref (buffer-octets buffer) start)))
                 (incf start (length dialogue:*preface*)))
               (setf frames (revappend (dialogue:read-frame-forms
                                        peer (subseq (buffer-octets buffer) start
                                                     (buffer-end buffer)))
                                       frames)))
             (clear-buffer buffer)))
      (http2:start-connection connection 0)
      (flush)
      (when (eq role :client) (open-some connection tally))
      (in-pieces (octets start end)
        (prog1 (http2:receive-octets connection octets start end 0)
          (flush)))
      (let ((closed-p (http2:connection-closed-p connection)))
        (unless (= (tally-closes tally) (if closed-p 1 0))
          (found "the end of the connection is told ~D times" (tally-closes tally)))
        (unless (= (count :goaway frames :key #'first) (if closed-p 1 0))
          (found "GOAWAY goes out ~D times" (count :goaway frames :key #'first)))
        (unless (or (not closed-p) (eq :goaway (first (first frames))))
          (found "the last frame is no GOAWAY but ~S" (first frames)))
        (http2:advance-time connection (* 3600 1000000000))
        (http2:receive-eof connection)
        (unless (= (tally-seen tally) (tally-closed tally))
          (found "of ~D streams ~D are closed" (tally-seen tally) (tally-closed tally)))
        (unless (zerop (http2:connection-stream-count connection))
          (found "~D streams are left" (http2:connection-stream-count connection)))
        (unless (zerop (http2:counters-queued-octets (http2:connection-counters connection)))
          (found "octets count as queued"))
        (when closed-p (error 'connection-ended))))))

(defun open-some (connection tally)
  "Begin three requests on CONNECTION, of a client."
  (loop repeat 3
        do (let ((stream (http2:open-stream connection)))
             (incf (tally-seen tally))
             (put-headers stream *request-fields* nil)
             (one-of
               nil
               (http2:send-data stream (make-octets 100) 0 100 t)
               (http2:send-data stream (make-octets 70000) 0 70000 nil)))))

;;; Sessions

(defun server-sessions ()
  (mapcar
   (lambda (forms) (session-sample :server (append '((:settings (:initial-window-size 70000)
                                                      (:max-frame-size 20000))
                                                     (:settings-ack))
                                                   forms)))
   '(((:headers 1 :post) (:data 1 "hello" (:pad 5)) (:data 1 50)
      (:priority 1 0) (:headers 1 :done :end-stream) (:headers 3 :get :end-stream (:pad 3))
      (:ping 1) (:headers 5 :post (:depends 3)) (:rst-stream 5 :cancel) (:window-update 3 100)
      (:window-update 0 100) (:headers 7 :post) (:data 7 "" :end-stream) (:goaway 0 :no-error))
     ((:headers 1 :post) (:headers 3 :post) (:headers 5 :post) (:data 1 16384) (:data 3 16384)
      (:data 5 "x" :end-stream) (:data 1 16384 :end-stream) (:data 3 0 :end-stream)
      (:window-update 0 1000000) (:window-update 1 1000000) (:settings (:initial-window-size 0))
      (:headers 7 :post) (:data 7 9 :end-stream) (:settings (:initial-window-size 100000)))
     ((:headers 1 :post :end-stream) (:headers 3 :post :end-stream) (:headers 5 :post :end-stream)
      (:rst-stream 1 :cancel) (:rst-stream 3 :cancel) (:rst-stream 5 :cancel)
      (:settings (:header-table-size 0)) (:headers 7 :post :end-stream)
      (:settings (:header-table-size 4096)) (:headers 9 :post :end-stream) (:ping-ack 3))
     ((:headers 1 :post :open) (:continuation 1 #.(octets-of)) (:data 1 100 :end-stream)
      (:frame 200 0 0 #.(octets-of 1 2 3)) (:headers 3 :get :end-stream) (:goaway 1 :no-error)))))

(defun client-sessions ()
  (mapcar
   (lambda (forms) (session-sample :client (append '((:settings (:max-concurrent-streams 100))
                                                     (:settings-ack))
                                                   forms)))
   '(((:headers 1 :continue) (:headers 1 :ok) (:data 1 "hello" (:pad 5))
      (:headers 1 :done :end-stream) (:ping-ack 3) (:headers 3 :ok) (:data 3 400 :end-stream)
      (:window-update 5 100) (:settings (:header-table-size 100)) (:goaway 5 :no-error)
      (:headers 5 :ok :end-stream))
     ((:headers 1 :ok) (:data 1 16384) (:data 1 16384) (:window-update 0 100000)
      (:window-update 3 100000) (:headers 3 :ok) (:rst-stream 1 :cancel) (:headers 5 :ok)
      (:headers 3 :done :end-stream) (:data 5 1 :end-stream))
     ((:goaway 3 :no-error) (:headers 1 :ok) (:settings (:initial-window-size 0))
      (:headers 1 :done :end-stream) (:headers 3 :ok :end-stream)
      (:goaway 1 :enhance-your-calm)))))

(define-target "http2-server"
  :samples #'server-sessions :mutate #'mutate-session :run #'run-session
  :conditions (connection-ended) :seconds 1/20)

(define-target "http2-client"
  :samples #'client-sessions :mutate #'mutate-session :run #'run-session
  :conditions (connection-ended) :seconds 1/20)
