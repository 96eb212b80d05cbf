;;;; Workflows that have ended are kept for a time, see next-time. If their octets have a limit, the
;;;; oldest are deleted at the limit. The index of lists has them from the newest to the oldest,
;;;; each with its octets; so those after the place where the sum of octets exceeds the limit are
;;;; deleted. One node checks this now and then: the one that has the first shard.

(in-package #:clgrpc.workflow)

(defun map-ended (function node)
  "Call FUNCTION with the id and the octets of each workflow that has ended, for each status from
the newest to the oldest."
  (dolist (status (remove :running *statuses*))
    (let ((prefix (node-key node "by" (status-text status) "")))
      (etcd:map-entries (lambda (entry)
                          (let ((entry (entry-index-entry entry prefix)))
                            (funcall function status (index-entry-id entry)
                                     (index-entry-octets entry))))
                        (node-etcd node) :prefix prefix))))

(defun superfluous-ids (node most)
  "The ids of the ended workflows that do not fit into MOST octets. Each status gets a share of
these in proportion to its octets."
  (let ((sums '()) (ids '()))
    (map-ended (lambda (status id octets)
                 (declare (ignore id))
                 (incf (getf sums status 0) octets))
               node)
    (let ((all (loop for (nil octets) on sums by #'cddr sum octets)) (kept '()))
      (when (< most all)
        (map-ended (lambda (status id octets)
                     (when (< (floor (* most (getf sums status 0)) all)
                              (incf (getf kept status 0) octets))
                       (push id ids)))
                   node)))
    ids))

(defun limit-retention (node)
  "Delete the oldest ended workflows if all of them take too many octets."
  (let ((most (limits-retention-octets (node-limits node))))
    (when (and most (member 0 (timer-queue-own (node-timer-queue node))))
      (change-together node (superfluous-ids node most)
                       (lambda (draft)
                         (and (not (running-p (draft-state draft))) (delete-state draft)))))))
