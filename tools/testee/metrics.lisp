;;;; `testee metrics`: both ends of calls, with metrics, for a runner that compares their metrics
;;;; for Prometheus with those of another gRPC. The testee serves grpc.testing.TestService, and
;;;; makes calls as `testee policy` does (policy-client.lisp), all counted in one metrics object.
;;;; The testee prints where it listens and where the metrics are.
(in-package #:clgrpc.testee)

(defun metadata-integer (call name)
  "The integer that CALL's metadata has under the key NAME, or nil if the metadata has no such key."
  (let ((text (cdr (assoc name (grpc:call-metadata call) :test #'string=))))
    (and text (parse-integer text :junk-allowed t))))

(defun refuse-as-asked (call request next)
  "An interceptor: if the metadata of CALL have a `fail-code`, fail CALL with that code, in the
first `fail-attempts` attempts or, without this number, in all attempts. A stream fails only after
all requests have come, because the number of their octets is then certain."
  (let ((code (metadata-integer call "fail-code")))
    (when (and code
               (< (or (metadata-integer call "grpc-previous-rpc-attempts") 0)
                  (or (metadata-integer call "fail-attempts") 100)))
      (when (typep request 'rpc:call)
        (grpc:do-messages (message request) message))
      (grpc:fail (grpc:code-status code) "as asked for"))
    (funcall next request)))

(defun be-measured (input output)
  "Serve, and meanwhile do the ops in the lines of the stream INPUT until it ends, as BE-DRIVEN
does."
  (let ((metrics (grpc:make-metrics :enable '("grpc.subchannel" "grpc.lb.wrr")
                                    :optional-labels '("grpc.disconnect_error"))))
    (program:call-with-metrics-page
     "127.0.0.1:0" nil metrics (make-instance 'grpc:health-service)
     (lambda (metrics-url)
       (let ((server (grpc:start-server (make-instance 'interop-service) :observer metrics
                                        :interceptors (list #'refuse-as-asked))))
         (unwind-protect
              (progn
                (write-sequence (string-octets (format nil "listening on ~A~%metrics at ~A~%"
                                                       (grpc:server-address server) metrics-url))
                                output)
                (finish-output output)
                (be-driven input output :observer metrics))
           (grpc:stop-server server :drain 0)))))))
