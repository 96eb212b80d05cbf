;;;; The machine that decides on retries and hedging, event by event. Attempts are keywords here.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.attempt)

;;; What a policy says: limits, back-off, pushback, throttling

(defun policy-of (config &rest options)
  "Two values: the retry or hedging policy for all methods by CONFIG, the plist of a method config,
and the number of attempts that it allows, for a channel with OPTIONS."
  (attempt:find-retry-policy
   (config:find-method-config
    (config:parse-service-config `(:method-config ((:name (()) ,@config))))
    "/a.B/C")
   (apply #'make-channel-options options)))

(defun retrying (&key (attempts 4) (initial 0.1) (maximum 0.3) (multiplier 2))
  (policy-of `(:retry-policy (:max-attempts ,attempts :initial-backoff ,initial
                              :max-backoff ,maximum :backoff-multiplier ,multiplier
                              :retryable-status-codes (:unavailable :aborted)))))

(defun hedging (&rest options &key (attempts 4) &allow-other-keys)
  (apply #'policy-of `(:hedging-policy (:max-attempts ,attempts :hedging-delay 0.5
                                        :non-fatal-status-codes (:unavailable)))
         (alexandria:remove-from-plist options :attempts)))

(defun throttle-with (tokens ratio)
  (attempt:current-throttle
   nil (config:parse-service-config
        `(:retry-throttling (:max-tokens ,tokens :token-ratio ,ratio)))))

(test policies-say-how-often
  (is (= 4 (nth-value 1 (retrying))))
  (is (= 5 (nth-value 1 (retrying :attempts 9))))
  (is (= 2 (nth-value 1 (hedging :max-attempts 2))))
  (is (null (attempt:find-retry-policy nil (make-channel-options))))
  (is (null (hedging :retry nil)))
  (is (config:hedging-policy-p (hedging)))
  (is (not (config:hedging-policy-p (retrying))))
  (is (= 500000000 (config:hedging-policy-delay-ns (hedging)))))

(test failures-that-count
  "Failures that may be tried again, and any failure that must not be."
  (flet ((counts-p (policy status pushback)
           (let ((throttle (throttle-with 2 0.5)))
             (attempt::count-failure throttle policy status pushback)
             (attempt:throttled-p throttle))))
    (is (counts-p (retrying) :unavailable nil))
    (is (not (counts-p (retrying) :internal nil)))
    (is (counts-p (retrying) :internal :never))
    (is (not (counts-p nil :unavailable nil)))
    (is (counts-p nil :unavailable :never)))
  (finishes (attempt::count-failure nil (retrying) :unavailable nil)))

(test throttles-last-as-long-as-their-limits
  "A config with equal limits keeps the remaining tokens; one without has no throttle."
  (flet ((config (&rest limits)
           (config:parse-service-config (and limits (list :retry-throttling limits)))))
    (let ((throttle (throttle-with 10 0.5)))
      (is (eq throttle (attempt:current-throttle throttle (config :max-tokens 10
                                                                  :token-ratio 0.5))))
      (is (not (eq throttle (attempt:current-throttle throttle (config :max-tokens 10
                                                                       :token-ratio 1)))))
      (is (null (attempt:current-throttle throttle (config))))
      (is (null (attempt:current-throttle throttle nil))))))

(test throttles-keep-within-their-limits
  (let ((throttle (throttle-with 2 0.5)))
    (attempt:count-success throttle)
    (is (not (attempt:throttled-p throttle)))
    (dotimes (i 5) (attempt::count-failure throttle (retrying) :unavailable nil))
    ;; from nothing: above half after three
    (dotimes (i 2) (attempt:count-success throttle))
    (is (attempt:throttled-p throttle))
    (attempt:count-success throttle)
    (is (not (attempt:throttled-p throttle)))
    (is (not (attempt:throttled-p nil)))))

(test back-off-grows-up-to-its-maximum
  "0.1, 0.2, 0.3, 0.3 s, each 20 % more or less."
  (let ((random (sb-ext:seed-random-state 1)))
    (loop for count below 5
          for expected in '(1 2 3 3 3)
          do (loop repeat 100
                   do (is (<= (* 80000000 expected)
                              (config:retry-delay-ns (retrying) count random)
                              (* 120000000 expected)))))))

(test back-off-may-shrink
  "It halves from 0.8 s: 0.3, 0.3, 0.2, 0.1 s, each 20 % more or less, as 0.3 s is the maximum."
  (let ((random (sb-ext:seed-random-state 1))
        (policy (retrying :initial 0.8 :multiplier 0.5)))
    (loop for count below 4
          for expected in '(3 3 2 1)
          do (is (<= (* 80000000 expected)
                     (config:retry-delay-ns policy count random)
                     (* 120000000 expected))))))

(test back-off-has-a-result-whatever-the-config-says
  (let ((random (sb-ext:seed-random-state 1)))
    (dolist (multiplier (list 1d308 (expt 10 400) 5d-324 (/ (expt 10 400)) 1))
      (dolist (seconds '((1/1000000000 315576000000) (315576000000 315576000000)
                         (315576000000 1/1000000000)))
        (let ((policy (retrying :initial (first seconds) :maximum (second seconds)
                                :multiplier multiplier)))
          (dolist (count '(0 1 2 3 4 1000))
            (is (<= 0 (config:retry-delay-ns policy count random)
                    (* 1000000000 +ns-per-second+)))))))))

(test pushbacks-are-32-bit-numbers
  (is (null (attempt:parse-pushback nil)))
  (is (eql 0 (attempt:parse-pushback "0")))
  (is (eql 25000000 (attempt:parse-pushback "25")))
  (is (integerp (attempt:parse-pushback "2147483647")))
  (dolist (text '("-1" "" "+1" "007" "1.5" "2147483648" "99999999999999" "x" "1 " "1x"))
    (is (eq :never (attempt:parse-pushback text)) text)))

;;; What the machine decides

(defun failure (&optional (status :unavailable) &rest how)
  (apply #'attempt:make-attempt-failure status "" how))

(defun retries-of (policy &rest running)
  "The RETRIES of a call under POLICY, or nil, with the attempts RUNNING."
  (attempt::make-retries policy
                        (if policy (attempt::policy-limit policy (make-channel-options)) 1)
                        running))

(defun fails (retries failure &rest rest &key (attempt :a) (number 0) (now 0) (keep t)
                                          &allow-other-keys)
  "The decisions of RETRIES, a list, when ATTEMPT fails with FAILURE."
  (setf rest (alexandria:remove-from-plist rest :attempt :number :now :keep))
  (multiple-value-list
   (apply #'attempt::attempt-failed retries attempt number failure now
          (constantly (sb-ext:seed-random-state 1))
          :keep (constantly keep) rest)))

(defun comes-due (retries &rest rest &key (now 0) &allow-other-keys)
  "The decisions of RETRIES, a list, when the awaited time comes."
  (multiple-value-list (apply #'attempt::attempt-due retries now
                              (alexandria:remove-from-plist rest :now))))

(defun begins (retries attempt)
  "The number of ATTEMPT of RETRIES, which begins."
  (prog1 (attempt:take-number retries)
    (attempt:add-attempt retries attempt)))

(defun awaits-p (low high decision)
  "True if DECISION is to wait for a time LOW to HIGH nanoseconds from now."
  (and (eq :await (first decision)) (<= low (second decision) high)))

(test repeats-are-counted-by-their-kind
  "Further attempts are retries or hedges; those that no server has seen count separately."
  (flet ((repeats (policy)
           (let ((retries (retries-of policy)))
             (setf (attempt::retries-issued retries) 3
                   (attempt::retries-resent retries) 2)
             (multiple-value-list (attempt:count-repeats retries 9)))))
    (is (equal '(2 0 2 0) (repeats (retrying))))
    (is (equal '(0 2 2 0) (repeats (hedging))))))

(test what-a-retry-policy-decides
  (flet ((decision (failure &rest rest)
           (apply #'fails (retries-of (retrying) :a) failure rest)))
    (is (awaits-p 80000000 120000000 (decision (failure))))
    (is (awaits-p 80000000 120000000
                  (fails (retries-of (retrying)) (failure :aborted :reach :nowhere) :attempt nil)))
    (is (equal '(:await 5) (decision (failure :unavailable :pushback 5))))
    (is (equal '(:await 0) (decision (failure :unavailable :pushback 0))))
    (is (equal '(nil nil) (fails (retries-of (retrying) :a :b) (failure))) "another attempt runs")
    (is (eq :await (first (fails (retries-of (retrying)) (failure :unavailable :reach :server)
                                 :attempt nil)))
        "no server has refused an attempt that could not begin")
    (loop for (failure . rest)
            in (list (list (failure :internal))
                     (list (failure :internal :pushback 5))
                     (list (failure :unavailable :pushback :never))
                     (list (failure :unavailable :reach :dropped))
                     (list (failure) :keep nil)
                     (list (failure) :throttle (let ((throttle (throttle-with 2 1)))
                                                 (attempt::change-tokens throttle -1000)
                                                 throttle)))
          do (is (equal (list :fail failure) (apply #'decision failure rest)) "~S ~S" failure rest))
    ;; what is kept is asked of nobody else
    (let ((asked nil))
      (attempt::attempt-failed (retries-of (retrying) :a) :a 0 (failure :internal) 0 #'list
                              :keep (lambda () (setf asked t)))
      (is (null asked)))))

(test attempts-are-numbered-and-limited
  "Five attempts, with 0.1 and 0.2 s between them, and since a pushback 0.1 s again."
  (let ((retries (retries-of (retrying :attempts 5) :a)))
    (loop for number from 1 to 4
          for (pushback low) in '((nil 80000000) (nil 160000000) (7 7) (nil 80000000))
          do (is (awaits-p low (max low (* low 3/2))
                           (fails retries (failure :unavailable :pushback pushback)
                                  :number (1- number))))
             (is (eq :retry (attempt::retries-awaited retries)))
             (is (equal '(:begin nil) (comes-due retries)))
             (is (equal '(nil nil) (comes-due retries)) "once only")
             (is (= number (begins retries :a))))
    (is (eq :fail (first (fails retries (failure) :number 4))))
    (is (= 5 (attempt::retries-issued retries)))))

(test what-a-hedging-policy-decides
  (flet ((decision (others failure &rest rest)
           (apply #'fails (apply #'retries-of (hedging) :a others) failure rest)))
    (is (equal '(:begin 500000000) (decision '() (failure))))
    (is (equal '(:begin 500000000) (decision '(:b) (failure))))
    (is (equal '(:begin 500000000) (decision '(:b) (failure :unavailable :pushback 0))))
    (is (equal '(:await 5) (decision '() (failure :unavailable :pushback 5))))
    (is (equal '(nil nil) (decision '(:b) (failure :unavailable :pushback :never))))
    (is (equal '(nil nil) (decision '(:b) (failure) :sendable nil)))
    (loop for (others failure . rest)
            in (list (list '(:b) (failure :internal))
                     (list '(:b) (failure :internal :pushback 5))
                     (list '(:b) (failure :unavailable :reach :dropped))
                     (list '() (failure :unavailable :pushback :never))
                     (list '() (failure) :sendable nil))
          do (is (equal (list :fail failure) (apply #'decision others failure rest))
                 "~S ~S" failure rest))))

(test hedges-begin-one-after-another
  "After each except the last, the next is awaited."
  (let ((retries (retries-of (hedging :attempts 3) :a)))
    (is (equal '(:await 500000000)
               (multiple-value-list (attempt::first-begun retries t))))
    (is (equal '(:begin 500000000) (comes-due retries)))
    (is (= 1 (begins retries :b)))
    (is (equal '(:begin nil) (comes-due retries)))
    (is (= 2 (begins retries :c)))
    (is (equal '(nil nil) (comes-due retries)))
    (is (equal '(nil nil) (fails retries (failure))))
    (is (equal '(nil nil) (fails retries (failure) :attempt :b :number 1)))
    (is (eq :fail (first (fails retries (failure) :attempt :c :number 2)))))
  (dolist (over '(nil t))
    (let ((retries (retries-of (hedging :attempts 2) :a)) (failure (failure)))
      (attempt::first-begun retries t)
      (comes-due retries)
      (setf (attempt::retries-over retries) over)
      (is (equal (if over (list :fail failure) '(nil nil)) (fails retries failure))
          "the second begins, unless no more attempts may"))))

(test hedges-that-may-not-begin
  (is (null (attempt::first-begun (retries-of (hedging) :a) nil)))
  (is (null (attempt::first-begun (attempt::make-retries (hedging) 1 (list :a)) t)))
  (is (null (attempt::first-begun (retries-of (retrying) :a) t)))
  (let ((retries (retries-of (hedging) :a)))
    (attempt::first-begun retries t)
    (is (equal '(nil nil) (comes-due retries :sendable nil)))
    (is (= 1 (attempt::retries-issued retries)))))

(test a-throttle-stops-hedges
  (let ((throttle (throttle-with 2 1)) (retries (retries-of (hedging) :a)) (last (failure)))
    (attempt::change-tokens throttle -1000)
    (attempt::first-begun retries t)
    (is (equal '(nil nil) (comes-due retries :throttle throttle)))
    (is-true (attempt::retries-over retries))
    (is (equal (list :fail last) (fails retries last))))
  ;; the time comes when the last attempt has failed
  (let ((throttle (throttle-with 2 1)) (retries (retries-of (hedging) :a))
        (last (failure :unavailable :pushback 9)))
    (is (equal '(:await 9) (fails retries last)))
    (attempt::change-tokens throttle -1000)
    (is (equal (list :fail last) (comes-due retries :throttle throttle)))))

(test failures-take-tokens
  (flet ((tokens-after (policy failure &rest rest)
           (let ((throttle (throttle-with 10 1)))
             (apply #'fails (retries-of policy :a) failure :throttle throttle rest)
             (nth-value 1 (attempt:throttled-p throttle)))))
    (is (= 9 (tokens-after (retrying) (failure))))
    (is (= 9 (tokens-after (hedging) (failure))))
    (is (= 10 (tokens-after (retrying) (failure :internal))))
    (is (= 9 (tokens-after nil (failure :internal :pushback :never))))
    (is (= 10 (tokens-after (retrying) (failure :unavailable :reach :server))))))

(test what-no-server-has-seen-is-made-again
  "Such an attempt is repeated once, under any policy, with the same number; it is repeated again
only on a connection older than the one that has sent GOAWAY."
  (dolist (policy (list nil (retrying) (hedging)))
    (let ((retries (retries-of policy :a)) (unseen (failure :unavailable :reach :server)))
      (is (equal '(:resend nil) (fails retries unseen :now 100)))
      (is (= 1 (attempt::retries-issued retries)))
      (is (= 0 (begins retries :b)))
      (is (equal '(:resend nil) (fails retries unseen :attempt :b :now 200 :going-ns 50)))
      (is (= 0 (begins retries :c)))
      (is (= 2 (attempt::retries-resent retries)))
      (dolist (going-ns '(100 150 nil))
        (attempt:add-attempt retries :c)
        (is (not (eq :resend (first (fails retries unseen :attempt :c :now 300
                                                          :going-ns going-ns))))))))
  (let ((unseen (failure :unavailable :reach :server)) (perhaps (failure :unavailable)))
    (is (equal (list :fail unseen) (fails (retries-of nil :a) unseen :sendable nil)))
    (is (equal (list :fail perhaps) (fails (retries-of nil :a) perhaps)) "a handler may have it")))

(test the-answered-attempt-has-the-call
  (let ((retries (retries-of (hedging) :a)))
    (attempt::first-begun retries t)
    (comes-due retries)
    (begins retries :b)
    (is (equal '(:a) (attempt:commit retries :b)))
    (is (equal '(:b) (attempt::retries-running retries)))
    (is (null (attempt::retries-awaited retries)))
    (is (equal '(nil nil) (comes-due retries)))
    (is-true (attempt::retries-over retries))
    (is (equal '(:b) (attempt:commit retries nil)))
    (is (null (attempt::retries-running retries)))))

(test time-without-an-attempt-is-counted
  (let ((retries (retries-of (retrying) :a)))
    (fails retries (failure) :now 1000)
    (is (= 1000 (attempt::retries-since-ns retries)))
    (is (equal '(0 300) (mapcar (lambda (now) (attempt::idle-until retries now)) '(1000 1300))))
    (comes-due retries :now 1500)
    (begins retries :b)
    (is (= 1500 (attempt::retries-since-ns retries)))
    (is (= 500 (attempt::idle-until retries 9000))))
  (let ((retries (retries-of (hedging) :a)))
    (attempt::first-begun retries t)
    (is (= 0 (attempt::idle-until retries 9000)) "an attempt runs while the next is awaited")))

(defun actions-of (tell retries &key throttle (now 0) (sendable t) (keep t))
  "The operations that act, each with its arguments, in TELL, a function of operations and of a call
of RETRIES. The other operations return THROTTLE, NOW, SENDABLE and KEEP."
  (let ((actions '()))
    (flet ((action (name &optional value)
             (lambda (call &rest arguments)
               (is (eq :call call))
               (push (cons name arguments) actions)
               value)))
      (funcall tell
               (attempt:make-retry-operations
                :retries (constantly retries) :throttle (constantly throttle) :now (constantly now)
                :chance (constantly (sb-ext:seed-random-state 1)) :sendable (constantly sendable)
                :keep (action :keep keep) :go-on (action :go-on) :await (action :await)
                :cancel (action :cancel) :begin (action :begin) :resend (action :resend)
                :fail (action :fail))
               :call)
      (reverse actions))))

(test each-event-leads-to-its-actions
  "A transport performs the machine's decisions, with the transport's own data, in this order."
  (let ((failed (failure :unavailable :pushback 5))
        (unseen (failure :unavailable :reach :server))
        (going (retries-of nil :a)))
    (setf (attempt::retries-resent-ns going) 9)
    (flet ((begun (policy &rest facts)
             (apply #'actions-of #'attempt:tell-begun (retries-of policy :a) facts))
           (failed (retries failure &rest facts)
             (apply #'actions-of
                    (lambda (operations call) (attempt:tell-failed operations call :a 1 failure 8))
                    retries facts))
           (awaiting (kind retries)
             (setf (attempt::retries-awaited retries) kind)
             retries)
           (due (retries &rest facts) (apply #'actions-of #'attempt:tell-due retries facts))
           (spent () (let ((throttle (throttle-with 2 1)))
                       (attempt::change-tokens throttle -1000)
                       throttle)))
      (loop for (expected actions)
              in `((((:cancel) (:go-on)) ,(begun (retrying)))
                   (((:keep) (:go-on) (:await 500000000)) ,(begun (hedging)))
                   (((:keep) (:cancel) (:go-on)) ,(begun (hedging) :keep nil))
                   (((:keep) (:go-on) (:await 5)) ,(failed (retries-of (retrying) :a) failed))
                   (((:keep) (:cancel) (:fail ,failed))
                    ,(failed (retries-of (retrying) :a) failed :keep nil))
                   (((:cancel) (:fail ,failed))
                    ,(failed (retries-of (retrying) :a) failed :throttle (spent)))
                   (((:cancel) (:go-on) (:resend)) ,(failed (retries-of nil :a) unseen))
                   (((:cancel) (:fail ,unseen)) ,(failed (retries-of nil :a) unseen :sendable nil))
                   (((:cancel) (:go-on) (:resend)) ,(failed going unseen))
                   (((:go-on) (:await 500000000) (:begin))
                    ,(failed (retries-of (hedging) :a :b) (failure)))
                   (((:cancel) (:go-on) (:begin))
                    ,(failed (awaiting :hedge (retries-of (hedging :attempts 2) :a)) (failure)))
                   (((:cancel) (:go-on))
                    ,(failed (awaiting :hedge (retries-of (hedging) :a :b))
                             (failure :unavailable :pushback :never)))
                   (((:cancel) (:go-on) (:begin)) ,(due (awaiting :retry (retries-of (retrying)))))
                   (((:go-on) (:await 500000000) (:begin))
                    ,(due (awaiting :hedge (retries-of (hedging) :a))))
                   (((:cancel) (:go-on))
                    ,(due (awaiting :hedge (retries-of (hedging) :a)) :sendable nil))
                   (((:cancel) (:go-on))
                    ,(due (awaiting :hedge (retries-of (hedging) :a)) :throttle (spent)))
                   (((:cancel) (:go-on)) ,(due (retries-of (hedging) :a))))
            do (is (equal expected actions) "~S, not ~S" actions expected)))))

(test events-come-with-their-time-and-throttle
  "The time without an attempt ends when its event comes; a failure after the answer counts like one
before it."
  (let ((retries (retries-of (retrying) :a)) (throttle (throttle-with 10 1)))
    (flet ((tell (now tell) (actions-of tell retries :now now :throttle throttle)))
      (tell 1000 (lambda (operations call)
                   (attempt:tell-failed operations call :a 0 (failure))))
      (tell 1500 #'attempt:tell-due)
      (is (equal '(1 0 0 500) (multiple-value-list (attempt:count-repeats retries 1500))))
      (dolist (failure (list (failure) (failure :internal) (failure :internal :pushback :never)))
        (tell 2000 (lambda (operations call)
                     (attempt:tell-failed-late operations call failure))))
      (is (= 7 (nth-value 1 (attempt:throttled-p throttle)))))))
