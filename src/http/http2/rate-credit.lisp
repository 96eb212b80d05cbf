;;;; The credit that a peer earns by ordinary work, so that it is not charged for frames that
;;;; accompany this work (rate-limit.lisp). A call that was served earns its client one reset. Each
;;;; DATA frame that we send, each new stream, and each stream that we reset earns the peer some
;;;; WINDOW_UPDATEs and late frames.

(in-package #:clgrpc.http2)

(define-hot (note-call-served :inline t) ((connection connection)) null
  "Note that a call on CONNECTION, a server's end, has been answered usefully. The client may then
reset one more stream. The option max-reset-burst limits the resets that a client can save up."
  (incf (counters-calls-served (connection-counters connection)))
  nil)

(define-hot reset-earned-p ((connection connection)) boolean
  "If the client has credit for a reset, use it and return true."
  (let* ((counters (connection-counters connection))
         (served (counters-calls-served counters))
         (kept (options-max-reset-burst (connection-options connection)))
         (borne (max (counters-resets-borne counters) (- served kept))))
    (declare (type event-count borne))
    (and (< borne served)
         (setf (counters-resets-borne counters) (1+ borne))
         t)))

(defconstant +updates-earned+ 8
  "The credit, in WINDOW_UPDATEs, that a peer gets for a DATA frame that we send, for a new stream,
or for a stream that we reset.")
(defconstant +most-updates-earned+ 1000000
  "The maximum number of earned WINDOW_UPDATEs that can be saved up.")

(define-hot (earn-updates :inline t) ((counters counters)) null
  (setf (counters-updates-earned counters)
        (min +most-updates-earned+ (+ +updates-earned+ (counters-updates-earned counters))))
  nil)

(define-hot (note-data :inline t) ((connection connection)) null
  "Note that DATA with content was sent."
  (let ((counters (connection-counters connection)))
    (setf (counters-data-since-ping counters) t)
    (earn-updates counters)))

(define-hot work-since-ping-p ((connection connection)) boolean
  "Return true if a call began or ended, or DATA was sent, since the last PING. Note the present
state for the next PING."
  (let* ((counters (connection-counters connection))
         (opened (counters-streams-opened counters))
         (open (connection-stream-count connection))
         (opened-before (shiftf (counters-opened-at-ping counters) opened))
         (open-before (shiftf (counters-open-at-ping counters) open)))
    (or (shiftf (counters-data-since-ping counters) nil)
        (/= opened opened-before)
        (/= open open-before))))
