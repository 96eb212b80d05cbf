;;;; Serving as a command line says, until the process is told to end.

(in-package #:clgrpc.program)

(define-shared-options :serving
  (listen "ADDRESSES" (addresses-parser 0) "127.0.0.1:50051"
          "Where to listen: HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME, several
      with commas between; port 0 picks a free one.")
  (loops "N" (integer-parser 1 1024) 1
         "Event loops, each a thread, that share the connections.")
  (max-receive-octets "N" (limit-parser :max-receive-octets)
                      (option-default :max-receive-octets)
                      "The largest message accepted, in octets.")
  (limits "NAME=VALUE" #'parse-limits '()
          "Any options that doc/limits.md has for servers, several with commas between.")
  :telemetry
  (binary-log "FILE" #'identity nil
              "Write a binary log (gRFC A16) to FILE, of all calls or of those that
      GRPC_BINARY_LOG_FILTER is for; `clgrpc binlog FILE` prints it.")
  (channelz "[true|false]" #'parse-boolean nil
            "Serve channelz as well, which tells whoever asks what the channels, servers and
      connections of the process are and do.")
  (console "ADDRESSES" (addresses-parser 0) nil
           "Show in a browser what the process does, where these are; prints the address to
      open, which has a secret in it. If others than this machine reach ADDRESSES, they may look.")
  :server-tls)

(defun first-of (class things)
  "The first of THINGS that is of CLASS, or nil."
  (find-if (lambda (thing) (typep thing class)) things))

(defun open-binary-log (file)
  "A binary log to FILE of the calls that GRPC_BINARY_LOG_FILTER is for, all if it is not set."
  (handler-case
      (logs:make-binary-log :file (sb-ext:parse-native-namestring file)
                            :filter (or (sb-ext:posix-getenv "GRPC_BINARY_LOG_FILTER") "*"))
    (misuse (condition) (refuse "~A" condition))))

(defun asked-observers (given own)
  "The observers that GIVEN, the plist of a command line, asks for, beside a program's OWN."
  (destructuring-bind (&key metrics console otlp trace-sample access-log binary-log
                       &allow-other-keys)
      given
    (let ((counted (or (first-of 'metrics:metrics own)
                       (and (or otlp metrics console) (metrics:make-metrics)))))
      (remove-if (lambda (observer) (or (null observer) (member observer own)))
                 (list counted
                       (or (first-of 'trace:tracing own)
                           (make-tracing-as-asked trace-sample otlp))
                       (and access-log (logs:make-access-log :ratio access-log))
                       (and binary-log (open-binary-log binary-log))
                       (or (first-of 'console:console own)
                           (and console
                                (console:make-console
                                 :metrics counted
                                 :remote (notevery #'console:loopback-address-p
                                                   (as-list console))))))))))

(defun as-list (thing)
  (if (listp thing) thing (list thing)))

(defun server-arguments (given observers options)
  "What START-SERVER is given: OPTIONS, with OBSERVERS, and what GIVEN says."
  (destructuring-bind (&key listen loops limits max-receive-octets tls-cert tls-key tls-other
                         client-ca &allow-other-keys)
      given
    (let ((credentials (server-credentials tls-cert tls-key tls-other client-ca)))
      (append (list :listen listen :loops loops :observer observers)
              (and credentials (list :credentials credentials))
              limits
              (list :max-receive-octets max-receive-octets)
              options))))

(defun announce (server lines)
  "Print where SERVER listens, and LINES."
  (format t "~{listening on ~A~%~}~{~A~%~}" (server:server-addresses server) lines)
  (finish-output))

(defun page-lines (server given metrics-url console-url)
  "Lines that say where what GIVEN asks for is seen."
  (append (and (getf given :channelz)
               (list (format nil "channelz on ~A" (server:server-address server))))
          (and metrics-url (list (format nil "metrics at ~A" metrics-url)))
          (and console-url (list (format nil "console at ~A" console-url)))
          (telemetry-lines (getf given :trace-sample) (getf given :otlp))))

(defun serve-as-asked (services given ending options &optional report)
  "Serve SERVICES, a list, as GIVEN, the plist of a command line with the options :SERVING and those
of the groups, and OPTIONS, arguments of START-SERVER, say. Print where, and what else there is to
know; call REPORT, if there is one, with the server at each SIGUSR1. Once the process is told to
end, by ENDING, let running calls end, and return."
  (let* ((own (as-list (getf options :observer)))
         (asked (asked-observers given own))
         (observers (append own asked))
         (metrics (first-of 'metrics:metrics observers)))
    (begin-logging (getf given :log-level) (getf given :log-format) (getf given :access-log))
    (call-with-pages
     (getf given :metrics) (getf given :console) metrics (first-of 'console:console observers)
     (first-of 'services:health-service services)
     (lambda (metrics-url console-url)
       (let ((server (apply #'server:start-server
                            (if (getf given :channelz)
                                (cons (make-instance 'channelz:channelz-service) services)
                                services)
                            (server-arguments given observers options)))
             (exporter nil))
         (unwind-protect
              (progn
                (when report (call-at-report ending (lambda () (funcall report server))))
                (setf (ending-seconds ending)
                      (+ (options-drain-seconds (serving:server-options server)) +ending-seconds+)
                      exporter (begin-exporting (getf given :otlp) metrics
                                                (first-of 'trace:tracing observers)))
                (call-with-groups
                 server given
                 (lambda (lines)
                   (announce server (append lines (page-lines server given metrics-url
                                                              console-url)))
                   (await-end ending)
                   (server:stop-server server))))
           (server:stop-server server)
           (let ((log (first-of 'logs:binary-log asked)))
             (when log (logs:close-binary-log log)))
           (end-exporting exporter)))))))
