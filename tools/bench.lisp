;;;; The services that benchmarks call. They do the least that their calls can mean, in the reactive
;;;; style, so that all of them may run inline: RouteGuide, whose features are searched one by one
;;;; with the one that benchmarks ask for first, and grpc.testing.BenchmarkService, which answers
;;;; with as many octets as the request asks for.

(in-package #:clgrpc.tools)

(deftype places ()
  "Latitude and longitude of place after place, side by side to be searched."
  '(simple-array (signed-byte 32) (*)))

(defclass bench-route-guide (examples:route-guide)
  ((places :reader bench-places :documentation "Where the features are, in their order."))
  (:documentation "RouteGuide without waiting and without memory: RouteChat answers each note with
that note."))

(defmethod initialize-instance :after ((service bench-route-guide) &key)
  (setf (slot-value service 'places)
        (coerce (loop for feature across (examples:route-guide-features service)
                      for location = (routeguide:feature-location feature)
                      collect (routeguide:point-latitude location)
                      collect (routeguide:point-longitude location))
                'places)))

(define-hot find-place (point (places places)) (or null index)
  "Which of PLACES is at POINT, searched from the first."
  (let ((latitude (routeguide:point-latitude point))
        (longitude (routeguide:point-longitude point)))
    (declare (type (signed-byte 32) latitude longitude))
    (loop for i of-type index from 0 below (1- (length places)) by 2
          when (and (= latitude (aref places i)) (= longitude (aref places (1+ i))))
            return (ash i -1))))

(defmethod routeguide.route-guide:get-feature ((service bench-route-guide) point &key)
  (let ((found (find-place point (bench-places service))))
    (if found
        (svref (examples:route-guide-features service) found)
        (routeguide:make-feature :location point))))

(defmethod routeguide.route-guide:record-route ((service bench-route-guide) call &key)
  (let ((trip (examples:make-trip :features #())) ; the features are counted here
        (places (bench-places service))
        (known 0))
    (declare (type (signed-byte 32) known))
    (flet ((take (point)
             (when (find-place point places) (incf known))
             (examples:add-point trip point))
           (answer ()
             (let ((summary (examples:trip-summary trip)))
               (setf (routeguide:route-summary-feature-count summary) known)
               (grpc:reply call summary))))
      (grpc:on-message call #'take)
      (grpc:on-half-close call #'answer))
    call))

(defmethod routeguide.route-guide:route-chat ((service bench-route-guide) call &key)
  (grpc:on-message call (lambda (note) (grpc:send call note)))
  (grpc:on-half-close call (lambda () (grpc:finish call)))
  call)

(defclass bench-service (testing:benchmark-service) ()
  (:documentation "UnaryCall and StreamingCall of grpc.testing.BenchmarkService."))

(defmethod grpc.testing.benchmark-service:unary-call ((service bench-service) request &key)
  (answer-of-size request))

(defmethod grpc.testing.benchmark-service:streaming-call ((service bench-service) call &key)
  (grpc:on-message call (lambda (request) (grpc:send call (answer-of-size request))))
  (grpc:on-half-close call (lambda () (grpc:finish call)))
  call)

(defun answer-of-size (request)
  (testing:make-simple-response
   :payload (payload-of-size (testing:simple-request-response-type request)
                             (testing:simple-request-response-size request))))
