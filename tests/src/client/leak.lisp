;;;; Costs and remains of a call: threads, descriptors, octets.

(in-package #:clgrpc.tests.client)

(test connections-leave-nothing
  "Connecting, calling and disconnecting two hundred times leaves nothing behind."
  (with-probe (kept :server server) (:ask #'double :chat #'echo)
    (flet ((cycle (i)
             (grpc:with-channel (channel (grpc:server-address server))
               (is (= (* 2 i) (number-of (ask channel (note i)))))
               (when (zerop (mod i 10))
                 (grpc:send (chat channel :open) (note 1))))))
      (cycle 0)
      (eventually (= 0 (getf (grpc:server-statistics server) :connections)))
      (let ((threads (our-threads)) (descriptors (os:open-descriptor-count)))
        (loop for i from 1 to (max 200 (cycles)) do (cycle i))
        (eventually (= 0 (getf (grpc:server-statistics server) :connections)))
        (eventually (= descriptors (os:open-descriptor-count)))
        ;; reserve threads come and go
        (eventually (<= (our-threads) (+ 2 threads)))))))

(test servers-leave-nothing
  (let ((threads (our-threads)) (descriptors (os:open-descriptor-count)))
    (loop repeat 20
          do (with-probe (channel :options '(:loops 2)) (:ask #'double)
               (ask channel (note 1))))
    (eventually (= threads (our-threads)))
    (eventually (= descriptors (os:open-descriptor-count)))))

(defun drop-channels (count address &rest options)
  "Make COUNT channels to ADDRESS, connect them, and forget them. Another thread does this, since
references on this thread's stack would keep them."
  (sb-thread:join-thread
   (in-thread
     (loop repeat count
           do (ask (apply #'grpc:make-channel address options) (note 1)))
     nil)))

(defun collect-until (predicate)
  "Collect garbage until PREDICATE is true; return its value."
  (wait-until (lambda ()
                (sb-ext:gc :full t)
                (or (funcall predicate)
                    (await-signal (make-signal) :seconds 0.05)))))

(test dropped-channels-are-closed
  "The collector finds channels that nobody has closed or refers to."
  (with-probe (kept :server server) (:ask #'double)
    (ask kept (note 1))
    (let ((descriptors (os:open-descriptor-count)) (count 50))
      (drop-channels count (grpc:server-address server))
      (drop-channels count (grpc:server-address server)
                     :interceptors (list (fn (_method request options next)
                                           (funcall next request options))))
      ;; a collection may have closed some by now; the events show that all were open
      (is-true (collect-until (lambda () (= descriptors (os:open-descriptor-count)))))
      (is (= (* 2 count) (length (events-of :channel-not-closed))))
      (is (equal (grpc:server-address server)
                 (getf (first (events-of :channel-not-closed)) :target)))
      (is (= 2 (number-of (ask kept (note 1)))) "a channel that is referred to stays open"))))

(test the-last-dropped-channel-ends-the-threads
  (with-log ()
    (with-started (server (start-probe (list :ask #'double)))
      (dolist (address (list (grpc:server-address server) "127.0.0.1:1"))
        (let ((threads (our-threads)))
          (sb-thread:join-thread
           (sb-thread:make-thread
            (lambda () (caught (ask (grpc:make-channel address) (note 1))) nil)))
          ;; what an earlier test has dropped may be found now as well
          (is-true (collect-until (lambda ()
                                    (find address (events-of :channel-not-closed)
                                          :key (lambda (event) (getf event :target))
                                          :test #'string=))))
          (is-true (collect-until (lambda () (<= (our-threads) threads)))))))))

(test calls-outlive-the-channel-that-is-dropped
  "While a call is open its channel is not closed, though nobody refers to it; afterwards it is."
  (with-probe (kept :server server)
      (:chat (lambda (stream call) (grpc:do-messages (note stream) (grpc:send call note))))
    (let* ((descriptors (os:open-descriptor-count))
           (call (sb-thread:join-thread
                  (in-thread (chat (grpc:make-channel (grpc:server-address server)) :open
                                   :timeout 60)))))
      (flet ((say (i)
               (grpc:send call (note i))
               (is (eql i (number-of (grpc:receive call))))))
        (say 1)
        (is-true (collect-until (lambda () (events-of :channel-not-closed))))
        (say 2)
        (say 3)
        (grpc:close-send call)
        (is (null (grpc:receive call)))
        (is-true (collect-until (lambda () (= descriptors (os:open-descriptor-count)))))))))

(test a-dropped-channel-ends-with-a-call-that-never-had-a-stream
  "The call waits for a connection when its channel is dropped, and is cancelled."
  (with-log ()
    (let* ((call (sb-thread:join-thread
                  (in-thread (grpc:call-async #'lab.bench:ask
                                              (grpc:make-channel (free-address) :idle-seconds 0)
                                              (note 1) :wait-for-ready t :timeout 60))))
           (core (client::client-call-core call)))
      (is-true (collect-until (lambda () (client::core-dropped core))))
      (is-true (client::core-open core))
      (grpc:cancel call)
      (eventually (not (client::core-open core))))))

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
  "The octets that all threads allocate for one of COUNT unary calls."
  (let ((note (note 1)))
    (flet ((calls () (dotimes (i count) (lab.bench:ask channel note))))
      (calls)
      (let ((before (sb-ext:get-bytes-consed)))
        (calls)
        (/ (- (sb-ext:get-bytes-consed) before) count 1.0)))))

(test allocation-per-call
  "Both ends of a unary call together allocate less than a bound; benchmarks give the exact figure."
  (with-probe (channel :options '(:execution :inline)) (:ask (handling (note)
                                                               note))
    (is (< (octets-per-call channel 2000) 2000))))
