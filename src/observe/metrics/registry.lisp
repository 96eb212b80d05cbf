;;;; The METRICS object: its instruments, targets and shards. The object is given to servers and
;;;; channels as :observer; all servers and channels that have it are counted together.

(in-package #:clgrpc.metrics)

(defconstant +shared-shards+ 8
  "The number of shards for the threads that have no loop.")

(defconstant +most-targets+ 500
  "The maximum number of targets whose channels are counted separately; all others count as the
target \"other\".")

(defconstant +most-labels+ 64
  "The maximum number of texts, such as reasons of disconnections, that a target record counts
separately.")

(defclass metrics ()
  ((instruments :initarg :instruments :reader metrics-instruments) ; instruments that are on
   (keep-method :initarg :keep-method :reader metrics-keep-method) ; see MAKE-METRICS
   (keep-target :initarg :keep-target :reader metrics-keep-target) ; see MAKE-METRICS
   (exemplar :initarg :exemplar :reader metrics-exemplar) ; see MAKE-METRICS
   (optional-labels :initarg :optional-labels :reader metrics-optional-labels) ; see MAKE-METRICS
   (resource :initarg :resource :reader metrics-resource) ; see MAKE-METRICS
   ;; when the metrics began to count
   (started-ns :initform (real-time-ns) :reader metrics-started-ns)
   ;; guards the other slots
   (lock :initform (sb-thread:make-mutex :name "clgrpc metrics") :reader metrics-lock)
   (shards :initform '() :accessor metrics-shards) ; shards of loops, including unused shards
   (shared :reader metrics-shared)      ; a vector of the shards of other threads
   (targets :initform '() :accessor metrics-targets) ; targets that have counts of their own
   (loops :initform '() :accessor metrics-loops) ; loops of servers and channels that have it, weak
   (customs :initform '() :accessor metrics-customs) ; instruments of users, newest first
  (sets-lock :initform (sb-thread:make-mutex :name "clgrpc metrics sets")
             :reader metrics-sets-lock)  ; guards SETS; taken before LOCK
  (sets :initform '() :accessor metrics-sets)) ; a plist, see ENSURE-INSTRUMENTS
  (:documentation "Counts of servers, channels and the process: see MAKE-METRICS."))

(document-functions
  metrics-started-ns "Return the time at which METRICS began to count, in nanoseconds since 1970.
From any thread.")

(defmethod initialize-instance :after ((metrics metrics) &key)
  (setf (slot-value metrics 'shared)
        (coerce (loop repeat +shared-shards+ collect (make-shard metrics)) 'simple-vector)))

(defmethod print-object ((metrics metrics) stream)
  (print-unreadable-object (metrics stream :type t :identity t)
    (format stream "~D instruments"
            (+ (length (metrics-instruments metrics)) (length (metrics-customs metrics))))))

(defun name-p (text)
  "True if TEXT may name an instrument or an attribute."
  (and (stringp text)
       (< 0 (length text) 256)
       (alpha-char-p (char text 0))
       (every (lambda (char) (and (< (char-code char) 128)
                                  (or (alphanumericp char) (find char "._-/"))))
              text)))

(define-keyword-function make-metrics
    (&key enable disable optional-labels methods targets exemplar resource)
  "Return a metrics object, for :observer of START-SERVER, MAKE-CHANNEL and SERVER-CHANNEL, also in
a list with others. The object has the instruments in the table of doc/monitoring.md: the calls,
attempts and octets of gRFC A66, of all servers and channels that have it, together, and figures of
the process. ENABLE names instruments that are off by default, as strings (\"grpc.subchannel\" means
all whose names begin with that and a dot), or is T for all; DISABLE names instruments to turn off,
in the same way. OPTIONAL-LABELS names attributes, strings, that instruments have only on request.
METHODS and TARGETS select the names with series of their own. Each is a list of names, or a
predicate of a name such as \"helloworld.Greeter/SayHello\" or \"dns:///localhost:50051\"; other
names, and methods without generated code, are counted as \"other\". EXEMPLAR is a function that is
called with a call when the call, or an attempt of it, has ended. It returns an alist of strings,
such as ((\"trace_id\" . \"…\")), or nil; the alist is the exemplar of the last call of each bucket
of durations. EXEMPLAR is called on the call's loop and must not wait. An error in one of these
functions is logged; the name is then counted as \"other\", and no exemplar is kept. RESOURCE is an
alist of attributes that identify this process, such as ((\"service.name\" . \"shop\")), for
target_info in Prometheus. METRICS-TEXT and COLLECT read the counts. Signal MISUSE for a wrong
argument. From any thread."
  (check-type enable (or (eql t) list))
  (unless (and (listp resource)
               (every (lambda (row) (and (consp row) (name-p (car row)))) resource))
    (misuse ":resource is an alist of names of attributes and their values, not ~S." resource))
  (dolist (label optional-labels)
    (unless (find label **instruments** :key #'instrument-optional
                                        :test (lambda (label labels)
                                                (member label labels :test #'equal)))
      (misuse "No instrument has an optional label ~S." label)))
  (let ((off (find-instruments disable))
        (on (find-instruments enable)))
    (make-instance 'metrics
                   :instruments (remove-if-not
                                 (lambda (instrument)
                                   (and (or (instrument-default instrument)
                                            (member instrument on))
                                        (not (member instrument off))))
                                 **instruments**)
                   :keep-method (name-filter methods) :keep-target (name-filter targets)
                   :exemplar (exemplar-function exemplar) :optional-labels optional-labels
                   :resource resource)))

(defun check-function (function name)
  "The function that FUNCTION, the value of the keyword NAME, is or names; nil for nil. Signal
MISUSE for any other value."
  (typecase function
    ((or null function) function)
    ((and symbol (satisfies fboundp)) (fdefinition function))
    (t (misuse "~A is a function or nil, not ~S." name function))))

(defun name-filter (names)
  "A predicate of the names that NAMES, see MAKE-METRICS, keeps; it is always true if NAMES is nil."
  (typecase names
    (null (constantly t))
    (cons (unless (every (lambda (name) (typep name '(or string symbol))) names)
            (misuse "~S are not names of methods or targets." names))
          (lambda (name) (member name names :test #'string=)))
    (t (let ((function (check-function names ":methods or :targets")))
         (lambda (name)
           (values (loop:guarding (:observer-error) (funcall function name))))))))

(defun exemplar-function (exemplar)
  "A function that calls EXEMPLAR, of MAKE-METRICS. If EXEMPLAR signals an error, or returns a value
of another form, the returned function logs that and returns nil. Nil if EXEMPLAR is nil; no guard
if EXEMPLAR is a symbol with the property :TRUSTED."
  (let ((function (check-function exemplar ":exemplar")))
    (if (or (null function) (and (symbolp exemplar) (get exemplar :trusted)))
        function
        (lambda (call)
          (values (loop:guarding (:observer-error)
                    (let ((labels (funcall function call)))
                      (unless (and (listp labels)
                                   (every (lambda (label) (typep label '(cons string string)))
                                          labels))
                        (misuse "An exemplar is an alist of strings, not ~S." labels))
                      labels)))))))

;;; Shards of loops

(defmacro push-complete (item place)
  "Push ITEM onto PLACE, whose readers take no lock: they find ITEM complete. Return it."
  `(let* ((item ,item) (items (cons item ,place)))
     (sb-thread:barrier (:write))
     (setf ,place items)
     item))

(defun shard-of-loop (metrics loop)
  "The shard of METRICS for LOOP, the same one until LOOP stops. From any thread."
  (let ((new nil))
    (prog1 (sb-thread:with-mutex ((metrics-lock metrics))
             (or (find loop (metrics-shards metrics) :key #'shard-loop)
                 (let ((shard (or (find nil (metrics-shards metrics) :key #'shard-loop)
                                  (push-complete (make-shard metrics)
                                                 (metrics-shards metrics)))))
                   (setf new t)
                   (push (sb-ext:make-weak-pointer loop) (metrics-loops metrics))
                   (setf (shard-loop shard) loop)
                   shard)))
      (when new
        (loop:run-or-post loop (lambda ()
                                 (setf (loop:event-loop-timed loop) t)
                                 (loop:call-at-stop loop (lambda (loop)
                                                           (leave-shard metrics loop)))))))))

(defun leave-shard (metrics loop)
  "Release the shard of METRICS that belongs to LOOP, which stops."
  (sb-thread:with-mutex ((metrics-lock metrics))
    (let ((shard (find loop (metrics-shards metrics) :key #'shard-loop)))
      (when shard (setf (shard-loop shard) nil)))
    (setf (metrics-loops metrics)
          (remove-if (lambda (pointer)
                       (member (sb-ext:weak-pointer-value pointer) (list nil loop)))
                     (metrics-loops metrics)))))

(defun all-shards (metrics)
  (append (coerce (metrics-shared metrics) 'list) (metrics-shards metrics)))

(define-hot (shared-place :inline t) () (mod 8)
  "The number of the shared shard that this thread counts in, by the address of its stack, because
stacks are megabytes apart."
  (let ((stack (ash (sb-sys:sap-int (sb-kernel:current-sp)) -20)))
    (logand 7 (logxor stack (ash stack -3)))))

;;; Target records and method records

;; Functions of users are called without the lock: they may count or read themselves, or take a lock
;; that is held by a counting thread

(defun kept-target (metrics target kept)
  "The value of grpc.target for TARGET; KEPT is the value of KEEP-TARGET for TARGET. The caller must
hold the metrics' lock."
  (cond ((member target (metrics-targets metrics) :test #'equal) target)
        ((or (>= (length (metrics-targets metrics)) +most-targets+) (not kept))
         "other")
        (t (push target (metrics-targets metrics))
           target)))

(defun ensure-target-record (shard role target protocol)
  "The target record of SHARD for ROLE, TARGET and PROTOCOL, a string or nil, made now if SHARD
lacks it. From any thread."
  (let* ((metrics (shard-metrics shard))
         (client (eq :client role))
         (kept (and client
                    (or (member target (metrics-targets metrics) :test #'equal)
                        (funcall (the function (metrics-keep-target metrics)) target)))))
    (sb-thread:with-mutex ((metrics-lock metrics))
      (let ((target (and client (kept-target metrics target kept))))
        (or (find-if (lambda (target-record)
                       (and (eq role (target-record-role target-record))
                            (equal target (target-record-target target-record))
                            (equal protocol (target-record-protocol target-record))))
                     (shard-target-records shard))
            (push-complete (make-target-record role target protocol shard)
                           (shard-target-records shard)))))))

(defun add-protocol-record (target-record protocol)
  "The target record, in addition to TARGET-RECORD, of the calls of servers that use PROTOCOL."
  (let ((new (ensure-target-record (target-record-shard target-record) :server nil
                                   (string-downcase protocol))))
    (setf (target-record-by-protocol target-record)
          (list* protocol new (target-record-by-protocol target-record)))
    new))

(define-hot (record-of-protocol :inline t) ((target-record target-record) (protocol symbol))
    target-record
  "The record in which calls of servers that use PROTOCOL count. For gRPC, and without a protocol,
this is TARGET-RECORD, a record of a loop, since gRFC A66 defines the attributes of gRPC's calls. On
the loop."
  (if (or (eq :grpc protocol) (null protocol))
      target-record
      (the (values target-record &optional)
           (or (getf (target-record-by-protocol target-record) protocol)
               (values (add-protocol-record target-record protocol))))))

(defun method-text (metrics method)
  "The value of grpc.method for METHOD, an RPC-METHOD or nil."
  (let ((name (and method
                   (plusp (method:rpc-method-number method))
                   (string-left-trim "/" (method:rpc-method-path method)))))
    (if (and name (funcall (the function (metrics-keep-method metrics)) name)) name "other")))

(defun add-method-record (target-record method)
  "The method record of TARGET-RECORD for METHOD, an RPC-METHOD or nil, made now unless another
thread has made it."
  (let* ((metrics (shard-metrics (target-record-shard target-record)))
         (number (if method (method:rpc-method-number method) 0))
         (text (method-text metrics method)))
    (sb-thread:with-mutex ((metrics-lock metrics))
      (let ((method-records (target-record-method-records target-record)))
        (when (>= number (length method-records))
          (setf method-records (replace (make-array (max (1+ number) (* 2 (length method-records)))
                                                    :initial-element nil)
                                        method-records)))
        (or (svref method-records number)
            (let ((method-record
                    (or (find text method-records
                              :key (lambda (other) (and other (method-record-method other)))
                              :test #'equal)
                        (make-method-record text))))
              (sb-thread:barrier (:write))
              (setf (svref method-records number) method-record)
              (sb-thread:barrier (:write))
              (setf (target-record-method-records target-record) method-records)
              method-record))))))

(define-hot (method-record-of :inline t) ((target-record target-record) method) method-record
  "The method record of TARGET-RECORD for METHOD, an RPC-METHOD or nil."
  (let ((method-records (target-record-method-records target-record))
        (number (if method (method:rpc-method-number (the method:rpc-method method)) 0)))
    (the (values method-record &optional)
         (or (and (< number (length method-records)) (svref method-records number))
             (values (add-method-record target-record method))))))

(defun add-series (target-record vector number)
  "The series of status code NUMBER in VECTOR, of a method record of TARGET-RECORD, made now unless
another thread has made it."
  (sb-thread:with-mutex ((metrics-lock (shard-metrics (target-record-shard target-record))))
    (or (svref vector number)
        (let ((series (make-series (make-cells +series-cells+))))
          (sb-thread:barrier (:write))
          (setf (svref vector number) series)))))

(define-hot (series-of :inline t)
            ((target-record target-record) (vector simple-vector) (status symbol)) series
  "The series of STATUS in VECTOR, of a method record of TARGET-RECORD."
  (let ((number (status-number status)))
    (the (values series &optional)
         (or (svref vector number) (values (add-series target-record vector number))))))

(defun labelled (target-record kind text)
  "The CELLS of TARGET-RECORD for KIND, a keyword, and TEXT."
  (sb-thread:with-mutex ((metrics-lock (shard-metrics (target-record-shard target-record))))
    (flet ((find-label (text)
             (cdr (find-if (lambda (entry)
                             (and (eq kind (car (first entry))) (string= text (cdr (first entry)))))
                           (target-record-labelled target-record))))
           (add-label (text)
             (cdr (push-complete (cons (cons kind text) (make-cells 1))
                                 (target-record-labelled target-record)))))
      (or (find-label text)
          (if (< (length (target-record-labelled target-record)) +most-labels+)
              (add-label text)
              (or (find-label "other") (add-label "other")))))))
