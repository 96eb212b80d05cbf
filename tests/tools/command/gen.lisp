;;;; `gen` and the plug-in as programs; protoc's view of the plug-in where there is a protoc.

(in-package #:clgrpc.tests.tools)

(defun sources-below (directory)
  "The generated files below DIRECTORY, as a sorted alist from paths to texts."
  (sort (loop for file in (directory (merge-pathnames "**/*.lisp" directory))
              collect (cons (uiop:native-namestring (uiop:enough-pathname file
                                                                          (truename directory)))
                            (uiop:read-file-string file :external-format :utf-8)))
        #'string< :key #'car))

(defun generate (directory)
  "Write what tests.proto needs into DIRECTORY; return what RUN-LINE returns."
  (run-line "gen" (support:root-file "proto/grpc/testing/test.proto")
            "-o" (uiop:native-namestring directory)
            (format nil "--import-path=~A" (support:root-file "proto/"))))

(test gen-writes-sources
  (support:with-folder (directory)
    (multiple-value-bind (code output) (generate directory)
      (is (= 0 code))
      (is (= 3 (count #\Newline output)) "~A" output))
    (is (equal '("grpc/testing/empty.lisp" "grpc/testing/messages.lisp" "grpc/testing/test.lisp")
               (mapcar #'car (sources-below directory))))
    (multiple-value-bind (code output) (generate directory)
      (is (= 0 code))
      (is (string= "" output) "what has not changed is written again"))))

(test gen-complains-in-one-line
  (support:with-folder (directory)
    (with-open-file (stream (merge-pathnames "bad.proto" directory) :direction :output)
      (write-string "syntax = 'proto3'; message M { int32 x; }" stream))
    (with-open-file (stream (merge-pathnames "lost.proto" directory) :direction :output)
      (write-string "syntax = 'proto3'; import 'not/there.proto';" stream))
    (flet ((complaint (file)
             (multiple-value-bind (code output error-output)
                 (run-line "gen" file "-o" (uiop:native-namestring directory))
               (is (= 1 code))
               (is (string= "" output))
               (is-true (one-line-p error-output) "~A" error-output)
               error-output)))
      (is (search "bad.proto:1:39: "
                  (complaint (uiop:native-namestring (merge-pathnames "bad.proto" directory)))))
      ;; the option is named as it is typed
      (is (search "; --import-path names other directories"
                  (complaint (uiop:native-namestring (merge-pathnames "lost.proto" directory)))))
      (is (search "There is no file none.proto in" (complaint "none.proto"))))))

(test gen-complains-in-a-line-for-each-error
  (support:with-folder (directory)
    (let ((file (uiop:native-namestring (merge-pathnames "bad.proto" directory))))
      (with-open-file (stream file :direction :output)
        (format stream "syntax = 'proto3'; message M { int32 x; }~%message N { string y }"))
      (let ((lines (uiop:split-string (string-right-trim '(#\Newline)
                                                         (nth-value 2 (run-line "gen" file)))
                                      :separator '(#\Newline))))
        (is (= 2 (length lines)) "~S" lines)
        (is (search "bad.proto:1:39: " (first lines)))
        (is (eql 0 (search (format nil "~A:2:22: " file) (second lines))))))))

(test gen-writes-below-its-directory-only
  (support:with-folder (directory)
    (flet ((write-proto (name control &rest arguments)
             (let ((file (merge-pathnames name directory)))
               (ensure-directories-exist file)
               (with-open-file (stream file :direction :output :if-exists :supersede)
                 (format stream "syntax = 'proto3'; ~?" control arguments))
               (uiop:native-namestring file))))
      (let ((evil (write-proto "evil.proto" "message Evil { }")))
        (dolist (import (list "../evil.proto" evil "sub/../../evil.proto"))
          (multiple-value-bind (code output error-output)
              (run-line "gen" (write-proto "root/a.proto" "import '~A';" import)
                        (format nil "--import-path=~A"
                                (uiop:native-namestring (merge-pathnames "root/" directory)))
                        "-o" (uiop:native-namestring (merge-pathnames "root/out/" directory)))
            (is (= 1 code))
            (is (string= "" output))
            (is (search "a.proto:1:27: " error-output) "~A" error-output))))
      (is (null (sources-below directory))))))

(test generated-services-work-without-their-proto-file
  "In an image with clgrpc alone: a service is defined, served and called."
  (support:with-folder (directory)
    (run-line "gen" (support:root-file "proto/examples/helloworld.proto")
              "-o" (uiop:native-namestring directory)
              (format nil "--import-path=~A" (support:root-file "proto/examples/")))
    (let ((output
            (uiop:run-program
             (list* (uiop:native-namestring sb-ext:*runtime-pathname*)
                    "--noinform" "--non-interactive" "--no-userinit" "--eval" "(require :asdf)"
                    (loop for form in (list (format nil "(asdf:load-asd ~S)"
                                                    (support:root-file "clgrpc.asd"))
                                            "(asdf:load-system \"clgrpc\")"
                                            (format nil "(load ~S)"
                                                    (namestring (merge-pathnames "helloworld.lisp"
                                                                                 directory)))
                                            "(defclass g (helloworld:greeter) ())"
                                            "(defmethod helloworld.greeter:say-hello ((g g) r &key)
  (helloworld:make-hello-reply :message (helloworld:hello-request-name r)))"
                                            "(let ((server (clgrpc:start-server (make-instance 'g)
  :listen \"127.0.0.1:0\")))
  (clgrpc:with-channel (channel (clgrpc:server-address server))
    (print (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name \"Ada\"))))
  (clgrpc:stop-server server))")
                          append (list "--eval" form)))
             :output :string :error-output :output :ignore-error-status t)))
      (is (search "#<HELLOWORLD:HELLO-REPLY :message \"Ada\">" output) "~A" output))))

(test protoc-takes-the-plugin
  (support:need-program "protoc")
  (support:with-folder (directory)
    (let ((by-us (merge-pathnames "us/" directory))
          (by-protoc (merge-pathnames "protoc/" directory)))
      (ensure-directories-exist by-protoc)
      (generate by-us)
      (flet ((protoc (&rest arguments)
               (multiple-value-list
                (uiop:run-program
                 (list* "protoc" (format nil "--proto_path=~A" (support:root-file "proto/"))
                        (format nil "--plugin=protoc-gen-clgrpc=~A"
                                (merge-pathnames "protoc-gen-clgrpc" (support:clgrpc-program)))
                        (format nil "--clgrpc_out=~A" (uiop:native-namestring by-protoc))
                        arguments)
                 :output :string :error-output :string :ignore-error-status t))))
        (is (equal '("" "" 0) (protoc "--clgrpc_opt=imports" "grpc/testing/test.proto")))
        (is (equal (sources-below by-us) (sources-below by-protoc)))
        (destructuring-bind (output error-output code)
            (protoc "--clgrpc_opt=shape=round" "grpc/testing/test.proto")
          (declare (ignore output))
          (is (= 1 code))
          (is (search "no parameter \"shape=round\"" error-output)))))))
