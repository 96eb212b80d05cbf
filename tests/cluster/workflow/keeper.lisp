;;;; The keeper and the timers of a node, step by step, on a store that is full for a while.

(in-package #:clgrpc.tests.workflow)

(defun call-with-idle-node (function octets &rest arguments &key (clock #'loop:unix-ns)
                                                           &allow-other-keys)
  "Call FUNCTION with a node without jobs, on a store in memory that takes OCTETS; its limits are
the other ARGUMENTS."
  (let* ((engine (memory:make-engine :max-octets octets)) (etcd (memory:connect engine)))
    (unwind-protect
         (funcall function
                  (make-instance 'workflow-service
                                 :etcd etcd :namespace "idle" :root (workflow::root-of "idle")
                                 :health nil :clock clock
                                 :limits (apply #'workflow::make-limits
                                                (alexandria:remove-from-plist arguments :clock))))
      (etcd:close-etcd etcd)
      (memory:close-engine engine))))

(defmacro with-idle-node ((node octets &rest arguments) &body body)
  `(call-with-idle-node (lambda (,node) ,@body) ,octets ,@arguments))

(defun leave-no-room (node)
  "Fill the store of NODE."
  (dolist (octets '(5000 50))
    (handler-case (loop for i from 0
                        do (etcd:put (workflow::node-etcd node) (format nil "fill/~D/~D" octets i)
                                     (make-octets octets)))
      (etcd:space-exceeded ()))))

(defun make-room (node)
  (etcd:remove-entries (workflow::node-etcd node) :prefix "fill/"))

(defun count-by (node status)
  "How many workflows NODE has of STATUS, as keys have it."
  (etcd:count-entries (workflow::node-etcd node)
                      :prefix (workflow::node-key node "by" status "")))

(test a-full-store-keeps-nothing-that-is-to-go
  "Timers cannot end while the store is full. Ended workflows that are due to be deleted behind them
are deleted, and so there is room again."
  (let ((now 1000000))
    (with-idle-node (node 150000 :retention-seconds 60 :clock (lambda () (* now 1000000000)))
      (dotimes (i 20)
        (start-workflow node (format nil "timer~D" i) '((:wait 50)))
        (start-workflow node (format nil "ended~D" i) '((:until 0))))
      (leave-no-room node)
      (incf now 61)
      (handler-case (workflow::handle-due node)
        (etcd:space-exceeded ()))
      (is (= 20 (+ (count-by node "running") (count-by node "completed"))) "no ended one is left")
      (finishes (workflow::handle-due node))
      (is (= 0 (count-by node "running")))
      (is (= 20 (count-by node "completed"))))))

(test a-full-store-does-not-stop-the-keeper
  "It cannot report its node's date, and yet it deletes what is beyond the limit of octets."
  (with-idle-node (node 150000 :retention-octets 5000)
    (dotimes (i 10)
      (start-workflow node (format nil "w~D" i) '((:until 0)) :input (make-octets 1000)))
    (leave-no-room node)
    (flet ((due (name seconds)
             (declare (ignore seconds))
             (eq :retention name)))
      (signals etcd:space-exceeded (workflow::run-keeper node #'due)))
    (is (< 0 (count-by node "completed") 5))))

(test errors-of-a-node-s-jobs-are-logged
  "The jobs continue. That the store fails, and that it answers again, is logged once."
  (with-idle-node (node 150000)
    (setf (workflow::node-keeper node) (etcd:add-job (workflow::node-etcd node) #'list))
    (flet ((keep () (workflow::attend-keeper node #'list))
           (sweep () (workflow::sweep-workflows-now-and-then node))
           (ring () (workflow::run-timers node)))
      (let ((failure (make-condition 'simple-error :format-control "broken"))
            (absence (make-condition 'store-unavailable :text "away")))
        (loop for (name call outcome . events)
                in `((workflow::run-keeper ,#'keep ,failure
                      (:error :workflow-clock-error :condition "broken"))
                     (workflow::sweep-timers ,#'sweep ,failure
                      (:error :workflow-clock-error :condition "broken"))
                     (workflow::handle-own-shards ,#'ring ,failure
                      (:error :workflow-clock-error :condition "broken"))
                     (workflow::sweep-timers ,#'sweep ,absence)
                     (workflow::handle-own-shards ,#'ring ,absence)
                     (workflow::run-keeper ,#'keep ,absence
                      (:warning :workflow-store-failed :condition ,(princ-to-string absence)))
                     (workflow::run-keeper ,#'keep ,absence)
                     (workflow::run-keeper ,#'keep nil (:info :workflow-store-back))
                     (workflow::run-keeper ,#'keep nil))
              do (with-logged (logged)
                   (with-replaced ((name (lambda (&rest arguments)
                                           (declare (ignore arguments))
                                           (when outcome (error outcome)))))
                     (is (plusp (funcall call))))
                   (is (equal events (logged)))))
        (with-logged (logged)
          (workflow::note-stuck node "w" failure)
          (is (equal '((:error :workflow-stuck :workflow "w" :condition "broken")) (logged))))))))

(test dates-far-away-are-doubted
  "A step of an hour is made at once; a longer one once it was asked for as long as it must be."
  (let ((dates (workflow::make-dates (constantly 0))) (hour workflow::+longest-step-ms+))
    (setf (workflow::dates-offset dates) 0)
    (flet ((offset (asked steady) (workflow::proven-offset dates asked steady 100)))
      (with-logged (logged)
        (is (= hour (offset hour 0)))
        (is (= (- hour) (offset (- hour) 0)))
        (is (null (logged)))
        (is (= 0 (offset (1+ hour) 1000)))
        (is (= 0 (offset (1+ hour) 1099)))
        (is (equal '((:warning :workflow-date-doubted :seconds-off 3600)) (logged)))
        (is (= (1+ hour) (offset (1+ hour) 1100)))))))

(test a-node-whose-report-failed-reports-again
  "Its entry among the nodes is there as soon as the store takes it."
  (with-idle-node (node 150000)
    (let ((membership (workflow::node-membership node)))
      (flet ((entries ()
               (etcd:count-entries (workflow::node-etcd node)
                                   :prefix (workflow::node-key node "index/nodes" ""))))
        (workflow::keep-membership node)
        (is (= 1 (entries)))
        ;; its lease ends, and the store has no room for the entry under the next one
        (etcd:revoke-lease (workflow::membership-lease membership))
        (eventually (not (etcd:lease-alive-p (workflow::membership-lease membership))))
        (leave-no-room node)
        (signals etcd:space-exceeded (workflow::keep-membership node))
        (is (= 0 (entries)))
        (make-room node)
        (workflow::keep-membership node)
        (is (= 1 (entries)))
        ;; a newcomer is to know its date as well
        (leave-no-room node)
        (workflow::wake-keeper node (lambda (wakeup)
                                      (setf (workflow::wakeup-newcomer wakeup) t)))
        (signals etcd:space-exceeded (workflow::keep-membership node))
        (make-room node)
        (let ((revision (nth-value 1 (etcd:fetch (workflow::node-etcd node) "none"))))
          (workflow::keep-membership node)
          (is (< revision (nth-value 1 (etcd:fetch (workflow::node-etcd node) "none")))))))))

(test what-is-counted-of-ended-sessions-is-forgotten
  "A claim that is under way when its session ends counts its task after that. The keeper forgets
this when it looks; counts of other sessions stay."
  (with-idle-node (node 1000000)
    (dotimes (i 2) (start-workflow node (format nil "w~D" i) '("a")))
    (let ((ends (open-a-session node)) (stays (open-a-session node)))
      (flet ((counted ()
               (append (alexandria:hash-table-alist (workflow::node-grants node))
                       (alexandria:hash-table-alist
                        (workflow::task-queue-loads (workflow::node-task-queue node))))))
        (is (= 1 (length (claim node stays '("a")))))
        (with-replaced (('workflow::note-granted
                         (lambda (function &rest arguments)
                           (etcd:remove-entry (workflow::node-etcd node)
                                              (workflow::session-key node ends))
                           ;; as the watch of the index does
                           (workflow::forget-session node ends)
                           (apply function arguments))))
          (is (= 1 (length (claim node ends '("a"))))))
        (is (= 4 (length (counted))))
        (workflow::sweep-sessions node)
        (is (equal (list (cons stays 1) (cons stays 1)) (counted)))))))

(test a-node-has-one-entry-among-the-nodes
  "Its lease seems to have ended, and was renewed after all: the node gets another one, and the
entry of the first, which would have a share of the timers, goes."
  (with-idle-node (node 150000)
    (workflow::keep-membership node)
    (with-replaced (('etcd:lease-alive-p (constantly nil)))
      (workflow::keep-membership node))
    (is (equal (list (etcd:lease-id (workflow::membership-lease (workflow::node-membership node))))
               (etcd:list-leases (workflow::node-etcd node))))
    (is (= 1 (etcd:count-entries (workflow::node-etcd node)
                                 :prefix (workflow::node-key node "index/nodes" ""))))))

(test copies-of-entries-among-the-nodes-have-no-share
  "An entry that does not end with the lease in its name, as in a store that was copied, stands for
no node: else nobody would do its share of the timers in time, and its date would count."
  (with-idle-node (node 1000000)
    (let* ((etcd (workflow::node-etcd node)) (lease (etcd:grant-lease etcd 60))
           (name (workflow::lease-name (etcd:lease-id lease)))
           (dates (workflow::node-dates node)))
      (flet ((put-node (name lease)
               (etcd:put etcd (workflow::node-key node "index/nodes" name) "1 1" :lease lease))
             (share ()
               (workflow::run-keeper node (constantly nil))
               (count-if #'integerp
                         (workflow::timer-queue-times (workflow::node-timer-queue node)))))
        (put-node "1234" nil)
        (put-node "0" lease)
        (is (= workflow::+shards+ (share)) "as found")
        (is (< 1 (workflow::node-now node)))
        ;; from the watch, which reports a node's own entry after them
        (put-node "5678" nil)
        (put-node "1" lease)
        (put-node name lease)
        (eventually (workflow::other-nodes dates))
        (is (equal (list name) (workflow::other-nodes dates)))
        (is (= (floor workflow::+shards+ 2) (share)) "a node with its lease has a share")
        (etcd:revoke-lease lease)
        (eventually (null (workflow::other-nodes dates)))
        (is (= workflow::+shards+ (share)))))))

(test timers-are-looked-at-after-a-watch-was-lost
  "They may have come while there was none; the store that fails again right then changes nothing of
that."
  (with-idle-node (node 1000000)
    (let ((times (workflow::timer-queue-times (workflow::node-timer-queue node))))
      (flet ((run-once () (workflow::run-keeper node (constantly nil))))
        (run-once)
        (is (every #'integerp times) "all shards are its own")
        (fill times nil)
        (setf (workflow::wakeup-lost-watch (workflow::node-wakeup node)) t)
        (with-replaced (('workflow::end-claims-of-lost-sessions
                         (fn (_function _node)
                           (error 'etcd:unavailable :text "broken by the test"))))
          (signals etcd:unavailable (run-once)))
        (is (every #'integerp times))))))

(test a-closed-node-watches-nothing
  "Its keeper waits for the store while the node closes, which does not wait for it; a user's watch
begins at that time. Neither leaves a watch to the client of the store."
  (let* ((engine (memory:make-engine)) (etcd (memory:connect engine)) (watches '())
         (entered (sb-thread:make-semaphore)) (gate (sb-thread:make-semaphore)))
    (with-replaced (('workflow::fill-ready-list
                     (lambda (function node)
                       (sb-thread:signal-semaphore entered)
                       (sb-thread:wait-on-semaphore gate :timeout +patience+)
                       (funcall function node)))
                    ('loop:end-job (lambda (function job &key (seconds 3600))
                                     (funcall function job :seconds (if (<= seconds 1) 0 seconds))))
                    ('etcd:watch (lambda (function &rest arguments)
                                   (first (push (apply function arguments) watches)))))
      (unwind-protect
           (let ((node (make-workflow-service etcd)))
             (is-true (sb-thread:wait-on-semaphore entered :timeout +patience+))
             (close-workflow-service node)
             (is (null watches) "it has not waited")
             (sb-thread:signal-semaphore gate)
             (eventually (and watches (notany #'etcd:watch-open-p watches)))
             (signals store-unavailable (workflow::start-feed node))
             (is (= 2 (length watches)))
             (is (notany #'etcd:watch-open-p watches)))
        (etcd:close-etcd etcd)
        (memory:close-engine engine)))))

(test a-session-costs-the-same-beside-many-others
  "Those of an identity are counted as they come and go."
  (with-idle-node (node 1000000 :max-sessions-per-identity 2)
    (let ((names 0))
      (dotimes (i 2000) (workflow::note-session node (format nil "~X.~D" i (floor i 2))))
      (with-replaced (('workflow::session-owner
                       (lambda (function session)
                         (incf names)
                         (funcall function session))))
        (signals backlog-full (workflow::reserve-session node "a.7"))
        (workflow::forget-session node "E.7")
        (workflow::forget-session node "E.7")
        (workflow::note-session node "F.7")
        (finishes (workflow::reserve-session node "a.7"))
        (signals backlog-full (workflow::reserve-session node "b.7"))
        (is (> 20 names)))
      (loop for session in (alexandria:hash-table-keys (workflow::node-session-records node))
            do (workflow::forget-session node session))
      (is (zerop (hash-table-count (workflow::node-owners node)))))))

;;; Entries of other programs

(defparameter *foreign-entries*
  (flet ((octets (&rest parts)
           (apply #'concatenate 'base:octets
                  (mapcar (lambda (part) (if (stringp part) (string-octets part) part)) parts))))
    (let ((bad #(255 254)) (time (workflow::time-text 1)) (age (workflow::age-text 1)))
      `((,(octets "state/" bad) "") (,(octets "state/a") ,bad) (,(octets "state/b") "")
        (,(octets "index/" bad) "")
        (,(octets "index/ready/ours/0/" time "/" bad) "")
        (,(octets "index/ready/" bad) "")
        (,(octets "index/due/0/" time "/" bad) "") (,(octets "index/due/" bad) "")
        (,(octets "index/sessions/" bad) "")
        (,(octets "index/nodes/" bad) "1 2") (,(octets "index/nodes/a") ,bad)
        (,(octets "index/nodes/b") "1 99999999999999999999999999")
        (,(octets "index/nodes/c") "99999999999999999999999999 1")
        (,(octets "date") ,bad)
        (,(octets "claims/" bad "/a") "") (,(octets "claims//a") "")
        (,(octets "claims/a" #(1) "/a") "") (,(octets "claims/a/" bad) "")
        (,(octets "by/completed/" age "/" bad) "1 1 t") (,(octets "by/completed/" age "/a") "")
        (,(octets "by/completed/" age "/b") ,bad) (,(octets "by/failed/" age "/a") "1 1 t")
        (,(octets "by/completed/0") "1 1 t")
        (,(octets "by/completed/" age "/c") "-1 0 t") (,(octets "by/completed/" age "/d") "1 -1 t")
        (,(octets "schedules/a") ,bad) (,(octets "schedules/" bad) ""))))
  "Keys below the root of a namespace, of which some are not UTF-8, and values that no node puts.")

(defun put-foreign-entries (etcd namespace)
  (loop with root = (string-octets (workflow::root-of namespace))
        for (key value) in *foreign-entries*
        do (etcd:put etcd (concatenate 'base:octets root key)
                     (if (stringp value) value (coerce value 'base:octets)))))

(test unreadable-values-are-logged
  "Values that are no message, and messages that lack what all have: of workflows and schedules."
  (let ((levels '()) (event nil))
    (flet ((listen-to (level name &rest plist)
             (declare (ignore plist))
             (when (eq event name) (push level levels))))
      (base:add-log-listener #'listen-to)
      (unwind-protect
           (without-log
             (with-idle-node (node 1000000)
               (flet ((read-of (function value)
                        (setf levels '())
                        (etcd:put (workflow::node-etcd node) "x" value)
                        (list (and (funcall function (etcd:fetch (workflow::node-etcd node) "x")) t)
                              levels)))
                 (loop for (function name)
                         in '((workflow::readable-state :workflow-unreadable)
                              (workflow::readable-schedule :schedule-unreadable))
                       do
                   (setf event name)
                   (is (equal '(nil (:warning))
                              (read-of function (coerce #(255 254) 'base:octets))))
                   (is (equal '(nil (:warning)) (read-of function ""))))
                 (is (equal '(t ()) (read-of 'workflow::readable-schedule
                                             (protobuf:serialize
                                              (pb:make-schedule-state :id "s")))))
                 (is (equal '(t ()) (read-of 'workflow::readable-state
                                             (protobuf:serialize
                                              (pb:make-workflow-state
                                               :changes (list (pb:make-change))))))))))
        (base:remove-log-listener #'listen-to)))))

(test lists-go-on-behind-entries-of-other-programs
  "A list skips a page that has nothing else: later entries are in the same answer."
  (with-idle-node (node 10000000)
    (let ((later (workflow::age-text (+ 1000000 (workflow::node-now node)))))
      (start-workflow node "w" '((:until 0)))
      (create-schedule node "é" '((:signal "x")) :every 60)
      (dotimes (i (1+ workflow::+index-page+))
        (etcd:put (workflow::node-etcd node)
                  (workflow::node-key node "by/completed" later (format nil "~D" i)) "?"))
      (dotimes (i 3)
        (etcd:put (workflow::node-etcd node)
                  (concatenate 'base:octets
                               (string-octets (workflow::node-key node "schedules" ""))
                               (list 128 i))
                  ""))
      (is (equal '("w") (ids-found node :status :completed)))
      (is (equal '("w") (ids-found node)))
      (without-log
        (let ((reply (workflow::ask #'methods:list-schedules node
                                    (pb:make-list-schedules-request :limit 2) 5)))
          (is (equal '("é") (map 'list #'pb:schedule-state-id
                                 (pb:list-schedules-reply-schedules reply))))
          (is (equal "" (pb:list-schedules-reply-next reply))))))))

(defun use-all-of (node mark)
  "Use what NODE does by its store, for workflows whose ids begin with MARK."
  (flet ((id (name) (format nil "~A-~A" mark name)))
    (start-workflow node (id "timer") '((:wait 1/10)))
    (is (eq :completed (await-workflow node (id "timer") :timeout +patience+)))
    (start-workflow node (id "task") '("ours"))
    (let* ((session (open-a-session node))
           (tasks (claim node session '("ours") :wait +patience+)))
      (is (equal (list (id "task")) (mapcar #'pb:task-id tasks)))
      (end-of-session node session))
    (let ((tasks (claim node (open-a-session node) '("ours") :wait +patience+)))
      (is (equal (list (id "task")) (mapcar #'pb:task-id tasks)) "it is not given to another"))
    (let ((listed '()))
      (map-workflows (lambda (summary) (push (pb:workflow-summary-id summary) listed)) node)
      (is (subsetp (list (id "timer") (id "task")) listed :test #'string=)))
    (map-schedules (lambda (schedule) (fail "~S" schedule)) node)
    (let* ((seen '())
           (watcher (watch-workflow (lambda (change) (push (pb:change-id change) seen))
                                    node nil :revision 1)))
      (unwind-protect
           (eventually (member (id "task") seen :test #'string=))
        (end-watching watcher)))
    (finishes (workflow::sweep-sessions node))
    (finishes (workflow::sweep-timers node))
    (finishes (workflow::read-ended node))))

(test entries-of-other-programs-stop-no-node
  "Neither one that begins beside them nor one under whose feet they are put."
  (dolist (before '(t nil))
    (let* ((engine (memory:make-engine)) (etcd (memory:connect engine)))
      (unwind-protect
           (progn
             (when before (put-foreign-entries etcd "default"))
             (let ((node (make-workflow-service etcd)))
               (unwind-protect
                    (progn
                      (unless before
                        (use-all-of node "first")
                        (put-foreign-entries etcd "default"))
                      (use-all-of node "then"))
                 (close-workflow-service node))))
        (etcd:close-etcd etcd)
        (memory:close-engine engine)))))

(test dates-of-nodes
  "A node begins with the date of the others; alone with the stored one if the machine's is earlier,
or too much later. Afterwards it follows the machines in the middle, with some slack."
  (let* ((outage workflow::+longest-outage-ms+) (slack workflow::+date-slack-ms+)
         (machine (+ outage 5000)))
    (flet ((new-dates () (workflow::make-dates (constantly (* 1000000 machine)))))
      (with-replaced (('workflow::steady-ms (fn (_function) (values 1000 0))))
        (loop for (others stored date) in `((() nil ,machine) (() ,(1+ machine) ,(1+ machine))
                                            (() ,machine ,machine) (() 5000 ,machine)
                                            (() 4999 4999)
                                            ((("a" 9 7000) ("b" 2 8000) ("c" 3 8001)) 4999 8000)
                                            ((("a" 9 7000) ("b" 2 8000)) nil 7000))
              for dates = (new-dates)
              do (loop repeat 2 do (workflow::begin-date dates others stored))
                 (is (= (- date 1000) (workflow::dates-offset dates)))
                 (is (= (length others) (length (workflow::other-nodes dates))))))
      (let ((dates (new-dates)))
        (with-replaced (('workflow::steady-ms (fn (_function) (values 1000 0))))
          (is (equal '(t nil t) (loop for (name ms) in '(("a" 9) ("a" 1200) ("b" 1300))
                                      collect (workflow::note-machine dates name ms)))))
        (loop for (own offset common) in `((100 ,(- 200 slack) ,(- 200 slack))
                                           (100 ,(- 199 slack) 200)
                                           (100 ,(+ 200 slack) ,(+ 200 slack))
                                           (100 ,(+ 201 slack) 200)
                                           (250 ,(+ 251 slack) 250))
              do (setf (workflow::dates-offset dates) offset)
                 (is (= common (workflow::common-offset dates own))))
        (workflow::forget-machine dates "a")
        (is (equal '("b") (workflow::other-nodes dates)))
        (setf (workflow::dates-offset dates) (+ 301 slack))
        (is (= 300 (workflow::common-offset dates 0)))
        (setf (workflow::dates-offset dates) (- -1 slack))
        (is (= 0 (workflow::common-offset dates 0)) "the middle of two is any time between them")
        (is (null (support:lockless (workflow::dates-lock dates) `(workflow::date-now ,dates)
                                    `(workflow::begin-date ,dates () nil)
                                    `(workflow::note-machine ,dates "a" 0)
                                    `(workflow::forget-machine ,dates "a")
                                    `(workflow::other-nodes ,dates))))))))

(test sessions-are-counted-under-the-lock
  "The sessions of an owner are counted until they end; a session without an owner has no load of
another."
  (with-idle-node (node 1000000 :max-sessions 4 :max-sessions-per-identity 2)
    (flet ((reserved (name)
             (handler-case (and (workflow::reserve-session node name) t)
               (backlog-full (error) (workflow-error-limit error)))))
      (is (equal '(t t "max-sessions-per-identity" t t "max-sessions")
                 (mapcar #'reserved '("1.a" "2.a" "3.a" "4.b" "5.b" "6"))))
      (workflow::forget-session node "2.a")
      (is (equal '(t nil) (list (workflow::session-known-p node "1.a")
                                (workflow::session-known-p node "2.a"))))
      (is (equal '(t "max-sessions") (mapcar #'reserved '("3.a" "2.c"))))
      (is (= 4 (workflow::node-sessions node)))
      (mapc (lambda (name) (workflow::forget-session node name)) '("1.a" "3.a"))
      (is (equal '("b") (alexandria:hash-table-keys (workflow::node-owners node)))))
    (is (null (support:lockless (workflow::node-lock node) `(workflow::node-sessions ,node)
                                `(workflow::session-known-p ,node "s")
                                `(workflow::map-records list ,node)
                                `(workflow::forget-session ,node "s")
                                `(workflow::reserve-session ,node "s")
                                `(workflow::below ,node 2))))
    (is (null (support:lockless (workflow::task-queue-lock (workflow::node-task-queue node))
                                `(workflow::note-load ,node "s" 1)
                                `(workflow::forget-load ,node "s")
                                `(workflow::arrivals-now ,(workflow::node-task-queue node) ()))))))
