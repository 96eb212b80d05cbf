;;;; Load reports of servers (gRFC A51): in the trailers of calls, as endpoint-load-metrics-bin, or
;;;; out of band, on a stream of OpenRcaService that is maintained while the server is connected.
;;;;
;;;; A report may have invalid numbers: 0 / 0 on the first sample of a meter is a NaN. So only
;;;; LOAD-NUMBER reads numbers of a report. LOAD-NUMBER ignores NaNs and infinities, as gRFC A114
;;;; specifies, and numbers that are not above 0. LOAD-NUMBER clamps all other numbers to the range
;;;; from +LEAST-LOAD+ to +MOST-LOAD+. The weight of a server is in that range as well. So no
;;;; product, quotient or sum of a few of them can overflow.

(in-package #:clgrpc.balance)

(defglobal **report-name** (ascii-octets "endpoint-load-metrics-bin"))

(defun parse-report (octets)
  "The load report in OCTETS, or nil if they are not one."
  (handler-case (protobuf:parse-message 'orca:orca-load-report octets)
    (protobuf:protobuf-error () nil)))

(defun trailers-report (trailers)
  "The load report in TRAILERS, a vector of fields; nil if they have no valid report."
  (when-let ((field (find **report-name** (the simple-vector trailers)
                          :key #'hpack:field-name :test #'equalp)))
    (handler-case (parse-report (decode-base64 (hpack:field-value-string field)))
      (invalid-base64 () nil))))

;;; The contents of a report

(defconstant +least-load+ 1d-9)
(defconstant +most-load+ 1d9)

(defun load-number (number)
  "NUMBER, a double from a server's report, clamped to the range from +LEAST-LOAD+ to +MOST-LOAD+;
nil if it is ignored."
  (and (finite-p number)
       (plusp number)
       (clamp number +least-load+ +most-load+)))

(defun report-weight (report penalty)
  "The weight of a server from REPORT, an ORCA load report (gRFC A58), from +LEAST-LOAD+ to
+MOST-LOAD+; nil if REPORT lacks the numbers for it. An error per call counts as the utilization
PENALTY, a double from 0 to +MOST-LOAD+."
  (let ((utilization (or (load-number (orca:orca-load-report-application-utilization report))
                         (load-number (orca:orca-load-report-cpu-utilization report))))
        (calls (load-number (orca:orca-load-report-rps-fractional report)))
        (errors (load-number (orca:orca-load-report-eps report))))
    (when (and utilization calls)
      (clamp (/ calls (+ utilization (if errors (* penalty (/ errors calls)) 0)))
             +least-load+ +most-load+))))

(defun watch-load (subchannel interval-ns function)
  "Call FUNCTION with a load report of SUBCHANNEL's server about every INTERVAL-NS, if the server
sends reports. Return the backend stream."
  (declare (type function function))
  (start-backend-stream subchannel
                        (method:stub-method
                         'xds.service.orca.v3.open-rca-service:stream-core-metrics)
                        (orca-service:make-orca-load-report-request
                         :report-interval (protobuf:seconds-duration (/ interval-ns
                                                                        +ns-per-second+)))
                        (lambda (event datum)
                          (case event
                            (:message (funcall function datum))
                            (:unimplemented
                             (log-event
                              :error :no-load-reports :server (subchannel-key subchannel)))))))
