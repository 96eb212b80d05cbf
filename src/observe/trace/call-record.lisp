;;;; The data of tracing about a call: its RECORD, a value on the call. A client's stub notes the
;;;; call's parent, the span or call that is current on its thread, since the call may begin on
;;;; another. A record has its ids as words and makes a context from them only when one is
;;;; requested, so that a client's call that is not recorded costs little. A server's call on the
;;;; wire has no record before its context is requested: its metadata or, without these, its id,
;;;; which is chosen for that purpose, determine whether it is recorded.

(in-package #:clgrpc.trace)

(declaim (inline make-record))          ; so that ids are not boxed
(defstruct (record (:include span-context) (:copier nil))
  "The data of tracing about a call."
  (tracing nil :type tracing :read-only t) ; the tracing of the call
  (queue nil :type queue :read-only t)  ; the queue of spans of the call's loop
  (parent nil :type (or null trace-context) :read-only t) ; the parent of the call's span
  (baggage "" :type simple-string :read-only t) ; the baggage that is passed on with the call
  (span nil :type (or null span))       ; nil if the trace is not recorded
  (made nil :type (or null trace-context)) ; the context, once it has been requested
  (tries '() :type list)                ; (KEY . SPAN) of the attempts under way, newest first, if
                                        ; the trace is recorded
  (attempts 0 :type index))             ; how many attempts have begun

(declaim (sb-ext:freeze-type record))

(define-printer (record record)
  "~A" (record-context record))

(defun record-state (record)
  "The tracestate of RECORD's call, which is its parent's."
  (if (record-parent record) (context-state (record-parent record)) ""))

(defun record-context (record)
  (or (record-made record)
      (setf (record-made record)
            (make-trace-context :high (record-high record) :low (record-low record)
                                :id (record-id record) :sampled (and (record-span record) t)
                                :state (record-state record)
                                :baggage (record-baggage record)))))

(define-hot (known-record :inline t) ((call call)) t
  "The note about CALL: before it begins, the context of its parent; afterwards its RECORD; nil if
CALL is not traced or, at a server on the wire, not recorded."
  (declare (inline call-value))
  (values (call-value call 'record)))

(defun call-record (call)
  "Return the value of KNOWN-RECORD for CALL; but a server's call that is traced and not recorded
gets its record now. From any thread."
  (rpc:late-value call 'record))

(defun seed-ids (ids queue)
  "Initialize IDS, of QUEUE. On its loop."
  (setf (ids-seed ids) (chance-seed (loop:event-loop-random (queue-loop queue)))))

(define-hot (seeded-ids :inline t) ((queue queue)) ids
  "The source of QUEUE's ids, initialized now unless it has been. On its loop."
  (let ((ids (queue-ids queue)))
    (when (zerop (ids-seed ids)) (seed-ids ids queue))
    ids))

(define-hot begin-record ((tracing tracing) (queue queue) (parent (or null trace-context)) low)
    record
  "A record of TRACING, without a span, for a call on QUEUE's loop with PARENT, which may be nil.
Without PARENT, or if PARENT has no data, the trace is new, and LOW, unless it is nil, is the lower
half of the trace's id."
  (let* ((shared (null (queue-loop queue)))
         (ids (if shared (queue-ids queue) (seeded-ids queue)))
         (baggage (if parent (context-baggage parent) "")))
    (if (and parent (not (bare-p parent)))
        (make-record :tracing tracing :queue queue :parent parent :baggage baggage
                     :high (context-high parent) :low (context-low parent)
                     :id (next-id ids shared))
        (make-record :tracing tracing :queue queue :baggage baggage
                     :high (next-id ids shared)
                     :low (if low (the id low) (next-id ids shared))
                     :id (next-id ids shared)))))

(define-hot sampled-p ((record record)) t
  "True if RECORD's call gets a span, by the sampler's decision."
  (funcall (tracing-sampler (record-tracing record)) (record-parent record) record))

(defun begin-record-span (record name kind)
  "Give RECORD's call its span, and return it."
  (setf (record-made record)
        (make-trace-context :high (record-high record) :low (record-low record)
                            :id (record-id record) :sampled t :state (record-state record)
                            :baggage (record-baggage record))
        (record-span record)
        (begin-span (record-tracing record) (record-queue record) name kind
                    (record-made record) (record-parent record))))

(defun child-context (record)
  "The context of a new span whose parent is the span of RECORD's call."
  (let ((queue (record-queue record)))
    (make-trace-context :high (record-high record) :low (record-low record)
                        :id (next-id (queue-ids queue) (null (queue-loop queue)))
                        :sampled t :state (record-state record)
                        :baggage (record-baggage record))))
