;;;; The steady state allocates nothing: unary calls at both ends, PING, WINDOW_UPDATE. Streams that
;;;; are not released cost their structure.

(in-package #:clgrpc.tests.http2)

(defparameter *message* (ascii-octets "0123456789"))

(defun make-unary-server (release-p)
  (connect-end :server
    :on-data (lambda (stream octets start end end-p)
               (declare (ignore octets) (type index start end))
               (h2:consume-data stream (- end start))
               (when end-p
                 (send-headers stream *response-fields* nil)
                 (send-octets stream *message* nil)
                 (send-headers stream *trailer-fields* t)))
    :on-stream-closed (lambda (stream) (when release-p (h2:release-stream stream)))))

(defun carry (from to)
  "Like PUMP in one direction, without allocation: straight from one buffer into the other end."
  (h2:write-queued (end-connection from) 65536)
  (h2:give-output-back (end-connection from))
  (let ((buffer (end-buffer from)))
    (h2:receive-octets (end-connection to) (buffer-octets buffer) (buffer-start buffer)
                       (buffer-end buffer) 0)
    (clear-buffer buffer)))

(defun unary-call-cost (release-p)
  "Octets allocated per unary call by a client and a server together."
  (let* ((server (make-unary-server release-p))
         (client (connect-end
                  :client
                  :on-data (lambda (stream octets start end end-p)
                             (declare (ignore octets end-p) (type index start end))
                             (h2:consume-data stream (- end start)))
                  :on-stream-closed (lambda (stream) (when release-p (h2:release-stream stream)))))
         (connection (end-connection client)))
    (pump client server)
    (octets-per-run (lambda ()
                      (let ((stream (h2:open-stream connection)))
                        (send-headers stream *request-fields* nil)
                        (send-octets stream *message* t))
                      (carry client server)
                      (carry server client)))))

(test unary-calls-allocate-nothing
  "Not an octet per call if streams are released, else the two stream structures."
  (is (< (unary-call-cost t) 2))
  (is (< (unary-call-cost nil) 384)))

(test control-frames-allocate-nothing
  "PING and its answer, WINDOW_UPDATE, and a reset."
  (let* ((server (make-unary-server t))
         (client (connect-end :client))
         (peer (make-peer))
         (updates (frames-octets peer '((:window-update 0 0) (:ping 5)))))
    (pump client server)
    (setf (aref updates 12) 1)
    (is (< (octets-per-run (lambda ()
                             (h2:receive-octets (end-connection server) updates 0
                                                (length updates) 0)
                             (h2:give-output-back (end-connection server))
                             (clear-buffer (end-buffer server))))
           2))))

(test idle-connections-are-small
  "A connection that has done nothing yet, with its HPACK state, takes less than 1.5 KB."
  (let ((sink (h2:make-sink :on-output #'identity))
        (options (make-options))
        (pool (h2:make-pool))
        (kept '()))
    (is (< (octets-per-run (lambda ()
                             (push (h2:make-connection :server sink options :pool pool) kept)))
           1500))))
