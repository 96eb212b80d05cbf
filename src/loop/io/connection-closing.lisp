;;;; The end of a connection. It is never closed while one of its owner's functions runs:
;;;; CLOSE-CONNECTION and ABORT-CONNECTION mark it, and the flush at the end of the turn calls
;;;; END-FLUSHED, which closes it and notifies the owner, once. A connection that is closed in order
;;;; goes through these states:
;;;;
;;;;   :open       CLOSE-CONNECTION
;;;;   :closing    its output is sent, and what the peer sends is dropped
;;;;   :lingering  our side is shut down; the peer has +LINGER-NS+ to close its side
;;;;   :closed
;;;;
;;;; A connection that is aborted, such as after an error of its socket, is :aborting until the
;;;; flush, and then :closed; its output is dropped.

(in-package #:clgrpc.loop)

(defconstant +linger-ns+ (* 2 +ns-per-second+)
  "The time in nanoseconds that we wait for the peer of a connection that we close: first while the
peer accepts none of the output, and then again until the peer closes its side. This is long enough
for a slow line, and short enough that connections to dead peers do not pile up.")

(defconstant +most-lingering+ 1024
  "The maximum number of connections of a loop that may linger at once. It stops rejected peers from
making the loop hold unlimited descriptors. When descriptors run out, no connection may linger.")

(defconstant +most-discarded-octets+ 33554432
  "The maximum number of octets that a connection reads and drops while it is being closed, so that
a peer that sends long messages before it reads gets our answer. Further octets stay in the kernel,
which slows the peer down, until the peer has ended its side, or the connection has lingered.")

(defun abort-connection (connection reason)
  "Close CONNECTION at the end of the turn, and drop its unsent output."
  (unless (member (connection-state connection) '(:aborting :closed))
    (end-linger connection)
    (setf (connection-state connection) :aborting
          (connection-reason connection) reason
          (connection-readable connection) nil)
    (mark-dirty connection))
  nil)

(defun close-connection (connection &key abort)
  "Close CONNECTION at the end of the turn. Send its output first or, with ABORT, drop it. If the
peer takes no output for +LINGER-NS+, the rest is dropped. Once CONNECTION is closed, the handler's
CLOSED is called with NIL or, if a write has failed before, with the reason of the failure. Closing
a closed connection does nothing, except with ABORT. On the loop."
  (cond ((or abort (connection-broken connection))
         (abort-connection connection (if abort nil (connection-reason connection))))
        ((eq :open (connection-state connection))
         (setf (connection-state connection) :closing)
         (start-linger-timer connection)
         (when (connection-readable connection) (mark-ready connection))
         (mark-dirty connection)))
  nil)

(defun start-linger-timer (connection)
  (let ((timer (or (connection-timer connection)
                   (setf (connection-timer connection)
                         (make-timer #'give-up-lingering connection))))
        (loop (connection-loop connection)))
    (start-timer loop timer (+ (event-loop-now loop) +linger-ns+))))

(defun give-up-lingering (connection)
  (abort-connection connection (connection-reason connection)))

(defun bound-lingering (loop most)
  "Reduce the lingering connections of LOOP to MOST; the connections that have lingered longest end
first."
  (loop while (< most (event-loop-lingering loop))
        do (abort-connection (first (fifo-items (event-loop-lingerers loop))) nil)))

(defun count-lingering (connection)
  (let ((loop (connection-loop connection)))
    (enqueue connection (event-loop-lingerers loop))
    (incf (event-loop-lingering loop))
    (bound-lingering loop +most-lingering+)))

(defun end-linger (connection)
  "Stop the lingering of CONNECTION, if it lingers. CONNECTION is about to be closed."
  (when (eq :lingering (connection-state connection))
    (let ((loop (connection-loop connection)))
      (remove-from-fifo connection (event-loop-lingerers loop)) ; +MOST-LINGERING+ at most
      (decf (event-loop-lingering loop)))))

(defun begin-linger (connection reason)
  "Shut down our side of CONNECTION, whose output was all sent, and wait for a while until the peer
closes its side. Closing earlier might destroy octets that are still on their way to the peer."
  (release-output connection)
  (cond ((connection-ended connection) (finish-connection connection reason))
        (t (setf (connection-state connection) :lingering)
           (count-lingering connection)
           (shut-byte-channel-down (connection-byte-channel connection))
           (start-linger-timer connection)
           (when reason
             ;; the connection has not been read to its end
             (setf (connection-readable connection) t)
             (mark-ready connection))
           (tell-closed connection reason))))

(defun tell-closed (connection reason)
  (unless (connection-told connection)
    (setf (connection-told connection) t)
    (guarding (:closed-handler-error :connection connection)
      (funcall (handler-closed (connection-handler connection)) connection reason))))

(defun finish-connection (connection reason)
  "Close CONNECTION's byte channel, release the memory of CONNECTION and call the handler's CLOSED."
  (unless (eq :closed (connection-state connection))
    (let ((loop (connection-loop connection)))
      (end-linger connection)
      (setf (connection-state connection) :closed
            (connection-readable connection) nil
            (connection-buffer connection) nil)
      (when (connection-leftover connection)
        (give-buffer-back loop (connection-leftover connection))
        (setf (connection-leftover connection) nil))
      (when (connection-account connection) (charge-kept connection))
      (stop-timer loop (connection-timer connection))
      (remove-source connection)
      (close-byte-channel (connection-byte-channel connection))
      (tell-closed connection reason)
      (dolist (function (event-loop-after-closing loop))
        (call-last loop function loop))))
  nil)

(defun end-flushed (connection)
  "Continue to close CONNECTION, which has no output left."
  (cond ((eq :closing (connection-state connection)) (begin-linger connection nil))
        ;; the byte channel has reported a fault to its peer, so the peer gets time to read the
        ;; report
        ((and (byte-channel-failure (connection-byte-channel connection))
              (not (connection-told connection)))
         (begin-linger connection (connection-reason connection)))
        (t (finish-connection connection (connection-reason connection)))))

(defun connections-closing-p (loop)
  "True if LOOP has connections that are being closed and wait until their peer takes the rest of
the output, or closes its side. On the loop."
  (flet ((closing-p (source)
           (and (typep source 'connection)
                (member (connection-state source) '(:closing :lingering))
                t)))
    (some #'closing-p (event-loop-sources loop))))

(defun close-unowned (loop byte-channel reason)
  "Close BYTE-CHANNEL, whose new owner has failed. The owner may have made a connection on LOOP from
BYTE-CHANNEL before."
  (let ((connection (find-if (lambda (source)
                               (and (typep source 'connection)
                                    (eq byte-channel (connection-byte-channel source))))
                             (event-loop-sources loop))))
    (if connection
        (abort-connection connection reason)
        (close-byte-channel byte-channel))))
