;;;; What RouteGuide must know of the earth. Points have latitude and longitude in units of 1e-7
;;;; degrees.

(in-package #:clgrpc.examples)

(defun point= (a b)
  "True if the points A and B are the same place."
  (and (= (routeguide:point-latitude a) (routeguide:point-latitude b))
       (= (routeguide:point-longitude a) (routeguide:point-longitude b))))

(defun inside-p (point rectangle)
  "True if POINT lies in RECTANGLE or on its edge, whichever way its corners are given. A corner
that is not set is the point 0, 0."
  (let ((lo (or (routeguide:rectangle-lo rectangle) (routeguide:make-point)))
        (hi (or (routeguide:rectangle-hi rectangle) (routeguide:make-point))))
    (flet ((between-p (a x b)
             (declare (type (signed-byte 32) a x b))
             (<= (min a b) x (max a b))))
      (and (between-p (routeguide:point-latitude lo) (routeguide:point-latitude point)
                      (routeguide:point-latitude hi))
           (between-p (routeguide:point-longitude lo) (routeguide:point-longitude point)
                      (routeguide:point-longitude hi))))))

(defconstant +earth-radius-metres+ 6371000d0 "The mean radius.")
(defconstant +radians-per-unit+ (* 1d-7 (/ pi 180)))

(declaim (inline radians))
(defun radians (units)
  (* (the (signed-byte 33) units) +radians-per-unit+))

(declaim (ftype (function (routeguide:point routeguide:point) (values double-float &optional))
                distance-metres))

(defun distance-metres (from to)
  "The great-circle distance between the points FROM and TO in metres, a double, by the haversine
formula."
  (let* ((latitude-1 (radians (routeguide:point-latitude from)))
         (latitude-2 (radians (routeguide:point-latitude to)))
         (longitudes (radians (- (the (signed-byte 32) (routeguide:point-longitude to))
                                 (the (signed-byte 32) (routeguide:point-longitude from)))))
         (across (sin (/ longitudes 2)))
         (up (sin (/ (- latitude-2 latitude-1) 2)))
         (h (+ (* up up) (* (cos latitude-1) (cos latitude-2) across across))))
    (declare (type double-float latitude-1 latitude-2 longitudes across up h))
    ;; rounding may carry h of opposite points past 1
    (* 2 +earth-radius-metres+ (asin (sqrt (the (double-float 0d0 1d0) (min 1d0 (max 0d0 h))))))))
