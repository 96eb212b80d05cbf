;;;; What scripts/release refuses. That it makes a release is tried by hand: it takes as long as two
;;;; builds.

(in-package #:clgrpc.tests.examples)

(defun release-complaint (clone &rest arguments)
  "What `scripts/release ARGUMENTS` in the folder CLONE refuses, or nil if it does not."
  (multiple-value-bind (output error-output code)
      (uiop:run-program (cons "scripts/release" arguments) :directory clone
                        :output nil :error-output '(:string :stripped t) :ignore-error-status t)
    (declare (ignore output))
    (unless (eql 0 code) error-output)))

(test a-release-is-refused
  "For a version that is none or not the sources', changes, and a changelog without a date."
  (mapc #'support:need-program '("git" "dpkg-deb"))
  (unless (probe-file (support:root-file ".git")) (support:skip-test "this is not a clone"))
  (let ((clone (format nil "/tmp/clgrpc-release-~36R/" (random (expt 36 8)
                                                               (make-random-state t)))))
    (unwind-protect
         (progn
           (uiop:run-program (list "git" "clone" "-q"
                                   (uiop:native-namestring (support:root-file "")) clone))
           (uiop:run-program "sed -i 's/^## 0.1.0.*/## 0.1.0, soon/' CHANGELOG.md &&
git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -a -m soon" :directory clone)
           (is (search "three numbers" (release-complaint clone "--tested" "1")))
           (is (search "says version 0.1.0" (release-complaint clone "--tested" "7.0.0")))
           (is (search "no heading `## 0.1.0, DATE`" (release-complaint clone "--tested" "0.1.0")))
           (with-open-file (out (concatenate 'string clone "new") :direction :output)
             (write-line "new" out))
           (is (search "not committed" (release-complaint clone "--tested" "0.1.0")))
           (is (search "usage:" (release-complaint clone)))
           (is (search "usage:" (release-complaint clone "--nonsense" "0.1.0"))))
      (uiop:run-program (list "rm" "-rf" clone)))))
