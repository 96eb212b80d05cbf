;;;; Fields by path, from bare texts, and as JSON.

(in-package #:clgrpc.tests.protobuf)

(define-proto "field-text.proto"
  :source "syntax = \"proto2\";
package clgrpc.tests.fieldtext;
import 'google/protobuf/timestamp.proto';
enum Kind { NONE = 0; SOME = 3; }
message Part { optional string part_name = 1; required int32 size = 2; optional Part inner = 3; }
message Whole {
  optional Part part = 1;
  repeated Kind kinds = 2;
  optional bool on = 3 [default = true];
  oneof choice { int32 number = 4; Part other = 5; }
  map<string, int32> counts = 6;
  optional group Extra = 7 { optional string text = 1; }
  repeated Part parts = 8;
  repeated google.protobuf.Timestamp times = 9;
}")

(defun whole-with (path &rest texts)
  "The JSON of a Whole whose field at PATH has TEXTS; or the path and text of the error."
  (let ((whole (clgrpc.tests.fieldtext:make-whole)))
    (handler-case
        (message-json (set-field-text whole (find-field-path 'clgrpc.tests.fieldtext:whole path)
                                      texts))
      (field-text-error (condition)
        (list (field-text-error-path condition) (field-text-error-text condition))))))

(test fields-are-found-by-their-names
  "They are found by the name in the .proto file or in JSON, through singular messages only."
  (flet ((found (path &rest keys)
           (multiple-value-bind (fields stuck)
               (apply #'find-field-path "clgrpc.tests.fieldtext.Whole" path keys)
             (if stuck stuck (mapcar #'field-descriptor-number fields)))))
    (is (equal '(1 1) (found "part.part_name")))
    (is (equal '(1 1) (found "part.partName")))
    (is (equal '(1 3 3 2) (found "part.inner.inner.size")))
    (is (equal "inner" (found "part.inner.inner.size" :max-steps 2)))
    (is (equal "nothing" (found "part.nothing")))
    (is (equal "on" (found "on.x")))
    (is (equal "parts" (found "parts.size")))
    (is (equal "counts" (found "counts.key")))
    (is (equal "" (found "")))
    (is (equal "" (found "part.")))
    (is (equal "" (found ".part")))))

(test texts-become-values
  (is (string= "{\"part\":{\"inner\":{\"size\":7}}}" (whole-with "part.inner.size" "7")))
  (is (string= "{\"number\":0}" (whole-with "number" "0")))
  (dolist (text '("007" "00" "-01" "+1" "1 "))
    (is (equal '("number" "takes an integer, int32") (whole-with "number" text)) "~S" text))
  (is (string= "{\"kinds\":[\"SOME\",\"NONE\"]}" (whole-with "kinds" "SOME" "0")))
  (is (string= "{\"times\":[\"1970-01-01T00:00:00Z\",\"2000-01-01T00:00:00Z\"]}"
               (whole-with "times" "1970-01-01T00:00:00Z" "2000-01-01T00:00:00Z")))
  (is (string= "{\"on\":false}" (whole-with "on" "false")))
  (is (string= "{\"other\":{\"size\":1}}" (whole-with "other.size" "1")))
  (is (equal '("kinds" "takes the name or number of a value") (whole-with "kinds" "5")))
  (is (equal '("on" "takes true or false") (whole-with "on" "1")))
  (is (equal '("on" "takes one value only") (whole-with "on" "true" "true")))
  (is (equal '("part" "takes a message, which no text can be") (whole-with "part" "x")))
  (is (equal '("counts" "takes a message, which no text can be") (whole-with "counts" "x"))))

(test what-is-there-stays-unless-it-is-replaced
  (let ((whole (clgrpc.tests.fieldtext:make-whole :number 4)))
    (flet ((put (path text &rest keys)
             (apply #'set-field-text whole (find-field-path "clgrpc.tests.fieldtext.Whole" path)
                    (list text) keys)))
      (signals field-text-error (put "number" "5"))
      (signals field-text-error (put "other.size" "5"))
      (put "number" "6" :replace t)
      (is (= 6 (field-value whole "number"))))))

(test one-field-is-read-from-json-and-written
  (flet ((through (field text)
           (field-json (parse-json-field (clgrpc.tests.fieldtext:make-whole) field text) field)))
    (dolist (case '(("kinds" "[\"SOME\",\"NONE\"]") ("kinds" "[]") ("on" "false") ("part" "{}")
                    ("number" "5") ("counts" "{\"a\":1}") ("parts" "[{\"size\":2}]")))
      (is (string= (second case) (apply #'through case)) "~S" case))
    (is (string= "{}" (through "part" "null")))
    (is (string= "true" (through "on" "null")))
    (is (string= "null" (through "number" "null")))
    (dolist (case '(("on" "1") ("on" "true x") ("part" "{\"sise\":1}") ("kinds" "[null]")))
      (signals message-text-error (apply #'through case) "~S" case)))
  (signals message-text-error
    (parse-json-field (clgrpc.tests.fieldtext:make-whole) "on" "true" :max-octets 3)))
