;;;; Command lines as users write them.

(in-package #:clgrpc.tests.command)

(defun sample-command ()
  (command:make-command
   :name "sample" :invocation "clgrpc sample"
   :options (command:option-list
             (listen "ADDRESS" #'identity "here" "Where.")
             (loud "[true|false]" #'command:parse-boolean nil "Whether.")
             ((label "--label") "NAME" #'identity '() "Any number."))))

(defun parsed (&rest arguments)
  (command:parse-arguments (sample-command) arguments))

(test options-in-all-forms
  (is (equal "there" (getf (parsed "--listen" "there") :listen)))
  (is (equal "there" (getf (parsed "--listen=there") :listen)))
  (is (equal "last" (getf (parsed "--listen=there" "--listen" "last") :listen)))
  (is (equal "here" (getf (parsed) :listen)))
  (is (eq t (getf (parsed "--loud") :loud)))
  (is (equal '("a" "b") (getf (parsed "--label" "a" "--label=b") :label)))
  (is (eq :help (parsed "--help" "--nonsense"))))

(test what-is-refused
  (flet ((complaint-of (&rest arguments) (complaint (lambda () (apply #'parsed arguments)))))
    (is (search "there is no option --listne (is it --listen?); `clgrpc sample --help` lists"
                (complaint-of "--listne" "x")))
    (is (search "--listen needs a value" (complaint-of "--listen")))
    (is (search "one argument too many" (complaint-of "more")))
    (is (equal "there is one argument too many: \"{}\"" (complaint-of "{}"))
        "-d is another command's")))

(test options-of-other-programs
  "A hint names the command's corresponding option, if there is one."
  (flet ((complaint-of (name &rest options)
           (complaint (lambda ()
                        (command:parse-arguments
                         (command:make-command :name "sample" :invocation "sample"
                                               :options options)
                         (list name))))))
    (let ((options (command:option-list (tls-ca "FILE" #'identity nil "Whom to trust.")
                                        ((headers "-H") "X" #'identity nil "Metadata.")
                                        (listen "ADDRESS" #'identity nil "Where.")
                                        (tls-cert "FILE" #'identity nil "Whose certificate."))))
      (loop for (name hint) in '(("-plaintext" "plaintext is the default")
                                 ("--certificate" "it is --tls-cert FILE")
                                 ("--tls" "--tls-ca FILE, or --tls-ca system")
                                 ("--header" "it is -H 'NAME: VALUE'")
                                 ("--port" "--listen HOST:PORT"))
            do (is (search (format nil "there is no option ~A (~A" name hint)
                           (apply #'complaint-of name options)))
               (is (search (format nil "there is no option ~A;" name) (complaint-of name)))))))

(test options-of-systems-that-are-not-loaded
  "They are refused with the name of the system."
  (is (search "--register needs the system clgrpc-etcd/discovery"
              (complaint (lambda () (parsed "--register" "x"))))))

(test helps-show-defaults-as-they-are-written
  "A duration has its unit, and a keyword is in lower case."
  (let ((text (with-output-to-string (stream)
                (command:write-command-help
                 (command:make-command
                  :name "sample" :invocation "sample"
                  :options (command:option-list
                            (timeout "DURATION" #'command:parse-seconds 20 "How long.")
                            (pause "DURATION" #'command:parse-seconds 1/4 "Between.")
                            (format "FORMAT" #'identity :json "Which.")
                            (count "N" #'identity 7 "How many.")))
                 stream))))
    (dolist (part '("(default 20s)" "(default 250ms)" "(default json)" "(default 7)"))
      (is (search part text) "~A in ~A" part text))))
