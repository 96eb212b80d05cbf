;;;; Virtual time, and who runs.

(in-package #:clgrpc.tests.sim)

(test time-passes-while-the-body-waits
  (let ((start (monotonic-ns)))
    (sim:with-simulation (simulation :limit 1000000)
      (sim:wait-for 86400)
      (is (< 86399.999d0 (sim:now) 86400.001d0))
      (let ((seen '()))
        (sim:at 2 (lambda () (push 2 seen)))
        (sim:at 1 (lambda () (push 1 seen)))
        (is-true (sim:wait-until (lambda () (member 1 seen)) :timeout 5))
        (is (equal '(1) seen))
        (is (null (sim:wait-until (lambda () (member 2 seen)) :timeout 0.5)))
        (is-true (sim:wait-until (lambda () (member 2 seen))))))
    (is (> 20 (ns-seconds (- (monotonic-ns) start))))))

(test what-does-not-happen-is-not-awaited-for-ever
  "After so many steps, or so much time, a wait fails, and the simulation ends as always."
  (flet ((complaint (seconds &rest options)
           (handler-case
               (progn (sim:call-with-simulation
                       (fn (_simulation)
                         (sim:start-task "busy" (lambda () (loop (sim:wait-for seconds))))
                         (sim:wait-until (constantly nil)))
                       :limit (getf options :limit 1000000) :steps (getf options :steps 100000))
                      nil)
             (sim:simulation-hang (condition) (princ-to-string condition)))))
    (is (search "it made 1000 steps" (complaint 0.001 :steps 1000)))
    (is (search "nothing happened until 100" (complaint 1 :limit 100)))))

(test tasks-take-turns
  "One runs at a time, in an order that the seed says, and each goes on where it waited."
  (flet ((order (seed)
           (let ((order '()) (running 0) (most 0))
             (sim:with-simulation (simulation :seed seed)
               (flet ((start (name)
                        (sim:start-task name
                                        (lambda ()
                                          (dotimes (i 5)
                                            (setf most (max most (incf running)))
                                            (push name order)
                                            (decf running)
                                            (sim:wait-for 0))))))
                 (let ((tasks (mapcar #'start '("a" "b" "c"))))
                   (sim:wait-until (lambda () (every #'sim:task-done-p tasks))))))
             (is (= 15 (length order)))
             (is (= 1 most))
             order)))
    (is (equal (order 1) (order 1)))
    (is (< 1 (length (remove-duplicates (mapcar #'order '(1 2 3 4)) :test #'equal))))))

(test threads-that-wait-take-no-steps
  "Only those go on whose predicate is true, or signals an error, which they get; else a simulation
would do little but wake threads that wait on. What the predicate does is done once."
  (let ((lock (sb-thread:make-mutex)) (queue (sb-thread:make-waitqueue))
        (over nil) (came 0) (results '()))
    (sim:with-simulation (simulation)
      (flet ((start (predicate)
               (sim:start-task
                "waits"
                (lambda ()
                  (push (handler-case (loop:await-until queue lock (loop:notice-end 100) predicate)
                          (error () :error))
                        results)))))
        (let ((tasks (append (loop repeat 20 collect (start (lambda () (and over (incf came)))))
                             (list (start (lambda () (when over (error "over"))))
                                   (sim:start-task "busy" (lambda ()
                                                            (dotimes (i 1000) (sim:wait-for 1/1000))
                                                            (setf over t)))))))
          (sim:wait-until (lambda () (every #'sim:task-done-p tasks)))))
      (is (> 1200 (sim:simulation-steps simulation)))
      (is (= 20 came))
      (is (equal '(:error) (remove-if #'integerp results)))
      (is (= 20 (length (remove-duplicates (remove :error results))))))))

(test what-does-not-come-is-a-hang
  (sim:with-simulation (simulation)
    (signals sim:simulation-hang (sim:wait-until (constantly nil))))
  (sim:with-simulation (simulation :limit 10)
    (sim:add-host "server" (lambda () (start-echo)))
    (grpc:with-channel (channel "server:50051")
      (let ((call (lab.bench:watch channel (lab:make-note))))
        (signals sim:simulation-hang (grpc:receive call)))))
  (sim:with-simulation (simulation :steps 1000)
    (labels ((again () (sim:at 0.001 #'again)))
      (again)
      (sim:start-task "busy" (lambda () (loop (sim:wait-for 0.001))))
      (signals sim:simulation-hang (sim:wait-until (constantly nil))))))

(test handlers-may-wait-unless-they-are-inline
  (flet ((status (execution)
           (sim:with-simulation (simulation)
             (sim:add-host "server"
                           (lambda ()
                             (lab-server:start-probe
                              (list :ask (fn (note _call)
                                           (sim:wait-for 1)
                                           note))
                              :listen "server:50051" :execution execution)))
             (grpc:with-channel (channel "server:50051")
               (status-of-asking channel)))))
    (is (eq :ok (status :auto)))
    (is (eq :ok (status :blocking)))
    (is (eq :internal (status :inline)))))

(test an-error-in-a-task-is-in-the-trace
  (sim:with-simulation (simulation)
    (let ((task (sim:start-task "bad" (lambda () (error "As planned.")))))
      (sim:wait-until (lambda () (sim:task-done-p task)))
      (is (search "As planned." (sim:simulation-entries simulation))))))

(test a-task-whose-thread-ends-is-done
  "Its turn goes back to the scheduler, however its thread is left."
  (sim:with-simulation (simulation)
    (let ((task (sim:start-task "aborted" #'sb-thread:abort-thread)))
      (sim:wait-until (lambda () (sim:task-done-p task)))
      (is (search "its thread ended" (sim:simulation-entries simulation)))
      (let ((next (sim:start-task "next" (lambda () (sim:wait-for 1)))))
        (is-true (sim:wait-until (lambda () (sim:task-done-p next))))))))

(test deadlines-are-virtual
  "A call ends when its deadline has come, by no more than some turns late."
  (with-echo (channel :simulation simulation)
    (is (= 1 (ask channel 1)))
    (dolist (timeout '(1/1000 1 60 500))
      (let ((seconds (seconds-of
                       (handler-case (grpc:receive (lab.bench:watch channel (lab:make-note)
                                                                    :timeout timeout))
                         (grpc:deadline-exceeded () nil)))))
        (is (<= timeout seconds (+ timeout 0.001)))))))
