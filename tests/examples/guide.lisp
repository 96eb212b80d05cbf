;;;; The guides of doc/guides, done as written: their files are written and their commands run by
;;;; one shell, in a home of its own that has this clone in ~/common-lisp.
;;;;
;;;; A line `<!-- file: NAME -->` before a block makes that the content of the file NAME in the
;;;; current directory. Blocks of ```sh are run, unless the line before says
;;;; `<!-- not run: why -->`. A line `# => TEXT` in one says that the commands above it in the block
;;;; print a line with TEXT.

(in-package #:clgrpc.tests.examples)

(defun guide-steps (file)
  "The steps of the guide FILE in order: (:file NAME LINES), (:run LINE-NUMBER LINES)."
  (let ((steps '()) (fence nil) (mark "") (lines '()) (begin 0))
    (loop for line in (uiop:read-file-lines file :external-format :utf-8)
          for number from 1
          do (cond ((and fence (string= "```" line))
                    (setf lines (nreverse lines))
                    (cond ((uiop:string-prefix-p "<!-- file: " mark)
                           (push (list :file (subseq mark 11 (search " -->" mark)) lines) steps))
                          ((and (string= "```sh" fence)
                                (not (uiop:string-prefix-p "<!-- not run:" mark)))
                           (push (list :run begin lines) steps)))
                    (setf fence nil
                          mark ""))
                   (fence (push line lines))
                   ((uiop:string-prefix-p "```" line)
                    (setf fence line
                          begin (1+ number)
                          lines '()))
                   (t (setf mark line))))
    (nreverse steps)))

(defun guide-mark (number)
  "What the shell prints before the step with the line NUMBER."
  (format nil "@@ line ~D" number))

(defun guide-script (steps)
  "What bash is to run for STEPS. What it has started in the background ends with it."
  (with-output-to-string (out)
    (format out "set -eu~%trap 'kill $(jobs -p) 2>/dev/null || true' EXIT~%")
    (loop for (kind what lines) in steps
          do (ecase kind
               (:file (format out "cat >~A <<'END OF FILE'~%~{~A~%~}END OF FILE~%" what lines))
               (:run (format out "echo '~A'~%~{~A~%~}" (guide-mark what) lines))))))

(defun missing-lines (steps output)
  "The lines that STEPS say are printed and that OUTPUT, a list of lines, does not have in order."
  (loop for (kind number lines) in steps
        when (eq :run kind)
          append (let ((left (rest (member (guide-mark number) output :test #'string=))))
                   (loop for line in lines
                         for text = (when (uiop:string-prefix-p "# => " line) (subseq line 5))
                         for found = (and text
                                          (member-if (lambda (line) (search text line)) left))
                         when text
                           do (when found (setf left (rest found)))
                           and unless found
                                 collect (format nil "block at line ~D: ~A" number text)))))

(defun call-with-home (function)
  "Call FUNCTION with the name of a new folder that has this clone in common-lisp/."
  (let* ((home (format nil "/tmp/clgrpc-guide-~36R/" (random (expt 36 8)
                                                             (make-random-state t))))
         (clone (concatenate 'string home "common-lisp/clgrpc")))
    (unwind-protect
         (progn
           (ensure-directories-exist clone)
           (uiop:run-program (list "ln" "-s" (string-right-trim
                                              "/" (uiop:native-namestring (support:root-file "")))
                                   clone))
           (funcall function home))
      (dolist (folder (list home (asdf:apply-output-translations (pathname home))))
        (uiop:run-program (list "rm" "-rf" (uiop:native-namestring folder)))))))

(defun guide-output (script home)
  "Run SCRIPT with HOME for two minutes at most; return what it prints, as lines, and its exit
code."
  (let ((file (concatenate 'string home "script")) (log (concatenate 'string home "log")))
    ;; to a file, since what stays in the background would keep a pipe open
    (with-open-file (out file :direction :output :external-format :utf-8 :if-exists :supersede)
      (format out "exec >'~A' 2>&1~%~A" log script))
    (let ((code (nth-value 2 (uiop:run-program
                              (list "timeout" "120" "env" "-C" home
                                    (format nil "HOME=~A" home)
                                    (format nil "XDG_CACHE_HOME=~A"
                                            (uiop:native-namestring (uiop:xdg-cache-home)))
                                    "bash" file)
                              :ignore-error-status t))))
      (values (uiop:read-file-lines log :external-format :utf-8) code))))

(defun check-guide (path &rest units)
  "Do what the guide at PATH says; systemd takes those of its files that are called UNITS. Those run
a program of the unit's name in /usr/local/bin."
  (let ((steps (guide-steps (support:root-file path))))
    (call-with-home
     (lambda (home)
       (multiple-value-bind (output code) (guide-output (guide-script steps) home)
         (is (eql 0 code) "~{~%~A~}" (last output 40))
         (is (null (missing-lines steps output)) "~{~%~A~}" (missing-lines steps output)))
       (dolist (unit units)
         (check-unit (format nil "~Acommon-lisp/~A/~A.service" home unit unit)
                     (format nil "~A.service" unit) (format nil "/usr/local/bin/~A" unit)))))))

(test the-first-service-is-built-as-the-guide-says
  (mapc #'support:need-program '("bash" "curl" "openssl" "systemd-analyze"))
  (support:clgrpc-program)
  (check-guide "doc/guides/first-service.md" "stock"))

(test kubernetes-reads-the-guides-file
  (let* ((steps (guide-steps (support:root-file "doc/guides/deployment.md")))
         (lines (third (find "stock.yaml" steps :key #'second :test #'equal))))
    (uiop:with-temporary-file (:stream out :pathname file)
      (format out "~{~A~%~}" lines)
      :close-stream
      (is (eql 2 (yaml-documents (uiop:native-namestring file)))))))

(test a-guide-that-is-wrong-is-seen
  "A command that fails, a line that is not printed, and one that is printed too early."
  (let ((steps '((:file "text" ("one" "two")) (:run 1 ("cat text" "# => two" "# => one")))))
    (call-with-home
     (lambda (home)
       (multiple-value-bind (output code) (guide-output (guide-script steps) home)
         (is (eql 0 code))
         (is (equal '("@@ line 1" "one" "two") output))
         (is (equal '("block at line 1: one") (missing-lines steps output))))
       (is (eql 3 (nth-value 1 (guide-output "set -e; (exit 3)
true" home))))))))
