;;;; Extensions of every kind, message sets, files that are loaded after messages were read.

(in-package #:clgrpc.tests.protobuf)

(define-proto "extension.proto")

(defun base (&rest pairs)
  "A Base with extensions from PAIRS, names and values."
  (let ((message (clgrpc.test.extension:make-base)))
    (loop for (name value) on pairs by #'cddr
          do (setf (field-value message (format nil "[clgrpc.test.extension.~A]" name)) value))
    message))

(defun part (&rest arguments)
  (apply #'clgrpc.test.extension:make-part arguments))

(defun bare (octets)
  "The Base in OCTETS, as before any extension was loaded."
  (let* ((type (find-message-type "clgrpc.test.extension.Base"))
         (table (protobuf::message-type-extensions type)))
    (unwind-protect
         (progn (setf (protobuf::message-type-extensions type) nil)
                (parse-message type octets))
      (setf (protobuf::message-type-extensions type) table)
      (protobuf::note-definition))))

(defun everything ()
  (base "count" 300 "title" "t" "mood" :calm "part" (part :size 1 :inner (part :note "n"))
        "Scope.inside" t "box" (clgrpc.test.extension:make-box :width 5)
        "names" '("a" "bc") "plain" '(1 -1) "packed" '(-64 64 0)
        "parts" (list (part :size 1) (part)) "moods" '(:angry :calm)
        "bag" (list (clgrpc.test.extension:make-bag :weight 9) (clgrpc.test.extension:make-bag))
        "ratio" 1.5d0))

(test extensions-have-accessors
  (let ((message (clgrpc.test.extension:make-base :own 1)))
    (is (= 7 (clgrpc.test.extension:count message)))
    (is (eq :angry (clgrpc.test.extension:mood message)))
    (is (null (clgrpc.test.extension:part message)))
    (is (equalp #() (clgrpc.test.extension:parts message)))
    (is-false (clgrpc.test.extension:has-count message))
    (setf (clgrpc.test.extension:count message) 8
          (clgrpc.test.extension:names message) '("x")
          (clgrpc.test.extension:scope.inside message) t)
    (is (= 8 (clgrpc.test.extension:count message)))
    (is (equalp #("x") (clgrpc.test.extension:names message)))
    (is-true (clgrpc.test.extension:has-count message))
    (is-true (clgrpc.test.extension:scope.inside message))
    (is (eq message (clgrpc.test.extension:clear-count message)))
    (is-false (clgrpc.test.extension:has-count message))
    (is (= 7 (clgrpc.test.extension:count message)))
    (signals type-error (setf (clgrpc.test.extension:count message) "eight"))
    (signals type-error (clgrpc.test.extension:count (part)))
    (is (search "How many." (documentation 'clgrpc.test.extension:count 'function)))))

(test extensions-are-written-in-order-before-unknown-fields
  (let ((message (parse-message 'clgrpc.test.extension:base (unhex "9a0101ff 5008 0803"))))
    (is (equalp (unhex "9a0101ff") (unknown-fields message)))
    (is (= 8 (clgrpc.test.extension:count message)))
    (is (equal "080350089a0101ff" (hex (serialize message)))))
  (is (equal "73080574" (hex (serialize (base "box" (clgrpc.test.extension:make-box :width 5))))))
  (is (equal "b201047f800100" (hex (serialize (base "packed" '(-64 64 0))))))
  (is (equal "a80102a80101" (hex (serialize (base "plain" '(1 -1)))))))

(test extensions-survive-a-round-trip
  (let* ((message (everything)) (octets (serialize message)) (back (round-trip message)))
    (is (= (length octets) (serialized-size message)))
    (is (message= message back))
    (is (null (unknown-fields back)))
    (is (equalp octets (serialize back)))
    (is (message= message (copy-message message)))
    (is (= 13 (length (protobuf::present-slots back))))
    (is (search " [clgrpc.test.extension.count] 300" (princ-to-string back)))))

(test copies-share-no-extension
  (let* ((message (everything)) (copy (copy-message message)))
    (setf (clgrpc.test.extension:part-size (clgrpc.test.extension:part copy)) 9
          (clgrpc.test.extension:count copy) 1
          (aref (clgrpc.test.extension:packed copy) 0) 1)
    (is (message= message (everything)))
    (is-false (message= message copy))))

(test extensions-loaded-later-become-readable
  (let* ((octets (serialize (everything))) (message (bare octets)))
    (is (equalp octets (protobuf::message-extra message)))
    (is (equalp octets (serialize message)))
    (is (= 300 (clgrpc.test.extension:count message)))
    (is (null (unknown-fields message)))
    (is (message= (everything) message))
    (is (message= (bare octets) (everything)))))

(test a-redefined-extension-reads-what-was-set-before
  (flet ((define-late (type)
           (define "late.proto"
             (format nil "syntax = \"proto2\"; package clgrpc.test.late; ~
                          import \"extension.proto\"; ~
                          extend clgrpc.test.extension.Base { ~A late = 90; }" type))))
    (define-late "optional int32")
    (let* ((name "[clgrpc.test.late.late]") (message (base)))
      (setf (field-value message name) 5)
      (define-late "repeated int64")
      (is (equalp #(5) (field-value message name)))
      (is (equal "d00505" (hex (serialize message))))
      (define-late "optional string")
      (is-false (field-present-p message name))
      (is (equal "d00505" (hex (unknown-fields message)))))))

(test pieces-of-an-extension-are-merged
  (let ((message (parse-message 'clgrpc.test.extension:base
                                (concatenate 'octets
                                             (serialize (base "part" (part :size 1 :sizes '(1))))
                                             (serialize (base "part" (part :note "n"
                                                                           :sizes '(2))))))))
    (is (message= (part :size 1 :note "n" :sizes '(1 2)) (clgrpc.test.extension:part message)))))

(test packed-and-unpacked-extensions-are-both-read
  (flet ((parse (hex) (parse-message 'clgrpc.test.extension:base (unhex hex))))
    (is (equalp #(1 -1) (clgrpc.test.extension:plain (parse "aa01020201"))))
    (is (equalp #(1 -1) (clgrpc.test.extension:packed (parse "b00102b00101"))))
    (let ((message (parse "c00101c00105c00102 6009")))
      (is (equalp #(:calm :angry) (clgrpc.test.extension:moods message)))
      (is (equal "c001056009" (hex (unknown-fields message)))))
    (is (equal "520161" (hex (unknown-fields (parse "520161")))))))

(defun packed-fields ()
  "For packed fields in each kind of coder: the type of the message, the tag and, if the enum is
closed, the values with the numbers 1 and 2."
  (let ((legacy (find-pool-type (pool-of "legacy.proto") "clgrpc.test.legacy.Legacy")))
    `((clgrpc.test.legacy:legacy #x32 :low :high)
      (,legacy #x32 "LOW" "HIGH")
      (,legacy #x3a)
      (clgrpc.test.extension:base #xc2 :calm :angry)
      (clgrpc.test.extension:base #xb2))))

(defun field-octets (tag hex)
  (concatenate 'octets (protobuf::tag-octets tag) (unhex hex)))

(test elements-that-a-closed-enum-does-not-know
  "They become unknown fields in their order, each with its own tag, packed or not before."
  (loop for (type tag one two) in (packed-fields)
        for single = (logandc2 tag 7) and minus = "ffffffffffffffffff01"
        when one
          do (let* ((octets (concatenate 'octets
                                         (field-octets tag "0d 010502 ffffffffffffffffff01")
                                         (field-octets single "07") (field-octets single "01")
                                         (field-octets single minus)))
                    (message (parse-message type octets :partial t)))
               (is (equalp (vector one two one) (field-value message (ash tag -3))))
               (is (equalp (concatenate 'octets (field-octets single "05")
                                        (field-octets single minus) (field-octets single "07")
                                        (field-octets single minus))
                           (unknown-fields message))))))

(test packed-elements-take-little-memory
  "Some octets for each element, even if the enum does not know it."
  (let ((count 200000))
    (loop for (type tag) in (packed-fields)
          do (dolist (element '(1 99))
               (let* ((octets (concatenate 'octets (field-octets tag "c09a0c")
                                           (make-array count :initial-element element)))
                      (before (sb-ext:get-bytes-consed)))
                 (parse-message type octets :partial t)
                 (is (> (* 40 count) (- (sb-ext:get-bytes-consed) before))))))))

(defun varints (numbers)
  (coerce (loop for number in numbers append (protobuf::tag-octets (ldb (byte 64 0) number)))
          'octets))

(test packed-elements-of-any-number
  "A few are read one by one, and more together; consecutive fields count as one."
  (let ((type (find-pool-type (pool-of "legacy.proto") "clgrpc.test.legacy.Legacy")))
    (dolist (count '(0 1 15 16 17 40))
      (let* ((values (loop for i below count collect (if (evenp i) i (- i))))
             (field (concatenate 'octets (unhex "3a")
                                 (protobuf::tag-octets (length (varints values)))
                                 (varints values)))
             (message (parse-message type (concatenate 'octets field (unhex "3809") field)
                                     :partial t)))
        (is (equalp (coerce (append values '(9) values) 'vector)
                    (field-value message "numbers")))))
    ;; the last element is cut off
    (dolist (hex '("3a0180" "3a02ff80" "3a11 0101010101010101010101010101010180"))
      (signals protobuf-error (parse-message type (unhex hex) :partial t)))))

(test end-tags-longer-than-needed
  "The tag that ends a group may have more octets than it needs: in an extension, in an item of a
message set, and in a field of a message without its own coders."
  (let ((legacy (find-pool-type (pool-of "legacy.proto") "clgrpc.test.legacy.Legacy")))
    (loop for (type hex expected)
            in `((clgrpc.test.extension:base "cb01 0805 cc01 cb01 cc8100 73 0807 f48000"
                  ,(base "bag" (list (clgrpc.test.extension:make-bag :weight 5)
                                     (clgrpc.test.extension:make-bag))
                         "box" (clgrpc.test.extension:make-box :width 7)))
                 (clgrpc.test.extension:set "0b 10f9bb5e 1a05ca01026869 8c8000"
                  ,(parse-message 'clgrpc.test.extension:set
                                  (unhex "0b 10f9bb5e 1a05ca01026869 0c")))
                 (,legacy "43 0805 c400 4b 4c 4b cc8000"
                  ,(parse-message legacy (unhex "43 0805 44 4b 4c 4b 4c") :partial t)))
          do (let ((message (parse-message type (unhex hex) :partial t)))
               (is (null (unknown-fields message)))
               (is (message= expected message))))))

(test malformed-extensions-are-refused
  (dolist (bad '("6a0108" "6a020801 6a0208" "b20101ff" "7308"))
    (signals protobuf-error (parse-message 'clgrpc.test.extension:base (unhex bad)))))

(test message-sets
  (let* ((message (clgrpc.test.extension:make-set))
         (item (clgrpc.test.extension:make-item :text "hi")))
    (setf (clgrpc.test.extension:item.item message) item)
    (is (equal "0b10f9bb5e1a05ca0102 6869 0c"
               (format nil "~A ~A ~A" (subseq (hex (serialize message)) 0 20)
                       (subseq (hex (serialize message)) 20 24)
                       (subseq (hex (serialize message)) 24))))
    (is (message= message (round-trip message)))
    (flet ((parse (hex) (parse-message 'clgrpc.test.extension:set (unhex hex))))
      (is (message= message (parse "0b 1a05ca01026869 10f9bb5e 0c")))
      (let ((other (parse "0b 10f8bb5e 1a00 0c 0b 10f9bb5e 1a05ca01026869 0c 0b 0c")))
        (is (message= item (clgrpc.test.extension:item.item other)))
        (is (equal "0b10f8bb5e1a000c0b0c" (hex (unknown-fields other))))))))

(test extensions-are-found
  (let ((field (find-extension "clgrpc.test.extension.count")))
    (is (= 10 (field-descriptor-number field)))
    (is (eq field (find-extension-number "clgrpc.test.extension.Base" 10)))
    (is (member field (extension-fields 'clgrpc.test.extension:base)))
    (is (= 300 (field-value (everything) field)))
    (is (null (find-extension "clgrpc.test.extension.nothing")))
    (signals error (clgrpc.protobuf::find-linked "clgrpc.test.extension.Nothing"))
    (is (null (find-extension-number "clgrpc.test.extension.Base" 98)))
    (signals misuse (field-value (everything) "[clgrpc.test.extension.nothing]"))
    (signals misuse (field-value (part) "[clgrpc.test.extension.count]"))))

(test strings-that-need-no-utf-8-come-back-as-they-were
  (dolist (hex '("ff" "c328" "61ed a080 c3a9" "f0908080 80" "e282" "c0af f4908080 fe"))
    (let* ((octets (unhex hex))
           (message (parse-message 'clgrpc.test.legacy:legacy
                                   (concatenate 'octets (list #x12 (length octets)) octets
                                                (list #x20 1)))))
      (is (equalp (concatenate 'octets (list #x12 (length octets)) octets (list #x20 1))
                  (serialize message)))))
  (is (equal "é" (clgrpc.test.legacy:legacy-title
                  (parse-message 'clgrpc.test.legacy:legacy (unhex "1202c3a92001"))))))
