;;;; Reading late: responses that are read when the next calls are due count as of when they came.

(in-package #:clgrpc.tests.load)
(in-suite :clgrpc.load)

(test late-poller-sleeps-without-looking
  (let* ((poller (load::make-late-poller))
         (late (loop:poller-state poller))
         (watched (os:open-eventfd)))
    (flet ((await-events (timeout-ns) (funcall (loop:poller-wait poller) poller timeout-ns)))
      (unwind-protect
           (progn
             (funcall (loop:poller-add poller) poller watched 7)
             (is (= 1 (await-events 0)) "it can be written")
             (setf (load::late-on late) t)
             (os:write-eventfd watched)
             (is (= 0 (await-events 1000000)) "it has looked, so it sleeps")
             (is (= 1 (await-events 1000000)) "then it looks, and finds what came meanwhile")
             (is (= 7 (aref (loop:poller-tokens poller) 0)))
             (os:write-eventfd watched)
             (is (= 0 (await-events 0)) "a turn that does not wait does not look")
             (is (= 1 (loop repeat load::+blind-turns+ sum (await-events 0))) "but now and then")
             (os:write-eventfd watched)
             (is (= 1 (await-events 1000000000)) "nor does it sleep long without")
             (os:write-eventfd watched)
             (setf (load::late-on late) nil)
             (is (= 1 (await-events 0))))
        (funcall (loop:poller-remove poller) poller watched)
        (funcall (loop:poller-close poller) poller)
        (os:close-descriptor watched)))))

(test times-are-judged
  (flet ((judged (exact inexact)
           (let ((late (load::make-late :epoll (loop:make-poll-poller) :on t)))
             (unwind-protect
                  (progn
                    (loop repeat exact do (load::judge-times late 1 0 1000))
                    (load::judge-times late 0 inexact 1000)
                    (values (load::late-on late) (load::late-paused-until-ns late)
                            (load::late-pause-ns late)))
               (let ((poller (load::late-epoll late)))
                 (funcall (loop:poller-close poller) poller))))))
    (is-true (judged 62 2))
    (is-true (judged 3 60) "too few to judge")
    (multiple-value-bind (on until pause) (judged 61 3)
      (is-false on)
      (is (= (+ 1000 load::+first-pause-ns+) until))
      (is (= (* 2 load::+first-pause-ns+) pause)))))

(defclass slow-guide (examples:route-guide) ()
  (:documentation "Takes half a millisecond for a call."))

(defmethod routeguide.route-guide:get-feature ((service slow-guide) point &key)
  (declare (ignore point))
  (sleep 0.0005)
  (routeguide:make-feature :name "x"))

(test responses-that-are-read-late-count-as-of-when-they-came
  "With two milliseconds between groups of calls responses are read after two; they came before."
  (with-server (address (make-instance 'slow-guide) :execution :blocking)
    (let* ((late '())
           (run (load:perform-run
                 (plan-for address :rate 2000 :total 2000 :group-ns 1900000)
                 :on-progress (lambda (control)
                                (let ((lane (first (load::control-lanes control))))
                                  (push (load::late-on (load::lane-late lane)) late))))))
      (is (equal '("OK" 2000) (statuses-of run)))
      (is (consistent-p run))
      (is (find t late) "it did read late")
      (is (< 500000 (load:histogram-quantile (load:run-latency run) 1/10) 1500000)))))

(test who-must-not-read-late
  (with-server (address (make-instance 'examples:route-guide))
    (flet ((late-of (&rest arguments)
             (let ((late '()))
               (load:perform-run (apply #'plan-for address :duration-ns 400000000 arguments)
                                 :on-progress
                                 (lambda (control)
                                   (let ((lane (first (load::control-lanes control))))
                                     (push (and (load::lane-late lane)
                                                (load::late-on (load::lane-late lane)))
                                           late))))
               late)))
      (is (every #'null (late-of :workers 4)) "a closed loop: the next call waits for the response")
      (is (every #'null (late-of :rate 2000 :method 'routeguide.route-guide:list-features))
          "streams"))))
