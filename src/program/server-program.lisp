;;;; Serving as the options of a command line say, until the process is asked to end.

(in-package #:clgrpc.program)

(define-shared-options :serving
  (listen "ADDRESSES" (addresses-parser 0) "127.0.0.1:50051"
          "The addresses to listen on: HOST:PORT, [IPV6]:PORT, unix:PATH or
      unix-abstract:NAME, with commas between several; port 0 picks a free port.")
  (loops "N" (integer-parser 1 1024) 1
         "Event loops, each a thread, that share the connections.")
  (max-receive-octets "N" (limit-parser :max-receive-octets)
                      (option-default :max-receive-octets)
                      "The largest message accepted, in octets.")
  (limits "NAME=VALUE" #'parse-limits '()
          "Options of servers, which doc/limits.md lists, with commas between several.")
  :telemetry
  (binary-log "FILE" #'identity nil
              "Write a binary log (gRFC A16) to FILE, of all calls or of those that
      GRPC_BINARY_LOG_FILTER selects; `clgrpc binlog FILE` prints it. FILE is begun again at the
      start, when it has --binary-log-octets, and at SIGHUP; the former file becomes FILE.1.")
  (binary-log-octets "N" (integer-parser 1 1000000000000) 100000000
                     "How long the file of --binary-log may get.")
  (binary-log-files "N" (integer-parser 0 1000000) 4
                    "How many older files of --binary-log are kept: FILE.1, FILE.2 and so on.")
  (channelz "[true|false]" #'parse-boolean nil
            "Serve channelz as well, which shows the channels, servers and connections of the
      process, with states and counts, to any caller.")
  (web "[true|false]" #'parse-boolean nil
       "Speak other protocols than gRPC as well, such as gRPC-Web and Connect, over HTTP/1.1 and
      HTTP/2 on the same addresses.")
  (origins "ORIGINS" #'parse-origins '()
           "The origins whose web pages may call with --web, such as https://app.example, several
      separated by commas, or any.")
  :server-tls)

(defun parse-origins (text)
  "The :ORIGINS of START-SERVER for TEXT."
  (if (string= "any" text)
      :any
      (uiop:split-string text :separator ",")))

(defun first-of (class things)
  "The first element of THINGS that is of CLASS; nil if no element is."
  (find-if (lambda (thing) (typep thing class)) things))

(defun open-binary-log (file max-octets kept-files)
  "A binary log to FILE, of at most MAX-OCTETS, with KEPT-FILES older files. It has the calls that
GRPC_BINARY_LOG_FILTER selects, or all calls if that variable is not set."
  (handler-case
      (logs:make-binary-log :file (sb-ext:parse-native-namestring file)
                            :max-octets max-octets :kept-files kept-files
                            :filter (or (sb-ext:posix-getenv "GRPC_BINARY_LOG_FILTER") "*"))
    (misuse (condition) (refuse "~A" condition))))

(defun asked-observers (given own)
  "The observers that GIVEN, the plist of a command line, requests, in addition to OWN."
  (destructuring-bind (&key metrics otlp trace-sample access-log binary-log
                         binary-log-octets binary-log-files &allow-other-keys)
      given
    (let ((counted (or (first-of 'metrics:metrics own)
                       (and (or otlp metrics)
                            (metrics:make-metrics
                             :exemplar (and (or otlp trace-sample) 'trace:trace-exemplar)
                             :resource (otlp:resource-attributes '() #'sb-ext:posix-getenv))))))
      (remove-if (lambda (observer) (or (null observer) (member observer own)))
                 (list counted
                       (or (first-of 'trace:tracing own)
                           (make-tracing-as-asked trace-sample otlp))
                       (and access-log (logs:make-access-log :ratio access-log))
                       (and binary-log (open-binary-log binary-log binary-log-octets
                                                        binary-log-files)))))))

(defun as-list (thing)
  (if (listp thing) thing (list thing)))

(defun asked-credentials (given options)
  "The credentials that GIVEN requests, or else those of OPTIONS, arguments of START-SERVER; nil if
neither has any."
  (destructuring-bind (&key tls-cert tls-key tls-other client-ca &allow-other-keys) given
    (or (server-credentials tls-cert tls-key tls-other client-ca)
        (getf options :credentials))))

(defun server-arguments (given observers credentials options)
  "The arguments of START-SERVER: OPTIONS, with OBSERVERS and CREDENTIALS, and the options in
GIVEN."
  (destructuring-bind (&key listen loops limits max-receive-octets web origins
                         &allow-other-keys)
      given
    (append (list :listen listen :loops loops :observer observers :credentials credentials)
            (and web (list :protocols (server:protocol-names)))
            (and origins (list :origins origins))
            limits
            (list :max-receive-octets max-receive-octets)
            options)))

(defun announce (server lines)
  "Print the addresses on which SERVER listens, and LINES."
  (format t "~{listening on ~A~%~}~{~A~%~}" (server:server-addresses server) lines)
  (finish-output))

(defun serve-until-end (ending server lines)
  "Print the addresses on which SERVER listens, and LINES; return when ENDING has begun. A service
manager is notified of the beginning and of the end."
  (announce server lines)
  (tell-serving server)
  (await-end ending)
  (tell-stopping (ending-seconds ending)))

(defun page-lines (server given metrics-url tls paths)
  "Lines that name the addresses of the features that GIVEN requests, and the pages at PATHS of
SERVER, which uses TLS if TLS is true."
  (append (loop for path in paths
                collect (format nil "page at http~:[~;s~]://~A~A" tls (server:server-address server)
                                path))
          (and (getf given :channelz)
               (list (format nil "channelz on ~A" (server:server-address server))))
          (and metrics-url (list (format nil "metrics at ~A" metrics-url)))
          (telemetry-lines (getf given :trace-sample) (getf given :otlp))))

(defun serve-with (observers binary-log metrics credentials services given ending options
                   &key report paths reload)
  "Do the work of SERVE-AS-ASKED with CREDENTIALS, and with OBSERVERS, which include BINARY-LOG and
METRICS unless these are nil."
  (call-with-metrics-page
   (getf given :metrics) credentials metrics (first-of 'services:health-service services)
   (lambda (metrics-url)
     (let ((server (apply #'server:start-server
                          (if (getf given :channelz)
                              (cons (make-instance 'channelz:channelz-service) services)
                              services)
                          (server-arguments given observers credentials options)))
           (exporter nil))
       (unwind-protect
            (progn
              (call-at-map ending #'begin-perf-map)
              (when report (call-at-report ending (lambda () (funcall report server))))
              (reload-at-hang-up
               ending server
               (and credentials (lambda () (loop:reload-credentials credentials)))
               (and binary-log (lambda () (logs:rotate-binary-log binary-log)))
               reload)
              (setf (ending-seconds ending)
                    (+ (options-drain-seconds (serving:server-options server)) +ending-seconds+)
                    exporter (begin-exporting (getf given :otlp) metrics
                                              (first-of 'trace:tracing observers)))
              (call-with-groups
               server (list* :observer observers :credentials credentials given)
               (lambda (lines)
                 (serve-until-end ending server
                                  (append (page-lines server given metrics-url credentials paths)
                                          lines))
                 (server:stop-server server))))
         (server:stop-server server)
         (end-exporting exporter))))))

(defun serve-as-asked (services given ending options &key report paths reload)
  "Serve SERVICES, a list, as requested by GIVEN, the plist of a command line with the options
:SERVING and those of the groups, and by OPTIONS, arguments of START-SERVER. Print the addresses,
the PATHS of pages, and the groups' lines; call REPORT, if there is one, with the server at each
SIGUSR1. At SIGHUP read the certificates again, begin the binary log again, and call RELOAD, if
there is one. Once ENDING asks the process to end, let running calls end, and return. A
service manager is notified of these steps."
  (let* ((credentials (asked-credentials given options))
         (own (observers-of-groups (list* :observer (as-list (getf options :observer))
                                          :credentials credentials given)))
         (asked (asked-observers given own))
         (binary-log (first-of 'logs:binary-log asked))
         (observers (append own asked)))
    (begin-logging (getf given :log-level) (getf given :log-format) (getf given :access-log))
    (unwind-protect (serve-with observers binary-log (first-of 'metrics:metrics observers)
                                credentials services given ending options
                                :report report :paths paths :reload reload)
      ;; done even if the server could not start
      (when binary-log (logs:close-binary-log binary-log)))))
