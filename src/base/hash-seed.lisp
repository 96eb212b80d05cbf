;;;; The seed of hash functions over data that peers send. The seed differs in every process, so
;;;; that no peer can choose keys that collide; nothing observable depends on it.

(in-package #:clgrpc.base)

(declaim (type (unsigned-byte 62) **hash-seed**))
(defglobal **hash-seed** 0)

(defun renew-hash-seed ()
  "Choose another seed. The seed is renewed only when a process starts. Because the process may have
started from a saved core, a table must keep the seed with which its hashes were made."
  (setf **hash-seed** (random (ash 1 62) (make-random-state t))))

(declaim (inline hash-seed))
(defun hash-seed ()
  "The seed, an (unsigned-byte 62)."
  **hash-seed**)

(renew-hash-seed)
(pushnew 'renew-hash-seed sb-ext:*init-hooks*)

;;; SplitMix64, a cheap source of random numbers: it mixes a counter that grows by a constant

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +golden-step+ #x9E3779B97F4A7C15
    "The step of SplitMix64's counter. It is odd, so that the counter takes all values."))

(defconstant +signed-golden-step+ (- +golden-step+ (ash 1 64))
  "+GOLDEN-STEP+ as the signed number that ATOMIC-INCF takes.")

(define-hot (mixed-word :inline t) ((word (unsigned-byte 64))) (unsigned-byte 64)
  "Return the value of SplitMix64's mixing function for WORD. From numbers that differ by
+GOLDEN-STEP+ this function makes numbers that look random."
  (flet ((multiplied (word by)
           (declare (type (unsigned-byte 64) word by))
           (ldb (byte 64 0) (* word by))))
    (declare (inline multiplied))
    (let* ((word (multiplied (logxor word (ash word -30)) #xBF58476D1CE4E5B9))
           (word (multiplied (logxor word (ash word -27)) #x94D049BB133111EB)))
      (declare (type (unsigned-byte 64) word))
      (logxor word (ash word -31)))))
