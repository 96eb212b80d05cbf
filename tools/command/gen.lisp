;;;; The commands `gen` and `protoc-gen`: they make Lisp sources of .proto files; `protoc-gen` does
;;;; so as a plug-in of protoc and buf. bin/protoc-gen-clgrpc is a link to bin/clgrpc, which then is
;;;; `protoc-gen`.

(in-package #:clgrpc.tools)

(defun parse-directories (string)
  (remove "" (uiop:split-string string :separator ":") :test #'string=))

(defun write-sources (sources directory)
  "Write SOURCES, an alist from paths to texts, below DIRECTORY; print the paths of changed files."
  (loop for (path . text) in sources
        for file = (merge-pathnames (sb-ext:parse-native-namestring path) directory)
        do (unless (and (probe-file file)
                        (string= text (uiop:read-file-string file :external-format :utf-8)))
             (ensure-directories-exist file)
             (with-open-file (stream file :direction :output :if-exists :supersede
                                          :external-format :utf-8)
               (write-string text stream))
             (format t "~A~%" (sb-ext:native-namestring file)))))

(define-command "gen"
    (((file "FILE" #'identity "A .proto file."))
     ((o "DIR" #'identity "." "The directory to write the sources to.")
      (import-path "DIR[:DIR…]" #'parse-directories nil
                   "The directories in which imports are looked for first. A file below one of
      them is named by its path from there.")))
  "Write the Lisp source of a .proto file and of its imports. foo/bar.proto becomes
DIR/foo/bar.lisp, which needs clgrpc but not the .proto file. Prints the files that have changed."
  (let ((here (uiop:getcwd)) (protobuf:*import-option* "--import-path"))
    (handler-case
        (write-sources (protobuf:generate-sources file :import-paths import-path :directory here)
                       (merge-pathnames (uiop:parse-native-namestring o :ensure-directory t)
                                        here))
      (file-error (error) (refuse "~A" error)))
    0))

;;; The plug-in

(defun called-arguments (arguments)
  "The command line for ARGUMENTS, the first of which is the name of the program."
  (if (string= "protoc-gen-clgrpc" (file-namestring (first arguments)))
      (cons "protoc-gen" (rest arguments))
      (rest arguments)))

(define-command "protoc-gen" (() ())
  "Work as a plug-in of protoc or buf. Reads a CodeGeneratorRequest from the standard input and
writes the response to the standard output; bin/protoc-gen-clgrpc does so too:
`protoc --plugin=bin/protoc-gen-clgrpc --clgrpc_out=DIR x.proto`. With the parameter `imports`
(--clgrpc_opt=imports) it also generates the sources of imported files."
  (let ((output (make-standard-output)))
    (write-sequence (protobuf:answer-request (read-standard-octets :most (ash 1 29))) output)
    (finish-output output)
    0))
