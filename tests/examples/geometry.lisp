(in-package #:clgrpc.tests.examples)

(defun near-p (metres from to)
  (< (abs (- metres (distance-metres from to))) 1))

(test distances
  (is (= 0 (distance-metres (place 409146138 -746188906) (place 409146138 -746188906))))
  (is (near-p (* pi 6371000 1/180) (place 0 0) (place 0 10000000)) "a degree of the equator")
  (is (near-p (* pi 6371000 1/180) (place 0 0) (place 10000000 0)) "a degree of a meridian")
  (is (near-p (* pi 6371000 1/360) (place 600000000 0) (place 600000000 10000000))
      "a degree of the parallel of 60 is close to half a degree of the equator")
  (is (near-p (* pi 6371000) (place 0 0) (place 0 1800000000)) "opposite points")
  (is (near-p (* pi 6371000) (place 450000000 100000000) (place -450000000 1900000000))
      "opposite points off the equator"))

(test inside-a-rectangle
  (let ((rectangle (rectangle 10 -20 30 40)))
    (is (inside-p (place 20 0) rectangle))
    (is (inside-p (place 10 -20) rectangle) "the corner belongs to it")
    (is (inside-p (place 30 40) rectangle))
    (is (not (inside-p (place 9 0) rectangle)))
    (is (not (inside-p (place 20 41) rectangle))))
  (is (inside-p (place 20 0) (rectangle 30 40 10 -20)) "corners the other way round")
  (is (inside-p (place 0 0) (routeguide:make-rectangle)) "corners that are not set"))
