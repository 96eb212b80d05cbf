;;;; Searches: pages, the newest first, by status, type and times, and what a call looks at.

(in-package #:clgrpc.tests.workflow)

(defun ids-found (node &rest search)
  (let ((ids '()))
    (apply #'map-workflows (lambda (item) (push (pb:workflow-summary-id item) ids)) node search)
    (nreverse ids)))

(defun numbered (from to)
  "Ids with the numbers from FROM down to TO."
  (loop for number from from downto to collect (format nil "w~3,'0D" number)))

(test lists-have-pages-and-begin-with-the-newest
  "250 workflows, of three pages, are each listed once, whatever their status."
  (let ((now 1000000))
    (with-memory-node (node :clock (lambda () (* now 1000000000)))
      (dolist (id (reverse (numbered 249 0)))
        (start-workflow node id '((:signal "x")))
        (incf now))
      (loop for id in (numbered 249 0) by #'cddr
            do (signal-workflow node id "x" nil))
      (is (equal (numbered 249 0) (ids-found node)))
      (is (equal (loop for id in (numbered 249 0) by #'cddr collect id)
                 (ids-found node :status :completed)))
      (is (equal (loop for id in (numbered 248 0) by #'cddr collect id)
                 (ids-found node :status :running)))
      (is (null (ids-found node :status :failed))))))

(test searches-are-by-type-and-times
  "Each bound holds at its edge: what is from a time on includes it, what is before it does not."
  (let ((now 1000000))
    (with-memory-node (node :clock (lambda () (* now 1000000000)))
      (dolist (id (reverse (numbered 9 0)))
        (start-workflow node id '((:signal "x")) :type (if (string< id "w005") "letter" "parcel"))
        (incf now))
      (dolist (id (reverse (numbered 6 3)))
        (signal-workflow node id "x" nil)
        (incf now))
      (is (equal (numbered 4 0) (ids-found node :type "letter")))
      (is (equal (numbered 4 3) (ids-found node :type "letter" :status :completed)))
      (is (null (ids-found node :type "lette")))
      (is (equal (numbered 9 7) (ids-found node :started-from 1000007)))
      (is (equal (numbered 6 0) (ids-found node :started-before 1000007)))
      (is (equal (numbered 6 5) (ids-found node :started-from 1000005 :started-before 1000007)))
      (is (null (ids-found node :started-from 1000007 :started-before 1000007)))
      ;; 3 has ended at 1000010, 6 at 1000013
      (is (equal (numbered 6 4) (ids-found node :ended-from 1000011)))
      (is (equal (numbered 4 3) (ids-found node :ended-before 1000012)))
      (is (equal (numbered 5 4) (ids-found node :ended-from 1000011 :ended-before 1000013)))
      (is (null (ids-found node :ended-from 1 :status :running)))
      (signals invalid-request
        (workflow::ask #'methods:list node (pb:make-list-request :started-from-unix-ms -1) 5)))))

(test a-search-looks-at-so-many-entries
  "A call that finds nothing in 2,000 entries says where to go on; the next ones find what is
behind."
  (let ((now 1000000))
    (with-memory-node (node :clock (lambda () (* now 1000000000)))
      (start-workflow node "old" '((:signal "x")) :type "rare")
      (incf now)
      (loop for i below 2100 do (start-workflow node (format nil "w~D" i) '((:signal "x"))))
      (let ((reply (workflow::ask #'methods:list node (pb:make-list-request :type "rare") 10)))
        (is (zerop (length (pb:list-reply-workflows reply))))
        (is (string/= "" (pb:list-reply-next reply))))
      (is (equal '("old") (ids-found node :type "rare"))))))
