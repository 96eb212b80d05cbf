;;;; Random numbers that are cheap to begin anew: input I of a run depends on the seed and on I
;;;; alone, so that one input can be made again without those before it. SplitMix64.

(in-package #:clgrpc.tests.fuzz)

(deftype word () '(unsigned-byte 64))

(defstruct (chance (:copier nil) (:predicate nil))
  (state 0 :type word))

(defvar *chance* (make-chance) "Where the next random number comes from.")

(declaim (inline mix))
(defun mix (z)
  (declare (type word z))
  (let* ((z (ldb (byte 64 0) (* (logxor z (ash z -30)) #xBF58476D1CE4E5B9)))
         (z (ldb (byte 64 0) (* (logxor z (ash z -27)) #x94D049BB133111EB))))
    (logxor z (ash z -31))))

(defun begin-input (seed index)
  "Make the numbers to come those of input INDEX of the run SEED."
  (setf (chance-state *chance*)
        (mix (ldb (byte 64 0) (+ (mix (ldb (byte 64 0) seed)) (* index #x9E3779B97F4A7C15))))))

(defun random-word ()
  (let ((chance *chance*))
    (mix (setf (chance-state chance)
               (ldb (byte 64 0) (+ (chance-state chance) #x9E3779B97F4A7C15))))))

(defun below (n)
  "A random integer from 0 to N - 1."
  (declare (type (integer 1 #.(expt 2 62)) n))
  (values (floor (ldb (byte 62 0) (random-word)) (ceiling (expt 2 62) n))))

(defun chance-p (n)
  "True once in N times."
  (zerop (below n)))

(defun pick (vector)
  "A random element of VECTOR."
  (aref vector (below (length vector))))

(defun random-octets (length)
  (let ((octets (make-octets length)))
    (dotimes (i length octets) (setf (aref octets i) (below 256)))))

(defmacro one-of (&body forms)
  "Evaluate one of FORMS, each as likely as the others."
  `(ecase (below ,(length forms))
     ,@(loop for form in forms for i from 0 collect `(,i ,form))))
