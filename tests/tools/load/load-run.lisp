;;;; Runs against servers in this process, over loopback.

(in-package #:clgrpc.tests.load)

(defun route-method (name)
  (method:stub-method name))

(defun plan-for (address &rest arguments
                 &key (method 'routeguide.route-guide:get-feature) (data "{}") rate workers
                   (timeout-ns 5000000000) (request-metadata #())
                   (options-of-http2 (clgrpc.option:make-channel-options)) &allow-other-keys)
  (let* ((method (route-method method))
         (target (loop:parse-target address)))
    (apply #'load:make-plan
           :target address :addresses (list target)
           :requests
           (list (load:make-request
                  method :payload (load:json-payload data method (constantly nil))
                         :fields (load:request-head (method:rpc-method-path method)
                                                    (loop:target-authority target) timeout-ns
                                                    "http" request-metadata)))
           :timeout-ns timeout-ns :connect-timeout-ns 2000000000
           :options-of-http2 options-of-http2
           :rate (and rate (load:make-schedule :start (float rate 1d0)))
           :workers (and workers (load:make-schedule :start (float workers 1d0)))
           (loop for (key value) on arguments by #'cddr
                 unless (member key '(:method :data :rate :workers :timeout-ns
                                      :options-of-http2 :request-metadata))
                   collect key and collect value))))

(defmacro with-server ((address service &rest arguments) &body body)
  (let ((server (gensym)))
    `(let ((,server (grpc:start-server ,service :listen "127.0.0.1:0" ,@arguments)))
       (unwind-protect
            (let ((,address (grpc:server-address ,server)))
              ,@body)
         (grpc:stop-server ,server :drain 1)))))

(defun statuses-of (run)
  (loop for row in (load:run-statuses run)
        collect (load:status-row-name row) collect (load:status-row-count row)))

(defun consistent-p (run)
  "True if what RUN tells in several ways is the same."
  (let ((count (load:run-count run)))
    (and (= count (reduce #'+ (load:run-statuses run) :key #'load:status-row-count))
         (= count (reduce #'+ (load:run-backends run) :key #'load:share-row-count))
         (= count (reduce #'+ (load:run-seconds run) :key #'load:second-row-count))
         (= count (load:histogram-count (load:run-all-latency run)))
         (loop for row in (load:run-statuses run)
               always (= (load:status-row-count row)
                         (load:histogram-count (load:status-row-latency row)))
               always (or (zerop (load:status-row-code row))
                          (= (load:status-row-count row)
                             (reduce #'+ (load:status-row-messages row) :key #'cdr)))))))

(test a-run-whose-time-is-over-says-so
  (with-server (address (make-instance 'examples:route-guide))
    (flet ((ended-early (&rest arguments)
             (load:run-ended-early (load:perform-run (apply #'plan-for address :workers 2
                                                            arguments)))))
      (is (eq :deadline (ended-early :total 100000000 :duration-ns 200000000)))
      (is (null (ended-early :total 20 :duration-ns 60000000000)))
      (is (null (ended-early :duration-ns 200000000))))))

(test closed-loop
  "All calls are made, over all connections and loops, and what is told adds up."
  (with-server (address (make-instance 'examples:route-guide))
    (dolist (generators '(1 2))
      (let ((run (load:perform-run (plan-for address :total 1003 :workers 17 :connections 3
                                                     :generators generators))))
        (is (equal '("OK" 1003) (statuses-of run)))
        (is (consistent-p run))
        (is (= 3 (load:run-connects run)))
        (dolist (stages '(("queue" "connect") ("send") ("wait")))
          (is (= 1003 (loop for (stage . latency) in (load:run-stages run)
                            when (member stage stages :test #'string=)
                              sum (load:histogram-count latency)))
              "~A" stages))
        (is (= 1003 (load:run-messages-sent run) (load:run-messages-received run)))
        (is (< 10000 (load:run-octets-sent run) 1000000))
        (is (< 10000 (load:run-octets-received run) 1000000))
        (is (plusp (load:run-cpu-ns run)))
        (is (eq :closed (load:run-loop-kind run)))
        (is (null (load:run-intended-rps run)))))))

(test requests-larger-than-the-windows
  "The end of a call's requests is sent once, however often there is room for more: of the only
request, which asks for the health of what nobody knows, and of the last of a stream."
  (with-server (address (list (make-instance 'examples:route-guide)
                              (make-instance 'grpc:health-service)))
    (flet ((statuses (method control)
             (statuses-of
              (load:perform-run
               (plan-for address :method method :total 20 :workers 4
                                 :data (format nil control
                                               (make-string 300000 :initial-element #\a)))))))
      (is (equal '("NotFound" 20) (statuses 'grpc.health.v1.health:check "{\"service\":\"~A\"}")))
      (is (equal '("OK" 20) (statuses 'routeguide.route-guide:route-chat
                                      "[{\"message\":\"~A\"},{\"message\":\"b\"}]"))))))

(test open-loop
  "Calls begin at the rate, and for the time, that is asked for."
  (with-server (address (make-instance 'examples:route-guide))
    (let ((run (load:perform-run (plan-for address :rate 2000 :duration-ns 500000000))))
      (is (equal '("OK" 1000) (statuses-of run)))
      (is (consistent-p run))
      (is (= 1000 (load:histogram-count (load:run-lateness run))))
      (is (= 2000 (load:run-intended-rps run)))
      (is (< 450000000 (load:run-duration-ns run) 20000000000)))))

(test the-rate-of-few-calls
  "The time of a run at a rate ends when the next call would have been due, not when the last one
began: two calls at fifty a second take two fiftieths, and are no faster than asked for."
  (with-server (address (make-instance 'examples:route-guide))
    (dolist (arguments '((:total 2) (:total 2 :generators 2 :connections 2) (:duration-ns 40000000)
                         (:total 2 :arrival :poisson)))
      (let ((run (load:perform-run (apply #'plan-for address :rate 50 arguments))))
        (is (= 2 (load:run-count run)))
        (unless (getf arguments :arrival)
          (is (<= 40000000 (load:run-duration-ns run)) "~S" arguments))))))

(test whether-the-loops-were-busy
  "is said of a run that was long enough, and never more than all of the time."
  (flet ((busy (duration-ns cpu-ns)
           (load::busy-share (load:make-run :duration-ns duration-ns :cpu-ns cpu-ns)
                             (load:make-plan :generators 2))))
    (is (= 0 (busy 300000 500000)))
    (is (= 1/4 (busy 1000000000 500000000)))
    (is (= 1 (busy 1000000000 2100000000)))))

(defun stand-still (generator)
  "Keep the loop of GENERATOR until 50 ms after its time is over."
  (loop while (< (base:monotonic-ns) (+ (load::generator-end-ns generator) 50000000))
        do (sb-thread:thread-yield)))

(test calls-that-were-due-at-the-end-begin
  "An open loop that stands still when its time is over has begun all calls that were due before."
  (with-server (address (make-instance 'examples:route-guide))
    (let* ((posted nil)
           (run (load:perform-run
                 (plan-for address :rate 20000 :duration-ns 500000000)
                 :on-progress (lambda (control)
                                (unless posted
                                  (setf posted t)
                                  (load::post-all control #'stand-still))))))
      (is-true posted)
      (is (equal '("OK" 10000) (statuses-of run)))
      (is (consistent-p run)))))

(test every-kind-of-call
  (with-server (address (make-instance 'examples:route-guide))
    (flet ((try (method data &rest arguments)
             (load:perform-run (apply #'plan-for address :method method :data data :total 20
                                                         :workers 4 arguments))))
      (let ((run (try 'routeguide.route-guide:list-features
                      "{\"lo\":{\"latitude\":400000000,\"longitude\":-750000000},
                        \"hi\":{\"latitude\":420000000,\"longitude\":-730000000}}")))
        (is (equal '("OK" 20) (statuses-of run)))
        (is (< 20 (load:run-messages-received run)))
        (is (= (load:run-messages-received run)
               (load:histogram-count (load:run-message-latency run)))
            "each has a latency of its own"))
      ;; after its last message the stream is left, which is no failure
      (let ((run (try 'routeguide.route-guide:list-features
                      "{\"lo\":{\"latitude\":400000000,\"longitude\":-750000000},
                        \"hi\":{\"latitude\":420000000,\"longitude\":-730000000}}"
                      :messages 1)))
        (is (equal '("OK" 20) (statuses-of run)))
        (is (<= 20 (load:run-messages-received run))))
      (let ((run (try 'routeguide.route-guide:record-route "[{\"latitude\":1},{\"latitude\":2}]")))
        (is (equal '("OK" 20) (statuses-of run)))
        (is (= 40 (load:run-messages-sent run)))
        (is (= 20 (load:run-messages-received run))))
      (let ((run (try 'routeguide.route-guide:record-route "[{\"latitude\":1}]" :messages 5
                      :interval-ns 2000000)))
        (is (equal '("OK" 20) (statuses-of run)))
        (is (= 100 (load:run-messages-sent run)))
        (is (<= 8000000 (load:histogram-min (load:run-latency run)))))
      (let ((run (try 'routeguide.route-guide:route-chat "[]")))
        (is (equal '("OK" 20) (statuses-of run)))
        (is (zerop (load:run-messages-sent run)))))))

(test every-call-can-be-told
  (with-server (address (make-instance 'examples:route-guide))
    (flet ((samples (count)
             (length (load:run-samples (load:perform-run (plan-for address :total 300 :workers 4
                                                                           :samples count))))))
      (is (= 300 (samples 300)))
      (is (<= 50 (samples 100) 100)))))

(test bursts-are-counted
  (with-server (address (make-instance 'examples:route-guide))
    (flet ((burst (&rest arguments)
             (load:run-burst (load:perform-run (apply #'plan-for address :rate 2000 :total 100
                                                                 arguments)))))
      (is (= 1 (burst)))
      (is (= 10 (burst :group-ns 5000000)))
      (is (= 1 (burst :group-ns 5000000 :group-above 2000))))))

(test warm-up
  "What begins in the warm-up, or is to be skipped, does not count; the rest does."
  (with-server (address (make-instance 'examples:route-guide))
    (let ((run (load:perform-run (plan-for address :rate 1000 :total 100
                                                   :warm-up-ns 200000000))))
      (is (equal '("OK" 100) (statuses-of run))))
    (let ((run (load:perform-run (plan-for address :workers 1 :total 100 :skip-first 30))))
      (is (equal '("OK" 70) (statuses-of run)))
      (is (consistent-p run)))))

(test nobody-listens
  (signals load:run-failed
    (load:perform-run (plan-for "127.0.0.1:1" :total 10 :workers 1))))
