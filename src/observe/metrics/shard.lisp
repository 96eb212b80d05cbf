;;;; Shards, the places of counts. A SHARD belongs to an event loop while that loop runs; then
;;;; another loop gets it, with its counts. The holder of the loop's baton counts in the shard with
;;;; plain additions. Threads without a loop, which make calls within the image, share a few shards
;;;; and count in those atomically; their stacks' addresses distribute them over the shards. A
;;;; reader adds up all shards.
;;;;
;;;;   shard → TARGET-RECORD of a role, a target and a protocol → METHOD-RECORD of a method
;;;;         → SERIES of a status → cells
;;;;
;;;; The duration of calls of a server's loop is known when their answers are sent, which happens
;;;; once, or nearly once, in a turn. Until then calls that began in one turn and ended alike are
;;;; counted in a RUN, and the clock is read once for all runs. Calls of a run that sent and
;;;; received as many octets as its first call are counted together, too.
;;;;
;;;; A target record finds its method records by the number of the method (rpc/method/method.lisp),
;;;; a method record its series by the status code, so two loads lead to a call's cells. Target
;;;; records, method records and series are made when they are first needed, under the lock of the
;;;; metrics, and are kept.

(in-package #:clgrpc.metrics)

;;; The places in CELLS: histograms, each with a sum and buckets, and counters

(defmacro define-places (count &rest rows)
  "Define a constant for each place in CELLS, in their order, and COUNT, the number of all cells. A
row is a name and how many cells it has."
  (let ((at +padding+))
    `(progn ,@(loop for (name cells) in rows
                    collect `(defconstant ,name ,at)
                    do (incf at cells))
            (defconstant ,count ,(- at +padding+)))))

(define-places +series-cells+ (+duration+ 43) (+sent+ 16) (+received+ 16))

(define-places +method-record-cells+
  (+started+ 1) (+retries+ 7) (+transparent-retries+ 8) (+hedges+ 7) (+retry-delay+ 43))

(define-places +target-record-cells+
  (+accepted+ 1) (+left+ 1)             ; connections of servers, and how many of these have ended
  (+connected+ 1) (+failed+ 1) (+disconnected+ 1) ; counts of channels: gRFC A94
  (+fallbacks+ 1) (+unusable+ 1) (+stale+ 1) (+weights+ 17)) ; of weighted_round_robin

(assert (equal '(43 16 7 8 17) (mapcar #'scale-cells (list **latency** **size** **retries**
                                                           **transparent-retries** **weights**))))

(defstruct (series (:constructor make-series (cells)) (:copier nil))
  "The counts of the calls, or attempts, of one method that end with one status."
  (cells nil :type cells :read-only t)  ; histograms, one after the other
  ;; for each bucket of the first histogram its last EXEMPLAR, once there is one
  (exemplars nil :type (or null simple-vector)))

(defconstant +statuses+ 17 "How many status codes there are.")

(defstruct (method-record (:constructor make-method-record (method)) (:copier nil))
  "The counts of the calls of one method."
  (method "" :type string :read-only t) ; the value of grpc.method
  ;; counts of all statuses: see METHOD-RECORD-CELL
  (cells (make-cells +method-record-cells+) :type cells :read-only t)
  ;; SERIES of calls by status code
  (calls (make-array +statuses+ :initial-element nil) :type simple-vector :read-only t)
  ;; the same for a client's attempts
  (attempts (make-array +statuses+ :initial-element nil) :type simple-vector :read-only t))

(defconstant +runs+ 16
  "The maximum number of runs of a target record. When all runs are in use, the loop reads the clock
and counts them.")

(defstruct (run (:copier nil))
  "Calls of a server that began in one turn and ended alike since output was last sent."
  (method nil :type (or null method:rpc-method)) ; the method of the calls, or nil
  (status nil :type symbol)             ; the status of the calls; nil if the run is not in use
  (began-ns 0 :type nanoseconds)        ; when the calls began
  (series nil :type (or null series))   ; the series that counts these calls
  (count 0 :type index)                 ; the number of calls
  (sent 0 :type (unsigned-byte 62))     ; the octets that the first of the calls has sent
  (received 0 :type (unsigned-byte 62)) ; the octets that it has received
  (others 0 :type index))               ; calls with other sizes, which are counted already

(defun make-runs ()
  (coerce (loop repeat +runs+ collect (make-run)) 'simple-vector))

(defstruct (target-record (:constructor make-target-record (role target protocol shard))
                          (:copier nil))
  "The counts of servers, or of channels to one target."
  ;; the side that counts
  (role :server :type (member :server :client) :read-only t)
  ;; the value of grpc.target; nil for servers
  (target nil :type (or null string) :read-only t)
  ;; the value of clgrpc.protocol for its calls; nil without that attribute
  (protocol nil :type (or null string) :read-only t)
  (shard nil :read-only t)              ; the record's shard
  ;; records of methods, by number of method
  (method-records (make-array 8 :initial-element nil) :type simple-vector)
  ;; counts of no method: see TARGET-RECORD-CELL
  (cells (make-cells +target-record-cells+) :type cells :read-only t)
  ;; calls whose durations are not known yet
  (runs (make-runs) :type simple-vector :read-only t)
  (run-count 0 :type (integer 0 #.+runs+)) ; how many of RUNS are in use
  (run (make-run) :type run)            ; the newest run, or an empty one
  (due nil :type boolean)               ; the loop will call END-RUNS
  ;; for servers: a plist from each protocol beside gRPC to the target record of its calls
  (by-protocol '() :type list)
  (labelled '() :type list))            ; an alist from (kind . text) to CELLS of one: see LABELLED

(defstruct (shard (:constructor make-shard (metrics)) (:copier nil))
  "The counts of one loop, or of some of the threads without a loop."
  (metrics nil :read-only t)            ; the shard's metrics
  (loop nil :type (or null loop:event-loop)) ; the loop that uses the shard now
  (target-records '() :type list))      ; records of servers, and of the targets of channels

(declaim (sb-ext:freeze-type series run method-record target-record shard))

(defmethod print-object ((series series) stream)
  (print-unreadable-object (series stream :type t :identity t)))

(define-printer (run run)
  "~D ~A" (run-count run) (run-status run))

(define-printer (method-record method-record)
  "~A" (method-record-method method-record))

(define-printer (target-record target-record)
  "~(~A~)~@[ ~A~]~@[ ~A~]" (target-record-role target-record)
  (target-record-target target-record) (target-record-protocol target-record))

(define-printer (shard shard)
  "~D target record~:P~@[ of ~A~]" (length (shard-target-records shard)) (shard-loop shard))

(define-hot status-number ((status symbol)) (mod 17)
  "The code of STATUS; the code of :unknown for any other object."
  (if (eq :ok status)
      0
      (or (position status (load-time-value
                            (coerce (loop for code below 17 collect (status:code-status code))
                                    'simple-vector)
                            t)
                    :test #'eq)
          2)))
