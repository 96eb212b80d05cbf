;;;; The observer that reports calls to the tracers: see observer.lisp and base/log/tracer.lisp.

(in-package #:clgrpc.rpc)

(declaim (type function **call-ids**))
(defglobal **call-ids** (constantly '())
  "A function that tracing sets, or nil. The function takes a call and returns a plist of
identifiers for log events about that call.")

(defun log-call-event (call level event &rest plist)
  "As LOG-EVENT, for an event about CALL: the identifiers of CALL follow PLIST. From any thread."
  (apply #'log-event level event (append plist (funcall **call-ids** call))))

(defun trace-call-begun (call)
  (apply #'log-call-event call :trace :call-begun :tracer :call
         :role (call-role call) :method (call-path call)
         (append (operate particulars call)
                 (list :remaining (time-remaining call)))))

(defun trace-call-ended (call)
  (let ((outcome (call-outcome call)))
    (log-call-event call :trace :call-ended :tracer :call
                    :role (call-role call) :method (call-path call) :peer (call-peer call)
                    :status (call-status call)
                    :message (and outcome (outcome-message outcome))
                    :ended-by (and outcome (outcome-ended-by outcome))
                    :cause (and outcome (outcome-cause outcome)) :stages (call-stages call))))

(defun trace-attempt-begun (call peer stream)
  (when stream
    (log-call-event call :trace :call-on-stream :tracer :call
                    :role :client :method (call-path call) :peer peer :stream stream)))

(setf **tracing-observer**
      (make-observer :call-begun #'trace-call-begun :call-ended #'trace-call-ended
                     :attempt-begun #'trace-attempt-begun))
