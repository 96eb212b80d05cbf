;;;; Every symbol that the packages for users and for those who build on a layer export means
;;;; something, and everything it means (function, macro, type, variable) has a docstring.

(defpackage #:clgrpc.tests.documentation
  (:use #:cl #:fiveam))

(in-package #:clgrpc.tests.documentation)

(def-suite :clgrpc.documentation :description "Docstrings of exported symbols.")
(in-suite :clgrpc.documentation)

(defparameter *packages*
  '(#:clgrpc #:clgrpc.base #:clgrpc.loop #:clgrpc.http2 #:clgrpc.hpack #:clgrpc.protobuf)
  "The packages whose exports must be documented.")

(defun meanings (symbol)
  "What SYMBOL names, as the second arguments of DOCUMENTATION."
  (append (when (fboundp symbol) '(function))
          (when (sb-ext:valid-type-specifier-p symbol) '(type))
          (when (boundp symbol) '(variable))))

(defun exports (package)
  (let ((symbols '()))
    (do-external-symbols (symbol package) (push symbol symbols))
    (sort symbols #'string<)))

(defun defects (symbol)
  "What SYMBOL, which is exported, lacks, as a list of texts."
  (or (loop for meaning in (meanings symbol)
            unless (plusp (length (documentation symbol meaning)))
              collect (format nil "~S has no documentation as a ~(~A~)" symbol meaning))
      (unless (or (meanings symbol) (fboundp `(setf ,symbol)))
        (list (format nil "~S is exported and names nothing" symbol)))))

(test exports-are-documented
  (dolist (package *packages*)
    (let ((defects (mapcan #'defects (exports package))))
      (is (null defects) "~{~A~^; ~}" defects))))
