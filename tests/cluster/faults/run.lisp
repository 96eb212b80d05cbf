;;;; Loads and faults together.

(in-package #:clgrpc.tests.faults)

(defun summary (run)
  "What the users of RUN have done, as text."
  (flet ((sum (name reader) (reduce #'+ (users-named run name) :key reader)))
    (format nil "~:D writes (~:D perhaps, ~:D failed), ~:D increments (~:D perhaps), ~:D under a ~
                 lock, ~:D changes told~@[, ~D leases that a former leader of etcd ended~]"
            (sum "writer" #'user-done) (sum "writer" #'user-uncertain) (sum "writer" #'user-failed)
            (sum "counter" #'user-done) (sum "counter" #'user-uncertain)
            (sum "locker" #'user-done)
            (sum "watcher" (lambda (user) (length (user-notes user))))
            (and (run-early run) (length (run-early run))))))

(defun faults-at (place faults report)
  "The rows of *FAULTS* that FAULTS, keywords, name and that can be at PLACE. REPORT is told of the
others of these."
  (loop for row in *faults*
        for (name needs) = row
        when (member name faults)
          if (possible-p row place)
            collect row
          else
            do (funcall report (format nil "~(~A~) is passed over: there is no ~(~A~)" name
                                       needs))))

(defun use-place (place rows seconds pause longest report)
  "Use the etcd of PLACE while the faults of ROWS happen, as for RUN-FAULTS, and return the same."
  (let ((run (begin-load place))
        (end (+ (monotonic-ns) (seconds-ns seconds))))
    (unwind-protect
         (loop for round from 0
               while (< (monotonic-ns) end)
               do (destructuring-bind (name needs function what)
                      (nth (mod round (length rows)) rows)
                    (declare (ignore needs))
                    (sleep pause)
                    (funcall report (format nil "~(~A~): ~A" name what))
                    (funcall function place longest)
                    (when (zerop (mod (1+ round) (length rows)))
                      (funcall report (summary run)))
                    (when (run-complaints run) (loop-finish))))
      (sleep pause)
      (end-users run))
    (check-all run)
    (close-users run)
    (values (reverse (run-complaints run)) (summary run))))

(defun run-faults (&key (faults (fault-names)) (members 1) (seconds 600) (pause 3) (longest 10)
                     (report (constantly nil)))
  "Use an etcd of its own, of MEMBERS, 1 or 3, for about SECONDS while the FAULTS, keywords, happen
by turns, each for LONGEST seconds at most, with PAUSE seconds between. Call REPORT with texts that
tell what happens. Return a list of complaints, texts, and a text of what was done."
  (when (notany (lambda (row) (member (first row) faults)) *faults*)
    (return-from run-faults (values '() "None of these faults is etcd's or its connections'.")))
  (let ((base:*log-function* nil))
    (with-place (place members)
      (let ((rows (faults-at place faults report)))
        (if rows
            (use-place place rows seconds pause longest report)
            (values '() (format nil "None of these faults can happen to an etcd of ~R member~:P ~
                                     here." members)))))))

(test faults-that-cannot-be-are-told
  "What only a cluster of etcd can suffer is passed over where it has one member."
  (shared:need-etcd)
  (let ((told '()))
    (multiple-value-bind (complaints summary)
        (run-faults :faults '(:leader-killed :leader-stopped) :seconds 1
                    :report (lambda (text) (push text told)))
      (is (null complaints))
      (is (search "an etcd of one member" summary))
      (is (= 2 (length told))))))

(test faults-in-short
  "The faults of etcd and its connections, a second or two each."
  (shared:need-etcd)
  (multiple-value-bind (complaints summary)
      (run-faults :faults '(:killed :stopped :cut :silent :short) :seconds 4 :pause 0.2
                  :longest 1)
    (is (null complaints) "~A~{~%~A~}" summary complaints)))

(test leaders-in-short
  "Of three members of etcd the one that leads is killed, or stopped, while all goes on."
  (shared:need-etcd)
  (multiple-value-bind (complaints summary)
      (run-faults :members 3 :faults '(:leader-killed :leader-stopped) :seconds 2 :pause 0.2
                  :longest 1)
    (is (null complaints) "~A~{~%~A~}" summary complaints)))

(defun programs-in (folder)
  "The ids of processes whose command names something of a run of faults that has FOLDER."
  (loop for file in (directory "/proc/*/cmdline" :resolve-symlinks nil)
        for command = (ignore-errors
                       (uiop:read-file-string file :external-format :latin-1))
        when (search (format nil "~Aclgrpc-faults-" folder) command)
          collect (uiop:native-namestring file)))

(test faults-that-are-ended-leave-nothing
  "scripts/faults that gets SIGTERM takes down what it has started, and ends with 143."
  (shared:need-etcd)
  (let ((folder (new-folder-name "ended")))
    (ensure-directories-exist folder)
    (support:with-program (program "/usr/bin/env" (format nil "TMPDIR=~A" folder)
                                   "CLGRPC_FAULTS_MINUTES=5" "CLGRPC_FAULTS_PAUSE=0.1"
                                   "CLGRPC_FAULTS_WORKFLOWS=0" "CLGRPC_FAULTS=stopped"
                                   (uiop:native-namestring sb-ext:*runtime-pathname*)
                                   "--noinform" "--dynamic-space-size" "2048"
                                   "--non-interactive" "--no-sysinit" "--no-userinit"
                                   "--load" (support:root-file "scripts/lisp/faults.lisp"))
      ;; "users of an etcd of one member", then what goes wrong
      (loop for line = (support:program-line program)
            until (or (null line) (search "stopped:" line)))
      (is (plusp (length (programs-in folder))))
      (is (eql 143 (support:terminate-program program)))
      (is (equal '() (programs-in folder)))
      (is (equal '() (directory (format nil "~A*" folder) :resolve-symlinks nil)))
      (uiop:delete-directory-tree (pathname folder) :validate t))))

(test former-leaders-that-end-leases-are-known
  (is (equal '(t t nil t nil nil nil)
             (mapcar #'revokes-renewed-p
                     '("3.3.27" "3.4.23" "3.4.31" "3.5.12" "3.5.13" "3.6.0" "memory")))))

(test leases-that-end-early-are-told-apart
  "An entry that is gone though its lease lasts is a fault of ours; that its lease has ended is one,
too, unless a former leader of etcd, which had hung, has just gone on."
  (let* ((engine (let ((base:*log-function* nil)) (memory:make-engine)))
         (etcd (memory:connect engine)) (other (memory:connect engine)))
    (flet ((outcome (former-leader-ns function)
             (let* ((run (make-fault-run
                          :place (make-place :former-leader-ns former-leader-ns)))
                    (user (make-user :run run :name "keeper 0" :etcd etcd))
                    (lease (etcd:grant-lease etcd 60)))
               (etcd:put etcd "kept" "x" :lease lease)
               (funcall function lease)
               (look-into-loss user lease (etcd:fetch etcd "kept"))
               (list (length (run-complaints run)) (length (run-early run)))))
           (end (lease)
             (etcd:revoke-lease (etcd:lease-by-number other (etcd:lease-id lease)))))
      (unwind-protect
           (let ((now (monotonic-ns)))
             (is (equal '(1 0) (outcome now (fn (_lease) (etcd:remove-entry other "kept")))))
             (is (equal '(1 0) (outcome nil #'end)))
             (is (equal '(0 1) (outcome now #'end)))
             (is (equal '(1 0) (outcome (- now (seconds-ns 60)) #'end))))
        (etcd:close-etcd etcd)
        (etcd:close-etcd other)
        (memory:close-engine engine)))))

(test what-is-wrong-is-noticed
  "A change that a watcher was not told, was told twice or too late, and a write that is not there."
  (flet ((complaints (told written)
           (let* ((run (make-fault-run :place (make-place)))
                  (history '((2 "n/writer 0" "1") (3 "n/writer 0" "2") (4 "n/writer 0" "3"))))
             (setf (run-users run) (list (make-user :run run :name "watcher 0")
                                         (make-user :run run :name "writer 0")))
             (dolist (i told) (note (first (run-users run)) (nth i history)))
             (dolist (row written) (note (second (run-users run)) row))
             (check-history run history)
             (length (run-complaints run)))))
    (is (= 0 (complaints '(0 1 2) '((2 1) (4 3)))))
    (is (= 1 (complaints '(0 2) '((2 1)))))
    (is (= 1 (complaints '(0 1 1 2) '())))
    (is (= 1 (complaints '(0 2 1) '())))
    (is (= 1 (complaints '(0 1 2) '((3 1)))))
    (is (= 1 (complaints '(0 1 2) '((9 4)))))))
