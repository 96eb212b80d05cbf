;;;; The waits between attempts.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defun waits (count &rest options)
  "The COUNT waits of attempts that fail one after another, in seconds, as OPTIONS of a channel
say."
  (let ((back-off (client::make-back-off))
        (random-state (make-random-state t)))
    (loop repeat count
          collect (client::next-back-off back-off (apply #'make-channel-options options)
                                         random-state))))

(test each-wait-is-longer
  "Up to the maximum, and random within the jitter."
  (is (every (lambda (wait expected) (< (abs (- wait expected)) 1d-3))
             (waits 8 :backoff-jitter 0 :backoff-maximum-seconds 10)
             '(1 1.6 2.56 4.096 6.5536 10 10 10)))
  (loop for wait in (waits 8 :backoff-jitter 0.2)
        for base = 1 then (* base 1.6)
        do (is (<= (* 0.799 base) wait (* 1.201 base))))
  (is (not (equal (waits 8) (waits 8)))))

(test after-what-was-of-use-the-first-wait-is-short-again
  (let ((back-off (client::make-back-off))
        (options (make-channel-options :backoff-jitter 0))
        (random-state (make-random-state t)))
    (loop repeat 3 do (client::next-back-off back-off options random-state))
    (client::forget-failures back-off)
    (is (< (abs (- 1 (client::next-back-off back-off options random-state))) 1d-3))))

(test a-wait-ends-once-or-is-ended
  (let ((loop (loop:make-event-loop :name "back-off"))
        (options (make-channel-options :backoff-initial-seconds 0.01))
        (rung (make-signal)) (back-off (client::make-back-off)))
    (loop:launch-event-loop loop)
    (unwind-protect
         (flet ((start ()
                  (loop:post loop (lambda ()
                                    (client::start-back-off back-off loop options
                                                            (lambda () (signal-it rung)))))))
           (start)
           (is-true (await-signal rung))
           (is (null (client::back-off-timer back-off)))
           (start)
           (loop:post loop (lambda () (client::stop-back-off back-off loop)))
           (is-false (await-signal rung :seconds 0.1)))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))))
