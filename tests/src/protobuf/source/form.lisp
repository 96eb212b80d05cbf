;;;; Files as Lisp forms: written, read again, and unchanged; in a separate image.

(in-package #:clgrpc.tests.protobuf)

(defun generated-text (file)
  (rest (first (protobuf::generated-files (list file)))))

(defun read-generated (text)
  "The file descriptor that TEXT, a generated source of one form, defines."
  (destructuring-bind (define name imports content)
      (with-standard-io-syntax (read-from-string text))
    (declare (ignore imports))
    (assert (eq 'define-file define))
    (protobuf::link-form name content)))

(defun comments (file)
  "The comments in FILE, in an order."
  (let ((comments (list (descriptor-comment file))))
    (flet ((note (descriptor) (push (descriptor-comment descriptor) comments)))
      (protobuf::map-messages (lambda (message)
                                (note message)
                                (mapc #'note (message-descriptor-fields message)))
                              file)
      (protobuf::map-enums (lambda (enum)
                             (note enum)
                             (mapc #'note (enum-descriptor-values enum)))
                           file)
      (dolist (service (file-descriptor-services file))
        (note service)
        (mapc #'note (service-descriptor-methods service))))
    comments))

(defun survives-generation (file)
  (let* ((text (generated-text file))
         (again (read-generated text)))
    (is (equalp (file-descriptor-octets file) (file-descriptor-octets again))
        "~A comes back changed" file)
    (is (equal (comments file) (comments again)))
    (is (string= text (generated-text again)))))

(test generated-forms-say-all
  (dolist (name (list* "all.proto" "legacy.proto" "extension.proto"
                       (loop for name being the hash-keys of protobuf::*built-ins*
                               using (hash-value how)
                             when (eq t how) collect name)))
    (survives-generation (find-file-descriptor name))))

(test generated-forms-say-all-of-editions
  (dolist (text '("edition = '2023'; package clgrpc.test.form; option features.field_presence =
IMPLICIT; message M { string s = 1 [features.field_presence = EXPLICIT, json_name = 'x'];
M m = 2 [features.message_encoding = DELIMITED]; reserved 5 to 7, 9; reserved old; oneof o {
int32 a = 3; bytes b = 4; } map<int32, M> by = 8; message Inner { } map<string, Inner> in = 10; }
enum E { option features.enum_type = CLOSED; A = 1; B = -2; reserved 4 to max; }"
                  "edition = '2024'; package clgrpc.test.form; import option
'google/protobuf/go_features.proto'; option features.(pb.go).api_level = API_OPEN;
export message X { } local message Y { X x = 1; }"
                  "syntax = 'proto2'; package clgrpc.test.form; message D { optional bytes b = 1
[default = '\\377\\000x']; optional string s = 2 [default = 'é\"\\\\']; optional double d =
3 [default = nan]; optional float f = 4 [default = -1.5e10]; optional uint64 u = 5 [default =
18446744073709551615]; optional bool t = 6 [default = true]; }"))
    (survives-generation (first (last (protobuf::load-protos "form.proto" text '()))))))

(test generated-sources-name-their-files
  (with-tree (directory `(("a/top.proto" . ,(importing "clgrpc.test.gen.top" "b/below.proto"))
                          ("b/below.proto" . ,(importing "clgrpc.test.gen.below"
                                                         "google/protobuf/any.proto"))))
    (is (equal '("b/below.lisp" "a/top.lisp")
               (mapcar #'car (generate-sources "a/top.proto" :import-paths '("")
                                                             :directory directory))))
    (signals misuse (generate-sources "a/none.proto" :directory directory))))

(test generated-sources-load-each-other
  "The image has neither the .proto files nor their definitions."
  (with-tree (directory
              `(("a/top.proto" . "syntax = 'proto3'; package clgrpc.test.gen.top;
import 'b/below.proto';
// At the top.
message Top { clgrpc.test.gen.below.Below below = 1; optional int32 n = 2;
map<string, int32> m = 3; }")
                ("b/below.proto" . "syntax = 'proto3'; package clgrpc.test.gen.below;
message Below { repeated string names = 1; }")))
    (loop for (path . text) in (generate-sources "a/top.proto" :import-paths '("")
                                                               :directory directory)
          do (let ((file (merge-pathnames path (merge-pathnames "out/" directory))))
               (ensure-directories-exist file)
               (with-open-file (stream file :direction :output) (write-string text stream))))
    (uiop:delete-directory-tree (merge-pathnames "a/" directory) :validate t)
    (uiop:delete-directory-tree (merge-pathnames "b/" directory) :validate t)
    (let* ((source (namestring (merge-pathnames "out/a/top.lisp" directory)))
           (speak "(print (clgrpc.test.gen.top:make-top :n 5 :below
 (clgrpc.test.gen.below:make-below :names '(\"x\"))))")
           (loaded (other-image-output "--load" source "--eval" speak))
           (compiled (other-image-output
                      "--eval" (format nil "(load (compile-file ~S))" source)
                      "--eval" speak
                      "--eval" "(print (documentation 'clgrpc.test.gen.top:top 'type))")))
      (dolist (output (list loaded compiled))
        (is (search ":below #<CLGRPC.TEST.GEN.BELOW:BELOW :names (\"x\")> :n 5>" output)
            "~A" output)
        (is (not (search "WARNING" output)) "~A" output))
      (is (search "\"At the top.\"" compiled)))))

(test options-that-nobody-knows-survive-generation
  "A file that uses an option that it defines itself is written as octets."
  (let ((file (first (last (protobuf::load-protos "own.proto" "syntax = 'proto2';
package clgrpc.test.own; import 'google/protobuf/descriptor.proto';
extend google.protobuf.MessageOptions { optional string word = 50123; }
message M { option (word) = 'x'; }" '())))))
    (is (vectorp (protobuf::file-content file)))
    (is (not (stringp (protobuf::file-content file))))
    (survives-generation file)))

(test forms-need-their-imports
  (signals misuse (eval '(define-file "alone.proto" ("not/here.proto") "name: 'alone.proto'")))
  (signals misuse (eval '(define-file "alone.proto" () "name: 'other.proto'")))
  (signals error (eval '(define-file "alone.proto" () "nonsense"))))
