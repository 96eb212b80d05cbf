;;;; Workflows that have ended: which are deleted at the limit of their octets, and what that reads.

(in-package #:clgrpc.tests.workflow)

(defun ended-entries-read (function)
  "How many entries of ended workflows in the index stores in memory read while FUNCTION runs."
  (let ((count (list 0)) (name 'memory::range-items))
    (flet ((ended-p (item)
             (search (string-octets "/by/completed/") (memory::item-key item))))
      (with-replaced ((name (lambda (counted &rest arguments)
                              (multiple-value-bind (items all) (apply counted arguments)
                                (sb-ext:atomic-incf (car count)
                                                    (count-if #'ended-p items))
                                (values items all)))))
        (funcall function)))
    (car count)))

(defmacro entries-read (&body body)
  `(ended-entries-read (lambda () ,@body)))

(defun sums-of-ended (node)
  "The sums of ended workflows that NODE has now, and those that it reads from its store."
  (workflow::follow-ended node)
  (let ((followed (workflow::ended-octets node)))
    (setf (workflow::retention-lost (workflow::node-retention node)) t)
    (workflow::follow-ended node)
    (values followed (workflow::ended-octets node))))

(test ended-workflows-are-read-once
  "The check of the octets of ended workflows reads what is to be deleted, and little else; it
follows what ends and what is deleted, and reads all only if it has lost track."
  (let ((ahead 0))
    (with-memory-node (node :retention-octets 100000
                            :clock (lambda () (+ (loop:unix-ns) (* ahead 1000000000))))
      (flet ((complete (id)
               (incf ahead 10)
               (start-workflow node id '((:signal "x")))
               (signal-workflow node id "x" (make-octets 2000)))
             (ended ()
               (etcd:count-entries (workflow::node-etcd node)
                                   :prefix (workflow::node-key node "by/completed/"))))
        ;; with which the keeper has done its own check
        (eventually (workflow::retention-watch (workflow::node-retention node)))
        (dotimes (i 60) (complete (format nil "w~D" i)))
        (let ((read (entries-read (workflow::limit-retention node))) (kept (ended)))
          (is (<= 20 kept 50) "~D are kept" kept)
          (is (<= (- 60 kept) read (- 63 kept)) "~D entries are read to delete ~D" read
              (- 60 kept)))
        (is (zerop (entries-read (dotimes (i 5) (workflow::limit-retention node)))))
        (let ((before (ended)))
          (dotimes (i 3) (complete (format nil "x~D" i)))
          (is (<= 3 (entries-read (workflow::limit-retention node)) 5))
          (is (= before (ended))))
        (delete-workflow node "x1")
        (multiple-value-bind (followed read) (sums-of-ended node)
          (is (equal followed read)))
        (setf (workflow::retention-lost (workflow::node-retention node)) t)
        (is (<= (ended) (entries-read (workflow::limit-retention node))))))))

(test a-watch-without-progress-holds-up-no-check
  "A check whose watch has not caught up within a second deletes nothing and fails nothing; after
some of these all is read again."
  (with-memory-node (node :retention-octets 5000)
    (eventually (workflow::retention-watch (workflow::node-retention node)))
    (dotimes (i 10)
      (start-workflow node (format nil "w~D" i) '((:until 0)) :input (make-octets 1000)))
    (let ((silent t) (begin (get-internal-real-time)))
      (with-replaced (('etcd:await-progress
                       (lambda (function watch &rest options)
                         (when silent (sleep (getf options :timeout 10)))
                         (if silent
                             (error 'etcd:unavailable :text "there is no progress")
                             (apply function watch options)))))
        (flet ((check ()
                 (workflow::limit-retention node)
                 (count-by node "completed")))
          (is (= 10 (check) (check) (check)))
          (is (< (- (get-internal-real-time) begin)
                 (* (support:patient-seconds 6) internal-time-units-per-second)))
          ;; which waits for nothing
          (is (< 0 (check) 5))
          (setf silent nil)
          (is (< 0 (check) 5)))))))
