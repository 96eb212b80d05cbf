;;;; Room in the store. Ended workflows stay for a while, and a full store accepts nothing from any
;;;; client: no result, no member, no session. So no workflow is started when a share of the store's
;;;; quota is in use; started workflows continue, and deleted workflows free space. Each node asks
;;;; the store now and then how much is in use, and adds the octets that the node itself has put
;;;; since then.
;;;;
;;;; The octets counted are those that defragmentation would leave: etcd writes into the rest of its
;;;; file. Overwritten and removed entries are in use until they are compacted.

(in-package #:clgrpc.workflow)

(defun measure-usage (node)
  "Ask the store of NODE how much of it is in use. Signal an ETCD-ERROR."
  (let* ((usage (node-usage node))
         (status (handler-case (etcd:member-status (node-etcd node))
                   ;; the error of a proxy, or of a user without the right; in this case no start is
                   ;; refused
                   ((and etcd:etcd-error (not etcd:unavailable)) () nil))))
    (sb-thread:with-mutex ((usage-lock usage))
      (setf (usage-octets usage) (getf status :octets-in-use)
            (usage-quota usage) (getf status :quota)
            (usage-added usage) 0))))

(defun put-octets (draft)
  "The octets that DRAFT, a finished one, has put into the store."
  (if (draft-forgotten draft)
      0
      (+ (length (draft-octets draft))
         (loop for (nil . octets) in (draft-payloads draft) sum (length octets)))))

(defun note-added (node octets)
  "Count OCTETS, a number, that NODE has put into the store."
  (let ((usage (node-usage node)))
    (sb-thread:with-mutex ((usage-lock usage)) (incf (usage-added usage) octets))))

(defun room-used (node)
  "Two values: how many octets of the store of NODE are in use, or nil if the store does not report
it; and how many may be in use if a workflow is to be started."
  (let ((usage (node-usage node)) (limits (node-limits node)))
    (sb-thread:with-mutex ((usage-lock usage))
      (values (and (usage-octets usage) (+ (usage-octets usage) (usage-added usage)))
              (floor (* (limits-max-store-share limits)
                        (or (limits-store-quota limits) (usage-quota usage)
                            +default-store-quota+)))))))

(defun room-used-p (node)
  "True if too much of the store is in use to start a workflow."
  (multiple-value-bind (used most) (room-used node) (and used (<= most used))))

(defun check-room (node)
  "Signal BACKLOG-FULL if too much of the store is in use to start a workflow."
  (multiple-value-bind (used most) (room-used node)
    (when (and used (<= most used))
      (refuse-size :backlog-full :max-store-octets most used
                   "too much of the store is in use to start a workflow"))))

(defun backlog-full-p (node)
  (or (<= (limits-max-running (node-limits node)) (node-running node))
      (room-used-p node)))

(defun check-backlog (node)
  "Signal BACKLOG-FULL if no workflow may be started."
  (let ((most (limits-max-running (node-limits node))) (running (node-running node)))
    (when (<= most running)
      (refuse-size :backlog-full :max-running most running "too many workflows run"))
    (check-room node)))
