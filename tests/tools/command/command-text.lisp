;;;; What commands print, to the letter: their help, pages and completions, and what a table of
;;;; command lines prints and with which code each ends.

(in-package #:clgrpc.tests.tools)

(defun line-outcomes (lines)
  "What each of LINES, command lines, prints, and its exit code if that is not 0; in place of a long
text that an earlier line has printed, that line."
  (let ((printed (make-hash-table :test 'equal)))
    (with-output-to-string (stream)
      (dolist (line lines)
        (multiple-value-bind (code output errors) (apply #'run-line line)
          (let* ((text (concatenate 'string output errors)) (earlier (gethash text printed)))
            (format stream "$~{ ~A~}~%~:[~A~*~;~*as~{ ~A~}~%~]~@[exit code ~D~%~]" line
                    earlier text earlier (and (/= 0 code) code))
            (when (< 400 (length text)) (setf (gethash text printed) (cons "$" line)))))))))

(test command-texts
  "The help of all commands, the page of one, and completions for three."
  (let ((commands (mapcar #'tools::command-name tools::*commands*)))
    (support:check-record
     'command-texts
     (with-output-to-string (stream)
       (write-string (line-outcomes (cons '("--help")
                                          (loop for command in commands
                                                collect (list command "--help"))))
                     stream)
       (let ((tools::*commands* (mapcar #'tools::find-command '("call" "completion" "demo"))))
         (write-string (line-outcomes '(("completion" "bash") ("completion" "zsh")
                                        ("completion" "fish")))
                       stream))
       (tools::write-command-page (tools::find-command "call") stream)))))

(defparameter *lines*
  `(("list") ("list" "ADDRESS") ("list" "ADDRESS" "routeguide.RouteGuide")
    ("list" "ADDRESS" "no.Such") ("describe" "ADDRESS")
    ("describe" "ADDRESS" "routeguide.RouteGuide") ("describe" "ADDRESS" "routeguide.Rectangle")
    ("describe" "ADDRESS" "routeguide.Feature.location")
    ("describe" "ADDRESS" "routeguide.RouteGuide.RouteChat") ("describe" "ADDRESS" "no.Such")
    ("describe" "ADDRESS" "grpc.reflection.v1.ServerReflectionRequest")
    ,@(loop for data in '("{\"latitude\":409146138,\"longitude\":-746188906}" "{\"latitud\":1}"
                          "{" "{}{}")
            collect `("call" "ADDRESS" "routeguide.RouteGuide/GetFeature" ,data))
    ("call" "ADDRESS" "routeguide.RouteGuide/ListFeatures"
            ,(concatenate 'string "{\"lo\":{\"latitude\":400000000,\"longitude\":-750000000},"
                          "\"hi\":{\"latitude\":410000000,\"longitude\":-745000000}}"))
    ("call" "ADDRESS" "routeguide.RouteGuide/RecordRoute" "{\"latitude\":1}{\"latitude\":2}")
    ("call" "ADDRESS" "routeguide.RouteGuide/RouteChat"
            ,(concatenate 'string "{\"location\":{\"latitude\":1},\"message\":\"a\"}"
                          "{\"location\":{\"latitude\":1},\"message\":\"b\"}"))
    ("call" "ADDRESS" "routeguide.RouteGuide/None" "{}") ("call" "ADDRESS" "no.Such/None" "{}")
    ("call" "ADDRESS" "x" "{}")
    ("call" "ADDRESS") ("call" "ADDRESS" "routeguide.RouteGuide/GetFeature" "{}" "--timeout" "x")
    ("call" "ADDRESS" "routeguide.RouteGuide/GetFeature" "{}" "--no-such")
    ("openapi" "--server" "ADDRESS") ("no-such") ("lst") () ("--version") ("help") ("help" "demo")
    ("completion" "csh") ("list" "a:b:c"))
  "Command lines; ADDRESS is that of a server of the route guide.")

(test command-lines
  "What each line of the table prints, and its exit code."
  (with-reflected (address)
    (support:check-record
     'command-lines
     (support:replaced (line-outcomes (loop for line in *lines*
                                            collect (substitute address "ADDRESS" line
                                                                :test #'equal)))
                       address "ADDRESS"))))

(defparameter *load-config*
  "{\"methodConfig\":[{\"name\":[{\"service\":\"a.B\"}],\"timeout\":\"2s\",\"waitForReady\":true,
     \"maxRequestMessageBytes\":5}],\"loadBalancingPolicy\":\"weighted_round_robin\",
    \"retryThrottling\":{\"maxTokens\":10,\"tokenRatio\":0.1},
    \"healthCheckConfig\":{\"serviceName\":\"a.B\"}}")

(defun load-option-calls ()
  "Calls of the functions that make the plan of a load from options."
  (let ((config (clgrpc.config:parse-service-config *load-config*))
        (plain (clgrpc.config:parse-service-config "{\"loadBalancingPolicy\":\"round_robin\"}"))
        (width '(:load-schedule :const :concurrency-schedule :const :loops 4 :details 10)))
    `(,@(loop for text in '("0.5" "0" "x") collect `(tools::parse-rate ,text))
      ,@(loop for text in '("-2.5" "3" "-") collect `(tools::parse-step ,text))
      ,@(loop for text in '("{\"a\":\"b\"}" "{\"a\":1}" "[]" "{")
              collect `(tools::parse-string-object ,text "X"))
      ,@(loop for value in '(:true :false "s" #("a" "b") #(1) 3)
              collect `(tools::config-value-text ,value))
      ,@(loop for part in '("" ",\"weight\":0" ",\"weight\":1000,\"data\":{}" ",\"weight\":1001"
                            ",\"rate\":1")
              collect `(tools::parse-mix ,(format nil "[{\"method\":\"a.B/C\"~A}]" part)))
      (tools::parse-mix " [1]") (tools::parse-mix "[]") (tools::parse-mix "[")
      ,@(loop for arguments in '((:const 5 nil nil nil 1 nil) (:const nil nil nil nil 1 nil)
                                 (:const 5 1 nil nil 1 nil) (:const 5 nil nil nil 1 9)
                                 (:step nil 1 2 nil 3 nil) (:step nil 1 nil nil 3 nil)
                                 (:step nil nil 2 nil 3 nil) (:line 5 1 2 9 1 60)
                                 (:line nil 1 -2 9 1 60))
              collect `(tools::load-schedule "load" "--rps" ,@arguments))
      (tools::load-workers nil :concurrency-schedule :const)
      (tools::load-workers 1 :concurrency-schedule :const)
      (tools::load-workers 1 :concurrency-schedule :const :concurrency 3)
      (tools::load-workers 1 :concurrency-schedule :const :concurrency 3 :async t)
      (tools::load-workers nil :concurrency-schedule :const :concurrency 3 :async t)
      ,@(loop for options in '((:connections 50) (:connections 51) (:connections 2 :rps 10)
                               (:connections 2 :rps 10 :poisson t) (:connections 2 :poisson t)
                               (:connections 2 :rps 10 :together 1/1000) (:connections 2 :async t)
                               (:connections 2 :together 0) (:connections 2 :together 1)
                               (:connections 2 :rps 10 :together 0)
                               (:connections 2 :rps 10 :poisson t :together 1))
              collect `(tools::load-width ,@options ,@width))
      ,@(loop for options in '(() (:total 5 :skip-first 4) (:total 5 :skip-first 5)
                               (:total 5 :skip-first 5 :duration 2 :max-duration 3) (:duration 0)
                               (:max-duration 3 :total 9 :warm-up 1/2 :duration-stop :close))
              collect `(tools::plan-length ,@options :skip-first 0))
      (tools::load-streams :stream-call-count 3 :stream-interval 1/2 :stream-call-duration 2)
      (tools::method-path "a.B.C")
      (tools::methods-called :method "a.B.C")
      ,@(loop for options in '((:concurrency-schedule :const) (:concurrency-schedule :step)
                               (:concurrency-schedule :const :concurrency 2) (:connections 1))
              collect `(tools::with-connections ,options (1 2 3)))
      ,@(loop for seconds in '(0 1 2 3)
              append (loop for (service-config path) in `((,config "/a.B/C") (,config "/x.Y/Z")
                                                          (nil "/a.B/C"))
                           collect `(tools::shorter-timeout ,seconds ,service-config ,path)))
      (tools::disobeyed-members ,config "/a.B/C") (tools::disobeyed-members ,config "/x.Y/Z")
      (tools::disobeyed-members ,plain "/a.B/C")
      (tools::loads-credentials :insecure t :skip-tls t) (tools::loads-credentials :insecure t)
      ,@(loop for (value how) in '((1/2 tools::ns) (nil tools::ns) ("[1]" tools::json)
                                   ("x" tools::json) (t) (:round-robin) (("a")) (1/2) (3))
              collect `(tools::told-value ,value ,how))
      (tools::told-options (:total 5 :group-ns 7 :rate 1)
                           (:method "a.B.C" :together 1/1000 :rps 10 :load-schedule :const
                            :load-step-duration 1 :concurrency 0 :timeout 20
                            :concurrency-schedule :step :concurrency-step-duration 2))
      (tools::told-options (:group-ns 7 :credentials t) (:method "a.B.C" :together 1))
      ,@(loop for seconds in '(0 5 1000) collect `(tools::reflection-arguments nil ,seconds)))))

(test options-of-a-load
  "What functions make of the options of a load: plans, numbers, and the errors of wrong options."
  (let ((*error-output* (make-broadcast-stream)))
    (support:check-record 'options-of-a-load (support:call-outcomes (load-option-calls)))))
