;;;; Several groups of nodes, each with an etcd of its own: one etcd takes only so many changes a
;;;; second, and more nodes do not make it faster. A router leads each workflow to one group, by its
;;;; id, and replaces the channel in all calls about one workflow.
;;;;
;;;; The group follows from the id and the names of the groups alone (rendezvous hashing), so all
;;;; clients agree without a request: of all names it is the one for which the first eight octets of
;;;; the MD5 of NAME/ID, in UTF-8, are the greatest number. A new group gets one of N + 1 ids;
;;;; workflows that were started before stay in their group, and only the channel of that group
;;;; finds them.

(in-package #:clgrpc.workflow)

(defstruct (router (:constructor %make-router (groups)) (:copier nil))
  "Groups of nodes, see MAKE-ROUTER."
  (groups '() :type list :read-only t)) ; conses of a name and a channel

(document-functions
  router-p "True of routers, as MAKE-ROUTER returns.")

(defmethod print-object ((router router) stream)
  (print-unreadable-object (router stream :type t)
    (format stream "~{~A~^, ~}" (mapcar #'car (router-groups router)))))

(defun make-router (groups)
  "Return a router to GROUPS, a list of (NAME . CHANNEL): a name, a string, which stays that
group's, and a channel to its nodes, whose store is another than that of the other groups.
START-WORKFLOW and all other functions about one workflow take it in place of a channel, and so does
MAP-WORKFLOWS. A worker, a watch of all workflows and a schedule are of one group, and children are
of their parent's. Signal MISUSE for no group, for a name that occurs twice, and for another object
than such a list. From any thread."
  (unless (and (consp groups)
               (every (lambda (group)
                        (and (consp group) (stringp (car group)) (cdr group)))
                      groups))
    (misuse "Groups are conses of a name and a channel, one at least, unlike ~S." groups))
  (when (/= (length groups) (length (remove-duplicates groups :key #'car :test #'string=)))
    (misuse "Each group has a name of its own, unlike those of ~S." groups))
  (%make-router (copy-list groups)))

(defun router-channels (router)
  "Return the channels of ROUTER, a list, one for each group. From any thread."
  (mapcar #'cdr (router-groups router)))

(defun group-weight (name id)
  "How much the workflow ID is that of the group NAME."
  (loop with weight = 0
        for octet across (sb-md5:md5sum-string (format nil "~A/~A" name id)
                                               :external-format :utf-8)
        repeat 8
        do (setf weight (+ octet (ash weight 8)))
        finally (return weight)))

(defun route (channel id)
  "Return the channel that leads to the workflow ID, a string: if CHANNEL is a router, the channel
of the workflow's group, else CHANNEL. From any thread."
  (if (router-p channel)
      (loop with best = nil and most = -1
            for (name . channel) in (router-groups channel)
            for weight = (group-weight name id)
            when (< most weight)
              do (setf best channel
                       most weight)
            finally (return best))
      channel))
