;;;; Entries and ranges of them.

(in-package #:clgrpc.tests.etcd)

(store-test entries-are-put-fetched-and-removed
  (with-store (store)
    (is (null (etcd:fetch *etcd* "a")))
    (let ((first (etcd:put *etcd* "a" "one")))
      (is (= (1+ first) (etcd:put *etcd* "a" "zwölf")))
      (let ((entry (etcd:fetch *etcd* "a")))
        (is (string= "a" (etcd:entry-key entry)))
        (is (string= "zwölf" (etcd:entry-text entry)))
        (is (= 2 (etcd:entry-version entry)))
        (is (= first (etcd:entry-created entry)))
        (is (= (1+ first) (etcd:entry-changed entry)))
        (is (zerop (etcd:entry-lease entry))))
      (is (string= "one" (etcd:entry-text (etcd:fetch *etcd* "a" :revision first))))
      (is (string= "zwölf" (etcd:entry-text
                            (nth-value 1 (etcd:put *etcd* "a" (octets-of 0 255) :previous t)))))
      (is (equalp (octets-of 0 255) (etcd:entry-value (etcd:fetch *etcd* "a" :stale t))))
      (signals etcd:future-revision (etcd:fetch *etcd* "a" :revision (+ 100 first)))
      (is (= 3 (etcd:entry-version (etcd:remove-entry *etcd* "a"))))
      (is (null (etcd:remove-entry *etcd* "a")))
      (is (null (etcd:fetch *etcd* "a"))))))

(store-test ranges-are-read-in-pages
  "All of a range is read, as it was when that began."
  (with-store (store)
    (dotimes (i 25) (etcd:put *etcd* (format nil "k/~2,'0D" i) (format nil "~D" i)))
    (etcd:put *etcd* "l" "x")
    (let ((names (loop for i below 25 collect (format nil "k/~2,'0D" i))) (seen '()))
      (etcd:map-entries (lambda (entry)
                          (push (etcd:entry-key entry) seen)
                          (etcd:put *etcd* (format nil "k/~A+" (etcd:entry-text entry)) "new"))
                        *etcd* :prefix "k/" :page 10)
      (is (equal names (reverse seen)))
      (is (= 50 (etcd:count-entries *etcd* :prefix "k/")))
      (is (equal '("k/03" "k/04")
                 (loop for entry in (etcd:fetch-entries *etcd* :from "k/03" :to "k/05")
                       unless (find #\+ (etcd:entry-key entry))
                         collect (etcd:entry-key entry))))
      (let ((entry (first (etcd:fetch-entries *etcd* :prefix "l" :keys-only t))))
        (is (zerop (length (etcd:entry-value entry)))))
      (is (= 50 (etcd:remove-entries *etcd* :prefix "k/")))
      (is (equal '("l") (mapcar #'etcd:entry-key (etcd:fetch-entries *etcd* :prefix "")))))))

(store-test compaction
  (with-store (store)
    (let ((first (etcd:put *etcd* "a" "1")))
      (etcd:put *etcd* "a" "2")
      (etcd:compact *etcd* (etcd:put *etcd* "a" "3"))
      (signals etcd:compacted (etcd:fetch *etcd* "a" :revision first))
      (is (string= "3" (etcd:entry-text (etcd:fetch *etcd* "a")))))))

(test etcd-that-does-not-answer
  "A call ends with its deadline; one that never left was not done."
  (etcd:with-etcd (etcd (format nil "127.0.0.1:~D" (free-port)))
    (with-signalled (error etcd:unavailable (etcd:put etcd "a" "b" :timeout 0.3))
      (is-false (etcd:etcd-error-perhaps-done-p error)))))

(store-test ranges-are-sorted-and-filtered
  "In each order, and between revisions, without pages and with."
  (with-store (store)
    (let* ((first (etcd:put *etcd* "k/c" "1"))
           (second (etcd:put *etcd* "k/a" "3"))
           (third (etcd:put *etcd* "k/b" "2"))
           (fourth (etcd:put *etcd* "k/c" "0")))
      (flet ((keys (&rest options)
               (mapcar #'etcd:entry-key
                       (apply #'etcd:fetch-entries *etcd* :prefix "k/" options))))
        (is (equal '("k/a" "k/b" "k/c") (keys)))
        (is (equal '("k/c" "k/b" "k/a") (keys :order '(:key :descending))))
        (is (equal '("k/c" "k/a" "k/b") (keys :order :created)))
        (is (equal '("k/b" "k/a") (keys :order '(:created :descending) :limit 2)))
        (is (equal '("k/a" "k/b" "k/c") (keys :order :changed)))
        (is (equal '("k/c" "k/b" "k/a") (keys :order :value)))
        (is (equal "k/c" (first (keys :order '(:version :descending)))))
        (is (equal '("k/a" "k/b") (keys :min-created second)))
        (is (equal '("k/a" "k/c") (keys :max-created second)))
        (is (equal '("k/b" "k/c") (keys :min-changed third)))
        (is (equal '("k/a" "k/b") (keys :max-changed third :page 1)))
        (is (equal '("k/b") (keys :min-changed third :max-changed third)))
        (is (equal '("k/a" "k/b") (keys :limit 2 :page 1)))
        (is (equal '("k/a" "k/b" "k/c") (keys :limit 5 :page 2)))
        (is (= 4 (- fourth first -1)))
        (signals misuse (keys :order :size))
        (signals misuse (keys :order '(:key :down)))))))

(store-test revision-zero-is-the-newest
  (with-store (store)
    (etcd:put *etcd* "a" "1")
    (etcd:put *etcd* "a" "2")
    (is (string= "2" (etcd:entry-text (etcd:fetch *etcd* "a" :revision 0))))
    (is (= 1 (length (etcd:fetch-entries *etcd* :prefix "" :revision 0))))))

(test etcdctl-sees-the-same
  (with-store (store)
    (etcd:put *etcd* "a/b" "text")
    (is (string= (format nil "a/b~%text") (etcdctl store "get" "a/b")))
    (etcdctl store "put" "a/c" "other")
    (is (string= "other" (etcd:entry-text (etcd:fetch *etcd* "a/c"))))))

(test stale-ranges-of-several-pages
  "Only the first page is what one member knows: another may not have come to its revision."
  (with-stand-in (store other)
    (dolist (key '("a" "b" "c")) (etcd:put other key "1"))
    (let ((stale '()))
      (with-hook (store name request next)
        (push (pb:range-request-serializable request) stale)
        (next))
      (is (= 3 (length (etcd:fetch-entries *etcd* :prefix "" :stale t :page 1))))
      (is (equal '(t nil nil) (reverse stale))))))

(test counts-may-be-stale
  "They are asked for without the entries, and with :stale of whatever member answers."
  (with-stand-in (store other)
    (etcd:put other "a" "1")
    (let ((asked '()))
      (with-hook (store name request next)
        (push (list (pb:range-request-serializable request) (pb:range-request-count-only request))
              asked)
        (next))
      (is (= 1 (etcd:count-entries *etcd* :prefix "" :stale t)))
      (is (= 1 (etcd:count-entries *etcd* :prefix "")))
      (is (equal '((t t) (nil t)) (reverse asked))))))

(defun fail-first (store name count text)
  "Have STORE refuse what it is asked for by the RPC NAME COUNT times, with TEXT. Return a function
that returns how often it was asked."
  (let ((asked 0))
    (with-hook (store rpc request next)
      (when (and (eq name rpc) (<= (incf asked) count))
        (status:fail :unavailable text))
      (next))
    (lambda () asked)))

(test reads-are-asked-again
  "What only reads is asked again until its time is over, whatever has become of it; so is what may
be done twice."
  (with-stand-in (store other)
    (etcd:put other "a" "1")
    (let ((asked (fail-first store :range 4 "etcdserver: leader changed")))
      (is (string= "1" (etcd:entry-text (etcd:fetch *etcd* "a"))))
      (is (= 5 (funcall asked))))
    (let ((asked (fail-first store :range 1000 "etcdserver: leader changed")))
      (signals etcd:unavailable (etcd:fetch *etcd* "a" :timeout 0.5))
      (is (<= 3 (funcall asked) 10)))
    (let ((asked (fail-first store :txn 2 "etcdserver: request timed out")))
      (is-true (etcd:transact *etcd* :when '((:present "a"))
                                     :then '((:get "a") (:transact :then ((:count :prefix ""))))
                                     :timeout +patience+))
      (is (= 3 (funcall asked))))
    (let ((lease (etcd:grant-lease *etcd* 60 :keep-alive nil))
          (asked (fail-first store :lease-revoke 2 "etcdserver: request timed out")))
      (etcd:revoke-lease lease :timeout +patience+)
      (is (= 3 (funcall asked))))))

(test writes-are-done-once
  "A write whose answer is lost is not done again, and the error says that it may have been done;
one that a member has refused, since it can do nothing, is asked for again."
  (with-stand-in (store other)
    (loop for text in '("etcdserver: no leader" "etcdserver: rpc not supported for learner")
          for version from 1
          do (let ((asked (fail-first store :put 3 text)))
               (etcd:put *etcd* "a" "1")
               (is (= 4 (funcall asked)))
               (is (= version (etcd:entry-version (etcd:fetch other "a"))))))
    (fail-first store :put 1000 "etcdserver: no leader")
    (handler-case (progn (etcd:put *etcd* "a" "2" :timeout 0.3) (is-true nil))
      (etcd:unavailable (error) (is-false (etcd:etcd-error-perhaps-done-p error))))
    (dolist (call (list (lambda () (etcd:put *etcd* "b" "1"))
                        (lambda () (etcd:transact *etcd* :then '((:get "a") (:put "b" "1"))))
                        (lambda () (etcd:remove-entry *etcd* "c"))))
      (let ((asked 0))
        (with-hook (store name request next)
          (next)
          (incf asked)
          (status:fail :unavailable "etcdserver: leader changed"))
        (handler-case (progn (funcall call) (is-true nil))
          (etcd:unavailable (error) (is-true (etcd:etcd-error-perhaps-done-p error))))
        (is (= 1 asked))))
    (setf (stand-in-hook store) nil)
    (is (= 2 (etcd:entry-version (etcd:fetch other "b"))))))

(test members-without-a-leader-are-not-wanted
  "Calls say that they want a member that has a leader, unless what any knows will do."
  (with-stand-in (store other)
    (let ((wanted '()))
      (with-hook (store name request next)
        (push (and (assoc "hasleader" (rpc:call-metadata (clgrpc.method:current-call))
                          :test #'string=)
                   t)
              wanted)
        (next))
      (etcd:put *etcd* "a" "1")
      (etcd:fetch *etcd* "a")
      (etcd:fetch *etcd* "a" :stale t)
      (etcd:count-entries *etcd* :prefix "" :stale t)
      (is (equal '(t t nil nil) (reverse wanted))))))

(test answers-that-are-too-long
  "What is more than the client takes is no reason to ask again."
  (with-stand-in (store other)
    (etcd:put other "a" (make-string 3000 :initial-element #\x))
    (etcd:with-etcd (etcd nil :channel (inproc:service-channel store :max-receive-octets 1000))
      (signals etcd:invalid-request (etcd:fetch etcd "a"))
      (let ((ended nil))
        (etcd:watch etcd #'list :key "a" :on-end (lambda (condition) (setf ended condition)))
        (etcd:put other "a" (make-string 3000 :initial-element #\y))
        (eventually ended)
        (is (typep ended 'etcd:invalid-request))))))

(test a-client-that-is-to-end-waits-for-nothing
  "Once the seconds of CLOSE-AFTER are over, what waits for a member that does not answer fails, and
so does what is asked for then, at once, also as a user who has no token yet."
  (support:with-silent-listener (address)
    (etcd:with-etcd (etcd address :timeout 60)
      (let ((ada (etcd:as-user etcd "ada" "secret")))
        (clgrpc.etcd::add-ending etcd #'list) ; as a lease or a watch does
        (etcd:close-after etcd 1/2)
        (dolist (client (list etcd etcd ada ada))
          (is (> 20 (seconds-of (signals etcd:unavailable (etcd:fetch client "a"))))))))))
