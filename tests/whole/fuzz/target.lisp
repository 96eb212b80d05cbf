;;;; What is fuzzed. A TARGET is one decoder: where its valid inputs come from, how they are
;;;; mutated, what is done with an input, and which conditions it may signal. Anything else that is
;;;; signalled, an answer that differs from another answer to the same question, much time or much
;;;; memory is a finding.

(in-package #:clgrpc.tests.fuzz)

(defstruct (sample (:copier nil))
  "A valid input. KIND is what the target needs to know of it, such as the type of a message; PARTS
are its nodes or tokens, ready for mutation."
  (kind nil)
  (octets (make-octets 0) :type octets)
  (parts nil))

(defstruct (target (:copier nil))
  "A decoder. SAMPLES makes a list of samples; MUTATE is a function of a sample and of all of its
kind; RUN one of a kind and octets, which may take SECONDS."
  (name "" :type string)
  (samples #'identity :type function)
  (mutate #'identity :type function)
  (run #'identity :type function)
  (conditions '() :type list)
  (seconds 2 :type real))

(defvar *targets* '())

(defmacro define-target (name &key samples mutate run conditions (seconds 2))
  `(setf *targets* (append (remove ,name *targets* :key #'target-name :test #'string=)
                           (list (make-target :name ,name :samples ,samples :mutate ,mutate
                                              :run ,run :conditions ',conditions
                                              :seconds ,seconds)))))

(defun find-target (name)
  (find name *targets* :key #'target-name :test #'string=))

(define-condition finding (error)
  ((text :initarg :text))
  (:report (lambda (condition stream) (write-string (slot-value condition 'text) stream))))

(defun found (control &rest arguments)
  (error 'finding :text (format nil "~?" control arguments)))

;;; Mutation

(defun times-to-mutate ()
  (if (chance-p 3) (+ 2 (below 5)) 1))

(defun mutate-message (sample siblings)
  (let ((nodes (sample-parts sample))
        (others (coerce (or (sample-parts (pick siblings)) (list (make-node))) 'simple-vector)))
    (loop repeat (times-to-mutate)
          do (setf nodes (mutate-nodes nodes others)))
    (let ((octets (tree-octets nodes)))
      (if (chance-p 4) (mutate-octets octets (vector (sample-octets (pick siblings)))) octets))))

(defun mutate-text (sample siblings)
  (let* ((tokens (sample-parts sample))
         (parts (sample-parts (pick siblings)))
         (others (if (plusp (length parts)) parts *tokens*)))
    (loop repeat (times-to-mutate)
          do (setf tokens (mutate-tokens tokens others)))
    (let ((octets (join-tokens tokens)))
      (if (chance-p 4) (mutate-octets octets (vector (sample-octets (pick siblings)))) octets))))

(defun message-sample (kind octets)
  (make-sample :kind kind :octets octets
               :parts (read-tree octets 0 (length octets) +tree-depth+)))

(defun text-sample (kind text)
  (let ((octets (if (stringp text) (string-octets text) text)))
    (make-sample :kind kind :octets octets :parts (text-tokens octets))))

;;; Serialized messages

(defparameter *types*
  '("clgrpc.test.All" "clgrpc.test.legacy.Legacy" "clgrpc.test.extension.Base"
    "clgrpc.test.extension.Set" "google.protobuf.Struct"
    "google.protobuf.FileDescriptorProto"
    "google.protobuf.compiler.CodeGeneratorRequest")
  "The types of which messages are read.")

(defun random-messages (type count)
  "COUNT random messages of TYPE, a full name, none longer than 2,000 octets."
  (loop while (plusp count)
        for message = (messages:random-message type 0)
        when (<= (protobuf:serialized-size message) 2000)
          collect message
          and do (decf count)))

(defun binary-samples (&optional (types *types*))
  (loop for type in types
        append (loop for message in (random-messages type 20)
                     collect (message-sample type (protobuf:serialize message :partial t)))))

(defun padded (octets filling)
  "OCTETS with 32 octets FILLING on either side."
  (let ((padded (make-octets (+ 64 (length octets)))))
    (replace (fill padded filling) octets :start1 32)))

(defun parse-padded (type octets filling)
  (protobuf:parse-message type (padded octets filling) :start 32 :end (+ 32 (length octets))
                                                       :partial t))

(defun run-binary (type octets)
  "Read OCTETS as a message of TYPE twice, with other octets around, which may not matter; what is
read must survive being written and read."
  (flet ((read-with (filling)
           (handler-case (parse-padded type octets filling)
             ((or protobuf:protobuf-error limit-exceeded) (condition) condition))))
    (let ((message (read-with #xFF)) (again (read-with #x01)))
      (cond ((typep message 'condition)
             ;; which error it is may depend on what a varint is taken to go on with
             (unless (typep again 'condition)
               (found "with other octets around it ~A becomes ~A" message again))
             (error message))
            ((typep again 'condition)
             (found "with other octets around it a message becomes ~A" again))
            ((not (protobuf:message= message again))
             (found "other octets around it make another message"))
            (t (let ((written (protobuf:serialize message :partial t)))
                 (unless (protobuf:message= message
                                            (protobuf:parse-message type written :partial t))
                   (found "the message written is not the one read")))
               ;; what remains to be said against it is that it is not whole
               (protobuf:parse-message type octets))))))

(defparameter *files*
  '("all.proto" "legacy.proto" "extension.proto" "google/protobuf/struct.proto"
    "google/protobuf/descriptor.proto" "google/protobuf/compiler/plugin.proto")
  "Where *TYPES* are defined.")

(defvar *dynamic-pool* nil
  "The types of *FILES* as they are known from their descriptors alone; made when needed.")

(defun dynamic-type (full-name)
  (unless *dynamic-pool*
    (setf *dynamic-pool*
          (protobuf:make-type-pool (mapcar #'protobuf:find-file-descriptor *files*))))
  (protobuf:find-pool-type *dynamic-pool* full-name))

(defun run-dynamic (type octets)
  "Read OCTETS as a dynamic message of TYPE, which must go as it does for the compiled type, but
that the order of unknown fields may be another, and that pieces of a sub-message, which are read
together, may be whole only together."
  (flet ((read-as (type)
           (handler-case (protobuf:parse-message type octets :partial t)
             (protobuf:protobuf-error (condition) condition))))
    (let ((compiled (read-as type)) (dynamic (read-as (dynamic-type type))))
      (cond ((and (typep compiled 'condition) (typep dynamic 'condition)) (error dynamic))
            ((typep dynamic 'condition)
             ;; unknown groups are counted from the outermost group, known or not
             (if (search ":max-message-depth" (princ-to-string dynamic))
                 (error dynamic)
                 (found "only as a dynamic message it is wrong: ~A" dynamic)))
            ((typep compiled 'condition) (protobuf:serialize dynamic :partial t))
            ((/= (length (protobuf:serialize compiled :partial t))
                 (length (protobuf:serialize dynamic :partial t)))
             (found "a dynamic message takes another number of octets"))
            ((string/= (protobuf:message-text compiled) (protobuf:message-text dynamic))
             (found "as a dynamic message it is another"))))))

(defun dynamic-samples ()
  "Not of Base: tests of protobuf extend it in the image, which the pool does not know of."
  (binary-samples (remove "clgrpc.test.extension.Base" *types* :test #'string=)))

(define-target "dynamic"
  :samples #'dynamic-samples :mutate #'mutate-message :run #'run-dynamic
  :conditions (protobuf:protobuf-error limit-exceeded))

(define-target "binary"
  :samples #'binary-samples :mutate #'mutate-message :run #'run-binary
  :conditions (protobuf:protobuf-error protobuf:required-field-missing limit-exceeded))

;;; .proto sources

(defparameter *sources*
  '("syntax = \"proto3\"; package a.b; import \"google/protobuf/any.proto\";
option java_package = \"x.y\"; // c
message M { option deprecated = true; reserved 5, 10 to 20; reserved \"old\"; int32 x = 1
[json_name = \"y\", deprecated = true]; repeated N ns = 2; map<string, N> by = 3; oneof o { string
s = 4; google.protobuf.Any any = 6; } optional bool b = 7; message N { E e = 1; a.b.M m = 2; }
enum E { option allow_alias = true; ZERO = 0; ONE = 1; UN = 1; NEG = -5; reserved 7 to max; } }
service S { rpc R(M) returns (stream M.N) { option deprecated = true; }
rpc Q(stream M) returns (M); }"
    "syntax = \"proto2\"; package p; message M { required int32 a = 1 [default = -7]; optional
float f = 2 [default = inf]; optional string s = 3 [default = \"a\\n\\x41\\101\" 'b']; repeated
group G = 4 { optional bytes b = 1 [default = \"\\377\"]; } extensions 100 to 199, 1000 to max;
optional E e = 5 [default = B]; extend M { optional int32 nested = 150; } } enum E { A = 1; B = 2; }
extend M { repeated int64 xs = 100 [packed = true]; optional M m = 101; }"
    "edition = \"2023\"; package e; option features.field_presence = IMPLICIT;
/* block */ message M { string s = 1 [features.field_presence = EXPLICIT, features.utf8_validation =
NONE]; M m = 2 [features.message_encoding = DELIMITED]; repeated int32 xs = 3
[features.repeated_field_encoding = EXPANDED]; enum E { option features.enum_type = CLOSED; A = 1;
} }"
    "syntax = \"proto2\"; import \"google/protobuf/descriptor.proto\"; message Opt {
optional int32 i = 1; optional string s = 2; repeated Opt o = 3; extensions 4 to 9; }
extend google.protobuf.FieldOptions { optional Opt opt = 50000; optional double d = 50001;
repeated int32 n = 50002; }
message U { optional int32 f = 1 [(opt) = { i: 1 s: \"x\" o { i: 0x2 } o: [ {}, < i: -3 > ] },
(d) = 1.5e3, (n) = 1, (n) = 2]; optional int32 g = 2 [(opt).i = 5, (opt).o = {}]; }"
    "message Outer { message Inner { message Deep { optional .Outer.Inner up = 1; } } optional
Inner.Deep d = 1; repeated fixed64 x = 2 [packed=true]; map<int32, Inner> m = 3; }"
    "edition = \"2024\"; package v; import \"google/protobuf/timestamp.proto\"; export message A {
google.protobuf.Timestamp at = 1; local enum L { L_ZERO = 0; } } local message B { A a = 1;
oneof c { bytes y = 2; sint32 z = 3; } }")
  "Valid files, short since mutation goes on from them.")

(defun source-samples ()
  (mapcar (lambda (text) (text-sample nil text)) *sources*))

(defun run-source (kind octets)
  (declare (ignore kind))
  (let ((file (protobuf::parse-proto (octets-string octets) "fuzz.proto")))
    (protobuf::link-file file
                         (lambda (name)
                           (and (protobuf::built-in name) (protobuf:find-file-descriptor name)))
                         '())))

(define-target "proto"
  :samples #'source-samples :mutate #'mutate-text :run #'run-source
  :conditions (protobuf:proto-syntax-error invalid-utf8))

;;; Descriptor sets

(defun set-samples ()
  (append (loop for text in *sources*
                collect (message-sample nil (protobuf:descriptor-set-octets
                                             (protobuf::load-protos "fuzz.proto" text '()))))
          (loop for name in '("google/protobuf/struct.proto" "google/protobuf/api.proto"
                              "legacy.proto" "extension.proto")
                collect (message-sample nil (protobuf:descriptor-set-octets
                                             (list (protobuf:find-file-descriptor name)))))))

(defun run-set (kind octets)
  "Read and link the files, but give them no symbols: those would stay."
  (declare (ignore kind))
  (dolist (file (protobuf::set-files octets))
    (protobuf::link-read-file (protobuf::read-file-descriptor file)
                              #'protobuf:find-file-descriptor)))

(define-target "set"
  :samples #'set-samples :mutate #'mutate-message :run #'run-set
  :conditions (protobuf:protobuf-error protobuf:proto-syntax-error))

;;; Messages in JSON

(protobuf:define-proto "fuzz.proto" :source "syntax = 'proto3'; package clgrpc.test.fuzz;
import 'google/protobuf/any.proto'; import 'google/protobuf/duration.proto';
import 'google/protobuf/field_mask.proto'; import 'google/protobuf/struct.proto';
import 'google/protobuf/timestamp.proto'; import 'google/protobuf/wrappers.proto';
message Known {
  google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2;
  google.protobuf.FieldMask mask = 3; google.protobuf.Struct struct = 4;
  google.protobuf.Value value = 5; google.protobuf.ListValue list = 6; google.protobuf.Any any = 7;
  google.protobuf.BoolValue b = 8; google.protobuf.Int64Value i = 9;
  google.protobuf.UInt64Value u = 10; google.protobuf.DoubleValue d = 11;
  google.protobuf.FloatValue f = 12; google.protobuf.StringValue s = 13;
  google.protobuf.BytesValue y = 14;
  repeated google.protobuf.Value values = 16; map<string, google.protobuf.Any> anys = 17;
  repeated google.protobuf.Timestamp times = 18; oneof o { google.protobuf.Value ov = 19;
  google.protobuf.Int32Value oi = 20; google.protobuf.NullValue null = 21; } }")

(defparameter *known-texts*
  '("{\"at\": \"2026-11-20T12:30:00.5Z\", \"took\": \"-1.000000001s\", \"mask\": \"a,bC.dE\",
\"struct\": {\"a\": [1, null, {\"b\": true}], \"\": \"x\"}, \"value\": null, \"list\":
[1, \"a\", []]}"
    "{\"any\": {\"@type\": \"type.googleapis.com/google.protobuf.Duration\", \"value\": \"3.5s\"},
\"anys\": {\"k\": {\"@type\": \"type.googleapis.com/clgrpc.test.fuzz.Known\", \"b\": false, \"any\":
{\"@type\": \"type.googleapis.com/google.protobuf.Any\", \"value\": {}}}}}"
    "{\"b\": true, \"i\": \"-9223372036854775808\", \"u\": 18446744073709551615, \"d\": \"NaN\",
\"f\": \"-Infinity\", \"s\": \"\\ud83d\\ude00\", \"y\": \"_-8\", 
\"values\": [null, 1.5e3, {}], \"times\":
[\"0001-01-01T00:00:00Z\", \"9999-12-31T23:59:59.999999999+01:00\"],
\"ov\": {}}"
    "{\"null\": \"NULL_VALUE\", \"s\": null}"))

(defun written-samples (write)
  "Random messages as WRITE, a function of a message, has them."
  (loop for type in '("clgrpc.test.All" "clgrpc.test.legacy.Legacy")
        append (loop for message in (random-messages type 15)
                     collect (text-sample type (funcall write message)))))

(defun json-samples ()
  (append (written-samples #'protobuf:message-json)
          (loop for text in *known-texts* collect (text-sample "clgrpc.test.fuzz.Known" text))))

(defun skips-p (octets)
  "Whether unknown fields in OCTETS, a text, are skipped: in every other one."
  (oddp (length octets)))

(defun run-json (type octets)
  ;; texts are compared: a NullValue of another number than 0 is written as null too
  (let* ((written (protobuf:message-json
                   (protobuf:parse-json-message type octets :partial t
                                                            :ignore-unknown (skips-p octets))))
         (again (protobuf:message-json (protobuf:parse-json-message type written :partial t))))
    (unless (string= written again)
      (found "what is written becomes another message"))))

(define-target "json"
  :samples #'json-samples :mutate #'mutate-text :run #'run-json
  :conditions (protobuf:message-text-error))

;;; Messages in text format

(defparameter *known-format*
  '("at { seconds: -1 nanos: 5 } took < seconds: 0x10, nanos: 07; > mask { paths: 'a' 'b' }
struct { fields { key: \"k\" value { number_value: 1.5e3f } } } # comment
any { [type.googleapis.com/google.protobuf.Duration] { seconds: 3 } }"
    "b {} i { value: -9223372036854775808 } d { value: nan } f: { value: -inf } 
s { value: \"\\303\\251\\x41\\u00e9\\U0001F600\\n\" } values: [ {}, { bool_value: t } ] times [ ]
anys { key: 'x' value { type_url: \"\" } } ov { list_value { values { string_value: \"\" } } }
99: 5"))

(defun text-samples ()
  (append (written-samples #'protobuf:message-text)
          (loop for message in (random-messages "google.protobuf.FileDescriptorProto" 10)
                collect (text-sample "google.protobuf.FileDescriptorProto"
                                     (protobuf:message-text message)))
          (loop for text in *known-format* collect (text-sample "clgrpc.test.fuzz.Known" text))))

(defun run-text (type octets)
  "Texts are compared, since unknown fields are read but not written."
  (let* ((written (protobuf:message-text
                   (protobuf:parse-text-message type octets :partial t
                                                            :ignore-unknown (skips-p octets))))
         (again (protobuf:message-text
                 (protobuf:parse-text-message type written :partial t))))
    (unless (string= written again)
      (found "what is written becomes another message"))))

(define-target "text"
  :samples #'text-samples :mutate #'mutate-text :run #'run-text
  :conditions (protobuf:message-text-error))

;;; Plain JSON

(defun plain-json-samples ()
  (mapcar (lambda (text) (text-sample nil text))
          '("{\"a\": [1, -2.5e3, 0.1, true, false, null], \"b\": {\"c\":
\"\\u00e9\\n\\\"x\"}, \"\": []}"
            "[[[[{}]]], \"\\ud83d\\ude00 é€\", 9223372036854775807, 1e308, -0.0, 5e-324]"
            " {\"name\" : \"Ada\",\"n\":12345678901234567890} "
            "\"text\"" "0" "[]")))

(defun run-plain-json (kind octets)
  (declare (ignore kind))
  (let ((data (parse-json octets)))
    (unless (equalp data (parse-json (write-json data)))
      (found "the data read are not those written"))))

(define-target "plain-json"
  :samples #'plain-json-samples :mutate #'mutate-text :run #'run-plain-json
  :conditions (json-error limit-exceeded))
