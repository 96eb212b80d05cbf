;;;; Searches a text for a character; and splits a text that is a list with commas between the
;;;; elements, as in headers and environment variables.

(in-package #:clgrpc.base)

(defmacro with-text-type ((text) &body body)
  "Evaluate BODY, which is compiled once for each type that TEXT, a variable bound to a simple
string, may have. This matters because a peer can cause a long text to be read with a few octets,
and SBCL's functions for strings of any type take up to twenty times as long for each character."
  `(etypecase ,text
     (simple-base-string ,@body)
     ((simple-array character (*)) ,@body)))

(defmacro scan-words (width char text start end)
  "Return a position in TEXT, between START and END, before which the character CHAR does not occur.
The caller must continue the search at this position. Characters have WIDTH bits, and all characters
of a word of 64 bits are tested at once. For this test the word is combined by XOR with copies of
CHAR. A part of the result is 0 if its high bit is not set but becomes set when 1 is subtracted
(Mycroft's test)."
  (flet ((each (bits) (loop for shift below 64 by width sum (ash bits shift))))
    `(let ((wanted (ldb (byte 64 0) (* ,(each 1) (char-code ,char)))) (at ,start))
       (declare (type (unsigned-byte 64) wanted) (type index at))
       (with-sap ((base ,text))
         (loop while (<= (+ at ,(/ 64 width)) ,end)
               do (let ((word (logxor wanted
                                      (sb-sys:sap-ref-64 base (* at ,(/ width 8))))))
                    (declare (type (unsigned-byte 64) word))
                    (when (logtest ,(each (ash 1 (1- width)))
                                   (logandc2 (ldb (byte 64 0) (- word ,(each 1))) word))
                      (return))
                    (incf at ,(/ 64 width)))))
       at)))

(define-leaf %skip-narrow ((char base-char) (text simple-base-string) (start index) (end index))
    index
  "See SCAN-WORDS."
  (scan-words 8 char text start end))

(define-leaf %skip-wide ((char base-char) (text (simple-array character (*))) (start index)
                         (end index))
    index
  "See SCAN-WORDS."
  (scan-words 32 char text start end))

(define-hot char-position ((char base-char) (text simple-string) &key (start index 0)
                           (end (or null index) nil))
    (or null index)
  "Return the first position of CHAR, an ASCII character, in TEXT from START to END (default: all of
TEXT), or nil if CHAR does not occur there."
  (let ((end (or end (length text))))
    (assert (<= start end (length text)))
    (macrolet ((seek (skip)
                 `(loop for i of-type index from (,skip char text start end) below end
                        when (char= char (schar text i)) do (return i))))
      (etypecase text
        (simple-base-string (seek %skip-narrow))
        ((simple-array character (*)) (seek %skip-wide))))))

(defun split-list (text)
  "Return the elements of TEXT, a list separated by commas, without blanks around elements and
without empty elements (RFC 9110 section 5.6.1.2)."
  (loop for start = 0 then (1+ comma)
        for comma = (position #\, text :start start)
        for element = (string-trim '(#\Space #\Tab) (subseq text start comma))
        unless (string= "" element) collect element
        while comma))
