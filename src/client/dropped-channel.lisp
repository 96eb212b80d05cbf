;;;; Channels that their users drop without closing them (rpc/calling/dropped.lisp). Objects on a
;;;; loop refer only to the core of a channel, not to the channel itself; so the collector finds a
;;;; channel that its user has dropped.
;;;;
;;;; A call may outlive the channel it was made on, if its user still has the call but not the
;;;; channel. So the links of a dropped channel take no further calls, as after a GOAWAY, and the
;;;; channel is closed when its last call has ended.

(in-package #:clgrpc.client)

(defun drop-core (core)
  "Close the channel of CORE, which its user has dropped, when its calls have ended."
  (loop:post (core-loop core)
             (lambda ()
               (unless (eq :shutdown (core-state core))
                 (setf (core-dropped core) (lambda () (end-if-unused core)))
                 (dolist (subchannel (core-subchannels core))
                   (let ((connection-set (subchannel-connection-set subchannel)))
                     (unless (connection-set-pool connection-set) ; other channels may use it
                       (drain-links connection-set "the channel was dropped"))))
                 (end-if-unused core)))))

(defun end-if-unused (core)
  "Close CORE, which is dropped, if its last call has ended. On its loop."
  (unless (or (eq :shutdown (core-state core)) (busy-p core))
    (end-elsewhere (lambda () (close-core core)))))
