;;;; Mutations of octets without regard to what they mean.

(in-package #:clgrpc.tests.fuzz)

(defparameter *interesting-octets* (octets-of 0 1 #x7F #x80 #xFF #xFE #xC0 #xED #xF4 34 92 123 91))

(defun splice (octets start end with)
  "OCTETS with WITH in place of START to END."
  (concatenate 'octets (subseq octets 0 start) with (subseq octets end)))

(defun random-range (octets)
  "Start and end of a random part of OCTETS, more often a short one."
  (let* ((start (below (1+ (length octets))))
         (rest (- (length octets) start)))
    (values start (+ start (min rest (below (1+ (if (chance-p 4) rest 8))))))))

(defun mutate-octets (octets others)
  "OCTETS with one change; OTHERS, a vector of octets, is where parts to put in come from."
  (multiple-value-bind (start end) (random-range octets)
    (one-of
      (splice octets start end (octets-of))
      (splice octets start start (subseq octets start end))
      (splice octets start end (random-octets (below 9)))
      (splice octets start (min (length octets) (1+ start))
              (octets-of (pick *interesting-octets*)))
      (subseq octets 0 start)
      (let ((copy (copy-seq octets)))
        (when (plusp (length copy))
          (let ((i (below (length copy))))
            (setf (aref copy i) (logxor (aref copy i) (ash 1 (below 8))))))
        copy)
      (let ((other (pick others)))
        (multiple-value-bind (from to) (random-range other)
          (splice octets start end (subseq other from to)))))))
