;;;; Values as descriptor.proto writes them in text: floats in the shortest of C's %.15g and %.17g
;;;; (%.6g and %.9g for 32 bits) that reads back as the same number, octets with C's escapes.

(in-package #:clgrpc.protobuf)

(defun decimal-digits (number count)
  "Round the positive rational NUMBER to COUNT significant decimal digits. Return them as an integer
and the exponent E of the first: NUMBER is about d.ddd × 10^E."
  (let ((exponent (floor (* (- (integer-length (numerator number))
                               (integer-length (denominator number)))
                            0.30103d0))))
    (loop while (>= number (expt 10 (1+ exponent))) do (incf exponent))
    (loop while (< number (expt 10 exponent)) do (decf exponent))
    (let ((digits (round (* number (expt 10 (- count 1 exponent))))))
      (if (= digits (expt 10 count))
          (values (floor digits 10) (1+ exponent))
          (values digits exponent)))))

(defun digits-text (digits exponent count)
  "What C's %g prints for COUNT DIGITS, the first of them with EXPONENT."
  (let ((text (string-right-trim "0" (format nil "~D" digits))))
    (cond ((<= -4 exponent -1)
           (format nil "0.~V@{0~:*~}~*~A" (- -1 exponent) nil text))
          ((< -1 exponent count)
           (let ((whole (1+ exponent)))
             (if (<= (length text) whole)
                 (format nil "~VA" whole (concatenate 'string text
                                                      (make-string (- whole (length text))
                                                                   :initial-element #\0)))
                 (format nil "~A.~A" (subseq text 0 whole) (subseq text whole)))))
          (t (format nil "~C~@[.~A~]e~:[+~;-~]~2,'0D" (char text 0)
                     (and (> (length text) 1) (subseq text 1)) (minusp exponent)
                     (abs exponent))))))

(defun default-float-text (value)
  "VALUE, a single or double float, as descriptor.proto writes a default."
  (cond ((/= value value) "nan")
        ((infinite-or-nan-p value) (if (plusp value) "inf" "-inf"))
        ((zerop value) (if (minusp (float-sign value)) "-0" "0"))
        (t
         (let ((sign (if (minusp value) "-" "")) (magnitude (rational (abs value))))
           (destructuring-bind (short long)
               (etypecase value (single-float '(6 9)) (double-float '(15 17)))
             (multiple-value-bind (digits exponent) (decimal-digits magnitude short)
               (unless (= (abs value) (nearest-float (* digits (expt 10 (- exponent -1 short)))
                                                     value))
                 (setf (values digits exponent) (decimal-digits magnitude long)
                       short long))
               (concatenate 'string sign (digits-text digits exponent short))))))))

(defun nearest-float (rational like)
  "The float of LIKE's format that is nearest to RATIONAL."
  (handler-case (coerce rational (type-of-float like))
    (arithmetic-error () (if (> rational 1) most-positive-double-float 0))))

(defun type-of-float (value)
  (if (typep value 'single-float) 'single-float 'double-float))

(defun c-escaped (octets)
  "OCTETS as text with C's escapes, octal for what is not printable."
  (with-output-to-string (out)
    (loop for octet across octets
          do (case octet
               (10 (write-string "\\n" out))
               (13 (write-string "\\r" out))
               (9 (write-string "\\t" out))
               (34 (write-string "\\\"" out))
               (39 (write-string "\\'" out))
               (92 (write-string "\\\\" out))
               (t (if (<= 32 octet 126)
                      (write-char (code-char octet) out)
                      (format out "\\~3,'0O" octet)))))))

(defun c-unescaped (text)
  "The octets that TEXT, written by C-ESCAPED, stands for; nil if it is malformed."
  (multiple-value-bind (tokens problems)
      (tokenize (format nil "\"~A\"" text) "")
    (let ((token (svref tokens 0)))
      (and (null problems) (= 2 (length tokens)) (eq :string (token-kind token))
           (token-value token)))))

(defun lenient-string (octets)
  "The string that OCTETS are in UTF-8; where they are not, a replacement character."
  (handler-case (octets-string octets)
    (invalid-utf8 ()
      (sb-ext:octets-to-string octets :external-format '(:utf-8 :replacement #\ufffd)))))
