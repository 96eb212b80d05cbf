;;;; Relays that wait: they make one attempt after the other (gRFC A6), where a handler would run.
;;;; On its client's thread such a relay sleeps before the next attempt; elsewhere a timer goes on,
;;;; and no thread waits. What is sent is at hand, and given to each attempt again.

(in-package #:clgrpc.inproc)

(defun begin-next (relay number)
  "The call pair of the next attempt of RELAY, which NUMBER others came before and whose handler has
not begun."
  (let ((call-pair (begin-attempt relay number (plan-channel (relay-plan relay)))))
    (sb-thread:barrier (:memory))
    ;; a thread that ended the call earlier has cancelled the earlier attempt
    (when (call-status (relay-call relay)) (rpc:cancel (call-pair-client call-pair)))
    call-pair))

(defun send-kept (relay call-pair)
  "Give the handler of CALL-PAIR, an attempt of RELAY, the only request, or those it asks for. If
one is too long RELAY's call ends."
  (handler-case
      (let ((client (call-pair-client call-pair))
            (request (relay-request relay)))
        (cond ((rpc:takes-one-p client) (send-only-request call-pair request))
              ((eq :caller (inproc-core-execution (call-inproc-core client)))
               (setf (call-pair-source call-pair) (calling:request-generator request)
                     (call-pair-consumer call-pair) (this-context nil)))
              (t (calling:send-requests client (calling:request-generator request)))))
    (status:rpc-error (error) (fail-relay relay error))))

(defun attempt-once (relay number)
  "Make an attempt of RELAY, whose method answers once. Return the answer, if there is one."
  (let ((call-pair (begin-next relay number)))
    (unwind-protect
         (progn
           (send-kept relay call-pair)
           (values (await-reply call-pair)))
      (end-attempt relay (call-pair-client call-pair)))))

(defun attempt-stream (relay number)
  "Make an attempt of RELAY, whose method answers with a stream, and pass on what it brings."
  (let* ((call-pair (begin-next relay number))
         (attempt (call-pair-client call-pair)))
    (unwind-protect
         (handler-case
             (progn
               (send-kept relay call-pair)
               (rpc:call-metadata attempt)
               (pass-metadata relay)
               (loop for message = (rpc:receive attempt)
                     while (and message (rpc:send (relay-call relay) message))))
           ;; how it has ended is looked at later
           (status:rpc-error (error)
             (unless (or (call-status attempt) (call-status (relay-call relay)))
               (error error))))
      (end-attempt relay attempt))))

(defun sleep-before-attempt (call seconds)
  "Wait for SECONDS, or until CALL, a handler's end, has ended."
  (let ((over nil))
    (operate after call seconds (lambda ()
                                  (setf over t)
                                  (rpc:notify call)))
    (rpc:wait-for-call call (lambda (call)
                              (declare (ignore call))
                              over))))

(defun follow-attempt (relay number answer)
  "The attempt of RELAY that NUMBER others came before is over, with ANSWER if that is an answer:
end the call, or return how many seconds from now the next attempt begins."
  (let ((attempt (relay-attempt relay)))
    (cond ((eq :ok (call-status attempt)) (end-relay relay answer))
          ((call-fields attempt)
           (fail-late relay number)
           (end-relay relay answer))
          (t (multiple-value-bind (decision delay-ns) (decide relay attempt number)
               (ecase decision
                 (:await (return-from follow-attempt (/ delay-ns +ns-per-second+)))
                 (:fail (end-relay relay answer))))))
    nil))

(defun next-number (relay)
  "The number of the attempt of RELAY that begins now."
  (let ((retries (relay-retries relay)))
    (when (calling:retries-awaited retries)
      (calling:attempt-due retries (inproc-core-now (call-inproc-core (relay-call relay)))))
    (calling:take-number retries)))

(defun run-relay (relay)
  "Make attempts of RELAY until one ends its call, or the call has ended, or a timer is to go on."
  (let ((call (relay-call relay)))
    (loop
      (let* ((number (next-number relay))
             (answer (if (rpc:answers-once-p call)
                         (attempt-once relay number)
                         (attempt-stream relay number)))
             (seconds (if (call-status call) nil (follow-attempt relay number answer))))
        (when (null seconds) (return))
        (unless (eq (call-pair-phase (relay-call-pair relay)) sb-thread:*current-thread*)
          (return (operate after call seconds (lambda () (run-relay relay)))))
        (sleep-before-attempt call seconds)
        (when (call-status call) (return))))))

(defun begin-relay (relay call)
  "What the handler of RELAY's call does."
  (setf (relay-call relay) call)
  (rpc:on-cancel call (lambda ()
                        (let ((attempt (relay-attempt relay)))
                          (when attempt (rpc:cancel attempt)))))
  (run-relay relay))
