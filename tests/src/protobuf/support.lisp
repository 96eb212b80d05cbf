;;;; Code for several test files: octets in hexadecimal, a seeded random state, the test messages.

(in-package #:clgrpc.tests.protobuf)

(define-proto "all.proto")
(define-proto "legacy.proto")

(defun unhex (text)
  "The octets of TEXT in hexadecimal; spaces are ignored."
  (let ((digits (remove #\Space text)))
    (coerce (loop for i from 0 below (length digits) by 2
                  collect (parse-integer digits :start i :end (+ i 2) :radix 16))
            'octets)))

(defun hex (octets)
  (format nil "~(~{~2,'0X~}~)" (coerce octets 'list)))

(defvar *seed* nil)

(defun call-with-seed (function)
  "Call FUNCTION with *RANDOM-STATE* made from a seed that is printed, or from CLGRPC_SEED."
  (let* ((given (sb-ext:posix-getenv "CLGRPC_SEED"))
         (*seed* (if given (parse-integer given) (random (expt 2 32) (make-random-state t))))
         (*random-state* (sb-ext:seed-random-state *seed*)))
    (format t "~&seed ~D~%" *seed*)
    (funcall function)))

(defmacro with-seed (() &body body)
  `(call-with-seed (lambda () ,@body)))

(defun proto (text &rest fragments)
  "A proto3 source of TEXT and FRAGMENTS, in package clgrpc.test.scratch."
  (format nil "syntax = \"proto3\";~%package clgrpc.test.scratch;~%~A~{~A~}" text fragments))

(defun define (name source)
  "Evaluate a DEFINE-PROTO of SOURCE under NAME, as at the REPL."
  (eval `(define-proto ,name :source ,source)))

(defun all (&rest arguments)
  (apply #'clgrpc.test:make-all arguments))

(defun round-trip (message)
  (parse-message (message-type-of message) (serialize message :partial t) :partial t))
