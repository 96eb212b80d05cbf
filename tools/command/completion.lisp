;;;; `clgrpc completion`: completions of command lines for shells, made from the commands'
;;;; declarations.

(in-package #:clgrpc.tools)

(defun word-names (command)
  "The options of COMMAND as users type them: a list with a list (names takes-value file-p text) for
each option."
  (cons (list '("--help" "-h") nil nil "Explain the command.")
        (loop for option in (command-options command)
              collect (destructuring-bind (names value text default)
                          (command:argument-description option)
                        (declare (ignore default))
                        (list names
                              (and value (char/= #\[ (char value 0)))
                              (and value (or (search "FILE" value) (search "DIR" value)
                                             (search "CERT" value))
                                   t)
                              (first-sentence text))))))

(defun shell-quoted (text)
  (with-output-to-string (out)
    (write-char #\' out)
    (loop for char across text
          do (if (char= char #\') (write-string "'\\''" out) (write-char char out)))
    (write-char #\' out)))

(defun all-names (rows)
  (loop for (names) in rows append names))

(defun file-names (rows)
  "The names of options in ROWS whose value is a file."
  (loop for (names nil file-p) in rows when file-p append names))

(defun write-bash-completion (stream)
  (format stream "_clgrpc() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=
  if [ \"$COMP_CWORD\" = 1 ]; then
    words='~{~A~^ ~} --help --version'
  else
    case \"${COMP_WORDS[1]} $before\" in~%"
          (mapcar #'command-name (commands-by-name)))
  (dolist (command (commands-by-name))
    (when-let ((names (file-names (word-names command))))
      (format stream "      ~{~A~^ | ~})
        mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return ;;~%"
              (mapcar (lambda (name)
                        (shell-quoted (format nil "~A ~A" (command-name command) name)))
                      names))))
  (format stream "    esac~%    case ${COMP_WORDS[1]} in~%")
  (dolist (command (commands-by-name))
    (format stream "      ~A) words='~{~A~^ ~}' ;;~%" (command-name command)
            (all-names (word-names command))))
  (format stream "    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")
}
complete -o default -F _clgrpc clgrpc~%"))

(defun zsh-text (text)
  "TEXT in a form that is valid in a description of zsh's _arguments."
  (with-output-to-string (out)
    (loop for char across text
          do (when (find char "[]:\\") (write-char #\\ out))
             (write-char char out))))

(defun write-zsh-completion (stream)
  (format stream "#compdef clgrpc
_clgrpc() {
  local -a commands
  if (( CURRENT == 2 )); then
    commands=(~{~%      ~A~})
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in~%"
          (mapcar (lambda (command)
                    (shell-quoted (format nil "~A:~A" (command-name command) (summary command))))
                  (commands-by-name)))
  (dolist (command (commands-by-name))
    (format stream "    ~A) _arguments" (command-name command))
    (loop for (names takes-value file-p text) in (word-names command)
          do (dolist (name names)
               (format stream " \\~%      ~A"
                       (shell-quoted (format nil "*~A[~A]~:[~;:value:~:[~;_files~]~]" name
                                             (zsh-text text) takes-value file-p)))))
    (format stream " \\~%      '*:argument:_files' ;;~%"))
  ;; the file may be autoloaded as the completion function itself
  (format stream "  esac
}
if [[ $funcstack[1] = _clgrpc ]]; then
  _clgrpc \"$@\"
elif (( $+functions[compdef] )); then
  compdef _clgrpc clgrpc
fi~%"))

(defun write-fish-completion (stream)
  (format stream "complete -c clgrpc -n __fish_use_subcommand -l help -d 'List the commands.'
complete -c clgrpc -n __fish_use_subcommand -l version -d 'Print the version.'~%")
  (dolist (command (commands-by-name))
    (format stream "complete -c clgrpc -f -n __fish_use_subcommand -a ~A -d ~A~%"
            (command-name command) (fish-quoted (summary command)))
    (loop for (names takes-value file-p text) in (word-names command)
          do (format stream "complete -c clgrpc -n '__fish_seen_subcommand_from ~A'~{~A~}~:[~; -r~]~
                             ~:[~; -F~] -d ~A~%"
                     (command-name command)
                     (mapcar (lambda (name)
                               (cond ((uiop:string-prefix-p "--" name)
                                      (format nil " -l ~A" (subseq name 2)))
                                     ((= 2 (length name)) (format nil " -s ~A" (subseq name 1)))
                                     (t (format nil " -o ~A" (subseq name 1)))))
                             names)
                     takes-value file-p (fish-quoted text)))))

(defun fish-quoted (text)
  "TEXT as one word of fish, which knows \\' between single quotes."
  (with-output-to-string (out)
    (write-char #\' out)
    (loop for char across text
          do (when (find char "\\'") (write-char #\\ out))
             (write-char char out))
    (write-char #\' out)))

(define-command "completion" (((shell "SHELL" (command:choice-parser :bash :zsh :fish)
                                      "bash, zsh or fish."))
                              ())
    "Print a script for a shell, which then completes command lines of clgrpc. In bash, for example:
`source <(clgrpc completion bash)`."
  (ecase shell
    (:bash (write-bash-completion *standard-output*))
    (:zsh (write-zsh-completion *standard-output*))
    (:fish (write-fish-completion *standard-output*)))
  0)
