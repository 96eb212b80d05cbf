;;;; Counting by observers. There is a set of functions for a loop, whose baton is held when they
;;;; are called, and one for threads without a loop; both are made from the same forms.
;;;;
;;;; Plain requests of HTTP, which are not calls, are not counted.
;;;;
;;;; A server's calls by protocols other than gRPC count in target records of their own and have one
;;;; more attribute, clgrpc.protocol. Calls by gRPC have exactly the attributes of gRFC A66, so that
;;;; dashboards made for gRPC find the series that they know.

(in-package #:clgrpc.metrics)

(defstruct (exemplar (:constructor make-exemplar (value labels unix-ns)) (:copier nil))
  "An example of the calls that a bucket has counted."
  (value 0 :type (unsigned-byte 62) :read-only t) ; the value in ns
  (labels '() :type list :read-only t)  ; an alist of strings, such as trace_id
  (unix-ns 0 :type (unsigned-byte 62) :read-only t)) ; when the call ended

(declaim (sb-ext:freeze-type exemplar))

(define-printer (exemplar exemplar)
  "~D ~S" (exemplar-value exemplar) (exemplar-labels exemplar))

(declaim (inline labels-of))
(defun labels-of (exemplar call)
  "The labels that EXEMPLAR, an argument of MAKE-METRICS, gives for CALL; nil if it gives none."
  (and exemplar (funcall (the function exemplar) call)))

(defun keep-exemplar (series ns labels)
  "Store LABELS of a call, which took NS, in SERIES as an exemplar, unless they are nil."
  (when labels
    (let ((exemplars (or (series-exemplars series)
                         (setf (series-exemplars series)
                               (make-array (1+ (length (scale-bounds **latency**)))
                                           :initial-element nil)))))
      (setf (svref exemplars (bucket-of **latency** ns))
            (make-exemplar ns labels (real-time-ns))))))

;;; Runs

(define-hot settle-runs ((target-record target-record) (now nanoseconds)) null
  "Count the calls in the runs of TARGET-RECORD, which have ended at NOW."
  (dotimes (i (target-record-run-count target-record))
    (let* ((run (svref (target-record-runs target-record) i))
           (cells (series-cells (the series (run-series (the run run)))))
           (alike (max 0 (- (run-count run) (run-others run)))))
      (record-several cells +duration+ **latency** (max 0 (- now (run-began-ns run)))
                      (run-count run))
      (record-several cells +sent+ **size** (run-sent run) alike)
      (record-several cells +received+ **size** (run-received run) alike)
      (setf (run-status run) nil
            (run-method run) nil
            (run-count run) 0
            (run-others run) 0)))
  (setf (target-record-run-count target-record) 0)
  nil)

(defun end-runs (target-record)
  "End the runs of TARGET-RECORD, before its loop sends output."
  (settle-runs target-record (loop:read-clock (shard-loop (target-record-shard target-record))))
  (setf (target-record-due target-record) nil))

(define-hot begin-run ((target-record target-record) method (status symbol) (began-ns nanoseconds)
                       (sent (unsigned-byte 62)) (received (unsigned-byte 62)))
    boolean
  "As COUNT-IN-RUN, for a call that differs from the call before it."
  (let ((loop (shard-loop (target-record-shard target-record))))
    (when (and loop (not (loop:event-loop-stopping loop)))
      (when (= +runs+ (target-record-run-count target-record))
            (settle-runs target-record (loop:read-clock loop)))
      (unless (target-record-due target-record)
        (setf (target-record-due target-record) t)
        (loop:call-before-flush loop #'end-runs target-record))
      (let ((run (svref (target-record-runs target-record) (target-record-run-count target-record)))
            (series (series-of target-record (method-record-calls
                                              (method-record-of target-record method)) status)))
        (declare (type run run))
        (incf (target-record-run-count target-record))
        (setf (run-method run) method
              (run-status run) status
              (run-began-ns run) began-ns
              (run-series run) series
              (run-count run) 1
              (run-sent run) sent
              (run-received run) received
              (target-record-run target-record) run)
        t))))

(define-hot (count-in-run :inline t)
            ((target-record target-record) method (status symbol) (began-ns nanoseconds)
             (sent (unsigned-byte 62)) (received (unsigned-byte 62)))
    boolean
  "Note that a call of METHOD that began at BEGAN-NS has ended with STATUS and has SENT and RECEIVED
octets. The call is counted when the loop of TARGET-RECORD sends its answers. Return false if the
loop is about to stop and the call must be counted now."
  (let ((run (target-record-run target-record)))
    (cond ((and (eq status (run-status run))
                (eq method (run-method run))
                (= began-ns (run-began-ns run)))
           (setf (run-count run) (ldb (byte 32 0) (1+ (run-count run))))
           (unless (and (= sent (run-sent run)) (= received (run-received run)))
             (let ((cells (series-cells (the series (run-series run)))))
               (record-plainly cells +sent+ **size** sent)
               (record-plainly cells +received+ **size** received)
               (setf (run-others run) (ldb (byte 32 0) (1+ (run-others run))))))
           t)
          (t (values (begin-run target-record method status began-ns sent received))))))

(defun says-plain-p (call)
  (getf (operate particulars call) :plain))

(define-hot (plain-request-p :inline t) (call) t
  "True if CALL stands for a plain request of HTTP, not for a call."
  (let ((method (call-rpc-method call)))
    (and (or (null method) (zerop (method:rpc-method-number (the method:rpc-method method))))
         (says-plain-p call))))

(defmacro define-observers (name lambda-list documentation &body clauses)
  "Define NAME, a function of LAMBDA-LIST that returns an observer made of CLAUSES, the arguments of
RPC:MAKE-OBSERVER. In CLAUSES, TARGET-RECORD is the target record to count in. (TALLY cells at
value) adds to a cell, and (NOTE cells at scale value) adds to a histogram. (ON-LOOP FORM) is FORM
on a loop, else nil. (WITH-PROTOCOL (TARGET-RECORD CALL) BODY) is BODY with TARGET-RECORD bound to
the target record for CALL's protocol; calls without a loop have no protocol. The function gets
:target-record, a target record of a loop; or :target-records, a vector of the target records that
threads without a loop share."
  (flet ((version (count record bind)
           `(macrolet ((tally (cells at value) (list ',count cells at value))
                       (note (cells at scale value) (list ',record cells at scale value))
                       (on-loop (form) (and ,(not bind) form))
                       (with-protocol ((record call) &body body)
                         (declare (ignorable call))
                         (list* 'let (list (list record
                                                 ,(if bind
                                                      'record
                                                      '(list 'record-of-protocol record
                                                        (list 'operate 'protocol call)))))
                                body)))
              (rpc:make-observer :trusted t
               ,@(loop for (key arguments . all) in clauses
                       for declaration = (and (eq 'declare (first (first all))) (first all))
                       for body = (if declaration (rest all) all)
                       collect key
                       collect `(lambda ,arguments
                                  ,@(and declaration (list declaration))
                                  ,@(if bind
                                        `((let ((target-record (svref target-records
                                                                      (shared-place))))
                                            (declare (type target-record target-record))
                                            ,@body))
                                        body)
                                  nil))))))
    `(defun ,name (&key target-record target-records ,@lambda-list)
       ,documentation
       (declare (type (or null target-record) target-record)
                (type (or null simple-vector) target-records))
       (if target-record
           (let ((target-record target-record))
             (declare (type target-record target-record))
             ,(version 'count-plainly 'record-plainly nil))
           (let ((target-records target-records))
             (declare (type simple-vector target-records))
             ,(version 'count-atomically 'record-atomically t))))))

(define-observers server-observer (exemplar)
    "The observer that counts the calls and connections of servers."
  (:call-begun (call)
    (let ((method (call-rpc-method call)))
      (unless (plain-request-p call)
        (with-protocol (target-record call)
          (tally (method-record-cells (method-record-of target-record method)) +started+ 1)))))
  (:call-ended (call)
    (let ((method (call-rpc-method call)))
      (unless (plain-request-p call)
        (with-protocol (target-record call)
          (multiple-value-bind (sent received began-ns) (operate traffic call)
            (declare (type (unsigned-byte 62) sent received began-ns) (ignorable began-ns))
            (let ((status (call-status call))
                  (labels (labels-of exemplar call)))
              (unless (on-loop (and (null labels)
                                    (count-in-run target-record method status began-ns sent
                                                  received)))
                (let* ((series (series-of
                                target-record
                                (method-record-calls (method-record-of target-record method))
                                status))
                       (cells (series-cells series))
                       (ns (operate elapsed-ns call)))
                  (declare (type (unsigned-byte 62) ns))
                  (note cells +duration+ **latency** ns)
                  (note cells +sent+ **size** sent)
                  (note cells +received+ **size** received)
                  (keep-exemplar series ns labels)))))))))
  (:connection-begun (peer)
    (declare (ignore peer))
    (tally (target-record-cells target-record) +accepted+ 1))
  (:connection-ended (peer reason)
    (declare (ignore peer reason))
    (tally (target-record-cells target-record) +left+ 1))
  (:refused (option peer)
    (declare (ignore peer))
    (tally (labelled target-record :refusal (string-downcase option)) +padding+ 1)))

(define-observers client-observer (exemplar repeats)
    "The observer that counts the calls, attempts and connections of channels; if REPEATS is
true also retries and hedges."
  (:attempt-begun (call peer stream)
    (declare (ignore peer stream))
    (tally (method-record-cells (method-record-of target-record (call-rpc-method call))) +started+
           1))
  (:attempt-ended (call peer status stream sent received ns)
    (declare (ignore peer stream) (type (unsigned-byte 62) sent received ns))
    (let* ((method-record (method-record-of target-record (call-rpc-method call)))
           (series (series-of target-record (method-record-attempts method-record) status))
           (cells (series-cells series)))
      (note cells +duration+ **latency** ns)
      (note cells +sent+ **size** sent)
      (note cells +received+ **size** received)
      (keep-exemplar series ns (labels-of exemplar call))))
  (:call-ended (call)
    (let* ((method-record (method-record-of target-record (call-rpc-method call)))
           (series (series-of target-record (method-record-calls method-record) (call-status call)))
           (ns (operate elapsed-ns call)))
      (declare (type (unsigned-byte 62) ns))
      (note (series-cells series) +duration+ **latency** ns)
      (when repeats
        (multiple-value-bind (retries hedges again idle-ns) (operate repeats call)
          (declare (type (unsigned-byte 62) retries hedges again idle-ns))
          (let ((cells (method-record-cells method-record)))
            (when (plusp retries) (note cells +retries+ **retries** retries))
            (when (plusp hedges) (note cells +hedges+ **retries** hedges))
            (when (plusp again) (note cells +transparent-retries+ **transparent-retries** again))
            (when (plusp idle-ns) (note cells +retry-delay+ **latency** idle-ns)))))
      (keep-exemplar series ns (labels-of exemplar call))))
  (:subchannel-connected (peer)
    (declare (ignore peer))
    (tally (target-record-cells target-record) +connected+ 1))
  (:subchannel-disconnected (peer error)
    (declare (ignore peer))
    (tally (target-record-cells target-record) +disconnected+ 1)
    (tally (labelled target-record :disconnection error) +padding+ 1))
  (:subchannel-failed (reason)
    (declare (ignore reason))
    (tally (target-record-cells target-record) +failed+ 1))
  (:weights-updated (weights stale fallback)
    (let ((cells (target-record-cells target-record)))
      (when fallback (tally cells +fallbacks+ 1))
      (tally cells +stale+ stale)
      (tally cells +unusable+ (max 0 (- (count 0 weights :test #'=) stale)))
      (map nil (lambda (weight)
                 (note cells +weights+ **weights** (round (* 1000 (min weight 1000000000000)))))
           weights))))

(defmethod rpc:check-observer ((source metrics))
  source)

(defparameter *repeats*
  '("grpc.client.call.retries" "grpc.client.call.transparent_retries" "grpc.client.call.hedges"
    "grpc.client.call.retry_delay")
  "The instruments for which the attempts of calls after the first are counted.")

(defmethod rpc:observer-for ((source metrics) &key role target loop)
  (flet ((target-record (shard) (ensure-target-record shard role target nil)))
    (let ((where (if loop
                     (list :target-record (target-record (shard-of-loop source loop)))
                     (list :target-records (map 'simple-vector #'target-record
                                                (metrics-shared source)))))
          (exemplar (metrics-exemplar source)))
      (if (eq :server role)
          (apply #'server-observer :exemplar exemplar where)
          (apply #'client-observer :exemplar exemplar
                                   :repeats (some (lambda (instrument)
                                                    (member (instrument-name instrument)
                                                            *repeats* :test #'string=))
                                                  (metrics-instruments source))
                                   where)))))
