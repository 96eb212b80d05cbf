;;;; Several groups of nodes, each with an etcd of its own: one etcd takes so many changes a second,
;;;; and more nodes do not make it faster. A router leads each workflow to one group, by its id, and
;;;; stands for the channel in all that is asked about one workflow.
;;;;
;;;; Which group that is follows from the id and the names of the groups alone (rendezvous hashing),
;;;; so all clients agree without asking anybody: of all names it is that for which the first eight
;;;; octets of the MD5 of NAME/ID, in UTF-8, are the greatest number. With another group one of
;;;; N + 1 ids is led to it; what was started before stays where it was, and is found there only by
;;;; the channel of its former group.

(in-package #:clgrpc.workflow)

(defstruct (router (:constructor %make-router (groups)) (:copier nil))
  "Groups of nodes, see MAKE-ROUTER."
  (groups '() :type list :read-only t)) ; conses of a name and a channel

(document-functions
  router-p "True of what MAKE-ROUTER returns.")

(defmethod print-object ((router router) stream)
  (print-unreadable-object (router stream :type t)
    (format stream "~{~A~^, ~}" (mapcar #'car (router-groups router)))))

(defun make-router (groups)
  "Return a router to GROUPS, a list of (NAME . CHANNEL): a name, a string, which stays that
group's, and a channel to its nodes, whose store is another than that of the other groups.
START-WORKFLOW and all other functions that ask about one workflow take it for a channel, and
MAP-WORKFLOWS does; a worker, a watch of all workflows, a schedule, and what a workflow starts are
of one group. Signal MISUSE for no group, for a name that occurs twice, and for what is no such
list. From any thread."
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
  "Return the channel that leads to the workflow ID, a string: if CHANNEL is a router that of its
group, else CHANNEL. From any thread."
  (if (router-p channel)
      (loop with best = nil and most = -1
            for (name . channel) in (router-groups channel)
            for weight = (group-weight name id)
            when (< most weight)
              do (setf best channel
                       most weight)
            finally (return best))
      channel))
