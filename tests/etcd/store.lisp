;;;; Entries and ranges of them.

(in-package #:clgrpc.tests.etcd)
(in-suite :clgrpc.etcd)

(test entries-are-put-fetched-and-removed
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

(test ranges-are-read-in-pages
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

(test compaction
  (with-store (store)
    (let ((first (etcd:put *etcd* "a" "1")))
      (etcd:put *etcd* "a" "2")
      (etcd:compact *etcd* (etcd:put *etcd* "a" "3"))
      (signals etcd:compacted (etcd:fetch *etcd* "a" :revision first))
      (is (string= "3" (etcd:entry-text (etcd:fetch *etcd* "a")))))))

(test members
  (with-store (store)
    (let ((members (etcd:list-members *etcd*)))
      (is (= 1 (length members)))
      (is (string= "lab" (getf (first members) :name)))
      (is (equal (list (format nil "http://~A" (store-address store)))
                 (getf (first members) :clients))))))

(test etcd-that-does-not-answer
  "A call ends with its deadline; one that never left was not done."
  (etcd:with-etcd (etcd (format nil "127.0.0.1:~D" (free-port)))
    (handler-case (progn (etcd:put etcd "a" "b" :timeout 0.3) (fail "nobody is there"))
      (etcd:unavailable (error)
        (is-false (etcd:etcd-error-perhaps-done-p error))))))

(test etcdctl-sees-the-same
  (with-store (store)
    (etcd:put *etcd* "a/b" "text")
    (if (zerop (nth-value 2 (uiop:run-program "command -v etcdctl" :ignore-error-status t)))
        (is (string= (format nil "a/b~%text")
                     (uiop:run-program (list "env" "ETCDCTL_API=3" "etcdctl" "--endpoints"
                                             (store-address store) "get" "a/b")
                                       :output '(:string :stripped t))))
        (skip "etcdctl is not installed"))))

(test endpoints
  (flet ((target (&rest endpoints) (clgrpc.etcd::endpoints-target endpoints)))
    (is (string= "a:1" (target "a:1")))
    (is (string= "ipv4:1.2.3.4:1,5.6.7.8:2" (target "1.2.3.4:1" "5.6.7.8:2")))
    (is (string= "ipv6:[::1]:1,[::2]:2" (target "[::1]:1" "[::2]:2")))
    (signals misuse (target "a:1" "b:2"))
    (signals misuse (target))))
