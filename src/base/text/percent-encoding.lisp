;;;; Percent-encoding (RFC 3986, section 2.1): an octet of a text may stand there as % and two
;;;; hexadecimal digits.

(in-package #:clgrpc.base)

(defun percent-decoded (text)
  "TEXT as octets in UTF-8 with each %XX decoded, or nil if no two hexadecimal digits follow a %."
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
  "TEXT with each %XX decoded, as UTF-8; nil if that cannot be."
  (let ((octets (percent-decoded text)))
    (and octets
         (handler-case (octets-string octets)
           (invalid-utf8 () nil)))))
