;;;; Runs against servers that fail, hang, go away and come back: counts add up and nothing hangs.

(in-package #:clgrpc.tests.load)
(in-suite :clgrpc.load)

(defclass moody (routeguide:route-guide)
  ((counter :initform (list 0) :reader moody-counter)
   (mood :initarg :mood :reader moody-mood))
  (:documentation "GetFeature as MOOD, a function of the number of the call, has it."))

(defmethod routeguide.route-guide:get-feature ((service moody) point &key)
  (funcall (moody-mood service) (sb-ext:atomic-incf (car (moody-counter service))))
  (routeguide:make-feature :location point))

(defmacro with-moody-server ((address (number) &body mood) &body body)
  `(with-server (,address (make-instance 'moody :mood (lambda (,number)
                                                        (declare (ignorable ,number))
                                                        ,@mood)))
     ,@body))

(test half-of-the-calls-fail
  (with-moody-server (address (number)
                       (when (oddp number) (error 'grpc:resource-exhausted :message "no more")))
    (let ((run (load:perform-run (plan-for address :total 400 :workers 8 :connections 2))))
      (is (equal '("OK" 200 "ResourceExhausted" 200)
                 (sort-statuses (statuses-of run))))
      (is (consistent-p run))
      (is (equal '(("no more" . 200))
                 (load:status-row-messages
                  (find 8 (load:run-statuses run) :key #'load:status-row-code)))))))

(defun sort-statuses (plist)
  (loop for (name count) in (sort (loop for (name count) on plist by #'cddr
                                        collect (list name count))
                                  #'string< :key #'first)
        collect name collect count))

(test a-server-that-hangs
  "Calls end at their deadline, in an open loop and in a closed one."
  (with-moody-server (address (number) (sleep 1))
    (let* ((begin (base:monotonic-ns))
           (run (load:perform-run (plan-for address :total 20 :workers 10
                                                    :timeout-ns 100000000))))
      (is (equal '("DeadlineExceeded" 20) (statuses-of run)))
      (is (consistent-p run))
      (is (< (- (base:monotonic-ns) begin) 5000000000)))
    (let ((run (load:perform-run (plan-for address :total 50 :rate 500
                                                   :timeout-ns 100000000))))
      (is (equal '("DeadlineExceeded" 50) (statuses-of run)))
      (is (consistent-p run)))))

(test calls-at-the-end
  "What becomes of calls under way when the time is over is as the plan says."
  (with-moody-server (address (number) (sleep 0.5))
    (flet ((statuses (stop)
             (statuses-of (load:perform-run (plan-for address :workers 3 :duration-ns 100000000
                                                              :stop stop)))))
      (is (equal '("OK" 3) (statuses :wait)))
      (is (equal '("Unavailable" 3) (statuses :close)))
      (is (equal '() (statuses :ignore))))))

(test a-server-that-stops
  "When the server goes away in the middle, the calls that are due afterwards fail, and the run ends
on time."
  (let ((server (grpc:start-server (make-instance 'examples:route-guide)
                                   :listen "127.0.0.1:0")))
    (unwind-protect
         (let* ((address (grpc:server-address server))
                (killer (sb-thread:make-thread (lambda ()
                                                 (sleep 0.3)
                                                 (grpc:stop-server server :drain 0))))
                (run (load:perform-run (plan-for address :rate 1000 :duration-ns 800000000
                                                         :connections 2))))
           (sb-thread:join-thread killer)
           (is (= 800 (load:run-count run)))
           (is (consistent-p run))
           (let ((statuses (sort-statuses (statuses-of run))))
             (is (equal "OK" (first statuses)))
             (is (< 100 (second statuses) 700))
             (is (equal "Unavailable" (third statuses)))))
      (grpc:stop-server server :drain 0))))

(test an-open-loop-omits-nothing
  "A server that stalls for 400 ms in a second of calls shows in four calls of ten, evenly from 400
ms down to nothing, though its answers are quick otherwise."
  (let ((begin nil) (lock (sb-thread:make-mutex)))
    (with-moody-server (address (number)
                         (let ((now (base:monotonic-ns)) (left 0))
                           (sb-thread:with-mutex (lock)
                             (unless begin (setf begin now))
                             (let ((at (- now begin)))
                               (when (<= 300000000 at 700000000)
                                 (setf left (- 700000000 at)))))
                           (when (plusp left) (sleep (/ left 1d9)))))
      (let* ((run (load:perform-run (plan-for address :rate 100 :total 100)))
             (latency (load:run-latency run)))
        (is (equal '("OK" 100) (statuses-of run)))
        ;; of 100 calls, 40 wait from 0 to 400 ms: the 80th percentile is the middle of these
        (is (< 150 (/ (load:histogram-quantile latency 80/100) 1000000) 260))
        (is (< 350 (/ (load:histogram-quantile latency 99/100) 1000000) 450))
        (is (< (/ (load:histogram-quantile latency 50/100) 1000000) 50))))))
