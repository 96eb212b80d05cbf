;;;; The tests of service configs: the meaning and the errors of a text or a plist.

(defpackage #:clgrpc.tests.config
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:config #:clgrpc.config)))

(in-package #:clgrpc.tests.config)

(def-suite :clgrpc.config :description "Service configs: fields, policies, methods, the whole.")

(defun parse-mine (object path)
  "The parser of the policy :mine: its share, which must be given."
  (config:integer-field object "share" path :required t :maximum 100))

(defun call-with-policies (function)
  "Call FUNCTION while only the policies plain and mine are registered."
  (with-changed ((config::**policies** '()))
    (config:register-policy :plain '("plain" "plain_experimental") 'plain)
    (config:register-policy :mine '("mine_alone") 'mine 'parse-mine)
    (funcall function)))

(defmacro with-policies (&body body)
  `(call-with-policies (lambda () ,@body)))

(defun wrong (source)
  "Two values: the path of the error in the config SOURCE and its text; nil if SOURCE is valid."
  (handler-case (progn (config:parse-service-config source) nil)
    (config:service-config-error (error)
      (values (config:service-config-error-path error)
              (config:service-config-error-text error)))))

(defun of-method (fields)
  "A config whose only method has FIELDS, JSON."
  (format nil "{\"methodConfig\":[{\"name\":[{}],~A}]}" fields))

(defun method-of (source &optional (path "/s/m"))
  "The method config for the method PATH in the config SOURCE."
  (config:find-method-config (config:parse-service-config source) path))
