;;;; Several groups of nodes, each with an etcd of its own: one etcd accepts a limited number of
;;;; changes a second, and more nodes do not increase it. A router assigns each workflow to one
;;;; group, by its id, and is used in place of the channel in all calls about one workflow.
;;;;
;;;; The group follows from the id and the names of the groups alone (rendezvous hashing), so all
;;;; clients agree without a request. For each group, take the first eight octets of the MD5 of
;;;; NAME/ID, in UTF-8, as a number: the group with the greatest number has the workflow. If a group
;;;; is added to N groups, it gets one in N + 1 of the ids. Workflows that were started before stay
;;;; in their group, and only the channel of that group finds them.

(in-package #:clgrpc.workflow)

(defstruct (router (:constructor %make-router (groups)) (:copier nil))
  "Groups of nodes, see MAKE-ROUTER."
  (groups '() :type list :read-only t)) ; conses of a name and a channel

(document-functions
  router-p "True of routers, as MAKE-ROUTER returns.")

(define-printer (router router)
  "~{~A~^, ~}" (mapcar #'car (router-groups router)))

(defun make-router (groups)
  "Return a router to GROUPS, a list of (NAME . CHANNEL): the name of a group, a string, which must
stay the same, and a channel to the group's nodes, which have a store of their own. START-WORKFLOW
and all other functions about one workflow accept it in place of a channel; so does MAP-WORKFLOWS. A
worker, a watch of all workflows and a schedule belong to one group; children belong to the group of
their parent. Signal MISUSE if GROUPS is not such a list, is empty, or has a name twice. From any
thread."
  (unless (and (consp groups)
               (every (lambda (group)
                        (and (consp group) (stringp (car group)) (cdr group)))
                      groups))
    (misuse "Groups are a list of at least one cons of a name and a channel, not ~S." groups))
  (when (/= (length groups) (length (remove-duplicates groups :key #'car :test #'string=)))
    (misuse "Each group needs a name of its own: ~S has one twice." groups))
  (%make-router (copy-list groups)))

(defun router-channels (router)
  "Return the channels of ROUTER, a list, one for each group. From any thread."
  (mapcar #'cdr (router-groups router)))

(defun worker-group-weight (name id)
  "A number for the workflow ID and the group NAME: the workflow belongs to the group with the
greatest number."
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
            for weight = (worker-group-weight name id)
            when (< most weight)
              do (setf best channel
                       most weight)
            finally (return best))
      channel))
