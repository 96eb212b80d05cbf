;;;; What a reader of metrics asks for in its headers (RFC 9110 section 12.5): the format, in
;;;; accept, and compression, in accept-encoding. Both are lists of names with weights, from 0,
;;;; never, to 1.

(in-package #:clgrpc.metrics)

(defun quality (parameters)
  "What q is among PARAMETERS of a media type, texts; 1 if it is not."
  (loop for parameter in parameters
        for text = (string-trim " " parameter)
        when (and (< 2 (length text)) (string-equal "q=" text :end2 2))
          return (let ((digits (remove #\. (subseq text 2))))
                   (if (and (plusp (length digits)) (every #'digit-char-p digits)
                            (< (length digits) 6))
                       (/ (parse-integer digits)
                          (if (find #\. text)
                              (expt 10 (- (length text) 1 (position #\. text)))
                              1))
                       0))
        finally (return 1)))

(defconstant +longest-wishes+ 500
  "A longer header is as none: who scrapes has 200 characters.")

(defun taken-header (header)
  "HEADER, the value of a header or nil, or the empty text."
  (if (and header (<= (length header) +longest-wishes+)) header ""))

(defmacro do-wishes ((name parameters weight header) &body body)
  "Evaluate BODY for each element of HEADER, the value of a header or nil: with NAME, its
PARAMETERS, texts, and its WEIGHT. An element without a name is passed over (RFC 9110 section
5.6.1.2)."
  (let ((element (gensym "ELEMENT")))
    `(dolist (,element (uiop:split-string (taken-header ,header) :separator ","))
       (destructuring-bind (&optional (,name "") &rest ,parameters)
           (uiop:split-string ,element :separator ";")
         (declare (ignorable ,parameters))
         (let ((,name (string-trim '(#\Space #\Tab) ,name)) (,weight (quality ,parameters)))
           (unless (string= "" ,name)
             ,@body))))))

(defun version-understood-p (parameters)
  "True if PARAMETERS of OpenMetrics' media type ask for its version 1.0, or for none."
  (loop for parameter in parameters
        for text = (string-trim " " parameter)
        never (and (uiop:string-prefix-p "version=" (string-downcase text))
                   (string/= "1." text :start2 8 :end2 (min 10 (length text))))))

(defun open-metrics-wanted-p (accept)
  "True if ACCEPT, the value of that header or nil, prefers OpenMetrics to Prometheus's own format."
  (let ((open 0) (plain 0))
    (do-wishes (type parameters weight accept)
      (cond ((string-equal type "application/openmetrics-text")
             (when (version-understood-p parameters) (setf open (max open weight))))
            ((member type '("text/plain" "text/*" "*/*") :test #'string-equal)
             (setf plain (max plain weight)))))
    (and (plusp open) (>= open plain))))

(defun gzip-wanted-p (accept-encoding)
  "True if ACCEPT-ENCODING, the value of that header or nil, prefers gzip to no compression."
  (let ((gzip nil) (identity nil) (others 0))
    (do-wishes (name parameters weight accept-encoding)
      (cond ((member name '("gzip" "x-gzip") :test #'string-equal)
             (setf gzip (max (or gzip 0) weight)))
            ((string-equal name "identity") (setf identity weight))
            ((string= name "*") (setf others weight))))
    (let ((gzip (or gzip others)))
      (and (plusp gzip) (>= gzip (or identity 0))))))
