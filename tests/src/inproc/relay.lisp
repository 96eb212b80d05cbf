;;;; Retries within the image: the threads of attempts, and the handlers' view. Tests for all
;;;; transports are in tests/whole/transports.

(in-package #:clgrpc.tests.inproc)

(test handlers-see-which-attempt-it-is
  "All run on the thread of a caller that waits, with the metadata of the call and its deadline."
  (let ((seen '()) (caller sb-thread:*current-thread*))
    (with-inproc (channel :channel-options *retrying*)
        (:ask (lambda (note call)
                (let ((metadata (grpc:call-metadata call)))
                  (push (list (eq caller sb-thread:*current-thread*)
                              (cdr (assoc "x-a" metadata :test #'string=))
                              (cdr (assoc "grpc-previous-rpc-attempts" metadata :test #'string=))
                              (< 0 (grpc:time-remaining call) 20))
                        seen))
                (grpc:fail :unavailable (princ-to-string (number-of note)))))
      (let ((error (caught (ask channel (note 5) :metadata '(("x-a" . "b")) :timeout 20))))
        (is (eq :peer (grpc:rpc-error-ended-by error)))
        (is (string= "5" (grpc:rpc-error-message error)))
        (is (search "attempts: 3" (princ-to-string error)))))
    (is (equal '((t "b" nil t) (t "b" "1" t) (t "b" "2" t)) (reverse seen)))))

(test requests-are-kept-as-they-were
  "A later change by a future's caller, or by the handler of an attempt, is not seen."
  (let ((seen '()) (go (make-signal)))
    (with-inproc (channel :channel-options *retrying*)
        (:ask (handling (note)
                (push (number-of note) seen)
                (setf (lab:note-number note) 100)
                (unless (rest seen)
                  (await-signal go)
                  (grpc:fail :unavailable "once"))
                note))
      (let* ((note (note 1))
             (call (grpc:call-async #'lab.bench:ask channel note)))
        (setf (lab:note-number note) 2)
        (signal-it go)
        (is (= 100 (number-of (grpc:await call :timeout 20))))))
    (is (equal '(1 1) seen))))

(test interceptors-are-around-calls
  "They are not called for each attempt."
  (let ((around 0) (answers 0))
    (with-inproc (channel :channel-options
                          (list* :interceptors (list (fn (_method request options next)
                                                       (incf around)
                                                       (funcall next request options)))
                                 *retrying*))
        (:ask (handling (note)
                (if (< (incf answers) 3) (grpc:fail :unavailable "no") note)))
      (is (= 4 (number-of (ask channel (note 4)))))
      (is (= 1 around))
      (is (= 3 answers)))))

(test closing-ends-calls-that-wait-for-attempts
  (let ((begun (make-signal)))
    (with-inproc (channel :channel-options
                          '(:service-config
                            (:method-config
                             ((:name (())
                               :retry-policy (:max-attempts 3 :initial-backoff 100
                                              :max-backoff 100 :backoff-multiplier 2
                                              :retryable-status-codes (:unavailable)))))))
        (:ask (handling ()
                (signal-it begun)
                (grpc:fail :unavailable "no")))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
        (is (await-signal begun))
        (sleep 0.05)
        (grpc:close-channel channel)
        (eventually (eq :cancelled (grpc:call-status call)))
        (signals grpc:misuse (ask channel (note 1)))))))

(test attempts-on-the-caller's-thread-are-cancelled
  "Another thread cancels the call while the handler runs on the thread where the caller waits."
  (let ((call nil) (begun (make-signal)) (seen nil))
    (with-inproc (channel :channel-options
                          (list* :attempt-interceptors
                                 (list (lambda (attempt) (setf call (grpc:attempt-call attempt))))
                                 *retrying*))
        (:ask (lambda (note call)
                (signal-it begun)
                (setf seen (wait-until (lambda () (grpc:cancelled-p call))))
                note))
      (let ((canceller (in-thread
                         (await-signal begun)
                         (grpc:cancel call))))
        (is (eq :cancelled (grpc:rpc-error-status (caught (ask channel (note 1))))))
        (is-true seen)
        (sb-thread:join-thread canceller)))))

(test streams-begin-without-their-consumer
  "A server stream with a retry policy begins with its call, on another thread."
  (let ((caller sb-thread:*current-thread*) (begun (make-signal)) (same t))
    (with-inproc (channel :channel-options *retrying*)
        (:watch (lambda (note call)
                  (setf same (eq caller sb-thread:*current-thread*))
                  (signal-it begun)
                  (grpc:send call note)))
      (let ((call (lab.bench:watch channel (note 1))))
        (is (await-signal begun))
        (is-false same)
        (is (= 1 (number-of (grpc:receive call))))
        (is (null (grpc:receive call)))))))

(test deadlines-that-have-passed-begin-no-attempt
  "They end calls whose callers wait before there is a relay."
  (with-inproc (channel :channel-options *retrying*)
      (:ask #'double :collect #'add-up)
    (flet ((check (function)
             (is (eq :deadline-exceeded (status-of-error (caught (funcall function)))))))
      (check (lambda () (ask channel (note 1) :timeout 0)))
      (check (lambda () (ask channel (note 1) :timeout 1/1000000000)))
      (check (lambda () (collect channel (list (note 1)) :timeout 0)))
      (check (lambda () (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1)
                                                     :timeout 0)))))))

(test attempts-wait-for-credentials
  "CALL-ASYNC does not wait; each attempt has the metadata once they have come."
  (let ((future (grpc:make-future)) (seen '()))
    (with-inproc (channel :channel-options *retrying*)
        (:ask (lambda (note call)
                (push (cdr (assoc "x-late" (grpc:call-metadata call) :test #'string=)) seen)
                (unless (rest seen) (grpc:fail :unavailable "not yet"))
                note))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1)
                                   :call-credentials (make-instance 'promised-credentials
                                                                    :future future))))
        (is (null seen))
        (grpc:resolve-future future '(("x-late" . "yes")))
        (is (= 1 (number-of (grpc:await call :timeout 20))))
        (is (equal '("yes" "yes") seen))))))

(test bad-service-configs-are-refused
  (with-inproc (channel :server server) ()
    (signals grpc:service-config-error
      (grpc:server-channel server :service-config "{\"methodConfig\": 5}"))
    (signals grpc:misuse (grpc:server-channel server :max-attempts 0))))
