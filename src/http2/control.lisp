;;;; Frames of fixed layout into the output: RST_STREAM, SETTINGS acknowledgement, PING, GOAWAY and
;;;; WINDOW_UPDATE (RFC 9113 sections 6.4 to 6.9).
;;;;
;;;; Every frame is appended to the one output buffer, which the owner lends by ON-OUTPUT and takes
;;;; away by setting CONNECTION-OUTPUT to NIL once flushed. Answers that a peer can provoke are
;;;; counted; more than the option max-queued-control-frames before the output was empty again end
;;;; the connection.

(in-package #:clgrpc.http2)

(define-hot borrow-output ((connection connection)) buffer
  (let ((buffer (funcall (sink-on-output (connection-sink connection)) connection)))
    (declare (type buffer buffer))
    (when (zerop (buffer-fill buffer))
      (setf (accounting-control-frames (connection-accounting connection)) 0))
    (setf (connection-output connection) buffer)))

(define-hot (output-buffer :inline t) ((connection connection)) buffer
  "The buffer to append to. Calling it also tells the owner that there will be output."
  (or (connection-output connection) (borrow-output connection)))

(define-hot (output-fill :inline t) ((connection connection)) index
  "How many octets wait in the output."
  (let ((output (connection-output connection)))
    (if output (buffer-fill output) 0)))

(defmacro emit-frame ((connection name flags stream-id) &rest fields)
  "Append the frame NAME, of fixed layout, with FIELDS to the output of CONNECTION."
  (let ((size (intern (format nil "+~A-OCTETS+" name) '#:clgrpc.http2))
        (writer (intern (format nil "WRITE-~A" name) '#:clgrpc.http2)))
    `(let* ((buffer (output-buffer ,connection))
            (octets (ensure-buffer-room buffer (+ +frame-header-octets+ ,size))))
       (setf (buffer-end buffer)
             (,writer octets (buffer-end buffer) ,flags ,stream-id ,@fields))
       nil)))

(define-hot note-control-frame ((connection connection)) null
  "Count an answer that the peer provoked, before it is written."
  (let ((accounting (connection-accounting connection)))
    (output-buffer connection)          ; if it is empty the count begins anew
    (when (< (options-max-queued-control-frames (connection-options connection))
             (incf (accounting-control-frames accounting)))
      (fail-connection connection +enhance-your-calm+ "answers to too many frames are not read"))
    nil))

(define-hot emit-reset ((connection connection) (id stream-id) (code error-code)) null
  (note-control-frame connection)
  (unless (connection-closed-p connection)
    (charge-reset connection))
  (unless (connection-closed-p connection)
    (incf (accounting-resets-sent (connection-accounting connection)))
    (emit-frame (connection rst-stream 0 id) code))
  nil)

(define-hot emit-window-update ((connection connection) (id stream-id)
                                (increment (unsigned-byte 31)))
    null
  (emit-frame (connection window-update 0 id) increment))

(define-hot emit-settings-ack ((connection connection)) null
  (note-control-frame connection)
  (unless (connection-closed-p connection)
    (let ((buffer (output-buffer connection)))
      (ensure-buffer-room buffer +frame-header-octets+)
      (setf (buffer-end buffer)
            (write-frame-header (buffer-octets buffer) (buffer-end buffer)
                                0 +frame-settings+ +flag-ack+ 0))))
  nil)

(define-hot emit-ping ((connection connection) (flags octet) (payload (unsigned-byte 64))) null
  (emit-frame (connection ping flags 0) payload))

(define-hot emit-goaway ((connection connection) (last-stream-id stream-id) (code error-code)
                         (debug octets))
    null
  (let* ((buffer (output-buffer connection))
         (length (+ +goaway-octets+ (length debug)))
         (octets (ensure-buffer-room buffer (+ +frame-header-octets+ length)))
         (at (buffer-end buffer))
         (payload (write-goaway octets at 0 0 last-stream-id code)))
    (setf (frame-header-length octets at) length
          (buffer-end buffer) (copy-octets debug 0 (length debug) octets payload))
    nil))

(define-hot send-ping ((connection connection) (payload (unsigned-byte 64))) null
  "Send a PING with PAYLOAD, 64 bits, on CONNECTION; its answer comes as ON-PING-ACK (RFC 9113
section 6.7). Does nothing on a finished connection."
  (unless (connection-closed-p connection)
    (emit-ping connection 0 payload)))
