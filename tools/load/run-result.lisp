;;;; The results of a run, as plain data: every report is made from them and nothing else.

(in-package #:clgrpc.load)

(defstruct (status-row (:copier nil))
  "The calls that ended with one status."
  (name "" :type string)                ; the status as grpc-go writes it: "OK", "DeadlineExceeded"
  (code 0 :type index)                  ; the number of the status
  (count 0 :type quantity)         ; the number of calls
  (latency (make-histogram) :type histogram) ; the latency of these calls
  (messages '() :type list))            ; alist from status message to count, of bounded length

(defstruct (share-row (:copier nil))
  "The calls that one address answered or, in a mix, the calls of one method."
  (name "" :type string)                ; the address, "" if none was reached; or the method
  (count 0 :type quantity)         ; calls that ended
  (errors 0 :type quantity)        ; calls that ended with another status than OK
  (latency (make-histogram) :type histogram)) ; the latency of calls that ended with OK

(defstruct (second-row (:copier nil))
  "The counts of one second of the run."
  (count 0 :type quantity)         ; calls that ended
  (errors 0 :type quantity)        ; calls that ended with another status than OK
  (latency (make-histogram) :type histogram) ; the latency of calls that ended with OK
  (sent-octets 0 :type quantity)   ; octets given to the sockets
  (received-octets 0 :type quantity) ; octets received from the sockets
  (connections 0 :type quantity)   ; the connections that were ready at its end
  (lateness-max-ns 0 :type quantity)) ; how late a call began at most

(defstruct (sample (:copier nil))
  "A call that the report lists by itself."
  (unix-ns 0 :type quantity)       ; the time when the call was due
  (latency-ns 0 :type quantity)    ; the time from UNIX-NS until its end
  (status "OK" :type string)            ; as the name of STATUS-ROW
  (error nil :type (or null string)))   ; the message of a status that is not OK

(defstruct (run (:copier nil))
  "A run. Octets, connections and CPU time are counted from the beginning of the first call to the
end of the last, without a warm-up."
  (name nil :type (or null string))     ; the user's
  (target "" :type string)              ; the target as the user wrote it
  (method "" :type string)              ; the method, as "package.Service/Method"
  (kind :unary :type (member :unary :client-streaming :server-streaming :bidi)) ; the kind of METHOD
  (started-unix-ns 0 :type quantity) ; when the first call was to begin
  ;; the time until the last call had ended and, in an open loop, the next would have been due
  (duration-ns 0 :type quantity)
  (options '() :type list)              ; alist from an option's name, as ghz's, to its JSON
  (tags '() :type list)                 ; an alist of strings, given by the user
  ;; whether calls begin at a rate, or one after another
  (loop-kind :closed :type (member :open :closed))
  ;; the rate, or the mean of a schedule; NIL for a closed loop
  (intended-rps nil :type (or null real))
  (burst 1 :type quantity)         ; calls of an open loop that began together, at most
  (count 0 :type quantity)         ; calls that ended
  (under-way 0 :type quantity)     ; calls that had begun and not ended when the run was broken off
  (oldest-under-way-ns 0 :type quantity) ; how long the oldest of these calls had been under way
  (latency (make-histogram) :type histogram) ; the latency of calls that ended with OK
  (all-latency (make-histogram) :type histogram) ; the latency of all calls that ended
  (statuses '() :type list)             ; STATUS-ROWs, the most frequent first
  (backends '() :type list)             ; SHARE-ROWs, the most frequent first
  (methods '() :type list)              ; SHARE-ROWs of a mix, named as METHOD is
  (seconds #() :type vector)            ; SECOND-ROWs, from the begin of the run
  ;; how many seconds each of SECONDS lasts: more in a long run
  (interval-seconds 1 :type (integer 1))
  (stages '() :type list)               ; alist from "queue", "connect", "send", "wait" to HISTOGRAM
  (lateness (make-histogram) :type histogram) ; how late the tool began calls, of an open loop
  ;; for streams of responses: the time from the begin of the call to the first response, and from
  ;; each response to the next
  (message-latency (make-histogram) :type histogram)
  ;; the server's own counts of these calls meanwhile: an alist from "count", "p50", "p90", "p99" to
  ;; a number, times in ns; nil if it was not asked
  (server '() :type list)
  (octets-sent 0 :type quantity)   ; octets given to the sockets
  (octets-received 0 :type quantity) ; octets received from the sockets
  (messages-sent 0 :type quantity) ; requests, in streams too
  (messages-received 0 :type quantity) ; responses, in streams too
  (connections 0 :type quantity)   ; the number of connections that the user has asked for
  (connects 0 :type quantity)      ; connections made; more than CONNECTIONS if some were lost
  (cpu-ns 0 :type quantity)        ; the CPU time of this process
  (limited nil :type (or null string))  ; the limiting cause other than the server's speed, or nil
  ;; why not all calls were made
  (ended-early nil :type (member nil :interrupted :terminated :deadline))
  (samples '() :type list)              ; SAMPLEs, spread evenly over the run, by time
  (rounds '() :type list))              ; RUNs, if this run combines several
