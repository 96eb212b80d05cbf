;;;; Calls within a process: our side of the part inproc, as tests/peers/inproc.go is Go's. Loaded
;;;; after scripts/load.lisp by bench/parts/inproc.py. Prints "ready" and then, for each line of
;;;; standard input, makes one measurement and prints its results as a line of JSON: per operation
;;;; wall-clock time, CPU of the process and octets consed, and latencies in µs if they are wanted.
;;;;
;;;; A line is a JSON object: `transport`, see CONNECT; `case`, see DEFINE-CASE; `octets`, the
;;;; length of a message; `callers`, how many threads call at once; `latencies`, true to take the
;;;; time of each operation, which is work as well; `milliseconds`.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")

(defpackage #:clgrpc.bench
  (:use #:cl))

(in-package #:clgrpc.bench)

(defmacro define-service ()
  `(clgrpc:define-proto ,(namestring (merge-pathnames "proto/bench/inproc.proto"
                                                      clgrpc.scripts:*root*))))
(define-service)

(defpackage #:clgrpc.bench.exchange
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:inproc #:clgrpc.bench.inproc) (#:methods #:clgrpc.bench.inproc.exchange)
                    (#:loop #:clgrpc.loop) (#:wrappers #:google.protobuf)))

(in-package #:clgrpc.bench.exchange)

;;; The service: requests go back

(defconstant +streamed+ 100 "The messages of a stream.")

(defclass exchange (inproc:exchange) ())

(defmethod methods:ask ((service exchange) request &key)
  request)

(defmethod methods:watch ((service exchange) request &key call)
  (loop repeat +streamed+ do (grpc:send call request))
  nil)

(defmethod methods:collect ((service exchange) stream &key)
  (let ((last nil))
    (grpc:do-messages (message stream last) (setf last message))))

(defmethod methods:chat ((service exchange) stream &key call)
  (grpc:do-messages (message stream) (grpc:send call message)))

(defmethod methods:react ((service exchange) call &key)
  (grpc:on-message call (lambda (message) (grpc:send call message)))
  (grpc:on-half-close call (lambda () (grpc:finish call)))
  call)

;;; Transports

(defun start-loop ()
  "A loop that callers run while they wait."
  (let ((loop (loop:make-event-loop :reserve (loop:make-reserve) :caller-driven t)))
    (loop:launch-event-loop loop)
    loop))

(defun connect (transport)
  "Return a channel over TRANSPORT, a string, to an exchange in this process."
  (flet ((server (address)
           (grpc:start-server (make-instance 'exchange) :listen address :loops 1)))
    (if (string= transport "tcp")
        (grpc:make-channel (grpc:server-address (server "127.0.0.1:0")))
        (apply #'grpc:server-channel (server (format nil "inproc:~A" transport))
               (cond ((string= transport "inproc") '())
                     ((string= transport "share") '(:messages :share))
                     ((string= transport "threads") '(:threads t))
                     ((string= transport "loop") (list :on (start-loop)))
                     (t (error "There is no transport ~S." transport)))))))

;;; Cases. Each is a function of channel and request that returns two functions: one that makes an
;;; operation, or several, and returns how many; and one to call after the last.

(defvar *cases* (make-hash-table :test 'equal))

(defmacro define-case (name (channel request) &body body)
  "Define the case NAME, a string."
  `(setf (gethash ,name *cases*) (lambda (,channel ,request) ,@body)))

(defmacro define-operation (name (channel request) &body body)
  "Define the case NAME, a string, whose operation is BODY, a call of its own each time."
  `(define-case ,name (,channel ,request)
     (values (lambda () ,@body 1) (constantly nil))))

(defun octets-of (message)
  (length (the base:octets (wrappers:bytes-value-value message))))

(defun check (reply request)
  (unless (= (octets-of reply) (octets-of request)) (error "~S came back." reply)))

(define-operation "unary" (channel request)
  (check (methods:ask channel request) request))

(define-operation "server-stream" (channel request)
  (let ((count 0))
    (declare (type fixnum count))
    (grpc:do-messages (reply (methods:watch channel request))
      (check reply request)
      (incf count))
    (assert (= count +streamed+))))

(define-case "client-stream" (channel request)
  (let ((requests (make-list +streamed+ :initial-element request)))
    (values (lambda ()
              (check (methods:collect channel requests) request)
              1)
            (constantly nil))))

(define-operation "client-stream-sent" (channel request)
  (grpc:with-call (call (methods:collect channel :open))
    (loop repeat +streamed+ do (grpc:send call request))
    (grpc:close-send call)
    (check (grpc:receive call) request)))

(define-case "echo" (channel request)
  (let ((call (methods:chat channel :open)))
    (values (lambda ()
              (grpc:send call request)
              (check (grpc:receive call) request)
              1)
            (lambda ()
              (grpc:close-send call)
              (assert (null (grpc:receive call)))))))

;; the client speaks in the body of DO-MESSAGES, so that both sides may share a thread
(define-case "echo-consumed" (channel request)
  (values (lambda ()
            (let ((call (methods:chat channel :open))
                  (left 1000))
              (declare (type fixnum left))
              (grpc:send call request)
              (grpc:do-messages (reply call)
                (check reply request)
                (if (plusp (decf left)) (grpc:send call request) (grpc:close-send call)))
              (assert (zerop left))
              1000))
          (constantly nil)))

(define-case "echo-reactive" (channel request)
  (let ((call (methods:react channel :open))
        (done (sb-thread:make-semaphore))
        (left 0))
    (declare (type fixnum left))
    (grpc:on-message call (lambda (reply)
                            (check reply request)
                            (if (plusp (decf left))
                                (grpc:send call request)
                                (sb-thread:signal-semaphore done))))
    (grpc:on-half-close call (lambda () (sb-thread:signal-semaphore done)))
    (values (lambda ()
              (setf left 1000)
              (grpc:send call request)
              (sb-thread:wait-on-semaphore done)
              1000)
            (lambda ()
              (grpc:close-send call)
              (sb-thread:wait-on-semaphore done)))))

;;; Measuring

(defun operate-until (end case channel request latencies)
  "Make operations of CASE until END; return how many. Count their times in LATENCIES, unless nil."
  (declare (type base:nanoseconds end) (type (or null load:histogram) latencies)
           (type function case) (optimize (speed 1) (safety 1)))
  (multiple-value-bind (once done) (funcall case channel request)
    (declare (type function once done))
    (let ((count 0)
          (batch (if latencies 1 16)))
      (declare (type fixnum count batch))
      (loop with begin of-type base:nanoseconds = (base:monotonic-ns)
            while (< begin end)
            do (loop repeat batch do (incf count (the fixnum (funcall once))))
               (let ((now (base:monotonic-ns)))
                 (when latencies (load:record-value latencies (- now begin)))
                 (setf begin now)))
      (funcall done)
      count)))

(defun call-on-threads (count function)
  "Call FUNCTION on COUNT threads, on this thread if COUNT is 1; return the list of its values. Its
argument is a function to call before the work, which returns once all threads have called it."
  (let ((missing count) (lock (sb-thread:make-mutex)) (complete (sb-thread:make-waitqueue)))
    (flet ((gather ()
             (sb-thread:with-mutex (lock)
               (when (zerop (decf missing)) (sb-thread:condition-broadcast complete))
               (loop until (zerop missing) do (sb-thread:condition-wait complete lock)))))
      (if (= count 1)
          (list (funcall function #'gather))
          (mapcar #'sb-thread:join-thread
                  (loop repeat count
                        collect (sb-thread:make-thread function :arguments #'gather)))))))

(defun quantiles (histograms)
  (let ((latencies (load:merge-histograms histograms)))
    (loop for (name . share) in '(("p50" . 1/2) ("p90" . 9/10) ("p99" . 99/100)
                                  ("p99.9" . 999/1000))
          collect (cons name (/ (load:histogram-quantile latencies share) 1d3)))))

(defun measure (case channel &key octets callers latencies milliseconds)
  "Return the results of one measurement, an alist. Its time begins when all callers are ready, and
ends with the last operation."
  (let* ((value (base:make-octets octets))
         (histograms '())
         (lock (sb-thread:make-mutex))
         (consed (sb-ext:get-bytes-consed))
         (cpu (get-internal-run-time))
         (begin 0)
         (last 0)
         (count 0))
    (flet ((run (gather)
             (let ((histogram (and latencies (load:make-histogram)))
                   (request (wrappers:make-bytes-value :value value)))
               (funcall gather)
               (sb-thread:with-mutex (lock)
                 (when (zerop begin) (setf begin (base:monotonic-ns))))
               (let ((made (operate-until (+ begin (* 1000000 milliseconds)) case channel request
                                          histogram))
                     (now (base:monotonic-ns)))
                 (sb-thread:with-mutex (lock)
                   (when histogram (push histogram histograms))
                   (incf count made)
                   (setf last (max last now)))))))
      (call-on-threads callers #'run))
    (flet ((per-operation (figure) (/ figure (float count 1d0))))
      (list* (cons "operations" count)
             (cons "ns" (per-operation (- last begin)))
             (cons "cpu_ns" (per-operation (* 1000 (- (get-internal-run-time) cpu))))
             (cons "octets" (per-operation (- (sb-ext:get-bytes-consed) consed)))
             (and latencies (quantiles histograms))))))

(defun answer (request channels)
  "Return the answer to REQUEST, an alist."
  (flet ((field (name) (cdr (assoc name request :test #'string=))))
    (let* ((transport (field "transport"))
           (channel (or (gethash transport channels)
                        (setf (gethash transport channels) (connect transport))))
           (case (or (gethash (field "case") *cases*)
                     (error "There is no case ~S." (field "case")))))
      (measure case channel :octets (field "octets") :callers (field "callers")
                            :latencies (eq :true (field "latencies"))
                            :milliseconds (field "milliseconds")))))

(defun touch-nursery ()
  "Allocate five times as much as between two collections, so that all pages of the nursery are in
use: in a new process the first access to a page waits for the kernel."
  (let ((octets (base:make-octets 0)))
    (loop repeat (ceiling (* 5 (sb-ext:bytes-consed-between-gcs)) 1024)
          do (setf octets (base:make-octets 1000)))
    (length octets)))

(defun main ()
  (clgrpc:tune-collector)
  (touch-nursery)
  (format t "ready~%")
  (finish-output)
  (loop with channels = (make-hash-table :test 'equal)
        for line = (read-line *standard-input* nil)
        while line
        do (format t "~A~%" (base:write-json (answer (base:parse-json line) channels)))
           (finish-output)))

(main)
(clgrpc.scripts:quit 0)
