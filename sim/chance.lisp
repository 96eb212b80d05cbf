;;;; Random numbers that depend on a seed alone: SplitMix64 (Steele, Lea and Flood).

(in-package #:clgrpc.sim)

(deftype word ()
  "The random numbers of a CHANCE."
  '(unsigned-byte 64))

(defstruct (chance (:constructor %make-chance (state)) (:copier nil) (:predicate nil))
  "A source of random numbers. See MAKE-CHANCE."
  (state 0 :type word))                 ; the state of splitmix64

(declaim (sb-ext:freeze-type chance))

(define-printer (chance chance)
  "~16,'0X" (chance-state chance))

(define-hot (mix :inline t) ((z word)) word
  (let* ((z (ldb (byte 64 0) (* (logxor z (ash z -30)) #xBF58476D1CE4E5B9)))
         (z (ldb (byte 64 0) (* (logxor z (ash z -27)) #x94D049BB133111EB))))
    (logxor z (ash z -31))))

(defun make-chance (seed)
  "Return a source of random numbers, whose sequence SEED, an integer, determines."
  (%make-chance (mix (ldb (byte 64 0) (* (1+ seed) #x9E3779B97F4A7C15)))))

(define-hot random-word ((chance chance)) (unsigned-byte 62)
  (ldb (byte 62 0)
       (mix (setf (chance-state chance)
                  (ldb (byte 64 0) (+ (chance-state chance) #x9E3779B97F4A7C15))))))

(define-hot below ((chance chance) (n (integer 1 #.(ash 1 61)))) (unsigned-byte 62)
  "Return a random integer of CHANCE from 0 to N - 1."
  (mod (random-word chance) n))

(defun between (chance least most)
  "Return a random integer of CHANCE from LEAST to MOST. Only one thread at a time may use CHANCE."
  (+ least (below chance (1+ (- most least)))))

(defun chance-p (chance n)
  "Return true at random, on average once in N calls, by CHANCE. Only one thread at a time may use
CHANCE."
  (zerop (below chance n)))

(defun pick (chance sequence)
  "Return a random element of SEQUENCE, by CHANCE. Only one thread at a time may use CHANCE."
  (elt sequence (below chance (length sequence))))
