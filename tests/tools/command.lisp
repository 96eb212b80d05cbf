(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(defun refused-p (complaint &rest arguments)
  "True if the command line ARGUMENTS ends with code 2, nothing on standard output, and COMPLAINT in
one line on standard error."
  (multiple-value-bind (code output error-output) (apply #'run-line arguments)
    (and (eql 2 code) (string= "" output) (one-line-p error-output)
         (search complaint error-output))))

(test version
  (multiple-value-bind (code output) (run-line "--version")
    (is (= 0 code))
    (is (one-line-p output))
    (is (search (asdf:component-version (asdf:find-system "clgrpc")) output))))

(test help-everywhere
  (dolist (arguments '(("--help") ("-h") ("help")))
    (multiple-value-bind (code output error-output) (apply #'run-line arguments)
      (is (= 0 code))
      (is (string= "" error-output))
      (dolist (name '("serve" "routeguide-client" "demo" "help"))
        (is (search name output)))))
  (dolist (command (mapcar #'tools::command-name tools::*commands*))
    (multiple-value-bind (code output) (run-line command "--help")
      (is (= 0 code))
      (is (search (format nil "usage: clgrpc ~A" command) output))
      (is (string= output (nth-value 1 (run-line "help" command)))))))

(test help-is-whole-and-fits
  (let ((output (nth-value 1 (run-line "--help"))))
    (is (search "Write the Lisp source of a .proto file and of those that it imports" output)))
  (dolist (command (mapcar #'tools::command-name tools::*commands*))
    (let* ((output (nth-value 1 (run-line command "--help")))
           (usage (subseq output 0 (search (format nil "~2%") output))))
      (is (every (lambda (line) (<= (length line) 80))
                 (uiop:split-string usage :separator '(#\Newline)))
          "~A" usage)))
  (let ((output (nth-value 1 (run-line "serve" "--help"))))
    (is (search "(default warning)" output))
    (is (search "[--tls-other CERT[,KEY]]…" output))
    (is (search "[--collect[=true|false]]" output))))

(test help-tells-all-options
  (let ((output (nth-value 1 (run-line "serve" "--help"))))
    (dolist (text '("SERVICES" "--listen ADDRESSES" "--loops N" "--max-receive-octets N"
                    "greeter" "route-guide" "bench" "interop"))
      (is (search text output) "~A is missing in ~A" text output))))

(test help-wins-over-what-is-wrong-behind-it
  (is (= 0 (run-line "serve" "--help" "--nonsense"))))

(test no-command
  (multiple-value-bind (code output error-output) (run-line)
    (is (= 2 code))
    (is (string= "" output))
    (is (search "usage:" error-output))))

(test wrong-command
  (is-true (refused-p "there is no command \"sevre\"" "sevre"))
  (is-true (refused-p "there is no command \"x\"" "help" "x")))

(test a-name-that-was-likely-meant
  (is-true (refused-p "no option --lop (is it --loops?)" "serve" "greeter" "--lop" "1"))
  (is-true (refused-p "no option --listne (is it --listen?)" "serve" "greeter" "--listne" "1"))
  (is-true (refused-p "no option --nonsense;" "serve" "greeter" "--nonsense" "1"))
  (is-true (refused-p "no command \"laod\" (is it load?)" "laod")))

(test the-reader-of-the-output-goes
  "Output to a pipe that nobody reads any more is nobody's trouble; other output that cannot be
written is."
  (flet ((said (command)
           (multiple-value-bind (output error-output code)
               (uiop:run-program (list "sh" "-c" command (support:clgrpc-program))
                                 :output :string :error-output :string :ignore-error-status t)
             (declare (ignore output))
             (list code error-output))))
    (is (equal '(0 "") (said "$0 load --help | head -n 1 >/dev/null")))
    ;; a pipe that has no reader from the start, whatever is fast
    (is (equal '(0 "141") (said "{ sleep 1; $0 load --help; echo -n $? >&2; } | :")))
    (when (probe-file "/dev/full")
      (destructuring-bind (code text) (said "$0 load --help >/dev/full")
        (is (= 1 code))
        (is (search "cannot write to standard output: " text))
        (is (one-line-p text))))))

(test wrong-options-of-serve
  (is-true (refused-p "SERVICES is missing" "serve"))
  (is-true (refused-p "there is no option --port" "serve" "greeter" "--port" "1"))
  (is-true (refused-p "there is no option -p" "serve" "greeter" "-p" "1"))
  (is-true (refused-p "one argument too many: \"bench\"" "serve" "greeter" "bench"))
  (is-true (refused-p "--loops needs a value" "serve" "greeter" "--loops"))
  (dolist (value '("0" "-1" "1025" "two" "" "1.5" "99999999999999999999999"))
    (is-true (refused-p "--loops: an integer from 1 to 1024 is wanted"
                        "serve" "greeter" "--loops" value)))
  (is-true (refused-p "--max-receive-octets: an integer from 0 to 2147483647"
                      "serve" "greeter" "--max-receive-octets" "2147483648"))
  (dolist (address '("" "localhost" "localhost:" "localhost:http" "127.0.0.1:65536"
                     "::1:50051" "1:2:3" "127.0.0.1:-1" "unix:" "127.0.0.1:0,"))
    (is-true (refused-p "is no address"
                        "serve" "greeter" "--listen" address)
             "~S" address)))

(test wrong-services
  (is-true (refused-p "there is no service \"echo\"; there are greeter, route-guide, bench, interop"
                      "serve" "echo"))
  (is-true (refused-p "there is no service \"\"" "serve" "greeter,"))
  (is-true (refused-p "a service is named twice" "serve" "greeter,greeter"))
  (is-true (refused-p "cannot go together: more than one serves routeguide.RouteGuide"
                      "serve" "route-guide,bench")))

(test wrong-address-of-client
  (is-true (refused-p "ADDRESS is missing" "routeguide-client"))
  (is-true (refused-p "a port is a number from 1" "routeguide-client" "localhost:0")))

(defun parsed (&rest arguments)
  "What ARGUMENTS mean to the command serve, but for the services."
  (let ((parsed (tools::parse-arguments (tools::find-command "serve") arguments)))
    (list (getf parsed :listen) (getf parsed :loops) (getf parsed :max-receive-octets))))

(test options-and-defaults
  (is (equal '("127.0.0.1:50051" 1 4194304) (parsed "greeter")))
  (is (equal '(("[::1]:0") 2 0) (parsed "--listen" "[::1]:0" "greeter" "--loops=2"
                                      "--max-receive-octets" "0")))
  (is (equal '(("localhost:1") 3 4194304) (parsed "--loops" "1" "--listen=localhost:1" "--loops" "3"
                                                "--" "greeter"))
      "of two values the last counts"))
