;;;; Elections: one leads, and says something; with etcdctl's.

(in-package #:clgrpc.tests.etcd)

(defun says (entry)
  (and entry (etcd:entry-text entry)))

(store-test elections
  (with-store (store)
    (is (null (etcd:leader *etcd* "chair")))
    (let* ((told '())
           (mirror (etcd:observe *etcd* "chair" (lambda (leader) (push (says leader) told))))
           (ada (etcd:campaign *etcd* "chair" "ada")))
      (is-true (etcd:leadership-held-p ada))
      (is (string= "ada" (says (etcd:leader *etcd* "chair"))))
      (signals etcd:not-obtained (etcd:campaign *etcd* "chair" "eve" :timeout 0.2))
      (is (= 1 (etcd:count-entries *etcd* :prefix "chair/")))
      (let ((bob (sb-thread:make-thread
                  (lambda (etcd) (etcd:campaign etcd "chair" "bob" :timeout +patience+))
                  :arguments (list *etcd*))))
        (eventually (= 2 (etcd:count-entries *etcd* :prefix "chair/")))
        (etcd:proclaim-value ada "ada 2")
        (is (string= "ada 2" (says (etcd:leader *etcd* "chair"))))
        (etcd:resign ada)
        (is-false (etcd:leadership-held-p ada))
        (signals etcd:ownership-lost (etcd:proclaim-value ada "ada 3"))
        (let ((bob (sb-thread:join-thread bob)))
          (is (string= "bob" (says (etcd:leader *etcd* "chair"))))
          (is-false (etcd:transact *etcd* :when (list (etcd:leadership-guard ada))))
          (is-true (etcd:transact *etcd* :when (list (etcd:leadership-guard bob))))
          (is (< (etcd:leadership-revision ada) (etcd:leadership-revision bob)))
          (etcd:resign bob)))
      (eventually (= 5 (length told)))
      (is (equal '(nil "ada" "ada 2" "bob" nil) (reverse told)))
      (etcd:cancel-mirror mirror))))

(store-test a-lease-stands-once
  "Who stands again with the same lease says something else."
  (with-store (store)
    (let* ((lease (etcd:grant-lease *etcd* 10))
           (one (etcd:campaign *etcd* "chair" "one" :lease lease))
           (two (etcd:campaign *etcd* "chair" "two" :lease lease)))
      (is (= (etcd:leadership-revision one) (etcd:leadership-revision two)))
      (is (string= "two" (says (etcd:leader *etcd* "chair"))))
      (etcd:resign two)
      (is (null (etcd:leader *etcd* "chair")))
      (is-true (etcd:lease-alive-p lease)))))

(test etcdctl-stands-with-us
  (with-store (store)
    (let* ((ours (etcd:campaign *etcd* "chair" "ours"))
           (program (support:start-program
                     "/usr/bin/env" (etcdctl-arguments store '("elect" "chair" "theirs")))))
      (unwind-protect
           (progn
             (eventually (= 2 (etcd:count-entries *etcd* :prefix "chair/")))
             (is (string= "ours" (says (etcd:leader *etcd* "chair"))))
             (etcd:resign ours)
             (eventually (equal "theirs" (says (etcd:leader *etcd* "chair"))))
             (signals etcd:not-obtained
               (etcd:campaign *etcd* "chair" "ours" :timeout 0.3))
             (support:signal-program program sb-unix:sigint)
             (is-true (etcd:leadership-held-p
                       (etcd:campaign *etcd* "chair" "ours" :timeout +patience+))))
        (support:stop-program program)))))

(test leaders-of-another-store
  "Who observes an election hears of a leader with the revision of the one before, in a store that
has lost its data; keys that are no UTF-8 trouble nobody."
  (with-stand-in (store other)
    (flet ((stand (etcd value)
             (etcd:put etcd (octets-of 101 47 255) value)))
      (stand other "one")
      (let ((heard '()))
        (etcd:observe *etcd* "e" (lambda (leader) (push (etcd:entry-text leader) heard)))
        (replace-store store (lambda (etcd) (stand etcd "two")))
        (eventually (= 2 (length heard)))
        (is (equal '("one" "two") (reverse heard)))))))

(store-test leaders-whose-entry-was-removed-lose
  "A proclaimed value is bound to the lease, as the first value was. A leader whose entry another
client has removed finds that out when it proclaims: then it is lost, and ON-LOSS is called."
  (with-store (store)
    (let* ((lost '())
           (ada (etcd:campaign *etcd* "chair" "ada"
                               :on-loss (lambda (condition) (push condition lost)))))
      (etcd:proclaim-value ada "ada 2")
      (is (= (etcd:lease-id (etcd:leadership-lease ada))
             (etcd:entry-lease (etcd:leader *etcd* "chair"))))
      (etcd:remove-entry *etcd* (etcd:leadership-key ada))
      (is (null lost))
      (signals etcd:ownership-lost (etcd:proclaim-value ada "ada 3"))
      (is (null (etcd:leader *etcd* "chair")))
      (is-false (etcd:leadership-held-p ada))
      (is (equal '(etcd:ownership-lost) (mapcar #'type-of lost)))
      (etcd:resign ada))))
