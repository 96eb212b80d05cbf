;;;; Saved images: what runs is ended before, and the core calls and serves after its start, each
;;;; time with a hash seed of its own.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise.image)

(defun save-image (core)
  "Have an image save itself as CORE while it serves and calls; return its exit code and output."
  (multiple-value-bind (output error-output code)
      (uiop:run-program
       (list "env" (format nil "CLGRPC_OUTPUT=~A" core)
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
        (when (eql 0 code)
          (let ((reports (loop repeat 2 collect (core-report core))))
            (dolist (report reports)
              (is (equal '(:greeting "Hello, Ada!" :tuned t :old-server nil :old-channel :shutdown
                           :old-call :misuse)
                         (cddr report))))
            (is (/= (getf (first reports) :seed) (getf (second reports) :seed)))))))))

(defun permanent-data-report (megabytes &optional older)
  "What permanent.lisp prints with a heap of so many MEGABYTES."
  (with-standard-io-syntax
    (read-from-string
     (uiop:run-program
      (append (list "env") (when older '("CLGRPC_OLDER=1"))
              (list (namestring sb-ext:*runtime-pathname*) "--noinform"
                    "--dynamic-space-size" (princ-to-string megabytes)
                    "--non-interactive" "--no-sysinit" "--no-userinit"
                    "--load" (support:root-file "scripts/load.lisp")
                    "--eval" "(clgrpc.scripts:load-strictly \"clgrpc\")"
                    "--load" (support:root-file "tests/whole/promise/permanent.lisp")))
      :output :string))))

(test permanent-data-is-old-at-once
  "The survivors of two collections are as old as much permanent data, which is not copied before the
heap has grown by as much; not if the heap has no room for that, or if data was older before."
  (let ((two-generations '(:generation 1 :least-nursery t :new 1 :stays (t t t)
                           :stays-while-grown nil :freed t)))
    (is (equal two-generations (permanent-data-report 2048))))
  (dolist (report (list (permanent-data-report 700) (permanent-data-report 2048 t)))
    (is (= sb-vm:+highest-normal-generation+ (getf report :generation)))
    (is (> sb-vm:+highest-normal-generation+ (getf report :new)))
    (is (equal '(t t t) (getf report :stays)))
    (is (eq t (getf report :freed)))))
