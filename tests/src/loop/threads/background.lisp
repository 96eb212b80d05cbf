;;;; Jobs in the background: when they run, on how many threads, and how they end.

(in-package #:clgrpc.tests.loop)

(defmacro with-background ((background) &body body)
  `(let ((,background (make-background "tests background")))
     (unwind-protect (progn ,@body)
       (end-background ,background))))

(defun background-threads ()
  "The number of threads that wait for backgrounds of tests."
  (count "tests background" (sb-thread:list-all-threads) :key #'sb-thread:thread-name
                                                         :test #'equal))

(test jobs-run-when-they-are-woken-and-when-they-are-due
  (with-background (background)
    (let* ((ran (sb-thread:make-semaphore)) (seconds nil)
           (job (add-job background (lambda ()
                                      (sb-thread:signal-semaphore ran)
                                      seconds))))
      (is (= 0 (sb-thread:semaphore-count ran)) "the job was not woken")
      (wake-job job)
      (is-true (await ran))
      (is (= 0 (background-threads)) "no job has a due time")
      (setf seconds 1/1000)
      (wake-job job)
      (is-true (await ran 5))
      (is (= 1 (background-threads)))
      (end-job job)
      (is-true (job-ended job)))
    (is-true (job-ended (progn (end-background background)
                               (add-job background #'list)))
             "a background that has ended takes no jobs")))

(test jobs-run-again-although-no-thread-could-be-made
  "If the thread that waits for due jobs cannot be made, it is made later."
  (with-background (background)
    (let ((ran (sb-thread:make-semaphore)) (refused nil))
      (with-logged (told :no-reserve-thread)
        (with-replaced (('loop:start-thread
                         (lambda (function &rest arguments)
                           (if (and (equal "tests background" (second arguments))
                                    (not (shiftf refused t)))
                               (error "The system has no further thread.")
                               (apply function arguments)))))
          (wake-job (add-job background (lambda ()
                                          (sb-thread:signal-semaphore ran)
                                          1/1000)))
          (is-true (await ran 3)))
        (is-true refused)
        (is (= 1 (length (told))))))))

(test a-job-never-runs-twice-at-once
  "A job that is woken while it runs, once or several times, runs once more."
  (with-background (background)
    (let* ((inside 0) (most 0) (count 0)
           (entered (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
           (job (add-job background
                         (lambda ()
                           (setf most (max most (incf inside)))
                           (incf count)
                           (sb-thread:signal-semaphore entered)
                           (sb-thread:wait-on-semaphore go-on :timeout 60)
                           (decf inside)
                           nil))))
      (wake-job job)
      (is-true (await entered))
      (loop repeat 10 do (wake-job job))
      (sb-thread:signal-semaphore go-on 2)
      (is-true (await entered))
      (end-job job)
      (is (= 2 count))
      (is (= 1 most)))))

(test jobs-that-wait-hold-up-no-other
  "Nor does a job whose function signals an error; the error is logged, and the job is idle."
  (with-background (background)
    (let* ((entered (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
           (ran (sb-thread:make-semaphore))
           (slow (add-job background (lambda ()
                                       (sb-thread:signal-semaphore entered)
                                       (sb-thread:wait-on-semaphore go-on :timeout 60)
                                       nil)))
           (bad (add-job background (lambda ()
                                      (sb-thread:signal-semaphore ran)
                                      (error "This is a bug."))))
           (quick (add-job background (lambda () (sb-thread:signal-semaphore ran) 1/1000))))
      (wake-job slow)
      (is-true (await entered))
      (wake-job quick)
      (is-true (await ran 5))
      (end-job quick)
      (loop while (sb-thread:try-semaphore ran))
      (with-logged (told)
        (wake-job bad)
        (is-true (await ran 1))
        (end-job bad)
        (is (equal '(:background-job-error) (mapcar #'second (told)))))
      (sb-thread:signal-semaphore go-on)
      (end-job slow))))

(test a-thousand-jobs-that-wait-have-one-thread
  (with-background (background)
    (let ((ran (sb-thread:make-semaphore)))
      (dotimes (i 1000)
        (wake-job (add-job background (lambda () (sb-thread:signal-semaphore ran) 3600))))
      (is-true (sb-thread:wait-on-semaphore ran :n 1000 :timeout 60))
      (is (= 1 (background-threads))))
    (end-background background)
    (is (= 0 (background-threads)))))

(test a-job-that-interrupted-threads-wake-runs-on
  "A thread that is unwound as it wakes a job has woken it or not: no job is wrongly marked as
running, since it would neither run again nor end."
  (with-background (background)
    (let* ((ran (sb-thread:make-semaphore))
           (job (add-job background (lambda () (sb-thread:signal-semaphore ran) nil))))
      (support:interrupt-again-and-again (lambda () (wake-job job)) 300)
      (loop while (sb-thread:try-semaphore ran))
      (wake-job job)
      (is-true (await ran))
      (is-true (end-job job :seconds 30)))))

(test ending-a-job-waits-for-it
  "It does not wait if the job ends itself. The job does not run again, even if it is woken or due."
  (with-background (background)
    (let* ((entered (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
           (returned nil) (count 0) (own nil)
           (job (add-job background (lambda ()
                                      (incf count)
                                      (sb-thread:signal-semaphore entered)
                                      (sb-thread:wait-on-semaphore go-on :timeout 60)
                                      (setf returned t)
                                      0)))
           (ended (sb-thread:make-semaphore)))
      (wake-job job)
      (is-true (await entered))
      (wake-job job)
      (let ((ender (sb-thread:make-thread (lambda () (end-job job) returned))))
        ;; it may run again before it is told to end, since it is due at once
        (sb-thread:signal-semaphore go-on 1000000)
        (is-true (sb-thread:join-thread ender)))
      (let ((ran count))
        (wake-job job)
        (setf own (add-job background (lambda ()
                                        (end-job own)
                                        (sb-thread:signal-semaphore ended)
                                        0)))
        (wake-job own)
        (is-true (await ended))
        (is (= ran count))))))

(test a-job-may-end-its-background
  "Then it waits for nothing, whether other threads have ended the job before or not."
  (let ((background (make-background "tests background"))
        (ended (sb-thread:make-semaphore)) (job nil))
    (setf job (add-job background (lambda ()
                                    (end-job job)
                                    (dotimes (i 2) (end-background background))
                                    (sb-thread:signal-semaphore ended)
                                    nil)))
    (wake-job job)
    (is-true (sb-thread:wait-on-semaphore ended :timeout 30) "END-BACKGROUND waits for a minute")
    (end-background background)))

(test failure-is-told-when-it-begins-and-when-it-ends
  (with-background (background)
    (let ((job (add-job background #'list))
          (condition (make-condition 'simple-error :format-control "no" :format-arguments '())))
      (with-logged (events :ill :well :odd)
        (tell-recovery job :well)
        (loop repeat 3 do (tell-failure job :ill condition))
        (loop repeat 3 do (tell-recovery job :well))
        (tell-failure job :ill condition)
        (tell-failure (add-job background #'list) :odd (make-condition 'support:unprintable))
        (is (equal '(:ill :well :ill :odd) (mapcar #'second (events))))))))

(test await-until-returns-what-its-predicate-has
  "It checks at once and after each change, and no more when its time is over."
  (let ((lock (sb-thread:make-mutex)) (queue (sb-thread:make-waitqueue)) (calls 0) (value nil))
    (flet ((await (seconds predicate)
             (clgrpc.loop:await-until queue lock (clgrpc.loop:notice-end seconds) predicate)))
      (is (eql 7 (await 0 (constantly 7))))
      (is (null (await 0 (lambda () (incf calls) nil))))
      (is (= 1 calls))
      (let ((thread nil))
        (is (eq :told (await 60 (lambda ()
                                  ;; the caller can be informed only once this function waits
                                  (unless thread
                                    (setf thread (in-thread
                                                   (sb-thread:with-mutex (lock)
                                                     (setf value :told)
                                                     (sb-thread:condition-broadcast queue)))))
                                  value))))
        (sb-thread:join-thread thread)))))

(test the-end-of-a-background-waits-for-all-jobs-together
  "The time limit is for all jobs, not for each."
  (let ((background (make-background "tests background"))
        (entered (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
        (waits '()))
    (dotimes (i 3)
      (wake-job (add-job background (lambda ()
                                      (sb-thread:signal-semaphore entered)
                                      (await go-on)
                                      nil))))
    (is-true (await entered 3))
    (with-replaced (('end-job (lambda (function job &key seconds)
                                (push seconds waits)
                                (funcall function job :seconds seconds))))
      (unwind-protect
           (end-background background :seconds 1/100)
        (sb-thread:signal-semaphore go-on 3)))
    (end-background background)
    (destructuring-bind (third second first) waits
      (is (<= 0 first 1/100))
      (is (= 0 second third)))))

(test the-lock-of-a-background-is-taken
  (with-background (background)
    (let ((job (add-job background #'list)))
      (is (null (support:lockless (clgrpc.loop::background-lock background)
                                  `(add-job ,background ,#'list) `(wake-job ,job) `(end-job ,job)
                                  `(clgrpc.loop::take-due ,background)
                                  `(clgrpc.loop::ensure-waiting ,background)
                                  `(end-background ,background)))))))
