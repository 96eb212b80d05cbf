;;;; DEFINE-PROTO itself: packages and exports, imports, services, files compiled for another image.

(in-package #:clgrpc.tests.protobuf)

(test packages-export-what-users-need
  (flet ((external-p (name package)
           (eq :external (nth-value 1 (find-symbol name package)))))
    (dolist (name '("ALL" "MAKE-ALL" "ALL-P" "ALL-F3" "HAS-ALL-O3" "CLEAR-ALL-O3" "ALL-PICK"
                    "ALL-PICK-CASE" "CLEAR-ALL-PICK" "COLOR" "INNER"))
      (is-true (external-p name "CLGRPC.TEST") "~A" name))
    (is (null (package-use-list "CLGRPC.TEST")))))

(test large-files-report-progress
  "A file with two hundred messages reports each percent while it is compiled; a smaller file
reports nothing. The report is a line that is erased at the end."
  (flet ((percents (count)
           (let ((forms '())
                 (package (format nil "clgrpc.test.progress~D" count)))
             (subst-if nil (lambda (part)
                             (when (and (consp part) (eq 'protobuf::note-progress (first part)))
                               (push (third part) forms))
                             nil)
                       (protobuf::proto-expansion
                        (format nil "~A.proto" package)
                        :source (format nil "syntax = 'proto3'; package ~A;~%~{message M~D {}~%~}"
                                        package (loop for i below count collect i))
                        :for-file t))
             (reverse forms))))
    (is (equal (loop for percent from 1 to 100 collect percent) (percents 200)))
    (is (null (percents 199))))
  (flet ((text (percent)
           (with-output-to-string (stream)
             (protobuf::note-progress "a.proto" percent stream))))
    (is (string= (format nil "~C~C[K; a.proto: 45 % compiled" #\Return #\Escape) (text 45)))
    (is (string= (format nil "~C~C[K" #\Return #\Escape) (text 100))))
  (is (null (protobuf::note-progress "a.proto" 45 nil))))

(defun seconds-to (function)
  "The processor seconds that FUNCTION takes, the least of three."
  (loop repeat 3
        minimize (let ((start (get-internal-run-time)))
                   (funcall function)
                   (/ (- (get-internal-run-time) start) internal-time-units-per-second 1d0))))

(test messages-compile-quickly
  "Forty messages of seven fields, compared with as many structures of seven slots with accessors."
  (let* ((count 40) (turn 0)
         (structures
           (seconds-to
            (lambda ()
              (dotimes (i count)
                (eval `(defstruct ,(gensym "PLAIN") (a 0 :type fixnum) (b "" :type string)
                         (c 0d0 :type double-float) d (e nil :type list)
                         (f #() :type vector) g))))))
         (messages
           (seconds-to
            (lambda ()
              (let ((package (format nil "clgrpc.test.quick~D" (incf turn))))
                (define (format nil "~A.proto" package)
                  (format nil "syntax = 'proto3'; package ~A;~%~{message M~D { int32 a = 1; ~
                               string b = 2; double c = 3; bool d = 4; bytes e = 5; ~
                               repeated int32 f = 6; M0 g = 7; }~%~}"
                          package (loop for i below count collect i))))))))
    (format t "~&; a message of seven fields: ~,1F ms, a structure of seven slots: ~,1F ms~%"
            (/ (* 1000 messages) count) (/ (* 1000 structures) count))
    (is (< messages (* 30 structures)))))

(test services-have-packages-and-descriptors
  (let ((services '()))
    (add-service-expander 'test (lambda (service) (push service services) '(progn)))
    (unwind-protect
         (define "service.proto" "syntax = 'proto3'; package clgrpc.test.service;
message Q { } message A { }
// Answers.
service Oracle { rpc AskOnce(Q) returns (A); rpc AskOften(stream Q) returns (stream A); }")
      (remove-service-expander 'test))
    (define "unheard.proto" "syntax = 'proto3'; package clgrpc.test.unheard;
message Q { } service Silent { rpc Ask(Q) returns (Q); }")
    (is (= 1 (length services)))
    (let* ((service (first services)) (methods (service-descriptor-methods service)))
      (is (equal "clgrpc.test.service.Oracle" (descriptor-full-name service)))
      (is (equal "Answers." (descriptor-comment service)))
      (is (eq (find-symbol "ORACLE" "CLGRPC.TEST.SERVICE") (service-descriptor-symbol service)))
      (is (equal '("ASK-ONCE" "ASK-OFTEN")
                 (mapcar (lambda (method) (symbol-name (method-descriptor-symbol method)))
                         methods)))
      (is (eq (find-package "CLGRPC.TEST.SERVICE.ORACLE")
              (symbol-package (method-descriptor-symbol (first methods)))))
      (is (equal "/clgrpc.test.service.Oracle/AskOnce" (method-descriptor-path (first methods))))
      (is (eq (find-message-type (find-symbol "Q" "CLGRPC.TEST.SERVICE"))
              (intern-message-type (method-descriptor-input (first methods)))))
      (is (equal '(nil t) (mapcar #'method-descriptor-client-streaming-p methods))))))

(test errors-reach-the-caller-of-the-macro
  (with-signalled (condition proto-syntax-error
                   (define "broken.proto" "syntax = 'proto3'; message M { int32 x; }"))
    (is (equal "broken.proto" (proto-syntax-error-file condition)))
    (is (equal "\"=\" and a field number" (proto-syntax-error-expected condition)))
    (is (eql 0 (search "broken.proto:1:39: expected \"=\"" (princ-to-string condition)))
        "~A" condition))
  (signals misuse (macroexpand-1 '(define-proto "no-such-file.proto"))))

(test a-file-without-package-has-its-own-name
  (define "lonely_file.proto" "syntax = 'proto3'; message Clgrpc_Lonely { }")
  (is-true (find-symbol "CLGRPC-LONELY" "LONELY-FILE")))

(test a-message-type-exists-before-its-definition
  (let ((type (intern-message-type "clgrpc.test.never.Defined")))
    (is (eq type (intern-message-type "clgrpc.test.never.Defined")))
    (is-false (message-type-defined-p type))
    (signals misuse (parse-message type (octets-of)))
    (signals misuse (parse-message "clgrpc.test.never.Heard" (octets-of)))))

(defun call-with-compiled (text function)
  "Compile a file of TEXT and call FUNCTION with the name of the compiled file."
  (uiop:with-temporary-file (:pathname source :type "lisp" :stream stream :direction :output)
    (write-string text stream)
    :close-stream
    (let ((fasl (compile-file source)))
      (unwind-protect (funcall function (namestring fasl))
        (delete-file fasl)))))

(defun other-image-output (&rest arguments)
  "The output of a fresh SBCL that has only this system, started with ARGUMENTS."
  (uiop:run-program
   (list* sb-ext:*runtime-pathname* "--noinform" "--non-interactive" "--no-userinit"
          "--eval" "(require :asdf)"
          "--eval" (format nil "(asdf:load-asd ~S)"
                           (namestring (asdf:system-source-file "clgrpc")))
          "--eval" "(asdf:load-system \"clgrpc/protobuf\")"
          arguments)
   :output :string :error-output :output))

(test functions-are-known-in-the-file-that-defines-them
  "A file that calls the functions of its DEFINE-PROTO compiles without a warning."
  (let ((warnings '()))
    (handler-bind ((warning (lambda (warning)
                              (push (princ-to-string warning) warnings)
                              (muffle-warning warning))))
      (call-with-compiled
       "(clgrpc.protobuf:define-proto \"known.proto\" :source \"syntax = 'proto2';
package clgrpc.test.known; message M { optional int32 a = 1; oneof o { string b = 2; M c = 3; }
  extensions 10; } extend M { optional string e = 10; }\")
(defun cl-user::use (m)
  (setf (clgrpc.test.known:m-a m) 1
        (clgrpc.test.known:e m) (clgrpc.test.known:m-b m))
  (list (clgrpc.test.known:m-p m) (clgrpc.test.known:has-m-a m) (clgrpc.test.known:m-o-case m)
        (clgrpc.test.known:clear-m-o m) (clgrpc.test.known:has-e m) (clgrpc.test.known:m-c m)))
"
       (constantly nil)))
    (is (equal '() warnings))))

(test compiled-files-work-in-another-image
  "Two files with equal definitions are compiled here and loaded in another image, which prints."
  (let ((definition "(clgrpc.protobuf:define-proto \"other.proto\" :source \"syntax = 'proto3';
package clgrpc.test.other; enum E { A = 0; B = 1; } message M { E e = 1; map<string, M> ms = 2; }\")
")
        (speaker "(defun cl-user::speak ()
  (let ((m (clgrpc.test.other:make-m :e :b)))
    (clgrpc.protobuf:serialize (clgrpc.test.other:make-m :ms (list (cons \"k\" m))))))
"))
    (call-with-compiled
     (concatenate 'string definition speaker)
     (lambda (first)
       (call-with-compiled
        definition
        (lambda (second)
          (let ((output (other-image-output "--load" first "--load" second "--load" first
                                            "--eval" "(print (cl-user::speak))")))
            (is (search "#(18 7 10 1 107 18 2 8 1)" output) "~A" output)
            (is (not (search "WARNING" output)) "~A" output))))))))

(defun call-with-import (function)
  "Call FUNCTION with the text of a Lisp file that defines two .proto files. Both import a third
file, which is on disk while FUNCTION runs."
  (let ((directory (uiop:ensure-directory-pathname
                    (format nil "~Aclgrpc-import-~36R" (namestring (uiop:temporary-directory))
                            (random (expt 36 12) (make-random-state t))))))
    (flet ((form (name)
             (format nil "(clgrpc.protobuf:define-proto \"twice_~A.proto\" :import-paths (~S)
  :source \"syntax = 'proto3'; package clgrpc.test.twice.~:*~:*~A; import 'twice_part.proto';
message Whole { clgrpc.test.twice.part.Part part = 1; }\")~%"
                     name (namestring directory))))
      (ensure-directories-exist directory)
      (unwind-protect
           (progn
             (with-open-file (stream (merge-pathnames "twice_part.proto" directory)
                                     :direction :output)
               (write-string "syntax = 'proto3'; package clgrpc.test.twice.part;
message Part { string name = 1; }" stream))
             (funcall function (concatenate 'string (form "first") (form "second"))))
        (uiop:delete-directory-tree directory :validate t)))))

(test files-compiled-again-keep-their-imports
  "A Lisp file that is compiled again, in the image that has loaded it, still defines the imports of
its .proto files, since a fresh image has no other source of them."
  (call-with-import
   (lambda (text)
     (uiop:with-temporary-file (:pathname source :type "lisp" :stream stream :direction :output)
       (write-string text stream)
       :close-stream
       (let ((fasl (compile-file source)))
         (unwind-protect
              (progn
                (load fasl)
                (compile-file source)
                ;; as in an image that does not have it
                (remhash "twice_part.proto" protobuf::**files**)
                (load fasl)
                (is-true (find-file-descriptor "twice_part.proto")))
           (delete-file fasl)))))))

(defvar *provided* nil)

(test imports-that-another-file-provides
  "A compiled file omits imports that it certainly gets: imports that are built in, from another
compiled file, or from an earlier form of the same file in this run of the compiler."
  (define "provided.proto" "syntax = 'proto3'; package clgrpc.test.provided; message M { }")
  (let ((file (find-file-descriptor "provided.proto")))
    (flet ((provided-p (definer file)
             (let ((protobuf::*definer* definer)) (protobuf::provided-p file))))
      (is-true (provided-p nil file))
      (is-false (provided-p "a.lisp" file))
      (is-true (provided-p "a.lisp" (find-file-descriptor "google/protobuf/any.proto")))
      (protobuf::register-file file "b.lisp")
      (is-true (provided-p "a.lisp" file))
      (is-false (provided-p "b.lisp" file))
      (setf *provided* (lambda ()
                         (protobuf::register-file file "b.lisp")
                         (is-true (provided-p "b.lisp" file))))
      (call-with-compiled (format nil "(eval-when (:compile-toplevel) (funcall ~S))"
                                  '*provided*)
                          #'identity)
      (is-false (provided-p "b.lisp" file)))))

(test published-files-compile
  "The project's own .proto files, as others import them."
  (dolist (name '("grpc/testing/test.proto" "grpc/testing/benchmark_service.proto"
                  "xds/data/orca/v3/orca_load_report.proto" "xds/service/orca/v3/orca.proto"
                  "examples/route_guide.proto" "examples/helloworld.proto"))
    (let* ((root (asdf:system-relative-pathname "clgrpc" "proto/"))
           (path (merge-pathnames name root))
           (files (protobuf::load-protos name (protobuf::read-source path) (list root))))
      (is-true (or (null files) (equal name (descriptor-name (first (last files)))))))))

(test well-known-types-are-built-in
  (let ((message (google.protobuf:make-timestamp :seconds 1 :nanos 2)))
    (is (equalp (octets-of 8 1 16 2) (serialize message))))
  (is (find-message-type "google.protobuf.compiler.CodeGeneratorRequest"))
  (is (equal "google/protobuf/timestamp.proto"
             (eval '(define-proto "google/protobuf/timestamp.proto"))))
  (is (equal "FIELD_PRESENCE_UNKNOWN"
             (descriptor-name (first (enum-descriptor-values
                                      (find-descriptor
                                       "google.protobuf.FeatureSet.FieldPresence")))))))

(test imports-of-built-in-files-are-found
  (define "clock.proto" "syntax = 'proto3'; package clgrpc.test.clock;
import 'google/protobuf/duration.proto'; import 'google/protobuf/go_features.proto';
message Clock { google.protobuf.Duration drift = 1; pb.GoFeatures features = 2; }")
  (let ((clock (funcall (find-symbol "MAKE-CLOCK" "CLGRPC.TEST.CLOCK")
                        :drift (google.protobuf:make-duration :nanos 7))))
    (is (equalp (octets-of 10 2 16 7) (serialize clock)))))
