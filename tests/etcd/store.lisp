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

(test etcd-that-does-not-answer
  "A call ends with its deadline; one that never left was not done."
  (etcd:with-etcd (etcd (format nil "127.0.0.1:~D" (free-port)))
    (handler-case (progn (etcd:put etcd "a" "b" :timeout 0.3) (fail "nobody is there"))
      (etcd:unavailable (error)
        (is-false (etcd:etcd-error-perhaps-done-p error))))))

(test ranges-are-sorted-and-filtered
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

(test revision-zero-is-the-newest
  (with-store (store)
    (etcd:put *etcd* "a" "1")
    (etcd:put *etcd* "a" "2")
    (is (string= "2" (etcd:entry-text (etcd:fetch *etcd* "a" :revision 0))))
    (is (= 1 (length (etcd:fetch-entries *etcd* :prefix "" :revision 0))))))

(test etcdctl-sees-the-same
  (with-store (store)
    (etcd:put *etcd* "a/b" "text")
    (if (etcdctl-p)
        (progn (is (string= (format nil "a/b~%text") (etcdctl store "get" "a/b")))
               (etcdctl store "put" "a/c" "other")
               (is (string= "other" (etcd:entry-text (etcd:fetch *etcd* "a/c")))))
        (skip "etcdctl is not installed"))))

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
