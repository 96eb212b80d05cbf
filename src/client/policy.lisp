;;;; What retries and hedging (gRFC A6) have in common: the policy of a call, throttling, what is
;;;; kept for further attempts, and how one is issued. What a policy is, how long it waits, and how
;;;; tokens are counted is in calling/retry.lisp.
;;;;
;;;; A call of which something was sent that is not kept, since it was too much, is committed to the
;;;; attempt that has it. What is kept of a single request is in request.lisp, of streams in
;;;; wire/replay.lisp; such a request is charged to the budget of the channel once it is kept for
;;;; the sake of a policy.
;;;;
;;;; All of it on the call's loop.

(in-package #:clgrpc.client)

(defun find-policy-of (call)
  "The retry or hedging policy that the service config in force has for CALL, or nil."
  (and (not (side-call-p call))
       (find-retry-policy (method-config-of call) (core-options (client-call-core call)))))

(defun ensure-policy (call)
  "The RETRIES of CALL, made now if there are none, with its policy."
  (or (wire:call-retries call)
      (let ((policy (find-policy-of call))
            (retries (wire:ensure-retries call)))
        (when policy
          (setf (wire:retries-policy retries) policy
                (wire:retries-limit retries)
                (policy-limit policy (core-options (client-call-core call)))))
        retries)))

(defun keep-request (call)
  "Have the only request of CALL, or what it sends, be kept for further attempts. Return true if all
of it is."
  (let* ((retries (wire:call-retries call))
         (core (client-call-core call))
         (options (core-options core)))
    (cond ((not (repeatable-p call)) nil)
          ((or (null (client-call-request call)) (plusp (wire:retries-kept-octets retries))) t)
          (t (let ((size (wire:encoded-length (encoded-request call)))
                   (ledger (core-replays core)))
               (when (and (<= size (options-replay-octets options))
                          (<= (+ size (ledger-held ledger))
                              (options-total-replay-octets options)))
                 (sb-ext:atomic-incf (ledger-held ledger) size)
                 (setf (wire:retries-kept-octets retries) size)
                 t))))))

;;; Throttling

(defun throttle-of (call)
  "The throttle of CALL's channel, as the service config in force has it, or nil."
  (let ((core (client-call-core call)))
    (setf (core-throttle core)
          (current-throttle (core-throttle core) (core-config core)))))

(defun note-throttle (call policy setback)
  "Have the throttle of CALL's channel, if it has one, count SETBACK of an attempt under POLICY."
  (count-failure (throttle-of call) policy (setback-status setback) (setback-pushback setback)))

;;; Issuing attempts

(defun under-way-p (call)
  "True if CALL, an attempt of which has failed, has others that run, or wait for a stream."
  (let ((retries (wire:call-retries call)))
    (or (wire-call-stream call)
        (and retries (not (wire:retries-over retries)) (wire:retries-pending retries)
             t))))

(defun prepare-again (call)
  "CALL, if it has no stream, is as if it had had none."
  (unless (wire-call-stream call)
    (let ((parts (wire:call-wire-parts call)))
      (setf (wire:wire-parts-wait parts) nil
            (wire:wire-call-marks call) (wire:unmarked (wire:wire-call-marks call))
            (wire:retries-since-ns (wire:call-retries call))
            (core-now (client-call-core call))))))

(defun issue (call number)
  "Another attempt of CALL, which NUMBER others come before, is to begin."
  (let ((retries (wire:call-retries call)))
    (setf (wire:retries-pending retries)
          (append (wire:retries-pending retries) (list number)))
    (prepare-again call)))

(defun issue-next (call)
  "As ISSUE, of an attempt that counts."
  (let ((retries (wire:call-retries call)))
    (issue call (shiftf (wire:retries-issued retries) (1+ (wire:retries-issued retries))))))
