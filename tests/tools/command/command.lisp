(in-package #:clgrpc.tests.tools)

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
    (is (search "Write the Lisp source of a .proto file and of its imports" output)))
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

(test texts-of-options-are-indented
  "In every help, the names of arguments begin at column 2, lines of their texts at column 6."
  (dolist (command (mapcar #'tools::command-name tools::*commands*))
    (let ((lines (uiop:split-string (nth-value 1 (run-line command "--help"))
                                    :separator '(#\Newline)))
          (titles '("Parameters:" "Options:")))
      (dolist (line (member-if (lambda (line) (member line titles :test #'string=)) lines))
        (let ((column (position #\Space line :test #'char/=)))
          (is (or (null column) (= 2 column) (<= 6 column) (member line titles :test #'string=))
              "~A: ~A" command line))))))

(test help-tells-all-options
  (let ((output (nth-value 1 (run-line "serve" "--help"))))
    (dolist (text '("SERVICES" "--listen ADDRESSES" "--loops N" "--max-receive-octets N"
                    "greeter" "route-guide" "chat" "bench" "interop"))
      (is (search text output) "~A is missing in ~A" text output))))

(test help-wins-over-what-is-wrong-behind-it
  (is (= 0 (run-line "serve" "--help" "--nonsense"))))

(test test-peers-are-in-a-program-of-their-own
  "bin/clgrpc knows none of the commands and services of test peers, bin/clgrpc-testee all."
  (flet ((lines (program &rest arguments)
           (format nil "~{~A~%~}" (nth-value 1 (support:run-to-end program arguments)))))
    (let ((ours (lines (support:clgrpc-program) "--help"))
          (testee (lines (support:testee-program) "--help"))
          (offers (lines (support:clgrpc-program) "serve" "--help")))
      (dolist (name '("testee" "interop-client" "bench-client" "storm-client"))
        (is (not (search (format nil "~%  ~A " name) ours)) "~A is in bin/clgrpc" name)
        (is (search (format nil "~%  ~A " name) testee) "~A is not in bin/clgrpc-testee" name))
      (dolist (name '("call" "load" "serve"))
        (is (search (format nil "~%  ~A " name) ours))
        (is (search (format nil "~%  ~A " name) testee)))
      (is (search "route-guide" offers))
      (is (not (search "interop" offers))))
    (is (search "no service is called \"interop\"; the services are greeter, route-guide, chat"
                (lines (support:clgrpc-program) "serve" "interop")))))

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
    (dolist (command '("load --help" "--help" "--version" "help serve" "list 127.0.0.1:1 --help"))
      (is (equal '(0 "141") (said (format nil "{ sleep 1; $0 ~A; echo -n $? >&2; } | :" command)))
          "~A" command))
    (when (probe-file "/dev/full")
      (destructuring-bind (code text) (said "$0 load --help >/dev/full")
        (is (= 1 code))
        (is (search "cannot write to standard output: " text))
        (is (one-line-p text))))))

(defun read-some-and-go (arguments)
  "Run clgrpc with ARGUMENTS, whose output fills a pipe; then read a part of it and close the pipe.
Return its exit code and what it says on the standard error, once it has ended."
  (multiple-value-bind (read-end write-end) (sb-posix:pipe)
    (sb-posix:fcntl write-end 1031 8192) ; F_SETPIPE_SZ, two pages
    (let* ((output (sb-sys:make-fd-stream write-end :output t))
           (process (sb-ext:run-program (support:clgrpc-program) arguments
                                        :output output :error :stream :wait nil)))
      (close output)
      (flet ((waiting ()
               (sb-alien:with-alien ((count sb-alien:int 0))
                 (sb-unix:unix-ioctl read-end #x541B ; FIONREAD
                                     (sb-alien:alien-sap (sb-alien:addr count)))
                 count)))
        (assert (wait-until (lambda () (< 7000 (waiting)))))
        ;; there is room for a part of what is being written
        (let ((area (base:make-octets 4096)))
          (sb-sys:with-pinned-objects (area)
            (sb-unix:unix-read read-end (sb-sys:vector-sap area) 4096)))
        (sb-posix:close read-end))
      (unless (wait-until (lambda () (not (sb-ext:process-alive-p process))))
        (sb-ext:process-kill process sb-unix:sigkill))
      (sb-ext:process-wait process)
      (unwind-protect (values (sb-ext:process-exit-code process)
                              (uiop:slurp-stream-string (sb-ext:process-error process)))
        (sb-ext:process-close process)))))

(test the-reader-goes-while-the-pipe-is-full
  "It is nobody's trouble either, whichever the command; SBCL would wait for ever."
  (uiop:with-temporary-file (:pathname log)
    (with-open-file (out log :direction :output :if-exists :supersede :element-type 'base:octet)
      (let ((entry (grpc:serialize
                    (grpc.binarylog.v1:make-grpc-log-entry
                     :message (grpc.binarylog.v1:make-message :data (base:make-octets 10000)))))
            (prefix (base:make-octets 4)))
        (setf (base:u32be prefix 0) (length entry))
        (dotimes (i 100)
          (write-sequence prefix out)
          (write-sequence entry out))))
    (with-serve (program address "greeter")
      (dolist (arguments (list (list "binlog" (namestring log))
                               (list "load" "--help")
                               (list "load" address "helloworld.Greeter/SayHello" "-n" "4000"
                                     "-O" "csv")
                               (list "load" address "helloworld.Greeter/SayHello" "-n" "10"
                                     "-O" "html")))
        (is (equal '(141 "") (multiple-value-list (read-some-and-go arguments))) "~A" arguments)))))

(test wrong-options-of-serve
  (is-true (refused-p "SERVICES is missing" "serve"))
  (is-true (refused-p "there is no option --port" "serve" "greeter" "--port" "1"))
  (is-true (refused-p "there is no option -p" "serve" "greeter" "-p" "1"))
  (is-true (refused-p "one argument too many: \"bench\"" "serve" "greeter" "bench"))
  (is-true (refused-p "--loops needs a value" "serve" "greeter" "--loops"))
  (dolist (value '("0" "-1" "1025" "two" "" "1.5" "99999999999999999999999"))
    (is-true (refused-p "--loops: an integer from 1 to 1024 is expected"
                        "serve" "greeter" "--loops" value)))
  (is-true (refused-p "--max-receive-octets: an integer from 0 to 2147483647"
                      "serve" "greeter" "--max-receive-octets" "2147483648"))
  (dolist (address '("" "localhost" "localhost:" "localhost:http" "127.0.0.1:65536"
                     "::1:50051" "1:2:3" "127.0.0.1:-1" "unix:" "127.0.0.1:0,"))
    (is-true (refused-p "is not an address"
                        "serve" "greeter" "--listen" address)
             "~S" address)))

(test wrong-services
  (is-true (refused-p "called \"echo\"; the services are greeter, route-guide, chat, bench, interop"
                      "serve" "echo"))
  (is-true (refused-p "no service is called \"\"" "serve" "greeter,"))
  (is-true (refused-p "a service is named twice" "serve" "greeter,greeter"))
  (is-true (refused-p "cannot go together: more than one serves routeguide.RouteGuide"
                      "serve" "route-guide,bench")))

(test wrong-address-of-client
  (is-true (refused-p "ADDRESS is missing" "routeguide-client"))
  (is-true (refused-p "a port is a number from 1" "routeguide-client" "localhost:0")))

(defun parsed (&rest arguments)
  "What ARGUMENTS mean to the command serve, but for the services."
  (let ((parsed (tools::parse-arguments (tools:find-command "serve") arguments)))
    (list (getf parsed :listen) (getf parsed :loops) (getf parsed :max-receive-octets))))

(test options-and-defaults
  (is (equal '("127.0.0.1:50051" 1 4194304) (parsed "greeter")))
  (is (equal '(("[::1]:0") 2 0) (parsed "--listen" "[::1]:0" "greeter" "--loops=2"
                                      "--max-receive-octets" "0")))
  (is (equal '(("localhost:1") 3 4194304) (parsed "--loops" "1" "--listen=localhost:1" "--loops" "3"
                                                "--" "greeter"))
      "of two values the last counts"))

(test profile-refuses-what-it-would-ignore
  (fails-p 2 "pprof cannot show a comparison (--compare)"
           "profile" "1" "-O" "pprof" "--compare" "x.json")
  (fails-p 2 "--stacks needs -O folded or pprof" "profile" "1" "--stacks" "off-cpu")
  (fails-p 2 "there is no command \"1abc\" to profile" "profile" "1abc"))

(test parsers-of-arguments
  "Each takes what its option says, and refuses the rest."
  (loop for (parser . rows)
          in '((tools::parse-rate ("2" 2) ("0.5" 1/2) ("0") ("-1") ("x"))
               (tools::parse-step ("2" 2) ("0" 0) ("-2" -2) ("-0.5" -1/2) ("x") ("--2"))
               (tools::parse-policy-name ("round_robin" :round-robin) ("Round-Robin" :round-robin)
                ("ring_hash" :ring-hash) ("ring_hash_experimental" :ring-hash) ("none") (""))
               (tools::parse-moment ("1970-01-02T00:00:01Z" 86401)
                ("1970-01-01T01:00:00+01:00" 0) ("1970-01-02T") ("x"))
               (tools::parse-label ("a=b=c" ("a" . "b=c")) ("a=" ("a" . "")) ("=b") ("a"))
               (tools::parse-permission ("start=a" (:start . "a")) ("JOIN=a" (:join . "a"))
                ("work:k=a:b" ((:work "k") . "a:b")) ("=a") (":k=a") ("start") ("own=a"))
               (testee::manner-parser ("one" :one) ("Threads" :threads) ("async" :async) ("two")))
        do (loop for (text . expected) in rows
                 for value = (handler-case (list (funcall parser text))
                               (tools::usage-error () nil))
                 do (is (equalp expected value) "~A of ~S: ~S" parser text value)))
  (let ((before (- (tools::parse-moment "0s") (tools::parse-moment "2h"))))
    (is (<= 7190 before 7200) "a duration is that long before now")))
