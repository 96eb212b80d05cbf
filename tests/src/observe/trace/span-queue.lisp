;;;; Finished spans wait for an exporter: in order, up to a limit, and it is notified of batches.

(in-package #:clgrpc.tests.trace)

(defun work (count)
  (dotimes (i count) (grpc:with-span ((format nil "~D" i)))))

(test spans-wait-for-an-exporter-up-to-a-limit
  (let* ((batches 0)
         (tracing (tracing :max-queued-spans 10 :batch-spans 4
                           :on-batch (lambda () (incf batches)))))
    (work 13)
    (is (= 2 batches))
    (is (= 3 (trace:spans-dropped tracing)))
    (is (equal (loop for i below 10 collect (princ-to-string i))
               (mapcar #'trace:span-name (trace:drain tracing))))
    (is (null (trace:drain tracing)))
    (work 2)
    (is (= 2 (length (trace:drain tracing))))
    (is (= 3 (trace:spans-dropped tracing)))
    (with-logged (events)
      (setf (trace:on-batch tracing) #'error)
      (work 4)
      (is (equal '(:error :exporter-error) (subseq (first (events)) 0 2)))
      (is (null (rest (events)))))
    (trace:drain tracing)
    (setf (trace:on-batch tracing) nil)
    (work 5)
    (is (= 2 batches))
    (signals misuse (setf (trace:on-batch tracing) 5))))

(test threads-and-an-exporter-at-once
  "Each span is drained once, or counted."
  (let* ((tracing (tracing :max-queued-spans 100)) (drained 0) (done (list 0)))
    (call-with-threads 4 (lambda (number)
                           (cond ((zerop number)
                                  (loop do (incf drained (length (trace:drain tracing)))
                                        until (= 3 (car done))))
                                 (t (work 3000)
                                    (sb-ext:atomic-incf (car done))))))
    (incf drained (length (trace:drain tracing)))
    (is (= 9000 (+ drained (trace:spans-dropped tracing))))))

(test what-is-no-option-of-tracing
  (signals misuse (tracing :max-receive-octets 5))
  (signals misuse (tracing :propagators '(:b3)))
  (signals misuse (tracing :on-batch 5))
  (signals misuse (tracing :sampler 5))
  (signals misuse (grpc:make-channel "127.0.0.1:1" :max-span-events 5)))

(test spans-have-the-time-of-their-threads-world
  "A simulated world has its own time, without a date. A span uses it even with an older tracing."
  (let* ((tracing (tracing))
         (loop:*world* (loop:make-world :clock (constantly 5)
                                        :wait (fn (_predicate _end-ns) nil)
                                        :network (loop:make-network))))
    (grpc:with-span ("work" :tracing tracing))
    (destructuring-bind (span) (trace:drain tracing)
      (is (equal '(5 5) (list (trace:span-start-ns span) (trace:span-end-ns span)))))))
