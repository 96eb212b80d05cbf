;;;; A service and a channel to it, for as long as a test runs.

(in-package #:clgrpc.tests.examples)

(defun call-with-service (function services options)
  (let ((server (apply #'grpc:start-server services :listen "127.0.0.1:0" options)))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (funcall function channel))
      (grpc:stop-server server :drain 5))))

(defmacro with-service ((channel services &rest options) &body body)
  "Run BODY with CHANNEL bound to a channel to a server of SERVICES, started with OPTIONS."
  `(call-with-service (lambda (,channel) ,@body) ,services (list ,@options)))

(defun place (latitude longitude)
  (routeguide:make-point :latitude latitude :longitude longitude))

(defun rectangle (latitude-1 longitude-1 latitude-2 longitude-2)
  (routeguide:make-rectangle :lo (place latitude-1 longitude-1)
                             :hi (place latitude-2 longitude-2)))

(defun feature-names (channel rectangle)
  "The names of the features that ListFeatures finds in RECTANGLE, in their order."
  (let ((names '()))
    (grpc:do-messages (feature (routeguide.route-guide:list-features channel rectangle :timeout 10)
                               (nreverse names))
      (push (routeguide:feature-name feature) names))))
