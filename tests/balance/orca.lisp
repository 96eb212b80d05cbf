;;;; Load reports of servers: how they are read, and the stream of them.

(in-package #:clgrpc.tests.balance)
(in-suite :clgrpc.balance)

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
    (let ((vigil (balance::note-load (client:subchannel-note (member-to core 1)))))
      (is-true vigil)
      (with-log (:no-load-reports)
        (balance::vigil-ended vigil :unimplemented))
      (is-true (balance::vigil-vain vigil))
      (is (eq :ready (client:subchannel-state (member-to core 1))))
      (is (eq :ready (state core))))))

(test streams-of-reports-follow-the-config
  "gRFC A58: begun and ended with enableOobLoadReport, begun anew with another period."
  (with-core (core)
    (flet ((vigil (fields)
             (update core (format nil "[{\"weighted_round_robin\":{~A}}]" fields) 1)
             (balance::note-load (client:subchannel-note (member-to core 1))))
           (period (vigil)
             (clgrpc.protobuf:duration-in-seconds
              (xds.service.orca.v3:orca-load-report-request-report-interval
               (balance::vigil-request vigil)))))
      (is (null (vigil "")))
      (let ((first (vigil "\"enableOobLoadReport\":true")))
        (is (= 10 (period first)))
        (is (eq first (vigil "\"enableOobLoadReport\":true,\"blackoutPeriod\":\"1s\"")))
        (let ((second (vigil "\"enableOobLoadReport\":true,\"oobReportingPeriod\":\"0.5s\"")))
          (is (= 1/2 (period second)))
          (is (null (balance::vigil-watcher first)) "the first has ended")
          (is (null (vigil "")))
          (is (null (balance::vigil-watcher second)))
          (is (null (client:subchannel-watchers (member-to core 1)))))))))
