;;;; Percent-encoding (RFC 3986, section 2.1): an octet of a text may be written as % and two
;;;; hexadecimal digits.

(in-package #:clgrpc.base)

(define-hot (digit-weight :inline t) ((char character)) (integer -1 15)
  "Return the value of the hexadecimal digit CHAR, or -1 if CHAR is not a hexadecimal digit."
  (let ((code (char-code char)))
    (cond ((<= 48 code 57) (- code 48))
          ((<= 97 (logior code 32) 102) (- (logior code 32) 87))
          (t -1))))

(define-hot percent-octets ((text simple-string) (start index) (end index)
                              &key (plus boolean nil) (keep-slashes boolean nil))
    (or null octets)
  "Return the octets of TEXT, in which each character is one octet, from START to END. Each %XX is
decoded, except %2F if KEEP-SLASHES is true. If PLUS is true, a plus sign means a space. Return nil
if a % lacks its two hexadecimal digits, or the code of a character exceeds 255."
  (let ((octets (make-octets (- end start))) (fill 0) (at start))
    (declare (type index fill at))
    (flet ((put (octet)
             (setf (aref octets fill) octet)
             (incf fill)))
      (declare (inline put))
      (with-text-type (text)
        (loop while (< at end)
              do (let* ((char (schar text at)) (code (char-code char)))
                   (cond ((char= char #\%)
                          (unless (<= (+ at 3) end) (return-from percent-octets nil))
                          (let ((high (digit-weight (schar text (+ at 1))))
                                (low (digit-weight (schar text (+ at 2)))))
                            (when (or (minusp high) (minusp low))
                              (return-from percent-octets nil))
                            (cond ((and keep-slashes (= 2 high) (= 15 low))
                                   (put code)
                                   (put (char-code (schar text (+ at 1))))
                                   (put (char-code (schar text (+ at 2)))))
                                  (t (put (+ (* 16 high) low)))))
                          (incf at 3))
                         ((> code 255) (return-from percent-octets nil))
                         (t (put (if (and plus (char= char #\+)) 32 code))
                            (incf at)))))))
    (if (= fill (length octets)) octets (subseq-octets octets 0 fill))))

(defun percent-decoded (text)
  "Return TEXT as octets in UTF-8 with each %XX decoded, or nil if a % is not followed by two
hexadecimal digits."
  (let* ((octets (string-octets text))
         (decoded (make-octets (length octets)))
         (fill 0)
         (at 0))
    (flet ((digit (at)
             (or (and (< at (length octets)) (digit-char-p (code-char (aref octets at)) 16))
                 (return-from percent-decoded nil))))
      (loop while (< at (length octets))
            do (let ((escaped (= #.(char-code #\%) (aref octets at))))
                 (setf (aref decoded fill) (if escaped
                                               (+ (* 16 (digit (+ at 1))) (digit (+ at 2)))
                                               (aref octets at)))
                 (incf fill)
                 (incf at (if escaped 3 1)))))
    (subseq decoded 0 fill)))

(defun percent-decoded-text (text)
  "Return TEXT with each %XX decoded, where the octets are UTF-8, or nil if it is malformed."
  (let ((octets (percent-decoded text)))
    (and octets
         (handler-case (octets-string octets)
           (invalid-utf8 () nil)))))
