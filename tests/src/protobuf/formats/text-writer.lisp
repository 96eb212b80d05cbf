;;;; Messages in text format: every kind of field, layouts, Any, unknown fields.

(in-package #:clgrpc.tests.protobuf)

(defun text= (text message &rest options)
  (string= (unquote text) (apply #'message-text message :single-line t options)))

(test scalars-in-text
  (is (text= "" (all)))
  (is (text= "f1: 0.5 f2: nan f3: -1 f6: 18446744073709551615 f13: true f14: 'a\\nλ\\\\' f15: '\\000\\377a' f16: BLUE"
             (all :f1 0.5d0 :f2 (protobuf::bits-single #x7FC00000) :f3 -1 :f6 (1- (expt 2 64))
                  :f13 t
                  :f14 (format nil "a~%λ\\") :f15 (octets-of 0 255 97) :f16 :blue)))
  (is (text= "f1: -inf f16: 77 o3: 0 o14: ''"
             (all :f1 sb-ext:double-float-negative-infinity :f16 77 :o3 0 :o14 ""))))

(test layouts-of-text
  (let ((message (all :f3 1 :f17 (clgrpc.test:make-inner :a 2 :next (clgrpc.test:make-inner))
                      :r3 '(1 2) :m1 '(("k" . 3)))))
    (is (text= "f3: 1 f17 { a: 2 next { } } r3: 1 r3: 2 m1 { key: 'k' value: 3 }" message))
    (is (string= (format nil "f3: 1~%f17 {~%  a: 2~%  next {~%  }~%}~%r3: 1~%r3: 2~%m1 {~%  key: \"k\"~%  value: 3~%}~%")
                 (message-text message)))
    (is (equalp (string-octets (message-text message)) (message-text message :as :octets)))))

(test groups-and-extensions-in-text
  (is (text= "needed: true Part { size: 3 } Piece { name: 'x' }"
             (parse-text-message "clgrpc.test.legacy.Legacy"
                                 "needed: 1 part { size: 3 } Piece { name: \"x\" }")))
  (is (text= "[clgrpc.test.extension.count]: 300 [clgrpc.test.extension.names]: 'a'"
             (base "count" 300 "names" '("a")))))

(test delimited-fields-in-text
  "A field has its type's name only if both are declared in the same message, as in a group."
  (define "scopes.proto" "edition = \"2023\"; package clgrpc.test.scratch;
option features.message_encoding = DELIMITED;
message Aa { message Inner { int32 x = 1; } Inner inner = 1; Bb.Outer outer = 2; }
message Bb { message Outer { int32 x = 1; } }")
  (is (text= "Inner { x: 1 } outer { x: 2 }"
             (parse-text-message "clgrpc.test.scratch.Aa" "inner { x: 1 } outer { x: 2 }"))))

(test any-in-text
  (is (text= "any { [type.googleapis.com/clgrpc.test.Inner] { a: 3 } }"
             (holder :any (any (clgrpc.test:make-inner :a 3)))))
  (is (text= "any { type_url: 'x/no.such' value: 'a' }"
             (holder :any (google.protobuf:make-any :type-url "x/no.such"
                                                    :value (octets-of 97)))))
  (is (text= "any { type_url: 'x/clgrpc.test.Inner' value: '\\377' }"
             (holder :any (google.protobuf:make-any :type-url "x/clgrpc.test.Inner"
                                                    :value (octets-of 255))))
      "the octets are not a message of the type"))

(test unknown-fields-in-text
  (let ((message (parse-message "clgrpc.test.Inner"
                                (unhex (concatenate 'string "0801 c03e05 cd3e01000000 "
                                                    "c93e0200000000000000 d23e03616263 "
                                                    "da3e020801 e33e0807e43e")))))
    (is (text= "a: 1" message))
    (is (text= "a: 1 1000: 5 1001: 0x00000001 1001: 0x0000000000000002 1002: 'abc' 1003 { 1: 1 } 1004 { 1: 7 }"
               message :unknown t))))

(test unknown-fields-in-text-nest-ten-levels
  "Below, a value that could be a message is a literal, since peers' values may nest deeper."
  (let ((octets (unhex "0801")))
    (loop repeat 12 do (setf octets (concatenate 'octets (unhex "c23e") (octets-of (length octets))
                                                 octets)))
    (let ((text (message-text (parse-message "clgrpc.test.Inner" octets) :unknown t)))
      (is (= 10 (count #\{ text)))
      (is (= 11 (loop for start = (search "1000" text) then (search "1000" text :start2 (1+ start))
                      while start count t))))))
