;;;; The lines between chunks (RFC 9112 section 7.1): a length in hexadecimal digits, perhaps
;;;; extensions, which are ignored, and CR LF.

(in-package #:clgrpc.http1)

(defconstant +longest-chunk-line+ 256
  "The maximum length of the line before a chunk, with its extensions and CR LF.")

(defconstant +most-length-digits+ 10
  "The maximum number of digits of the length of a chunk.")

(define-hot length-digit ((octet octet)) (or null (integer 0 15))
  (cond ((<= 48 octet 57) (- octet 48))
        ((<= 97 octet 102) (- octet 87))
        ((<= 65 octet 70) (- octet 55))))

(define-hot chunk-length ((octets octets) (start index) (end index)) index
  "Return the length in the line from START to END, without its CR LF."
  (let ((at start) (length 0))
    (declare (type index at length))
    (loop for digit = (and (< at end) (length-digit (aref octets at)))
          while digit
          do (when (<= +most-length-digits+ (- at start))
               (bad-message 400 "a chunk's length is too long"))
             (setf length (+ (* 16 length) digit))
             (incf at))
    (when (= at start) (bad-message 400 "a chunk has no length"))
    (unless (or (= at end)
                (and (= 59 (aref octets at)) ; a semicolon
                     (= end (span octets at end **value-octets**))))
      (bad-message 400 "a chunk's length is followed by something that is not an extension"))
    length))
