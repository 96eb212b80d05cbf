;;;; Schedules: cron expressions, what becomes of a schedule, that each time starts one workflow.

(in-package #:clgrpc.tests.workflow)

(defun unix-ms (year month day hour minute &optional (second 0))
  (* 1000 (- (encode-universal-time second minute hour day month year 0)
             (encode-universal-time 0 0 0 1 1 1970 0))))

(defun cron-times (expression count &rest from)
  "The names of the first COUNT times of EXPRESSION after FROM."
  (loop with cron = (workflow::parse-cron expression)
        repeat count
        for time = (workflow::next-cron cron (apply #'unix-ms from))
          then (workflow::next-cron cron time)
        collect (workflow::time-name time)))

(test cron-expressions
  "Lists, ranges, steps, names, both days; the time itself is not after itself; leap years."
  (is (equal '("20261128T030000Z" "20261129T030000Z") (cron-times "0 3 * * *" 2 2026 11 28 2 59)))
  (is (equal '("20261129T030000Z") (cron-times "0 3 * * *" 1 2026 11 28 3 0)))
  (is (equal '("20261128T030000Z") (cron-times "0 3 * * *" 1 2026 11 28 2 59 59)))
  (is (equal '("20261128T001500Z" "20261128T003000Z" "20261128T004500Z" "20261128T010000Z")
             (cron-times "*/15 * * * *" 4 2026 11 28 0 0)))
  (is (equal '("20261231T235900Z" "20270101T000000Z")
             (cron-times "0,59 0,23 * * *" 2 2026 12 31 23 0)))
  ;; 28 November 2026 is a Saturday
  (is (equal '("20261130T090000Z" "20261201T090000Z" "20261207T090000Z")
             (cron-times "0 9 * * mon,tue" 3 2026 11 28 0 0)))
  (is (equal '("20261129T000000Z") (cron-times "0 0 * * 7" 1 2026 11 28 0 0)))
  (is (equal '("20261129T000000Z") (cron-times "0 0 * * 0" 1 2026 11 28 0 0)))
  ;; one of two days is enough
  (is (equal '("20261130T000000Z" "20261201T000000Z") (cron-times "0 0 1 * MON" 2 2026 11 28 0 0)))
  (is (equal '("20280229T000000Z" "20320229T000000Z") (cron-times "0 0 29 2 *" 2 2026 11 28 0 0)))
  (is (equal '("21040229T000000Z") (cron-times "0 0 29 2 *" 1 2096 3 1 0 0)))
  (is (equal '("20270101T000200Z" "20270101T000500Z")
             (cron-times "2-6/3 0-1 1 JAN *" 2 2026 11 28 0 0)))
  (dolist (wrong `("" "* * * *" "* * * * * *" "60 * * * *" "* 24 * * *" "* * 0 * *" "* * 32 * *"
                   "* * * 13 *" "* * * * 8" "5-1 * * * *" "*/0 * * * *" "1/2 * * * *" "a * * * *"
                   "1,, * * * *" "1-2-3 * * * *" "0 0 30 2 *" "-1 * * * *"
                   ,(format nil "~200A " "* * * * *")))
    (signals invalid-request (workflow::parse-cron wrong)))
  (is-true (workflow::parse-cron (format nil "~200A" "* * * * *"))))

(defun schedule-request (&rest arguments &key (cron "* * * * *") &allow-other-keys)
  (let ((request (apply #'pb:make-create-schedule-request
                        (append (alexandria:remove-from-plist arguments :cron)
                                (list :id "s" :workflow (pb:make-start-request
                                                         :steps (workflow::steps-of '("a"))))))))
    (unless (getf arguments :interval-ms) (setf (pb:create-schedule-request-cron request) cron))
    request))

(defun schedule-at (now &rest arguments)
  (workflow::begin-schedule (apply #'schedule-request arguments) now (limits)))

(test times-that-have-passed
  "The last ones are made up for, as many as are asked for; the others are counted."
  (flet ((to-do (now &rest arguments)
           (multiple-value-list
            (workflow::next-to-do (apply #'schedule-at 60000 arguments) now))))
    (is (equal '(120000 0) (to-do 120000)))
    (is (equal '(120000 0) (to-do 179999)))
    (is (equal '(180000 1) (to-do 180000)))
    (is (equal '(120000 0) (to-do 180000 :catch-up 2)))
    (is (equal '(180000 1) (to-do 240000 :catch-up 2)))
    (is (equal '(3600000 353) (to-do 3600000 :interval-ms 10000 :catch-up 1)))
    ;; more than are looked at one by one
    (is (equal '(36000000 3593) (to-do 36000000 :interval-ms 10000)))
    (is (= 360000000 (first (to-do 360000000))))
    ;; of which the last ones are long ago
    (is (plusp (first (to-do (unix-ms 1971 1 5 0 0) :cron "* * 1 1 *"))))))

(test schedules-are-checked
  (signals invalid-request (schedule-at 0 :cron "x"))
  (signals invalid-request (schedule-at 0 :interval-ms 999))
  (signals invalid-request (schedule-at 0 :interval-ms 1500))
  (finishes (schedule-at 0 :interval-ms 1000))
  (finishes (schedule-at 0 :catch-up 100))
  (signals too-large (schedule-at 0 :catch-up 101))
  (signals invalid-request (schedule-at 0 :workflow (pb:make-start-request)))
  (signals invalid-request (schedule-at 0 :overlap 7))
  ;; ID.20261128T030000Z has 17 octets more
  (finishes (schedule-at 0 :id (make-string 111 :initial-element #\s)))
  (signals too-large (schedule-at 0 :id (make-string 112 :initial-element #\s))))

(defun scheduled-ids (node)
  (sort (ids-found node) #'string<))

(defmacro with-scheduler ((node now &rest arguments) &body body)
  "Evaluate BODY with a NODE whose machine has the date NOW, in seconds, a variable."
  `(let ((,now 600000000))
     (with-memory-node (,node :clock (lambda () (* ,now 1000000000)) ,@arguments) ,@body)))

(test a-schedule-starts-workflows
  "Each time one, as its overlap says; paused it starts none; deleted it leaves nothing."
  (with-scheduler (node now)
    (flet ((state () (schedule-state node "s"))
           (go-on (seconds)
             (incf now seconds)
             (eventually (< (* 1000 now) (pb:schedule-state-next-unix-ms
                                          (schedule-state node "s"))))))
      (is-true (create-schedule node "s" '((:signal "x")) :every 60))
      (is-false (create-schedule node "s" '((:signal "x")) :every 60))
      (signals schedule-exists (create-schedule node "s" '((:signal "x")) :every 61))
      (go-on 60)
      (is (equal '("s.19890105T104100Z") (scheduled-ids node)))
      ;; it runs
      (go-on 60)
      (is (equal '("s.19890105T104100Z") (scheduled-ids node)))
      (is (= 1 (pb:schedule-state-skipped (state))))
      (is (search "runs" (pb:schedule-state-reason (state))))
      (signal-workflow node "s.19890105T104100Z" "x" nil)
      ;; of three times that have passed the last is made up for
      (go-on 180)
      (is (equal '("s.19890105T104100Z" "s.19890105T104500Z") (scheduled-ids node)))
      (is (= 2 (pb:schedule-state-started (state))))
      (is (<= 0 (pb:schedule-state-missed (state)) 2))
      (pause-schedule node "s")
      (pause-schedule node "s")
      (is (zerop (pb:schedule-state-next-unix-ms (state))))
      (is (null (errands-left node)))
      (incf now 600)
      (resume-schedule node "s")
      (resume-schedule node "s")
      (is (< (* 1000 now) (pb:schedule-state-next-unix-ms (state))))
      (is (= 2 (length (scheduled-ids node))))
      (let ((ids '()))
        (map-schedules (lambda (state) (push (pb:schedule-state-id state) ids)) node)
        (is (equal '("s") ids)))
      (is-true (delete-schedule node "s"))
      (is-false (delete-schedule node "s"))
      (signals schedule-not-found (state))
      (signals schedule-not-found (pause-schedule node "s"))
      (is (null (errands-left node)))
      (is (zerop (etcd:count-entries (workflow::node-etcd node)
                                     :prefix (workflow::node-key node "schedule")))))))

(test schedules-may-overlap
  (with-scheduler (node now)
    (create-schedule node "s" '((:signal "x")) :cron "* * * * *" :overlap :allow :catch-up 3)
    (incf now 300)
    (eventually (<= 3 (length (scheduled-ids node))))
    (is (equal '("s.19890105T104300Z" "s.19890105T104400Z" "s.19890105T104500Z")
               (scheduled-ids node)))
    (is (= 2 (pb:schedule-state-missed (schedule-state node "s"))))))

(test a-time-starts-one-workflow
  "Four nodes do what is due at once, again and again: no time starts two, and none is passed over."
  (let* ((engine (memory:make-engine)) (now 600000000)
         (etcds (loop repeat 4 collect (memory:connect engine)))
         (nodes (loop for etcd in etcds
                      collect (make-workflow-service etcd :clock (lambda () (* now 1000000000))))))
    (unwind-protect
         (let ((node (first nodes)))
           (create-schedule node "s" '((:until 0)) :every 60 :overlap :allow :catch-up 100)
           (dotimes (i 20)
             (incf now 60)                 ; the date runs on meanwhile, by seconds
             (flet ((due-thread (node)
                      (sb-thread:make-thread #'workflow::handle-due :arguments (list node))))
               (mapc #'sb-thread:join-thread (mapcar #'due-thread nodes))))
           (eventually (= 20 (length (scheduled-ids node))))
           (let ((state (schedule-state node "s")))
             (is (= 20 (pb:schedule-state-started state)))
             (is (= 0 (pb:schedule-state-skipped state) (pb:schedule-state-missed state)))))
      (mapc #'close-workflow-service nodes)
      (mapc #'etcd:close-etcd etcds)
      (memory:close-engine engine))))

(test what-cannot-be-started-is-skipped
  "Another workflow of that id, and a node with as many as it may have: the schedule says why and
goes on."
  (with-scheduler (node now :max-schedules 2)
    (start-workflow node "s.19890105T104100Z" '((:signal "x")))
    (create-schedule node "s" '((:until 0)) :every 60)
    (create-schedule node "t" '((:until 0)) :every 60)
    (signals backlog-full (create-schedule node "u" '((:until 0)) :every 60))
    (incf now 60)
    (eventually (= 1 (pb:schedule-state-skipped (schedule-state node "s"))))
    (is (search "another workflow" (pb:schedule-state-reason (schedule-state node "s"))))
    (incf now 60)
    (eventually (= 1 (pb:schedule-state-started (schedule-state node "s"))))
    (is (string= "" (pb:schedule-state-reason (schedule-state node "s"))))))
