;;;; Tests of command lines: parsers, options, what is refused and with which words.

(defpackage #:clgrpc.tests.command
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:command #:clgrpc.command)))

(in-package #:clgrpc.tests.command)

(def-suite :clgrpc.command :description "Command lines: arguments, parsers, help texts.")

(defun complaint (function)
  "The text with which FUNCTION refuses, or nil if it does not."
  (handler-case (progn (funcall function) nil)
    (command:usage-error (error) (command:usage-error-text error))))
