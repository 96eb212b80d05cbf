;;;; What a call costs and leaves behind: threads, descriptors, octets.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(test connections-leave-nothing
  "Two hundred times connect, call, disconnect."
  (with-probe (kept :server server) (:ask #'double :chat #'echo)
    (flet ((cycle (i)
             (grpc:with-channel (channel (grpc:server-address server))
               (is (= (* 2 i) (number-of (ask channel (note i)))))
               (when (zerop (mod i 10))
                 (grpc:send (chat channel :open) (note 1))))))
      (cycle 0)
      (is (wait-until (lambda () (= 0 (getf (grpc:server-statistics server) :connections)))))
      (let ((threads (our-threads)) (descriptors (os:open-descriptor-count)))
        (loop for i from 1 to (max 200 (cycles)) do (cycle i))
        (is (wait-until (lambda () (= 0 (getf (grpc:server-statistics server) :connections)))))
        (is (wait-until (lambda () (= descriptors (os:open-descriptor-count)))))
        ;; reserve threads come and go
        (is-true (wait-until (lambda () (<= (our-threads) (+ 2 threads)))))))))

(test servers-leave-nothing
  (let ((threads (our-threads)) (descriptors (os:open-descriptor-count)))
    (loop repeat 20
          do (with-probe (channel :options '(:loops 2)) (:ask #'double)
               (ask channel (note 1))))
    (is (wait-until (lambda () (= threads (our-threads)))))
    (is (wait-until (lambda () (= descriptors (os:open-descriptor-count)))))))

(test calls-leave-nothing
  "Calls that have ended, well or not, are garbage."
  (with-probe (channel) (:ask (lambda (note call)
                                (if (oddp (number-of note))
                                    (grpc:fail :aborted "")
                                    (double note call)))
                         :watch (lambda (note call) (declare (ignore note)) call))
    (flet ((churn ()
             (loop for i below 500
                   do (caught (ask channel (note i)))
                      (grpc:cancel (watch channel (note 1)))
                      (grpc:call-async #'lab.bench:ask channel (note i)))
             (ask channel (note 0))
             (sb-ext:gc :full t)
             (sb-kernel:dynamic-usage)))
      (churn)
      (let ((before (churn)))
        (is (< (- (churn) before) 1000000))))))

(defun octets-per-call (channel count)
  "What all threads allocate for one of COUNT unary calls."
  (let ((note (note 1)))
    (flet ((calls () (dotimes (i count) (lab.bench:ask channel note))))
      (calls)
      (let ((before (sb-ext:get-bytes-consed)))
        (calls)
        (/ (- (sb-ext:get-bytes-consed) before) count 1.0)))))

(test allocation-per-call
  "Both ends of a unary call together stay under a sane bound; the exact figure is for the
benchmarks."
  (with-probe (channel :options '(:execution :inline)) (:ask (lambda (note call)
                                                               (declare (ignore call))
                                                               note))
    (is (< (octets-per-call channel 2000) 2000))))
