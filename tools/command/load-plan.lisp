;;;; The options of the command `load`, and the plan of clgrpc.load that is made from them. Each
;;;; part of the plan is made by a function that takes the options it needs and returns some of
;;;; MAKE-PLAN's arguments.

(in-package #:clgrpc.tools)

;;; Parsers

(defun parse-rate (string)
  "The positive number in STRING."
  (let* ((what "a number above 0 is expected")
         (value (parse-decimal string what)))
    (unless (plusp value) (refuse "~A, not ~S" what string))
    value))

(defun parse-step (string)
  "The number in STRING, which may be negative."
  (if (uiop:string-prefix-p "-" string)
      (- (parse-decimal (subseq string 1) "a number is expected"))
      (parse-decimal string "a number is expected")))

(defun parse-string-object (string what)
  "The JSON object in STRING, whose values must be strings, as an alist. WHAT names STRING in a
complaint."
  (let ((object (handler-case (parse-json string)
                  (clgrpc-error (error) (refuse "~A is not JSON: ~A" what error)))))
    (unless (and (listp object) (every (lambda (row) (and (consp row) (stringp (car row))
                                                          (stringp (cdr row))))
                                       object))
      (refuse "~A is an object of strings in JSON, not ~S" what string))
    object))

(defun parse-conditions (string)
  "Parse STRING, the text of --fail-if, and return its conditions."
  (handler-case (report:parse-conditions string)
    (report:condition-syntax-error (error) (refuse "~A" error))))

(defun nanoseconds-of (seconds)
  (if seconds (seconds-ns seconds) 0))

;;; Options from a file

(defun config-value-text (value)
  "VALUE, JSON, in the form that it would have on the command line."
  (cond ((eq :true value) "true")
        ((eq :false value) "false")
        ((stringp value) value)
        ((and (simple-vector-p value) (every #'stringp value))
         (format nil "~{~A~^:~}" (coerce value 'list)))
        (t (write-json value))))

(defun parse-config-file (file)
  "The arguments in FILE, a JSON object whose members have the names of options. The member `host`
is the address of the server."
  (let* ((text (read-text-file file))
         (object (handler-case (parse-json text)
                   (clgrpc-error (error) (refuse "~A is not JSON: ~A" file error)))))
    (unless (and (listp object) (every #'consp object))
      (refuse "~A has no object of options in JSON" file))
    (loop for (name . value) in object
          append (cond ((eq :null value) '())
                       ((string= name "host") (list (config-value-text value)))
                       ((string= name "config") (refuse "~A names another --config" file))
                       (t (list (format nil "--~A=~A" name (config-value-text value))))))))

;;; Types and data

(defun protoset-pool (file)
  "The types of the FileDescriptorSet in FILE."
  (handler-case (protobuf:make-type-pool (read-octets-file file))
    (protobuf:protobuf-error (error) (refuse "~A is not a descriptor set: ~A" file error))))

(defun reflection-arguments (credentials connect-timeout)
  "The arguments of MAKE-CHANNEL for requests to reflection: CREDENTIALS, and CONNECT-TIMEOUT in
seconds if a channel accepts that value."
  (let ((seconds (max 1/10 (min 600 connect-timeout))))
    (list :credentials credentials :connect-timeout-seconds seconds
          :preface-timeout-seconds seconds)))

(defun load-pool (credentials &key target method proto protoset import-path headers
                    reflect-metadata connect-timeout &allow-other-keys)
  "A pool of types in which METHOD, a full name with dots, is declared. Without a file, ask TARGET
by reflection, over a channel with CREDENTIALS."
  (cond (proto (proto-pool proto import-path))
        (protoset (protoset-pool protoset))
        (t (call-with-reflector
            (lambda (reflector)
              (ask-for-service reflector (service-of-method method)))
            target (reflection-arguments credentials connect-timeout)
            (append (and reflect-metadata
                         (parse-string-object reflect-metadata "--reflect-metadata"))
                    headers)
            30))))

(defun load-text (method data data-file)
  "The requests of METHOD in JSON: DATA, the text itself, or @ or - for standard input; else the
contents of DATA-FILE. If DATA and DATA-FILE are nil, return no request if METHOD takes a stream,
otherwise one empty message."
  (cond ((member data '("@" "-") :test #'equal)
         (read-standard-text))
        (data)
        (data-file (read-text-file data-file))
        ((member (method:rpc-method-kind method) '(:unary :server-streaming)) "{}")
        (t "[]")))

(defun load-payload (method pool &key data data-file binary binary-file disable-template-data
                       enable-compression &allow-other-keys)
  "The messages of calls of METHOD, whose types are in POOL."
  (when (< 1 (count-if #'identity (list data data-file binary binary-file)))
    (refuse "-d, -D, -b and -B exclude each other"))
  (handler-case
      (let ((payload
              (cond (binary (load:binary-payload (read-standard-octets) method))
                    (binary-file (load:binary-payload (read-octets-file binary-file) method))
                    (t (load:json-payload (load-text method data data-file) method
                                          (pool-finder pool)
                                          :templates (not disable-template-data))))))
        (if enable-compression (load:compress-payload payload) payload))
    (load:template-error (error) (refuse "~A" error))
    (protobuf:protobuf-error (error) (refuse "the data are not a ~A: ~A"
                                             (protobuf:message-type-name
                                              (method:rpc-method-request-type method))
                                             error))))

(defun load-metadata (&key metadata metadata-file headers &allow-other-keys)
  "The metadata that calls send, as an alist."
  (when (and metadata metadata-file) (refuse "-m and -M exclude each other"))
  (append (cond (metadata (parse-string-object metadata "--metadata"))
                (metadata-file (parse-string-object (read-text-file metadata-file)
                                                    metadata-file)))
          headers))

;;; Mixes of methods

(defstruct (weighted-method (:copier nil))
  "One row of --mix."
  (method "" :type string)              ; a full name with dots
  ;; the entry's share of the calls, relative to other entries' weights
  (weight 1 :type (integer 1 1000))
  (data nil :type (or null string)))    ; the requests, JSON; nil as for LOAD-TEXT without data

(defun parse-weighted-method (json)
  "The row of --mix in JSON, an object."
  (flet ((member-of (name)
           (and (consp json) (every #'consp json) (cdr (assoc name json :test #'string=)))))
    (let ((method (member-of "method")) (weight (or (member-of "weight") 1)))
      (unless (stringp method) (refuse "each part of a mix is an object with a \"method\""))
      (when-let ((stranger (find-if-not (lambda (name)
                                          (member name '("method" "weight" "data") :test #'string=))
                                        json :key #'car)))
        (refuse "a part of a mix has method, weight and data, not ~S" (car stranger)))
      (unless (typep weight '(integer 1 1000))
        (refuse "the weight of ~A is an integer from 1 to 1000" method))
      (make-weighted-method :method (split-method method) :weight weight
                            :data (let ((data (assoc "data" json :test #'string=)))
                                    (and data (write-json (cdr data))))))))

(defun parse-mix (string)
  "The rows of --mix in STRING, which is an array in JSON or the name of a file with such an array."
  (let* ((text (if (uiop:string-prefix-p "[" (string-left-trim " " string))
                   string
                   (read-text-file string)))
         (array (handler-case (parse-json text)
                  (clgrpc-error (error) (refuse "the mix is not JSON: ~A" error)))))
    (unless (and (simple-vector-p array) (plusp (length array)))
      (refuse "a mix is an array of objects in JSON"))
    (map 'list #'parse-weighted-method array)))

(defun methods-called (&key mix method &allow-other-keys)
  "The full names with dots of the called methods."
  (if mix (mapcar #'weighted-method-method mix) (list method)))

;;; Schedules

(defun load-schedule (name option kind value start step end step-seconds max-seconds)
  "The schedule that the options with names --NAME… describe. If it is constant, VALUE, the value of
OPTION, is its quantity; if VALUE is nil as well, return nil."
  (flet ((number (value) (float value 1d0)))
    (cond ((eq :const kind)
           (when (or start step end max-seconds)
             (refuse "--~A-start, -step, -end and -max-duration go with --~:*~A-schedule step or ~
                      line" name))
           (and value (load:make-schedule :start (number value))))
          ((not (and start step))
           (refuse "--~A-schedule ~(~A~) needs --~2:*~A-start and --~:*~A-step" name kind))
          (value (refuse "--~A-schedule ~(~A~) begins with --~2:*~A-start, and ~*~A does not go ~
                          with it" name kind option))
          (t (load:make-schedule :kind kind :start (number start) :step (number step)
                                 :end (and end (number end))
                                 :step-seconds (number step-seconds)
                                 :max-seconds (and max-seconds (number max-seconds)))))))

(defun load-rate (&key load-schedule rps load-start load-step load-end load-step-duration
                    load-max-duration &allow-other-keys)
  "The schedule of the rate of an open loop, or nil if the loop is closed."
  (load-schedule "load" "--rps" load-schedule rps load-start load-step load-end load-step-duration
                 load-max-duration))

(defconstant +default-workers+ 50 "The number of workers if no option sets it.")

(defun load-workers (rate &key async concurrency concurrency-schedule concurrency-start
                       concurrency-step concurrency-end concurrency-step-duration
                       concurrency-max-duration &allow-other-keys)
  "The schedule of the number of workers of a run at RATE, a schedule or nil. Nil means that there
is a worker for each call that is due."
  (unless (and rate async)
    (load-schedule "concurrency" "-c" concurrency-schedule
                   (or concurrency
                       (and (null rate) (eq :const concurrency-schedule) +default-workers+))
                   concurrency-start concurrency-step concurrency-end concurrency-step-duration
                   concurrency-max-duration)))

(defconstant +even-rate+ 4000
  "The highest rate at which each call begins at a time of its own. Waking up for a call costs the
tool about 50 µs of CPU time, and therefore calls at this rate take a fifth of a core.")

(defconstant +burst-ns+ 1000000
  "The time within which calls that are due begin together if the rate is above +EVEN-RATE+.")

(defun load-width (&rest options &key connections loops poisson together concurrency-schedule
                   details &allow-other-keys)
  "The arguments of MAKE-PLAN for concurrency and for the times at which calls begin."
  (let* ((rate (apply #'load-rate options))
         (workers (apply #'load-workers rate options)))
    (when (and workers (eq :const concurrency-schedule)
               (< (load:schedule-value workers 0) connections))
      (refuse "there are more --connections than workers (-c)"))
    (loop for (given name) in `((,poisson "--poisson") (,(getf options :async) "--async")
                                (,(and together (plusp together)) "--together"))
          when (and given (null rate))
            do (refuse "~A needs --rps or --load-schedule, which say when calls begin" name))
    (when (and together (< 60 together)) (refuse "--together is a minute at most"))
    (when (and poisson together (plusp together))
      (refuse "--together and --poisson exclude each other: bursts are not random times"))
    (append (list :rate rate :workers workers :connections connections
                  :generators (min loops connections)
                  :arrival (if poisson :poisson :constant)
                  :samples (max 2 (ceiling details (min loops connections))))
            (cond (poisson (list :group-ns 0))
                  (together (list :group-ns (nanoseconds-of together)))
                  (t (list :group-ns +burst-ns+ :group-above +even-rate+))))))

(defun plan-length (&key total duration max-duration duration-stop warm-up skip-first
                    &allow-other-keys)
  "The arguments of MAKE-PLAN that determine the end of the run and the calls that do not count."
  (let ((seconds (or duration max-duration)))
    (when (eql 0 seconds) (refuse "-z and -x are longer than 0"))
    (when (and total (null duration) (<= total skip-first))
      (refuse "--skip-first leaves none of the calls (-n) to count"))
    (list :total (cond (duration nil) (total) (t 200))
          :duration-ns (and seconds (seconds-ns seconds)) :stop duration-stop
          :warm-up-ns (nanoseconds-of warm-up) :skip-first skip-first)))

(defun load-streams (&key stream-call-count stream-interval stream-call-duration
                       stream-dynamic-messages &allow-other-keys)
  "The arguments of MAKE-PLAN for streams."
  (list :messages stream-call-count :interval-ns (nanoseconds-of stream-interval)
        :call-duration-ns (nanoseconds-of stream-call-duration)
        :fresh-messages stream-dynamic-messages))


;;; Targets and channels

(defun method-path (method)
  "The header field :path for METHOD, a full name with dots."
  (let ((dot (position #\. method :from-end t)))
    (format nil "/~A/~A" (subseq method 0 dot) (subseq method (1+ dot)))))

(defun spread-targets (target balance config connect-timeout)
  "A list of targets, to which connections are made in turn. If the policy that BALANCE or CONFIG
names shares calls among the addresses of TARGET, text, each address is a target. In all other cases
the only target is TARGET, and its first address that answers gets all calls."
  (let* ((parsed (loop:parse-target target))
         (balancing (and config (config:service-config-balancing config)))
         (policy (or balance (and balancing (config:policy-config-name balancing)))))
    (if (or (null policy) (string-equal "pick_first" (substitute #\_ #\- (string policy))))
        (list parsed)
        (load:single-targets parsed (seconds-ns connect-timeout)))))

(defun with-connections (options addresses)
  "OPTIONS, completed with a number of connections: by default one to each of ADDRESSES, but not
more than there are workers. Print a line on standard error if some of ADDRESSES get no connection."
  (let* ((count (length addresses))
         (most (if (eq :const (getf options :concurrency-schedule))
                   (or (getf options :concurrency) +default-workers+)
                   count))
         (connections (or (getf options :connections) (max 1 (min count most)))))
    (when (< connections count)
      (tell "clgrpc load: only ~D of the ~D addresses are called, one for each connection"
            connections count))
    (list* :connections connections options)))

(defun shorter-timeout (timeout config path)
  "The seconds that calls of the method at PATH may take, 0 for no limit: TIMEOUT, or the timeout in
CONFIG if that is shorter."
  (let* ((method (and config (config:find-method-config config path)))
         (ns (and method (config:method-config-timeout-ns method))))
    (cond ((null ns) timeout)
          ((zerop timeout) (ns-seconds ns))
          (t (min timeout (ns-seconds ns))))))

(defun refuse-retries (config path)
  "Refuse CONFIG if it has retries or hedging for the method at PATH, which would hide the failures
of single calls."
  (let ((method (and config (config:find-method-config config path))))
    (when (and method (config:method-config-policy method))
      (refuse "--service-config: a load counts each call separately, without retries and hedging; ~
               remove retryPolicy and hedgingPolicy"))))

(defun loads-credentials (&key tls-ca tls-cert tls-key tls-name skip-tls insecure
                            &allow-other-keys)
  "The credentials of connections, nil for plaintext."
  (when (and insecure (or tls-ca skip-tls))
    (refuse "--insecure, --tls-ca and --skip-tls exclude each other"))
  (if skip-tls
      (grpc:tls-credentials :verify nil :certificate tls-cert :key tls-key :server-name tls-name)
      (client-credentials tls-ca tls-cert tls-key tls-name)))

(defun disobeyed-members (config path)
  "Texts about the settings of CONFIG that a load ignores, for calls of the method at PATH and for
channels."
  (let* ((method (config:find-method-config config path))
         (balancing (config:service-config-balancing config))
         (policy (and balancing (config:policy-config-name balancing))))
    (loop for (given text)
            in `((,(config:service-config-health-service config)
                  "healthCheckConfig (connections are used whatever the server's health)")
                 (,(and policy (not (member policy '("pick_first" "round_robin") :test #'string=)))
                  ,(format nil "the policy ~A (connections go to addresses in turn)"
                           (and policy (policy-text policy))))
                 (,(config:service-config-throttling config)
                  "retryThrottling (nothing is retried)")
                 (,(and method (eq t (config:method-config-wait-for-ready method)))
                  "waitForReady (calls fail while their connection cannot be made)")
                 (,(and method (or (config:method-config-max-request-octets method)
                                   (config:method-config-max-response-octets method)))
                  "maxRequestMessageBytes and maxResponseMessageBytes (sizes are not checked)"))
          when given collect text)))

(defun tell-disobeyed (config path)
  "Print on standard error which settings of CONFIG a load ignores for the method at PATH."
  (let ((texts (disobeyed-members config path)))
    (when texts (tell "clgrpc load ignores settings of the service config: ~{~A~^; ~}" texts))))

;;; The options in reports

(defparameter *told-options*
  '((:host :target) (:proto :proto) (:protoset :protoset)
    (:import-paths :import-path) (:cacert :tls-ca) (:cert :tls-cert) (:key :tls-key)
    (:cname :tls-name) ("skipTLS" :skip-tls) (:authority :authority) (:rps :rps)
    (:load-schedule :load-schedule) (:load-start :load-start) (:load-end :load-end)
    (:load-step :load-step) (:load-step-duration :load-step-duration ns)
    (:load-max-duration :load-max-duration ns) (:concurrency :concurrency)
    (:concurrency-schedule :concurrency-schedule) (:concurrency-start :concurrency-start)
    (:concurrency-end :concurrency-end) (:concurrency-step :concurrency-step)
    (:concurrency-step-duration :concurrency-step-duration ns)
    (:concurrency-max-duration :concurrency-max-duration ns) (:async :async)
    (:connections :connections) (:duration :duration ns) (:max-duration :max-duration ns)
    (:timeout :timeout ns) (:dial-timeout :connect-timeout ns) (:data :data json)
    (:binary :binary) (:metadata :metadata json) ("CPUs" :loops) (:name :name)
    ("skipFirst" :skip-first) ("count-errors" :count-errors)
    ("enable-compression" :enable-compression) (:poisson :poisson) (:warm-up :warm-up ns)
    (:balance :balance) (:stream-call-count :stream-call-count)
    (:stream-interval :stream-interval ns) (:stream-call-duration :stream-call-duration ns))
  "Rows for the options in reports. Each has the option's name in reports, which is ghz's name if
ghz has the option; its keyword; and the form of its value.")

(defun told-value (value how)
  "VALUE of an option as JSON, of the type that ghz has for it."
  (cond ((eq 'ns how) (nanoseconds-of value))
        ((eq 'json how) (handler-case (parse-json value) (clgrpc-error () value)))
        ((eq t value) :true)
        ((keywordp value) (policy-text value))
        ((listp value) (coerce value 'simple-vector))
        ((and (rationalp value) (not (integerp value))) (float value 1d0))
        (t value)))

(defun told-p (key options)
  "True if reports show the option KEY of OPTIONS: the option was given, or has a default that
matters in this run."
  (case key
    ((:load-step-duration) (eq :step (getf options :load-schedule)))
    ((:concurrency-step-duration) (eq :step (getf options :concurrency-schedule)))
    (t (not (member (getf options key) '(nil 0))))))

(defun told-options (plan options)
  "The options in reports, an alist from names to JSON. They come from OPTIONS, the command's plist,
and from PLAN, the plist that was made from OPTIONS."
  (append (loop for (name key how) in *told-options*
                when (told-p key options)
                  collect (cons (if (stringp name) name (string-downcase name))
                                (told-value (getf options key) how)))
          (list (cons "call" (format nil "~{~A~^, ~}"
                                     (loop for method in (apply #'methods-called options)
                                           collect (subseq (method-path method) 1))))
                (cons "insecure" (if (getf plan :credentials) :false :true)))
          (when (getf options :mix)
            (list (cons "weights" (map 'simple-vector #'weighted-method-weight
                                       (getf options :mix)))))
          (when (getf plan :total) (list (cons "total" (getf plan :total))))
          (when (and (getf options :together) (getf plan :rate))
            (list (cons "together" (getf plan :group-ns))))))

;;; The plan

(defun load-route (config &key target balance connect-timeout &allow-other-keys)
  "The arguments of MAKE-PLAN for connections and their targets. CONFIG is a service config or nil."
  (list :target target :addresses (spread-targets target balance config connect-timeout)
        :server-name (loop:target-host (loop:parse-target target))
        :connect-timeout-ns (seconds-ns connect-timeout)
        :options-of-http2 (make-channel-options
                           :preface-timeout-seconds (max 1/10 (min 600 connect-timeout)))))

(defun load-request (credentials timeout weight
                     &rest options &key target method authority disable-template-data
                                     enable-compression &allow-other-keys)
  "The request for calls of METHOD with CREDENTIALS; a call may take TIMEOUT seconds, and METHOD has
WEIGHT in a mix."
  (let* ((pool (apply #'load-pool credentials options))
         (rpc-method (find-method-in pool method)))
    (multiple-value-bind (fields maker)
        (handler-case (load:compile-metadata (apply #'load-metadata options)
                                             :templates (not disable-template-data))
          (load:template-error (error) (refuse "~A" error)))
      (load:make-request
       rpc-method
       :weight weight
       :payload (apply #'load-payload rpc-method pool options)
       :fields (load:request-head
                (method-path method)
                (or authority (loop:target-authority (loop:parse-target target)))
                (nanoseconds-of timeout) (if credentials "https" "http") (or fields #())
                :encoding (and enable-compression "gzip"))
       :metadata-maker maker))))

(defun load-requests (credentials timeout &rest options &key mix &allow-other-keys)
  "The arguments of MAKE-PLAN for the called methods, with CREDENTIALS and TIMEOUT in seconds."
  (list :timeout-ns (nanoseconds-of timeout)
        :requests
        (if mix
            (loop for part in mix
                  collect (apply #'load-request credentials timeout (weighted-method-weight part)
                                 :method (weighted-method-method part)
                                 :data (weighted-method-data part)
                                 options))
            (list (apply #'load-request credentials timeout 1 options)))))

(defun make-load-plan (&rest options &key service-config timeout name tags &allow-other-keys)
  "The plan for OPTIONS, a plist of the options of the command `load`."
  (let* ((config (and service-config (config:parse-service-config service-config)))
         (paths (mapcar #'method-path (apply #'methods-called options)))
         (tags (and tags (parse-string-object tags "--tags")))
         (credentials (apply #'loads-credentials options))
         (route (apply #'load-route config options))
         (options (with-connections options (getf route :addresses)))
         (width (apply #'load-width options)))
    (dolist (path (and config paths))
      (refuse-retries config path)
      (tell-disobeyed config path)
      ;; of a mix, the shortest
      (setf timeout (shorter-timeout timeout config path)))
    (let ((plan (append (list :name name :tags tags :credentials credentials)
                        width
                        (apply #'plan-length options)
                        (apply #'load-streams options)
                        (apply #'load-requests credentials timeout options)
                        route)))
      (apply #'load:make-plan :options (told-options plan options) plan))))
