;;;; See src/protobuf/codec/requirement.lisp.

(in-package #:clgrpc.tests.protobuf)

(defun legacy (&rest arguments)
  (apply #'clgrpc.test.legacy:make-legacy arguments))

(defun missing (function &rest arguments)
  "The path of the required field that FUNCTION reports as missing."
  (handler-case (apply function arguments)
    (required-field-missing (condition)
      (is (stringp (princ-to-string condition)))
      (required-field-missing-path condition))
    (:no-error (&rest values) (declare (ignore values)) nil)))

(test required-fields-must-be-there
  (is (equal "needed" (missing #'serialize (legacy))))
  (is (null (missing #'serialize (legacy :needed nil))))
  (is (equal "needed" (missing #'parse-message 'clgrpc.test.legacy:legacy (make-octets 0))))
  (let ((deep (legacy :needed t :part (clgrpc.test.legacy:make-legacy.part :inner (legacy)))))
    (is (equal "part.inner.needed" (missing #'serialize deep)))
    (is (equal "part.inner.needed"
               (missing #'parse-message 'clgrpc.test.legacy:legacy (serialize deep :partial t))))
    (is (message= deep (round-trip deep))))
  (is (equal "needed" (missing #'parse-message 'clgrpc.test.legacy:legacy (unhex "0801")
                               :into (legacy))))
  (is (null (missing #'parse-message 'clgrpc.test.legacy:legacy (unhex "0801")
                     :into (legacy :needed t)))))

(test requirements-at-any-depth-of-types
  "Types of peers may nest as deep as there are types."
  (let ((optional (protobuf::make-field-descriptor :presence :explicit))
        (required (protobuf::make-field-descriptor :presence :required)))
    (flet ((outermost (innermost)
             "A type of messages with messages in them, 60,000 levels, with the slot INNERMOST."
             (loop repeat 60000
                   for slot = innermost
                     then (protobuf::make-slot :field optional :kind :message :type type)
                   for type = (protobuf::fresh-message-type "deep")
                   do (setf (protobuf::message-type-layout type)
                            (protobuf::make-layout :type type :slots (vector slot)))
                   finally (return type))))
      (is-false (protobuf::look-for-requirement
                 (outermost (protobuf::make-slot :field optional))))
      (is-true (protobuf::look-for-requirement
                (outermost (protobuf::make-slot :field required)))))))

(test required-fields-of-extensions-and-maps
  (define "required.proto"
    "syntax = \"proto2\"; package clgrpc.test.required; import \"extension.proto\";
     message Need { required int32 must = 1; }
     message Holder { map<int32, Need> needs = 1; repeated Need list = 2; }
     extend clgrpc.test.extension.Base { optional Need need = 91; }")
  (let ((base (clgrpc.test.extension:make-base))
        (need (make-message "clgrpc.test.required.Need"))
        (holder (make-message "clgrpc.test.required.Holder")))
    (is (null (missing #'serialize base)))
    (setf (field-value base "[clgrpc.test.required.need]") need)
    (is (equal "[clgrpc.test.required.need].must" (missing #'serialize base)))
    (is (equal "[clgrpc.test.required.need].must"
               (missing #'parse-message 'clgrpc.test.extension:base (unhex "da0500"))))
    (is (null (missing #'serialize holder)))
    (setf (field-value holder "needs") (list (cons 5 need)))
    (is (equal "needs[5].must" (missing #'serialize holder)))
    (setf (field-value need "must") 1
          (field-value holder "list") (list need (make-message "clgrpc.test.required.Need")))
    (is (equal "list[1].must" (missing #'serialize holder)))))
