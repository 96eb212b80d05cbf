;;;; The services of a cluster as they are, for the part services: a node with its membership,
;;;; workflows and Raft's transport, called over loopback by one caller. Loaded after
;;;; scripts/load.lisp by bench/parts/services.py. Prints "ready" and then answers each line of
;;;; standard input, a JSON object, with one: by its `do`
;;;;
;;;; - `serve` starts a node whose state is in `store`, "memory" or "etcd:HOST:PORT";
;;;; - `measure` makes calls of `case` to it for `milliseconds`, one after the other, and returns
;;;;   nanoseconds per call (`ns`), and p50 and p99 of the latencies in µs.

(in-package #:clgrpc.scripts)

(dolist (system '("clgrpc-tools" "clgrpc-cluster" "clgrpc-cluster/workflow" "clgrpc-cluster/raft"))
  (load-strictly system))

(defpackage #:clgrpc.bench.services
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:cluster #:clgrpc.cluster) (#:members #:clgrpc.cluster.v1)
                    (#:membership #:clgrpc.cluster.v1.cluster)
                    (#:workflow #:clgrpc.workflow) (#:flows #:clgrpc.workflow.v1)
                    (#:raft #:clgrpc.raft) (#:v1 #:clgrpc.raft.v1)))

(in-package #:clgrpc.bench.services)

(defvar *permissions* (mapcar (lambda (role) (cons role "anyone"))
                              '(:start :work :read :operate :join)))

(defclass follower () ()
  (:documentation "A member of a group of Raft that says yes and keeps nothing."))

(defmethod raft:handle-request-vote ((follower follower) request &key)
  (declare (ignore request))
  (v1:make-request-vote-response :term 1 :granted t))

(defmethod raft:handle-append-entries ((follower follower) request &key)
  (v1:make-append-entries-response
   :term 1 :success t :match-index (length (v1:append-entries-request-entries request))))

(defun make-cases (channel peer)
  "Functions of no arguments by the names of cases, which make one call each, or two."
  (let ((entries (v1:make-append-entries-request
                  :term 1 :entries (list (v1:make-entry
                                          :index 1 :term 1
                                          :data (make-array 100 :element-type '(unsigned-byte 8)
                                                                :initial-element 7))))))
    (flet ((join ()
             (members:member-generation
              (members:join-response-member
               (membership:join channel (members:make-join-request :name "guest"
                                                                   :address "127.0.0.1:1"))))))
      `(("join-leave" . ,(lambda ()
                           (membership:leave channel (members:make-leave-request
                                                      :name "guest" :generation (join)))))
        ("members" . ,(lambda () (membership:members channel (members:make-members-request))))
        ("stale" . ,(lambda ()
                      (membership:members channel (members:make-members-request :stale t))))
        ("state" . ,(lambda () (workflow:workflow-state channel "w")))
        ("vote" . ,(lambda () (raft:request-vote peer (v1:make-request-vote-request :term 1))))
        ("append" . ,(lambda () (raft:append-entries peer entries)))))))

(defun serve (store)
  "Start a node whose state is in STORE. Return the cases of a channel to it."
  (let* ((etcd (cluster:open-store store))
         (workflows (workflow:make-workflow-service etcd :allow *permissions*))
         (rafts (raft:make-raft-service))
         (node (cluster:start-node "bench" :store etcd :services (list workflows rafts)
                                           :allow *permissions*))
         (address (grpc:server-address (cluster:node-server node)))
         (channel (grpc:make-channel address)))
    (raft:add-group rafts "group" "b" (make-instance 'follower))
    (workflow:start-workflow channel "w" '((:signal "go") (:task "work")) :input "in")
    (make-cases channel (raft:make-peer "b" address :group "group" :sender "a"))))

(defun measure (function milliseconds)
  (let* ((latencies (load:make-histogram)) (begin (base:monotonic-ns))
         (end (+ begin (* 1000000 milliseconds))))
    (loop with now = begin
          while (< now end)
          do (funcall function)
             (load:record-value latencies (- (base:monotonic-ns) now))
             (setf now (base:monotonic-ns)))
    (flet ((quantile (share) (/ (load:histogram-quantile latencies share) 1d3)))
      `(("ns" . ,(/ (- (base:monotonic-ns) begin) (float (load:histogram-count latencies) 1d0)))
        ("p50" . ,(quantile 1/2)) ("p99" . ,(quantile 99/100))))))

(defun main ()
  (clgrpc:tune-collector)
  (format t "ready~%")
  (finish-output)
  (loop with cases = '()
        for line = (read-line *standard-input* nil)
        while line
        do (let ((request (base:parse-json line)))
             (flet ((field (name) (cdr (assoc name request :test #'string=))))
               (format t "~A~%"
                       (base:write-json
                        (cond ((string= "serve" (field "do"))
                               (setf cases (serve (field "store")))
                               '(("cases" . 6)))
                              (t (measure (cdr (assoc (field "case") cases :test #'string=))
                                          (field "milliseconds")))))))
             (finish-output))))

(main)
(clgrpc.scripts:quit 0)
