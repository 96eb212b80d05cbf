;;;; The command `serve`: the example, benchmark and interoperability services on an address, until
;;;; SIGTERM or SIGINT. The main thread runs a loop of its own that only waits for signals, whose
;;;; handlers post to it; so an idle server makes no system calls.

(in-package #:clgrpc.tools)

;;; What there is to serve

(defstruct (offer (:copier nil))
  "NAME, a word of the command line; MAKER, a function that returns service objects; EXECUTION, an
alist for START-SERVER, or :inline for all methods."
  (name "" :type string)
  (maker nil :type function)
  (execution '() :type (or list (eql :inline))))

(defparameter *offers*
  (flet ((maker (&rest classes) (lambda () (mapcar #'make-instance classes))))
    (list (make-offer :name "greeter" :maker (maker 'examples:greeter) :execution :inline)
          (make-offer :name "route-guide" :maker (maker 'examples:route-guide)
                      :execution '((routeguide.route-guide:get-feature . :inline)))
          (make-offer :name "bench" :maker (maker 'bench-route-guide 'bench-service)
                      :execution :inline)
          (make-offer :name "interop" :maker (maker 'interop-service)
                      :execution *interop-execution*))))

(defun offer-names ()
  (mapcar #'offer-name *offers*))

(defun parse-services (string)
  "The offers that STRING, names with commas between, means."
  (let ((offers (loop for name in (uiop:split-string string :separator ",")
                      collect (or (find name *offers* :key #'offer-name :test #'string=)
                                  (refuse "there is no service ~S; there are ~{~A~^, ~}" name
                                          (offer-names))))))
    (unless (= (length offers) (length (remove-duplicates offers)))
      (refuse "a service is named twice in ~S" string))
    offers))

(defun offered-services (offers)
  "The service objects of OFFERS, and as second value where their methods run, an alist for
START-SERVER. Refuses offers of the same service."
  (let ((services '()) (execution '()))
    (dolist (offer offers)
      (let ((made (funcall (offer-maker offer))))
        (setf services (append services made)
              execution (append execution (placement offer made)))))
    (refuse-duplicates offers services)
    (values services execution)))

(defun placement (offer services)
  "Where the methods of OFFER, whose service objects are SERVICES, run."
  (if (eq :inline (offer-execution offer))
      (loop for service in services
            append (loop for method in (service:service-methods service)
                         collect (cons (service:rpc-method-function-name method) :inline)))
      (offer-execution offer)))

(defun refuse-duplicates (offers services)
  "Refuse OFFERS if two of their SERVICES serve the same."
  (flet ((names (service)
           (remove-duplicates (mapcar #'service:rpc-method-service-name
                                      (service:service-methods service))
                              :test #'string=)))
    (loop for (name . others) on (mapcan #'names services)
          when (member name others :test #'string=)
            do (refuse "~{~A~^ and ~} cannot go together: more than one serves ~A"
                       (mapcar #'offer-name offers) name))))

;;; Serving

(defun print-statistics (server)
  (let ((statistics (grpc:server-statistics server)))
    (format t "turns=~D calls=~D~%" (getf statistics :turns) (getf statistics :calls))
    (finish-output)))

(defun await-ending-signal (ready &optional report prepare)
  "Call READY once this listens to signals, REPORT at each SIGUSR1; return when the process is told
to end. PREPARE is called first, with a function that any thread may call to have this return."
  (let ((control (loop:make-event-loop :name "clgrpc signals"))
        (endings (list os:+sigterm+ os:+sigint+)))
    (dolist (signal endings)
      (loop:on-signal control signal (lambda () (loop:stop-event-loop control))))
    (when report (loop:on-signal control os:+sigusr1+ report))
    (when prepare
      (funcall prepare (lambda ()
                         (loop:post control (lambda () (loop:stop-event-loop control))))))
    (funcall ready)
    (loop:run-event-loop control)
    ;; who is told to end again does not drain
    (dolist (signal endings) (loop:on-signal control signal nil))))

;;; In etcd

(defstruct (place (:copier nil))
  "ENDPOINTS, those of an etcd, for MAKE-ETCD; NAME, under which a server is registered there."
  (endpoints nil :type (or string list))
  (name "" :type string))

(defun parse-place (string)
  "The PLACE that STRING, a target such as etcd://127.0.0.1:2379/greeter, means."
  (parse-channel-target string)
  (handler-case
      (multiple-value-bind (endpoints name) (discovery:parse-etcd-target string)
        (unless endpoints (refuse "~A says of no etcd where it is" string))
        (make-place :endpoints endpoints :name name))
    (misuse (error) (refuse "~A" error))))

(defun call-with-registration (server place address weight zone function)
  "Call FUNCTION while SERVER is registered at PLACE, with a line that says so; with nil if PLACE is
nil. FUNCTION stops SERVER. ADDRESS, WEIGHT and ZONE are as for DISCOVERY:REGISTER."
  (if (null place)
      (funcall function nil)
      (etcd:with-etcd (etcd (place-endpoints place))
        (let ((registration (discovery:register server (place-name place)
                                                :etcd etcd :address address
                                                :weight weight :zone zone)))
          (funcall function
                   (format nil "~:[to be registered~;registered~] as ~A"
                           (discovery:await-registration registration :timeout 5)
                           (discovery:registration-key registration)))))))

(defun serve-until-signal (server lines)
  "Say where SERVER listens, and then LINES; return when the process is told to end."
  (await-ending-signal (lambda ()
                         (format t "~{listening on ~A~%~}~{~A~%~}" (grpc:server-addresses server)
                                 lines)
                         (finish-output))
                       (lambda () (print-statistics server))))

;;; For measurements of memory

(defun collect-at-each-line ()
  "For each line on standard input collect all garbage and say what is left."
  (loop while (read-line *standard-input* nil)
        do (let ((start-ns (monotonic-ns)))
             (sb-ext:gc :full t)
             (format t "heap=~D milliseconds=~,1F~%" (sb-kernel:dynamic-usage)
                     (/ (- (monotonic-ns) start-ns) 1d6))
             (finish-output))))

;;; For logs of what is said

(defun open-binary-log (file)
  "A binary log to FILE of the calls that GRPC_BINARY_LOG_FILTER is for, all if it is not set."
  (handler-case
      (grpc:make-binary-log :file (sb-ext:parse-native-namestring file)
                            :filter (or (sb-ext:posix-getenv "GRPC_BINARY_LOG_FILTER") "*"))
    (misuse (condition) (refuse "~A" condition))))

(define-command "serve"
    (((services "SERVICES" #'parse-services
                "What to serve, names with commas between:
      greeter      helloworld.Greeter; the name `delay:MS` is greeted after MS milliseconds
      route-guide  routeguide.RouteGuide as in the gRPC tutorials, with 100 features
      bench        RouteGuide that remembers nothing, and grpc.testing.BenchmarkService
      interop      grpc.testing.TestService, for the interoperability tests of gRPC, with
                   xds.service.orca.v3.OpenRcaService"))
     ((listen "ADDRESSES" (addresses-parser 0) "127.0.0.1:50051"
              "Where to listen: HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME, several
      with commas between; port 0 picks a free one.")
      (loops "N" (integer-parser 1 1024) 1
             "Event loops, each a thread, that share the connections.")
      (max-receive-octets "N" (limit-parser :max-receive-octets)
                          (option-default :max-receive-octets)
                          "The largest message accepted, in octets.")
      (limits "NAME=VALUE" #'parse-limits '()
              "Any options that doc/limits.md has for servers, several with commas between.")
      telemetry
      (binary-log "FILE" #'identity nil
                  "Write a binary log (gRFC A16) to FILE, of all calls or of those that
      GRPC_BINARY_LOG_FILTER is for; `clgrpc binlog FILE` prints it.")
      (collect "[true|false]" #'parse-boolean nil
               "For measurements: for each line on standard input collect all garbage and print
      `heap=N milliseconds=N`, the octets in use after it and how long it took.")
      (channelz "[true|false]" #'parse-boolean nil
                "Serve channelz as well, which tells whoever asks what the channels, servers and
      connections of the process are and do.")
      (console "ADDRESSES" (addresses-parser 0) nil
               "Show in a browser what the process does, where these are; prints the address to
      open, which has a secret in it. If others than this machine reach ADDRESSES, they may look.")
      (register "TARGET" #'parse-place nil
                "Register the server in etcd: etcd://HOST:PORT/NAME is also the target by which
      clients find it. At the end it is said to drain there before it stops, and then withdrawn.")
      (register-as "ADDRESS" (address-parser 1) nil
                   "The address by which clients reach it, if it is not the first it listens on.")
      (weight "N" (integer-parser 1 65535) nil "The weight with which it is registered.")
      (zone "NAME" #'identity nil "The zone with which it is registered.")
      server-tls))
    "Serve gRPC, with health and reflection beside the services named. At SIGTERM or SIGINT lets
running calls end and exits with 0. Prints `listening on ADDRESS` for each when ready, and at
SIGUSR1 a line `turns=N calls=N`: the turns of the event loops and the calls served."
  (multiple-value-bind (services execution) (offered-services services)
    (tune-collector)
    (begin-logging log-level log-format access-log)
    (let* ((counted (and (or otlp metrics console) (grpc:make-metrics)))
           (shown (and console
                       (grpc:make-console
                        :metrics counted
                        :remote (notevery #'console:loopback-address-p console))))
           (tracing (make-tracing trace-sample otlp))
           (access-log (and access-log (grpc:make-access-log :ratio access-log)))
           (binary-log (and binary-log (open-binary-log binary-log)))
           (health (make-instance 'grpc:health-service)))
      (call-with-pages
       metrics console counted shown health
       (lambda (metrics-url console-url)
         (let* ((server (apply #'grpc:start-server
                               (cons health
                                     (append (when channelz
                                               (list (make-instance 'grpc:channelz-service)))
                                             (grpc:reflection-services) services))
                               :listen listen :loops loops :execution execution
                               :credentials (server-credentials tls-cert tls-key tls-other
                                                                client-ca)
                               :observer (remove nil
                                                 (list counted tracing access-log binary-log shown))
                               (append limits (list :max-receive-octets max-receive-octets))))
                (exporter (begin-exporting otlp counted tracing)))
           (when collect
             (sb-thread:make-thread #'collect-at-each-line :name "clgrpc collect"))
           (call-with-registration
            server register register-as weight zone
            (lambda (registered)
              (unwind-protect
                   (serve-until-signal
                    server
                    (append (when registered (list registered))
                            (when channelz
                              (list (format nil "channelz on ~A" (grpc:server-address server))))
                            (when metrics-url (list (format nil "metrics at ~A" metrics-url)))
                            (when console-url (list (format nil "console at ~A" console-url)))
                            (telemetry-lines trace-sample otlp)))
                (grpc:stop-server server)
                (when binary-log (grpc:close-binary-log binary-log))
                (end-exporting exporter)))))))))
  0)
