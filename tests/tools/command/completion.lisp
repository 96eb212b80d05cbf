;;;; What shells complete, asked of the shells themselves, and the pages for man.

(in-package #:clgrpc.tests.tools)

(defun shell-lines (shell script)
  "The lines that SHELL prints when it reads `clgrpc completion SHELL` and then SCRIPT."
  (support:need-program shell)
  (let ((text (nth-value 1 (run-line "completion" shell))))
    (multiple-value-bind (output error-output code)
        (uiop:run-program (list shell) :input (make-string-input-stream
                                               (format nil "~A~%~A~%" text script))
                                       :output :lines :error-output :string
                                       :ignore-error-status t)
      (is (eql 0 code))
      (is (string= "" error-output))
      output)))

(defun bash-completions (&rest words)
  "What bash offers for the last of WORDS."
  (shell-lines "bash" (format nil "COMP_WORDS=(~{'~A'~^ ~}); COMP_CWORD=~D; _clgrpc
                                   printf '%s\\n' \"${COMPREPLY[@]}\""
                              words (1- (length words)))))

(test bash-completes
  (is (equal '("call") (bash-completions "clgrpc" "ca")))
  (is (equal '("--tls-ca" "--tls-cert" "--tls-key" "--tls-name")
             (bash-completions "clgrpc" "call" "--tls")))
  (is (equal '("LICENSE") (bash-completions "clgrpc" "call" "--proto" "LICEN")) "A file.")
  (is (equal '("--help") (bash-completions "clgrpc" "demo" "--"))))

(test fish-completes
  (flet ((completions (line)
           (loop for line in (shell-lines "fish" (format nil "complete -C '~A'" line))
                 collect (first (uiop:split-string line :separator '(#\Tab))))))
    (is (equal '("call") (completions "clgrpc ca")))
    (is (equal '("--tls-ca" "--tls-cert" "--tls-key" "--tls-name")
               (completions "clgrpc call --tls")))))

(test zsh-takes-the-completion
  "It reads the file; what it offers one sees only at a terminal."
  (is (equal '("_clgrpc")
             (shell-lines "zsh" "print -l ${(k)functions[(I)_clgrpc]}"))))

(test a-page-for-man-of-each-command
  (support:need-program "groff")
  (dolist (arguments (cons '() (mapcar (lambda (command) (list (tools::command-name command)))
                                       tools::*commands*)))
    (let ((page (nth-value 1 (apply #'run-line "help" (append arguments '("--roff"))))))
      (is (uiop:string-prefix-p ".TH CLGRPC" page))
      (is (string= "" (nth-value 1 (uiop:run-program
                                    '("groff" "-K" "utf8" "-man" "-Tutf8" "-ww" "-z")
                                    :input (make-string-input-stream page)
                                    :output nil :error-output :string)))
          "~A" arguments))))

(test what-pages-say-is-text
  (is (string= (format nil "\\&.a \\-b \\e~%\\&'c") (tools::roff (format nil ".a -b \\~%   'c")))))
