;;;; Values in the textual form of descriptor.proto: floats in the shorter of C's %.15g and %.17g
;;;; (%.6g and %.9g for 32 bits) that reads back as the same number, octets with C's escapes.

(in-package #:clgrpc.protobuf)

(defun zeros (count)
  (make-string count :initial-element #\0))

(defun digits-text (digits exponent count)
  "Return the text that C's %g prints for COUNT DIGITS, the first of which has EXPONENT."
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
  "Return the text of VALUE, a single or double float, in the form that defaults have in
descriptor.proto."
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
  "Return the single float for NUMBER, which was written in a default or in text format. As in
protoc, NUMBER is first rounded to a double, and the midpoint between the greatest single and
infinity becomes the greatest single."
  (let ((double (to-double number)))
    (cond ((eql double 3.4028235677973366d38) most-positive-single-float)
          ((eql double -3.4028235677973366d38) most-negative-single-float)
          (t (to-single double)))))

(defun reads-back-p (rational value)
  "True if C reads RATIONAL as VALUE, a positive float. C's strtof fails for denormalized numbers."
  (etypecase value
    (single-float (and (>= value least-positive-normalized-single-float)
                       (eql value (rational-single rational))))
    (double-float (eql value (rational-double rational)))))

(defun put-escaped (octet out)
  "Write OCTET to OUT as in a C literal in double quotes; if it is not printable, as an octal
escape."
  (case octet
    (10 (write-string "\\n" out))
    (13 (write-string "\\r" out))
    (9 (write-string "\\t" out))
    (34 (write-string "\\\"" out))
    (92 (write-string "\\\\" out))
    (t (if (< 31 octet 127)
           (write-char (code-char octet) out)
           (format out "\\~3,'0O" octet)))))

(defun c-escaped (octets)
  "Return OCTETS as text with C's escapes, for a literal in single or double quotes."
  (with-output-to-string (out)
    (loop for octet across octets
          do (when (= 39 octet) (write-char #\\ out))
             (put-escaped octet out))))

(defun c-unescaped (text)
  "Return the octets that TEXT, in the form of C-ESCAPED, represents, or nil if it is malformed."
  (multiple-value-bind (tokens problems)
      (tokenize (format nil "\"~A\"" text) "")
    (let ((token (svref tokens 0)))
      (and (null problems) (= 2 (length tokens)) (eq :string (token-kind token))
           (token-value token)))))

(defun character-code-at (octets at)
  "Return two values: the code of the character whose UTF-8 is in OCTETS at AT, and the number of
its octets. If the octets at AT are not UTF-8, return the code of the replacement character, and 1."
  (let* ((lead (aref octets at))
         (size (cond ((< lead #x80) 1)
                     ((<= #xC2 lead #xDF) 2)
                     ((<= #xE0 lead #xEF) 3)
                     ((<= #xF0 lead #xF4) 4)
                     (t 0)))
         (code (if (= 1 size) lead (logand lead (ash #x7F (- size)))))
         (end (min (+ at size) (length octets))))
    (loop for i from (1+ at) below end
          always (= #x80 (logand #xC0 (aref octets i)))
          do (setf code (logior (ash code 6) (logand #x3F (aref octets i))))
          finally (when (and (plusp size) (= end (+ at size))
                             (<= (aref #(0 0 #x80 #x800 #x10000) size) code #x10FFFF)
                             (not (<= #xD800 code #xDFFF)))
                    (return-from character-code-at (values code size))))
    (values #xFFFD 1)))

(defun lenient-string (octets)
  "Return the string encoded by OCTETS in UTF-8, with a replacement character for each octet that is
not UTF-8. SBCL's own decoder is not used, because it allocates some 300 octets for each such
octet."
  (handler-case (octets-string octets)
    (invalid-utf8 ()
      (let ((string (make-string (length octets))) (count 0) (at 0))
        (loop while (< at (length octets))
              do (multiple-value-bind (code size) (character-code-at octets at)
                   (setf (schar string count) (code-char code))
                   (incf count)
                   (incf at size)))
        (subseq string 0 count)))))
