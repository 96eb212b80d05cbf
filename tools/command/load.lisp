;;;; The command `load`: from its arguments to a plan of clgrpc.load, and from the run to a report
;;;; of clgrpc.report. Options have ghz's names where they have the same meaning; doc/tools/load.md
;;;; has a table of the others.

(in-package #:clgrpc.tools)

(defconstant +exit-calls-failed+ 3
  "The exit code if the run was made, and some calls did not end with OK, or none ended.")
(defconstant +exit-condition+ 4
  "The exit code if the run was made, and a condition of --fail-if holds.")
(defconstant +exit-interrupted+ 130
  "The exit code if the user has interrupted the run; the report covers its finished part.")
(defconstant +exit-terminated+ 143
  "The exit code if SIGTERM has ended the run; the report covers its finished part.")

;;; Progress

(defun progress-function (total)
  "A function for PERFORM-RUN that shows the progress of the run in one line on standard error.
TOTAL is the number of calls that will be made, or nil if it is not known."
  (let ((begin (monotonic-ns)) (last-ns 0) (last-count 0))
    (lambda (control)
      (let ((now (monotonic-ns)))
        (when (< 250000000 (- now last-ns))
          (let* ((count (load:calls-ended control))
                 (rate (if (zerop last-ns)
                           0
                           (round (* +ns-per-second+ (max 0 (- count last-count)))
                                  (- now last-ns)))))
            (format *error-output* "~C[K~C~,1F s  ~:D call~:P~@[ of ~:D~]  ~:D/s~C"
                    #\Escape #\Return (ns-seconds (- now begin)) count total rate #\Return)
            (finish-output *error-output*)
            (setf last-ns now last-count count)))))))

(defun clear-progress ()
  (format *error-output* "~C[K" #\Escape)
  (finish-output *error-output*))

;;; Results

(defun call-with-output (function file &key (if-exists :supersede))
  "Call FUNCTION with a stream to FILE or, if FILE is nil, to the standard output. IF-EXISTS is an
argument of OPEN."
  (if file
      (handler-case
          (with-open-file (stream (sb-ext:parse-native-namestring file)
                                  :direction :output :if-exists if-exists
                                  :if-does-not-exist :create :external-format :utf-8)
            (funcall function stream))
        ((or file-error stream-error) (error)
          (fail-command "~A cannot be written: ~A" file (report:error-reason error))))
      (funcall function *standard-output*)))

(defun run-exit-code (run conditions)
  "Return the exit code for RUN, and print those of CONDITIONS that hold on standard error."
  (let ((broken (and conditions (report:broken-conditions conditions run))))
    (dolist (line broken) (tell "~A" line))
    (cond ((eq :interrupted (load:run-ended-early run)) +exit-interrupted+)
          ((eq :terminated (load:run-ended-early run)) +exit-terminated+)
          (broken +exit-condition+)
          ((and (null conditions)
                (or (zerop (load:run-count run))
                    (find-if #'plusp (load:run-statuses run) :key #'load:status-row-code)))
           +exit-calls-failed+)
          (t 0))))

;;; The command

(defparameter *options-of-workers*
  '(:workers :rps :concurrency :connections :duration :data :warm-up :rounds :poisson :async
    :call :insecure :format :output :compare :fail-if :name :tags :quiet)
  "The options that can be used with --workers.")

(defun refuse-options-of-one (options)
  "Signal an error if OPTIONS, a plist of the command's options, has options that cannot be passed
to workers."
  (when-let ((wrong (loop for option in (command-options (find-command "load"))
                          for key = (argument-key option)
                          unless (or (member key *options-of-workers*)
                                     (equal (getf options key) (argument-default option)))
                            collect (argument-name option))))
    (refuse "~{~A~^, ~} cannot be used with --workers: the protocol of workers lacks this" wrong)))

(defun seconds-progress-function (seconds)
  "A function for DRIVE-WORKERS that shows in one line on standard error how many of SECONDS have
passed."
  (lambda (second)
    (format *error-output* "~C[K~C~D s of ~D s~C" #\Escape #\Return second seconds #\Return)
    (finish-output *error-output*)))

(defun progress-wanted-p (quiet)
  "True if the progress of a run is shown; QUIET is true if the user has asked for none."
  (and (not quiet) (interactive-stream-p sb-sys:*stderr*)))

(defvar *failed-round* nil
  "The condition because of which a round after the first could not be made, or nil if all could be
made.")

(defun make-round (number make-run)
  "Call MAKE-RUN, a function without arguments that makes the run of the round NUMBER (the first is
0), and return its value. Return nil if the process must end before anything was measured. Return
nil also if a round after the first cannot be made, and note the reason, because the earlier rounds
should still be reported."
  (handler-bind (((or load:run-failed failure)
                   (lambda (condition)
                     (when (load:terminated-p) (return-from make-round nil))
                     (when (plusp number)
                       (setf *failed-round* condition)
                       (return-from make-round nil)))))
    (funcall make-run)))

(defun report-terminated (run)
  "Mark RUN, the last run, as ended by SIGTERM, and return it. If RUN is nil, because nothing was
measured, end the process."
  (unless run (sb-ext:exit :code +exit-terminated+))
  (setf (load:run-ended-early run) :terminated)
  run)

(defun repeat-rounds (rounds make-run)
  "Call MAKE-RUN, a function without arguments that makes a run, ROUNDS times, and return all these
runs combined into one. No more rounds are made if the user interrupts a round, if a round cannot be
made, or if SIGTERM comes, in a round or between two."
  (load:call-terminable
   (lambda ()
     (let ((runs (loop for number below rounds
                       for run = (and (not (load:terminated-p)) (make-round number make-run))
                       while run collect run
                       until (eq :interrupted (load:run-ended-early run)))))
       (when (and (load:terminated-p) (< (length runs) rounds))
         (report-terminated (first (last runs))))
       (load:merge-rounds runs)))))

(defun report-failed-round (run)
  "After RUN was reported, signal a FAILURE if a further round could not be made."
  (when *failed-round*
    (fail-command "round ~D could not be made: ~A" (1+ (max 1 (length (load:run-rounds run))))
                  *failed-round*)))

(defun load-by-workers (&rest options &key rounds name tags quiet &allow-other-keys)
  "The RUN that the workers named in OPTIONS make by calling a method of
grpc.testing.BenchmarkService."
  (refuse-options-of-one options)
  (let ((progress (progress-wanted-p quiet)))
    (unwind-protect
         (let ((run (repeat-rounds rounds (lambda () (apply #'drive-for options)))))
           (setf (load:run-name run) name
                 (load:run-tags run) (and tags (parse-string-object tags "--tags"))
                 (load:run-options run) (told-options '() options))
           run)
      (when progress (clear-progress)))))

(defun drive-for (&key workers target method rps concurrency connections duration data warm-up quiet
                  &allow-other-keys)
  "The RUN of WORKERS, addresses, that call METHOD of grpc.testing.BenchmarkService at TARGET."
  (let* ((path (subseq (method-path method) 1))
         (request (handler-case (grpc:parse-json-message 'testing:simple-request (or data "{}"))
                    (grpc:protobuf-error (error) (refuse "the data of workers: ~A" error))))
         (payload (testing:simple-request-payload request))
         (service "grpc.testing.BenchmarkService/")
         (streaming (string= path (concatenate 'string service "StreamingCall"))))
    (unless (or streaming (string= path (concatenate 'string service "UnaryCall")))
      (refuse "workers call ~AUnaryCall and ~:*~AStreamingCall only" service))
    (unless (and duration (plusp duration))
      (refuse "--workers needs -z, the time for which they call"))
    (handler-case
        (drive-workers workers target
                       :streaming streaming :rate rps :connections (or connections 1)
                       :concurrency (or concurrency 50) :seconds (ceiling duration)
                       :warm-up-seconds (if (plusp warm-up) warm-up 1)
                       :progress (if (progress-wanted-p quiet)
                                     (seconds-progress-function (ceiling duration))
                                     (constantly nil))
                       :request-size (if payload (length (testing:payload-body payload)) 0)
                       :response-size (testing:simple-request-response-size request))
      (grpc:rpc-error (error) (fail-command "a worker: ~A" error)))))

(defun load-alone (&rest options &key rounds quiet &allow-other-keys)
  "The RUN that this process makes by OPTIONS."
  (let* ((plan (apply #'make-load-plan options))
         (progress (and (progress-wanted-p quiet) (progress-function (load:plan-total plan)))))
    (unwind-protect (repeat-rounds rounds
                                   (lambda () (load:perform-run plan :on-progress progress)))
      (when progress (clear-progress)))))

(defun load-to-knee (&rest options &key knee rps duration rounds total max-duration load-schedule
                     &allow-other-keys)
  "The RUN at the highest rate that the conditions KNEE allow."
  (loop for (given name) in `((,(< 1 rounds) "--rounds") (,total "-n") (,max-duration "-x")
                              (,(not (eq :const load-schedule)) "--load-schedule"))
        when given
          do (refuse "--knee makes several runs, each as long as -z; ~A cannot be used with ~
                       it" name))
  (when (and rps (< rps 1/2)) (refuse "--knee searches rates from 0.5 calls a second on"))
  (let* ((options (list* :rps (or rps 100) :duration (or duration 5) options))
         (plan (apply #'make-load-plan options)))
    (load:call-terminable
     (lambda ()
       (run-at-knee plan knee (or rps 100)
                    (lambda ()
                      (call-beside-server (getf options :server-metrics) (getf options :method)
                                          (lambda () (load:perform-run plan)))))))))

(defun counted-reading (url name)
  "The counts for the method NAME in the metrics of the server at URL: a METHOD-READING, or nil if
the metrics have none."
  (find-if (lambda (reading)
             (and (string= "server" (method-reading-role reading))
                  (string= name (method-reading-name reading))))
           (get-metrics url)))

(defun server-figures (before after)
  "The counts of a server for the time between BEFORE, a METHOD-READING or nil, and AFTER, in the
form of RUN-SERVER. Signal a FAILURE if the counts are not known."
  (unless after (fail-command "the server's metrics have no counts of the method"))
  (when (and before (< (method-reading-ended after) (method-reading-ended before)))
    (fail-command "they have fallen, as after a restart of the server"))
  (let ((buckets (buckets-since after before)))
    (cons (cons "count" (- (method-reading-ended after)
                           (if before (method-reading-ended before) 0)))
          (loop for (name share) in '(("p50" 1/2) ("p90" 9/10) ("p99" 99/100))
                for seconds = (bucket-quantile share buckets)
                when seconds collect (cons name (round (* +ns-per-second+ seconds)))))))

(defun call-beside-server (url method function)
  "Call FUNCTION, without arguments, and return its RUN. If URL is not nil, add to the RUN the
server's counts for METHOD meanwhile, according to its metrics at URL. If the server does not report
that after the run, print the reason on standard error and return the RUN without these counts."
  (if (null url)
      (funcall function)
      (let* ((name (subseq (method-path method) 1))
             (before (counted-reading url name))
             (run (funcall function)))
        (handler-case (setf (load:run-server run)
                            (server-figures before (counted-reading url name)))
          (failure (failure)
            (tell "clgrpc load: the server's own counts are not known: ~A"
                  (shown (failure-text failure)))))
        run)))

(defun count-errors-in (run)
  "Change RUN and its rounds so that reports show the latencies of all calls, failed ones included."
  (dolist (one (cons run (load:run-rounds run)))
    (setf (load:run-latency one) (load:run-all-latency one))))

(defparameter *options-of-one-method*
  '((:method "METHOD") (:call "--call") (:data "--data") (:data-file "--data-file")
    (:binary "--binary") (:binary-file "--binary-file") (:server-metrics "--server-metrics"))
  "The options that cannot be used with a mix of methods.")

(defun method-called (&rest options &key method call mix &allow-other-keys)
  "The method to call, from the parameter or ghz's option --call, or nil if the calls are a mix."
  (when mix
    (loop for (key name) in *options-of-one-method*
          when (getf options key) do (refuse "--mix and ~A exclude each other" name)))
  (cond ((and method call) (refuse "METHOD and --call exclude each other"))
        ((or method call mix) (or method call))
        (t (refuse "METHOD is missing"))))

(defun perform-load (&rest options &key workers fail-if format compare output count-errors
                     &allow-other-keys)
  "Run the command with OPTIONS; return the exit code."
  (let ((conditions (apply #'append fail-if))
        (options (list* :method (apply #'method-called options) options)))
    (when (eq :csv format)
      (when compare (refuse "csv cannot show a comparison (--compare)"))
      (when workers (refuse "csv lists single calls, and workers do not")))
    ;; refused now, not after an hour; the report that the file may have is kept until the run is
    ;; over, and the reader of a pipe would end at the first close
    (unless (or (null output) (eq :pipe (os:file-type (string-octets output))))
      (call-with-output (constantly nil) output :if-exists :append))
    (let* ((*failed-round* nil)
           (run (if (and (getf options :knee) (not workers))
                    (apply #'load-to-knee options)
                    (call-beside-server
                     (getf options :server-metrics) (getf options :method)
                     (lambda () (apply (if workers #'load-by-workers #'load-alone) options))))))
      (when count-errors (count-errors-in run))
      (call-with-output (lambda (stream) (report:write-report format run stream :before compare))
                        output)
      (prog1 (run-exit-code run conditions)
        (report-failed-round run)))))

(define-command ("load" options)
    (((target "TARGET" #'parse-channel-target "Where the server listens.")
      (method "[METHOD]" #'split-method "The method to call: package.Service/Method."))
     (((total nil "-n") "N" (integer-parser 1 1000000000000) nil
       "How many calls; 200 without -z.")
      ((concurrency nil "-c") "N" (integer-parser 1 1000000) nil
       "The maximum number of calls under way at one time, each by a worker. By default 50; with
      --rps no limit.")
      ((rps nil "-r") "N" #'parse-rate nil
       "Begin calls at this rate, independent of earlier calls: an open loop. Latencies count from
      when each call was due. Without --rps each worker makes one call after the other.")
      ((duration nil "-z") "DURATION" #'parse-duration nil
       "The time for which calls begin, such as 10s or 1m30s; then -n does not count.")
      ((max-duration nil "-x") "DURATION" #'parse-duration nil
       "End the run after this time even if -n calls have not been made.")
      (duration-stop "HOW" (choice-parser :wait :close :ignore) :wait
                     "The treatment of calls under way at the end: wait for them, close them, so
      that they fail, or ignore them.")
      ((data nil "-d") "JSON" #'identity nil
       "The request, or an array of requests: calls take them in turn, or each stream sends them
      all. @ or - reads them from standard input. Templates such as {{.RequestNumber}} are filled
      in for each call; doc/tools/load.md lists them.")
      ((data-file nil "-D") "FILE" #'identity nil
       "Read the request, or an array of requests, from FILE.")
      ((binary nil "-b") "[BOOLEAN]" #'parse-boolean nil
       "Read the request from standard input as octets of protobuf, or a stream of requests, each
      after its length as a varint.")
      ((binary-file nil "-B") "FILE" #'identity nil
       "Read the request from FILE as octets of protobuf, as -b does from standard input.")
      ((metadata nil "-m") "JSON" #'identity nil
       "Metadata, an object of strings; may have templates.")
      ((metadata-file nil "-M") "FILE" #'identity nil
       "Read the metadata from FILE, an object of strings in JSON.")
      ((headers "-H") "'NAME: VALUE'" #'parse-header '()
       "Metadata to send; may be given several times. The value of a name that ends in -bin is in
      base64.")
      (reflect-metadata "JSON" #'identity nil
                        "Metadata for the server's reflection only, an object of strings.")
      (disable-template-data "[BOOLEAN]" #'parse-boolean nil
                             "Do not fill in templates in data and metadata.")
      ((enable-compression nil "-e") "[BOOLEAN]" #'parse-boolean nil
       "Send requests in gzip.")
      (config "FILE" #'parse-config-file '()
              "More options, an object in JSON such as {\"host\": \"127.0.0.1:50051\", \"rps\": 9};
      options of the command line override them.")
      (call "METHOD" #'split-method nil "The method to call, as METHOD, for command lines of ghz.")
      (mix "JSON|FILE" #'parse-mix nil
           "The methods to call instead of METHOD: an array of objects, such as [{\"method\":
      \"a.B/C\", \"weight\": 9, \"data\": {}}, {\"method\": \"a.B/D\"}].
      Calls take turns by weight, 1 by default, and each method has a row of the report.")
      (proto "FILE" #'identity nil
             "The .proto file that declares the service; without it, the server's reflection is
      asked.")
      (protoset "FILE" #'identity nil "A compiled FileDescriptorSet that declares the service.")
      ((import-path nil "-i" "--import-paths") "DIR[:DIR…]" #'parse-directories nil
       "The directories where the imports of --proto are looked for first.")
      (connections "N" (integer-parser 1 100000) nil
                   "The number of connections, which the workers share. By default 1, or with a
      --balance that shares calls one to each address.")
      ((loops nil "--cpus") "N" (integer-parser 1 256) 1
       "Event loops, each with a thread and its share of the connections.")
      ((timeout nil "-t") "DURATION" #'parse-duration 20
       "The maximum time of a call; 0 for no limit.")
      (connect-timeout "DURATION" #'parse-seconds 10 "The maximum time for connecting.")
      (load-schedule "KIND" (choice-parser :const :step :line) :const
                     "How the rate changes: const; step, by --load-step every --load-step-duration;
      line, by --load-step a second.")
      (load-start "N" #'parse-rate nil "The rate to begin with.")
      (load-step "N" #'parse-step nil "The amount that each step adds to the rate; may be
      negative.")
      (load-end "N" #'parse-rate nil "The rate at which the changes end.")
      (load-step-duration "DURATION" #'parse-seconds 1 "The duration of a step of the rate.")
      (load-max-duration "DURATION" #'parse-duration nil "The time after which the rate stays the
      same.")
      (concurrency-schedule "KIND" (choice-parser :const :step :line) :const
                            "How the number of workers changes, as --load-schedule.")
      (concurrency-start "N" #'parse-rate nil "The number of workers at the start.")
      (concurrency-step "N" #'parse-step nil "The number of workers that each step adds; may be
      negative.")
      (concurrency-end "N" #'parse-rate nil "The number of workers at which the changes
      end.")
      (concurrency-step-duration "DURATION" #'parse-seconds 1 "The duration of a step of the number
      of workers.")
      (concurrency-max-duration "DURATION" #'parse-duration nil "The time after which the number
      of workers stays the same.")
      (async "[BOOLEAN]" #'parse-boolean nil
             "With --rps, begin calls when they are due even if -c calls are under way.")
      (poisson "[BOOLEAN]" #'parse-boolean nil
               "Spread the calls of an open loop by chance, as independent users do, not evenly.")
      (together "DURATION" #'parse-duration nil
                "Calls of an open loop that are due within this time begin together, as a burst.
      A burst costs the tool much less than separate calls, but raises latencies; 0 begins each
      call at its own time.
      By default 0, and 1ms at rates above 4,000 a second.")
      (details "N" (integer-parser 2 10000000) 4096
               "The maximum number of calls to list one by one; they are taken evenly from the whole
      run.")
      ((skip-first nil "--skipFirst") "N" (integer-parser 0 1000000000) 0
       "The number of calls at the beginning that do not count.")
      (warm-up "DURATION" #'parse-duration 0
               "The time for which uncounted calls are made before the run.")
      (knee "CONDITIONS" #'parse-conditions nil
            "Search for the highest rate at which none of CONDITIONS holds, such as 'p99 > 10ms',
      by runs of -z (5s by default), from --rps on (100 by default); report the run at that
      rate.")
      (server-metrics "URL" #'parse-url nil
                      "Where the server serves metrics for Prometheus, http://HOST:PORT/metrics or
      https://…: its own figures of these calls are shown beside the tool's.")
      (rounds "N" (integer-parser 1 1000) 1
              "The number of times to repeat the run, to separate change from noise.")
      (stream-call-count "N" (integer-parser 1 1000000000) nil
                         "The number of messages that a stream sends, with the data repeated if
      necessary; if only the server streams, the number of messages after which the call is
      cancelled.")
      (stream-interval "DURATION" #'parse-duration 0 "The time between two messages
      that a stream sends.")
      (stream-call-duration "DURATION" #'parse-duration 0
                            "The time for which a stream sends; if only the server streams, the time
      after which the call is cancelled.")
      (workers "ADDRESSES" (addresses-parser 1) nil
               "Let these workers make the calls, together: each is `clgrpc qps-worker` or the
      worker of another gRPC. METHOD is UnaryCall or StreamingCall of grpc.testing.BenchmarkService;
      -z is required. The options -c, --connections and --rps are for all workers together, and with
      --rps calls begin at random times. Of -d only the sizes count.")
      (stream-dynamic-messages "[BOOLEAN]" #'parse-boolean nil
                               "Fill in templates for each message of a stream, not for each call.")
      ((tls-ca nil "--cacert") "FILE" #'identity nil
       "Speak TLS, and trust the certificates in FILE (PEM), or with `system` the system's.")
      ((tls-cert nil "--cert") "FILE" #'identity nil
       "The certificates to show a server that asks for them.")
      ((tls-key nil "--key") "FILE" #'identity nil
       "The private key of --tls-cert; by default the key is in the same file.")
      ((tls-name nil "--cname") "NAME" #'identity nil
       "The name that must be in the server's certificate.")
      ((skip-tls nil "--skipTLS") "[BOOLEAN]" #'parse-boolean nil
       "Speak TLS with any server, without verifying its certificate.")
      (insecure "[BOOLEAN]" #'parse-boolean nil
                "Speak plaintext. This is the default; the option exists for command lines of ghz.")
      (authority "NAME" #'identity nil "The :authority of calls, by default the target's.")
      balancing-options
      ((format nil "-O") "FORMAT" (apply #'choice-parser report:*formats*) :summary
       "The report's form: summary, json (ghz's, with additions), pretty, csv, or html, a page.")
      ((output nil "-o") "FILE" #'identity nil "The file to write the report to, instead of standard
      output.")
      (compare "FILE" #'parse-run-argument nil "Compare with the run in this file, a report in
      JSON.")
      ((fail-if "--fail-if") "CONDITIONS" #'parse-conditions '()
       "Exit with 4 if one of these conditions holds, such as 'p99 > 10ms, errors > 0'; may be given
      several times.")
      (count-errors "[BOOLEAN]" #'parse-boolean nil
                    "Report the latencies of all calls, not only of those that ended with OK.")
      (name "TEXT" #'identity nil "The name of the run, for reports.")
      (tags "JSON" #'identity nil "An object of strings, for reports.")
      (quiet "[BOOLEAN]" #'parse-boolean nil
             "Show no progress on standard error. If standard error is not a terminal, no progress
      is shown in any case.")))
    "Load any server with calls of one method, or of several, and report their latencies. Types come
from the server's reflection, --proto or --protoset. With --rps calls begin on time, independent of
earlier calls, and latencies count from the times when calls were due; the report shows how late the
tool itself was and whether the tool was the limit. Exits with 0 if all calls ended with OK, 3 if
some did not or no call ended; with --fail-if, 4 if a condition holds, else 0. Other codes: 130 if
interrupted and 143 by SIGTERM, after a report if anything was measured; 1 if the run could not be
made; 2 if the arguments are wrong."
  (tune-collector)
  (apply #'perform-load options))
