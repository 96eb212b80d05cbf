;;;; Attempts: how long they may take, what is done alone, and who is told that a task is lost.

(in-package #:clgrpc.tests.workflow)

(test attempts-end-that-take-too-long
  "An attempt whose step has no limit of its own ends when its worker is heard of after the node's."
  (let ((ahead 0))
    (with-memory-node (node :attempt-seconds 60
                            :clock (lambda () (+ (loop:unix-ns) (* ahead 1000000000))))
      (let* ((session (open-a-session node)) (task (progn (start-workflow node "w" '("a"))
                                                          (first (claim node session '("a"))))))
        (flet ((lost ()
                 (length (beat node session
                               (list (pb:make-held :id "w" :fence (pb:task-fence task)))))))
          (is (= 60000 (pb:task-timeout-ms task)))
          (is (zerop (lost)))
          (setf ahead 61)
          (is (= 1 (lost)))
          (let ((step (step-at (state-of node "w") 0)))
            (is (eq :pausing (pb:step-state-status step)))
            (is (= 1 (pb:step-state-attempts step)) "it was an attempt"))
          (signals claim-lost (report node task "late")))))))

(defun task-lost-so-often (losses &key until-ns (given-back 0))
  (workflow::make-task (pb:make-task :id "w" :fence 1 :kind "a" :losses losses
                                     :given-back given-back)
                       until-ns))

(test what-was-lost-again-and-again-is-done-alone
  "It waits for what is under way; what comes meanwhile is given back."
  (let* ((done '()) (others nil) (beside (task-lost-so-often 0))
         (worker (workflow::make-worker
                  :functions (list (cons "a" (lambda (task)
                                               (push (task-losses task) done)
                                               (setf others (workflow::worker-attempts others))
                                               "done"))))))
    (setf others worker)
    (is (pb:has-report-request-result (workflow::attempt-beside worker (task-lost-so-often 2))))
    (is (= 1 (length (shiftf others worker))))
    (workflow::with-worker (worker) (push beside (workflow::worker-attempts worker)))
    (let ((thread (in-thread (workflow::attempt-alone worker (task-lost-so-often 3)))))
      (eventually (workflow::worker-suspects worker))
      (is (pb:has-report-request-give-back
           (workflow::attempt-beside worker (task-lost-so-often 0))))
      (is (equal '(2) done))
      (workflow::with-worker (worker) (setf (workflow::worker-attempts worker) '()))
      (is (pb:has-report-request-result (sb-thread:join-thread thread))))
    (is (null others) "nothing else was under way")
    (is (equal '(3 2) done))
    (is (null (workflow::worker-suspects worker)))
    (setf others worker)
    (is (pb:has-report-request-result (workflow::attempt-beside worker (task-lost-so-often 0))))))

(test what-is-done-alone-does-not-wait-for-what-hangs
  "A task that is to be done alone is given back before its time is over, though another attempt
does not end. One that belongs to others by now, or whose time is over, holds it up no more."
  (flet ((worker (&rest arguments)
           (apply #'workflow::make-worker :functions `(("a" . ,(constantly "done"))) arguments))
         (attempt (worker task) (workflow::attempt-alone worker task)))
    (let ((hanging (task-lost-so-often 0)))
      (let ((worker (worker :attempts (list hanging))) (soon (+ (loop:world-now) 200000000)))
        (is (pb:has-report-request-give-back
             (attempt worker (task-lost-so-often 3 :until-ns soon))))
        (is-false (workflow::alone-wanted-p worker) "and the worker goes on"))
      (setf (workflow::task-lost hanging) t)
      (dolist (other (list hanging (task-lost-so-often 0 :until-ns (loop:world-now))))
        (let ((worker (worker :attempts (list other) :suspects (list other) :alone other)))
          (is-false (workflow::alone-wanted-p worker))
          (is (pb:has-report-request-result
               (workflow::attempt-beside worker (task-lost-so-often 0))))
          (is (pb:has-report-request-result (attempt worker (task-lost-so-often 3)))))))
    ;; one that belongs to others by now is not done
    (let ((task (task-lost-so-often 3)))
      (setf (workflow::task-lost task) t)
      (is (pb:has-report-request-give-back (attempt (worker :attempts (list (task-lost-so-often 0)))
                                                    task))))
    ;; what was given back waits longer the next time, for half of its time at most
    (let* ((now (loop:world-now)) (until (+ now 1000000000000)))
      (flet ((end (&rest arguments)
               (workflow::alone-end-ns (apply #'task-lost-so-often 3 arguments))))
        (is (<= 30000000000 (- (end) now)))
        (is (<= 240000000000 (- (end :given-back 3) now)))
        (is (< now (end :given-back 9 :until-ns until) until))))))

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
