;;;; The calls that a server has open: how they are counted, refused at the limits, lost with their
;;;; peers, and counted no longer. Plain requests count among the open ones, too.

(in-package #:clgrpc.server)

(define-hot (count-call :inline t) ((link server-link) (server-loop server-loop)) null
  "A call of LINK begins on SERVER-LOOP."
  (incf (server-link-calls link))
  (incf (server-loop-open server-loop))
  (incf (peer-view-open (the peer-view (server-link-peer-view link))))
  nil)

(define-hot (note-call-begun :inline t) ((server-loop server-loop) (now nanoseconds)) null
  "A call of SERVER-LOOP begins at NOW."
  (incf (server-loop-begun server-loop))
  (setf (server-loop-call-ns server-loop) now)
  nil)

(define-hot (refuse-call-p :inline t)
            ((server-loop server-loop) (link server-link) (call server-call)) boolean
  "Return true if CALL of LINK, which is new, may not begin: it has been ended."
  (let ((verdict (refusal-of-call server-loop link (server-link-peer-view link))))
    (and verdict
         (multiple-value-bind (status text) (rpc:verdict verdict)
           (server-finish call status text nil '())
           t))))

(defun lose-call (call cause)
  "The peer of CALL has cancelled it or gone, as CAUSE, a text, says."
  (unless (call-status call)
    (wire:mark-call call :end)
    (multiple-value-bind (status text) (rpc:verdict :caller-gone)
      (end-call call status :message text :ended-by :transport :cause cause))
    (wire:stop-timers call)
    (when (rpc:callbacks-p call) (operate schedule call))))

(define-hot (retire-call :inline t) ((call server-call) (link server-link)) null
  "CALL of LINK is over, and nothing more of it is sent: it is counted no longer."
  (forget-unstarted call)
  (wire:release-call call)
  (decf (server-loop-open (the server-loop (server-link-owner link))))
  (decf (peer-view-open (the peer-view (server-link-peer-view link))))
  (decf (server-link-calls link))
  nil)

(defun server-loop-tally (server-loop)
  "How many calls of SERVER-LOOP have begun, succeeded and failed, and when the last began, 0 for
none. On its loop."
  (values (server-loop-begun server-loop)
          (- (server-loop-calls server-loop) (server-loop-failed server-loop))
          (server-loop-failed server-loop)
          (server-loop-call-ns server-loop)))

(define-hot (count-end :inline t) ((server-loop server-loop) (call server-call)) null
  (incf (server-loop-calls server-loop))
  (unless (eq :ok (call-status call)) (incf (server-loop-failed server-loop)))
  nil)
