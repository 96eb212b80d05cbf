;;;; The exporter against a collector that answers, fails, hangs and restarts.

(in-package #:clgrpc.tests.otlp)

(defun counted-metrics (count)
  "Metrics with one counter at COUNT, and that counter."
  (let* ((metrics (grpc:make-metrics))
         (counter (metrics:make-counter metrics "test.orders" :unit "{order}")))
    (metrics:add counter count)
    (values metrics counter)))

(defun number-in (request name)
  "The number of the metric NAME in REQUEST, which has one point; nil if it has none."
  (let ((metric (find name (metrics-of request) :key #'data:metric-name :test #'string=)))
    (and metric
         (data:number-data-point-value (elt (data:sum-data-points (data:metric-sum metric)) 0)))))

(defun orders-taken (collector)
  "The numbers of test.orders that COLLECTOR has received, the oldest first."
  (remove nil (mapcar (lambda (request) (number-in request "test.orders"))
                      (reverse (collector-taken collector)))))

(test metrics-come-at-once-when-flushed
  (with-collector (collector address)
    (multiple-value-bind (metrics counter) (counted-metrics 3)
      (with-exporter (exporter address :metrics metrics :headers '(("api-key" . "k")))
        (is-true (grpc:flush-exporter exporter :timeout +patience+))
        (metrics:add counter 4)
        (is-true (grpc:flush-exporter exporter :timeout +patience+))
        (is (equal '(3 7) (orders-taken collector)))
        (is (string= "k" (cdr (assoc "api-key" (collector-metadata collector) :test #'string=))))
        (is (plusp (statistic exporter :metrics :exported)))
        (is (zerop (statistic exporter :metrics :failures)))))))

(test metrics-come-by-themselves-and-at-the-end
  (with-collector (collector address)
    (multiple-value-bind (metrics counter) (counted-metrics 1)
      (let ((exporter (grpc:make-otlp-exporter address :metrics metrics :interval 1/20)))
        (eventually (<= 2 (length (orders-taken collector))))
        (metrics:add counter 1)
        (is-true (grpc:stop-exporter exporter :timeout +patience+))
        (is (= 2 (first (last (orders-taken collector)))))
        (let ((asked (collector-asked collector)))
          (is (= asked (settled (lambda () (collector-asked collector))))))
        (is-false (grpc:flush-exporter exporter :timeout 1))))))

(test the-exporters-own-metric-is-exported
  (with-collector (collector address)
    (with-exporter (exporter address :metrics (counted-metrics 1))
      (grpc:flush-exporter exporter :timeout +patience+)
      (grpc:flush-exporter exporter :timeout +patience+)
      (let* ((metric (find "clgrpc.otlp.items" (metrics-of (first (collector-taken collector)))
                           :key #'data:metric-name :test #'string=))
             (point (elt (data:sum-data-points (data:metric-sum metric)) 0)))
        (is (equal '(("signal" . "metrics") ("outcome" . "exported"))
                   (attributes-of (data:number-data-point-attributes point))))
        (is (plusp (data:number-data-point-value point)))))))

(test what-may-pass-is-tried-again-with-numbers-of-then
  (with-log ()
    (with-collector (collector address (lambda (number)
                                         (when (< number 2)
                                           (grpc:fail :unavailable "not yet"
                                                      :details (retry-info 1/50)))))
      (multiple-value-bind (metrics counter) (counted-metrics 1)
        (setf (collector-behaviour collector)
              (let ((old (collector-behaviour collector)))
                (lambda (number)
                  (when (= number 1) (metrics:add counter 1))
                  (funcall old number))))
        (with-exporter (exporter address :metrics metrics)
          (is-true (grpc:flush-exporter exporter :timeout +patience+))
          (is (equal '(2) (orders-taken collector)))
          (is (= 3 (collector-asked collector)))
          (is (= 2 (statistic exporter :metrics :failures)))
          (is (zerop (statistic exporter :metrics :dropped)))
          (is (= 1 (length (events-of :otlp-export-failed))) "the failure is logged once")
          (is (= 1 (length (events-of :otlp-export-works)))))))))

(test what-does-not-pass-is-dropped-and-counted
  (with-log (:otlp-dropped :call-failed)
    (with-collector (collector address (lambda (number)
                                         (when (zerop number)
                                           (grpc:fail :invalid-argument "nonsense"))))
      (with-exporter (exporter address :metrics (counted-metrics 1))
        (is-true (grpc:flush-exporter exporter :timeout +patience+))
        (is (= 1 (collector-asked collector)))
        (is (plusp (statistic exporter :metrics :dropped)))
        (is (zerop (statistic exporter :metrics :exported)))
        (is (search "nonsense" (getf (first (events-of :otlp-dropped)) :reason)))))))

(test partial-success-is-counted
  (with-log ()
    (with-collector (collector address (lambda (number) (when (zerop number)
                                                          (values 1 "too old"))))
      (with-exporter (exporter address :metrics (counted-metrics 1))
        (is-true (grpc:flush-exporter exporter :timeout +patience+))
        (is (= 1 (collector-asked collector)) "the request is not sent again")
        (is (= 1 (statistic exporter :metrics :rejected)))
        (is (string= "too old" (getf (first (events-of :otlp-rejected)) :reason)))))))

(test a-collector-that-hangs-holds-nothing-up
  (with-log ()
    (let ((let-go (make-signal)))
      (with-collector (collector address (fn (_number)
                                           (await-signal let-go)
                                           nil))
        (let ((exporter (grpc:make-otlp-exporter address :metrics (counted-metrics 1)
                                                         :timeout 1/10)))
          (is-false (grpc:flush-exporter exporter :timeout 1/2))
          (is (> 5 (elapsed-seconds (is-false (grpc:stop-exporter exporter :timeout 1/10)))))
          (is (plusp (statistic exporter :metrics :failures)))
          (signal-it let-go)
          (loop repeat 20 do (signal-it let-go)))))))

(test a-collector-that-comes-later-is-found
  (with-log ()
    (let ((port (with-collector (collector address) address)))
      (multiple-value-bind (metrics counter) (counted-metrics 1)
        (with-exporter (exporter port :metrics metrics :timeout 1/5 :interval 1/10)
          (is-false (grpc:flush-exporter exporter :timeout 1/2))
          (metrics:add counter 1)
          (let ((collector (make-instance 'fake-collector)))
            (with-started (server (grpc:start-server (list collector) :listen port) :drain 0)
              (is-true (grpc:flush-exporter exporter :timeout +patience+))
              (is (= 2 (first (last (orders-taken collector))))))))))))

(test exporters-check-their-arguments
  (signals grpc:misuse (grpc:make-otlp-exporter "127.0.0.1:1"))
  (signals grpc:misuse (grpc:make-otlp-exporter "127.0.0.1:1" :metrics 7))
  ;; headers have the form of the environment's; they may be secret
  (handler-case (fail "~S" (grpc:make-otlp-exporter "127.0.0.1:1" :metrics (grpc:make-metrics)
                                                                  :headers "key=s3cret"))
    (grpc:misuse (error) (is (not (search "s3cret" (princ-to-string error))))))
  (signals grpc:misuse (grpc:make-otlp-exporter "127.0.0.1:1" :metrics (grpc:make-metrics)
                                                              :interval 0)))

;;; Spans

(defun end-spans (tracing count &optional (name "work"))
  (loop repeat count do (grpc:with-span (name :tracing tracing :parent nil))))

(defun spans-taken (collector)
  (loop for request in (collector-taken collector)
        append (loop for resource
                       across (trace-collector:export-trace-service-request-resource-spans request)
                     append (loop for scope across (spans:resource-spans-scope-spans resource)
                                  append (map 'list #'spans:span-span-id
                                              (spans:scope-spans-spans scope))))))

(defun distinct (ids)
  (length (remove-duplicates ids :test #'equalp)))

(test spans-come-in-batches
  (with-collector (collector address)
    (let ((tracing (grpc:make-tracing :sampler :always-on)))
      (with-exporter (exporter address :tracing tracing :batch-spans 10)
        (end-spans tracing 25)
        (is-true (grpc:flush-exporter exporter :timeout +patience+))
        (is (= 25 (distinct (spans-taken collector)) (length (spans-taken collector))))
        (is (= 3 (collector-asked collector)))
        (is (= 25 (statistic exporter :traces :exported)))))))

(test a-span-that-cannot-be-encoded-is-lost-alone
  "The others of its batch arrive by one request; the lost span is counted and logged."
  (with-log (:otlp-dropped)
    (with-collector (collector address)
      (let ((tracing (grpc:make-tracing :sampler :always-on)))
        (with-exporter (exporter address :tracing tracing)
          (end-spans tracing 3)
          (end-spans tracing 1 "bad")
          (end-spans tracing 3)
          (with-replaced (('otlp::span-message (lambda (original span)
                                                 (if (string= "bad" (trace:span-name span))
                                                     (error "there is no such message")
                                                     (funcall original span)))))
            (is-true (grpc:flush-exporter exporter :timeout +patience+)))
          (is (= 6 (distinct (spans-taken collector))))
          (is (= 6 (statistic exporter :traces :exported)))
          (is (= 1 (statistic exporter :traces :dropped)))
          (is (= 1 (collector-asked collector) (statistic exporter :traces :requests)))
          (is (= 1 (length (events-of :otlp-dropped)))))))))

(defun end-long-spans (tracing &rest lengths)
  "End a span for each of LENGTHS, with as many characters."
  (dolist (length lengths)
    (grpc:with-span ("long" :tracing tracing :parent nil)
      (loop for left = length then (- left 1000000)
            for i from 0
            while (plusp left)
            do (grpc:set-span-attribute (format nil "text~D" i)
                                        (make-string (min left 1000000)
                                                     :initial-element #\x
                                                     :element-type 'base-char))))))

(test a-batch-that-is-too-long-is-divided
  "The collector accepts 4 MiB: the spans arrive in several requests. Only a span that is too long
alone is lost, and counted."
  (with-log (:otlp-dropped)
    (with-collector (collector address)
      (let ((tracing (grpc:make-tracing :sampler :always-on :max-attribute-characters 1000000)))
        (with-exporter (exporter address :tracing tracing)
          (end-long-spans tracing 900000 900000 900000 900000 900000 5000000 1 1 1)
          (is-true (grpc:flush-exporter exporter :timeout +patience+))
          (is (= 8 (distinct (spans-taken collector)) (length (spans-taken collector))))
          (is (= 8 (statistic exporter :traces :exported)))
          (is (= 1 (statistic exporter :traces :dropped)))
          (is (zerop (statistic exporter :traces :waiting)))
          (is (= (+ (collector-asked collector) (statistic exporter :traces :failures))
                 (statistic exporter :traces :requests)))
          (is (= 1 (length (events-of :otlp-divided)) (length (events-of :otlp-dropped)))))))))

(test a-collector-without-room-gets-no-more-requests
  "A short batch is not divided, nor is a batch for which the collector gives a delay."
  (loop for (count failure) in `((1 ,(lambda () (grpc:fail :resource-exhausted "no room")))
                                 (2 ,(lambda ()
                                       (grpc:fail :resource-exhausted "no room"
                                                  :details (retry-info 1/10)))))
        do (with-log (:otlp-dropped :call-failed)
             (with-collector (collector address (lambda (number)
                                                  (when (zerop number) (funcall failure))))
               (let ((tracing (grpc:make-tracing :sampler :always-on
                                                 :max-attribute-characters 1000000)))
                 (with-exporter (exporter address :tracing tracing)
                   (if (= count 1)
                       (end-spans tracing 100)
                       (end-long-spans tracing 900000 900000))
                   (is-true (grpc:flush-exporter exporter :timeout +patience+))
                   (is (= count (collector-asked collector)))
                   (is (= (if (= count 1) 100 0) (statistic exporter :traces :dropped)))))))))

(test a-full-batch-hastens-the-export
  (with-collector (collector address)
    (let ((tracing (grpc:make-tracing :sampler :always-on :batch-spans 20)))
      (with-exporter (exporter address :tracing tracing :span-interval 3600)
        (end-spans tracing 20)
        (eventually (= 20 (length (spans-taken collector))))))))

(test an-exporter-takes-the-place-of-another
  "The end of the first exporter does not keep full batches from the second."
  (with-collector (collector address)
    (let* ((tracing (grpc:make-tracing :sampler :always-on :batch-spans 20))
           (first (grpc:make-otlp-exporter address :tracing tracing :span-interval 3600)))
      (with-exporter (second address :tracing tracing :span-interval 3600)
        (is-true (grpc:stop-exporter first :timeout +patience+))
        (end-spans tracing 20)
        (eventually (= 20 (length (spans-taken collector))))
        (is-true (grpc:stop-exporter second :timeout +patience+))
        (is (null (trace:on-batch tracing)))))))

(defun check-exporter-goes-on (function)
  "Check that an exporter continues if FUNCTION, which does not return, is called where it takes the
data to export, and where it exports them."
  (with-log (:otlp-dropped :otlp-error)
    (let* ((full t)
           (pipeline (otlp::make-pipeline
                      :take (lambda ()
                              (when (eq :take full) (funcall function))
                              (list (otlp::make-batch '() 7)))
                      :request #'identity :count (constantly nil) :overflow (constantly 0)
                      :export (fn (_channel _request &rest _options)
                                (when full (funcall function))
                                (values 0 "")))))
      (flet ((try ()
               ;; there is no channel whose pause could be ended
               (setf (otlp::pipeline-failures pipeline) 0)
               (otlp::try-round pipeline)))
        (is (null (try)))
        (is (= 7 (otlp::tally-dropped (otlp::pipeline-tally pipeline))))
        (setf full :take)
        (is (plusp (try)) "the export is tried again later")
        (is (= 1 (length (events-of :otlp-dropped)) (length (events-of :otlp-error))))
        (setf full nil)
        (is (null (try)))
        (is (= 7 (otlp::tally-exported (otlp::pipeline-tally pipeline))))))))

(test a-full-heap-does-not-end-the-exporter
  "It is logged, the batch is counted as dropped, and the thread continues with the next round, as
after an error that cannot be printed."
  (check-exporter-goes-on (lambda () (error 'storage-condition)))
  (check-exporter-goes-on (lambda () (error 'support:unprintable))))

(test spans-wait-for-a-collector-and-the-rest-is-counted
  (with-log (:otlp-dropped)
    (let ((address (with-collector (collector address) address))
          (tracing (grpc:make-tracing :sampler :always-on :max-queued-spans 50)))
      (with-exporter (exporter address :tracing tracing :timeout 1/10 :span-interval 1/20)
        (end-spans tracing 30)
        ;; 30 spans are taken and wait; no further spans are taken meanwhile
        (eventually (= 30 (statistic exporter :traces :waiting)))
        (end-spans tracing 70)
        (is (= 20 (statistic exporter :traces :overflowed)))
        (is (= 30 (statistic exporter :traces :waiting)))
        (let ((collector (make-instance 'fake-collector)))
          (with-started (server (grpc:start-server (list collector) :listen address) :drain 0)
            (is-true (grpc:flush-exporter exporter :timeout +patience+))
            (is (= 80 (distinct (spans-taken collector))
                   (statistic exporter :traces :exported)))
            (is (= 20 (statistic exporter :traces :overflowed)))
            (is (zerop (statistic exporter :traces :dropped)))
            (is (= 20 (getf (first (events-of :otlp-queue-full)) :total)))))))))

(test what-a-stopped-exporter-could-not-send-is-counted
  (with-log ()
    (let* ((address (with-collector (collector address) address))
           (tracing (grpc:make-tracing :sampler :always-on :max-queued-spans 50))
           (exporter (grpc:make-otlp-exporter address :tracing tracing :timeout 1/10)))
      (end-spans tracing 60)
      (is-false (grpc:stop-exporter exporter :timeout 1/5))
      (is (= 50 (statistic exporter :traces :dropped)))
      (is (= 10 (statistic exporter :traces :overflowed)))
      (is (zerop (statistic exporter :traces :waiting)))
      (with-exporter (next address :tracing tracing)
        (is (zerop (statistic next :traces :overflowed)) "the spans are not counted again")))))

(test every-span-has-one-fate
  ;; a collector that fails in all ways while spans come from several threads
  (with-log (:otlp-dropped :call-failed)
    (with-collector (collector address
                     (lambda (number)
                       (case (mod number 15)
                         (0 (grpc:fail :unavailable "later" :details (retry-info 1/1000)))
                         ((2 7 12) (values 1 "one is bad"))
                         ((4 9 14) (grpc:fail :invalid-argument "never")))))
      (let ((tracing (grpc:make-tracing :sampler :always-on :max-queued-spans 200)))
        (with-exporter (exporter address :tracing tracing :batch-spans 7 :span-interval 1/100)
          (with-threads (thread 3)
            (loop repeat 100
                  do (end-spans tracing 10)
                     (sb-thread:thread-yield)))
          (is-true (grpc:flush-exporter exporter :timeout +patience+))
          (flet ((fate (name) (statistic exporter :traces name)))
            (is (= 3000 (+ (fate :exported) (fate :rejected) (fate :dropped) (fate :overflowed)))
                "~S" (grpc:exporter-statistics exporter))
            (is (= (length (spans-taken collector)) (+ (fate :exported) (fate :rejected))))
            (is (plusp (fate :dropped)))
            (is (zerop (fate :waiting)))))))))

(test what-alerts-need-is-there-from-the-begin
  "Each outcome of each signal is a series at 0; while a collector is away, the gauge has the
waiting items, and the log has the reason."
  (with-log ()
    (let* ((metrics (grpc:make-metrics)) (tracing (grpc:make-tracing))
           (exporter (grpc:make-otlp-exporter "127.0.0.1:1" :metrics metrics :tracing tracing
                                                            :timeout 1/10 :span-interval 1/10)))
      (unwind-protect
           (flet ((values-of (name)
                    (let ((family (find name (metrics:collect metrics) :key #'metrics:family-name
                                                                       :test #'string=)))
                      (loop for point in (and family (metrics:family-points family))
                            collect (cons (mapcar #'cdr (metrics:point-attributes point))
                                          (metrics:point-value point))))))
             (is (= 8 (length (values-of "clgrpc.otlp.items"))))
             (is (= 4 (length (values-of "clgrpc.otlp.exports"))))
             (is (equal 0 (cdr (assoc '("traces" "overflowed") (values-of "clgrpc.otlp.items")
                                      :test #'equal))))
             (grpc:with-span ("lost" :tracing tracing))
             (eventually (plusp (cdr (assoc '("traces" "failed") (values-of "clgrpc.otlp.exports")
                                            :test #'equal))))
             (is (equal '(("traces") . 1) (assoc '("traces") (values-of "clgrpc.otlp.waiting")
                                                 :test #'equal)))
             ;; it is logged after it is counted
             (eventually (events-of :otlp-export-failed))
             (is (search "refused" (getf (first (events-of :otlp-export-failed)) :reason))))
        (grpc:stop-exporter exporter :timeout 0)))))

(defun idle-pipeline ()
  "A pipeline without a thread, which has nothing to send."
  (otlp::make-pipeline :take #'list :request #'identity :export #'list :count #'list
                       :overflow (constantly 0)))

(test rounds-and-reports-of-a-pipeline-have-their-times
  "A round is an interval after the one before, unless that time is past or the round came early;
the log has each event of a pipeline once a minute."
  (let* ((now 100) (pipeline (idle-pipeline))
         (loop:*world* (loop:make-world :clock (lambda () now)
                                        :make-random (lambda () (make-random-state t))
                                        :network (loop:make-network))))
    (loop for (due next) in '((150 150) (101 101) (100 160) (41 101) (40 160) (10 160))
          do (is (= next (otlp::next-round due 60))))
    (is (equal '(1 0 1 0 1 1)
               (loop for (event seconds) in '((:a 0) (:a 59) (:b 59) (:a 59.9) (:a 60) (:b 119))
                     collect (with-logged (events :a :b)
                               (setf now (seconds-ns seconds))
                               (otlp::tell pipeline :warning event)
                               (length (events))))))))

(test the-lock-of-a-pipeline-is-taken
  (let ((pipeline (idle-pipeline)))
    (is (null (support:lockless (otlp::pipeline-lock pipeline)
                                `(otlp::await-round ,pipeline 0 0) `(otlp::end-flush ,pipeline 1)
                                `(otlp::ring-pipeline ,pipeline)
                                `(otlp::ask-for-flush ,pipeline)
                                `(otlp::await-flush ,pipeline 1 0)
                                `(otlp::stop-pipeline ,pipeline))))))
