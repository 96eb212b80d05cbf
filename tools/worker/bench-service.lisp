;;;; grpc.testing.BenchmarkService, which a worker of gRPC's benchmarks serves: answers of as many
;;;; octets as the request asks for, in the reactive style, so that all calls may run inline.

(in-package #:clgrpc.tools)

(defun answer-of-size (request)
  "The grpc.testing.SimpleResponse to REQUEST, with as many octets as REQUEST asks for."
  (testing:make-simple-response
   :payload (payload-of-size (testing:simple-request-response-type request)
                             (testing:simple-request-response-size request))))

(defclass bench-service (testing:benchmark-service) ()
  (:documentation "UnaryCall and StreamingCall of grpc.testing.BenchmarkService."))

(defmethod grpc.testing.benchmark-service:unary-call ((service bench-service) request &key)
  (answer-of-size request))

(defmethod grpc.testing.benchmark-service:streaming-call ((service bench-service) call &key)
  (grpc:on-message call (lambda (request) (grpc:send call (answer-of-size request))))
  (grpc:on-half-close call (lambda () (grpc:finish call)))
  call)
