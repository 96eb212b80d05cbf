;;;; Markup as lists. A node is a string, which is text; an integer, its digits; nil, nothing; an
;;;; element (TAG ATTRIBUTES . nodes), where TAG is a keyword and ATTRIBUTES a plist; or a list of
;;;; nodes, which stand one after the other:
;;;;
;;;;   (:p (:class "note") "p99 < " (:b () "10 ms"))  →  <p class="note">p99 &lt; <b>10 ms</b></p>
;;;;
;;;; Names are written in lower case; a name with capitals is between bars, such as :|viewBox|. The
;;;; value of an attribute is a string, a real, T for one without a value, or NIL, which omits the
;;;; attribute. All text is escaped, whatever its source: no string can become markup.

(in-package #:clgrpc.page)

(defparameter *void-tags* '(:meta :link :br :hr) "The elements of HTML that have no end.")

(defparameter *shape-tags* '(:rect :line :path :circle :polyline :use)
  "The elements of SVG that are closed where they begin if they have no content.")

(defun write-escaped (string stream)
  "Write STRING to STREAM as text or the value of an attribute. Characters that no page may have,
such as control characters, become U+FFFD."
  (loop for char across string
        for code = (char-code char)
        do (case char
             (#\& (write-string "&amp;" stream))
             (#\< (write-string "&lt;" stream))
             (#\> (write-string "&gt;" stream))
             (#\" (write-string "&quot;" stream))
             ((#\Newline #\Tab) (write-char char stream))
             (t (write-char (if (or (< code 32) (<= 127 code 159) (<= #xD800 code #xDFFF)
                                    (<= #x202A code #x202E) (<= #x2066 code #x2069)
                                    (= #xFFFE (logand code #xFFFE)))
                                (code-char #xFFFD)
                                char)
                            stream)))))

(defun write-number (number stream)
  "Write NUMBER, a real, with at most two digits after the point, which is enough for a place in a
drawing."
  (multiple-value-bind (whole rest) (floor (round (* 100 (abs (rational number)))) 100)
    (format stream "~:[~;-~]~D" (and (minusp number) (plusp (+ whole rest))) whole)
    (when (plusp rest)
      (format stream ".~A" (string-right-trim "0" (format nil "~2,'0D" rest))))))

(defun write-attributes (attributes stream)
  (loop for (name value) on attributes by #'cddr
        when value
          do (format stream " ~A" (markup-name name))
             (unless (eq value t)
               (write-string "=\"" stream)
               (if (stringp value)
                   (write-escaped value stream)
                   (write-number value stream))
               (write-char #\" stream))))

(defun markup-name (symbol)
  "The name for SYMBOL: unchanged if it has small letters, else in lower case."
  (let ((name (symbol-name symbol)))
    (if (some #'lower-case-p name) name (string-downcase name))))

(defun write-element (tag attributes nodes stream)
  (let ((name (markup-name tag)))
    (format stream "<~A" name)
    (write-attributes attributes stream)
    (cond ((member tag *void-tags*) (write-char #\> stream))
          ((and (null nodes) (member tag *shape-tags*)) (write-string "/>" stream))
          (t (write-char #\> stream)
             (dolist (node nodes) (write-markup node stream))
             (format stream "</~A>" name)))))

(defun write-markup (node stream)
  "Write NODE, as the head of this file describes it, to STREAM."
  (etypecase node
    (null nil)
    (string (write-escaped node stream))
    (integer (format stream "~D" node))
    (cons (if (keywordp (first node))
              (write-element (first node) (second node) (cddr node) stream)
              (dolist (child node) (write-markup child stream)))))
  nil)

(defun markup-text (node)
  "NODE, an argument of WRITE-MARKUP, as a string."
  (with-output-to-string (stream) (write-markup node stream)))
