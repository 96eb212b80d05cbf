;;;; The path of a unary call as `scripts/path` prints it, in an image of its own: how often it
;;;; crosses from one package to another, and that it is what doc/architecture.md draws, in order.

(in-package #:clgrpc.tests.architecture)

(defparameter *crossings* '(("Client" 55) ("Server" 42))
  "How often the path of a unary call crosses from one package to another at each end. Lower a number
when it can be. The goals are 62 and 42.")

(defun path-lines ()
  "What `scripts/path --steps` prints."
  (uiop:run-program (list "env" "CLGRPC_PATH_STEPS=1"
                          (uiop:native-namestring sb-ext:*runtime-pathname*) "--noinform"
                          "--dynamic-space-size" "2048" "--non-interactive" "--no-sysinit"
                          "--no-userinit" "--load" "scripts/lisp/path.lisp")
                    :directory (support:root-file "") :output :lines :error-output :output
                    :ignore-error-status t))

(defun split-words (text)
  (remove "" (uiop:split-string text :separator " ,") :test #'string=))

(defun printed-path (end lines)
  "How often the path of END, \"Client\" or \"Server\", crosses from one package to another as LINES
of PATH-LINES say, and its steps in order, lists of a folder and a function."
  (let* ((head (or (member-if (lambda (line) (uiop:string-prefix-p (format nil "~A: " end) line))
                              lines)
                   (error "scripts/path has printed:~{~%~A~}" lines)))
         (words (split-words (first head))))
    (values (parse-integer (nth (- (position "crossings" words :test #'string=) 1) words))
            ;; behind the list of folders, which an empty line ends
            (loop for line in (rest (member "" (rest head) :test #'string=))
                  until (search "crossings" line)
                  for row = (split-words line)
                  when (member (first row) (folders) :test #'string=)
                    append (loop for function in (rest row)
                                 collect (list (first row) function))))))

(defconstant +drawn-columns+ 52
  "In the drawing the server's part of a line begins there.")

(defun drawn-path (end)
  "What doc/architecture.md draws of END, a list of (folder function)."
  (loop for line in (rest (member-if (lambda (line) (uiop:string-prefix-p "CLIENT, " line))
                                     (uiop:read-file-lines
                                      (support:root-file "doc/architecture.md"))))
        until (uiop:string-prefix-p "```" line)
        for half = (if (string= "Client" end)
                       (subseq line 0 (min +drawn-columns+ (length line)))
                       (subseq line (min +drawn-columns+ (length line))))
        for row = (member-if (lambda (word) (member word (folders) :test #'string=))
                             (split-words half))
        append (loop for function in (rest row)
                     unless (char= #\( (char function 0)) collect (list (first row) function))))

(test the-path-of-a-call-is-short-and-as-drawn
  (let ((lines (path-lines)))
    (loop for (end limit) in *crossings*
          do (multiple-value-bind (crossings steps) (printed-path end lines)
               (is (<= crossings limit)
                   "~A: ~D crossings between packages; ~D are allowed" end crossings limit)
               (loop for (folder function) in (drawn-path end)
                     for found = (member (list folder function) steps :test #'equal)
                     unless (member function '("say-hello" "invoke") :test #'string=) ; generic
                       do (is-true found "~A: doc/architecture.md draws ~A of ~A, which is not ~
                                          called, or not behind what is drawn above it"
                                   end function folder)
                          (when found (setf steps (rest found))))))))
