;;;; Each package, a file NAME.asd, loads without those that it does not stand on, and so do its
;;;; tests: a fresh image loads all of its systems, and then says which it has. What several
;;;; packages need by what they declare is loaded once, into an image of which each of theirs is a
;;;; fork.

(in-package #:clgrpc.tests.architecture)

(defun tests-of (asd)
  "The names of the systems that ASDF:TEST-SYSTEM of ASD tests."
  (loop for (operation . names) in (asdf:component-depends-on
                                    (asdf:make-operation 'asdf:test-op) (asdf:find-system asd))
        when (eq 'asdf:test-op operation) append names))

(defun needed-by (asd)
  "The names of the systems that all of ASD's and their tests stand on by what they declare, and
their own."
  (let ((names '()))
    (labels ((visit (name)
               (unless (member name names :test #'string=)
                 (push name names)
                 (when (uiop:string-prefix-p "clgrpc" name)
                   (mapc #'visit (mapcar #'asdf:coerce-name
                                         (asdf:system-depends-on (asdf:find-system name))))))))
      (mapc #'visit (append (systems-of asd) (tests-of asd))))
    names))

(defun shared-by (asds)
  "The systems that each of ASDS needs."
  (reduce (lambda (some others) (intersection some others :test #'string=))
          (mapcar #'needed-by asds)))

(defun loading-forms (asds)
  "Forms for a fresh image, texts: load what ASDS share, and in a fork for each of these all of its
systems, and print for each which systems it has."
  (list "(require :asdf)"
        "(require :sb-posix)"
        "(push (uiop:getcwd) asdf:*central-registry*)"
        (format nil "(mapc #'asdf:load-system '~S)" (shared-by asds))
        (format nil "(loop for (asd . systems) in '~S
                           do (let ((pid (progn (finish-output) (sb-posix:fork))))
                                (when (zerop pid)
                                  (mapc #'asdf:load-system systems)
                                  (format t \"~~:{~~&loaded ~~A ~~A~~%~~}\"
                                          (mapcar (lambda (loaded) (list asd loaded))
                                                  (asdf:already-loaded-systems)))
                                  (finish-output)
                                  (sb-ext:exit :abort t :code 0))
                                (sb-posix:waitpid pid 0)))"
                (loop for asd in asds
                      collect (cons asd (append (systems-of asd) (tests-of asd)))))
        "(sb-ext:exit :abort t :code 0)"))

(defun loaded-beside (asds)
  "For each of ASDS a list of its name and of the packages that an image of its own has once it has
loaded all of its systems and their tests."
  (let ((lines (uiop:run-program
                (list* (uiop:native-namestring sb-ext:*runtime-pathname*) "--noinform"
                       "--no-sysinit" "--no-userinit" "--disable-debugger"
                       (loop for form in (loading-forms asds) append (list "--eval" form)))
                :directory (support:root-file "") :output :lines :error-output :output
                :ignore-error-status t)))
    (loop for asd in asds
          for prefix = (format nil "loaded ~A " asd)
          collect (cons asd
                        (or (remove-duplicates
                             (loop for line in lines
                                   when (uiop:string-prefix-p (format nil "~Aclgrpc" prefix) line)
                                     collect (asdf:primary-system-name
                                              (subseq line (length prefix))))
                             :test #'string=)
                            (error "~A cannot be loaded:~{~%~A~}" asd
                                   (remove-if-not (lambda (line) (search "rror" line)) lines)))))))

(defun check-standing-alone (asds)
  "Check that each of ASDS loads no others than *ASDS* says."
  (loop for (asd . loaded) in (loaded-beside asds)
        for others = (rest (assoc asd *asds* :test #'string=))
        do (is (subsetp loaded (list* asd "clgrpc-tests" others) :test #'string=)
               "~A loads ~{~A~^, ~}" asd loaded)))

(test packages-stand-alone
  "Those that stand on all of clgrpc in forks of one image, those that do not in another."
  (flet ((large-p (asd) (member "clgrpc" (needed-by asd) :test #'string=)))
    (let ((asds (mapcar #'first *asds*)))
      (check-standing-alone (remove-if-not #'large-p asds))
      (check-standing-alone (remove-if #'large-p asds)))))
