;;;; Parses a command line to the plist that it means. An option is `--name VALUE` or
;;;; `--name=VALUE`, at any place; an option whose value is optional is `--name` or `--name=VALUE`.
;;;; After `--` there are no more options. An option --config contains further arguments.

(in-package #:clgrpc.command)

(defun parse-value (argument string)
  (handler-case (funcall (argument-parser argument) string)
    (usage-error (error) (refuse "~A: ~A" (argument-name argument) (usage-error-text error)))))

(defun option-token-p (token)
  (and (< 1 (length token)) (char= #\- (char token 0))))

(defun option-names (command)
  (loop for option in (command-options command)
        collect (argument-name option)
        append (argument-aliases option)))

(defparameter *option-hints*
  '((("--plaintext" "-plaintext" "--insecure" "-insecure") "--tls-ca"
     "plaintext is the default, and --tls-ca makes it TLS")
    (("--tls" "--ssl" "--cacert" "-cacert") "--tls-ca"
     "--tls-ca FILE, or --tls-ca system, makes it TLS")
    (("--header" "--metadata" "--rpc-header") "-H" "it is -H 'NAME: VALUE'")
    (("--port" "--host" "--address" "-p") "--listen" "--listen HOST:PORT is the address")
    (("--cert" "--certificate") "--tls-cert" "it is --tls-cert FILE")
    (("--key") "--tls-key" "it is --tls-key FILE")
    (("--max-calls" "--max-connections" "--max-concurrent-streams" "--drain-seconds") "--limits"
     "--limits NAME=VALUE sets an option of the server"))
  "Hints for options of other programs. A row is a list of options, the option that a command must
have for the hint to apply, and the hint.")

(defun option-hint (name names)
  "A text about the unknown option NAME of a command with the options NAMES; nil if no hint is
known."
  (or (loop for (others needed hint) in *option-hints*
            when (and (member name others :test #'string=) (member needed names :test #'string=))
              return hint)
      (let ((likely (suggested-name name names)))
        (and likely (format nil "is it ~A?" likely)))))

(defun parse-option (command token rest)
  "Parse the option that TOKEN begins; REST are the tokens after it. Return the option's key, the
option's value and the rest of REST."
  (let* ((equals (position #\= token))
         (name (subseq token 0 equals))
         (option (find-if (lambda (option)
                            (or (string= name (argument-name option))
                                (find name (argument-aliases option) :test #'string=)))
                          (command-options command))))
    (cond ((null option)
           (refuse-absent name)
           (refuse "there is no option ~A~@[ (~A)~]; `~A --help` lists all"
                   name (option-hint name (option-names command)) (command-invocation command)))
          (equals (values (argument-key option) (parse-value option (subseq token (1+ equals)))
                          rest))
          ((optional-p option) (values (argument-key option) (parse-value option "true") rest))
          ((null rest) (refuse "~A needs a value, ~A" name (argument-value option)))
          (t (values (argument-key option) (parse-value option (first rest)) (rest rest))))))

(defun split-arguments (command arguments)
  "Return two values: the positional arguments among the strings ARGUMENTS of COMMAND, in order, and
the plist of the given options; or :help."
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
  "Return the keyword arguments that the strings ARGUMENTS mean to COMMAND, or :help. The value of
an option --config is a list of further arguments, which apply where ARGUMENTS have none. Signal a
USAGE-ERROR for a wrong argument."
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
  "The plist GIVEN with VALUE for KEY. If COMMAND allows several values for KEY, VALUE follows the
earlier values."
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
          (when tokens
            (refuse "there is one argument too many: ~S~:[~; (requests in JSON are given by -d)~]"
                    (first tokens)
                    (and (uiop:string-prefix-p "{" (first tokens))
                         (member "-d" (option-names command) :test #'string=))))))

(defun takes-all-p (parameter)
  "True if PARAMETER, the last parameter, takes all remaining arguments; then its value is a list."
  (uiop:string-suffix-p (argument-value parameter) "…"))

(defun optional-p (argument)
  "True if the parameter ARGUMENT, or the value of the option, is optional."
  (char= #\[ (char (argument-value argument) 0)))
