;;;; A collector whose behaviour a test determines.

(in-package #:clgrpc.tests.otlp)

(defclass fake-collector (collector:metrics-service trace-collector:trace-service)
  (;; functions of the number of a request, from 0, called before it is taken
   (behaviour :initarg :behaviour :initform (constantly nil) :accessor collector-behaviour)
   (lock :initform (sb-thread:make-mutex) :reader collector-lock)
   (asked :initform 0 :accessor collector-asked) ; how many requests came
   (taken :initform '() :accessor collector-taken) ; the requests taken, newest first
   (metadata :initform '() :accessor collector-metadata)) ; of the last
  (:documentation "BEHAVIOUR may FAIL, wait, or return how many items are rejected, and why."))

(defun take-request (collector call request)
  "Perform COLLECTOR's behaviour for REQUEST; return its values."
  (let ((number (sb-thread:with-mutex ((collector-lock collector))
                  (prog1 (collector-asked collector)
                    (incf (collector-asked collector))))))
    (multiple-value-bind (rejected why) (funcall (collector-behaviour collector) number)
      (sb-thread:with-mutex ((collector-lock collector))
        (setf (collector-metadata collector) (grpc:call-metadata call))
        (push request (collector-taken collector)))
      (values rejected why))))

(defmethod metrics-service:export ((collector fake-collector) (request t) &key call)
  (multiple-value-bind (rejected why) (take-request collector call request)
    (collector:make-export-metrics-service-response
     :partial-success (when (or rejected why)
                        (collector:make-export-metrics-partial-success
                         :rejected-data-points (or rejected 0) :error-message (or why ""))))))

(defmethod trace-service:export ((collector fake-collector) (request t) &key call)
  (multiple-value-bind (rejected why) (take-request collector call request)
    (trace-collector:make-export-trace-service-response
     :partial-success (when (or rejected why)
                        (trace-collector:make-export-trace-partial-success
                         :rejected-spans (or rejected 0) :error-message (or why ""))))))

(defun call-with-collector (behaviour function)
  (let ((collector (make-instance 'fake-collector :behaviour behaviour)))
    (with-started (server (grpc:start-server (list collector) :listen "127.0.0.1:0") :drain 0)
      (funcall function collector (grpc:server-address server)))))

(defmacro with-collector ((collector address &optional (behaviour '(constantly nil))) &body body)
  "Evaluate BODY with COLLECTOR bound to one that listens at ADDRESS and has BEHAVIOUR."
  `(call-with-collector ,behaviour (lambda (,collector ,address)
                                     (declare (ignorable ,collector ,address))
                                     ,@body)))

(defmacro with-exporter ((exporter target &rest options) &body body)
  "Evaluate BODY with EXPORTER bound to one to TARGET; stop it."
  `(let ((,exporter (grpc:make-otlp-exporter ,target ,@options)))
     (unwind-protect (progn ,@body)
       (grpc:stop-exporter ,exporter :timeout 0))))

(defun statistic (exporter signal name)
  (getf (getf (grpc:exporter-statistics exporter) signal) name))
