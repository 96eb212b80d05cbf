;;;; Several runs as one.

(in-package #:clgrpc.tests.load)

(defun round-of (latencies &key (interval-seconds 1) (seconds 2) (failed 0))
  "A run whose calls took LATENCIES, nanoseconds, and FAILED of them 1 ms, which failed."
  (let ((latency (histogram-of latencies))
        (failures (histogram-of (loop repeat failed collect 1000000))))
    (load:make-run
     :duration-ns (* seconds interval-seconds 1000000000) :count (+ failed (length latencies))
     :latency latency :all-latency (load:merge-histograms (list latency failures))
     :statuses (list* (load:make-status-row :name "OK" :count (length latencies)
                                            :latency latency)
                      (when (plusp failed)
                        (list (load:make-status-row :name "Unavailable" :code 14 :count failed
                                                    :latency failures
                                                    :messages (list (cons "gone" failed))))))
     :backends (list (load:make-share-row :name "a" :count (+ failed (length latencies))
                                            :errors failed :latency latency))
     :interval-seconds interval-seconds
     :seconds (coerce (loop for i below seconds collect (row-of i)) 'vector)
     :stages (list (cons "wait" latency)) :octets-sent 7 :connects 1 :cpu-ns 1000)))

(test rounds-as-one
  (let* ((rounds (list (round-of '(1000 2000)) (round-of '(3000) :failed 2)
                       (round-of '(9000) :failed 1)))
         (whole (load:merge-rounds rounds)))
    (is (eq (first rounds) (load:merge-rounds (list (first rounds)))))
    (is (equal '("OK" 4 "Unavailable" 3) (statuses-of whole)))
    (is (equal '(("gone" . 3))
               (load:status-row-messages (second (load:run-statuses whole)))))
    (is (= 7 (load:run-count whole)))
    (is (= 9000 (load:histogram-max (load:run-latency whole))))
    (is (= 4 (load:histogram-count (cdr (assoc "wait" (load:run-stages whole)
                                                :test #'string=)))))
    (is (= 6000000000 (load:run-duration-ns whole)))
    (is (= 6 (length (load:run-seconds whole))))
    (is (= 21 (load:run-octets-sent whole)))
    (is (= 3 (load:run-connects whole)))
    (is (= 3000 (load:run-cpu-ns whole)))
    (is (equal rounds (load:run-rounds whole)))))

(test the-last-reason-is-that-of-all-rounds
  "A round that ended by its deadline does not hide that SIGTERM ended the last one."
  (flet ((ended (reason)
           (let ((run (round-of '(1000))))
             (setf (load:run-ended-early run) reason)
             run)))
    (loop for (expected . reasons) in '((:terminated :deadline :terminated)
                                        (:deadline :deadline nil) (nil nil nil))
          do (is (eq expected (load:run-ended-early
                               (load:merge-rounds (mapcar #'ended reasons))))))))

(test rounds-of-different-rows
  "Rows of rounds are brought to the same length, and there are not more of them than of one run."
  (let ((whole (load:merge-rounds (list (round-of '(1000) :seconds 3)
                                        (round-of '(1000) :seconds 2 :interval-seconds 4)))))
    (is (= 4 (load:run-interval-seconds whole)))
    (is (= 3 (length (load:run-seconds whole))))
    (is (= 9 (reduce #'+ (load:run-seconds whole) :key #'load:second-row-count))))
  (let ((whole (load:merge-rounds (loop repeat 3 collect (round-of '(1000) :seconds 3000)))))
    (is (= 4 (load:run-interval-seconds whole)))
    (is (= 2250 (length (load:run-seconds whole))))))
