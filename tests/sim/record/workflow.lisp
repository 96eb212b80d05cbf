;;;; The course of workflows: what a node, its store, a worker and a user send each other.

(in-package #:clgrpc.tests.record)

(defun serve-workflows ()
  "Serve workflows at the host \"node\", with the store at \"store\"."
  (let* ((etcd (etcd:make-etcd "store:2379" :timeout 2))
         (service (workflow:make-workflow-service etcd))
         (server (grpc:start-server service :listen "node:50051")))
    (discovery:register server "shop" :etcd etcd :lease-seconds 9)
    (lambda (drain)
      (grpc:stop-server server :drain (or drain 0))
      (workflow:close-workflow-service service)
      (etcd:close-etcd etcd))))

(defun add-one (task)
  "A step: its input, and its attempt. The first attempt of one called \"weak\" fails."
  (sim:wait-for 1/10)
  (when (and (string= "weak" (workflow:task-kind task)) (= 1 (workflow:task-attempt task)))
    (error "too weak"))
  (format nil "~A~D" (workflow:task-text task) (workflow:task-attempt task)))

(defun do-orders (channel)
  "Start workflows, have them go on, and look at them."
  (workflow:start-workflow channel "w1" '("a" "weak" (:parallel ("a") ("a" "a")) "a") :input "x"
                                                                                    :type "letter")
  (workflow:start-workflow channel "w2" '((:signal "go") "a") :input "y")
  (sim:wait-for 1)
  (workflow:signal-workflow channel "w2" "go" nil :signal-id "s1")
  (workflow:start-workflow channel "w3" '((:wait 60) "a"))
  (workflow:create-schedule channel "tick" '("a") :every 2 :input "t")
  (sim:wait-for 5)
  (workflow:cancel-workflow channel "w3" :reason "enough")
  (workflow:delete-schedule channel "tick")
  (dolist (id '("w1" "w2" "w3"))
    (sim:note "~A" (workflow:workflow-state channel id :history t :result t)))
  (workflow:delete-workflow channel "w1")
  (workflow:map-workflows (lambda (summary) (sim:note "~A" summary)) channel))

(define-record workflows (server client :write 'write-dialogue)
    "Steps in parallel, one that fails at first, a signal, a cancellation, a schedule."
  (let ((engine (add-store)))
    (sim:add-host "node" #'serve-workflows)
    (sim:add-host "worker"
                  (lambda ()
                    (let* ((channel (grpc:make-channel "node:50051"))
                           (worker (workflow:start-worker
                                    channel :kinds '(("a" . add-one) ("weak" . add-one))
                                            :concurrency 2 :session-seconds 9)))
                      (lambda (drain)
                        (workflow:stop-worker worker :drain (or drain 0))
                        (grpc:close-channel channel)))))
    (sim:on-host ((sim:add-host "user"))
      (grpc:with-channel (channel "node:50051" :observer client)
        (do-orders channel)))
    (memory:close-engine engine)))
