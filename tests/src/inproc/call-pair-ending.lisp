;;;; The end of calls: deadlines, cancellation, limits, notifications.

(in-package #:clgrpc.tests.inproc)

(test late-returns
  "The caller of a handler that computes past the deadline gets :deadline-exceeded when the handler
checks or returns; the handler sees it when it checks."
  (let ((asked nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (wait-until (lambda () (minusp (grpc:time-remaining call))))
                (when (plusp (number-of note))
                  (setf asked (list (grpc:call-status call) (grpc:cancelled-p call)
                                    (grpc:call-status call))))
                note))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 0) :timeout 0.01)))))
      (is (null asked))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 1) :timeout 0.01)))))
      (is (equal '(nil t :deadline-exceeded) asked)))))

(test kept-calls-expire
  (let ((seen (make-signal)))
    (with-inproc (channel)
        (:ask (fn (_note call)
                (grpc:on-cancel call (lambda () (signal-it seen)))
                call))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 1) :timeout 0.1)))))
      (is (await-signal seen)))))

(test unwinding-cancels
  "A caller that is unwound, as by C-c, cancels the call and unwinds its handler; the handler's
deferred work is dropped."
  (let ((unwound nil) (timers '()) (on-cancel nil))
    (with-inproc (channel)
        (:ask (fn (_note call)
                (grpc:on-cancel call (lambda () (setf on-cancel t)))
                (unwind-protect (throw 'out 5)
                  (setf unwound t)
                  (grpc:after call +patience+ #'list)
                  (setf timers (inproc::inproc-callbacks-timers
                            (inproc::call-inproc-callbacks call))))))
      (is (= 5 (catch 'out (ask channel (note 1)))))
      (is (eq t unwound))
      (is (eq t on-cancel))
      (is (= 1 (length timers)))
      (eventually (notany #'timer-pending-p timers)))))

(test cancellation-from-other-threads
  (let ((sent (make-signal)) (seen nil))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (handler-case (loop (grpc:send call note))
                    (grpc:rpc-error (error)
                      (setf seen (status-of-error error))
                      (error error)))))
      (let* ((call (watch channel (note 1)))
             (canceller (in-thread
                          (await-signal sent)
                          (grpc:cancel call "enough"))))
        (is (eq :cancelled
                (status-of-error (caught (grpc:do-messages (note call) (signal-it sent))))))
        (is (eq :cancelled seen))
        (sb-thread:join-thread canceller)))))

(test cancellation-in-bodies
  (with-inproc (channel) (:watch #'count-up)
    (let ((call (watch channel (note 10))) (count 0))
      (is (eq :cancelled (status-of-error (caught (grpc:do-messages (note call)
                                                    (when (= 3 (incf count))
                                                      (grpc:cancel call)))))))
      (is (= 3 count)))))

(test too-many-calls
  "The limit is for calls that do not run on their callers' threads."
  (with-inproc (channel :options '(:max-calls 2)) (:chat #'echo)
    (let ((calls (loop repeat 3 collect (chat channel :open))))
      (flet ((try (call)
               (handler-case (progn (grpc:send call (note 1)) (number-of (grpc:receive call)))
                 (grpc:rpc-error (error) (status-of-error error)))))
        (is (equal '(1 1 :resource-exhausted) (mapcar #'try calls))))
      (mapc #'grpc:cancel calls))))

(test nobody-to-call-is-told-at-one-end
  "A call that finds no server has no handler's end."
  (with-log ()
    (let ((before (grpc:tracers)))
      (grpc:with-channel (channel "inproc:nobody-here")
        (unwind-protect (progn (setf (grpc:tracers) "call")
                               (is (eq :unavailable
                                       (status-of-error (caught (ask channel (note 1)))))))
          (setf (grpc:tracers) before)))
      (is (equal '(:client) (mapcar (lambda (event) (getf event :role))
                                    (events-of :call-begun))))
      (is (equal '(:client) (mapcar (lambda (event) (getf event :role))
                                    (events-of :call-ended)))))))

;;; Calls that wait for their credentials

(test calls-that-wait-for-credentials-are-not-sent
  "In whatever way such a call ends, its error says so; also with a service config."
  (dolist (options (list '() *retrying*))
    (with-inproc (channel :channel-options options) (:ask (handling (note) note))
      (flet ((sent-p (call)
               (let ((error (caught (grpc:await call :timeout 20))))
                 (list (status-of-error error) (grpc:rpc-error-sent-p error)))))
        (let ((never (grpc:make-future)))
          (is (equal '(:deadline-exceeded nil)
                     (sent-p (call-promised channel never :timeout 0.05))))
          (let ((call (call-promised channel never)))
            (grpc:cancel call)
            (is (equal '(:cancelled nil) (sent-p call))))
          (let ((call (call-promised channel never)))
            (grpc:close-channel channel)
            (is (null (second (sent-p call)))))
          (is (null (loop:future-completions never)) "the future keeps nothing of the call"))))))

(test servers-get-calls-when-credentials-have-answered
  "Before that no server counts, reports or awaits the call; then its observer gets all events."
  (let ((seen '()))
    (flet ((note-event (name)
             (fn (_call &rest _more) (push name seen))))
      (with-inproc (channel :server server
                            :options (list :observer
                                           (grpc:make-observer
                                            :call-begun (note-event :begun)
                                            :call-ended (note-event :ended)
                                            :message-received (note-event :received)
                                            :message-sent (note-event :sent))))
          (:ask (handling (note) note))
        (flet ((open-p ()
                 (nth-value 1 (serving:acceptor-state
                               (inproc::callee-of (inproc::channel-inproc-core channel))))))
          (let* ((refused (grpc:make-future)) (call (call-promised channel refused)))
            (is-false (open-p))
            (grpc:reject-future refused (make-condition 'simple-error :format-control "no"))
            (is (eq :unauthenticated (status-of-error (caught (grpc:await call :timeout 20)))))
            (is (null seen)))
          (let* ((future (grpc:make-future)) (call (call-promised channel future)))
            (is-false (open-p))
            (is (null seen))
            (grpc:resolve-future future '(("x-late" . "yes")))
            (is (= 1 (number-of (grpc:await call :timeout 20))))
            (is (equal '(:begun :received :sent :ended) (reverse seen)))
            (is-false (open-p)))
          (let* ((future (grpc:make-future)) (call (call-promised channel future)))
            (is-true (grpc:stop-server server :drain 20)
                     "the drain does not wait for unsent calls")
            (grpc:resolve-future future '())
            (let ((error (caught (grpc:await call :timeout 20))))
              (is (eq :unavailable (status-of-error error)))
              (is-false (grpc:rpc-error-sent-p error)))))))))

(test waits-for-credentials-are-not-the-servers-time
  "The server's time of a call, and that of the attempt, begin when the server gets the call."
  (let* ((ahead 0)
         (elapsed '())
         (loop:*world* (loop:make-world :clock (lambda () (+ ahead (monotonic-ns)))
                                        :make-poller #'loop:make-epoll-poller
                                        :make-random (lambda () (make-random-state t))
                                        :network (loop:make-network))))
    (flet ((note-elapsed (call &rest more)
             (declare (ignore more))
             (push (rpc:operate elapsed-ns call) elapsed))
           (note-attempt (call target status octets sent received ns)
             (declare (ignore call target status octets sent received))
             (push ns elapsed)))
      (with-inproc (channel :options (list :observer
                                           (grpc:make-observer :call-ended #'note-elapsed))
                            :channel-options
                            (list :observer
                                  (grpc:make-observer :call-ended #'note-elapsed
                                                      :attempt-ended #'note-attempt)))
          (:ask (handling (note) note))
        (let* ((future (grpc:make-future)) (call (call-promised channel future)))
          (setf ahead 1000000000000)
          (grpc:resolve-future future '())
          (is (= 1 (number-of (grpc:await call :timeout 20))))
          (eventually (= 3 (length elapsed)))
          (is (= 1 (count-if (lambda (ns) (<= 1000000000000 ns)) elapsed)) "~S" elapsed))))))

(test call-credentials-are-checked-before-the-call
  "Invalid credentials are refused, and no call is left behind."
  (dolist (options (list '() *retrying*))
    (with-inproc (channel :channel-options options) (:ask (handling (note) note))
      (with-replaced (('inproc::call-pair-to (fn (_function &rest _arguments)
                                               (fail "A call was made."))))
        (signals grpc:misuse
          (grpc:call-async #'lab.bench:ask channel (note 1) :call-credentials 42))))))
