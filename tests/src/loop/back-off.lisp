;;;; The waits between attempts.

(in-package #:clgrpc.tests.loop)

(defun waits (count &rest options)
  "The COUNT waits, in seconds, of attempts that fail in a row, by OPTIONS of a channel."
  (let ((back-off (make-back-off))
        (random-state (make-random-state t)))
    (loop repeat count
          collect (next-back-off back-off (apply #'make-channel-options options) random-state))))

(test each-wait-is-longer
  "Waits grow up to the maximum, and are random within the jitter."
  (is (every (lambda (wait expected) (< (abs (- wait expected)) 1d-3))
             (waits 8 :backoff-jitter 0 :backoff-maximum-seconds 10)
             '(1 1.6 2.56 4.096 6.5536 10 10 10)))
  (loop for wait in (waits 8 :backoff-jitter 0.2)
        for base = 1 then (* base 1.6)
        do (is (<= (* 0.799 base) wait (* 1.201 base))))
  (is (not (equal (waits 8) (waits 8)))))

(test after-what-was-of-use-the-first-wait-is-short-again
  (let ((back-off (make-back-off))
        (options (make-channel-options :backoff-jitter 0))
        (random-state (make-random-state t)))
    (loop repeat 3 do (next-back-off back-off options random-state))
    (forget-failures back-off)
    (is (< (abs (- 1 (next-back-off back-off options random-state))) 1d-3))))

(test a-wait-ends-once-or-is-ended
  (with-loops (loop) (:name "back-off")
    (let ((rung (sb-thread:make-semaphore)) (back-off (make-back-off)))
      (flet ((start (seconds)
               (on-loop loop (lambda ()
                               (start-back-off back-off loop
                                               (make-channel-options
                                                :backoff-initial-seconds seconds)
                                               (lambda () (sb-thread:signal-semaphore rung)))))))
        (start 0.01)
        (is-true (await rung))
        (is (null (on-loop loop (lambda () (back-off-timer back-off)))))
        (forget-failures back-off)
        (start 100)
        (on-loop loop (lambda () (stop-back-off back-off loop)))
        (is (null (back-off-timer back-off)))
        (is (zerop (on-loop loop (lambda () (wheel-count (event-loop-wheel loop))))))
        (is (zerop (sb-thread:semaphore-count rung)))))))

;;; Of threads

(test pauses-double-and-are-left-to-chance
  "A thousand that fail at one time return at times spread over the length of the pause."
  (flet ((pauses-after (failures first most)
           (loop repeat 1000
                 collect (let ((pauses (make-pauses first most)))
                           (loop repeat (1- failures) do (next-pause pauses))
                           (next-pause pauses)))))
    (loop for (failures first most expected) in '((1 1/20 2 0.05) (2 1/20 2 0.1) (4 1/20 2 0.4)
                                                  (20 1/20 2 2) (1 1/2 1/2 0.5) (9 1/2 1/2 0.5))
          for pauses = (pauses-after failures first most)
          do (is (every (lambda (pause) (<= (* 0.499 expected) pause (* 1.501 expected))) pauses))
             ;; each tenth of the range has its share
             (dotimes (tenth 10)
               (is (<= 50
                       (count-if (lambda (pause)
                                   (= tenth (min 9 (floor (- (/ pause expected) 1/2) 1/10))))
                                 pauses)
                       150))))))

(test pauses-are-short-again-after-a-success
  (let ((pauses (make-pauses 1/20 2)))
    (loop repeat 9 do (next-pause pauses))
    (forget-failures pauses)
    (is (<= 0.024 (next-pause pauses) 0.076))))
