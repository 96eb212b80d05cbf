;;;; Mirrors: all entries, then each change; all again after a compaction.

(in-package #:clgrpc.tests.etcd)

(defun copy-of (events)
  "What a table is, as an alist of keys and values sorted by key, that EVENTS of a mirror, the
newest first, were applied to."
  (let ((table (make-hash-table :test #'equal)))
    (loop for (kind items) in (reverse events)
          do (when (eq :entries kind) (clrhash table))
             (dolist (item items)
               (cond ((eq :entries kind)
                      (setf (gethash (etcd:entry-key item) table) (etcd:entry-text item)))
                     ((eq :put (etcd:change-kind item))
                      (setf (gethash (etcd:entry-key (etcd:change-entry item)) table)
                            (etcd:entry-text (etcd:change-entry item))))
                     (t (remhash (etcd:entry-key (etcd:change-entry item)) table)))))
    (sort (alexandria:hash-table-alist table) #'string< :key #'car)))

(store-test mirrors
  (with-store (store)
    (etcd:put *etcd* "m/a" "1")
    (etcd:put *etcd* "n" "1")
    (let* ((events '())
           (mirror (etcd:mirror *etcd*
                                (lambda (kind items revision)
                                  (push (list kind items revision) events))
                                :prefix "m/"))
           (first (third (first events))))
      (is (equal '(("m/a" . "1")) (copy-of events)))
      (etcd:put *etcd* "m/b" "2")
      (etcd:transact *etcd* :then '((:put "m/c" "3") (:remove "m/a")))
      (eventually (= 3 (length events)))
      (is (equal '(("m/b" . "2") ("m/c" . "3")) (copy-of events)))
      (is (equal (list first (+ 1 first) (+ 2 first)) (reverse (mapcar #'third events))))
      (etcd:cancel-mirror mirror)
      (etcd:put *etcd* "m/d" "4")
      (is (= 3 (length events))))))

(test mirrors-begin-anew-after-compaction
  "While etcd is elsewhere changes that a mirror would tell are made and compacted."
  (with-store (store)
    (etcd:put *etcd* "m/a" "1")
    (let ((events '()) (port (store-port store)))
      (etcd:mirror *etcd* (fn (kind items _revision) (push (list kind items) events))
                   :prefix "m/")
      (end-store store)
      (setf (store-port store) (free-port))
      (begin-store store)
      (etcd:with-etcd (etcd (store-address store) :timeout +patience+)
        (etcd:put etcd "m/b" "2")
        (etcd:remove-entry etcd "m/a")
        (etcd:compact etcd (etcd:put etcd "m/c" "3")))
      (end-store store)
      (setf (store-port store) port)
      (begin-store store)
      (eventually (equal '(:entries :entries) (mapcar #'first events)))
      (is (equal '(("m/b" . "2") ("m/c" . "3")) (copy-of events)))
      (etcd:put *etcd* "m/d" "4")
      (eventually (assoc "m/d" (copy-of events) :test #'string=)))))

(test mirrors-begin-anew-when-the-store-has-lost-its-data
  (with-store (store)
    (dolist (key '("m/a" "m/b" "m/c")) (etcd:put *etcd* key "1"))
    (let ((events '()))
      (etcd:mirror *etcd* (fn (kind items _revision) (push (list kind items) events))
                   :prefix "m/")
      (end-store store)
      (uiop:delete-directory-tree (pathname (store-folder store)) :validate t)
      (begin-store store)
      (eventually (equal '(:entries :entries) (mapcar #'first events)))
      (is (null (copy-of events)))
      (etcd:put *etcd* "m/d" "4")
      (eventually (equal '(("m/d" . "4")) (copy-of events))))))

(store-test mirrors-end
  "A mirror whose function fails ends, and says why."
  (with-store (store)
    (let ((ended nil))
      (etcd:mirror *etcd* (fn (kind _items _revision)
                            (when (eq :changes kind) (error "This is a bug.")))
                   :prefix "m/" :on-end (lambda (condition) (setf ended condition)))
      (etcd:put *etcd* "m/a" "1")
      (eventually ended)
      (is (typep ended 'simple-error)))))

(test mirrors-whose-first-changes-are-compacted
  "Changes are made and compacted after the entries were fetched, before the watch begins: one
mirror comes of that, which is told all entries again, and which CANCEL-MIRROR ends."
  (with-stand-in (store other)
    (etcd:put other "m/a" "1")
    (let ((events '()) (times 0))
      (with-hook (store name request next)
        (when (and (eq :watch name) (<= (incf times) 5))
          (etcd:put other "m/a" (format nil "~D" (1+ times)))
          (etcd:compact other (etcd:put other "m/b" "x")))
        (next))
      (let ((mirror (etcd:mirror *etcd* (fn (kind items _revision) (push (list kind items) events))
                                 :prefix "m/")))
        (eventually (= 6 (length events)))
        (is (equal '(("m/a" . "6") ("m/b" . "x")) (copy-of events)))
        (etcd:put other "m/c" "y")
        (eventually (= 7 (length events)))
        (is (equal '(:changes :entries :entries :entries :entries :entries :entries)
                   (mapcar #'first events)))
        (etcd:cancel-mirror mirror)
        (etcd:put other "m/d" "y")
        (is (= 7 (length events)))
        (is (null (clgrpc.etcd::etcd-endings *etcd*)))))))

(test mirrors-end-while-they-are-mended
  "CLOSE-ETCD and CANCEL-MIRROR end a mirror that waits for an answer, or tries in vain, at once."
  (dolist (end (list #'etcd:cancel-mirror
                     (lambda (mirror) (etcd:close-etcd (clgrpc.etcd::mirror-etcd mirror)))))
    (dolist (silent '(nil t))
      (with-stand-in (store other :timeout 60)
        (let* ((told 0) (asked nil) (gate (sb-thread:make-semaphore))
               (mirror (etcd:mirror *etcd* (fn (_kind _items _revision) (incf told))
                                    :prefix "m/"))
               (job (clgrpc.etcd::mirror-job mirror)))
          ;; changes are compacted before it goes on
          (with-hook (store name request next)
            (case name
              (:watch (etcd:put other "n" "1")
               (etcd:compact other (etcd:put other "n" "2"))
               (next))
              (:range (setf asked t)
               (when silent (sb-thread:wait-on-semaphore gate))
               (status:fail :unavailable "not now"))
              (t (next))))
          (break-streams store)
          (eventually asked)
          (is (> 30 (seconds-of (funcall end mirror))))
          (is-false (loop::job-running job))
          (sb-thread:signal-semaphore gate 10)
          (is (= 1 told)))))))

(test pages-are-shorter-after-failures
  "With each an eighth, down to a bound."
  (with-stand-in (store other)
    (let ((mirror (etcd:mirror *etcd* #'list :prefix "a/" :on-error #'list)))
      (is (equal '(100 12 4 4)
                 (loop repeat 4
                       collect (clgrpc.etcd::mirror-page mirror)
                       do (clgrpc.etcd::meet-mirror-failure
                           mirror (make-condition 'etcd:unavailable)))))
      (etcd:cancel-mirror mirror))))
