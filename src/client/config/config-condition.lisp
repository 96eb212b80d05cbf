;;;; The condition for invalid service configs.

(in-package #:clgrpc.config)

(define-condition service-config-error (misuse)
  ((path :initarg :path :reader service-config-error-path)) ; such as methodConfig[0].timeout
  (:report (lambda (condition stream)
             (format stream "Invalid service config: ~@[~A ~]~A."
                     (let ((path (service-config-error-path condition)))
                       (and (plusp (length path)) path))
                     (printable-text (misuse-text condition) :limit 1000))))
  (:documentation "A service config is invalid. PATH is the position of the error, such as
methodConfig[0].timeout; the text names the values that are allowed there. No part of the config is
in force."))

(defun service-config-error-text (condition)
  "The error at the path of CONDITION, a SERVICE-CONFIG-ERROR, and the values allowed there, as
text. From any thread."
  (misuse-text condition))

(document-functions
  service-config-error-path "The place of the error in a service config, such as
methodConfig[0].name; empty for the whole config. From any thread.")

(defun config-error (path control &rest arguments)
  "Signal SERVICE-CONFIG-ERROR at PATH with the text that CONTROL and ARGUMENTS format."
  (error 'service-config-error :path path :text (format nil "~?" control arguments)))
