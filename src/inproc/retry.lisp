;;;; Relays that wait: they make one attempt after the other (gRFC A6), where a handler would run.
;;;; On its client's thread such a relay sleeps before the next attempt; elsewhere a timer goes on,
;;;; and no thread waits. What is sent is at hand, and given to each attempt anew.

(in-package #:clgrpc.inproc)

(defun begin-next (relay)
  "The line of the next attempt of RELAY, whose handler has not begun."
  (let ((line (begin-attempt relay (plan-channel (relay-plan relay)))))
    (sb-thread:barrier (:memory))
    ;; who has ended the call before has cancelled the attempt before
    (when (call-status (relay-call relay)) (rpc:cancel (line-client line)))
    line))

(defun send-kept (relay line)
  "Give the handler of LINE, an attempt of RELAY, the only request, or those it asks for. If one is
too long RELAY's call ends."
  (handler-case
      (let ((client (line-client line))
            (request (relay-request relay)))
        (cond ((rpc:takes-one-p client) (send-only-request line request))
              ((eq :caller (site-execution (call-site client)))
               (setf (line-source line) (calling:request-generator request)
                     (line-consumer line) (this-context nil)))
              (t (calling:send-requests client (calling:request-generator request)))))
    (status:rpc-error (error) (fail-relay relay error))))

(defun attempt-once (relay)
  "Make an attempt of RELAY, whose method answers once. Return the answer, if there is one."
  (let ((line (begin-next relay)))
    (unwind-protect
         (progn
           (send-kept relay line)
           (values (await-reply line)))
      (end-attempt relay (line-client line)))))

(defun attempt-stream (relay)
  "Make an attempt of RELAY, whose method answers with a stream, and pass on what it brings."
  (let* ((line (begin-next relay))
         (attempt (line-client line)))
    (unwind-protect
         (handler-case
             (progn
               (send-kept relay line)
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

(defun run-relay (relay)
  "Make attempts of RELAY until one ends its call, or the call has ended, or a timer is to go on."
  (let ((call (relay-call relay)))
    (loop
      (let ((answer (if (rpc:answers-once-p call) (attempt-once relay) (attempt-stream relay))))
        (when (call-status call) (return))
        (unless (eq :ok (call-status (relay-attempt relay)))
          (note-failure relay (1- (relay-count relay))))
        (when (or (eq :ok (call-status (relay-attempt relay))) (not (again-p relay)))
          (return (end-relay relay answer)))
        (let ((seconds (/ (next-wait-ns relay) +ns-per-second+)))
          (unless (eq (line-phase (relay-line relay)) sb-thread:*current-thread*)
            (return (operate after call seconds (lambda () (run-relay relay)))))
          (sleep-before-attempt call seconds)
          (when (call-status call) (return)))))))

(defun begin-relay (relay call)
  "What the handler of RELAY's call does."
  (setf (relay-call relay) call)
  (rpc:on-cancel call (lambda ()
                        (let ((attempt (relay-attempt relay)))
                          (when attempt (rpc:cancel attempt)))))
  (run-relay relay))
