;;;; The source of trace ids and span ids: SplitMix64, a counter that steps by a constant and is
;;;; mixed. A loop has a counter of its own, initialized from the loop's random state, so that
;;;; simulations repeat; threads that run no loop share one and step it atomically. No id is zero,
;;;; which W3C Trace Context and OpenTelemetry define as invalid.

(in-package #:clgrpc.trace)

(deftype id () "Half a trace id, or a span id." '(unsigned-byte 64))

(defstruct (ids (:constructor make-ids (seed)) (:copier nil))
  "A source of ids."
  (seed 0 :type sb-ext:word))           ; the counter; 0 until the source is first used

(declaim (sb-ext:freeze-type ids))

(defmethod print-object ((ids ids) stream)
  (print-unreadable-object (ids stream :type t :identity t)))

(define-hot (step-ids :inline t) ((ids ids) (shared boolean)) id
  "The next number of IDS; if SHARED is true, several threads may use IDS at once. A saved image
keeps the shared state, so the seed of the process is added to it."
  (mixed-word
   (if shared
       (ldb (byte 64 0) (+ (sb-ext:atomic-incf (ids-seed ids) +signed-golden-step+)
                           (hash-seed)))
       (setf (ids-seed ids) (ldb (byte 64 0) (+ (ids-seed ids) +golden-step+))))))

(define-hot (next-id :inline t) ((ids ids) (shared boolean)) id
  "A new id of IDS, other than 0; SHARED is as for STEP-IDS."
  (loop
    (let ((id (step-ids ids shared)))
      (declare (type id id))
      (unless (zerop id) (return id)))))

(defun chance-seed (random-state)
  "The number at which the counter of a source of ids begins, chosen by RANDOM-STATE."
  (1+ (random (1- (ash 1 64)) random-state)))

;;; Text: lower-case hexadecimal digits

(define-hot (hex-digit :inline t) ((n (unsigned-byte 4))) base-char
  (schar "0123456789abcdef" n))

(define-hot (digit-value :inline t) ((code octet)) (integer -1 15)
  "The value of the hexadecimal digit with the character CODE, -1 if it is not a digit; A to F are
not digits."
  (cond ((<= 48 code 57) (- code 48))
        ((<= 97 code 102) (- code 87))
        (t -1)))

(define-hot write-hex ((n id) (digits (integer 2 16)) (text simple-base-string) (at index)) null
  "Write N as DIGITS hexadecimal digits into TEXT from AT on."
  (loop for i of-type fixnum from (+ at digits -1) downto at
        do (setf (schar text i) (hex-digit (logand 15 n))
                 n (ash n -4)))
  nil)

(define-hot read-hex ((octets octets) (start index) (end index)) (or null id)
  "The number whose hexadecimal digits, 16 at most, are the octets from START to END; nil if one
octet is not such a digit."
  (let ((n 0))
    (declare (type id n))
    (loop for i of-type index from start below end
          for value = (digit-value (aref octets i))
          do (when (minusp value) (return-from read-hex nil))
             (setf n (logior (ldb (byte 64 0) (ash n 4)) value)))
    n))
