;;;; Arguments of commands, declared as rows: the parameters and options of a command, and sets of
;;;; options that several commands share.

(in-package #:clgrpc.command)

(defstruct argument
  "A parameter or option of a command."
  (key :none :type keyword)             ; the key of the command's function
  (name "" :type string)                ; the name as users write it
  (aliases '() :type list)              ; other names of an option
  (value "" :type string)               ; its value's name; in brackets if it may be absent
  ;; a function of the string that returns the value, or refuses the string
  (parser #'identity :type function)
  (default nil)                         ; the value if the argument is missing
  (repeated nil :type boolean)          ; true if the option's values are given as a list
  ;; the help text, or a function that returns it
  (documentation "" :type (or string function)))

(defstruct (command (:copier nil))
  "A command: the first words of a command line, and the arguments that may follow them."
  (name "" :type string)                ; a word
  (invocation "" :type string)          ; the words that run the command, such as "clgrpc serve"
  (documentation "" :type string)       ; the text for the help
  (parameters '() :type list)           ; the parameters, ARGUMENTs
  (options '() :type list)              ; the options, ARGUMENTs
  (function #'identity :type function)) ; the function that is called with the keyword arguments of
                                        ; the line

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defvar *shared-options* '() "A plist from a name to its rows.")

  (defun expand-options (rows)
    "ROWS of options, each as ((variable name . aliases) value parser default documentation), with
names of DEFINE-SHARED-OPTIONS replaced by their rows."
    (loop for row in rows
          append (if (symbolp row)
                     (expand-options (or (getf *shared-options* row)
                                         (error "There are no shared options ~S." row)))
                     (destructuring-bind (variable . rest) row
                       (list (cons (if (consp variable) variable (list variable)) rest)))))))

(defmacro define-shared-options (name &body rows)
  "Define NAME, a keyword or another symbol, as the name of ROWS, as OPTION-LIST returns them."
  `(eval-when (:compile-toplevel :load-toplevel :execute)
     (setf (getf *shared-options* ',name) ',rows)))

(defun option-variables (rows)
  "The variables of ROWS, which are as for OPTION-LIST, as symbols of the current package."
  (loop for ((variable)) in (expand-options rows)
        collect (intern (string variable))))

(defun argument-key-of (variable)
  "The keyword for VARIABLE, a symbol."
  (intern (string variable) :keyword))

(defmacro option-list (&rest rows)
  "Make a list of ARGUMENTs from ROWS: names of DEFINE-SHARED-OPTIONS, and lists (variable VALUE
parser default documentation), of options named like VARIABLE. An option whose VALUE is in brackets
may be given without a value and then means \"true\". In place of the variable, (variable name)
means that the option has that name and may be given several times; (variable nil alias…) means that
it also has the ALIASES."
  (flet ((option-name (variable name)
           (or name
               (format nil "~:[--~;-~]~(~A~)" (= 1 (length (string variable))) variable))))
    `(list ,@(loop for ((variable name . aliases) value parser default documentation)
                     in (expand-options rows)
                   collect `(make-argument :key ,(argument-key-of variable)
                                           :name ,(option-name variable name)
                                           :aliases ',aliases
                                           :value ,value :parser ,parser
                                           :default ,default
                                           :repeated ,(and name t)
                                           :documentation ,documentation)))))

(defmacro parameter-list (&rest rows)
  "Make a list of ARGUMENTs from ROWS, lists (variable VALUE parser documentation) of parameters."
  `(list ,@(loop for (variable value parser documentation) in rows
                 collect `(make-argument :key ,(argument-key-of variable) :name ,value
                                         :value ,value :parser ,parser
                                         :documentation ,documentation))))

(defun option-with-default (option default)
  "An option like OPTION, but with DEFAULT."
  (let ((copy (copy-argument option)))
    (setf (argument-default copy) default)
    copy))
