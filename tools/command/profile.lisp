;;;; The command `profile`: the use of a server's time, its waits, its allocations.

(in-package #:clgrpc.tools)

(defun default-load (command in-flight)
  "The load for the program that COMMAND, words of the command line, starts: IN-FLIGHT calls at
once. The load is :bench for servers of RouteGuide if this program has the command `bench-client`, a
shell command that runs our `load` for other services of `serve`, and nil for anything else."
  (let ((services (and (equal "serve" (first command))
                       (loop for word in (rest command)
                             append (uiop:split-string word :separator ",")))))
    (flet ((served-p (name) (member name services :test #'string=))
           (calls (method)
             (format nil "~A load {address} ~A -c ~D -z 1h -o /dev/null"
                     (uiop:escape-shell-token (sb-unix:unix-readlink "/proc/self/exe")) method
                     in-flight)))
      (cond ((or (served-p "bench") (served-p "route-guide"))
             (if (find-command "bench-client")
                 :bench
                 (calls "routeguide.RouteGuide/GetFeature")))
            ((served-p "greeter") (calls "helloworld.Greeter/SayHello"))
            ((served-p "interop") (calls "grpc.testing.TestService/EmptyCall"))))))

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

(defun write-profile-as (format profile before stacks stream)
  "Write PROFILE to STREAM in FORMAT, side by side with BEFORE unless that is nil. If FORMAT can
hold only one kind of stacks, STACKS, :cpu or :off-cpu, selects that kind."
  (ecase format
    (:text (profile:write-profile profile stream)
     (when before (profile:write-difference before profile stream)))
    (:json (write-json (if before
                           (append profile
                                   (list (cons "differences"
                                               (profile:difference-data before profile))))
                           profile)
                       :stream stream)
     (terpri stream))
    (:html (profile:write-profile-page profile stream :before before))
    (:folded (profile:write-folded profile stream :stacks stacks))
    (:pprof (profile:write-pprof profile :stacks stacks))))

(defun call-for-profile (function &rest arguments)
  "Call FUNCTION with ARGUMENTS; signal a FAILURE in place of a PROFILE-ERROR."
  (handler-case (apply function arguments)
    (profile:profile-error (error) (fail-command "~A" error))))

(define-command "profile"
    (((what "PID or -- COMMAND…" #'identity
            "The running process to profile; or a command of clgrpc that is started for this, such
      as `-- serve greeter`."))
     ((load "COMMAND" #'identity nil
            "A shell command that puts load on the server meanwhile; {address} in it stands for the
      server's address. The default, for services of `serve`, is a client of clgrpc.")
      (in-flight "N" (integer-parser 1 10000) 100
                 "The number of calls that the default load keeps under way.")
      (seconds "DURATION" #'parse-seconds 3 "The time for which CPU is sampled; system calls are
      followed for a second more.")
      (rounds "N" (integer-parser 1 100) 1 "The number of measurements under one load. Figures that
      are compared are then means of the rounds, and their noise is the variation between rounds.")
      (sampler "NAME" (choice-parser :auto :perf :sbcl) :auto
               "The sampler: perf; sbcl, which works only for a command; or auto: perf if it is
      installed, else sbcl.")
      (compare "FILE" #'identity nil
               "An earlier profile, JSON, to show the differences from.")
      ((output nil "-O" "--format") "FORMAT" (choice-parser :text :json :html :folded :pprof)
              :text
              "The format of the report. html is one page with a flame graph, and with --compare a
      second flame graph, coloured by the differences; folded are stacks for programs such as
      speedscope; pprof is for `go tool pprof`. The standard error lists what folded and pprof
      lack.")
      (stacks "KIND" (choice-parser :cpu :off-cpu) :cpu
              "The stacks that folded and pprof contain: those of CPU time, or, with off-cpu, those
      in which threads sleep.")))
    "Show where the time of a process goes: CPU by subsystem, by phase of a call and by function,
system calls, waits and switches of thread, batons, allocation and collections. Samples with perf."
  (let* ((pid (and (null (rest what)) (every #'digit-char-p (first what))
                   (parse-integer (first what) :junk-allowed t)))
         (command (and (null pid) (check-command what)))
         (stacks-only (member output '(:folded :pprof)))
         (load (or load (default-load command in-flight))))
    (when (and compare stacks-only)
      (refuse "~(~A~) cannot show a comparison (--compare)" output))
    (when (and (eq :off-cpu stacks) (not stacks-only))
      (refuse "--stacks needs -O folded or pprof"))
    (when (and command (null load))
      (tell "clgrpc profile: no load is generated; give --load a command that makes calls"))
    (let ((before (and compare (call-for-profile #'profile:read-profile compare)))
          (profile (call-for-profile #'profile:profile
                                     :pid pid :command command :in-flight in-flight
                                     :seconds seconds :rounds rounds :sampler sampler :load load)))
      (call-for-profile #'write-profile-as output profile before stacks *standard-output*)
      (when stacks-only
        (finish-output)
        (handler-case (profile:write-missing *error-output* profile)
          (stream-error ())))))         ; nobody reads it
  0)
