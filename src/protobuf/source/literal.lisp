;;;; Values as descriptor.proto writes them in text: floats in the shortest of C's %.15g and %.17g
;;;; (%.6g and %.9g for 32 bits) that reads back as the same number, octets with C's escapes.

(in-package #:clgrpc.protobuf)

(defun zeros (count)
  (make-string count :initial-element #\0))

(defun digits-text (digits exponent count)
  "The text that C's %g prints for COUNT DIGITS, the first of them with EXPONENT."
  (let ((text (string-right-trim "0" (format nil "~D" digits))))
    (cond ((<= -4 exponent -1)
           (concatenate 'string "0." (zeros (- -1 exponent)) text))
          ((not (< -1 exponent count))
           (format nil "~C~@[.~A~]e~:[+~;-~]~2,'0D" (char text 0)
                   (and (> (length text) 1) (subseq text 1)) (minusp exponent)
                   (abs exponent)))
          ((<= (length text) (1+ exponent))
           (concatenate 'string text (zeros (- (1+ exponent) (length text)))))
          (t
           (format nil "~A.~A" (subseq text 0 (1+ exponent)) (subseq text (1+ exponent)))))))

(defun default-float-text (value)
  "VALUE, a single or double float, as descriptor.proto writes a default."
  (cond ((sb-ext:float-nan-p value) "nan")
        ((not (finite-p value)) (if (plusp value) "inf" "-inf"))
        ((zerop value) (if (minusp (float-sign value)) "-0" "0"))
        (t
         (let ((sign (if (minusp value) "-" "")) (magnitude (rational (abs value))))
           (destructuring-bind (short long)
               (etypecase value (single-float '(6 9)) (double-float '(15 17)))
             (multiple-value-bind (digits exponent) (decimal-digits magnitude short)
               (unless (reads-back-p (* digits (expt 10 (- exponent -1 short))) (abs value))
                 (setf (values digits exponent) (decimal-digits magnitude long)
                       short long))
               (concatenate 'string sign (digits-text digits exponent short))))))))

(defun text-single (number)
  "The single float that protoc takes NUMBER for in a default or in text format: rounded to a double
first; the middle between the greatest single and infinity counts as the former."
  (let ((double (to-double number)))
    (cond ((eql double 3.4028235677973366d38) most-positive-single-float)
          ((eql double -3.4028235677973366d38) most-negative-single-float)
          (t (to-single double)))))

(defun reads-back-p (rational value)
  "True if C reads RATIONAL as VALUE, a positive float; its strtof fails at denormalized numbers."
  (etypecase value
    (single-float (and (>= value least-positive-normalized-single-float)
                       (eql value (rational-single rational))))
    (double-float (eql value (rational-double rational)))))

(defun c-escaped (octets)
  "OCTETS as text with C's escapes, octal ones for octets that are not printable."
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
