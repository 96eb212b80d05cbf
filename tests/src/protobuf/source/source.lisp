;;;; The answers to editors about the place of a definition, and about lambda lists.

(in-package #:clgrpc.tests.protobuf)

(defparameter *seen* "// Ünïcode comes before, and a tab.
syntax = 'proto3'; package clgrpc.test.seen~D;
/* here: */ message Thing {
	string first = 1; optional int32 second = 2;
  oneof pick { string text = 3; Kind kind = 4; }
  message Inner { int32 deep = 1; }
}
enum Kind { KIND_NONE = 0; }
service Looker { rpc Look(Thing) returns (Thing); }
")

(defun call-with-seen (number function)
  "Call FUNCTION with the pathname of a file of the text *SEEN*, whose package has NUMBER."
  (uiop:with-temporary-file (:pathname file :type "proto" :stream stream :direction :output
                             :external-format :utf-8)
    (format stream *seen* number)
    :close-stream
    (funcall function (truename file))))

(defun definition-place (name kind file)
  "The word, up to the next space, in FILE at the reported place where NAME is defined as a KIND; or
the whole report."
  (let ((sources (sb-introspect:find-definition-sources-by-name name kind)))
    (if (and (= 1 (length sources))
             (equal file (sb-introspect:definition-source-pathname (first sources)))
             (null (sb-introspect:definition-source-form-path (first sources))))
        (let* ((text (uiop:read-file-string file :external-format :utf-8))
               (start (sb-introspect:definition-source-character-offset (first sources))))
          (subseq text start (position #\Space text :start start)))
        sources)))

(defparameter *definitions*
  '((:structure "THING" "Thing") (:function "MAKE-THING" "Thing") (:function "THING-P" "Thing")
    (:function "THING-FIRST" "first") (setf "THING-FIRST" "first") (setf "THING-SECOND" "second")
    (:function "HAS-THING-SECOND" "second") (:function "CLEAR-THING-SECOND" "second")
    (:function "THING-PICK" "pick") (:function "THING-PICK-CASE" "pick")
    (:function "CLEAR-THING-PICK" "pick") (:function "THING-KIND" "kind")
    (:structure "THING.INNER" "Inner") (:function "THING.INNER-DEEP" "deep") (:type "KIND" "Kind"))
  "Rows of a kind, or SETF for a setter; a name; and the word in *SEEN* to which it leads.")

(defun check-definitions (package file)
  (loop for (kind name word) in *definitions*
        for symbol = (find-symbol name package)
        do (is (equal word (if (eq kind 'setf)
                               (definition-place `(setf ,symbol) :function file)
                               (definition-place symbol kind file)))
               "~A ~A" kind name)))

(test definitions-lead-to-the-proto-file
  (call-with-seen
   1 (lambda (file)
       (eval `(define-proto ,(namestring file)))
       (check-definitions "CLGRPC.TEST.SEEN1" file)
       ;; a moved definition is found, though nothing else has changed
       (let ((text (uiop:read-file-string file :external-format :utf-8)))
         (with-open-file (stream file :direction :output :if-exists :supersede
                                      :external-format :utf-8)
           (format stream "// one line more~%~A" text)))
       (eval `(define-proto ,(namestring file)))
       (check-definitions "CLGRPC.TEST.SEEN1" file)
       (delete-file file)
       (let ((source (first (sb-introspect:find-definition-sources-by-name
                             (find-symbol "THING-FIRST" "CLGRPC.TEST.SEEN1") :function))))
         (is (equal file (sb-introspect:definition-source-pathname source)))
         (is (null (sb-introspect:definition-source-character-offset source))))
       (uiop:with-output-file (stream file) (terpri stream))))) ; for WITH-TEMPORARY-FILE

(test compiled-definitions-lead-to-the-proto-file
  (call-with-seen
   2 (lambda (file)
       (call-with-compiled
        (format nil "(clgrpc.protobuf:define-proto ~S)" (namestring file))
        (lambda (fasl)
          (load fasl)
          (check-definitions "CLGRPC.TEST.SEEN2" file))))))

(test other-definitions-stay-where-they-are
  "Nothing changes either for a file that is only in memory."
  (define "unseen.proto"
          "syntax = 'proto3'; package clgrpc.test.unseen; message M { int32 x = 1; }")
  (flet ((file (name)
           (file-namestring (sb-introspect:definition-source-pathname
                             (first (sb-introspect:find-definition-sources-by-name
                                     name :function))))))
    (is (equal "message-operation.lisp" (file 'message=)))
    (is (equal "accessor.lisp" (file (find-symbol "M-X" "CLGRPC.TEST.UNSEEN"))))))

(test accessors-show-their-arguments
  (flet ((arguments (name)
           (mapcar #'symbol-name (sb-introspect:function-lambda-list name))))
    (dolist (name '(clgrpc.test:all-f3 clgrpc.test:has-all-o3 clgrpc.test:clear-all-o3
                    clgrpc.test:all-pick clgrpc.test:all-pick-case))
      (is (equal '("MESSAGE") (arguments name)) "~A" name))
    (is (equal '("VALUE" "MESSAGE") (arguments '(setf clgrpc.test:all-f3))))))
