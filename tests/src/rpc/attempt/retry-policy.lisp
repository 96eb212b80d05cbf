;;;; What service configs say of retries and hedging: limits, back-off, pushback, throttling.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.attempt)

(defun policy-of (config &rest options)
  "The retry or hedging policy that CONFIG, the plist of a method config, has for all methods, and
how many attempts it allows, of a channel with OPTIONS."
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
  (is (attempt::hedging-policy-p (hedging)))
  (is (not (attempt::hedging-policy-p (retrying))))
  (is (= 500000000 (attempt::hedging-delay-ns (hedging)))))

(test failures-that-count
  "Those that may be tried again, and any that is not to be."
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
                              (attempt::retry-delay-ns (retrying) count random)
                              (* 120000000 expected)))))))

(test back-off-may-shrink
  "From 0.8 s by halves: 0.3, 0.3, 0.2, 0.1 s, each 20 % more or less, as 0.3 s is the maximum."
  (let ((random (sb-ext:seed-random-state 1))
        (policy (retrying :initial 0.8 :multiplier 0.5)))
    (loop for count below 4
          for expected in '(3 3 2 1)
          do (is (<= (* 80000000 expected)
                     (attempt::retry-delay-ns policy count random)
                     (* 120000000 expected))))))

(test back-off-has-a-result-whatever-the-config-says
  (let ((random (sb-ext:seed-random-state 1)))
    (dolist (multiplier (list 1d308 (expt 10 400) 5d-324 (/ (expt 10 400)) 1))
      (dolist (seconds '((1/1000000000 315576000000) (315576000000 315576000000)
                         (315576000000 1/1000000000)))
        (let ((policy (retrying :initial (first seconds) :maximum (second seconds)
                                :multiplier multiplier)))
          (dolist (count '(0 1 2 3 4 1000))
            (is (<= 0 (attempt::retry-delay-ns policy count random)
                    (* 1000000000 +ns-per-second+)))))))))

(test pushbacks-are-32-bit-numbers
  (is (eql 0 (attempt:parse-pushback "0")))
  (is (eql 25000000 (attempt:parse-pushback "25")))
  (is (integerp (attempt:parse-pushback "2147483647")))
  (dolist (text '("-1" "" "+1" "007" "1.5" "2147483648" "99999999999999" "x" "1 "))
    (is (eq :never (attempt:parse-pushback text)) text)))
