;;;; The table of instruments: gRPC's (gRFC A66, A78, A94, A96), ours, and those of the process.
;;;; Names, units and attributes are those of the documents. Instruments that the documents call
;;;; experimental are off unless :enable of MAKE-METRICS names them. doc/monitoring.md shows the
;;;; table, made from this one.

(in-package #:clgrpc.metrics)

(defstruct (instrument (:constructor make-instrument
                           (name kind unit attributes optional scale source alias default
                            text))
                       (:copier nil))
  "A row of the table."
  (name "" :type string :read-only t)   ; in OpenTelemetry
  ;; its way to combine numbers
  (kind :counter :type (member :counter :up-down-counter :gauge :histogram) :read-only t)
  (unit "" :type string :read-only t)   ; as in UCUM
  (attributes '() :type list :read-only t) ; their names
  (optional '() :type list :read-only t) ; those of further ones, if :optional-labels has them
  (scale nil :type (or null scale) :read-only t) ; a histogram's
  (source nil :type symbol :read-only t) ; the function of collect.lisp that reads it
  (alias nil :type (or null string) :read-only t) ; in Prometheus, if tools know it by that
  (default t :type boolean :read-only t) ; it is on unless :disable names it
  (text "" :type string :read-only t))  ; for people

(defmethod print-object ((instrument instrument) stream)
  (print-unreadable-object (instrument stream :type t)
    (format stream "~A ~(~A~)" (instrument-name instrument) (instrument-kind instrument))))

(defglobal **instruments** '())         ; in the order of the table

(defmacro define-instruments (&body rows)
  "Declare the instruments. A row is (NAME KIND UNIT ATTRIBUTES (&key SCALE SOURCE ALIAS DEFAULT
OPTIONAL) TEXT)."
  `(setf **instruments**
         (list ,@(loop for (name kind unit attributes options text) in rows
                       collect (destructuring-bind (&key scale source alias (default t) optional)
                                     options
                                 `(make-instrument ,name ,kind ,unit ',attributes ',optional ,scale
                                                   ',source ,alias ,default
                                                   ,(format nil text)))))))

(define-instruments
  ;; gRFC A66
  ("grpc.client.attempt.started" :counter "{attempt}" ("grpc.method" "grpc.target")
   (:source attempts-started)
   "Number of client call attempts started.")
  ("grpc.client.attempt.duration" :histogram "s" ("grpc.method" "grpc.target" "grpc.status")
   (:scale **latency** :source attempt-durations)
   "End-to-end time taken to complete a client call attempt.")
  ("grpc.client.attempt.sent_total_compressed_message_size" :histogram "By"
   ("grpc.method" "grpc.target" "grpc.status")
   (:scale **size** :source attempt-sent)
   "Compressed message bytes sent per client call attempt.")
  ("grpc.client.attempt.rcvd_total_compressed_message_size" :histogram "By"
   ("grpc.method" "grpc.target" "grpc.status")
   (:scale **size** :source attempt-received)
   "Compressed message bytes received per call attempt.")
  ("grpc.client.call.duration" :histogram "s" ("grpc.method" "grpc.target" "grpc.status")
   (:scale **latency** :source client-durations)
   "Time taken by gRPC to complete an RPC from application's perspective.")
  ("grpc.server.call.started" :counter "{call}" ("grpc.method")
   (:source calls-started)
   "Number of server calls started.")
  ("grpc.server.call.sent_total_compressed_message_size" :histogram "By"
   ("grpc.method" "grpc.status")
   (:scale **size** :source server-sent)
   "Compressed message bytes sent per server call.")
  ("grpc.server.call.rcvd_total_compressed_message_size" :histogram "By"
   ("grpc.method" "grpc.status")
   (:scale **size** :source server-received)
   "Compressed message bytes received per server call.")
  ("grpc.server.call.duration" :histogram "s" ("grpc.method" "grpc.status")
   (:scale **latency** :source server-durations)
   "End-to-end time taken to complete a call from server transport's perspective.")
  ;; gRFC A96
  ("grpc.client.call.retries" :histogram "{retry}" ("grpc.method" "grpc.target")
   (:scale **retries** :source retries :default nil)
   "Number of retries during the client call. If there were no retries, 0 is not reported.")
  ("grpc.client.call.transparent_retries" :histogram "{transparent_retry}"
   ("grpc.method" "grpc.target")
   (:scale **transparent-retries** :source transparent-retries :default nil)
   "Number of transparent retries during the client call. If there were none, 0 is not reported.")
  ("grpc.client.call.hedges" :histogram "{hedge}" ("grpc.method" "grpc.target")
   (:scale **retries** :source hedges :default nil)
   "Number of hedges during the client call. If there were no hedges, 0 is not reported.")
  ("grpc.client.call.retry_delay" :histogram "s" ("grpc.method" "grpc.target")
   (:scale **latency** :source retry-delays :default nil)
   "Total time of delay while there is no active attempt during the client call.")
  ;; gRFC A94
  ("grpc.subchannel.disconnections" :counter "{disconnection}"
   ("grpc.target")
   (:source disconnections :default nil :optional ("grpc.disconnect_error"))
   "Number of times the selected subchannel becomes disconnected.")
  ("grpc.subchannel.connection_attempts_succeeded" :counter "{attempt}" ("grpc.target")
   (:source connections-succeeded :default nil)
   "Number of successful connection attempts.")
  ("grpc.subchannel.connection_attempts_failed" :counter "{attempt}" ("grpc.target")
   (:source connections-failed :default nil)
   "Number of failed connection attempts.")
  ("grpc.subchannel.open_connections" :up-down-counter "{connection}" ("grpc.target")
   (:source open-subchannels :default nil)
   "Number of open connections.")
  ;; gRFC A78
  ("grpc.lb.wrr.rr_fallback" :counter "{update}" ("grpc.target")
   (:source weight-fallbacks :default nil)
   "Number of scheduler updates in which there were not enough endpoints with valid weight, which ~
caused the WRR policy to fall back to RR behavior.")
  ("grpc.lb.wrr.endpoint_weight_not_yet_usable" :counter "{endpoint}" ("grpc.target")
   (:source weights-unusable :default nil)
   "Number of endpoints from each scheduler update that don't yet have usable weight information.")
  ("grpc.lb.wrr.endpoint_weight_stale" :counter "{endpoint}" ("grpc.target")
   (:source weights-stale :default nil)
   "Number of endpoints from each scheduler update whose latest weight is older than the ~
expiration period.")
  ("grpc.lb.wrr.endpoint_weights" :histogram "{endpoint}" ("grpc.target")
   (:scale **weights** :source weights :default nil)
   "Weight of each endpoint, recorded on every scheduler update. Endpoints without usable weights ~
have weight 0.")
  ("grpc.lb.pick_first.disconnections" :counter "{disconnection}" ("grpc.target")
   (:source all-disconnections :default nil)
   "Number of times the selected subchannel becomes disconnected. (The name before gRFC A94.)")
  ("grpc.lb.pick_first.connection_attempts_succeeded" :counter "{attempt}" ("grpc.target")
   (:source connections-succeeded :default nil)
   "Number of successful connection attempts. (The name before gRFC A94.)")
  ("grpc.lb.pick_first.connection_attempts_failed" :counter "{attempt}" ("grpc.target")
   (:source connections-failed :default nil)
   "Number of failed connection attempts. (The name before gRFC A94.)")
  ;; ours
  ("clgrpc.server.connections" :up-down-counter "{connection}" ()
   (:source server-connections)
   "Connections that servers have, of every protocol.")
  ("clgrpc.server.connections_accepted" :counter "{connection}" ()
   (:source connections-accepted)
   "Connections that servers have admitted.")
  ("clgrpc.server.refusals" :counter "{refusal}" ("clgrpc.option")
   (:source refusals)
   "Calls and connections that servers have refused or ended, by the option whose limit it was.")
  ("clgrpc.loop.turns" :counter "{turn}" ("clgrpc.loop")
   (:source loop-turns)
   "Turns that event loops have made.")
  ("clgrpc.loop.connections" :up-down-counter "{connection}" ("clgrpc.loop")
   (:source loop-connections)
   "Connections that event loops look after.")
  ("clgrpc.loop.waiting" :counter "s" ("clgrpc.loop")
   (:source loop-waiting)
   "Time that event loops have waited for events; the rest of the time they were busy.")
  ("clgrpc.loop.spinning" :counter "s" ("clgrpc.loop")
   (:source loop-spinning)
   "The part of that time in which event loops did not sleep, so that it took a processor.")
  ("clgrpc.loop.batons_lent" :counter "{baton}" ("clgrpc.loop")
   (:source batons-lent)
   "How often event loops could be taken over while they ran users' code.")
  ("clgrpc.loop.batons_lost" :counter "{baton}" ("clgrpc.loop")
   (:source batons-lost)
   "How often event loops were taken over by another thread, since users' code took long.")
  ("clgrpc.loop.received" :counter "By" ("clgrpc.loop")
   (:source octets-received)
   "Octets that connections have received, without TLS's own.")
  ("clgrpc.loop.sent" :counter "By" ("clgrpc.loop")
   (:source octets-sent)
   "Octets that connections have sent, without TLS's own.")
  ("clgrpc.reserve.threads" :up-down-counter "{thread}" ("clgrpc.state")
   (:source reserve-threads)
   "Reserve threads that there are, busy and idle.")
  ;; logs
  ("clgrpc.log.lost" :counter "{entry}" ("clgrpc.log")
   (:source lost-log-entries)
   "Entries of logs that were lost, since too many waited or they could not be written.")
  ;; the process
  ("clgrpc.gc.collections" :counter "{collection}" ()
   (:source collections)
   "Garbage collections.")
  ("clgrpc.gc.pause" :counter "s" ()
   (:source collection-time)
   "Time for which collections have stopped all threads.")
  ("clgrpc.heap.used" :up-down-counter "By" ()
   (:source heap-used)
   "Octets of the heap that are allocated.")
  ("clgrpc.heap.limit" :up-down-counter "By" ()
   (:source heap-limit)
   "How large the heap may get.")
  ("clgrpc.heap.allocated" :counter "By" ()
   (:source heap-allocated)
   "Octets that have been allocated since the process began.")
  ("clgrpc.build_info" :gauge "" ("version" "lisp")
   (:source build-info)
   "1, with the versions of clgrpc and of the Lisp it runs on.")
  ("process.cpu.time" :counter "s" ()
   (:source cpu-time :alias "process_cpu_seconds")
   "Total user and system CPU time spent in seconds.")
  ("process.start_time" :gauge "s" ()
   (:source start-time :alias "process_start_time_seconds")
   "Start time of the process since unix epoch in seconds.")
  ("process.memory.usage" :up-down-counter "By" ()
   (:source resident-memory :alias "process_resident_memory_bytes")
   "Resident memory size in bytes.")
  ("process.memory.virtual" :up-down-counter "By" ()
   (:source virtual-memory :alias "process_virtual_memory_bytes")
   "Virtual memory size in bytes.")
  ("process.open_file_descriptor.count" :up-down-counter "{file_descriptor}" ()
   (:source open-descriptors :alias "process_open_fds")
   "Number of open file descriptors.")
  ("process.open_file_descriptor.limit" :up-down-counter "{file_descriptor}" ()
   (:source descriptor-limit :alias "process_max_fds")
   "Maximum number of open file descriptors.")
  ("process.thread.count" :up-down-counter "{thread}" ()
   (:source threads :alias "process_threads")
   "Number of OS threads in the process."))

(defun find-instruments (names)
  "The instruments denoted by NAMES: a list of names, or of prefixes of names up to a dot; or T for
all. Signal MISUSE for one that means none."
  (if (eq t names)
      **instruments**
      (loop for name in names
            append (or (remove-if-not (lambda (instrument)
                                        (named-p (instrument-name instrument) name))
                                      **instruments**)
                       (misuse "No instrument is named ~S." name)))))

(defun named-p (full name)
  "True if FULL is NAME or begins with NAME and a dot."
  (and (stringp name)
       (<= (length name) (length full))
       (string= name full :end2 (length name))
       (or (= (length name) (length full)) (char= #\. (char full (length name))))))

(defun instrument-table ()
  "The instruments, a list of lists of texts: name, kind, unit, attributes, whether it is on by
default, meaning."
  (loop for instrument in **instruments**
        collect (list (format nil "`~A`" (instrument-name instrument))
                      (substitute #\Space #\- (string-downcase (instrument-kind instrument)))
                      (format nil "~:[`~A`~;~]" (string= "" (instrument-unit instrument))
                              (instrument-unit instrument))
                      (format nil "~{`~A`~^, ~}~:{, `~A` if asked for~}"
                              (instrument-attributes instrument)
                              (mapcar #'list (instrument-optional instrument)))
                      (if (instrument-default instrument) "on" "off")
                      (instrument-text instrument))))
