;;;; The buffers of connections: input that the owner has not consumed, and output that is unsent. A
;;;; loop has a pool of buffers, and a buffer that is not used returns to the pool. The account of a
;;;; connection is charged with the memory that the connection keeps. A buffer of output returns to
;;;; the pool only after the handler's FILL, by whose return the owner gives the buffer up; if the
;;;; handler has no FILL, the collector frees the buffer.

(in-package #:clgrpc.loop)

(defconstant +buffer-octets+ 4096
  "The size in octets of a new buffer.")
(defconstant +pooled-buffer-octets+ 524288
  "The maximum size in octets of a buffer that is kept for another connection. Buffers of
connections with long messages grow to half of this size.")
(defconstant +pool-octets+ 4194304
  "The maximum number of octets that a loop keeps in unused buffers.")

(define-hot borrow-buffer ((loop event-loop)) buffer
  (let ((count (event-loop-pool-count loop)))
    (if (zerop count)
        (make-buffer :size +buffer-octets+)
        (let ((buffer (svref (event-loop-pool loop) (1- count))))
          (declare (type buffer buffer))
          (setf (event-loop-pool-count loop) (1- count)
                (svref (event-loop-pool loop) (1- count)) nil)
          (decf (event-loop-pool-octets loop) (length (buffer-octets buffer)))
          buffer))))

(define-hot give-buffer-back ((loop event-loop) (buffer buffer)) null
  (let* ((length (length (buffer-octets buffer)))
         (total (+ length (event-loop-pool-octets loop)))
         (count (event-loop-pool-count loop)))
    (clear-buffer buffer)
    (when (and (<= length +pooled-buffer-octets+) (<= total +pool-octets+) (< count +pool-buffers+))
      (setf (event-loop-pool-octets loop) total
            (event-loop-pool-count loop) (1+ count)
            (svref (event-loop-pool loop) count) buffer))
    nil))

(defun discard-buffer (loop)
  "A buffer whose octets are never sent, for output to a connection that is closed."
  (let ((buffer (event-loop-discard-buffer loop)))
    (clear-buffer buffer)
    (if (> (buffer-room buffer) +pooled-buffer-octets+)
        (setf (event-loop-discard-buffer loop) (make-buffer :size 0))
        buffer)))

(define-hot release-output ((connection connection)) null
  "Release the buffer of CONNECTION. All output must have been sent, and the owner must have
finished with the buffer."
  (let ((buffer (connection-buffer connection)))
    (when buffer
      (setf (connection-buffer connection) nil)
      (give-buffer-back (connection-loop connection) buffer))
    nil))

;;; Memory that connections keep

(defun kept-octets (connection)
  "The memory of the buffers of CONNECTION."
  (flet ((size (buffer) (if buffer (length (buffer-octets buffer)) 0)))
    (+ (size (connection-leftover connection))
       (size (connection-buffer connection))
       (if (eq :closed (connection-state connection))
           0
           (byte-channel-kept-octets (connection-byte-channel connection))))))

(defun charge-kept (connection)
  "Charge the account of CONNECTION with the memory that CONNECTION keeps now."
  (let ((account (connection-account connection))
        (kept (kept-octets connection)))
    (unless (or (null account) (account-closed-p account))
      (charge-own account (- kept (shiftf (connection-kept connection) kept))))))

(define-hot (keeps-input-p :inline t) ((connection connection)) boolean
  "True if CONNECTION may keep input, or is charged with memory. A TLS session may keep input."
  (or (and (connection-leftover connection) t)
      (plusp (connection-kept connection))
      (typep (byte-channel-state (connection-byte-channel connection)) 'tls)))

(define-hot (note-kept :inline t) ((connection connection)) null
  "Charge the account of CONNECTION with the memory that it still keeps after a flush."
  (when (or (connection-buffer connection) (keeps-input-p connection))
    (charge-kept connection))
  nil)
