;;;; The command `load`: from its arguments to a plan of clgrpc.load, and from the run to a report
;;;; of clgrpc.report. Options have ghz's names where they mean what they mean there; doc/load.md
;;;; has a table of those that do not.

(in-package #:clgrpc.tools)

(defconstant +exit-calls-failed+ 3 "The run was made, and some calls did not end with OK.")
(defconstant +exit-condition+ 4 "The run was made, and a condition of --fail-if holds.")
(defconstant +exit-interrupted+ 130 "The user has interrupted the run; what was done is reported.")

;;; Parsers

(defun parse-duration (string)
  "The seconds, a rational, that STRING says: as Go writes durations, such as 1m30s, 1.5s or 200ms,
or a plain number of seconds."
  (let ((at 0) (total 0))
    (flet ((wrong () (refuse "a duration is wanted, such as 10s, 200ms or 1m30s, not ~S" string)))
      (when (string= "" string) (wrong))
      (loop while (< at (length string))
            do (let* ((end (or (position-if-not (lambda (char)
                                                  (or (char<= #\0 char #\9) (char= #\. char)))
                                                string :start at)
                               (length string)))
                      (next (or (position-if (lambda (char) (char<= #\0 char #\9)) string
                                             :start end)
                                (length string)))
                      (unit (assoc (subseq string end next)
                                   '(("ns" . 1/1000000000) ("us" . 1/1000000) ("µs" . 1/1000000)
                                     ("ms" . 1/1000) ("s" . 1) ("m" . 60) ("h" . 3600) ("" . 1))
                                   :test #'string=)))
                 (when (or (= at end) (null unit)
                           (and (string= "" (car unit)) (or (plusp at) (< next (length string)))))
                   (wrong))
                 (incf total (* (cdr unit) (handler-case (parse-decimal (subseq string at end) "")
                                             (usage-error () (wrong)))))
                 (setf at next)))
      (when (< 31536000 total) (wrong))
      total)))

(defun parse-rate (string)
  "The positive number that STRING says."
  (let* ((what "a number above 0 is wanted")
         (value (parse-decimal string what)))
    (unless (plusp value) (refuse "~A, not ~S" what string))
    value))

(defun parse-step (string)
  "The number, which may be negative, that STRING says."
  (if (uiop:string-prefix-p "-" string)
      (- (parse-decimal (subseq string 1) "a number is wanted"))
      (parse-decimal string "a number is wanted")))

(defun parse-string-object (string what)
  "The alist of the object of strings in JSON that STRING is. WHAT it is for."
  (let ((object (handler-case (parse-json string)
                  (clgrpc-error (error) (refuse "~A is no JSON: ~A" what error)))))
    (unless (and (listp object) (every (lambda (row) (and (consp row) (stringp (car row))
                                                          (stringp (cdr row))))
                                       object))
      (refuse "~A is an object of strings in JSON, not ~S" what string))
    object))

(defun parse-conditions (string)
  "The conditions of --fail-if that STRING says."
  (handler-case (report:parse-conditions string)
    (report:condition-syntax-error (error) (refuse "~A" error))))

(defun read-text-file (file)
  (handler-case (alexandria:read-file-into-string file :external-format :utf-8)
    (error (error) (refuse "~A cannot be read: ~A" file error))))

(defun read-octets-file (file)
  (handler-case (coerce (alexandria:read-file-into-byte-vector file) 'octets)
    (error (error) (refuse "~A cannot be read: ~A" file error))))

(defun read-standard-octets ()
  "All octets of standard input."
  (let ((stream (sb-sys:make-fd-stream 0 :input t :element-type '(unsigned-byte 8)
                                         :buffering :full)))
    (coerce (alexandria:read-stream-content-into-byte-vector stream) 'octets)))

;;; Types and data

(defun protoset-pool (file)
  "The types of the FileDescriptorSet in FILE."
  (handler-case (protobuf:make-type-pool (read-octets-file file))
    (protobuf:protobuf-error (error) (refuse "~A is no descriptor set: ~A" file error))))

(defun load-pool (address method proto protoset import-path channel-arguments headers)
  "A pool of types in which METHOD, a full name with dots, is declared."
  (cond (proto (proto-pool proto import-path))
        (protoset (protoset-pool protoset))
        (t (call-with-reflector
            (lambda (reflector)
              (ask-for-symbols reflector (list (subseq method 0 (position #\. method
                                                                          :from-end t)))))
            address channel-arguments headers 30))))

(defun load-payload (method pool data data-file binary binary-file)
  "What calls of METHOD send, by the options for data."
  (when (< 1 (count-if #'identity (list data data-file binary binary-file)))
    (refuse "-d, -D, -b and -B exclude each other"))
  (handler-case
      (cond (binary (load:binary-payload (read-standard-octets) method))
            (binary-file (load:binary-payload (read-octets-file binary-file) method))
            (t (load:json-payload (cond ((member data '("@" "-") :test #'equal)
                                         (alexandria:read-stream-content-into-string
                                          *standard-input*))
                                        (data)
                                        (data-file (read-text-file data-file))
                                        ((member (service:rpc-method-kind method)
                                                 '(:unary :server-streaming))
                                         "{}")
                                        (t "[]"))
                                  method (pool-finder pool))))
    (load:template-error (error) (refuse "~A" error))
    (protobuf:protobuf-error (error) (refuse "the data are no ~A: ~A"
                                             (protobuf:message-type-name
                                              (service:rpc-method-request-type method))
                                             error))))

(defun load-metadata (metadata metadata-file headers)
  "The alist of metadata that the options say."
  (append (cond (metadata (parse-string-object metadata "--metadata"))
                (metadata-file (parse-string-object (read-text-file metadata-file)
                                                    metadata-file)))
          headers))

;;; Schedules

(defun load-schedule (name kind value start step end step-seconds max-seconds)
  "The schedule that the options called --NAME… say, of VALUE if it is constant; nil if that is
nil."
  (flet ((number (value) (float value 1d0)))
    (cond ((eq :const kind)
           (when (or start step end max-seconds)
             (refuse "--~A-start, -step, -end and -max-duration go with --~:*~A-schedule step or ~
                      line" name))
           (and value (load:make-schedule :start (number value))))
          ((not (and start step))
           (refuse "--~A-schedule ~(~A~) needs --~2:*~A-start and --~:*~A-step" name kind))
          (t (load:make-schedule :kind kind :start (number start) :step (number step)
                                 :end (and end (number end))
                                 :step-seconds (number step-seconds)
                                 :max-seconds (and max-seconds (number max-seconds)))))))

;;; Progress

(defun progress-function (total)
  "A function for PERFORM-RUN that keeps one line on standard error about how the run goes; TOTAL
calls will be made, or nil."
  (let ((begin (monotonic-ns)) (last-ns 0) (last-count 0))
    (lambda (control)
      (let ((now (monotonic-ns)))
        (when (< 250000000 (- now last-ns))
          (let* ((count (load:calls-ended control))
                 (rate (if (zerop last-ns)
                           0
                           (round (* +ns-per-second+ (- count last-count)) (- now last-ns)))))
            (format *error-output* "~C[K~C~,1F s  ~:D call~:P~@[ of ~:D~]  ~:D/s~C"
                    #\Escape #\Return (ns-seconds (- now begin)) count total rate #\Return)
            (finish-output *error-output*)
            (setf last-ns now last-count count)))))))

(defun clear-progress ()
  (format *error-output* "~C[K" #\Escape)
  (finish-output *error-output*))

;;; Results

(defun call-with-output (function file)
  "Call FUNCTION with a stream to FILE, or to standard output without one."
  (if file
      (handler-case
          (with-open-file (stream file :direction :output :if-exists :supersede
                                       :external-format :utf-8)
            (funcall function stream))
        (file-error (error) (fail-command "~A cannot be written: ~A" file error)))
      (funcall function *standard-output*)))

(defun run-exit-code (run conditions)
  "The exit code for RUN; tell on standard error which of CONDITIONS it breaks."
  (let ((broken (and conditions (report:broken-conditions conditions run))))
    (dolist (line broken) (format *error-output* "~A~%" line))
    (finish-output *error-output*)
    (cond ((eq :interrupted (load:run-ended-early run)) +exit-interrupted+)
          (broken +exit-condition+)
          ((and (null conditions)
                (find-if #'plusp (load:run-statuses run) :key #'load:status-row-code))
           +exit-calls-failed+)
          (t 0))))

;;; The command

(defun report-run (run conditions format compare output)
  "Write the report of RUN as the options of `load` want it; return the exit code."
  (call-with-output (lambda (stream) (report:write-report format run stream :before compare))
                    output)
  (run-exit-code run conditions))

(defun load-by-workers (workers target method rps concurrency connections duration data)
  "The RUN of WORKERS, addresses, that call METHOD of grpc.testing.BenchmarkService at TARGET, as
the options of `load` say."
  (let* ((path (subseq (method-path method) 1))
         (request (handler-case (grpc:parse-json-message 'testing:simple-request (or data "{}"))
                    (grpc:protobuf-error (error) (refuse "the data of workers: ~A" error))))
         (payload (testing:simple-request-payload request))
         (service "grpc.testing.BenchmarkService/")
         (streaming (string= path (concatenate 'string service "StreamingCall"))))
    (unless (or streaming (string= path (concatenate 'string service "UnaryCall")))
      (refuse "workers call ~AUnaryCall and ~:*~AStreamingCall only" service))
    (unless (and duration (plusp duration))
      (refuse "--workers goes with -z, for how long they are to call"))
    (handler-case
        (drive-workers workers target
                       :streaming streaming :rate rps :connections connections
                       :concurrency (or concurrency 50) :seconds (ceiling duration)
                       :request-size (if payload (length (testing:payload-body payload)) 0)
                       :response-size (testing:simple-request-response-size request))
      (grpc:rpc-error (error) (fail-command "a worker: ~A" error)))))

(defun nanoseconds-of (seconds)
  (if seconds (seconds-ns seconds) 0))

(defun spread-targets (target balance config connect-timeout)
  "The targets that connections go to in turn: each address of TARGET, text, if the policy that
BALANCE or CONFIG names shares calls among them, else TARGET, whose first address that answers has
them all."
  (let* ((parsed (loop:parse-target target))
         (balancing (and config (config:service-config-balancing config)))
         (policy (or balance (and balancing (config:policy-config-name balancing)))))
    (if (or (null policy) (string-equal "pick_first" (substitute #\_ #\- (string policy))))
        (list parsed)
        (load:single-targets parsed (seconds-ns connect-timeout)))))

(defun shorter-timeout (timeout config path)
  "The seconds that calls of the method at PATH may take, 0 for no limit: TIMEOUT, or less if CONFIG
says so."
  (let* ((method (and config (config:find-method-config config path)))
         (ns (and method (config:method-config-timeout-ns method))))
    (cond ((null ns) timeout)
          ((zerop timeout) (ns-seconds ns))
          (t (min timeout (ns-seconds ns))))))

(defun refuse-retries (config path)
  "Refuse CONFIG if it has calls of the method at PATH retried or hedged, which would hide how each
fared."
  (let ((method (and config (config:find-method-config config path))))
    (when (and method (or (config:method-config-retry method)
                          (config:method-config-hedging method)))
      (refuse "--service-config: a load counts each call as it fared, and neither retries nor ~
               hedges; leave retryPolicy and hedgingPolicy out"))))

(defun loads-credentials (tls-ca tls-cert tls-key tls-name skip-tls)
  (if skip-tls
      (grpc:tls-credentials :verify nil :certificate tls-cert :key tls-key :server-name tls-name)
      (client-credentials tls-ca tls-cert tls-key tls-name)))

(defun run-rounds (plan rounds on-progress)
  "The run of PLAN or, of several ROUNDS, all of them as one."
  (load:merge-rounds (loop repeat rounds
                           for run = (load:perform-run plan :on-progress on-progress)
                           collect run
                           until (load:run-ended-early run))))

(defun method-path (method)
  "The :path of METHOD, a full name with dots."
  (let ((dot (position #\. method :from-end t)))
    (format nil "/~A/~A" (subseq method 0 dot) (subseq method (1+ dot)))))

(defun load-options (&rest plist)
  "What a report tells of the options in PLIST: an alist from ghz's names to JSON of ghz's types,
without those that were not given."
  (flet ((json (key value)
           (cond ((member key '(:timeout :duration :warm-up :together))
            (floor (* value +ns-per-second+)))
                 ((member key '(:data :metadata))
                  (handler-case (parse-json value) (clgrpc-error () value)))
                 ((eq t value) :true)
                 ((keywordp value) (string-downcase value))
                 ((rationalp value) (round value))
                 (t value))))
    (loop for (key value) on plist by #'cddr
          when value
            collect (cons (string-downcase key) (json key value)))))

(define-command "load"
    (((target "TARGET" #'parse-channel-target "Where the server listens.")
      (method "METHOD" #'split-method "What to call: package.Service/Method."))
     (((total nil "-n") "N" (integer-parser 1 1000000000000) nil
       "How many calls; 200 without -z.")
      ((concurrency nil "-c") "N" (integer-parser 1 1000000) nil
       "How many calls may be under way at once, each by a worker; 50 without --rps, with --rps as
      many as are due.")
      ((rps nil "-r") "N" #'parse-rate nil
       "Begin calls at this rate, whatever becomes of those before: an open loop. Latencies count
      from when each call was due. Without it each worker makes one call after the other.")
      ((duration nil "-z") "DURATION" #'parse-duration nil
       "For how long calls begin, such as 10s or 1m30s; then -n does not count.")
      ((max-duration nil "-x") "DURATION" #'parse-duration nil
       "End the run after so long even if -n calls have not been made.")
      (duration-stop "HOW" (choice-parser :wait :close :ignore) :wait
                     "What becomes of calls under way at the end: wait for them, close them, so that
      they fail, or ignore them.")
      ((data nil "-d") "JSON" #'identity nil
       "The request, or an array of requests: calls take them in turn, or each stream sends them
      all. @ or - reads them from standard input. Templates such as {{.RequestNumber}} are filled
      in for each call; doc/load.md lists them.")
      ((data-file nil "-D") "FILE" #'identity nil "The same from a file.")
      ((binary nil "-b") "[BOOLEAN]" #'parse-boolean nil
       "Read the request from standard input as octets of protobuf; of a stream of requests each
      behind its length as a varint.")
      ((binary-file nil "-B") "FILE" #'identity nil "The same from a file.")
      ((metadata nil "-m") "JSON" #'identity nil
       "Metadata, an object of strings; may have templates.")
      ((metadata-file nil "-M") "FILE" #'identity nil "The same from a file.")
      ((headers "-H") "'NAME: VALUE'" #'parse-header '()
       "Metadata to send; may be given several times. The value of a name that ends in -bin is in
      base64.")
      (proto "FILE" #'identity nil
             "The .proto file that declares the service; without it, the server's reflection is
      asked.")
      (protoset "FILE" #'identity nil "The same as a compiled FileDescriptorSet.")
      ((import-path nil "-i" "--import-paths") "DIR[:DIR…]" #'parse-directories nil
       "Where the imports of --proto are found first.")
      (connections "N" (integer-parser 1 100000) 1 "Connections; workers are spread over them.")
      ((loops nil "--cpus") "N" (integer-parser 1 256) 1
       "Event loops, each with a thread and its share of the connections.")
      ((timeout nil "-t") "DURATION" #'parse-duration 20
       "How long a call may take; 0 for no limit.")
      (connect-timeout "DURATION" #'parse-duration 10 "How long connecting may take.")
      (load-schedule "KIND" (choice-parser :const :step :line) :const
                     "How the rate changes: const; step, by --load-step every --load-step-duration;
      line, by --load-step a second.")
      (load-start "N" #'parse-rate nil "The rate to begin with.")
      (load-step "N" #'parse-step nil "What is added; may be negative.")
      (load-end "N" #'parse-rate nil "The rate at which it stays.")
      (load-step-duration "DURATION" #'parse-duration 1 "How long a step of the rate is.")
      (load-max-duration "DURATION" #'parse-duration nil "After which the rate stays.")
      (concurrency-schedule "KIND" (choice-parser :const :step :line) :const
                            "How the number of workers changes, as --load-schedule.")
      (concurrency-start "N" #'parse-rate nil "The workers to begin with.")
      (concurrency-step "N" #'parse-step nil "How many are added; may be negative.")
      (concurrency-end "N" #'parse-rate nil "The number at which it stays.")
      (concurrency-step-duration "DURATION" #'parse-duration 1 "How long such a step is.")
      (concurrency-max-duration "DURATION" #'parse-duration nil "After which the number stays.")
      (async "[BOOLEAN]" #'parse-boolean nil
             "With --rps, begin calls when they are due even if -c are under way.")
      (poisson "[BOOLEAN]" #'parse-boolean nil
               "Spread the calls of an open loop by chance, as independent users do, not evenly.")
      (together "DURATION" #'parse-duration 1/1000
                "Calls of an open loop that are due within so long are due together, which costs a
      fraction; 0 begins each at a time of its own.")
      ((skip-first nil "--skipFirst") "N" (integer-parser 0 1000000000) 0
       "Do not count so many calls at the begin.")
      (warm-up "DURATION" #'parse-duration 0 "Do not count calls of so long a time before the run.")
      (rounds "N" (integer-parser 1 1000) 1
              "Make the run so many times, to tell change from noise.")
      (stream-call-count "N" (integer-parser 1 1000000000) nil
                         "How many messages a stream sends, those of the data over and over; or,
      where only the server streams, receives before it is cancelled.")
      (stream-interval "DURATION" #'parse-duration 0 "Between two messages that a stream sends.")
      (stream-call-duration "DURATION" #'parse-duration 0
                            "For how long a stream sends or, where only the server streams, receives
      before it is cancelled.")
      (workers "ADDRESSES" (addresses-parser 1) nil
               "Have these, each `clgrpc qps-worker` or that of another gRPC, call together:
      UnaryCall or StreamingCall of grpc.testing.BenchmarkService, for -z, with -c, --connections
      and --rps, which is by chance, of all; of -d only the sizes count.")
      (stream-dynamic-messages "[BOOLEAN]" #'parse-boolean nil
                               "Fill in templates for each message of a stream, not for each call.")
      ((tls-ca nil "--cacert") "FILE" #'identity nil
       "Speak TLS, and trust the certificates in FILE (PEM), or with `system` the system's.")
      ((tls-cert nil "--cert") "FILE" #'identity nil
       "The certificates to show a server that asks for some.")
      ((tls-key nil "--key") "FILE" #'identity nil
       "The private key of --tls-cert; without it, in that file.")
      ((tls-name nil "--cname") "NAME" #'identity nil
       "The name that the server's certificate must be for.")
      ((skip-tls nil "--skipTLS") "[BOOLEAN]" #'parse-boolean nil
       "Speak TLS with whoever is there, without a look at its certificate.")
      (insecure "[BOOLEAN]" #'parse-boolean nil
                "Speak plaintext; the default, for command lines of ghz.")
      (authority "NAME" #'identity nil "The :authority of calls, by default the target's.")
      fleet
      ((format nil "-O") "FORMAT" (apply #'choice-parser report:*formats*) :summary
       "How to report: summary, json as ghz writes it with more, pretty, csv, or html, a page.")
      ((output nil "-o") "FILE" #'identity nil "Where to, instead of standard output.")
      (compare "FILE" #'parse-run-argument nil "Compare with the run of this JSON.")
      ((fail-if "--fail-if") "CONDITIONS" #'parse-conditions '()
       "Exit with 4 if one of these holds, such as 'p99 > 10ms, errors > 0'; may be given several
      times.")
      (name "TEXT" #'identity nil "The name of the run, for reports.")
      (tags "JSON" #'identity nil "An object of strings, for reports.")
      (quiet "[BOOLEAN]" #'parse-boolean nil
             "Say nothing on standard error meanwhile; so if that is no terminal.")))
    "Load any server with calls of one method, and report their latencies. Types come from the
server's reflection, --proto or --protoset. With --rps calls begin on time whatever becomes of them,
and latencies count from when they were due; how late the tool itself was is told, and whether it
was the limit. Exits with 0 if all calls ended with OK, 3 if some did not, or with --fail-if 4 if a
condition holds and else 0, 130 if interrupted, 1 if the run could not be made, 2 if the arguments
are wrong."
  (tune-collector)
  (when (and insecure (or tls-ca skip-tls))
    (refuse "--insecure, --tls-ca and --skip-tls exclude each other"))
  (if workers
      (report-run (load-by-workers workers target method rps concurrency connections duration
                                   data)
                  (apply #'append fail-if) format compare output)
      (let* ((conditions (apply #'append fail-if))
             (config (and service-config (config:parse-service-config service-config)))
             (path (method-path method))
             (timeout (progn (refuse-retries config path) (shorter-timeout timeout config path)))
             (rate (load-schedule "load" load-schedule rps load-start load-step load-end
                                  load-step-duration load-max-duration))
             (workers (if (and rate async)
                          nil
                          (load-schedule "concurrency" concurrency-schedule
                                         (or concurrency
                                             (and (null rate) (eq :const concurrency-schedule) 50))
                                         concurrency-start concurrency-step concurrency-end
                                         concurrency-step-duration concurrency-max-duration)))
             (connections (if (and workers (eq :const concurrency-schedule)
                                   (< (load:schedule-value workers 0) connections))
                              (refuse "there are more --connections than workers (-c)")
                              connections))
             (loops (min loops connections))
             (total (cond (duration nil) (total) (t 200)))
             (credentials (loads-credentials tls-ca tls-cert tls-key tls-name skip-tls))
             (pool (load-pool target method proto protoset import-path
                              (list :credentials credentials) headers))
             (rpc-method (find-method-in pool method))
             (parsed (loop:parse-target target))
             (tags (and tags (parse-string-object tags "--tags"))))
        (multiple-value-bind (fields maker)
            (handler-case (load:compile-metadata (load-metadata metadata metadata-file headers))
              (load:template-error (error) (refuse "~A" error)))
          (let* ((plan (load:make-plan
                        :name name :tags tags :target target
                        :options (load-options
                                  :total total :rps rps :concurrency concurrency
                                  :connections connections :cpus loops :timeout timeout
                                  :duration duration :call (subseq path 1)
                                  :data data :metadata metadata :insecure (null credentials)
                                  :load-schedule load-schedule :async async :poisson poisson
                                  :warm-up warm-up :skip-first skip-first
                                  :together (and rate together))
                        :addresses (spread-targets target balance config connect-timeout)
                        :method rpc-method
                        :payload (load-payload rpc-method pool data data-file binary binary-file)
                        :fields (load:request-fields path (or authority
                                                              (loop:target-authority parsed))
                                                     (nanoseconds-of timeout)
                                                     (if credentials "https" "http")
                                                     (or fields #()))
                        :metadata-maker maker
                        :credentials credentials :server-name (loop:target-host parsed)
                        :timeout-ns (nanoseconds-of timeout)
                        :connect-timeout-ns (seconds-ns connect-timeout)
                        :options-of-http2 (make-channel-options)
                        :lanes loops :connections connections :workers workers
                        :rate rate :arrival (if poisson :poisson :constant)
                        :group-ns (nanoseconds-of together)
                        :total total
                        :duration-ns (let ((seconds (or duration max-duration)))
                                       (and seconds (seconds-ns seconds)))
                        :stop duration-stop
                        :warm-up-ns (nanoseconds-of warm-up) :skip-first skip-first
                        :messages stream-call-count
                        :interval-ns (nanoseconds-of stream-interval)
                        :call-duration-ns (nanoseconds-of stream-call-duration)
                        :fresh-messages stream-dynamic-messages))
                 (progress (and (not quiet)
                                (interactive-stream-p sb-sys:*stderr*)
                                (progress-function total)))
                 (run (unwind-protect (run-rounds plan rounds progress)
                        (when progress (clear-progress)))))
            (report-run run conditions format compare output))))))
