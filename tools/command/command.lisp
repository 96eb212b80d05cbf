;;;; The commands of `clgrpc`. DEFINE-COMMAND declares one: its parameters, its options with their
;;;; defaults and parsers, and its function; help texts and complaints come from that declaration
;;;; (src/program/command). A wrong argument is a USAGE-ERROR: a line on standard error and exit
;;;; code 2; an action that was tried and failed is a FAILURE, with code 1.

(in-package #:clgrpc.tools)

(define-condition failure (clgrpc-error)
  ((text :initarg :text :reader failure-text))
  (:report (lambda (condition stream) (write-string (failure-text condition) stream)))
  (:documentation "The command has failed; TEXT is the reason, in one line."))

(defun fail-command (control &rest arguments)
  "Signal a FAILURE."
  (error 'failure :text (format nil "~?" control arguments)))

(defvar *commands* '() "All commands, in the order of their definition.")

(defun find-command (name)
  (find name *commands* :key #'command-name :test #'string=))

(defun add-command (command)
  (setf *commands* (append (remove (command-name command) *commands*
                                   :key #'command-name :test #'string=)
                           (list command)))
  command)

(defmacro define-command (name (parameters options) documentation &body body)
  "Define the command NAME, a string. PARAMETERS are lists (variable VALUE parser documentation);
those whose VALUE is in brackets are optional, and one whose VALUE ends in … takes all remaining
arguments, as a list. OPTIONS are rows in the form of COMMAND:OPTION-LIST. BODY returns the exit
code. NAME may be a list (name variable). In that case the only variable is VARIABLE, which is bound
to a plist of the keywords of all parameters and options and their values."
  `(add-command
    (command:make-command
     :name ,(if (consp name) (first name) name)
     :invocation ,(format nil "clgrpc ~A" (if (consp name) (first name) name))
     :documentation ,documentation
     :parameters (command:parameter-list ,@parameters)
     :options (command:option-list ,@options)
     :function (lambda ,(if (consp name)
                            `(&rest ,(second name))
                            `(&key ,@(mapcar #'first parameters)
                                ,@(command:option-variables options)))
                 ,@body))))

(defun parse-channel-target (string)
  "STRING if it can be the target of a channel: an address, or a name that a resolver of its scheme
understands."
  (let ((scheme (loop:find-scheme string)))
    (handler-case (if (and scheme (loop:scheme-resolver scheme))
                      (funcall (loop:scheme-resolver scheme) string (make-channel-options))
                      (loop:parse-target string))
      (misuse (error) (refuse "~A" (string-right-trim "." (princ-to-string error)))))
    string))

;;; Help

(defun first-sentence (text)
  "The first sentence of TEXT, in one line, with a space between two words."
  (let* ((words (remove "" (uiop:split-string text :separator '(#\Space #\Newline))
                        :test #'string=))
         (text (format nil "~{~A~^ ~}" words))
         (end (search ". " text)))      ; there are dots in names of files
    (string-right-trim "." (subseq text 0 end))))

(defun summary (command)
  "The first sentence of COMMAND's documentation."
  (first-sentence (command-documentation command)))

(defun commands-by-name ()
  (sort (copy-list *commands*) #'string< :key #'command-name))

(defun write-help (stream)
  (format stream "usage: clgrpc COMMAND [ARGUMENTS]~2%gRPC for Common Lisp: servers to try it ~
                  with, clients for any server, generators.~2%Commands:~%")
  (dolist (command (commands-by-name))
    (format stream "  ~18A ~A~%" (command-name command) (summary command)))
  (format stream "~%`clgrpc COMMAND --help` explains a command; `clgrpc --version` prints the ~
                  version.~%"))


;;; Printing

(defparameter *longest-text* 10000
  "The maximum number of characters that are printed of a name, status message or complaint.")

(defun shown (text)
  "TEXT, which a server may have sent, made safe for a terminal: on one line, with visible
characters only, and not longer than *LONGEST-TEXT*."
  (printable-text text :limit *longest-text*))

;;; Running

(defun complain (command-name condition)
  "Print CONDITION, which may be a text, as one line on standard error. If CONDITION is about a
.proto file, print a line for each error in it."
  (let* ((*print-pretty* nil)
         (text (bounded-text condition :limit *longest-text*)))
    (tell "clgrpc~@[ ~A~]: ~{~A~^~%~}" command-name
          (mapcar #'shown (if (typep condition 'grpc:proto-syntax-error)
                              (uiop:split-string text :separator '(#\Newline))
                              (list (substitute #\Space #\Newline text)))))))

(defun tell (control &rest arguments)
  "Print a line on standard error; CONTROL and ARGUMENTS are those of FORMAT."
  (format *error-output* "~?~%" control arguments)
  (finish-output *error-output*))

(defun run-command (arguments)
  "Run the command line ARGUMENTS, a list of strings; return the exit code: 0, 1 if the command
failed, 2 if the arguments are wrong. An unforeseen error is a failure, too, and no backtrace is
printed, because it could contain a server's text with control sequences of terminals."
  (let* ((name (first arguments))
         (command (and name (find-command name))))
    (handler-case
        (cond ((null name) (write-help *error-output*) 2)
              ((member name '("--help" "-h") :test #'string=) (write-help *standard-output*) 0)
              ((string= name "--version")
               (format t "clgrpc ~A (SBCL ~A)~%" **version** (lisp-implementation-version))
               0)
              ((null command)
               (refuse "there is no command ~S~@[ (is it ~A?)~]; see `clgrpc --help`" name
                       (suggested-name name (mapcar #'command-name *commands*))))
              (t (let ((parsed (parse-arguments command (rest arguments))))
                   (cond ((eq :help parsed) (write-command-help command *standard-output*) 0)
                         (t (apply (command-function command) parsed))))))
      (usage-error (error) (complain (and command name) error) 2)
      ((or clgrpc-error stream-error) (error)
        (complain (and command name) error)
        1)
      ((or error storage-condition) (condition)
        (complain (and command name)
                  (format nil "an error of clgrpc itself: ~A" (bounded-text condition)))
        1))))
