;;;; Base64 (RFC 4648 sections 4 and 5). gRPC sends binary metadata (whose names end in -bin) and
;;;; status details in base64 without padding, and must accept it with and without padding ("Binary
;;;; headers" in the gRPC over HTTP/2 document).
;;;;
;;;; Invariants: nothing outside the alphabet is skipped, not even white space; padding is complete
;;;; or missing; the spare bits of the last group are ignored, as the RFC allows (3.5).

(in-package #:clgrpc.base)

(define-condition invalid-base64 (clgrpc-error)
  ((position :initarg :position :reader invalid-base64-position)) ; of the first wrong character
  (:report (lambda (condition stream)
             (format stream "Invalid base64 at character ~D." (invalid-base64-position condition))))
  (:documentation "A text that must be base64 is not base64. POSITION is the offset of the first
wrong character or, if the text ends too early, the text's length."))

(document-functions
  invalid-base64-position "The offset of the first character that is not base64.")

(declaim (type (simple-base-string 64) **base64-digits**)
         (type (simple-array (unsigned-byte 8) (256)) **base64-values** **any-base64-values**))
(defglobal **base64-digits**
  (coerce "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/" 'simple-base-string))
(defglobal **base64-values**
  (let ((values (make-array 256 :element-type 'octet :initial-element 255)))
    (loop for digit across **base64-digits**
          for value from 0
          do (setf (aref values (char-code digit)) value))
    values))

(defglobal **any-base64-values**
  (let ((values (copy-seq **base64-values**)))
    (setf (aref values (char-code #\-)) 62
          (aref values (char-code #\_)) 63)
    values))

(define-hot encode-base64 ((octets octets) &key (start index 0) (end (or null index) nil)
                           (padding boolean nil))
    simple-base-string
  "Return the octets START to END (default: all) in base64. The last group is padded with = only if
PADDING is true; gRPC metadata have no padding."
  (let* ((end (or end (length octets)))
         (count (the (unsigned-byte 58) (- end start)))
         (groups (ceiling count 3))
         (length (if padding (* 4 groups) (ceiling (* 4 count) 3)))
         (text (make-string length :element-type 'base-char :initial-element #\=))
         (digit-count (ceiling (* 4 count) 3))
         (at 0))
    (declare (type index at))
    (loop for i of-type index from start below end by 3
          for group of-type (unsigned-byte 24)
            = (logior (ash (aref octets i) 16)
                      (if (< (+ i 1) end) (ash (aref octets (+ i 1)) 8) 0)
                      (if (< (+ i 2) end) (aref octets (+ i 2)) 0))
          do (loop for shift of-type (integer -6 18) from 18 downto 0 by 6
                   while (< at digit-count)
                   do (setf (schar text at)
                            (schar **base64-digits** (ldb (byte 6 0) (ash group (- shift)))))
                      (incf at)))
    text))

(define-hot base64-end ((octets octets) (start index) (end index)) index
  "Return the end of the digits from START to END, which is the beginning of the padding. Signal
INVALID-BASE64 for padding that does not complete a group, and for a single digit."
  (let* ((padding (loop for i of-type index from end above start
                        while (= (aref octets (1- i)) #.(char-code #\=))
                        count t))
         (digits-end (- end padding))
         (spare (mod (- digits-end start) 4)))
    (unless (and (/= spare 1)
                 (or (zerop padding)
                     (and (plusp spare) (= (+ spare padding) 4))))
      (error 'invalid-base64 :position (the index (- digits-end start))))
    digits-end))

(define-hot base64-p ((octets octets) (start index) (end index)) boolean
  "True if DECODE-BASE64 can decode OCTETS from START to END."
  (handler-case
      (loop for i of-type index from start below (base64-end octets start end)
            never (= 255 (aref **base64-values** (aref octets i))))
    (invalid-base64 () nil)))

(define-hot decode-base64-octets ((octets octets) (start index) (end index)
                                  (digit-values (simple-array octet (256))))
    octets
  (let* ((digits-end (base64-end octets start end))
         (decoded (make-array (floor (* 3 (- digits-end start)) 4) :element-type 'octet))
         (bits 0)
         (bit-count 0)
         (at 0))
    (declare (type (unsigned-byte 16) bits) (type (integer 0 14) bit-count) (type index at))
    (loop for i of-type index from start below digits-end
          for value = (aref digit-values (aref octets i))
          do (when (= value 255)
               (error 'invalid-base64 :position (- i start)))
             (setf bits (logior (ldb (byte 16 0) (ash (ldb (byte 8 0) bits) 6)) value))
             (incf bit-count 6)
             (when (>= bit-count 8)
               (decf bit-count 8)
               (setf (aref decoded at) (ldb (byte 8 bit-count) bits))
               (incf at)))
    decoded))

(define-hot text-codes ((text simple-string) (start index) (end index)) octets
  "Return the codes of the characters of TEXT from START to END as octets. A character with a code
above 255 gets some code outside the alphabet."
  (let ((octets (make-octets (- end start))))
    (with-text-type (text)
      (loop for i of-type index from start below end
            do (setf (aref octets (- i start)) (min 255 (char-code (schar text i))))))
    octets))

(defun decode-base64 (text &key (start 0) (end (length text)) any-alphabet)
  "Return the octets that TEXT, a string or octets, holds in base64 from START to END, with or
without padding. With ANY-ALPHABET the digits of the URL alphabet are also valid (RFC 4648 section
5). Signal INVALID-BASE64 if the text is not base64."
  (declare (type (or string octets) text))
  (let ((digit-values (if any-alphabet **any-base64-values** **base64-values**)))
    (if (stringp text)
        (decode-base64-octets (text-codes (coerce text 'simple-string) start end)
                              0 (- end start) digit-values)
        (decode-base64-octets text start end digit-values))))
