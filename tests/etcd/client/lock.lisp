;;;; Locks: one at a time, in turn, with etcdctl's; lost with their leases.

(in-package #:clgrpc.tests.etcd)

(defun count-up (etcd)
  "Read the number at the key count, and write the next one."
  (let ((number (parse-integer (etcd:entry-text (etcd:fetch etcd "count")))))
    (etcd:put etcd "count" (format nil "~D" (1+ number)))))

(test locks-exclude
  "Threads with clients of their own count up an entry that they read and then write: no count is
lost, and fencing numbers grow."
  (with-store (store)
    (etcd:put *etcd* "count" "0")
    (let* ((numbers '())
           (threads
             (loop repeat 4
                   collect (in-thread
                             (etcd:with-etcd (etcd (store-address store) :timeout +patience+)
                               (loop repeat 5
                                     do (etcd:with-lock (lock etcd "lab/lock" :timeout +patience+)
                                          (push (etcd:lock-revision lock) numbers)
                                          (count-up etcd))))))))
      (mapc #'sb-thread:join-thread threads)
      (is (string= "20" (etcd:entry-text (etcd:fetch *etcd* "count"))))
      (is (= 20 (length numbers)))
      (is (apply #'> numbers))
      (is (zerop (etcd:count-entries *etcd* :prefix "lab/")))
      (is (null (etcd:list-leases *etcd*))))))

(store-test locks-are-not-obtained
  "Whoever waits gives up in time, or when he is told to, and leaves nothing behind."
  (with-store (store)
    (let ((lock (etcd:acquire-lock *etcd* "l")))
      (is-true (etcd:lock-held-p lock))
      (is (string= (etcd:lock-key lock)
                   (format nil "l/~(~X~)" (etcd:lease-id (etcd:lock-lease lock)))))
      (signals etcd:not-obtained (etcd:acquire-lock *etcd* "l" :timeout 0.2))
      (is (= 1 (etcd:count-entries *etcd* :prefix "l/")))
      (let* ((other (etcd:request-lock *etcd* "l"))
             (waiting (in-thread (handler-case (etcd:await-lock other :timeout +patience+)
                                   (etcd:not-obtained () :given-up)))))
        (is (= 2 (etcd:count-entries *etcd* :prefix "l/")))
        (is-false (etcd:lock-held-p other))
        (etcd:release-lock other)
        (is (eq :given-up (sb-thread:join-thread waiting)))
        ;; also if it asks just then
        (signals etcd:not-obtained (clgrpc.etcd::waiter-before other +patience+))
        (is (= 1 (etcd:count-entries *etcd* :prefix "l/"))))
      ;; who waits has it when it is released
      (let ((other (etcd:request-lock *etcd* "l")))
        (etcd:release-lock lock)
        (is-false (etcd:lock-held-p lock))
        (is (eq other (etcd:await-lock other :timeout +patience+)))
        (is-true (etcd:lock-held-p other))
        (etcd:release-lock other)
        (etcd:release-lock other)))))

(store-test locks-with-a-lease-of-ones-own
  "A lease has a lock once; several locks end with it; releasing leaves it alive."
  (with-store (store)
    (let* ((lease (etcd:grant-lease *etcd* 10))
           (one (etcd:acquire-lock *etcd* "one" :lease lease))
           (again (etcd:acquire-lock *etcd* "one" :lease lease))
           (two (etcd:acquire-lock *etcd* "two" :lease lease)))
      (is (= (etcd:lock-revision one) (etcd:lock-revision again)))
      (etcd:release-lock one)
      (is (null (etcd:fetch *etcd* (etcd:lock-key one))))
      (is-true (etcd:lease-alive-p lease))
      (is-true (etcd:lock-held-p two))
      (etcd:revoke-lease lease)
      (is-false (etcd:lock-held-p two))
      (is (zerop (etcd:count-entries *etcd* :prefix "two/"))))))

(test locks-are-lost-with-their-lease
  "Who has lost a lock is told, and what he writes under its guard is not done; who waits behind has
it."
  (with-store (store)
    (let* ((lost nil)
           (lock (etcd:acquire-lock *etcd* "l" :seconds 2
                                               :on-loss (lambda (condition) (push condition lost))))
           (guard (list (etcd:lock-guard lock))))
      (is-true (etcd:transact *etcd* :when guard :then '((:put "a" "mine"))))
      (let ((next (etcd:request-lock *etcd* "l")))
        (etcdctl store "lease" "revoke" (format nil "~(~X~)" (etcd:lease-id
                                                             (etcd:lock-lease lock))))
        (etcd:await-lock next :timeout +patience+)
        (is (< (etcd:lock-revision lock) (etcd:lock-revision next)))
        (is-false (etcd:transact *etcd* :when guard :then '((:put "a" "mine still"))))
        (is (string= "mine" (etcd:entry-text (etcd:fetch *etcd* "a"))))
        (eventually lost)
        (is (typep (first lost) 'etcd:lease-not-found))
        (is-false (etcd:lock-held-p lock))
        (etcd:release-lock lock)
        (is-true (etcd:lock-held-p next))
        (etcd:release-lock next)))
    ;; while it waits, and within WITH-LOCK
    (let* ((lock (etcd:acquire-lock *etcd* "l"))
           (waiting (etcd:request-lock *etcd* "l")))
      (etcd:remove-entry *etcd* (etcd:lock-key waiting))
      (etcd:release-lock lock)
      (signals etcd:ownership-lost (etcd:await-lock waiting :timeout +patience+))
      (etcd:release-lock waiting))
    (signals etcd:ownership-lost
      (etcd:with-lock (lock *etcd* "l")
        (etcd:revoke-lease (etcd:lock-lease lock))))
    (signals simple-error
      (etcd:with-lock (lock *etcd* "l") (error "This goes through.")))
    (is (zerop (etcd:count-entries *etcd* :prefix "l/")))
    (is (equal '(1 2) (multiple-value-list (etcd:with-lock (lock *etcd* "l") (values 1 2)))))))

(test locks-are-waited-for-through-restarts
  "etcd is killed while somebody waits for a lock: he has it once it is back and the lock is free."
  (with-store (store)
    (etcd:with-etcd (etcd (store-address store) :timeout +patience+ :backoff-maximum-seconds 0.2)
      (let* ((lock (etcd:acquire-lock etcd "l" :seconds 60))
             (next (etcd:request-lock etcd "l" :seconds 60))
             (waiting (in-thread (etcd:await-lock next :timeout (* 2 +patience+)))))
        (end-store store)
        (begin-store store)
        (etcd:release-lock lock :timeout +patience+)
        (is (eq next (sb-thread:join-thread waiting)))
        (is-true (etcd:lock-held-p next))
        (etcd:release-lock next)))))

(test etcdctl-waits-for-our-locks-and-we-for-its
  (with-store (store)
    (let* ((lock (etcd:acquire-lock *etcd* "shared"))
           (program (support:start-program "/usr/bin/env"
                                           (etcdctl-arguments store '("lock" "shared")))))
      (unwind-protect
           (progn
             (eventually (= 2 (etcd:count-entries *etcd* :prefix "shared/")))
             (is-true (etcd:lock-held-p lock))
             (etcd:release-lock lock)
             ;; etcdctl prints its key once it has the lock
             (let ((line (support:program-line program)))
               (is (string= "shared/" line :end2 7))
               (is-true (etcd:fetch *etcd* line)))
             (signals etcd:not-obtained (etcd:acquire-lock *etcd* "shared" :timeout 0.3))
             (let ((next (etcd:request-lock *etcd* "shared")))
               (support:signal-program program sb-unix:sigint)
               (etcd:await-lock next :timeout +patience+)
               (is-true (etcd:lock-held-p next))))
        (support:stop-program program)))))

(defun lose-answers (store name count)
  "Have STORE do what it is asked for by the RPC NAME, and lose the answer, COUNT times."
  (with-hook (store asked request next)
    (cond ((and (eq name asked) (<= 0 (decf count)))
           (next)
           (status:fail :unavailable "the answer is lost"))
          (t (next)))))

(test locks-whose-answer-is-lost
  "A lock with a lease of its user's is free again when its request, or its release, got no answer."
  (with-stand-in (store other)
    (let ((lease (etcd:grant-lease *etcd* 2)))
      ;; it is asked for again
      (lose-answers store :txn 1)
      (let ((lock (etcd:acquire-lock *etcd* "l" :lease lease)))
        (is-true (etcd:lock-held-p lock))
        (etcd:release-lock lock)
        (is (zerop (etcd:count-entries *etcd* :prefix ""))))
      ;; but not when the time is over, and then it is removed at once
      (lose-answers store :txn 1)
      (signals etcd:unavailable (etcd:acquire-lock *etcd* "l" :lease lease :timeout 0.05))
      (is (zerop (etcd:count-entries *etcd* :prefix "")))
      ;; and once more, in case it reaches the store after that, before any further transaction
      (let ((mutex (sb-thread:make-mutex :name "transactions"))
            (key (format nil "l/~(~X~)" (etcd:lease-id lease)))
            (times 0))
        (with-hook (store name request next)
          (if (eq :txn name)
              (sb-thread:with-mutex (mutex)
                (multiple-value-prog1 (next)
                  (case (incf times)
                    (1 (status:fail :unavailable "the answer is lost"))
                    (2 (etcd:put other key "" :lease lease)))))
              (next)))
        (signals etcd:unavailable (etcd:acquire-lock *etcd* "l" :lease lease :timeout 0.05))
        (eventually (zerop (etcd:count-entries *etcd* :prefix "")))
        (is (<= 3 times)))
      ;; or when etcd answers again
      (let ((times 0))
        (with-hook (store name request next)
          (when (eq :txn name)
            (case (incf times)
              (1 (next) (status:fail :unavailable "the answer is lost"))
              (2 (status:fail :unavailable "nor is it removed"))))
          (next)))
      (signals etcd:unavailable (etcd:acquire-lock *etcd* "l" :lease lease :timeout 0.05))
      (is (= 1 (etcd:count-entries *etcd* :prefix "")))
      (eventually (zerop (etcd:count-entries *etcd* :prefix "")))
      (is-true (etcd:lease-alive-p lease))
      ;; a release
      (let ((lock (etcd:acquire-lock *etcd* "l" :lease lease)) (times 0))
        (with-hook (store name request next)
          (if (and (eq :txn name) (= 1 (incf times)))
              (status:fail :unavailable "not now")
              (next)))
        (signals etcd:unavailable (etcd:release-lock lock))
        (is (= 1 (etcd:count-entries *etcd* :prefix "")))
        ;; unless the lock is acquired again meanwhile
        (let ((again (etcd:acquire-lock *etcd* "l" :lease lease)))
          (is (null (clgrpc.etcd::lease-cleanups lease)))
          ;; which a request of the same that fails does not take away
          (lose-answers store :txn 1)
          (signals etcd:unavailable (etcd:acquire-lock *etcd* "l" :lease lease :timeout 0.05))
          (is (= 1 (etcd:count-entries *etcd* :prefix "")))
          (is-true (etcd:transact *etcd* :when (list (etcd:lock-guard again))))
          (etcd:release-lock again)
          (is (zerop (etcd:count-entries *etcd* :prefix ""))))))))

(defun acquire-in-thread (etcd lease)
  "A thread that acquires the lock l of ETCD with LEASE, and returns it or the error."
  (in-thread (handler-case (etcd:acquire-lock etcd "l" :lease lease
                                                       :timeout +patience+)
               (etcd:etcd-error (error) error))))

(test failed-requests-leave-the-locks-of-others
  "A request whose answer is lost does not remove the key of a later one of the same lease and lock,
neither of one that is under way already nor of one that begins during the removal."
  (dolist (put-first '(t nil))
    (with-stand-in (store other)
      (let ((etcd *etcd*) (lease (etcd:grant-lease *etcd* 60)) (thread nil) (times 0)
            (put (sb-thread:make-semaphore)) (failed (sb-thread:make-semaphore)))
        (with-hook (store name request next)
          (multiple-value-prog1 (progn
                                  ;; the lock is requested while its key is being removed
                                  (when (and (eq :txn name) (= 2 (incf times)) (not put-first))
                                    (setf thread (acquire-in-thread etcd lease))
                                    (wait-until (lambda () (<= 3 times)) :seconds 0.3))
                                  (next))
            (when (eq :txn name)
              (cond ((= 1 times)
                     (when put-first
                       (setf thread (acquire-in-thread etcd lease))
                       (sb-thread:wait-on-semaphore put :timeout +patience+))
                     (status:fail :data-loss "the answer is lost"))
                    ((and put-first (= 2 times))
                     (sb-thread:signal-semaphore put)
                     (sb-thread:wait-on-semaphore failed :timeout +patience+))))))
        (signals etcd:etcd-error
          (etcd:acquire-lock *etcd* "l" :lease lease :timeout +patience+))
        (sb-thread:signal-semaphore failed)
        (let ((lock (sb-thread:join-thread thread)))
          (is (typep lock 'etcd:lock) "~A" lock)
          (when (typep lock 'etcd:lock)
            (is-true (etcd:transact *etcd* :when (list (etcd:lock-guard lock))))
            (etcd:release-lock lock)))
        (is (zerop (etcd:count-entries *etcd* :prefix "")))))))

(test locks-whose-wait-is-compacted
  "What somebody who waits for a lock would be told next is compacted before he can watch it."
  (with-stand-in (store other)
    (let* ((lock (etcd:acquire-lock other "l"))
           (next (etcd:request-lock *etcd* "l"))
           (times 0))
      (with-hook (store name request go-on)
        (when (and (eq :watch name) (<= (incf times) 3))
          (etcd:put other "a" "1")
          (etcd:compact other (etcd:put other "a" "2"))
          (when (= 3 times) (etcd:release-lock lock)))
        (go-on))
      (is (eq next (etcd:await-lock next :timeout +patience+)))
      (is (<= 3 times))
      (is-true (etcd:lock-held-p next)))))
