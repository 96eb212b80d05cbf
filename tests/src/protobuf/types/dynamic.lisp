;;;; Messages known from descriptors alone, compared with compiled ones of the same definitions.

(in-package #:clgrpc.tests.protobuf)

(defun pool-of (&rest names)
  (make-type-pool (mapcar #'find-file-descriptor names)))

(defun dynamic (pool message)
  (parse-message (find-pool-type pool (message-type-name (message-type-of message)))
                 (serialize message :partial t) :partial t))

(defun full-message ()
  (all :f1 1.5d0 :f2 2f0 :f3 -3 :f4 (- (expt 2 40)) :f5 5 :f6 (1- (expt 2 64)) :f7 -7 :f8 8 :f9 9
       :f10 10 :f11 -11 :f12 12 :f13 t :f14 "é" :f15 (octets-of 1 2) :f16 :neg
       :f17 (clgrpc.test:make-inner :a 1 :next (clgrpc.test:make-inner :s "x"))
       :r1 '(1d0 2d0) :r3 '(1 -2) :r13 '(t nil) :r14 '("a" "b") :r16 '(:red 77)
       :r17 (list (clgrpc.test:make-inner :a 2) (clgrpc.test:make-inner)) :u3 '(5 6) :u16 '(:blue)
       :o3 0 :o14 "" :o16 :big :p17 (clgrpc.test:make-inner :xs '(1 2 3))
       :m1 '(("a" . 1) ("b" . 2)) :m2 (list (cons -1 (clgrpc.test:make-inner :a 4)))
       :m3 '((t . "t") (nil . "f")) :m5 '((-3 . :green) (4 . 99)) :m6 `((6 . ,(octets-of 6)))
       :far 1 :sparse "s"))

(test dynamic-messages-like-compiled-ones
  (let ((pool (pool-of "all.proto" "legacy.proto" "extension.proto")))
    (dolist (message (list (all) (full-message) (everything)
                           (parse-text-message "clgrpc.test.legacy.Legacy"
                                               "Part { size: 1 } levels: [LOW, HIGH] Piece { }
                                                by_number { key: 1 value: TWO } ratio: nan"
                                               :partial t)))
      (let* ((dynamic (dynamic pool message)) (type (message-type-of dynamic)))
        (is (not (eq type (message-type-of message))))
        (is (equalp (serialize message :partial t :deterministic t)
                    (serialize dynamic :partial t :deterministic t)))
        (is (string= (message-json message) (message-json dynamic)))
        (is (string= (message-text message) (message-text dynamic)))
        (is (message= dynamic (parse-json-message type (message-json message) :partial t)))
        (is (message= dynamic (parse-text-message type (message-text message) :partial t)))
        (is (message= dynamic (copy-message dynamic)))
        (is (search (message-type-name type) (princ-to-string dynamic)))))))

(test fields-of-dynamic-messages
  (let* ((pool (pool-of "all.proto"))
         (message (make-message (find-pool-type pool "clgrpc.test.All")))
         (inner (make-message (find-pool-type pool "clgrpc.test.Inner"))))
    (is (equal "RED" (field-value message "f16")))
    (setf (field-value message :f16) "BLUE"
          (field-value message "r16") '("GREEN" 77)
          (field-value message "p3") 5
          (field-value message "f17") inner
          (map-value (field-value message "m2") 3) inner
          (field-value inner "a") 9)
    (is (equal "BLUE" (field-value message 16)))
    (is (equalp #("GREEN" 77) (field-value message "r16")))
    (is-true (field-present-p message "p3"))
    (setf (field-value message "p14") "x")
    (is-false (field-present-p message "p3"))
    (is (string= "{\"f16\":\"BLUE\",\"f17\":{\"a\":9},\"r16\":[\"GREEN\",77],\"p14\":\"x\",\"m2\":{\"3\":{\"a\":9}}}"
                 (message-json message)))
    (let ((copy (copy-message message)))
      (setf (field-value (field-value message "f17") "a") 1)
      (clear-field message "f16")
      (is (= 9 (field-value (field-value copy "f17") "a")))
      (is (equal "BLUE" (field-value copy "f16"))))
    (signals type-error (setf (field-value message "f17") (clgrpc.test:make-inner)))
    (signals misuse (setf (field-value message "f16") "PINK"))
    (signals misuse (field-value message "nope"))
    (is (message= (clear-message message)
                  (make-message (find-pool-type pool "clgrpc.test.All"))))))

(test extensions-of-dynamic-messages
  (let* ((pool (pool-of "extension.proto"))
         (message (make-message (find-pool-type pool "clgrpc.test.extension.Base"))))
    (setf (field-value message "[clgrpc.test.extension.count]") 5)
    (is (string= "{\"[clgrpc.test.extension.count]\":5}" (message-json message)))
    (is (equalp (serialize (base "count" 5)) (serialize message)))))

(test pieces-and-unknown-fields-of-dynamic-messages
  (let* ((pool (pool-of "all.proto"))
         (type (find-pool-type pool "clgrpc.test.All"))
         (pieces (concatenate 'octets (serialize (all :f17 (clgrpc.test:make-inner :a 1)))
                              (serialize (all :f17 (clgrpc.test:make-inner :s "x"))))))
    (is (equalp (serialize (parse-message "clgrpc.test.All" pieces))
                (serialize (parse-message type pieces))))
    (let ((octets (unhex "c0c40705 0801")))
      (is (equalp octets (unknown-fields (parse-message type octets))))
      (is (equalp octets (serialize (parse-message type octets)))))
    (signals protobuf-error (parse-message type (unhex "0a05")))
    (signals protobuf-error
      (parse-message type (serialize (full-message)) :max-message-depth 1))))

(test nothing-is-interned-for-dynamic-types
  (let* ((file (protobuf::link-file
                (protobuf::parse-proto (proto "enum E { E_ZERO_UNSEEN = 0; } message UnseenType {
                                               E unseen_field = 1; }")
                                       "unseen.proto")
                (constantly nil) '()))
         (pool (make-type-pool (descriptor-set-octets (list file))))
         (message (parse-text-message (find-pool-type pool "clgrpc.test.scratch.UnseenType")
                                      "unseen_field: E_ZERO_UNSEEN")))
    (is (equal "E_ZERO_UNSEEN" (field-value message "unseen_field")))
    (is (null (find-message-type "clgrpc.test.scratch.UnseenType")))
    (is (null (find-descriptor "clgrpc.test.scratch.UnseenType")))
    (dolist (name '("UNSEEN-TYPE" "UNSEEN-FIELD" "E-ZERO-UNSEEN"))
      (is (null (find-all-symbols name)) "~A" name))))

(test message-sets-of-pools
  "An extension of a message set that only the pool declares is read and written as an item."
  (let* ((file (protobuf::link-file
                (protobuf::parse-proto
                 "syntax = 'proto2'; package clgrpc.test.sets;
                  message Set { option message_set_wire_format = true; extensions 4 to max; }
                  message Item { optional string text = 1; extend Set { optional Item item = 5; } }"
                 "sets.proto")
                (constantly nil) '()))
         (type (find-pool-type (make-type-pool (descriptor-set-octets (list file)))
                               "clgrpc.test.sets.Set"))
         (octets (unhex "0b 1005 1a04 0a026869 0c")))
    (is (search "hi" (message-json (parse-message type octets))))
    (is (equalp octets (serialize (parse-message type octets))))))

(defun length-delimited (number octets)
  "The field NUMBER with OCTETS, fewer than 128."
  (concatenate 'octets (octets-of (logior 2 (ash number 3)) (length octets)) octets))

(test nothing-is-interned-for-features-of-others
  "A file may declare its own google.protobuf.FeatureSet, with features of its own."
  (let ((declared (protobuf::link-file
                   (protobuf::parse-proto
                    "syntax = 'proto2'; package google.protobuf;
                     message FileOptions { optional FeatureSet features = 50; }
                     message FeatureSet { optional Oddity unseen_oddity = 9; }
                     enum Oddity { ODDITY_UNKNOWN = 0; ODDITY_NEVER_SEEN = 1; }"
                    "oddities.proto")
                   (constantly nil) '()))
        (user (concatenate 'octets
                           (length-delimited 1 (string-octets "odd.proto"))
                           (length-delimited 3 (string-octets "oddities.proto"))
                           (length-delimited 8 (octets-of 146 3 2 72 1)) ; the field 50
                           (length-delimited 12 (string-octets "editions"))
                           (octets-of 112 232 7)))) ; edition 2023
    (is-true (make-type-pool (concatenate 'octets (descriptor-set-octets (list declared))
                                          (length-delimited 1 user))))
    (dolist (name '("UNSEEN-ODDITY" "ODDITY-NEVER-SEEN"))
      (is (null (find-all-symbols name)) "~A" name))))

(defun mutated (octets)
  "OCTETS with a few random changes."
  (let ((octets (copy-seq octets)))
    (dotimes (i (1+ (random 4)) octets)
      (let ((at (random (max 1 (length octets)))))
        (setf octets
              (case (random 3)
                (0 (replace (copy-seq octets) (octets-of (random 256)) :start1 at))
                (1 (concatenate 'octets (subseq octets 0 at) (subseq octets (min (1+ at)
                                                                                 (length octets)))))
                (t (concatenate 'octets (subseq octets 0 at)
                                (subseq octets (random (max 1 (length octets))))))))))))

(defun survives (reader sources rounds)
  "Call READER with ROUNDS mutations of the octets SOURCES; every result but a message or a
PROTOBUF-ERROR is a failure."
  (with-seed ()
    (dotimes (i rounds (pass))
      (let ((octets (mutated (elt sources (random (length sources))))))
        (handler-case (funcall reader octets)
          (protobuf-error ())
          (error (condition)
            (fail "seed ~D, round ~D: ~A for ~S" *seed* i condition octets)
            (return)))))))

(test mutated-octets-of-dynamic-messages
  (let* ((pool (pool-of "all.proto" "extension.proto"))
         (types (list (find-pool-type pool "clgrpc.test.All")
                      (find-pool-type pool "clgrpc.test.extension.Base"))))
    (survives (lambda (octets)
                (dolist (type types)
                  (let ((message (handler-case (parse-message type octets)
                                   (protobuf-error () nil))))
                    (when message
                      (let ((again (serialize message)))
                        (assert (equalp again (serialize (parse-message type again)))))))))
              (list (serialize (full-message)) (serialize (everything)))
              1000)))
