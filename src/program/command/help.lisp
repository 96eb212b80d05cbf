;;;; The help text of a command.

(in-package #:clgrpc.command)

(defun write-usage (command stream)
  "The usage of COMMAND, in lines of at most 80 columns."
  (let ((column 0))
    (flet ((write-word (word)
             (cond ((< (+ column 1 (length word)) 80) (format stream " "))
                   (t (format stream "~%        ")
                      (setf column 7)))
             (write-string word stream)
             (incf column (1+ (length word)))))
      (write-string "usage:" stream)
      (incf column 6)
      (write-word (command-invocation command))
      (dolist (parameter (command-parameters command)) (write-word (argument-name parameter)))
      (dolist (option (command-options command))
        (write-word (format nil "[~A~A~A]~:[~;…~]" (argument-name option)
                            ;; `--name=VALUE` if the value is optional
                            (if (optional-p option) "" " ")
                            (if (optional-p option)
                                (format nil "[=~A" (subseq (argument-value option) 1))
                                (argument-value option))
                            (argument-repeated option))))
      (terpri stream))))

(defun default-text (argument)
  "The default of the option ARGUMENT as a user would write it, or nil if there is none."
  (let ((default (argument-default argument)))
    (cond ((null default) nil)
          ((keywordp default) (string-downcase default))
          ((string/= "DURATION" (argument-value argument)) (princ-to-string default))
          ((integerp default) (format nil "~Ds" default))
          (t (format nil "~Dms" (* 1000 default))))))

(defun argument-description (argument)
  "The parts of ARGUMENT's help text: a list of its names, the short ones first; the name of its
value, or nil if it has none; its documentation; and its default as a text, or nil."
  (list (append (argument-aliases argument) (list (argument-name argument)))
        (unless (string= (argument-name argument) (argument-value argument))
          (argument-value argument))
        (let ((text (argument-documentation argument)))
          (if (functionp text) (funcall text) text))
        (default-text argument)))

(defun write-command-help (command stream)
  "Write the usage of COMMAND, its purpose and its arguments to STREAM."
  (write-usage command stream)
  (format stream "~%~A~%" (command-documentation command))
  (flet ((describe-arguments (title arguments)
           (when arguments
             (format stream "~%~A~%" title)
             (dolist (argument arguments)
               (format stream "  ~{~A~^, ~}~{~@[ ~A~]~%      ~A~@[ (default ~A)~]~%~}"
                       (first (argument-description argument))
                       (rest (argument-description argument)))))))
    (describe-arguments "Parameters:" (command-parameters command))
    (describe-arguments "Options:" (command-options command))))
