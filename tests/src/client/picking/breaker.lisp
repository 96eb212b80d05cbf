;;;; Circuit breakers, without a channel.

(in-package #:clgrpc.tests.client)

(defun a-breaker (&rest options)
  (client::make-breaker (apply #'make-channel-options options)))

(defun end-calls (breaker now &rest failed)
  "End calls of BREAKER at NOW, in seconds, each FAILED or not; return the last new state."
  (let ((new nil))
    (dolist (fault failed new)
      (setf new (or (client::note-end breaker :a fault (seconds-ns now)) new)))))

(defun admitted-p (breaker call now &optional (calls 0))
  (null (client::admit-to-breaker breaker call calls (seconds-ns now))))

(test a-breaker-opens-half-opens-and-closes
  (let ((breaker (a-breaker :breaker-failure-percent 50 :breaker-min-calls 4
                            :breaker-window-seconds 10 :breaker-open-seconds 5)))
    (is (null (end-calls breaker 1 nil t t)) "there were too few calls")
    (is (admitted-p breaker :a 1))
    (is (eq :open (end-calls breaker 2 t)))
    (is (not (admitted-p breaker :a 2)))
    (is (not (admitted-p breaker :a 6.9)))
    (is (admitted-p breaker :a 7) "one call is tried")
    (is (eq :half-open (client::breaker-state breaker)))
    (is (admitted-p breaker :a 7) "the trial call may ask again")
    (is (not (admitted-p breaker :b 7)))
    (is (eq :open (client::note-end breaker :a t (seconds-ns 8))))
    (is (not (admitted-p breaker :b 12)))
    (is (admitted-p breaker :b 13))
    (is (null (client::note-end breaker :z nil (seconds-ns 13))) "an earlier call does not count")
    (is (eq :closed (client::note-end breaker :b nil (seconds-ns 14))))
    (is (admitted-p breaker :c 14))
    (is (null (end-calls breaker 14 t t t)) "the count begins anew")))

(test a-trial-that-was-not-sent-is-another-calls
  (let ((breaker (a-breaker :breaker-failure-percent 100 :breaker-min-calls 1
                            :breaker-open-seconds 1)))
    (is (eq :open (end-calls breaker 1 t)))
    (is (admitted-p breaker :a 2))
    (client::forget-trial breaker :b)
    (is (not (admitted-p breaker :b 2)))
    (client::forget-trial breaker :a)
    (is (admitted-p breaker :b 2))))

(test a-trial-without-an-answer-is-another-calls
  "A trial that hangs keeps a server's breaker half open for as long as a breaker is open, no
longer; its later outcome has no effect."
  (let ((breaker (a-breaker :breaker-failure-percent 100 :breaker-min-calls 1
                            :breaker-open-seconds 5)))
    (is (eq :open (end-calls breaker 1 t)))
    (is (admitted-p breaker :a 6))
    (is (admitted-p breaker :a 10) "the trial call may ask again, but gets no more time by this")
    (is (not (admitted-p breaker :b 10.9)))
    (is (admitted-p breaker :b 11))
    (is (not (admitted-p breaker :c 15.9)))
    (is (null (client::note-end breaker :a t (seconds-ns 15.9))))
    (is (null (client::note-end breaker :a nil (seconds-ns 15.9))))
    (is (eq :closed (client::note-end breaker :b nil (seconds-ns 15.9))))))

(test a-trial-that-was-cancelled-decides-nothing
  (let ((breaker (a-breaker :breaker-failure-percent 100 :breaker-min-calls 1
                            :breaker-open-seconds 1)))
    (with-core (core puppet nil)
      (let* ((backend (client::parse-backend "127.0.0.1:1"))
             (subchannel (client::make-subchannel
                          :core core :balancer (client::core-balancer core)
                          :key (client:backend-key backend)
                          :addresses (client:backend-addresses backend)))
             (call (begin-ask core))
             (next (begin-ask core)))
        (is (eq :open (end-calls breaker 1 t)))
        (is (admitted-p breaker call 2))
        (is (not (admitted-p breaker next 2)))
        (client::note-attempt breaker call subchannel :cancelled)
        (is (eq :half-open (client::breaker-state breaker))
            "a cancelled trial shows nothing about the server")
        (is (admitted-p breaker next 2) "another call is tried")
        (client::note-attempt breaker next subchannel nil)
        (is (eq :half-open (client::breaker-state breaker)))
        (is (admitted-p breaker call 2))
        (with-log (:circuit-breaker)
          (client::note-attempt breaker call subchannel :ok))
        (is (eq :closed (client::breaker-state breaker)))))))

(test a-breakers-window-moves
  (let ((breaker (a-breaker :breaker-failure-percent 60 :breaker-min-calls 5
                            :breaker-window-seconds 10)))
    (is (null (end-calls breaker 1 t t t t)))
    (is (null (end-calls breaker 12 t t)) "the first four are too old")
    (is (null (end-calls breaker 20 nil nil)))
    (is (null (end-calls breaker 22.5 t)) "of 5 calls 3 have failed, but two were 10.5 s ago")
    (is (null (end-calls breaker 1000 t t t t)) "all earlier calls are too old")
    (is (eq :open (end-calls breaker 1000 t)))))

(test a-share-is-of-enough-calls
  (let ((breaker (a-breaker :breaker-failure-percent 50 :breaker-min-calls 10)))
    (is (null (apply #'end-calls breaker 1 (make-list 9 :initial-element t))) "9 of 9")
    (is (eq :open (end-calls breaker 1 t)) "10 of 10"))
  (let ((breaker (a-breaker :breaker-failure-percent 50 :breaker-min-calls 10)))
    (is (null (apply #'end-calls breaker 1 (append (make-list 6) '(t t t t t)))) "5 of 11")
    (is (eq :open (end-calls breaker 1 t)) "6 of 12"))
  (let ((breaker (a-breaker)))
    (is (null (apply #'end-calls breaker 1 (make-list 100 :initial-element t)))
        "without the option no call is counted")))

(test a-breaker-limits-calls
  (let ((breaker (a-breaker :breaker-max-calls 3)))
    (is (admitted-p breaker :a 1 2))
    (is (not (admitted-p breaker :a 1 3)))
    (is (admitted-p breaker :a 1 2))))

(test to-ask-a-breaker-changes-nothing
  "PASSES-P predicts the result of ADMIT-TO-BREAKER, in each state."
  (let ((breaker (a-breaker :breaker-failure-percent 100 :breaker-min-calls 1 :breaker-max-calls 3
                            :breaker-open-seconds 5)))
    (flet ((passes-p (call now &optional (calls 0))
             (let ((before (client::breaker-state breaker)))
               (prog1 (client::passes-p breaker call calls (seconds-ns now))
                 (is (eq before (client::breaker-state breaker)))))))
      (is (passes-p :a 1 2))
      (is (not (passes-p :a 1 3)))
      (end-calls breaker 1 t)
      (is (not (passes-p :a 5.9)))
      (is (passes-p :a 6))
      (is (passes-p :b 6))
      (is (admitted-p breaker :a 6))
      (is (passes-p :a 6))
      (is (not (passes-p :b 6))))))
