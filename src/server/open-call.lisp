;;;; The calls that a server has open: how they are counted, refused at the limits, lost with their
;;;; peers, and counted no longer. Plain requests count among the open ones, too.

(in-package #:clgrpc.server)

(define-hot (count-call :inline t) ((link server-link) (hub hub)) null
  "A call of LINK begins on HUB."
  (incf (wire:link-calls link))
  (incf (hub-open hub))
  (incf (guest-open (the guest (server-link-guest link))))
  nil)

(define-hot (note-call-begun :inline t) ((hub hub) (now nanoseconds)) null
  "A call of HUB begins at NOW."
  (incf (hub-begun hub))
  (setf (hub-call-ns hub) now)
  nil)

(define-hot (refuse-call-p :inline t) ((hub hub) (link server-link) (call server-call)) boolean
  "Return true if CALL of LINK, which is new, may not begin: it has been ended."
  (let ((verdict (refusal-of-call hub link (server-link-guest link))))
    (and verdict
         (multiple-value-bind (status text) (rpc:verdict verdict)
           (server-finish call status text nil '())
           t))))

(defun lose-call (call cause)
  "The peer of CALL has cancelled it or gone, as CAUSE, a text, says."
  (unless (call-status call)
    (wire:mark-call call wire:+end+)
    (multiple-value-bind (status text) (rpc:verdict :caller-gone)
      (end-call call status :message text :ended-by :transport :cause cause))
    (wire:stop-timers call)
    (when (rpc:callbacks-p call) (wire:wire-schedule call))))

(define-hot (retire-call :inline t) ((call server-call) (link server-link)) null
  "CALL of LINK is over, and nothing more of it is sent: it is counted no longer."
  (forget-unstarted call)
  (wire:release-call call)
  (decf (hub-open (the hub (link-owner link))))
  (decf (guest-open (the guest (server-link-guest link))))
  (decf (wire:link-calls link))
  nil)

(defun hub-tally (hub)
  "How many calls of HUB have begun, succeeded and failed, and when the last began, 0 for none. On
its loop."
  (values (hub-begun hub)
          (- (hub-calls hub) (hub-failed hub))
          (hub-failed hub)
          (hub-call-ns hub)))

(define-hot (count-end :inline t) ((hub hub) (call server-call)) null
  (incf (hub-calls hub))
  (unless (eq :ok (call-status call)) (incf (hub-failed hub)))
  nil)
