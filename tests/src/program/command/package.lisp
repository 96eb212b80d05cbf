;;;; Tests of command lines: parsers, options, refused arguments and the texts of errors.

(defpackage #:clgrpc.tests.command
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:command #:clgrpc.command)))

(in-package #:clgrpc.tests.command)

(def-suite :clgrpc.command :description "Command lines: arguments, parsers, help texts.")

(defun complaint (function)
  "The text of the error with which FUNCTION refuses, or nil."
  (handler-case (progn (funcall function) nil)
    (command:usage-error (error) (command:usage-error-text error))))
