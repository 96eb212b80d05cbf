;;;; Saved images: what runs is ended before, and the core calls and serves after its start, each
;;;; time with a hash seed of its own.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise.image)

(defun save-image (core)
  "Have an image save itself as CORE while it serves and calls; return its exit code and output."
  (multiple-value-bind (output error-output code)
      (uiop:run-program
       (list "env" (format nil "CLGRPC_OUTPUT=~A" core) "GRPC_VERBOSITY=INFO"
             (namestring sb-ext:*runtime-pathname*) "--noinform" "--non-interactive" "--no-sysinit"
             "--no-userinit" "--load" (support:root-file "scripts/load.lisp")
             "--eval" "(clgrpc.scripts:load-strictly \"clgrpc/examples\")"
             "--load" (support:root-file "tests/whole/promise/saving.lisp"))
       :output :string :error-output :output :ignore-error-status t)
    (declare (ignore error-output))
    (values code output)))

(defun core-report (core)
  "What CORE prints, a list."
  (with-standard-io-syntax
    (read-from-string (uiop:run-program (list core) :output :string))))

(test saved-images-call-and-serve
  (uiop:with-temporary-file (:pathname path)
    (let ((core (uiop:native-namestring path)))
      (multiple-value-bind (code output) (save-image core)
        (is (eql 0 code) "~A" output)
        (dolist (object '("WIRE-SERVER" "CORE"))
          (is (search (format nil "ended-before-save object=\"#<~A" object) output) "~A" output))
        (when (eql 0 code)
          (let ((reports (loop repeat 2 collect (core-report core))))
            (dolist (report reports)
              (is (equal '(:greeting "Hello, Ada!" :tuned t :old-server nil :old-channel :shutdown
                           :old-call :misuse)
                         (cddr report))))
            (is (/= (getf (first reports) :seed) (getf (second reports) :seed)))))))))
