;;;; The user's constructors, accessors, presence functions and oneofs.

(in-package #:clgrpc.tests.protobuf)

(test defaults-are-never-nil-for-scalars
  (let ((message (all)))
    (is (eql 0 (clgrpc.test:all-f3 message)))
    (is (eql 0d0 (clgrpc.test:all-f1 message)))
    (is (eql 0f0 (clgrpc.test:all-f2 message)))
    (is (equal "" (clgrpc.test:all-f14 message)))
    (is (equalp #() (clgrpc.test:all-f15 message)))
    (is (eq nil (clgrpc.test:all-f13 message)))
    (is (eq :red (clgrpc.test:all-f16 message)))
    (is (eq nil (clgrpc.test:all-f17 message)))
    (is (equalp #() (clgrpc.test:all-r3 message)))
    (is (= 0 (map-count (clgrpc.test:all-m1 message))))
    (is (eql 0 (clgrpc.test:all-o3 message)))
    (is (eql 0 (clgrpc.test:all-p3 message)))
    (is (equal "" (clgrpc.test:all-p14 message)))))

(test wrong-values-name-their-field
  (flet ((complaint (function)
           (handler-case (funcall function)
             (field-type-error (error)
               (list (field-type-error-field error) (princ-to-string error))))))
    (loop for (keyword value words) in '((:f14 5 "takes a string, not 5")
                                         (:f1 "x" "takes a real number, not \"x\"")
                                         (:f15 5 "takes octets")
                                         (:f15 "abc" "string-to-octets text")
                                         (:f15 (1 300) "not (1 300)")
                                         (:f15 #(1 -1) "takes octets")
                                         (:r15 ("abc") "takes octets")
                                         (:r15 ((1 2) (300)) "takes octets")
                                         (:m6 ((1 . "abc")) "takes octets")
                                         (:r3 (1 "a") "takes an object of type")
                                         (:r14 ("a" 5) "takes a string, not 5")
                                         (:m1 ((5 . 5)) "takes a string, not 5")
                                         (:f17 5 "takes a message of type")
                                         (:r3 5 "takes a sequence, not 5")
                                         (:r14 "PG" "takes a list or a vector, since it is")
                                         (:r3 (1 . 2) "takes a list or a vector, since it is")
                                         (:m1 (1 2) "takes an alist, a hash table or another map")
                                         (:m1 5 "takes an alist, a hash table or another map"))
          do (destructuring-bind (field text) (complaint (lambda () (all keyword value)))
               (is (string-equal field (format nil "clgrpc.test.All.~A" keyword)))
               (is (search words text) "~A" text)
               ;; the same from the setter
               (is (equal (list field text)
                          (complaint (lambda ()
                                       (funcall (fdefinition `(setf ,(find-symbol
                                                                      (format nil "ALL-~A" keyword)
                                                                      '#:clgrpc.test)))
                                                value (all))))))))))

(test keywords-that-are-no-fields
  "The compiler and the call name the field that was probably meant, and all fields; a field that
the message has got meanwhile is accepted."
  (let ((function nil) (warned nil))
    (handler-bind ((style-warning (lambda (warning)
                                    (setf warned (princ-to-string warning))
                                    (muffle-warning warning))))
      (setf function (compile nil '(lambda () (clgrpc.test:make-all :f14x "a")))))
    (is (search "has no field :f14x (is it :f14?); its fields are :f1," warned))
    (with-signalled (error misuse (funcall function))
      (is (search "clgrpc.test:make-all has no field :f14x" (princ-to-string error))))
    (is (equal "a" (clgrpc.test:all-f14
                    (funcall (compile nil '(lambda () (clgrpc.test:make-all :f14 "a")))))))))

(test keywords-that-the-compiler-does-not-see
  "A call through EVAL, FUNCALL or APPLY is refused with the same text, and allocates no more: a
keyword twice, or after :ALLOW-OTHER-KEYS, is accepted as by any function."
  (flet ((refused (function)
           (handler-case (progn (funcall function) "it was made")
             (misuse (error) (princ-to-string error)))))
    (dolist (text (list (refused (lambda () (eval '(clgrpc.test:make-all :f1 1d0 :f14x "a"))))
                        (refused (lambda () (funcall 'clgrpc.test:make-all :f14x "a")))
                        (refused (lambda () (apply #'clgrpc.test:make-all '(:f14x "a" :f1 1d0))))))
      (is (search "clgrpc.test:make-all has no field :f14x (is it :f14?); its fields are :f1," text)
          "~A" text))
    (is (search "has no field :pick (which is a oneof: give one of its fields);"
                (refused (lambda () (funcall 'clgrpc.test:make-all :pick "a")))))
    (is (search "has no field 14;" (refused (lambda () (funcall 'clgrpc.test:make-all 14 "a"))))))
  (is (equal "a" (clgrpc.test:all-f14 (funcall 'clgrpc.test:make-all :f14 "a" :f14 "b"))))
  (is (equal "a" (clgrpc.test:all-f14 (funcall 'clgrpc.test:make-all
                                               :x 1 :f14 "a" :allow-other-keys t)))))

(test constructors-make-no-list-of-their-arguments
  (flet ((octets-of-calls (function)
           (let ((begin (sb-ext:get-bytes-consed)))
             (loop repeat 1000 do (funcall function))
             (- (sb-ext:get-bytes-consed) begin))))
    (flet ((bare () (clgrpc.test:make-all))
           (full () (clgrpc.test:make-all :f3 5 :f5 6 :f13 t)))
      (octets-of-calls #'bare)
      ;; six arguments would be a list of 96 octets
      (is (< (abs (- (octets-of-calls #'full) (octets-of-calls #'bare))) 50000)))))

(test enums-are-documented
  (is (search ":red (0)" (documentation 'clgrpc.test:color 'type))))

(test values-are-checked-and-converted
  (let ((message (all)))
    (signals type-error (setf (clgrpc.test:all-f3 message) (expt 2 31)))
    (signals type-error (setf (clgrpc.test:all-f5 message) -1))
    (signals type-error (setf (clgrpc.test:all-f14 message) 5))
    (signals type-error (setf (clgrpc.test:all-f17 message) message))
    (signals type-error (setf (clgrpc.test:all-r3 message) '(1 "a")))
    (signals type-error (setf (clgrpc.test:all-f3 5) 1))
    (signals type-error (clgrpc.test:all-f3 (clgrpc.test:make-inner)))
    (signals misuse (setf (clgrpc.test:all-f16 message) :mauve))
    (signals type-error (setf (clgrpc.test:all-m1 message) 5))
    (setf (clgrpc.test:all-f1 message) 1/2)
    (is (eql 0.5d0 (clgrpc.test:all-f1 message)))
    (setf (clgrpc.test:all-f16 message) 1)
    (is (eq :green (clgrpc.test:all-f16 message)))
    (setf (clgrpc.test:all-f16 message) 77)
    (is (eql 77 (clgrpc.test:all-f16 message)))
    (setf (clgrpc.test:all-f15 message) '(1 2))
    (is (typep (clgrpc.test:all-f15 message) 'octets))
    (setf (clgrpc.test:all-r14 message)
          (list "a" (make-array 1 :element-type 'character :adjustable t :initial-element #\b)))
    (is (equalp #("a" "b") (clgrpc.test:all-r14 message)))))

(test explicit-presence
  (let ((message (all :o3 0)))
    (is-true (clgrpc.test:has-all-o3 message))
    (is-false (clgrpc.test:has-all-o14 message))
    (setf (clgrpc.test:all-o14 message) "")
    (is-true (clgrpc.test:has-all-o14 message))
    (clgrpc.test:clear-all-o14 (clgrpc.test:clear-all-o3 message))
    (is (= 0 (serialized-size message)))
    (is-false (clgrpc.test:has-all-f17 message))
    (setf (clgrpc.test:all-f17 message) (clgrpc.test:make-inner))
    (is-true (clgrpc.test:has-all-f17 message))
    (setf (clgrpc.test:all-f17 message) nil)
    (is-false (clgrpc.test:has-all-f17 message))))

(test oneofs
  (let ((message (all)))
    (is (null (clgrpc.test:all-pick-case message)))
    (is (equal '(nil nil) (multiple-value-list (clgrpc.test:all-pick message))))
    (setf (clgrpc.test:all-p16 message) :blue)
    (is (equal '(:blue :p16) (multiple-value-list (clgrpc.test:all-pick message))))
    (setf (clgrpc.test:all-p13 message) nil)
    (is (eq :p13 (clgrpc.test:all-pick-case message)))
    (is-true (clgrpc.test:has-all-p13 message))
    (is (eq :red (clgrpc.test:all-p16 message)))
    (is (eq :p13 (clgrpc.test:all-pick-case (round-trip message))))
    (clgrpc.test:clear-all-p3 message)
    (is (eq :p13 (clgrpc.test:all-pick-case message)))
    (clgrpc.test:clear-all-pick message)
    (is (null (clgrpc.test:all-pick-case message)))
    (setf (clgrpc.test:all-p17 message) (clgrpc.test:make-inner))
    (is (eq :p17 (clgrpc.test:all-pick-case message)))
    (setf (clgrpc.test:all-p17 message) nil)
    (is (null (clgrpc.test:all-pick-case message)))))

(test a-constructor-takes-one-field-of-a-oneof
  "Several are refused, so that none is lost silently. A nil message counts as not given."
  (let ((inner (clgrpc.test:make-inner)))
    (flet ((text-of (&rest arguments)
             (handler-case (progn (apply #'clgrpc.test:make-all arguments) nil)
               (misuse (error) (princ-to-string error)))))
      (is (search "make-all takes one of :p1, :p3, :p6," (text-of :p13 nil :p16 :blue)))
      (is (search "the fields of a oneof, not several." (text-of :p17 inner :p16 :blue)))
      (is (null (text-of :p16 :blue :f17 inner)))
      (is (eq :p16 (clgrpc.test:all-pick-case (clgrpc.test:make-all :p17 nil :p16 :blue))))
      (is (eq :p17 (clgrpc.test:all-pick-case (clgrpc.test:make-all :p17 inner)))))))

(test an-interrupted-setter-leaves-no-value-to-another-field
  "In a oneof the present field has its own value, wherever an interrupt has ended the thread that
sets another."
  (let ((message (all)) (wrong '()))
    (support:interrupt-again-and-again
     (lambda ()
       (multiple-value-bind (value case) (clgrpc.test:all-pick message)
         (unless (ecase case
                   ((nil) t)
                   (:p3 (integerp value))
                   (:p14 (stringp value)))
           (push (list case value) wrong)))
       (loop repeat 1000
             do (setf (clgrpc.test:all-p3 message) 3)
                (setf (clgrpc.test:all-p14 message) "three")))
     1000)
    (is (null wrong) "~D of 1000, such as ~S" (length wrong) (first wrong))))

(test proto2-defaults
  (let ((message (clgrpc.test.legacy:make-legacy)))
    (is (eql 7 (clgrpc.test.legacy:legacy-count message)))
    (is (equal "none" (clgrpc.test.legacy:legacy-title message)))
    (is (eq :high (clgrpc.test.legacy:legacy-level message)))
    (is (eq :low (clgrpc.test.legacy:legacy-plain-level message)))
    (is (eql sb-ext:double-float-negative-infinity (clgrpc.test.legacy:legacy-ratio message)))
    (is (= 0 (serialized-size message)))
    (setf (clgrpc.test.legacy:legacy-count message) 7)
    (is (equal "0807" (hex (serialize message :partial t))))))

(test enums-by-keyword-and-number
  (is (eql 5 (enum-number 'clgrpc.test:color :blue)))
  (is (eql -3 (enum-number "clgrpc.test.Color" :neg)))
  (is (eq :big (enum-keyword 'clgrpc.test:color 2000000)))
  (is (eql 3 (enum-keyword 'clgrpc.test:color 3)))
  (is (typep :blue 'clgrpc.test:color))
  (signals misuse (enum-number 'clgrpc.test:color :mauve)))

(test documentation-comes-from-comments
  (is (search "One of these." (documentation 'clgrpc.test:all-pick-case 'function)))
  (is (search "A message inside others." (documentation 'clgrpc.test:inner 'structure)))
  (is (search "Field 3 of clgrpc.test.All, int32" (documentation 'clgrpc.test:all-f3 'function))))
