;;;; Fields by number and name, and messages that outlive a redefinition of their type.

(in-package #:clgrpc.tests.protobuf)

(test fields-by-number-name-and-keyword
  (let ((message (all :f3 5 :r14 '("a"))))
    (is (eql 5 (field-value message 3)))
    (is (eql 5 (field-value message "f3")))
    (is (eql 5 (field-value message :f3)))
    (setf (field-value message :o16) :blue)
    (is (eq :blue (clgrpc.test:all-o16 message)))
    (is-true (field-present-p message :r14))
    (clear-field message :r14)
    (is-false (field-present-p message :r14))
    (signals misuse (field-value message :nothing))))

(test walking-and-building
  (let ((message (all :f3 5 :p3 6)))
    (setf (field-value (ensure-field message "f17") "a") 1)
    (setf (field-value (ensure-field message "f17") "s") "x")
    (append-to-field (append-to-field message :r16 '(:red)) :r16 '(:blue 9))
    (is (message= message (all :f3 5 :p3 6 :f17 (clgrpc.test:make-inner :a 1 :s "x")
                               :r16 '(:red :blue 9))))
    (is (equal '("f3" "f17" "r16" "p3") (mapcar #'descriptor-name (present-fields message))))
    (let ((seen '()))
      (do-fields ((field value) message) (push (cons (descriptor-name field) value) seen))
      (is (equal '("p3" . 6) (first seen)))
      (is (= 4 (length seen))))
    (is (equal "p3" (descriptor-name (oneof-field message "pick"))))
    (is (null (oneof-field (all) "pick")))
    (signals misuse (ensure-field message "f3"))
    (signals misuse (append-to-field message "f3" '(1)))))

(defparameter *first-version*
  "syntax = 'proto3'; package clgrpc.test.live;
message Person { string name = 1; int32 age = 2; Person friend = 3; repeated int32 marks = 4;
  oneof way { string mail = 5; int32 phone = 6; } }")

(defparameter *second-version*
  "syntax = 'proto3'; package clgrpc.test.live;
message Person { string name = 1; int64 age = 2; Person friend = 3; repeated int32 marks = 4;
  oneof way { string mail = 5; int32 phone = 6; } string city = 7; optional int32 size = 8; }")

(defun live (name &rest arguments)
  "Call the function NAME in the package of the versions above."
  (apply (fdefinition (find-symbol name "CLGRPC.TEST.LIVE")) arguments))

(defun set-live (value name message)
  (funcall (fdefinition `(setf ,(find-symbol name "CLGRPC.TEST.LIVE"))) value message))

(defmacro with-versions (() &body body)
  "Run BODY beginning with the first version defined."
  `(progn (define "live.proto" *first-version*) ,@body))

(test an-unchanged-definition-changes-nothing
  (with-versions ()
    (let* ((type (find-message-type "clgrpc.test.live.Person"))
           (layout (protobuf::message-type-layout type))
           (accessor (fdefinition (find-symbol "PERSON-NAME" "CLGRPC.TEST.LIVE"))))
      (define "live.proto" *first-version*)
      (is (eq layout (protobuf::message-type-layout type)))
      (is (eq accessor (fdefinition (find-symbol "PERSON-NAME" "CLGRPC.TEST.LIVE")))))))

(test old-messages-live-on
  (with-versions ()
    (let* ((friend (live "MAKE-PERSON" :name "Bo" :age 4))
           (old (live "MAKE-PERSON" :name "Ada" :age 36 :friend friend :marks '(1 2) :mail "a@b"))
           (octets (serialize old))
           (type (message-type-of old)))
      (define "live.proto" *second-version*)
      (is (eq type (message-type-of old)))
      (is (equal "Ada" (live "PERSON-NAME" old)))
      (is (eql 36 (live "PERSON-AGE" old)) "a field is read through another type")
      (is (equal "" (live "PERSON-CITY" old)) "the message never had this field")
      (is (equal "a@b" (live "PERSON-MAIL" old)))
      (is (eq :mail (live "PERSON-WAY-CASE" old)))
      (is (eq friend (live "PERSON-FRIEND" old)) "sub-messages move over as they are")
      (is (equalp octets (serialize old)))
      (is (typep old (find-symbol "PERSON" "CLGRPC.TEST.LIVE")))
      (is (search "Ada" (princ-to-string old))))))

(test old-messages-take-new-fields
  (with-versions ()
    (let* ((old (live "MAKE-PERSON" :name "Ada"))
           (holder (live "MAKE-PERSON" :friend old)))
      (define "live.proto" *second-version*)
      (set-live "Turin" "PERSON-CITY" old)
      (set-live (expt 2 40) "PERSON-AGE" old)
      (set-live 0 "PERSON-SIZE" old)
      (is (equal "Turin" (live "PERSON-CITY" old)))
      (is (equal "Turin" (live "PERSON-CITY" (live "PERSON-FRIEND" holder)))
          "the sub-message is the same object")
      (is (eql (expt 2 40) (live "PERSON-AGE" old)))
      (is-true (live "HAS-PERSON-SIZE" old))
      (live "CLEAR-PERSON-SIZE" old)
      (is-false (live "HAS-PERSON-SIZE" old))
      (set-live 5 "PERSON-PHONE" old)
      (is (eq :phone (live "PERSON-WAY-CASE" old)))
      (live "CLEAR-PERSON-WAY" old)
      (is (null (live "PERSON-WAY-CASE" old)))
      (let ((back (parse-message "clgrpc.test.live.Person" (serialize holder))))
        (is (equal "Turin" (live "PERSON-CITY" (live "PERSON-FRIEND" back))))
        (is (message= holder back))))))

(test a-definition-that-comes-back
  "Messages survive a definition that is replaced and comes back: values that they get meanwhile
remain."
  (with-versions ()
    (let ((old (live "MAKE-PERSON" :name "Ada" :age 36)))
      (loop for name in '("Eva" "Ida" "Ova")
            do (define "live.proto" *second-version*)
               (is (eql 36 (live "PERSON-AGE" old)))
               (set-live name "PERSON-NAME" old)
               (define "live.proto" *first-version*)
               (is (equal name (live "PERSON-NAME" old)))
               (is (equalp (serialize (live "MAKE-PERSON" :name name :age 36)) (serialize old)))
               (is (message= old (copy-message old)))))))

(test unknown-fields-become-known
  (with-versions ()
    (let ((old (parse-message "clgrpc.test.live.Person" (unhex "0a01413a0552656d65731005"))))
      (is (equalp (unhex "3a0552656d6573") (subseq (unknown-fields old) 0 7)))
      (define "live.proto" *second-version*)
      (is (equal "Remes" (live "PERSON-CITY" old))))))

(test old-callers-and-new-messages
  "Functions held since before a redefinition, and compiled callers of the accessors, get messages
of both layouts."
  (with-versions ()
    (let* ((old (live "MAKE-PERSON" :name "Ada" :age 36))
           (held-accessor (fdefinition (find-symbol "PERSON-NAME" "CLGRPC.TEST.LIVE")))
           (held-maker (fdefinition (find-symbol "MAKE-PERSON" "CLGRPC.TEST.LIVE")))
           (caller (compile nil `(lambda (message)
                                   (list (,(find-symbol "PERSON-NAME" '#:clgrpc.test.live)
                                          message)
                                         (,(find-symbol "PERSON-AGE" '#:clgrpc.test.live)
                                          message)))))
           (held-sizer (message-type-sizer (message-type-of old)))
           (held-writer (message-type-writer (message-type-of old))))
      (define "live.proto" *second-version*)
      (let ((new (live "MAKE-PERSON" :name "Bo" :age (expt 2 40) :city "X")))
        (is (equal "Bo" (funcall held-accessor new)))
        (is (equal "Ada" (funcall held-accessor old)))
        (is (equal '("Ada" 36) (funcall caller old)))
        (is (equal (list "Bo" (expt 2 40)) (funcall caller new)))
        (let* ((late (funcall held-maker :name "Cy"))
               (size (funcall held-sizer new))
               (octets (make-octets size)))
          (is (equal "Cy" (live "PERSON-NAME" late)))
          (is (equal "" (live "PERSON-CITY" late)))
          (is (= size (funcall held-writer new octets 0)))
          (is (equalp octets (serialize new)))))
      (define "live.proto" *first-version*)
      (is (equal '("Ada" 36) (funcall caller old)) "the caller reads the first version again"))))

(test layouts-that-were-read-before-a-definition
  "A file that is loaded again gives its structures other layouts. A thread that has read one just
before may use it afterwards, for messages as they are: these need no conversion, which would not
end."
  (with-versions ()
    (let* ((person (live "MAKE-PERSON" :name "Ada"))
           (before (protobuf::message-layout person))
           (after (copy-structure before))
           (type (message-type-of person)))
      (unwind-protect
           (progn
             (setf (protobuf::message-type-layout type) after)
             (is (equal "Ada" (handler-case (sb-ext:with-timeout 2 (field-value person "name"))
                                (sb-ext:timeout () :never)))))
        (setf (protobuf::message-type-layout type) before)))))

(test redefinition-between-size-and-write
  "A message is written as it was measured, though its type has another definition by now."
  (with-versions ()
    (let* ((friend (live "MAKE-PERSON" :name "Bo" :marks '(4 500)))
           (person (live "MAKE-PERSON" :name "Ada" :marks '(1 2 300) :friend friend))
           (type (message-type-of person))
           (expected (serialize person))
           (size (funcall (message-type-sizer type) person))
           (octets (make-octets size)))
      (define "live.proto" (let* ((text *first-version*) (at (search "marks = 4" text)))
                             (concatenate 'string (subseq text 0 (+ at 9)) " [packed = false]"
                                          (subseq text (+ at 9)))))
      (is (= size (funcall (message-type-writer type) person octets 0)))
      (is (equalp expected octets))
      (is (/= size (length (serialize person))) "afterwards the current type counts")
      (is (message= person (parse-message type expected))))))

(defun live-person (name friend)
  (live "MAKE-PERSON" :name name :age 3 :marks '(1 2 300) :mail "a@b" :friend friend))

(defun check-person (person)
  "Check that PERSON of LIVE-PERSON is complete, directly and after serialization."
  (dolist (person (list person (parse-message "clgrpc.test.live.Person" (serialize person))))
    (let ((friend (live "PERSON-FRIEND" person)))
      (assert (equal '("Ada" 3 "Bo" :mail)
                     (list (live "PERSON-NAME" person) (live "PERSON-AGE" person)
                           (live "PERSON-NAME" friend) (live "PERSON-WAY-CASE" friend))))
      (assert (equalp #(1 2 300) (live "PERSON-MARKS" friend))))))

(test redefinition-under-load
  "Threads make, read and serialize messages, new ones and some that are older than a few
definitions, while their type changes 24 times; none fails."
  (with-versions ()
    (let* ((stop nil)
           (failures (list '()))
           (checked (list 0))
           (threads
             (loop repeat 3
                   collect (in-thread (handler-case
                                          (loop with kept = (make-array 500 :initial-element nil)
                                                for i from 0
                                                until stop
                                                do (let* ((friend (live-person "Bo" nil))
                                                          (person (live-person "Ada" friend)))
                                                     (check-person person)
                                                     ;; the message is old when its turn comes again
                                                     (shiftf person (aref kept (mod i 500)) person)
                                                     (when person (check-person person))
                                                     (sb-ext:atomic-incf (car checked))))
                                        (error (condition)
                                          (sb-ext:atomic-push (princ-to-string condition)
                                                              (car failures))))))))
      (unwind-protect
           (dotimes (i 12)
             (define "live.proto" *second-version*)
             (define "live.proto" *first-version*))
        (setf stop t)
        (mapc #'sb-thread:join-thread threads))
      (is (null (car failures)) "~{~A~%~}" (car failures))
      (is (plusp (car checked))))))
