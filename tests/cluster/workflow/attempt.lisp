;;;; Attempts: how long they may take, what is done alone, and who is told that a task is lost.

(in-package #:clgrpc.tests.workflow)
(in-suite :clgrpc.workflow)

(test attempts-end-that-take-too-long
  "An attempt whose step has no limit of its own ends when its worker is heard of after the node's."
  (let ((ahead 0))
    (with-memory-node (node :attempt-seconds 60
                            :clock (lambda () (+ (loop:unix-ns) (* ahead 1000000000))))
      (let* ((session (open-a-session node)) (task (progn (start-workflow node "w" '("a"))
                                                          (first (claim node session '("a"))))))
        (flet ((lost ()
                 (length (pb:heartbeat-reply-lost
                          (workflow::ask #'methods:heartbeat node
                                         (pb:make-heartbeat-request
                                          :session session
                                          :held (list (pb:make-held :id "w"
                                                                    :fence (pb:task-fence task))))
                                         10)))))
          (is (= 60000 (pb:task-timeout-ms task)))
          (is (zerop (lost)))
          (setf ahead 61)
          (is (= 1 (lost)))
          (let ((step (step-at (state-of node "w") 0)))
            (is (eq :pausing (pb:step-state-status step)))
            (is (= 1 (pb:step-state-attempts step)) "it was an attempt"))
          (signals claim-lost (report node task "late")))))))

(defun task-lost-so-often (losses)
  (workflow::make-task (pb:make-task :id "w" :fence 1 :kind "a" :losses losses) nil))

(test what-was-lost-again-and-again-is-done-alone
  "It waits for what is under way; what comes meanwhile is given back."
  (let* ((done '()) (others nil)
         (worker (workflow::make-worker
                  :functions (list (cons "a" (lambda (task)
                                               (push (task-losses task) done)
                                               (setf others (workflow::worker-attempts others))
                                               "done"))))))
    (setf others worker)
    (is (pb:has-report-request-result (workflow::attempt-beside worker (task-lost-so-often 2))))
    (is (eql 1 (shiftf others worker)))
    (workflow::with-worker (worker) (incf (workflow::worker-attempts worker)))
    (let ((thread (sb-thread:make-thread
                   (lambda () (workflow::attempt-alone worker (task-lost-so-often 3))))))
      (is-true (wait-until (lambda () (= 1 (workflow::worker-suspects worker)))))
      (is (pb:has-report-request-give-back
           (workflow::attempt-beside worker (task-lost-so-often 0))))
      (is (equal '(2) done))
      (workflow::with-worker (worker) (decf (workflow::worker-attempts worker)))
      (is (pb:has-report-request-result (sb-thread:join-thread thread))))
    (is (eql 0 others) "nothing else was under way")
    (is (equal '(3 2) done))
    (is (zerop (workflow::worker-suspects worker)))
    (setf others worker)
    (is (pb:has-report-request-result (workflow::attempt-beside worker (task-lost-so-often 0))))))

(test workers-are-told-what-is-lost
  (let* ((lost '()) (task (task-lost-so-often 0))
         (worker (workflow::make-worker :held (list task) :session "1"
                                        :on-task-lost (lambda (task) (push task lost)))))
    (workflow::note-lost worker (list (pb:make-held :id "w" :fence 2)))
    (is (null lost))
    (workflow::note-lost worker (list (pb:make-held :id "w" :fence 1)))
    (workflow::note-lost worker (list (pb:make-held :id "w" :fence 1)))
    (is (equal (list task) lost) "once")
    (is (not (task-held-p task)))))
