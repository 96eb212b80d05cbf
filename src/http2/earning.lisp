;;;; What a peer earns by decent work, so that it is not charged for frames that come with it (see
;;;; patience.lisp): a call that was served earns the client a reset; DATA of ours, a new stream and
;;;; a stream that we reset earn WINDOW_UPDATEs and late frames.

(in-package #:clgrpc.http2)

(define-hot (note-call-served :inline t) ((connection connection)) null
  "Tell the server end CONNECTION that a call on it has got an answer worth having. Each earns its
client one reset, of those that were not used yet as many as the option max-reset-burst says."
  (incf (accounting-calls-served (connection-accounting connection)))
  nil)

(define-hot reset-earned-p ((connection connection)) boolean
  "True if one more reset is earned by the calls that were served; then that is used up."
  (let* ((accounting (connection-accounting connection))
         (served (accounting-calls-served accounting))
         (kept (options-max-reset-burst (connection-options connection)))
         (borne (max (accounting-resets-borne accounting) (- served kept))))
    (declare (type event-count borne))
    (and (< borne served)
         (setf (accounting-resets-borne accounting) (1+ borne))
         t)))

(defconstant +updates-earned+ 8
  "How many WINDOW_UPDATEs a DATA frame of ours, a new stream, or one that we reset, is good for.")
(defconstant +most-updates-earned+ 1000000)

(define-hot (earn-updates :inline t) ((accounting accounting)) null
  (setf (accounting-updates-earned accounting)
        (min +most-updates-earned+ (+ +updates-earned+ (accounting-updates-earned accounting))))
  nil)

(define-hot (note-data :inline t) ((connection connection)) null
  "DATA with content was sent."
  (let ((accounting (connection-accounting connection)))
    (setf (accounting-data-since-ping accounting) t)
    (earn-updates accounting)))

(define-hot work-since-ping-p ((connection connection)) boolean
  "True if since the last PING a call has begun or ended, or DATA was sent; note how that is now."
  (let* ((accounting (connection-accounting connection))
         (opened (accounting-streams-opened accounting))
         (open (connection-stream-count connection))
         (opened-before (shiftf (accounting-opened-at-ping accounting) opened))
         (open-before (shiftf (accounting-open-at-ping accounting) open)))
    (or (shiftf (accounting-data-since-ping accounting) nil)
        (/= opened opened-before)
        (/= open open-before))))
