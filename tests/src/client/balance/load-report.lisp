;;;; Load reports of servers: reading them, and the stream of reports.

(in-package #:clgrpc.tests.balance)

(defun report-trailers (&rest values)
  "Trailers whose load reports are VALUES, text."
  (coerce (cons (clgrpc.hpack:string-field "x-other" "1")
                (loop for value in values
                      collect (clgrpc.hpack:string-field "endpoint-load-metrics-bin" value)))
          'simple-vector))

(test reports-in-trailers
  (let ((octets (clgrpc.protobuf:serialize
                 (orca:make-orca-load-report :cpu-utilization 0.25d0 :rps-fractional 100d0))))
    (let ((report (balance::trailers-report (report-trailers (encode-base64 octets)))))
      (is (= 0.25d0 (orca:orca-load-report-cpu-utilization report)))
      (is (= 100d0 (orca:orca-load-report-rps-fractional report))))
    (is (null (balance::trailers-report (report-trailers))))
    (is (null (balance::trailers-report (report-trailers "!!!"))) "no base64")
    (is (null (balance::trailers-report (report-trailers "CQ"))) "no message")))

(test reports-that-are-not-implemented-are-no-fault
  "gRFC A51: calls go on, nothing is reported, and it is said once."
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{\"enableOobLoadReport\":true}}]" 1)
    (bring core :ready 1)
    (let ((backend-stream (balance::note-load (client:subchannel-note (member-to core 1)))))
      (is-true backend-stream)
      (with-log (:no-load-reports)
        (balance::backend-stream-ended backend-stream :unimplemented))
      (is-true (balance::backend-stream-vain backend-stream))
      (is (eq :ready (client:subchannel-state (member-to core 1))))
      (is (eq :ready (state core))))))

(test streams-of-reports-follow-the-config
  "gRFC A58: begun and ended with enableOobLoadReport, begun anew with another period."
  (with-core (core)
    (flet ((backend-stream (fields)
             (update core (format nil "[{\"weighted_round_robin\":{~A}}]" fields) 1)
             (balance::note-load (client:subchannel-note (member-to core 1))))
           (period (backend-stream)
             (clgrpc.protobuf:duration-in-seconds
              (xds.service.orca.v3:orca-load-report-request-report-interval
               (balance::backend-stream-request backend-stream)))))
      (is (null (backend-stream "")))
      (let ((first (backend-stream "\"enableOobLoadReport\":true")))
        (is (= 10 (period first)))
        (is (eq first (backend-stream "\"enableOobLoadReport\":true,\"blackoutPeriod\":\"1s\"")))
        (let
         ((second (backend-stream "\"enableOobLoadReport\":true,\"oobReportingPeriod\":\"0.5s\"")))
          (is (= 1/2 (period second)))
          (is (null (balance::backend-stream-watcher first)) "the first stream has ended")
          (is (null (backend-stream "")))
          (is (null (balance::backend-stream-watcher second)))
          (is (null (client:subchannel-watchers (member-to core 1)))))))))

;;; What reports say

(defparameter *bad-doubles*
  (list (sb-kernel:make-double-float #x7FF80000 0) (sb-kernel:make-double-float #x7FF00000 1)
        sb-ext:double-float-positive-infinity sb-ext:double-float-negative-infinity
        -1d0 -0d0 0d0 most-negative-double-float)
  "Numbers that are ignored in a report: NaNs, infinities, numbers that are not above 0.")

(defparameter *wild-doubles*
  (list least-positive-double-float 1d-310 6d-209 1d-9 0.5d0 1d9 9d99 1d300
        most-positive-double-float)
  "Numbers that count in a report although they are extreme.")

(defun round-trip (report)
  "REPORT as it arrives in a server's trailers."
  (balance::trailers-report
   (report-trailers (encode-base64 (clgrpc.protobuf:serialize report)))))

(test any-report-gives-a-weight-in-range-or-none
  "Every mixture of doubles in the four fields that count is tried; the other fields do not matter."
  (let ((all (append *bad-doubles* *wild-doubles*)) (given 0))
    (dolist (application all)
      (dolist (cpu all)
        (dolist (calls all)
          (dolist (errors all)
            (let ((weight (balance::report-weight
                           (orca:make-orca-load-report
                            :application-utilization application :cpu-utilization cpu
                            :rps-fractional calls :eps errors)
                           1d9)))
              (when weight (incf given))
              (unless (if (and (member calls *wild-doubles*)
                               (or (member application *wild-doubles*)
                                   (member cpu *wild-doubles*)))
                          (typep weight '(double-float 1d-9 1d9))
                          (null weight))
                (fail "~S of ~S" weight (list application cpu calls errors))))))))
    ;; 17 × 17 utilizations, but for those of which neither counts; 9 rates of calls, 17 of errors
    (is (= (* (- (* 17 17) (* 8 8)) 9 17) given))))

(test what-else-a-report-has-does-not-matter
  (dolist (double (append *bad-doubles* *wild-doubles*))
    (let ((map (list (cons "x" double))))
      (is (= 200 (balance::report-weight
                  (round-trip (orca:make-orca-load-report
                               :cpu-utilization 0.5d0 :rps-fractional 100d0 :mem-utilization double
                               :request-cost map :utilization map :named-metrics map))
                  1d0))
          "~S" double))))
