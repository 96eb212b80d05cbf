;;;; The members of etcd's cluster: their list, and changes of their number. A cluster of N members
;;;; works while more than half of them do; learners have no vote until they are promoted.
;;;;
;;;; If a change is proposed before etcd's leader has noted that the previous one was applied, etcd
;;;; drops the change without an answer: the call ends with its deadline, and may be repeated.

(in-package #:clgrpc.etcd)

(defun member-plist (member)
  "The plist of LIST-MEMBERS for MEMBER, a message."
  (list :name (pb:member-name member) :id (pb:member-id member)
        :peers (coerce (pb:member-peer-ur-ls member) 'list)
        :clients (coerce (pb:member-client-ur-ls member) 'list)
        :learner (pb:member-is-learner member)))

(define-keyword-function list-members (etcd &key timeout)
  "Return the members of ETCD's cluster, a list of plists with :NAME, a string, empty before the
member has started, :ID, :PEERS and :CLIENTS, lists of URLs, and :LEARNER, true if it has no vote.
Signal an ETCD-ERROR. From any thread."
  (map 'list #'member-plist
       (pb:member-list-response-members
        (ask etcd #'cluster:member-list (pb:make-member-list-request :linearizable t) timeout
             :twice t))))

(defun url-list (urls)
  "URLS, a URL or a list of URLs, as a list. Signal MISUSE for anything else."
  (let ((urls (if (listp urls) urls (list urls))))
    (unless (and urls (every #'stringp urls))
      (misuse "A member needs URLs for its peers, such as \"http://10.0.0.1:2380\"."))
    urls))

(define-keyword-function add-member (etcd peers &key learner timeout)
  "Add a member to ETCD's cluster. The other members reach the new member at PEERS, a URL or a list
of URLs; if LEARNER is true, the member has no vote. Return the member's plist, see LIST-MEMBERS,
and as second value the list of all members. Start the member afterwards, with
--initial-cluster-state existing. Signal ALREADY-EXISTS if a member has such a URL, NOT-READY if too
few members have started, or another ETCD-ERROR. From any thread."
  (let ((response (ask etcd #'cluster:member-add
                       (pb:make-member-add-request :peer-ur-ls (url-list peers)
                                                   :is-learner (and learner t))
                       timeout)))
    (values (member-plist (pb:member-add-response-member response))
            (map 'list #'member-plist (pb:member-add-response-members response)))))

(define-keyword-function remove-member (etcd id &key timeout)
  "Remove the member with the number ID from ETCD's cluster, for good. Return the plists of the
remaining members, see LIST-MEMBERS. Signal NOT-FOUND if there is no such member, NOT-READY if the
others would be too few to decide, or another ETCD-ERROR. From any thread."
  (map 'list #'member-plist
       (pb:member-remove-response-members
        (ask etcd #'cluster:member-remove (pb:make-member-remove-request :id id) timeout))))

(define-keyword-function update-member (etcd id peers &key timeout)
  "Set the URLs at which the peers of the member with the number ID reach it to PEERS, a URL or a
list of URLs. Return the plists of all members, see LIST-MEMBERS. Signal NOT-FOUND or another
ETCD-ERROR. From any thread."
  (map 'list #'member-plist
       (pb:member-update-response-members
        (ask etcd #'cluster:member-update
             (pb:make-member-update-request :id id :peer-ur-ls (url-list peers)) timeout))))

(define-keyword-function promote-member (etcd id &key timeout)
  "Give the learner with the number ID a vote. Return the plists of all members, see LIST-MEMBERS.
Signal NOT-FOUND, NOT-READY if it is not a learner or its log is too far behind, or another
ETCD-ERROR. From any thread."
  (map 'list #'member-plist
       (pb:member-promote-response-members
        (ask etcd #'cluster:member-promote (pb:make-member-promote-request :id id) timeout))))
