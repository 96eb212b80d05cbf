;;;; Load reports of servers (gRFC A51): in the trailers of calls, as endpoint-load-metrics-bin, or
;;;; out of band, on a stream of OpenRcaService that is kept up while the server is connected.

(in-package #:clgrpc.balance)

(defglobal **report-name** (ascii-octets "endpoint-load-metrics-bin"))

(defun parse-report (octets)
  "The load report that OCTETS are, or nil."
  (handler-case (protobuf:parse-message 'orca:orca-load-report octets)
    (protobuf:protobuf-error () nil)))

(defun trailers-report (trailers)
  "The load report that TRAILERS, a vector of fields, bring, or nil."
  (let ((field (find **report-name** (the simple-vector trailers)
                     :key #'hpack:field-name :test #'equalp)))
    (when field
      (handler-case (parse-report (decode-base64 (hpack:field-value-string field)))
        (invalid-base64 () nil)))))

(defun watch-load (subchannel interval-ns function)
  "Have FUNCTION called with a load report of SUBCHANNEL's server each INTERVAL-NS, if it gives any.
Return the vigil."
  (declare (type function function))
  (keep-vigil subchannel
              (service:find-rpc-method
               'xds.service.orca.v3.open-rca-service:stream-core-metrics)
              (orca-service:make-orca-load-report-request
               :report-interval (protobuf:seconds-duration (/ interval-ns +ns-per-second+)))
              (lambda (event datum)
                (case event
                  (:message (funcall function datum))
                  (:unimplemented
                   (log-event :error :no-load-reports :server (subchannel-key subchannel)))))))
