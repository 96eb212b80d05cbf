;;;; The RouteGuide service of the gRPC tutorials, with all four kinds of call, in the blocking
;;;; style: a handler reads and writes its call like a stream and may wait wherever it likes. The
;;;; service `bench` of the command clgrpc answers the same calls in the reactive style: see
;;;; tools/testee/bench.lisp.

(in-package #:clgrpc.examples)

(defun read-features (path)
  "Return the features in the JSON file PATH, in its order, as a vector of routeguide.Feature."
  (flet ((feature (entry)
           (flet ((member-of (object name) (cdr (assoc name object :test #'string=))))
             (let ((location (member-of entry "location")))
               (routeguide:make-feature
                :name (member-of entry "name")
                :location (routeguide:make-point
                           :latitude (member-of location "latitude")
                           :longitude (member-of location "longitude")))))))
    (with-open-file (stream path :element-type '(unsigned-byte 8))
      (let ((octets (make-array (file-length stream) :element-type '(unsigned-byte 8))))
        (read-sequence octets stream)
        (map 'vector #'feature (parse-json octets))))))

(defvar *known-features*
  (read-features (asdf:system-relative-pathname "clgrpc" "examples/features.json"))
  "The features that a ROUTE-GUIDE knows if it is given no others. They are read when this is
loaded, so a saved core needs no file.")

(defun find-feature (point features)
  "The feature of the vector FEATURES that lies at POINT, or nil."
  (declare (type simple-vector features))
  (let ((latitude (routeguide:point-latitude point))
        (longitude (routeguide:point-longitude point)))
    (find-if (lambda (feature)
               (let ((location (routeguide:feature-location feature)))
                 (and (= latitude (routeguide:point-latitude location))
                      (= longitude (routeguide:point-longitude location)))))
             features)))

(defun feature-at (point features)
  "The feature of the vector FEATURES at POINT, or one without a name there."
  (or (find-feature point features) (routeguide:make-feature :location point)))

(defclass route-guide (routeguide:route-guide)
  ((features :initarg :features :initform *known-features* :reader route-guide-features
             :documentation "A vector of routeguide.Feature.")
   (notes :initform (make-hash-table :test 'equal) :reader route-guide-notes)
   (lock :initform (sb-thread:make-mutex :name "route guide notes") :reader route-guide-lock))
  (:documentation "routeguide.RouteGuide with the semantics of the tutorials. It keeps every note of
RouteChat, so it is an example and no service for the world."))

;;; What is summed up along a route

(defstruct (trip (:copier nil))
  "What RecordRoute knows after some points."
  (start (get-internal-real-time) :type (unsigned-byte 62))
  (point-count 0 :type fixnum)
  (feature-count 0 :type fixnum)
  (metres 0d0 :type double-float)
  (last nil))

(defun add-point (trip point known)
  "Take note of POINT, the next of TRIP. KNOWN is true if a feature lies there."
  (incf (trip-point-count trip))
  (when known (incf (trip-feature-count trip)))
  (when (trip-last trip)
    (incf (trip-metres trip) (distance-metres (trip-last trip) point)))
  (setf (trip-last trip) point))

(defun trip-summary (trip)
  "What RecordRoute answers after the last point of TRIP."
  (routeguide:make-route-summary
   :point-count (trip-point-count trip)
   :feature-count (trip-feature-count trip)
   :distance (round (min (trip-metres trip) (float (1- (expt 2 31)) 0d0)))
   :elapsed-time (floor (- (get-internal-real-time) (trip-start trip))
                        internal-time-units-per-second)))

;;; One request, one reply: return the reply.

(defmethod routeguide.route-guide:get-feature ((service route-guide) point &key)
  (feature-at point (route-guide-features service)))

;;; One request, a stream of replies: send them.

(defmethod routeguide.route-guide:list-features ((service route-guide) rectangle &key call)
  (loop for feature across (route-guide-features service)
        when (inside-p (routeguide:feature-location feature) rectangle)
          do (grpc:send call feature)))

;;; A stream of requests, one reply: receive them, then return the reply.

(defmethod routeguide.route-guide:record-route ((service route-guide) points &key)
  (let ((trip (make-trip)))
    (grpc:do-messages (point points)
      (add-point trip point (find-feature point (route-guide-features service))))
    (trip-summary trip)))

;;; A stream each way: receive and send.

(defmethod routeguide.route-guide:route-chat ((service route-guide) notes &key call)
  (grpc:do-messages (note notes)
    (dolist (earlier (record-note service note))
      (grpc:send call earlier))))

(defun record-note (service note)
  "Keep NOTE; return all notes kept at its place, oldest first and NOTE last."
  (let* ((location (or (routeguide:route-note-location note) (routeguide:make-point)))
         (key (cons (routeguide:point-latitude location) (routeguide:point-longitude location)))
         (notes (route-guide-notes service)))
    (sb-thread:with-mutex ((route-guide-lock service))
      (reverse (push note (gethash key notes))))))
