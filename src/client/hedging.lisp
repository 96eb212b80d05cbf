;;;; Hedging (gRFC A6): a call of a method with a hedging policy is tried again while its first
;;;; attempt runs, after each hedgingDelay, until one is answered, the others then being reset. An
;;;; attempt that fails with a status that is not fatal has the next one begin at once, or when the
;;;; server's pushback says; any other ends the call. Whether another attempt may begin is asked
;;;; when it is due: attempts left, throttling, and whether all that was sent is kept.
;;;;
;;;; Each attempt is picked for anew, so that another server may have it.
;;;;
;;;; All of it on the call's loop.

(in-package #:clgrpc.client)

(defun more-hedges-p (call retries)
  "True if CALL, which has RETRIES, may have another attempt, if it is not throttled."
  (and (null (call-status call))
       (not (wire:retries-over retries))
       (< (wire:retries-issued retries) (wire:retries-limit retries))
       (repeatable-p call)))

(defun await-hedge (call retries delay-ns)
  "Have the next attempt of CALL, which has RETRIES, begin after DELAY-NS, if there may be one."
  (when (more-hedges-p call retries)
    (await-retry call delay-ns #'hedge)))

(defun hedge (call)
  "Begin another attempt of CALL, unless it is throttled: then there are no more."
  (let ((retries (wire:call-retries call)))
    (when (more-hedges-p call retries)
      (cond ((throttled-p (core-throttle (client-call-core call)))
             (stop-hedging call retries))
            (t (issue-next call)
               ;; before it begins, since it may fail at once
               (await-hedge call retries
                            (hedging-delay-ns (wire:retries-policy retries)))
               (resubmit call))))))

(defun stop-hedging (call retries)
  "CALL, which has RETRIES, gets no more attempts. If none runs, it ends as the last did."
  (setf (wire:retries-over retries) t)
  (cancel-retry call)
  (unless (wire-call-stream call)
    (end-with-setback call (wire:retries-last retries))))

(defun hedge-failed (call retries setback)
  "An attempt of CALL, which has RETRIES and a hedging policy, has failed with SETBACK."
  (let ((next (hedge-after (wire:retries-policy retries) (setback-status setback)
                           (setback-pushback setback) (more-hedges-p call retries))))
    (case next
      (:end (end-with-setback call setback))
      (:stop (stop-hedging call retries))
      (:go-on (unless (under-way-p call) (end-with-setback call setback)))
      (0 (cancel-retry call)
       (hedge call))
      (t (await-hedge call retries next)))))

(defun begin-hedging (call policy)
  "CALL, whose first attempt begins, has the hedging POLICY."
  (let ((retries (ensure-policy call)))
    (when (and (keep-request call) (more-hedges-p call retries))
      (let ((delay-ns (hedging-delay-ns policy)))
        (if (plusp delay-ns)
            (await-hedge call retries delay-ns)
            (loop:defer (wire-call-loop call) #'hedge-now call))))))

(defun hedge-now (call)
  (guarding-call (call) (hedge call)))

(defmethod call-started ((call client-call))
  (unless (wire:call-retries call)
    (let ((policy (find-policy-of call)))
      (when policy
        (unless (client-call-request call)
          (wire:begin-replay call
                             (options-replay-octets (core-options (client-call-core call)))))
        (when (hedging-policy-p policy) (begin-hedging call policy))))))
