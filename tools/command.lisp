;;;; Commands and their arguments. DEFINE-COMMAND declares a command once: its parameters, its
;;;; options with their defaults and parsers, and what it does; help texts and complaints come from
;;;; that declaration. Options are `--name VALUE` or `--name=VALUE`, anywhere, and those whose value
;;;; may be left out `--name` or `--name=VALUE`; `--` ends them. An option --config says more
;;;; arguments. A wrong argument is a USAGE-ERROR: a line on standard error and exit code 2; what
;;;; was tried and failed is a FAILURE, with code 1.

(in-package #:clgrpc.tools)

(define-condition usage-error (clgrpc-error)
  ((text :initarg :text :reader usage-error-text))
  (:report (lambda (condition stream) (write-string (usage-error-text condition) stream)))
  (:documentation "The command line is wrong; TEXT says how, in one line."))

(defun refuse (control &rest arguments)
  "Signal a USAGE-ERROR."
  (error 'usage-error :text (format nil "~?" control arguments)))

(define-condition failure (clgrpc-error)
  ((text :initarg :text :reader failure-text))
  (:report (lambda (condition stream) (write-string (failure-text condition) stream)))
  (:documentation "What the command line asks for did not come about; TEXT says why, in one line."))

(defun fail-command (control &rest arguments)
  "Signal a FAILURE."
  (error 'failure :text (format nil "~?" control arguments)))

(defstruct (argument (:copier nil))
  "A parameter or option: KEY, its keyword for the command's function; NAME as users write it;
VALUE, what its value is called, in brackets if it may be left out; PARSER, a function of the string
that returns the value or refuses. The values of an option that is REPEATED come as a list."
  (key :none :type keyword)
  (name "" :type string)
  (aliases '() :type list)              ; other names of an option
  (value "" :type string)
  (parser #'identity :type function)
  (default nil)
  (repeated nil :type boolean)
  (documentation "" :type string))

(defstruct (command (:copier nil))
  (name "" :type string)
  (documentation "" :type string)
  (parameters '() :type list)
  (options '() :type list)
  (function #'identity :type function))

(defvar *commands* '() "All commands, in the order of their definition.")

(defun find-command (name)
  (find name *commands* :key #'command-name :test #'string=))

(defun add-command (command)
  (setf *commands* (append (remove (command-name command) *commands*
                                   :key #'command-name :test #'string=)
                           (list command)))
  command)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defvar *shared-options* '() "A plist from a name to what DEFINE-COMMAND puts in its place.")

  (defun expand-shared-options (options)
    (loop for option in options
          append (if (symbolp option)
                     (or (getf *shared-options* option)
                         (error "There are no shared options ~S." option))
                     (list option)))))

(defmacro define-shared-options (name &body options)
  "Have NAME stand for OPTIONS in the options of DEFINE-COMMAND."
  `(eval-when (:compile-toplevel :load-toplevel :execute)
     (setf (getf *shared-options* ',name) ',options)))

(defmacro define-command (name (parameters options) documentation &body body)
  "Define the command NAME, a string. PARAMETERS are lists (variable VALUE parser documentation);
those whose VALUE is in brackets may be left out, and one whose VALUE ends in … takes all arguments
that are left, as a list. OPTIONS are lists (variable VALUE parser default
documentation), named like the variable, and names of DEFINE-SHARED-OPTIONS; an option whose VALUE
is in brackets may stand without one and then means \"true\", and with (variable name) for the
variable it has that name and may be given several times. With (variable nil alias…) it is known by
the ALIASES too. BODY returns the exit code. NAME may be a list (name variable): then that VARIABLE,
not one for each, is bound to the plist of parameters and options, keywords and values."
  (setf options (loop for (variable . rest) in (expand-shared-options options)
                      collect (cons (if (consp variable) variable (list variable)) rest)))
  (flet ((key (variable) (intern (string variable) :keyword))
         (option-name (variable name)
           (or name
               (format nil "~:[--~;-~]~(~A~)" (= 1 (length (string variable))) variable))))
    `(add-command
      (make-command
       :name ,(if (consp name) (first name) name) :documentation ,documentation
       :parameters (list ,@(loop for (variable value parser documentation) in parameters
                                 collect `(make-argument :key ,(key variable) :name ,value
                                                         :value ,value :parser ,parser
                                                         :documentation ,documentation)))
       :options (list ,@(loop for ((variable name . aliases) value parser default documentation)
                                in options
                              collect `(make-argument :key ,(key variable)
                                                      :name ,(option-name variable name)
                                                      :aliases ',aliases
                                                      :value ,value :parser ,parser
                                                      :default ,default
                                                      :repeated ,(and name t)
                                                      :documentation ,documentation)))
       :function (lambda ,(if (consp name)
                              `(&rest ,(second name))
                              `(&key ,@(mapcar #'first parameters) ,@(mapcar #'caar options)))
                   ,@body)))))

;;; Parsers

(defun integer-parser (minimum maximum)
  "Return a parser of integers from MINIMUM to MAXIMUM."
  (lambda (string)
    (let ((value (and (<= 1 (length string) 19)
                      (every (lambda (char) (char<= #\0 char #\9)) string)
                      (parse-integer string))))
      (unless (and value (<= minimum value maximum))
        (refuse "an integer from ~D to ~D is wanted, not ~S" minimum maximum string))
      value)))

(defun parse-boolean (string)
  (cond ((string= string "true") t)
        ((string= string "false") nil)
        (t (refuse "true or false is wanted, not ~S" string))))

(defun parse-decimal (string what)
  "The rational that the decimal STRING says; if it is none, refuse it since WHAT is wanted."
  (let* ((dot (or (position #\. string) (length string)))
         (digits (remove #\. string :count 1))
         (fraction (max 0 (- (length string) dot 1))))
    (unless (and (<= 1 (length digits) 12) (every (lambda (char) (char<= #\0 char #\9)) digits))
      (refuse "~A, not ~S" what string))
    (/ (parse-integer digits) (expt 10 fraction))))

(defun parse-seconds (string)
  "The seconds, a rational, that the decimal STRING says."
  (let* ((what "seconds are wanted, such as 2 or 0.5")
         (seconds (parse-decimal string what)))
    (unless (plusp seconds) (refuse "~A, not ~S" what string))
    seconds))

(defun parse-ratio (string)
  "The share, a rational from 0 to 1, that the decimal STRING says; \"true\" means all."
  (let* ((what "a number from 0 to 1 is wanted, such as 0.01")
         (ratio (if (string= string "true") 1 (parse-decimal string what))))
    (unless (<= ratio 1) (refuse "~A, not ~S" what string))
    ratio))

(defun choice-parser (&rest choices)
  "Return a parser of the names of CHOICES, keywords."
  (lambda (string)
    (or (find string choices :test #'string-equal)
        (refuse "it is one of ~{~(~A~)~^, ~}, not ~S" choices string))))

(defun limit-parser (name)
  "Return a parser of values for the row NAME, a keyword, of the options table."
  (let ((row (find-option-row name)))
    (cond ((typep (option-row-default row) 'boolean) #'parse-boolean)
          ((string= "seconds" (option-row-unit row))
           (lambda (string)
             (let ((value (if (string= "0" string) 0 (parse-seconds string))))
               (handler-case (check-option row value)
                 (misuse (condition) (refuse "~A" condition)))
               value)))
          (t (integer-parser (option-row-minimum row) (option-row-maximum row))))))

(defun parse-limits (string)
  "The plist that STRING, NAME=VALUE with commas between, means: rows of the options table."
  (loop for word in (or (uiop:split-string string :separator ",") '(""))
        append (let* ((equals (or (position #\= word)
                                  (refuse "NAME=VALUE is wanted, not ~S" word)))
                      (name (subseq word 0 equals))
                      (rows (remove :channel (option-table) :key #'option-row-scope))
                      (row (or (find name rows :key #'option-row-name :test #'string-equal)
                               (refuse "servers have no option ~S; they have ~{~(~A~)~^, ~}" name
                                       (mapcar #'option-row-name rows)))))
                 (list (option-row-name row)
                       (funcall (limit-parser (option-row-name row))
                                (subseq word (1+ equals)))))))

(defun address-parser (minimum-port)
  "Return a parser of addresses as doc/addresses.md has them, with a port of MINIMUM-PORT at least."
  (lambda (string)
    (handler-case (loop:parse-target string :smallest-port minimum-port)
      (misuse (error) (refuse "~A" (string-right-trim "." (princ-to-string error)))))
    string))

(defun parse-channel-target (string)
  "STRING, the target of a channel: an address, or what a resolver of its scheme takes."
  (let ((scheme (loop:find-scheme string)))
    (handler-case (if (and scheme (loop:scheme-resolver scheme))
                      (funcall (loop:scheme-resolver scheme) string (make-channel-options))
                      (loop:parse-target string))
      (misuse (error) (refuse "~A" (string-right-trim "." (princ-to-string error)))))
    string))

(defun addresses-parser (minimum-port)
  "Return a parser of lists of such addresses, with commas between."
  (lambda (string)
    (mapcar (address-parser minimum-port)
            (or (uiop:split-string string :separator ",") '("")))))

;;; From arguments to a call

(defun parse-value (argument string)
  (handler-case (funcall (argument-parser argument) string)
    (usage-error (error) (refuse "~A: ~A" (argument-name argument) (usage-error-text error)))))

(defun option-token-p (token)
  (and (< 1 (length token)) (char= #\- (char token 0))))

(defun option-names (command)
  (loop for option in (command-options command)
        collect (argument-name option)
        append (argument-aliases option)))

(defun edit-distance (one other)
  "How many characters are to be put in, left out or replaced to make the string OTHER of ONE."
  (let ((row (loop for i from 0 to (length other) collect i)))
    (loop for char across one
          for above = row
          do (setf row (list (1+ (first above))))
             (loop for expected across other
                   for (corner over) on above
                   do (push (min (1+ (first row)) (1+ over)
                                 (+ corner (if (char= char expected) 0 1)))
                            row))
             (setf row (nreverse row)))
    (first (last row))))

(defun likely-name (name names)
  "That of NAMES, strings, which somebody who wrote NAME is likely to have meant, or nil: the only
one that begins so, or the one nearest to it."
  (let ((begun (remove-if-not (lambda (known) (uiop:string-prefix-p name known)) names)))
    (if (and begun (null (rest begun)) (< 3 (length name)))
        (first begun)
        (let ((nearest (first (sort (copy-list names) #'<
                                    :key (lambda (known) (edit-distance name known))))))
          (and nearest
               (<= 4 (length name))
               (<= (edit-distance name nearest) (max 2 (floor (length name) 4)))
               nearest)))))

(defun parse-option (command token rest)
  "Parse the option that TOKEN begins, with REST behind it. Return its key, its value and what of
REST is left."
  (let* ((equals (position #\= token))
         (name (subseq token 0 equals))
         (option (find-if (lambda (option)
                            (or (string= name (argument-name option))
                                (find name (argument-aliases option) :test #'string=)))
                          (command-options command))))
    (cond ((null option)
           (refuse "there is no option ~A~@[ (is it ~A?)~]; `clgrpc ~A --help` tells those there ~
                    are"
                   name (likely-name name (option-names command)) (command-name command)))
          (equals (values (argument-key option) (parse-value option (subseq token (1+ equals)))
                          rest))
          ((optional-p option) (values (argument-key option) (parse-value option "true") rest))
          ((null rest) (refuse "~A needs a value, ~A" name (argument-value option)))
          (t (values (argument-key option) (parse-value option (first rest)) (rest rest))))))

(defun split-arguments (command arguments)
  "Return what is positional in the strings ARGUMENTS of COMMAND, in order, and the plist of the
options that are given; or :help."
  (let ((given '()) (positional '()) (open t))
    (loop while arguments
          do (let ((token (pop arguments)))
               (cond ((not (and open (option-token-p token))) (push token positional))
                     ((string= token "--") (setf open nil))
                     ((member token '("--help" "-h") :test #'string=)
                      (return-from split-arguments :help))
                     (t (multiple-value-bind (key value left) (parse-option command token arguments)
                          (setf given (give command given key value)
                                arguments left))))))
    (values (nreverse positional) given)))

(defun parse-arguments (command arguments)
  "Return the keyword arguments that the strings ARGUMENTS mean to COMMAND, or :help. What the value
of an option --config, a list of further arguments, says counts where ARGUMENTS say nothing."
  (multiple-value-bind (positional given) (split-arguments command arguments)
    (if (eq :help positional)
        :help
        (multiple-value-bind (more-positional more) (split-arguments command (getf given :config))
          (append (parse-positional command (or positional more-positional))
                  given
                  more
                  (loop for option in (command-options command)
                        collect (argument-key option)
                        collect (argument-default option)))))))

(defun give (command given key value)
  "The plist GIVEN with VALUE for KEY, behind earlier ones if the option of COMMAND is repeated."
  (let ((option (find key (command-options command) :key #'argument-key)))
    (list* key (if (argument-repeated option) (append (getf given key) (list value)) value)
           given)))

(defun parse-positional (command tokens)
  (append (loop for parameter in (command-parameters command)
                until (and (null tokens) (optional-p parameter))
                unless tokens
                  do (refuse "~A is missing" (argument-name parameter))
                collect (argument-key parameter)
                collect (if (takes-all-p parameter)
                            (loop while tokens collect (parse-value parameter (pop tokens)))
                            (parse-value parameter (pop tokens))))
          (when tokens (refuse "there is one argument too many: ~S" (first tokens)))))

(defun takes-all-p (parameter)
  "True if PARAMETER, the last, takes all arguments that are left; then its value is a list."
  (uiop:string-suffix-p (argument-value parameter) "…"))

(defun optional-p (argument)
  "True if the parameter ARGUMENT, or the value of the option, may be left out."
  (char= #\[ (char (argument-value argument) 0)))

;;; Help

(defun write-usage (command stream)
  "How COMMAND is called, in lines of at most 80 columns."
  (let ((column 0))
    (flet ((write-word (word)
             (cond ((< (+ column 1 (length word)) 80) (format stream " "))
                   (t (format stream "~%        ")
                      (setf column 7)))
             (write-string word stream)
             (incf column (1+ (length word)))))
      (write-string "usage:" stream)
      (incf column 6)
      (write-word (format nil "clgrpc ~A" (command-name command)))
      (dolist (parameter (command-parameters command)) (write-word (argument-name parameter)))
      (dolist (option (command-options command))
        (write-word (format nil "[~A~A~A]~:[~;…~]" (argument-name option)
                            ;; `--name=VALUE` where it may stand without one
                            (if (optional-p option) "" " ")
                            (if (optional-p option)
                                (format nil "[=~A" (subseq (argument-value option) 1))
                                (argument-value option))
                            (argument-repeated option))))
      (terpri stream))))

(defun default-text (argument)
  "The default of the option ARGUMENT as a user would write it, or nil without one."
  (let ((default (argument-default argument)))
    (cond ((null default) nil)
          ((keywordp default) (string-downcase default))
          ((string/= "DURATION" (argument-value argument)) (princ-to-string default))
          ((integerp default) (format nil "~Ds" default))
          (t (format nil "~Dms" (* 1000 default))))))

(defun write-command-help (command stream)
  (write-usage command stream)
  (format stream "~%~A~%" (command-documentation command))
  (flet ((describe-arguments (title arguments)
           (when arguments
             (format stream "~%~A~%" title)
             (dolist (argument arguments)
               (format stream "  ~{~A, ~}~A~@[ ~A~]~%      ~A~@[ (default ~A)~]~%"
                       (argument-aliases argument) (argument-name argument)
                       (unless (string= (argument-name argument) (argument-value argument))
                         (argument-value argument))
                       (argument-documentation argument)
                       (default-text argument))))))
    (describe-arguments "Parameters:" (command-parameters command))
    (describe-arguments "Options:" (command-options command))))

(defun summary (command)
  "The first sentence of COMMAND's documentation."
  (let* ((text (substitute #\Space #\Newline (command-documentation command)))
         (end (search ". " text)))      ; there are dots in names of files
    (string-right-trim "." (subseq text 0 end))))

(defun write-help (stream)
  (format stream "usage: clgrpc COMMAND [ARGUMENTS]~2%gRPC for Common Lisp: servers to try it ~
                  with, clients for any server, generators.~2%Commands:~%")
  (dolist (command (sort (copy-list *commands*) #'string< :key #'command-name))
    (format stream "  ~18A ~A~%" (command-name command) (summary command)))
  (format stream "~%`clgrpc COMMAND --help` explains a command; `clgrpc --version` prints the ~
                  version.~%"))


;;; What is printed

(defparameter *longest-text* 10000
  "How many characters are printed of a name, status message or complaint.")

(defun shown (text)
  "TEXT, which a server may have sent, as it may go to a terminal: in one line, visible, bounded."
  (visible-text text :limit *longest-text*))

;;; Running

(defun complain (command-name condition)
  "Print CONDITION, or a text, as one line on standard error."
  (let ((*print-pretty* nil))
    (format *error-output* "clgrpc~@[ ~A~]: ~A~%" command-name
            (shown (substitute #\Space #\Newline
                               (bounded-text condition :limit *longest-text*)))))
  (finish-output *error-output*))

(defconstant +exit-broken-pipe+ 141 "Who reads our output has gone, such as `head`: the code of a
process that SIGPIPE has ended.")

(defun complain-of-stream (command-name error)
  "Say that reading or writing failed as ERROR, a STREAM-ERROR, says; return the exit code. Nobody
needs to be told that the reader of our own output has gone."
  (let ((own (eq *standard-output* (stream-error-stream error)))
        (reason (report:error-reason error)))
    (cond ((and own (string= reason (os:errno-text (- os:+epipe+)))) +exit-broken-pipe+)
          (t (complain command-name (if own
                                        (format nil "cannot write to standard output: ~A" reason)
                                        error))
             1))))

(defun run-command (arguments)
  "Do what the command line ARGUMENTS, a list of strings, says; return the exit code: 0, 1 if it was
tried and failed, 2 if the arguments are wrong, 141 if nobody reads the output any more."
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
                       (likely-name name (mapcar #'command-name *commands*))))
              (t (let ((parsed (parse-arguments command (rest arguments))))
                   (cond ((eq :help parsed) (write-command-help command *standard-output*) 0)
                         (t (apply (command-function command) parsed))))))
      (usage-error (error) (complain (and command name) error) 2)
      (clgrpc-error (error)
        (complain (and command name) error)
        1)
      (stream-error (error) (complain-of-stream (and command name) error)))))
