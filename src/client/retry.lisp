;;;; Calls that are tried again (gRFC A6). When an attempt has failed and no answer had begun:
;;;;
;;;; - The server says that it has not seen it (REFUSED_STREAM, or above the last stream of a
;;;;   GOAWAY): it is made again at once, but once only, since who refuses again has a reason. Not
;;;;   so a GOAWAY on a connection that was there before the first refusal: it may have been under
;;;;   way, as when several servers end old connections at a time (A9). Each connection says it
;;;;   once. None of this counts as an attempt. One that has found no stream yet waits for it all
;;;;   the while.
;;;; - Else the policy that the service config has for the method decides: a retry policy here, a
;;;;   hedging policy in hedging.lisp.
;;;;
;;;; All within the call's one deadline, and on its loop.

(in-package #:clgrpc.client)

(defun note-late-setback (call setback)
  "CALL, whose answer had begun, has failed with SETBACK: that is counted, no more."
  (note-throttle call (wire:retries-policy (ensure-policy call)) setback))

;;; Failed attempts

(defun note-setback (call attempt setback)
  "CALL's user can ask later how ATTEMPT, or one without a stream if that is nil, has failed."
  (rpc:note-failed-attempt
   call
   (if attempt (wire:attempt-number attempt) (next-number call))
   (and attempt (wire:link-peer (wire:attempt-link attempt)))
   (setback-status setback) (setback-message setback)
   (ns-seconds (- (core-now (client-call-core call)) (wire:wire-call-born-ns call)))))

(defun resend-p (call attempt setback)
  "True if ATTEMPT of CALL, which has failed with SETBACK, is to be made again without a word."
  (and attempt
       (eq :server (setback-reach setback))
       (let ((since-ns (wire:retries-resent-ns (wire:ensure-retries call)))
             (link (wire:attempt-link attempt)))
         (or (null since-ns)
             (and (wire:link-draining link) (< (wire:link-born-ns link) since-ns))))
       (not (side-call-p call))
       (repeatable-p call)))

(defun resend (call attempt)
  "Make ATTEMPT of CALL, which its server has not seen, again, once its stream is closed."
  (let ((retries (wire:call-retries call)))
    (incf (wire:retries-resent retries))
    (unless (wire:retries-resent-ns retries)
      (setf (wire:retries-resent-ns retries) (core-now (client-call-core call)))))
  (issue call (wire:attempt-number attempt))
  (loop:defer (wire-call-loop call) #'submit-again call))

(defun submit-again (call)
  (guarding-call (call) (resubmit call)))

(defun retry-p (call retries setback)
  "True if the retry policy of CALL, which has RETRIES, has it tried again after SETBACK."
  (and (retry-after-p (wire:retries-policy retries) (setback-status setback)
                      (setback-pushback setback) (wire:retries-issued retries)
                      (wire:retries-limit retries) (core-throttle (client-call-core call)))
       (not (wire:retries-over retries))
       (keep-request call)))

(defun retry-later (call retries setback)
  "Try CALL, which has RETRIES, again when it is time after SETBACK."
  (let ((pushback (setback-pushback setback)))
    (issue-next call)
    (await-retry call
                 (cond (pushback
                        (setf (wire:retries-waits retries) 0)
                        pushback)
                       (t (prog1 (retry-delay-ns (wire:retries-policy retries)
                                                 (wire:retries-waits retries)
                                                 (loop:event-loop-random (wire-call-loop call)))
                            (incf (wire:retries-waits retries)))))
                 #'resubmit)))

(defun go-on-or-end (call attempt setback)
  "See ATTEMPT-FAILED; CALL runs."
  (let* ((began-ns (attempt-began call))
         (retries (ensure-policy call))
         (policy (wire:retries-policy retries)))
    (setf (wire:retries-last retries) setback)
    (unless attempt (tell-lost-attempt call (setback-status setback) began-ns))
    (cond ((resend-p call attempt setback)
           (note-setback call attempt setback)
           (resend call attempt))
          (t
           (note-setback call attempt setback)
           (note-throttle call policy setback)
           (cond ((eq :dropped (setback-reach setback)) (end-with-setback call setback))
                 ((hedging-policy-p policy) (hedge-failed call retries setback))
                 ((under-way-p call))
                 ((and policy (retry-p call retries setback))
                  (retry-later call retries setback))
                 (t (end-with-setback call setback)))))
    ;; also if it has to wait for another attempt that was issued before
    (unless (call-status call) (prepare-again call))))

(defmethod attempt-failed ((call client-call) attempt setback)
  (unless (call-status call)
    (guarding-call (call) (go-on-or-end call attempt setback))))
