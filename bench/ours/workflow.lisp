;;;; Workflows of echo steps, done by two nodes and two workers of 16 tasks each, on an etcd.
;;;; Loaded after scripts/load.lisp by bench/workflows with the arguments: etcd's endpoint, a
;;;; namespace, how many workflows, how many steps each has, and the octets of the input. Prints
;;;; "ready" once nodes and workers are there, waits for a line, does the workflows, and prints the
;;;; seconds that this took and the number of requests that asked for their progress.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc")
(load-strictly "clgrpc-cluster/workflow")

(defpackage #:clgrpc.bench.workflow
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:etcd #:clgrpc.etcd) (#:workflow #:clgrpc.workflow)))

(in-package #:clgrpc.bench.workflow)

(defconstant +callers+ 16 "How many threads start workflows at once.")

(defun start-all (channel count steps octets)
  "Start COUNT workflows of STEPS echo steps, with an input of OCTETS."
  (let ((next -1) (lock (sb-thread:make-mutex))
        (steps (loop repeat steps collect "echo"))
        (input (make-string octets :initial-element #\x)))
    (flet ((next () (sb-thread:with-mutex (lock) (incf next))))
      (mapc #'sb-thread:join-thread
            (loop repeat +callers+
                  collect (sb-thread:make-thread
                           (lambda ()
                             (loop for i = (next)
                                   while (< i count)
                                   do (workflow:start-workflow channel (format nil "order-~6,'0D" i)
                                                              steps :input input
                                                                    :call-timeout 60)))))))))

(defun await-all (etcd namespace count)
  "Wait until COUNT workflows have completed. Return how many requests this took."
  (loop for requests from 1
        until (= count (etcd:count-entries
                        etcd :prefix (format nil "clgrpc/workflows/~A/by/completed/" namespace)))
        do (sleep 1/10)
        finally (return requests)))

(defun run (endpoint namespace count steps octets)
  (let* ((etcds (loop repeat 2 collect (etcd:make-etcd endpoint)))
         (nodes (loop for etcd in etcds
                      collect (workflow:make-workflow-service etcd :namespace namespace)))
         (servers (loop for node in nodes collect (grpc:start-server node :listen "127.0.0.1:0")))
         (channels (loop repeat 3
                         collect (grpc:make-channel (format nil "ipv4:~{~A~^,~}"
                                                            (mapcar #'grpc:server-address servers))
                                                    :balance :round-robin)))
         (workers (loop for channel in (rest channels)
                        collect (workflow:start-worker channel
                                                       :kinds (list (cons "echo"
                                                                          #'workflow:task-input))
                                                       :concurrency 16))))
    (sleep 2)
    (format t "ready~%")
    (finish-output)
    (read-line)
    (let ((begin (get-internal-real-time)))
      (start-all (first channels) count steps octets)
      (let ((requests (await-all (first etcds) namespace count)))
        (format t "~,3F ~D~%" (/ (- (get-internal-real-time) begin) internal-time-units-per-second)
                requests)
        (finish-output)))
    (dolist (worker workers) (workflow:stop-worker worker :drain 5))
    (mapc #'grpc:close-channel channels)
    (dolist (server servers) (grpc:stop-server server :drain 1))
    (mapc #'workflow:close-workflow-service nodes)
    (mapc #'etcd:close-etcd etcds)))

(destructuring-bind (endpoint namespace . numbers) (uiop:command-line-arguments)
  (apply #'run endpoint namespace (mapcar #'parse-integer numbers)))
