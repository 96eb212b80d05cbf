;;;; Channels that their users drop without closing them (rpc/dropped.lisp). Nothing on a loop
;;;; refers to a channel, only to what it is there, its subchannel; so the collector finds one that
;;;; nobody has any more.
;;;;
;;;; A call may outlive the channel it was made on: its user still has the one and not the other. So
;;;; a dropped channel takes its links out of use, as before a server's end, and is closed when the
;;;; last call is over.

(in-package #:clgrpc.client)

(defun drop-subchannel (subchannel)
  "Nobody has the channel of SUBCHANNEL any more: close it when its calls have ended."
  (report-dropped (subchannel-name subchannel))
  (loop:run-or-post (subchannel-loop subchannel)
                    (lambda ()
                      (unless (eq :shutdown (subchannel-state subchannel))
                        (setf (subchannel-dropped subchannel) t)
                        (let ((link (subchannel-link subchannel)))
                          (when (and link (eq :ready (subchannel-state subchannel)))
                            (setf (wire:link-draining link) t)
                            (leave-link subchannel link "the channel was dropped")))
                        (end-if-unused subchannel)))))

(defun end-if-unused (subchannel)
  "SUBCHANNEL, which is dropped, may have no calls any more. On its loop."
  (unless (or (eq :shutdown (subchannel-state subchannel))
              (subchannel-leaving subchannel)
              (let ((link (subchannel-link subchannel)))
                (and link (plusp (wire:link-calls link))))
              (find nil (waiting-calls subchannel) :key #'call-status))
    (end-elsewhere (lambda () (close-subchannel subchannel)))))
