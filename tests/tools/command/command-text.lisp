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
