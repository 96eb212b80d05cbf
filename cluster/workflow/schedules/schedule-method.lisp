;;;; The methods of the service that are about schedules, see workflow-method.lisp.

(in-package #:clgrpc.workflow)

(define-answer methods:create-schedule :start (node request)
  (pb:make-create-schedule-reply :created (create-schedule-of node request)))

(define-answer methods:get-schedule :read (node request)
  (let* ((id (pb:get-schedule-request-id request))
         (entry (or (fetch-schedule node id) (refuse-schedule id))))
    (pb:make-get-schedule-reply :state (entry-schedule entry)
                                :workflow (fetch-scheduled node id))))

(defun schedule-page (node after limit)
  "Two values: the entries of the next schedules after the id AFTER, at most LIMIT; and the id after
which the next page begins, or \"\". If more entries follow, a page that has only entries of other
programs, which have no ids, is skipped."
  (let* ((prefix (node-key node "schedules" ""))
         (from (if (string= "" after)
                   prefix
                   (format nil "~A~A~C" prefix after (code-char 0)))))
    (loop
      (let* ((entries (etcd:fetch-entries (node-etcd node) :from from :to (key-behind prefix)
                                                           :limit (1+ limit)))
             (page (subseq entries 0 (min limit (length entries))))
             (next (if (nthcdr limit entries)
                       (some (lambda (entry) (entry-name entry prefix)) (reverse page))
                       "")))
        (when next (return (values page next)))
        (setf from (key-after (first (last page))))))))

(define-answer methods:list-schedules :read (node request)
  (let* ((asked (pb:list-schedules-request-limit request))
         (limit (if (zerop asked) +list-page+ (min asked +list-page+))))
    (multiple-value-bind (page next)
        (schedule-page node (pb:list-schedules-request-after request) limit)
      (pb:make-list-schedules-reply
       :schedules (loop for entry in page
                        for state = (readable-schedule entry)
                        when state collect state)
       :next next))))

(define-answer methods:pause-schedule :operate (node request)
  (change-schedule node (pb:pause-schedule-request-id request)
                   (lambda (state)
                     (let ((new (pause-schedule-state
                                 state (pb:pause-schedule-request-resume request)
                                 (node-now node))))
                       (and new (schedule-operations (node-root node) state new)))))
  (pb:make-pause-schedule-reply))

(define-answer methods:delete-schedule :operate (node request)
  (let ((id (pb:delete-schedule-request-id request)) (root (node-root node)))
    (pb:make-delete-schedule-reply
     :deleted (handler-case
                  (progn (change-schedule node id
                                          (lambda (state)
                                            (loop for key in (list* (schedule-key root id)
                                                                    (scheduled-key root id)
                                                                    (schedule-errands root
                                                                                      state))
                                                  collect (list :remove key))))
                         t)
                (schedule-not-found () nil)))))
