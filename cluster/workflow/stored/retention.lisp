;;;; What has ended is kept for a time, see next-time, and, if there is a limit, as long as all of
;;;; it takes no more octets than that: then the oldest is deleted. The index of lists has it from
;;;; the newest to the oldest, each with its octets; so what is behind the place where the sum of
;;;; these passes the limit is too much. One node looks, now and then: the one that has the first
;;;; shard.

(in-package #:clgrpc.workflow)

(defun map-ended (function node)
  "Call FUNCTION with the id and the octets of each workflow that has ended, of each status from the
newest to the oldest."
  (dolist (status (remove :running *statuses*))
    (let ((prefix (node-key node "by" (status-text status) "")))
      (etcd:map-entries (lambda (entry)
                          (let ((entry (entry-index-entry entry prefix)))
                            (funcall function status (index-entry-id entry)
                                     (index-entry-octets entry))))
                        (node-etcd node) :prefix prefix))))

(defun superfluous-ids (node most)
  "The ids of those of the workflows that have ended for which there is no room in MOST octets: each
status has its share of them by what there is."
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
  "Delete the oldest of what has ended if all of it takes too many octets."
  (let ((most (limits-retention-octets (node-limits node))))
    (when (and most (member 0 (timer-queue-own (node-timer-queue node))))
      (change-together node (superfluous-ids node most)
                       (lambda (draft)
                         (and (not (running-p (draft-state draft))) (delete-state draft)))))))
