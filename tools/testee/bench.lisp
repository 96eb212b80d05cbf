;;;; RouteGuide for benchmarks: this service does as little work as its calls allow, in the reactive
;;;; style, so that all of them may run inline. Features are searched one by one; benchmarks request
;;;; the first one.

(in-package #:clgrpc.testee)

(deftype places ()
  "Places as words, in a vector that can be searched fast."
  '(simple-array (unsigned-byte 64) (*)))

(declaim (inline place-word))
(defun place-word (latitude longitude)
  "The word of a place: the latitude in the high 32 bits, the longitude in the low 32 bits."
  (declare (type (signed-byte 32) latitude longitude))
  (logior (ash (ldb (byte 32 0) latitude) 32) (ldb (byte 32 0) longitude)))

(defclass bench-route-guide (examples:route-guide)
  ((places :reader bench-places
           :documentation "The place of each feature as a word (PLACE-WORD), in the order of the
features."))
  (:documentation "RouteGuide without waiting and without memory: RouteChat answers each note with
that note."))

(defmethod initialize-instance :after ((service bench-route-guide) &key)
  (setf (slot-value service 'places)
        (map 'places (lambda (feature)
                       (let ((location (routeguide:feature-location feature)))
                         (place-word (routeguide:point-latitude location)
                                     (routeguide:point-longitude location))))
             (examples:route-guide-features service))))

(define-hot find-place (point (places places)) (or null index)
  "The index of the first of PLACES that is at POINT, or nil if none is."
  (let ((word (place-word (routeguide:point-latitude point) (routeguide:point-longitude point))))
    (loop for i of-type index from 0 below (length places)
          when (= word (aref places i))
            return i)))

(defmethod routeguide.route-guide:get-feature ((service bench-route-guide) point &key)
  (if-let ((found (find-place point (bench-places service))))
    (svref (examples:route-guide-features service) found)
    (routeguide:make-feature :location point)))

(define-hot (signed-half :inline t) ((half (unsigned-byte 32))) (signed-byte 32)
  (- half (ash (ldb (byte 1 31) half) 32)))

(define-hot (latitude-of :inline t) ((place (unsigned-byte 64))) (signed-byte 32)
  (signed-half (ldb (byte 32 32) place)))

(define-hot (longitude-of :inline t) ((place (unsigned-byte 64))) (signed-byte 32)
  (signed-half (ldb (byte 32 0) place)))

(define-hot (in-order :inline t) ((a (signed-byte 32)) (b (signed-byte 32)))
    (values (signed-byte 32) (signed-byte 32))
  (if (< a b) (values a b) (values b a)))

(define-hot send-features-inside (call (features simple-vector) (places places) lo hi) null
  "Send each of FEATURES, which are at PLACES, that lies between the points LO and HI."
  (multiple-value-bind (south north)
      (in-order (routeguide:point-latitude lo) (routeguide:point-latitude hi))
    (multiple-value-bind (west east)
        (in-order (routeguide:point-longitude lo) (routeguide:point-longitude hi))
      (loop for i of-type index below (length places)
            when (and (<= south (latitude-of (aref places i)) north)
                      (<= west (longitude-of (aref places i)) east))
              do (grpc:send call (svref features i))))))

(defmethod routeguide.route-guide:list-features ((service bench-route-guide) rectangle &key call)
  (send-features-inside call (examples:route-guide-features service) (bench-places service)
                        (or (routeguide:rectangle-lo rectangle) (routeguide:make-point))
                        (or (routeguide:rectangle-hi rectangle) (routeguide:make-point))))

(defmethod routeguide.route-guide:record-route ((service bench-route-guide) call &key)
  (let ((trip (examples:make-trip))
        (places (bench-places service)))
    (grpc:on-message call (lambda (point)
                            (examples:add-point trip point (find-place point places))))
    (grpc:on-half-close call (lambda () (grpc:reply call (examples:trip-summary trip))))
    call))

(defmethod routeguide.route-guide:route-chat ((service bench-route-guide) call &key)
  (grpc:on-message call (lambda (note) (grpc:send call note)))
  (grpc:on-half-close call (lambda () (grpc:finish call)))
  call)
