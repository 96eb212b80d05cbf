;;;; The output of a connection: the buffer to which all frames are appended, and the frames of
;;;; fixed layout whose number this end does not limit: WINDOW_UPDATE, PING and GOAWAY (RFC 9113
;;;; sections 6.7 to 6.9).
;;;;
;;;; The owner lends the buffer by ON-OUTPUT, and gets it back by GIVE-OUTPUT-BACK to send its
;;;; contents. When the owner lends the buffer again, it still has the octets that were not sent, so
;;;; the sent octets can be counted.

(in-package #:clgrpc.http2)

(define-hot borrow-output ((connection connection)) buffer
  (let ((buffer (funcall (sink-on-output (connection-sink connection)) connection)))
    (declare (type buffer buffer))
    (incf (connection-sent-octets connection)
          (max 0 (- (connection-given-octets connection) (buffer-fill buffer))))
    (setf (connection-output connection) buffer)))

(define-hot (give-output-back :inline t) ((connection connection)) null
  "Return the buffer that ON-OUTPUT has lent to CONNECTION to the owner, which sends its contents.
The owner must call this after it has filled the buffer by WRITE-QUEUED, and before it sends."
  (let ((output (connection-output connection)))
    (when output
      (setf (connection-given-octets connection) (buffer-fill output)
            ;; a part of the last frame may be sent before the rest, so no octets may join it
            (connection-data-stream connection) nil
            (connection-output connection) nil)))
  nil)

(define-hot (output-buffer :inline t) ((connection connection)) buffer
  "Return the buffer to which output is appended. A call informs the owner that output will follow."
  (or (connection-output connection) (borrow-output connection)))

(define-hot (output-fill :inline t) ((connection connection)) index
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

(define-hot emit-window-update ((connection connection) (id stream-id)
                                (increment (unsigned-byte 31)))
    null
  (emit-frame (connection window-update 0 id) increment))

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

(defun discard-open-block (connection)
  "Remove a header block that this end has begun and has not ended."
  (let ((output (connection-output connection)))
    (when (and output (<= 0 (connection-open-mark connection)))
      (setf (buffer-end output) (+ (buffer-start output) (connection-open-mark connection))
            (connection-open-mark connection) -1))))

(define-hot send-ping ((connection connection) (payload (unsigned-byte 64))) null
  "Send a PING with PAYLOAD, 64 bits, on CONNECTION; its answer is reported by ON-PING-ACK (RFC 9113
section 6.7). Does nothing on a finished connection."
  (unless (connection-closed-p connection)
    (emit-ping connection 0 payload)))
