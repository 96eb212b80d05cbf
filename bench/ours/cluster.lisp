;;;; The calls of a cluster's nodes: our side of the part cluster, as bench/peers/cluster.go is
;;;; Go's. Loaded after scripts/load.lisp by bench/parts/cluster.py. Prints "ready" and then answers
;;;; each line of standard input, a JSON object, with one: by its `do`
;;;;
;;;; - `serve` begins to serve and returns the `address`;
;;;; - `counters` returns the process's consumption: `octets` consed and `cpu_ns`;
;;;; - `objects` makes `calls` calls of `case` between two histograms of the heap and returns
;;;;   how many objects each has allocated, on both sides if the server is this process;
;;;; - `measure` makes calls of `case` to `address` for `milliseconds`, `callers` at once in the
;;;;   `manner` "threads" (threads that block) or "ahead" (one thread, which awaits the oldest of
;;;;   them), and returns how many (`operations`), nanoseconds per call of all callers together
;;;;   (`ns`), and p50 and p99 of the latencies in µs.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")

(defpackage #:clgrpc.bench
  (:use #:cl))

(in-package #:clgrpc.bench)

(defmacro define-service ()
  (flet ((path (name) (namestring (merge-pathnames name clgrpc.scripts:*root*))))
    `(clgrpc:define-proto ,(path "proto/bench/cluster.proto") :import-paths (,(path "proto/")))))
(define-service)

(defpackage #:clgrpc.bench.cluster.program
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:profile #:clgrpc.profile) (#:cluster #:clgrpc.cluster.v1)
                    (#:raft #:clgrpc.raft.v1) (#:workflow #:clgrpc.workflow.v1)
                    (#:bench #:clgrpc.bench.cluster) (#:methods #:clgrpc.bench.cluster.node)))

(in-package #:clgrpc.bench.cluster.program)

;;; The service: tables in memory

(defclass node (bench:node)
  ((lock :initform (sb-thread:make-mutex :name "node") :reader node-lock)
   (members :initform (make-hash-table :test 'equal) :reader node-members)
   (workflows :initform (make-hash-table :test 'equal) :reader node-workflows)
   (revision :initform 0 :type unsigned-byte :accessor node-revision)
   (last-index :initform 0 :type unsigned-byte :accessor node-last-index)))

(defmacro with-node ((service) &body body)
  `(sb-thread:with-mutex ((node-lock ,service)) ,@body))

(defun make-workflow ()
  (workflow:make-get-workflow-state-reply
   :revision 17
   :state (workflow:make-workflow-state
           :id "order-1" :type "order" :status :running :version 7 :current 2
           :started-unix-ms 1763900000000 :fence 4 :session "worker-1"
           :steps (loop for number from 1 to 3
                        collect (workflow:make-step-state
                                 :number number :status (if (= number 3) :claimed :done)
                                 :attempts 1)))))

(defmethod initialize-instance :after ((service node) &key)
  (setf (gethash "order-1" (node-workflows service)) (make-workflow)))

(defmethod methods:join ((service node) request &key)
  (let ((member (cluster:make-member
                 :name (cluster:join-request-name request) :generation 2
                 :address (cluster:join-request-address request)
                 :instance (cluster:join-request-instance request)
                 :lease-seconds (cluster:join-request-lease-seconds request)
                 :state :member-state-serving)))
    (with-node (service)
      (setf (gethash (cluster:member-name member) (node-members service)) member)
      (cluster:make-join-response :member member :revision (incf (node-revision service))))))

(defmethod methods:leave ((service node) request &key)
  (with-node (service)
    (cluster:make-leave-response
     :left (remhash (cluster:leave-request-name request) (node-members service)))))

(defmethod methods:request-vote ((service node) request &key)
  (let ((term (raft:request-vote-request-term request)))
    (raft:make-request-vote-response :term term :granted t)))

(defmethod methods:append-entries ((service node) request &key)
  (let ((last (raft:append-entries-request-prev-log-index request)))
    (with-node (service)
      (loop for entry across (raft:append-entries-request-entries request)
            do (setf last (raft:entry-index entry)))
      (setf (node-last-index service) last))
    (raft:make-append-entries-response
     :term (raft:append-entries-request-term request) :success t :match-index last)))

(defmethod methods:get-workflow-state ((service node) request &key)
  (let ((id (workflow:get-workflow-state-request-id request)))
    (or (with-node (service) (gethash id (node-workflows service)))
        (grpc:fail :not-found (format nil "There is no workflow ~A." id)))))

;;; The calls

(defun append-request (octets)
  (raft:make-append-entries-request
   :term 3 :group "orders" :sender "node-1" :receiver "node-2" :prev-log-index 41
   :prev-log-term 3 :leader-commit 40
   :entries (list (raft:make-entry :index 42 :term 3 :data (base:make-octets octets)))))

(defparameter *cases*
  (list (list "join" #'methods:join
              (cluster:make-join-request :name "node-3" :address "10.0.0.3:7000"
                                         :lease-seconds 10 :instance "3f2504e0-4f89"))
        (list "leave" #'methods:leave
              (cluster:make-leave-request :name "node-9" :generation 1))
        (list "vote" #'methods:request-vote
              (raft:make-request-vote-request :term 3 :group "orders" :sender "node-1"
                                              :receiver "node-2" :last-log-index 41
                                              :last-log-term 2))
        (list "append-100" #'methods:append-entries (append-request 100))
        (list "append-10k" #'methods:append-entries (append-request 10240))
        (list "append-1m" #'methods:append-entries (append-request 1048576))
        (list "workflow" #'methods:get-workflow-state
              (workflow:make-get-workflow-state-request :id "order-1")))
  "Lists of a name, a stub and its request.")

(defun call-until (end method channel request)
  "Make one call after the other on this thread; return a histogram of their latencies."
  (declare (type base:nanoseconds end) (type function method))
  (let ((latencies (load:make-histogram)))
    (loop with begin of-type base:nanoseconds = (base:monotonic-ns)
          while (< begin end)
          do (funcall method channel request)
             (let ((now (base:monotonic-ns)))
               (load:record-value latencies (- now begin))
               (setf begin now)))
    latencies))

(defun call-ahead-until (end method channel request callers)
  "Keep CALLERS calls under way from this thread alone: it awaits the oldest and makes another."
  (declare (type base:nanoseconds end))
  (let ((latencies (load:make-histogram))
        (futures (make-array callers))
        (begins (make-array callers :element-type 'base:nanoseconds :initial-element 0)))
    (flet ((begin-call (i now)
             (setf (aref begins i) now
                   (aref futures i) (grpc:call-async method channel request)))
           (end-call (i)
             (grpc:await (aref futures i))
             (let ((now (base:monotonic-ns)))
               (load:record-value latencies (- now (aref begins i)))
               now)))
      (dotimes (i callers) (begin-call i (base:monotonic-ns)))
      (loop with now of-type base:nanoseconds = 0
            while (< now end)
            do (dotimes (i callers)
                 (setf now (end-call i))
                 (begin-call i now)))
      (dotimes (i callers) (end-call i)))
    latencies))

(defun calls (manner method channel request callers end)
  "Make calls until END, CALLERS at once in MANNER; return a histogram of their latencies."
  (cond ((string= manner "ahead") (call-ahead-until end method channel request callers))
        ((= callers 1) (call-until end method channel request))
        (t (load:merge-histograms
            (mapcar #'sb-thread:join-thread
                    (loop repeat callers
                          collect (sb-thread:make-thread
                                   #'call-until :arguments (list end method channel request))))))))

;;; Answers

(defun serve ()
  (let ((server (grpc:start-server (make-instance 'node) :listen "127.0.0.1:0")))
    `(("address" . ,(grpc:server-address server)))))

(defun counters ()
  `(("octets" . ,(sb-ext:get-bytes-consed)) ("cpu_ns" . ,(* 1000 (get-internal-run-time)))))

(defun measure (method channel request &key manner callers milliseconds)
  (let* ((begin (base:monotonic-ns))
         (latencies (calls manner method channel request callers
                           (+ begin (* 1000000 milliseconds))))
         (ns (- (base:monotonic-ns) begin))
         (count (load:histogram-count latencies)))
    (flet ((quantile (share) (/ (load:histogram-quantile latencies share) 1d3)))
      `(("operations" . ,count) ("ns" . ,(/ ns (float count 1d0)))
        ("p50" . ,(quantile 1/2)) ("p99" . ,(quantile 99/100))))))

(defun count-objects ()
  (loop for (nil nil count) being the hash-values of (profile:take-heap-histogram) sum count))

(defun objects (method channel request calls)
  "How many objects each of CALLS calls has allocated. A collection between the heap histograms
would spoil the number, so garbage is collected before them. A histogram counts the objects of the
one before, too; two in a row show how many these are."
  (sb-ext:gc)
  (let* ((at-first (count-objects))
         (before (count-objects)))
    (loop repeat calls do (funcall method channel request))
    (let ((objects (- (count-objects) before (- before at-first))))
      `(("objects" . ,(/ objects (float calls 1d0)))))))

(defun answer (request channels)
  (flet ((field (name) (cdr (assoc name request :test #'string=))))
    (flet ((channel ()
             (or (gethash (field "address") channels)
                 (setf (gethash (field "address") channels)
                       (grpc:make-channel (field "address")))))
           (is (what) (string= what (field "do"))))
      (destructuring-bind (&optional name method message)
          (assoc (field "case") *cases* :test #'equal)
        (declare (ignore name))
        (cond ((is "serve") (serve))
              ((is "counters") (counters))
              ((is "objects") (objects method (channel) message (field "calls")))
              ((is "measure")
               (measure method (channel) message :manner (field "manner")
                                                 :callers (field "callers")
                                                 :milliseconds (field "milliseconds")))
              (t (error "What is ~S?" (field "do"))))))))

(defun main ()
  (clgrpc:tune-collector)
  (format t "ready~%")
  (finish-output)
  (loop with channels = (make-hash-table :test 'equal)
        for line = (read-line *standard-input* nil)
        while line
        do (format t "~A~%" (base:write-json (answer (base:parse-json line) channels)))
           (finish-output)))

(main)
(clgrpc.scripts:quit 0)
