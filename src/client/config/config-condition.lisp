;;;; What is wrong with a service config.

(in-package #:clgrpc.config)

(define-condition service-config-error (misuse)
  ((path :initarg :path :reader service-config-error-path)) ; methodConfig[0].timeout
  (:report (lambda (condition stream)
             (format stream "Invalid service config: ~@[~A ~]~A."
                     (let ((path (service-config-error-path condition)))
                       (and (plusp (length path)) path))
                     (printable-text (misuse-text condition) :limit 1000))))
  (:documentation "A service config is not one. PATH, such as methodConfig[0].timeout, says where,
and the text what is allowed there. Nothing of the config is in force."))

(defun service-config-error-text (condition)
  "What is wrong at the path of CONDITION, a SERVICE-CONFIG-ERROR, and what is allowed, as text."
  (misuse-text condition))

(document-functions
  service-config-error-path "Where in a service config the error is, such as methodConfig[0].name;
empty for all of it.")

(defun config-error (path control &rest arguments)
  "Signal SERVICE-CONFIG-ERROR at PATH with the text that CONTROL and ARGUMENTS format."
  (error 'service-config-error :path path :text (format nil "~?" control arguments)))
