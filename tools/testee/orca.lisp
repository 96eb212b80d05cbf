;;;; xds.service.orca.v3.OpenRcaService (gRFC A51), as the interoperability tests want it: the
;;;; server reports the load that calls have given it.
;;;;
;;;; A subscriber occupies no thread: a timer of its call sends the present report. If the call has
;;;; no room, the timer sends nothing, so nothing is queued for a subscriber that does not read. A
;;;; report is never changed, but replaced. LOCK guards the subscribers and orders reports before
;;;; their end when the server stops; nothing waits while it is held.

(in-package #:clgrpc.testee)

(defconstant +min-report-interval+ 1/10
  "The minimum time between two reports of a stream, in seconds. It is also the default if the
request contains no interval.")

(defconstant +max-report-interval+ 3600
  "The maximum interval between reports, in seconds.")

(defclass load-report-service (orca:open-rca-service)
  ((report :initform (xds.data.orca.v3:make-orca-load-report) :accessor load-report)
   (subscribers :initform (make-hash-table :test 'eq) :reader service-subscribers)
   (stopping :initform nil :accessor service-stopping)
   (lock :initform (sb-thread:make-mutex :name "clgrpc reports") :reader service-lock))
  (:documentation "OpenRcaService that sends its LOAD-REPORT, an xds.data.orca.v3.OrcaLoadReport,
which any thread may set."))

(defun report-interval (request)
  "The number of seconds between the reports that REQUEST asks for."
  (let ((interval (orca:orca-load-report-request-report-interval request)))
    (min +max-report-interval+
         (max +min-report-interval+ (if interval (grpc:duration-in-seconds interval) 0)))))

(defun send-reports (service call interval)
  "Send CALL the report of SERVICE now and every INTERVAL seconds."
  (handler-case
      (progn (sb-thread:with-mutex ((service-lock service))
               (unless (service-stopping service) (grpc:try-send call (load-report service))))
             (grpc:after call interval (lambda () (send-reports service call interval))))
    ;; the call has ended meanwhile
    (grpc:rpc-error ())))

(defun dismiss-subscriber (call)
  (grpc:finish call :status :unavailable :message "the server is stopping"))

(defmethod orca-methods:stream-core-metrics ((service load-report-service) request &key call)
  (let ((subscribers (service-subscribers service)) (lock (service-lock service)))
    (grpc:on-cancel call (lambda () (sb-thread:with-mutex (lock) (remhash call subscribers))))
    (sb-thread:with-mutex (lock)
      ;; a call that has ended may have been removed already
      (unless (grpc:call-status call)
        (setf (gethash call subscribers) t)
        (when (service-stopping service) (dismiss-subscriber call))))
    (send-reports service call (report-interval request))
    call))

(defmethod grpc:note-server-stopping ((service load-report-service) server)
  (declare (ignore server))
  (sb-thread:with-mutex ((service-lock service))
    (setf (service-stopping service) t)
    ;; the server waits for its calls to end, and these calls would not end by themselves
    (loop for call being the hash-keys of (service-subscribers service)
          do (dismiss-subscriber call))))
