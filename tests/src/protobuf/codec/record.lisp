;;;; Records: messages known from their descriptors alone, in both written forms and read back.

(in-package #:clgrpc.tests.protobuf)

(defparameter *recorded* "syntax = 'proto2'; package clgrpc.test.recorded;
message M { optional int32 i = 1; optional sint64 z = 2; repeated uint32 many = 3 [packed = true];
  optional string s = 4; optional M m = 5; optional fixed32 f = 6; optional double d = 7;
  optional bool b = 8; repeated M ms = 9; optional group G = 10 { optional int32 j = 1; } }"
  "The source of the messages of these tests.")

(defun recorded-message (&optional inner)
  (let ((message (first (file-descriptor-messages (linked *recorded*)))))
    (if inner (first (message-descriptor-messages message)) message)))

(defun record-of (message &rest entries)
  "The record of MESSAGE with ENTRIES, names and values in turn."
  (let ((record (protobuf::make-record message)))
    (loop for (name value) on entries by #'cddr
          do (protobuf::add-entry record (protobuf::field-named message name) value))
    record))

(defun read-back (octets message)
  (protobuf::read-record octets message
                         (lambda (message number)
                           (find number (message-descriptor-fields message)
                                 :key #'field-descriptor-number))
                         (lambda (name)
                           (find name (list message (first (message-descriptor-messages message)))
                                 :key #'descriptor-full-name :test #'string=))))

(defun recorded-values (record name)
  (protobuf::record-values record name))

(test the-last-value-counts-and-all-are-kept
  (let ((record (record-of (recorded-message) "i" 1 "many" 5 "i" 2 "many" 6)))
    (is (equal '(1 2) (recorded-values record "i")))
    (is (= 2 (protobuf::record-value record "i")))
    (is (equal '(5 6) (recorded-values record "many")))
    (is (equal '(:none nil) (multiple-value-list (protobuf::record-value record "s" :none))))
    (is (null (recorded-values nil "i")))))

(test long-records-are-found-by-an-index
  (let* ((message (recorded-message))
         (record (protobuf::make-record message)))
    (loop for i below 100
          do (protobuf::add-entry
              record (protobuf::field-named message (if (evenp i) "many" "i")) i)
             ;; looked up in between, so that the index is made early and kept
             (when (= i 40) (recorded-values record "many")))
    (is (equal (loop for i below 100 by 2 collect i) (recorded-values record "many")))
    (is (equal (loop for i from 1 below 100 by 2 collect i) (recorded-values record "i")))))

(test canonical-records-are-by-number-and-merged
  (let* ((message (recorded-message))
         (record (record-of message "s" (coerce '(97) 'octets) "many" 1 "i" 1 "many" 300 "i" -1
                                    "m" (record-of message "i" 1)
                                    "m" (record-of message "b" t))))
    (is (equal (hex (unhex "08ffffffffffffffffff01 1a0301ac02 220161 2a0408014001"))
               (hex (protobuf::record-octets record :canonical))))))

(test records-are-read-as-they-were-written
  (let* ((message (recorded-message))
         (group (recorded-message t))
         (record (record-of message "i" -5 "z" -300 "many" 7 "many" 70000
                                    "s" (coerce '(1 2) 'octets)
                                    "f" 77 "d" 1.5d0 "b" t
                                    "ms" (record-of message "i" 1) "ms" (record-of message "i" 2)
                                    "g" (record-of group "j" 9)))
         (again (read-back (protobuf::record-octets record :canonical) message)))
    (loop for (name values) in '(("i" (-5)) ("z" (-300)) ("many" (7 70000)) ("f" (77)) ("d" (1.5d0))
                                 ("b" (t)))
          do (is (equal values (recorded-values again name)) "~A" name))
    (is (equalp (list (coerce '(1 2) 'octets)) (recorded-values again "s")))
    (is (equal '(1 2) (mapcar (lambda (inner) (protobuf::record-value inner "i"))
                              (recorded-values again "ms"))))
    (is (= 9 (protobuf::record-value (protobuf::record-value again "g") "j")))))

(test what-cannot-be-read-signals
  (let ((message (recorded-message)))
    (dolist (octets '("08" "0880" "2205 61" "35 010203" "2a02 0880" "53 0801" "54" "0f"))
      (signals protobuf-error (read-back (unhex octets) message)))
    (is (null (protobuf::record-entries (read-back (unhex "f80105") message)))
        "Unknown fields are omitted.")
    (is (null (protobuf::record-entries (read-back (unhex "0d01000000") message)))
        "Fields of another wire type are omitted,")
    (is (equal '(5) (recorded-values (read-back (unhex "0a0105") message) "i"))
        "except the packed form of numbers."))
  (let* ((message (recorded-message))
         (octets (make-octets 0)))
    (loop repeat 2000
          do (setf octets (protobuf::with-octets-out () (protobuf::write-wire-octets 5 octets))))
    (signals protobuf-error (read-back octets message) "nested too deep")))

(test fields-are-stripped-at-any-depth
  (let* ((message (recorded-message))
         (record (record-of message "i" 1 "s" (make-octets 0)
                                    "m" (record-of message "i" 2 "b" t)))
         (stripped (protobuf::strip-record record (lambda (field)
                                                    (equal "i" (descriptor-name field))))))
    (is (null (recorded-values stripped "i")))
    (is (= 1 (length (recorded-values stripped "s"))))
    (is (equal '((nil) (t)) (let ((inner (protobuf::record-value stripped "m")))
                              (list (list (protobuf::record-value inner "i"))
                                    (recorded-values inner "b")))))
    (is (equal '(1) (recorded-values record "i")) "The record itself stays.")))
