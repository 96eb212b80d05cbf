;;;; The command `profile`: where a server's time goes, what it waits for, what it allocates.

(in-package #:clgrpc.tools)

(defun default-load (command)
  "The load for what COMMAND, words of the command line, starts: :bench for servers of RouteGuide,
else nil."
  (and (equal "serve" (first command))
       (some (lambda (word)
               (intersection '("bench" "route-guide") (uiop:split-string word :separator ",")
                             :test #'string=))
             (rest command))
       :bench))

(defun check-command (command)
  (let ((found (find-command (first command))))
    (unless found (refuse "there is no command ~S to profile" (first command)))
    (when (string= "serve" (first command))
      (setf command (append command
                            (unless (find-if (lambda (word)
                                               (uiop:string-prefix-p "--listen" word))
                                             command)
                              '("--listen" "127.0.0.1:0")))))
    command))

(defun write-profile-as (format profile stream)
  (ecase format
    (:text (profile:write-profile profile stream))
    (:json (write-json profile :stream stream)
     (terpri stream))))

(define-command "profile"
    (((what "PID or -- COMMAND…" #'identity
            "The process to profile, which runs; or a command of clgrpc that is started for it, such
      as `-- serve bench`."))
     ((load "COMMAND" #'identity nil
            "What puts load on the server meanwhile, a shell's command; {address} in it stands for
      where the server listens. By default, for servers of RouteGuide, our own bench client.")
      (in-flight "N" (integer-parser 1 10000) 100 "Calls at once of the load by default.")
      (seconds "SECONDS" #'parse-seconds 3 "How long CPU is sampled; system calls are followed for
      a second more.")
      (output "FORMAT" (choice-parser :text :json) :text "How the report is written.")))
    "Show where the time of a process goes: CPU by subsystem, by phase of a call and by function,
system calls, waits and switches of thread, batons, allocation and collections. Samples with perf."
  (let* ((pid (and (null (rest what)) (parse-integer (first what) :junk-allowed t)))
         (command (and (null pid) (check-command what))))
    (write-profile-as output
                      (handler-case
                          (profile:profile :pid pid :command command :in-flight in-flight
                                           :seconds seconds
                                           :load (or load (default-load command)))
                        (profile:profile-error (error) (fail-command "~A" error)))
                      *standard-output*))
  0)
