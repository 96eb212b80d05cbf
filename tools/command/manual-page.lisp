;;;; Pages for man(1), in the macros of man(7): one of `clgrpc` and one of each command, made from
;;;; the commands' declarations.

(in-package #:clgrpc.tools)

(defun roff (text)
  "Return TEXT in a form that roff prints unchanged: requests and escapes are made harmless, lines
are filled, and each item of a list begins a line."
  (with-output-to-string (out)
    (loop for (line . more) on (uiop:split-string text :separator '(#\Newline))
          for bare = (string-left-trim " " line)
          do (when (search "  " bare) (format out ".br~%"))
             (when (and (string/= "" bare) (find (char bare 0) ".'")) (write-string "\\&" out))
             (loop for char across bare
                   do (case char
                        (#\\ (write-string "\\e" out))
                        (#\- (write-string "\\-" out))
                        ;; a terminal with ASCII only would drop the character
                        (#\HORIZONTAL_ELLIPSIS (write-string "..." out))
                        (t (write-char char out))))
             (when more (terpri out)))))

(defun write-page-head (name summary stream)
  (format stream ".TH ~:@(~A~) 1 \"\" \"clgrpc ~A\" \"clgrpc\"~%.SH NAME~%~A \\- ~A~%"
          (roff name) **version** (roff name) (roff summary)))

(defun write-page-section (title arguments stream)
  "The section TITLE about ARGUMENTS, parameters or options, if there are any."
  (when arguments
    (format stream ".SH ~A~%" title)
    (dolist (argument arguments)
      (destructuring-bind (names value text default) (command:argument-description argument)
        (format stream ".TP~%\\fB~{~A~^\\fR, \\fB~}\\fR~@[ \\fI~A\\fR~]~%~A~@[ (default ~A)~]~%"
                (mapcar #'roff names) (and value (roff value)) (roff text)
                (and default (roff default)))))))

(defun write-command-page (command stream)
  (write-page-head (format nil "clgrpc-~A" (command-name command)) (summary command) stream)
  (format stream ".SH SYNOPSIS~%\\fBclgrpc ~A\\fR~{ \\fI~A\\fR~} [\\fIOPTION\\fR]...~%"
          (roff (command-name command))
          (mapcar (lambda (parameter) (roff (command:argument-name parameter)))
                  (command-parameters command)))
  (format stream ".SH DESCRIPTION~%~A~%" (roff (command-documentation command)))
  (write-page-section "PARAMETERS" (command-parameters command) stream)
  (write-page-section "OPTIONS" (command-options command) stream)
  (format stream ".SH SEE ALSO~%\\fBclgrpc\\fR(1)~%"))

(defun write-main-page (stream)
  (write-page-head "clgrpc" "gRPC for Common Lisp: servers, clients and generators" stream)
  (format stream ".SH SYNOPSIS~%\\fBclgrpc\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...~%")
  (format stream ".SH COMMANDS~%")
  (dolist (command (commands-by-name))
    (format stream ".TP~%\\fBclgrpc\\-~A\\fR(1)~%~A~%" (roff (command-name command))
            (roff (summary command)))))
