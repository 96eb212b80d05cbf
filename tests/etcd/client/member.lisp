;;;; Members: listed, added as learners, promoted, removed; three, one of which is killed.

(in-package #:clgrpc.tests.etcd)

(defun settled ()
  "*ETCD*, once the last change of its members is over for Raft, too. etcd drops one that is proposed
while its leader has not yet noted that the one before it was applied, and never answers it; once
something else was written, it has."
  (etcd:put *etcd* "settled" "")
  *etcd*)

(test members
  (with-store (store)
    (let ((members (etcd:list-members *etcd*)))
      (is (= 1 (length members)))
      (is (string= "lab" (getf (first members) :name)))
      (is (equal (list (format nil "http://~A" (store-address store)))
                 (getf (first members) :clients)))
      (signals misuse (etcd:add-member *etcd* nil))
      (signals etcd:not-found (etcd:remove-member (settled) 1))
      (signals etcd:not-found (etcd:promote-member (settled) 1))
      (signals etcd:not-ready (etcd:promote-member (settled) (getf (first members) :id)))
      (signals etcd:already-exists (etcd:add-member (settled) (peer-url store) :learner t))
      (let ((urls (list (peer-url store) "http://127.0.0.1:1")))
        (is (equal urls (sort (getf (first (etcd:update-member
                                            (settled) (getf (first members) :id) urls))
                                    :peers)
                              #'> :key #'length)))))))

(test members-come-and-go
  "A learner is added and removed; another one is added, started, promoted, and removed."
  ;; etcd would else refuse to remove one that has not been there for five seconds
  (with-store (store "--strict-reconfig-check=false")
    (let ((never-started (etcd:add-member (settled) "http://127.0.0.1:1" :learner t)))
      (signals etcd:not-ready (etcd:promote-member (settled) (getf never-started :id)))
      (is (equal '("lab") (mapcar (lambda (member) (getf member :name))
                                  (etcd:remove-member (settled) (getf never-started :id))))))
    (let ((new (new-store :name "new"
                          :arguments (list "--initial-cluster-state" "existing"))))
      (multiple-value-bind (member all) (etcd:add-member (settled) (peer-url new) :learner t)
        (is (= 2 (length all)))
        (is-true (getf member :learner))
        (is (equal (list (peer-url new)) (getf member :peers)))
        (let ((id (getf member :id)))
          (setf (store-cluster new) (format nil "lab=~A,new=~A" (peer-url store) (peer-url new)))
          (begin-store new)
          (unwind-protect
               (progn
                 ;; etcd may not answer one that it has done, and refuses it then
                 (is-true (wait-until (lambda ()
                                        (handler-case
                                            (etcd:promote-member (settled) id :timeout 5)
                                          (etcd:etcd-error () (sleep 0.1)))
                                        (handler-case
                                            (notany (lambda (member) (getf member :learner))
                                                    (etcd:list-members *etcd* :timeout 5))
                                          (etcd:etcd-error ())))))
                 (etcd:put *etcd* "a" "1")
                 (etcd:with-etcd (etcd (store-address new) :timeout +patience+)
                   (is (string= "1" (etcd:entry-text (etcd:fetch etcd "a" :timeout +patience+)))))
                 ;; it is removed, while a client has both, and stops
                 (etcd:with-etcd (etcd (list (store-address store) (store-address new))
                                       :timeout +patience+)
                   (loop repeat 4 do (etcd:fetch etcd "a"))
                   (etcd:remove-member (settled) id)
                   (loop repeat 10
                         do (is (string= "1" (etcd:entry-text
                                              (etcd:fetch etcd "a" :timeout +patience+)))))))
            (end-store new)
            (uiop:delete-directory-tree (pathname (store-folder new)) :validate t)))))))

(defun leader-of (stores)
  "That of STORES which leads, or nil."
  (let* ((id (getf (etcd:member-status *etcd*) :leader))
         (leader (find id (etcd:list-members *etcd*)
                       :key (lambda (member) (getf member :id)))))
    (find (getf leader :name) stores :key #'store-name :test #'equal)))

(test the-leader-of-three-is-killed
  "Writes go on, a watch loses and repeats nothing, a lease lives, and so does a lock; once the
killed one is back all three have the same."
  (with-cluster (stores)
    (let* ((revisions '()) (written '()) (stop nil) (lost nil)
           ;; An election takes etcd up to two seconds, and the last renewal may be a third of the
           ;; lease's time before it: one of three seconds has none left for a busy machine.
           (lease (etcd:grant-lease *etcd* 6 :on-loss (lambda (condition) (setf lost condition))))
           (lock (etcd:acquire-lock *etcd* "lock" :seconds 10))
           (watch (etcd:watch *etcd* (lambda (changes revision)
                                       (dolist (change changes)
                                         (declare (ignorable change))
                                         (push revision revisions)))
                              :prefix "n/"))
           (writer (sb-thread:make-thread
                    (lambda (etcd)
                      (loop for i from 0
                            until stop
                            do (handler-case
                                   (push (etcd:put etcd (format nil "n/~D" i) "x" :timeout 1)
                                         written)
                                 (etcd:etcd-error ())
                                 (misuse () (return))))) ; the client is closed: the test has failed
                    :arguments (list *etcd*)))
           (end (lease-end lease))
           (killed (leader-of stores)))
      (etcd:put *etcd* "lease" "1" :lease lease)
      (is-true killed)
      (end-store killed)
      (let ((before (length written)))
        (eventually (< (+ 50 before) (length written))))
      (eventually (let ((leader (leader-of stores)))
                    (and leader (not (eq leader killed)))))
      (await-time end)
      (is-true (etcd:lease-alive-p lease))
      (is (null lost))
      (is-true (etcd:fetch *etcd* "lease"))
      (is-true (etcd:lock-held-p lock))
      (is-true (etcd:transact *etcd* :when (list (etcd:lock-guard lock))))
      (setf stop t)
      (sb-thread:join-thread writer)
      (eventually (member (first written) revisions))
      (is-true (etcd:watch-open-p watch))
      (is (apply #'> revisions) "each once, in order")
      (is (null (set-difference written revisions)))
      ;; the killed one comes back, and is made the leader
      (begin-store killed)
      (is-true (etcd:member-status *etcd* :endpoint (store-address killed)))
      (let ((id (getf (find (store-name killed) (etcd:list-members *etcd*)
                            :key (lambda (member) (getf member :name)) :test #'equal)
                      :id)))
        (eventually (handler-case (progn (etcd:move-leader *etcd* id) t)
                      (etcd:etcd-error () (sleep 0.1))))
        (eventually (eq killed (leader-of stores)))
        (is (= id (getf (etcd:member-status *etcd* :endpoint (store-address killed)) :member)))
        (signals etcd:not-ready
          (etcd:move-leader *etcd* id
                            :endpoint (store-address (find killed stores :test-not #'eq)))))
      (let ((revision (etcd:put *etcd* "end" "1")))
        (flet ((hash (store)
                 (eventually (<= revision
                                 (getf (etcd:member-status *etcd* :endpoint (store-address store))
                                       :revision)))
                 (etcd:hash-entries *etcd* :revision revision :endpoint (store-address store))))
          (is (= 1 (length (remove-duplicates (mapcar #'hash stores)))))))
      ;; one that is alone refuses what it cannot do, and tells what it knows
      (mapc #'end-store (rest stores))
      (eventually (handler-case (progn (etcd:put *etcd* "end" "2" :timeout 1) nil)
                    (etcd:unavailable (error)
                      (and (search "no leader" (etcd:etcd-error-text error))
                           (not (etcd:etcd-error-perhaps-done-p error))))))
      (is (string= "1" (etcd:entry-text (etcd:fetch *etcd* "end" :stale t)))))))
