;;;; The measurements of a peer: those in the peer itself, which PEER-STATISTICS returns; and those
;;;; in METRICS, if given, by peer and message. Peers that have the same METRICS have the same
;;;; instruments.

(in-package #:clgrpc.raft)

(defstruct (instruments (:copier nil))
  "The instruments of Raft among some METRICS."
  (messages nil :read-only t)           ; a counter by peer, message and outcome
  (octets nil :read-only t)             ; a counter by peer and message
  (entries nil :read-only t)            ; a counter by peer
  (latency nil :read-only t)            ; a histogram by peer and message, in seconds
  (queued-entries nil :read-only t)     ; an up-down counter by peer
  (queued-octets nil :read-only t))     ; an up-down counter by peer

(declaim (sb-ext:freeze-type instruments))

(defun new-instruments (metrics)
  (make-instruments
   :messages (metrics:make-counter metrics "clgrpc.raft.messages" :unit "{message}"
                                   :attributes '("clgrpc.peer" "clgrpc.raft.message"
                                                 "grpc.status")
                                   :text "Raft's messages, by the gRPC status they ended with.")
   :octets (metrics:make-counter metrics "clgrpc.raft.sent" :unit "By"
                                 :attributes '("clgrpc.peer" "clgrpc.raft.message")
                                 :text "Octets of data of entries and snapshots that were sent.")
   :entries (metrics:make-counter metrics "clgrpc.raft.entries" :unit "{entry}"
                                  :attributes '("clgrpc.peer") :text "Entries that were sent.")
   :latency (metrics:make-histogram metrics "clgrpc.raft.latency" :unit "s"
                                    :attributes '("clgrpc.peer" "clgrpc.raft.message")
                                    :text "Time from sending a message to its answer.")
   :queued-entries (metrics:make-up-down-counter metrics "clgrpc.raft.queued_entries"
                                                 :unit "{entry}" :attributes '("clgrpc.peer")
                                                 :text "Entries sent but not yet answered.")
   :queued-octets (metrics:make-up-down-counter metrics "clgrpc.raft.queued_octets"
                                                :unit "By" :attributes '("clgrpc.peer")
                                                :text "Octets of data sent but not yet answered.")))

(defstruct (meter (:constructor make-meter (name instruments)) (:copier nil))
  "The messages sent to a peer."
  (name "" :type string :read-only t)   ; the peer's
  ;; the instruments that count as well, or nil
  (instruments nil :type (or null instruments) :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc raft meter") :read-only t) ; guards the slots below
  (messages 0 :type (unsigned-byte 62)) ; messages that were answered
  (failures 0 :type (unsigned-byte 62)) ; messages that were not answered, or with an error
  (entries 0 :type (unsigned-byte 62))  ; entries in the requests that were sent
  (octets 0 :type (unsigned-byte 62))   ; octets of data in these requests
  (latency-ns 0 :type (unsigned-byte 62)) ; the sum over answered requests
  (streams 0 :type (unsigned-byte 62))) ; pipelines that were begun

(declaim (sb-ext:freeze-type meter))

(define-printer (meter meter)
  "~A: ~D answered, ~D failed" (meter-name meter) (meter-messages meter) (meter-failures meter))

(defun note-sent (meter message entries octets)
  "Note that a MESSAGE, its name, with ENTRIES and OCTETS of data was sent."
  (sb-thread:with-mutex ((meter-lock meter))
    (incf (meter-entries meter) entries)
    (incf (meter-octets meter) octets))
  (let ((instruments (meter-instruments meter))
        (name (meter-name meter)))
    (when instruments
      (when (plusp octets) (metrics:add (instruments-octets instruments) octets name message))
      (when (plusp entries) (metrics:add (instruments-entries instruments) entries name)))))

(defun note-answered (meter message status began-ns)
  "Note that a MESSAGE that was sent at BEGAN-NS has ended with STATUS, :ok or another keyword."
  (let ((latency-ns (max 0 (- (loop:world-now) began-ns)))
        (instruments (meter-instruments meter)))
    (sb-thread:with-mutex ((meter-lock meter))
      (cond ((eq :ok status)
             (incf (meter-messages meter))
             (incf (meter-latency-ns meter) latency-ns))
            (t (incf (meter-failures meter)))))
    (when instruments
      (let ((name (meter-name meter)))
        (metrics:add (instruments-messages instruments) 1 name message (service-status-name status))
        (when (eq :ok status)
          (metrics:record (instruments-latency instruments) (ns-seconds latency-ns) name
                          message))))))

(defun service-status-name (status)
  (string-upcase (substitute #\_ #\- (string status))))

(defun note-queued (meter entries octets)
  "Add the differences, positive or negative, to the counts of the pipeline."
  (let ((instruments (meter-instruments meter)))
    (when instruments
      (metrics:add (instruments-queued-entries instruments) entries (meter-name meter))
      (metrics:add (instruments-queued-octets instruments) octets (meter-name meter)))))

(defun note-stream (meter)
  (sb-thread:with-mutex ((meter-lock meter))
    (incf (meter-streams meter))))
