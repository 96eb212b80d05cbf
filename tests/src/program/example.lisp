;;;; The program of examples/program, built and run, and the files around it.

(in-package #:clgrpc.tests.program)

(defun example-file (name)
  (support:root-file (format nil "examples/program/~A" name)))

(defun built-example (folder)
  "Build the example in FOLDER, a path that ends with a slash; return the path of the program."
  (uiop:run-program (list "sh" "-c" "cd \"$0\" && exec \"$@\"" folder
                          (uiop:native-namestring sb-ext:*runtime-pathname*)
                          "--noinform" "--non-interactive" "--no-sysinit" "--no-userinit"
                          "--load" (support:root-file "scripts/load.lisp")
                          "--load" (example-file "build.lisp"))
                    :output nil :error-output :output)
  (concatenate 'string folder "greeter"))

(defun unit-arguments ()
  (let* ((unit (uiop:read-file-string (example-file "greeter.service")))
         (start (search "ExecStart=" unit)))
    (rest (uiop:split-string (subseq unit start (position #\Newline unit :start start))))))

(test the-example-is-a-program
  (let ((folder (format nil "/tmp/clgrpc-example-~36R/" (random (expt 36 8)
                                                                (make-random-state t)))))
    (ensure-directories-exist folder)
    (unwind-protect
         (support:with-server-program (program address (built-example folder)
                                               "--listen" "127.0.0.1:0")
           (grpc:with-channel (channel address)
             (is (string= "Hello, Ada!" (greet channel "Ada"))))
           (support:signal-program program sb-unix:sigterm)
           (is (search "server-stopped" (last-lines program)))
           (is (= 0 (support:program-exit-code program))))
      (uiop:delete-directory-tree (pathname folder) :validate t))))

(test the-units-command-line-is-taken
  (is (equal "0.0.0.0:50051"
             (first (getf (clgrpc.command:parse-arguments (clgrpc.program::server-command '())
                                                          (unit-arguments))
                          :listen)))))

(test the-chapter-shows-the-example
  (let ((chapter (uiop:read-file-string (support:root-file "doc/servers.md"))))
    (dolist (name '("greeter.lisp" "build.lisp"))
      (let* ((text (uiop:read-file-string (example-file name)))
             (start (or (search "(defun main" text) (search "(sb-ext:save" text))))
        (is (search (string-trim '(#\Newline) (subseq text start)) chapter)
            "doc/servers.md does not show the end of ~A" name)))))
