;;;; The preferences of a reader of metrics, from its headers (RFC 9110 section 12.5): the format,
;;;; in accept, and compression, in accept-encoding.

(in-package #:clgrpc.metrics)

(defun version-understood-p (parameters)
  "True if PARAMETERS of OpenMetrics' media type request its version 1.0, or no version."
  (loop for parameter in parameters
        for text = (string-trim " " parameter)
        never (and (uiop:string-prefix-p "version=" (string-downcase text))
                   (string/= "1." text :start2 8 :end2 (min 10 (length text))))))

(defun open-metrics-wanted-p (accept)
  "True if ACCEPT, the value of the header accept or nil, prefers OpenMetrics to Prometheus's own
format."
  (let ((open 0) (plain 0))
    (http1:do-preferences (type parameters weight accept)
      (cond ((string-equal type "application/openmetrics-text")
             (when (version-understood-p parameters) (setf open (max open weight))))
            ((member type '("text/plain" "text/*" "*/*") :test #'string-equal)
             (setf plain (max plain weight)))))
    (and (plusp open) (>= open plain))))

(defun gzip-wanted-p (accept-encoding)
  "True if ACCEPT-ENCODING, the value of the header accept-encoding or nil, prefers gzip to no
compression."
  (let ((gzip nil) (identity nil) (others 0))
    (http1:do-preferences (name parameters weight accept-encoding)
      (cond ((member name '("gzip" "x-gzip") :test #'string-equal)
             (setf gzip (max (or gzip 0) weight)))
            ((string-equal name "identity") (setf identity weight))
            ((string= name "*") (setf others weight))))
    (let ((gzip (or gzip others)))
      (and (plusp gzip) (>= gzip (or identity 0))))))
