;;;; Many timers of one moment, and dates that are wrong, on a slow way to the store.

(in-package #:clgrpc.tests.simulation)

(defun boot-dated-node (name ahead)
  "Serve workflows at the host NAME, whose date is AHEAD seconds ahead."
  (let* ((etcd (etcd:make-etcd "store:2379" :timeout 5))
         (service (workflow:make-workflow-service
                   etcd :clock (lambda ()
                                 (+ (clgrpc.loop:unix-ns) (* 1000000000 (funcall ahead))))))
         (server (grpc:start-server service :listen (format nil "~A:50051" name))))
    (lambda (drain)
      (grpc:stop-server server :drain (or drain 0))
      (workflow:close-workflow-service service)
      (etcd:close-etcd etcd))))

(defun add-dated-node (shop name &optional (ahead (constantly 0)))
  (push (sim:add-host name (lambda () (boot-dated-node name ahead))) (shop-nodes shop)))

(defmacro with-shop ((shop simulation) &body body)
  "Evaluate BODY, which adds nodes, with SHOP, that has a store and a user."
  `(let ((,shop (make-shop :simulation ,simulation
                           :chance (sim:make-chance (sim:simulation-seed ,simulation)))))
     (add-store ,shop)
     (setf (shop-user ,shop) (sim:add-host "user"))
     ,@body
     (dolist (host (append (shop-workers ,shop) (shop-nodes ,shop))) (sim:stop-host host :drain 1))
     (finish-lab ,shop)))

(defmacro with-user ((channel shop name) &body body)
  "Evaluate BODY at the user of SHOP, who calls the node NAME by CHANNEL."
  `(sim:on-host ((shop-user ,shop))
     (grpc:with-channel (,channel (format nil "~A:50051" ,name))
       ,@body)))

(defun statuses (channel)
  "The statuses of all workflows, in the order of their ids."
  (let ((found '()))
    (workflow:map-workflows (lambda (summary)
                              (push (cons (clgrpc.workflow.v1:workflow-summary-id summary)
                                          (clgrpc.workflow.v1:workflow-summary-status summary))
                                    found))
                            channel :timeout 60)
    (mapcar #'cdr (sort found #'string< :key #'car))))

(defun start-alike (channel name count steps &rest arguments)
  (dotimes (i count)
    (apply #'workflow:start-workflow channel (format nil "~A~4,'0D" name i) steps arguments)))

;;; A thousand timers

(defun boot-holder ()
  "Hold a task for ever, in a session of four seconds."
  (let* ((channel (grpc:make-channel "n1:50051"))
         (worker (workflow:start-worker
                  channel :kinds (list (cons "held" (lambda (task)
                                                      (loop while (workflow:task-held-p task)
                                                            do (sim:wait-for 1/10)))))
                          :session-seconds 4)))
    (lambda (drain)
      (workflow:stop-worker worker :drain (or drain 0))
      (grpc:close-channel channel))))

(defun holder-of (channel id)
  "The session that has the task of the workflow ID."
  (clgrpc.workflow.v1:workflow-state-session
   (clgrpc.workflow.v1:get-workflow-state-reply-state
    (workflow:workflow-state channel id :timeout 60))))

(defun run-many-timers (simulation)
  "A thousand timers of one moment are done in few transactions; the task of a worker that has died
just before is no more that worker's seven seconds later, of which its session had four."
  (with-shop (shop simulation)
    (add-dated-node shop "n1")
    (push (sim:add-host "k1" #'boot-holder) (shop-workers shop))
    (sim:wait-for 1)
    (with-user (channel shop "n1")
      (let ((begin (clgrpc.loop:world-now)) (span 400))
        (start-alike channel "held" 1 '("held"))
        ;; each begins a little later, and all are to end at once
        (dotimes (i 1000)
          (workflow:start-workflow
           channel (format nil "t~4,'0D" i)
           `((:wait ,(- span (/ (- (clgrpc.loop:world-now) begin) 1000000000))))))
        (sim:wait-for (- span 1 (/ (- (clgrpc.loop:world-now) begin) 1000000000)))
        (let ((revision (memory:engine-revision (lab-engine shop)))
              (session (holder-of channel "held0000")))
          (sim:restart-host (first (shop-workers shop)) :down 2)
          (sim:wait-for 7)
          (when (string= session (holder-of channel "held0000"))
            (complain "the task of a worker that died is still that worker's"))
          (unless (sim:wait-until (lambda ()
                                    (= 1000 (count :completed (statuses channel))))
                                  :timeout 30)
            (complain "~D timers were done" (count :completed (statuses channel))))
          (let ((made (- (memory:engine-revision (lab-engine shop)) revision)))
            (unless (< made 150) (complain "~D transactions for 1000 timers" made))))
        (workflow:cancel-workflow channel "held0000")))))

(test timers-of-one-moment
  (is (= 1 (sim:run-seeds 'run-many-timers :count 1 :latency '(1/50 1/40)))))

;;; Dates that are wrong

(defconstant +eight-days+ 691200)

(defun start-what-a-wrong-date-would-end (channel)
  "Start workflows that have ended, that wait for a signal for a day, and for three days' time."
  (start-alike channel "a-ended" 5 '((:wait 0)))
  (start-alike channel "b-signal" 5 '((:signal "x" :timeout 86400)) :timeout 172800)
  (start-alike channel "c-timer" 5 '((:wait 259200)))
  (sim:wait-for 3))

(defun check-nothing-has-come (channel name)
  (let ((wanted (append (make-list 5 :initial-element :completed)
                        (make-list 10 :initial-element :running)))
        (found (statuses channel)))
    (unless (equal wanted found)
      (complain "~A: ~S is left of what is to be kept" name found))))

(defun run-wrong-dates (simulation)
  "Nodes whose date is eight days ahead, or is set so, end nothing: beside a right one, beside two,
or alone in the end. Nor does one that is behind hold up what is due."
  (with-shop (shop simulation)
    (add-dated-node shop "right")
    (sim:wait-for 1)
    (with-user (channel shop "right")
      (start-what-a-wrong-date-would-end channel)
      (add-dated-node shop "wrong" (constantly +eight-days+))
      (sim:wait-for 60)
      (check-nothing-has-come channel "a wrong node beside a right one")
      (let ((ahead 0))
        ;; two wrong ones of three would be most
        (sim:restart-host (find "wrong" (shop-nodes shop) :key #'sim:host-name :test #'string=)
                          :down 40)
        (add-dated-node shop "set" (lambda () ahead))
        (sim:wait-for 20)
        (setf ahead +eight-days+)
        (sim:wait-for 15)
        (check-nothing-has-come channel "one of two that is set eight days ahead")
        (setf ahead (- +eight-days+))
        (sim:wait-for 30)
        (check-nothing-has-come channel "one that is set back")
        (setf ahead 0)
        (sim:wait-for 60)
        (check-nothing-has-come channel "one wrong of three")
        (setf ahead +eight-days+)
        (sim:wait-for 12)
        (setf ahead 0)
        (sim:wait-for 20)
        (check-nothing-has-come channel "two wrong of three for twelve seconds"))
      (workflow:start-workflow channel "d-soon" '((:wait 5)))
      (unless (eq :completed (workflow:await-workflow channel "d-soon" :timeout 8))
        (complain "a timer of five seconds does not end in eight")))
    ;; the wrong one is alone
    (dolist (host (remove "wrong" (shop-nodes shop) :key #'sim:host-name :test #'string=))
      (sim:stop-host host :drain 0))
    (sim:wait-for 60)
    (with-user (channel shop "wrong")
      (check-nothing-has-come* channel))))

(defun check-nothing-has-come* (channel)
  (unless (equal '(:completed :completed :completed :completed :completed)
                 (subseq (statuses channel) 0 5))
    (complain "a wrong node that is alone has ended what was to be kept"))
  (unless (= 10 (count :running (statuses channel)))
    (complain "a wrong node that is alone has brought about what was not due")))

(test dates-that-are-wrong-end-nothing
  (is (= 5 (sim:run-seeds 'run-wrong-dates :count 5 :latency '(1/10000 1/1000)))))
