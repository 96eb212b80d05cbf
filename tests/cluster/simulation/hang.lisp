;;;; One node of three hangs, or is cut off: workers and users go on at the others. They are on
;;;; channels without any option but that they call all nodes by turns.

(in-package #:clgrpc.tests.simulation)

(defun boot-hands ()
  "Do steps at once, eight of them at a time."
  (let* ((channel (grpc:make-channel *nodes* :balance :round-robin))
         (worker (workflow:start-worker channel :kinds '(("a" . workflow:task-text))
                                                :concurrency 8)))
    (lambda (drain)
      (workflow:stop-worker worker :drain (or drain 0))
      (grpc:close-channel channel))))

(defun order-on (shop)
  "Start ten workflows a second, each on a task of its own, until SHOP wants no more."
  (loop for number from 0
        while (plusp (shop-wanted shop))
        do (let ((id (shop-id number)))
             (sim:start-task id (lambda ()
                                  (workflow:start-workflow (shop-channel shop) id '("a" "a" "a"))
                                  (incf (shop-started shop)))
                             :host (shop-user shop)))
           (sim:wait-for 1/10)))

(defun count-completed (shop seconds)
  "How many workflows complete within SECONDS."
  (let ((before (shop-completed shop)))
    (sim:wait-for seconds)
    (- (shop-completed shop) before)))

(defun run-hung-node (simulation)
  "See that three seconds after a node has been cut off from workers and users, and from them alone,
what they do is at least four fifths of what it was, and that no call of theirs has failed."
  (let ((shop (make-shop :simulation simulation :wanted 1
                         :chance (sim:make-chance (sim:simulation-seed simulation)))))
    (add-store shop)
    (setf (shop-nodes shop) (loop for name in '("n1" "n2" "n3")
                                  collect (let ((name name))
                                            (sim:add-host name (lambda () (boot-shop-node name)))))
          (shop-workers shop) (list (sim:add-host "k1" #'boot-hands))
          (shop-user shop) (sim:add-host "user"))
    (sim:wait-for 5)
    (sim:on-host ((shop-user shop))
      (setf (shop-channel shop) (grpc:make-channel *nodes* :balance :round-robin)
            (shop-watcher shop) (workflow:watch-workflow
                                 (lambda (change)
                                   (when (eq :completed (clgrpc.workflow.v1:change-status change))
                                     (incf (shop-completed shop))))
                                 (shop-channel shop) nil :timeout 60))
      (sim:start-task "orders" (lambda () (order-on shop)) :host (shop-user shop)))
    (sim:wait-for 2)
    (let ((healthy (count-completed shop 5)))
      (dolist (host (cons (shop-user shop) (shop-workers shop)))
        (sim:partition host (first (shop-nodes shop))))
      (sim:wait-for 3)
      (let ((left (count-completed shop 5)))
        (unless (and (<= 45 healthy) (<= (* 4/5 healthy) left))
          (complain "~D workflows completed in five seconds, and ~D once a node hung" healthy
                    left))))
    (setf (shop-wanted shop) 0)
    (sim:wait-for 1)
    (dolist (host (cons (shop-user shop) (shop-workers shop)))
      (sim:heal host (first (shop-nodes shop))))
    (sim:wait-for 30)
    (unless (= (shop-started shop) (shop-completed shop))
      (complain "~D workflows were started, ~D completed" (shop-started shop)
                (shop-completed shop)))
    (sim:on-host ((shop-user shop))
      (workflow:end-watching (shop-watcher shop))
      (grpc:close-channel (shop-channel shop)))
    (dolist (host (append (shop-workers shop) (shop-nodes shop))) (sim:stop-host host :drain 1))
    (finish-lab shop)))

(test (a-node-that-hangs-is-a-slow-second :suite :clgrpc.simulation.seeds)
  (let ((count (support:at-length 2 6)))
    (is (= count (apply #'sim:run-seeds 'run-hung-node :count count *options*)))))
