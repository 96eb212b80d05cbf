;;;; Channels that their users drop without closing them (rpc/calling/dropped.lisp). Nothing on a
;;;; loop refers to a channel, only to what it is there, its core; so the collector finds one that
;;;; nobody has any more.
;;;;
;;;; A call may outlive the channel it was made on: its user still has the one and not the other. So
;;;; a dropped channel takes its links out of use, as before a server's end, and is closed when the
;;;; last call is over.

(in-package #:clgrpc.client)

(defun drop-core (core)
  "Nobody has the channel of CORE any more: close it when its calls have ended."
  (loop:run-or-post (core-loop core)
                    (lambda ()
                      (unless (eq :shutdown (core-state core))
                        (setf (core-dropped core) (lambda () (end-if-unused core)))
                        (dolist (subchannel (core-subchannels core))
                          (let ((connection-set (subchannel-connection-set subchannel)))
                            (unless (connection-set-pool connection-set) ; others may use it
                              (leave-links connection-set "the channel was dropped"))))
                        (end-if-unused core)))))

(defun end-if-unused (core)
  "CORE, which is dropped, may have no calls any more. On its loop."
  (unless (or (eq :shutdown (core-state core)) (busy-p core))
    (end-elsewhere (lambda () (close-core core)))))
