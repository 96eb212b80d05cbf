;;;; The open calls of a server: counting them, refusing them at the limits, ending them when their
;;;; peers are lost. Plain requests count among the open calls.

(in-package #:clgrpc.server)

(define-hot (count-call :inline t) ((link server-link) (server-loop server-loop)) null
  "Count a call of LINK, which begins on SERVER-LOOP."
  (incf (server-link-calls link))
  (incf (server-loop-open server-loop))
  (incf (peer-view-open (the peer-view (server-link-peer-view link))))
  nil)

(define-hot (note-call-begun :inline t) ((server-loop server-loop) (now nanoseconds)) null
  "Count a call of SERVER-LOOP, which begins at NOW."
  (incf (server-loop-begun server-loop))
  (setf (server-loop-call-ns server-loop) now)
  nil)

(define-hot (refuse-call-p :inline t)
            ((server-loop server-loop) (link server-link) (call server-call)) boolean
  "End CALL of LINK, which is new, and return true if it may not begin."
  (let ((verdict (refusal-of-call server-loop link (server-link-peer-view link))))
    (and verdict
         (multiple-value-bind (status text) (rpc:verdict verdict)
           (server-finish call status text nil '())
           t))))

(defun lose-call (call cause)
  "End CALL, because its peer has cancelled it or was lost. CAUSE is the reason as text."
  (unless (call-status call)
    (wire:note-end call)
    (multiple-value-bind (status text) (rpc:verdict :caller-gone)
      (end-call call status :message text :ended-by :transport :cause cause))
    (rpc:schedule-callbacks call)))

(define-hot (retire-call :inline t) ((call server-call) (link server-link)) null
  "Stop counting CALL of LINK, since it has ended and nothing more of it will be sent."
  (forget-unstarted call)
  (wire:release-call call)
  (decf (server-loop-open (the server-loop (server-link-owner link))))
  (decf (peer-view-open (the peer-view (server-link-peer-view link))))
  (decf (server-link-calls link))
  nil)

(define-hot (count-end :inline t) ((server-loop server-loop) (call server-call)) null
  "Count the end of CALL on SERVER-LOOP."
  (incf (server-loop-calls server-loop))
  (unless (eq :ok (call-status call)) (incf (server-loop-failed server-loop)))
  nil)
