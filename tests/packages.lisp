;;;; Each package, a file NAME.asd, loads without those that it does not stand on, and so do its
;;;; tests: a fresh image loads all of its systems, and then says which it has.

(in-package #:clgrpc.tests.architecture)
(in-suite :clgrpc.architecture)

(defun tests-of (asd)
  "The names of the systems that ASDF:TEST-SYSTEM of ASD tests."
  (loop for (operation . names) in (asdf:component-depends-on
                                    (asdf:make-operation 'asdf:test-op) (asdf:find-system asd))
        when (eq 'asdf:test-op operation) append names))

(defun loaded-beside (asd)
  "The packages that a fresh image has once it has loaded all systems of ASD and their tests."
  (let ((lines (uiop:run-program
                (list (uiop:native-namestring sb-ext:*runtime-pathname*) "--noinform"
                      "--no-sysinit" "--no-userinit" "--disable-debugger"
                      "--eval" "(require :asdf)"
                      "--eval" "(push (uiop:getcwd) asdf:*central-registry*)"
                      "--eval" (format nil "(mapc #'asdf:load-system '~S)"
                                       (append (systems-of asd) (tests-of asd)))
                      "--eval" "(format t \"~{~&loaded ~A~%~}\" (asdf:already-loaded-systems))"
                      "--eval" "(sb-ext:exit :abort t :code (progn (finish-output) 0))")
                :directory (support:root-file "") :output :lines :error-output :output
                :ignore-error-status t)))
    (or (remove-duplicates
         (loop for line in lines
               when (uiop:string-prefix-p "loaded clgrpc" line)
                 collect (asdf:primary-system-name (subseq line (length "loaded "))))
         :test #'string=)
        (error "~A cannot be loaded:~{~%~A~}" asd
               (remove-if-not (lambda (line) (search "rror" line)) lines)))))

(defmacro define-packages ()
  "Define a test for each of *ASDS*."
  `(progn
     ,@(loop for (asd . others) in *asds*
             collect `(test ,(intern (format nil "~:@(~A~)-STANDS-ALONE" asd))
                        (is (subsetp (loaded-beside ,asd) '(,asd "clgrpc-tests" ,@others)
                                     :test #'string=))))))

(define-packages)
