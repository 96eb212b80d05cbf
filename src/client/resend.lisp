;;;; Calls that the server has not seen, and says so, are made again without a word (gRFC A6,
;;;; "transparent retries"): those refused by REFUSED_STREAM, and those above the last stream of a
;;;; GOAWAY. Once, since a server that refuses again has a reason; calls that have had no stream yet
;;;; wait for the next connection as often as it takes. All within the call's deadline.
;;;;
;;;; What is kept of a request for that is in request.lisp. A call whose messages were not kept ends
;;;; with :unavailable, and RPC-ERROR-SENT-P says that it may be made again.

(in-package #:clgrpc.client)

(defun resend-p (call)
  "True if CALL, which its server says it has not seen, is to be made again."
  (and (not (wire:marked-p (wire:wire-call-marks call) wire:+answer+))
       (not (let ((parts (wire:call-wire-parts call)))
              (and parts (or (wire:wire-parts-resent parts) (wire:wire-parts-aside parts)))))
       (repeatable-p call)))

(defun resend (call)
  "Make CALL again, once its stream is closed."
  (let ((parts (wire:ensure-wire-parts call)))
    (setf (wire:wire-parts-resent parts) t
          (wire:wire-parts-wait parts) nil
          (wire:wire-call-marks call) (wire:unmarked (wire:wire-call-marks call)))
    (loop:defer (wire-call-loop call) #'submit-again call)))

(defun submit-again (call)
  (unless (call-status call)
    (submit (client-call-core call) call nil)))
