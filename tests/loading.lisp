;;;; scripts/load.lisp compiles two systems at once, in two processes, if there are two processors.
;;;; If the second dies, the first compiles the rest; if the first ends, so does the second.

(in-package #:clgrpc.tests.architecture)

(defun write-pair (folder form small)
  "Write clgrpc-pair.asd, two systems and one that needs both, in FOLDER. The first has the form
SMALL, a text. The second, which is larger, has FORM, and prints which process compiles it."
  (flet ((write-file (name text)
           (with-open-file (stream (merge-pathnames name folder) :direction :output)
             (write-string text stream))))
    (write-file "clgrpc-pair.asd" "(defsystem \"clgrpc-pair\"
  :depends-on (\"clgrpc-pair/small\" \"clgrpc-pair/large\"))
(defsystem \"clgrpc-pair/small\" :components ((:file \"small\")))
(defsystem \"clgrpc-pair/large\" :components ((:file \"large\")))")
    (write-file "small.lisp" small)
    (write-file "large.lisp" (format nil "~
(eval-when (:compile-toplevel)
  (defvar *first-p* (= *first* (sb-posix:getpid)))
  (format t \"~~&large: ~~:[second~~;first~~] ~~D~~%\" *first-p* (sb-posix:getpid))
  (finish-output))
~A" form))))

(defun load-pair (form &key (before '()) (small "(defun small ())"))
  "Load the systems of WRITE-PAIR with FORM and SMALL in a Lisp; the words BEFORE are before its
command. Three values: the processes that compiled the large system, in order; the exit code; the
pids of these processes."
  (support:with-folder (folder)
    (write-pair folder form small)
    (multiple-value-bind (lines errors code)
        (uiop:run-program
         `(,@before "env" ,(format nil "XDG_CACHE_HOME=~A" folder)
           ,(uiop:native-namestring sb-ext:*runtime-pathname*) "--noinform" "--non-interactive"
           "--no-sysinit" "--no-userinit" "--load" ,(support:root-file "scripts/load.lisp")
           "--eval" "(require :sb-posix)"
           "--eval" "(defvar cl-user::*first* (sb-posix:getpid))"
           "--eval" ,(format nil "(push ~S asdf:*central-registry*)" (pathname folder))
           "--eval" "(clgrpc.scripts:load-strictly \"clgrpc-pair\")"
           "--eval" "(uiop:quit (if (fboundp 'cl-user::large) 0 3))")
         :output :lines :error-output nil :ignore-error-status t)
      (declare (ignore errors))
      (loop for line in lines
            when (uiop:string-prefix-p "large: " line)
              collect (uiop:split-string (subseq line (length "large: "))) into compiled
            finally (return (values (mapcar #'first compiled) code
                                    (mapcar #'second compiled)))))))

(defun two-processes-p ()
  (and (< 1 (clgrpc.os:processor-count)) (not (uiop:getenvp "CLGRPC_EMULATED"))))

(defun check-pair (processes code &rest arguments)
  "Check the first two values of LOAD-PAIR with ARGUMENTS."
  (multiple-value-bind (compiling exit) (apply #'load-pair arguments)
    (is (equal processes compiling))
    (is (eql code exit))))

(defparameter *large* "(defun large () '(\"a system that is larger than the other\"))")

(test the-larger-system-is-compiled-beside
  "With two processors by a second process, with one by the first."
  (when (two-processes-p) (check-pair '("second") 0 *large*))
  (check-pair '("first") 0 *large* :before '("taskset" "-c" "0")))

(test a-killed-process-leaves-its-work-to-the-first
  "As the kernel kills one when memory ends; what it has not compiled the first compiles."
  (when (two-processes-p)
    (check-pair '("second" "first") 0
                (format nil "(eval-when (:compile-toplevel)
  (unless *first-p* (sb-posix:kill (sb-posix:getpid) sb-posix:sigkill)))~%~A" *large*))))

(test a-warning-of-the-second-process-fails-the-load
  (is (= 1 (nth-value 1 (load-pair (format nil "(defun unused (it))~%~A" *large*))))))

(test no-process-outlives-the-first
  "The first fails, while the second would take a minute."
  (when (two-processes-p)
    (multiple-value-bind (processes code pids)
        (load-pair (format nil "(eval-when (:compile-toplevel)
  (open (merge-pathnames \"begun\" *compile-file-truename*) :direction :output)
  (sleep 60))~%~A" *large*)
                   :small "(eval-when (:compile-toplevel)
  (loop repeat 6000
        until (probe-file (merge-pathnames \"begun\" *compile-file-truename*)) do (sleep 0.01))
  (error \"on purpose\"))")
      (is (equal '("second") processes))
      (is (= 1 code))
      ;; of a process that has ended, but that nobody has waited for, the command line is empty
      (support:eventually
       (string= "" (or (ignore-errors
                        (uiop:read-file-string (format nil "/proc/~A/cmdline" (first pids))))
                       ""))))))
