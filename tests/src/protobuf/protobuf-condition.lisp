;;;; The texts of errors, each with and without the data that may be unknown.

(in-package #:clgrpc.tests.protobuf)

(defun said (type &rest initargs)
  (princ-to-string (apply #'make-condition type initargs)))

(test errors-say-what-they-know
  (is (equal "Cannot read a message: it is torn." (said 'protobuf-error :text "it is torn")))
  (is (equal "Cannot read a.B at octet 7: it is torn."
             (said 'protobuf-error :type "a.B" :position 7 :text "it is torn")))
  (is (equal "A message lacks the required field parts[2].size."
             (said 'required-field-missing :path "parts[2].size")))
  (is (equal "a.B lacks the required field x."
             (said 'required-field-missing :type "a.B" :path "x")))
  (is (equal "Cannot read a.B from JSON at line 3, column 4, in x.y: no number."
             (said 'message-text-error :type "a.B" :format :json :line 3 :column 4 :path "x.y"
                                       :text "no number")))
  (is (equal "Cannot read a message from text at line 1, column 1: no name."
             (said 'message-text-error :format :text :line 1 :column 1 :text "no name")))
  (is (equal "Cannot write a.B as JSON: no form."
             (said 'message-print-error :type "a.B" :format :json :text "no form"))))

(test type-errors-name-the-field-in-words
  (flet ((says (words expected)
           (is (search words (said 'field-type-error :field "a.B.c" :datum 1
                                                     :expected-type expected))
               "~S" expected)))
    (says "The field a.B.c takes a string, not 1." 'string)
    (says "takes a real number" 'real)
    (says "takes a sequence" 'sequence)
    (says "takes octets" 'protobuf::octet-sequence)
    (says "an alist, a hash table or another map" '(or list hash-table))
    (says "of type GOOGLE.PROTOBUF:TIMESTAMP (UNIX-TIME-TIMESTAMP or UNIVERSAL-TIME-TIMESTAMP makes"
          '(or null google.protobuf:timestamp))
    (says "(SECONDS-DURATION makes one)" '(or null google.protobuf:duration))
    (says "(ANY-PACK makes one of a message)" '(or null google.protobuf:any))
    (says "(DATA-VALUE makes one)" '(or null google.protobuf:value))
    (says "(ALIST-STRUCT makes one)" '(or null google.protobuf:struct))
    (says "(google.protobuf:make-int32-value makes one)"
          '(or null google.protobuf:int32-value))
    (says "a message of type GOOGLE.PROTOBUF:EMPTY, not" '(or null google.protobuf:empty))
    (says "takes an object of type (SIGNED-BYTE 32)" '(signed-byte 32)))
  (let ((text (said 'field-type-error :field "a.B.c" :expected-type 'real
                                      :datum (make-string 100000 :initial-element #\x))))
    (is (< (length text) 500) "A long datum is cut.")))

(test syntax-errors-show-the-first-twenty
  (flet ((mistake (line &optional others)
           (make-condition 'proto-syntax-error :file "x.proto" :line line :column 1
                                               :text (format nil "mistake ~D" line)
                                               :others others)))
    (is (equal "x.proto:1:1: mistake 1" (princ-to-string (mistake 1))))
    (is (equal (format nil "x.proto:1:1: mistake 1~%x.proto:2:1: mistake 2")
               (princ-to-string (mistake 1 (list (mistake 2))))))
    (flet ((lines (count)
             (let ((text (princ-to-string (mistake 1 (loop for i from 2 to count
                                                           collect (mistake i))))))
               (values (1+ (count #\Newline text)) text))))
      (is (= 20 (lines 20)))
      (multiple-value-bind (lines text) (lines 21)
        (is (= 21 lines))
        (is (search "and 1 more error in this file" text)))
      (is (search "and 5 more errors in this file" (nth-value 1 (lines 25)))))))
