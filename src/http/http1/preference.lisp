;;;; The preferences of a peer in the fields accept and accept-encoding (RFC 9110 sections 12.4.2
;;;; and 12.5): lists of names with parameters; the parameter q is a weight from 0 (never) to 1.

(in-package #:clgrpc.http1)

(defun parameters-weight (parameters)
  "Return the weight q, a rational, among PARAMETERS, texts. Return 0 if it cannot be read, and 1 if
there is no q."
  (loop for parameter in parameters
        for text = (string-trim '(#\Space #\Tab) parameter)
        when (alexandria:starts-with-subseq "q=" text :test #'char-equal)
          return (let ((digits (remove #\. text :start 2 :count 1)))
                   (if (and (< 2 (length digits) 8) (every #'digit-char-p (subseq digits 2)))
                       (min 1 (/ (parse-integer digits :start 2)
                                 (expt 10 (- (length text) 1
                                             (or (position #\. text) (1- (length text)))))))
                       0))
        finally (return 1)))

(defconstant +longest-preferences+ 500
  "The maximum number of characters of a field. A longer field is ignored, because browsers and
scrapers of metrics send only some 200.")

(defmacro do-preferences ((name parameters weight field) &body body)
  "Evaluate BODY for each element of FIELD, the value of a field or nil, with NAME bound to its
name, PARAMETERS to its parameters, texts, and WEIGHT to its weight. An element without a name is
passed over (RFC 9110 section 5.6.1.2)."
  `(call-with-preferences (lambda (,name ,parameters ,weight)
                            (declare (ignorable ,parameters))
                            ,@body)
                          ,field))

(defun call-with-preferences (function field)
  "See DO-PREFERENCES."
  (declare (type function function))
  (when (and field (<= (length field) +longest-preferences+))
    (dolist (element (split-list field))
      (destructuring-bind (name &rest parameters) (uiop:split-string element :separator ";")
        (let ((name (string-trim '(#\Space #\Tab) name)))
          (unless (string= "" name)
            (funcall function name parameters (parameters-weight parameters))))))))
