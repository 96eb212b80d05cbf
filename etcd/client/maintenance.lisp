;;;; The upkeep of etcd: states of its members, alarms, defragmenting, backups, checks. Most
;;;; functions are about one member: the one at :endpoint, or any member.

(in-package #:clgrpc.etcd)

(define-keyword-function member-status (etcd &key endpoint timeout)
  "Return the state of the member at ENDPOINT, \"HOST:PORT\", or of any member if that is nil. The
state is a plist:
 :MEMBER, the member's number;
 :LEADER, the number of the leader, or nil if the member knows none;
 :VERSION, a string;
 :OCTETS, the size of its file, and :OCTETS-IN-USE, the size after defragmentation;
 :QUOTA, the maximum number of octets of the file, or nil if the member does not report it (before
   etcd 3.6);
 :REVISION, of the store;
 :TERM, :INDEX and :APPLIED, of Raft's log;
 :LEARNER, true if the member has no vote;
 :ERRORS, a list of texts.
Signal an ETCD-ERROR if the member does not answer. From any thread."
  (with-endpoint (etcd etcd endpoint)
    (let* ((response (ask etcd #'maintenance:status (pb:make-status-request) timeout
                          :twice t :leader nil))
           (header (pb:status-response-header response))
           (leader (pb:status-response-leader response))
           (quota (pb:status-response-db-size-quota response)))
      (list :member (pb:response-header-member-id header)
            :leader (if (zerop leader) nil leader)
            :version (pb:status-response-version response)
            :octets (pb:status-response-db-size response)
            :octets-in-use (pb:status-response-db-size-in-use response)
            :quota (if (plusp quota) quota nil)
            :revision (header-revision header)
            :term (pb:status-response-raft-term response)
            :index (pb:status-response-raft-index response)
            :applied (pb:status-response-raft-applied-index response)
            :learner (pb:status-response-is-learner response)
            :errors (coerce (pb:status-response-errors response) 'list)))))

(define-keyword-function defragment (etcd &key endpoint timeout)
  "Defragment the member at ENDPOINT, or any member: it returns the free space in its file to the
file system. Meanwhile the member answers no other requests, so defragment one member after the
other. Signal an ETCD-ERROR. From any thread."
  (with-endpoint (etcd etcd endpoint)
    (ask etcd #'maintenance:defragment (pb:make-defragment-request) timeout :leader nil)
    nil))

(define-keyword-function hash-entries (etcd &key revision endpoint timeout)
  "Return a hash of the entries up to REVISION, by default the newest, of the member at ENDPOINT, or
any member: members with the same entries have the same hash. The second and third values are that
revision and the revision of the last compaction; hashes can be compared only if these revisions are
equal as well. Signal an ETCD-ERROR. From any thread."
  (with-endpoint (etcd etcd endpoint)
    (let ((response (ask etcd #'maintenance:hash-kv
                         (pb:make-hash-kv-request :revision (or revision 0)) timeout
                         :twice t :leader nil)))
      (values (pb:hash-kv-response-hash response)
              (or revision (header-revision (pb:hash-kv-response-header response)))
              (pb:hash-kv-response-compact-revision response)))))

;;; Alarms

(defun alarms-of (response)
  (map 'list (lambda (alarm)
               (list :member (pb:alarm-member-member-id alarm)
                     :alarm (pb:alarm-member-alarm alarm)))
       (pb:alarm-response-alarms response)))

(define-keyword-function list-alarms (etcd &key timeout)
  "Return the present alarms: a list of plists of :MEMBER, the number of a member, and :ALARM. An
:ALARM is :nospace if the member's quota is used up, so that etcd accepts nothing more, or :corrupt
if the member's entries differ from those of the other members. Signal an ETCD-ERROR. From any
thread."
  (alarms-of (ask etcd #'maintenance:alarm (pb:make-alarm-request :action :get :alarm :none)
                  timeout :twice t :leader nil)))

(define-keyword-function disarm (etcd &key member alarm timeout)
  "End the alarms of the kind ALARM, or of all kinds, of the member with the number MEMBER, or of
all members. Return a list of the ended alarms, as LIST-ALARMS does. Make room before: COMPACT, then
DEFRAGMENT each member. Signal an ETCD-ERROR. From any thread."
  (loop for row in (list-alarms etcd :timeout timeout)
        when (and (member member (list nil (getf row :member)))
                  (member alarm (list nil (getf row :alarm))))
          append (alarms-of (ask etcd #'maintenance:alarm
                                 (pb:make-alarm-request :action :deactivate
                                                        :member-id (getf row :member)
                                                        :alarm (getf row :alarm))
                                 timeout))))

;;; Leadership

(defun url-endpoint (url)
  "The endpoint of URL, the URL of a member for clients."
  (let ((start (search "://" url)))
    (if start (subseq url (+ start 3)) url)))

(defun leader-endpoint (etcd timeout)
  "An endpoint of the member that leads. Signal UNAVAILABLE if no member leads."
  (let* ((id (getf (member-status etcd :timeout timeout) :leader))
         (leader (find id (list-members etcd :timeout timeout)
                       :key (lambda (member) (getf member :id)))))
    (if (getf leader :clients)
        (url-endpoint (first (getf leader :clients)))
        (error 'unavailable :text "no member leads"))))

(define-keyword-function move-leader (etcd member &key endpoint timeout)
  "Make the member with the number MEMBER the leader. Only the leader can do that: it is asked at
ENDPOINT or, by default, at the client address that it announces. Signal NOT-READY if the member at
ENDPOINT is not the leader, or if MEMBER cannot lead; or another ETCD-ERROR. From any thread."
  (with-endpoint (leader etcd (or endpoint (leader-endpoint etcd timeout)))
    (ask leader #'maintenance:move-leader (pb:make-move-leader-request :target-id member) timeout)
    nil))

;;; Backups

(defun map-snapshot (function etcd timeout)
  "Call FUNCTION with each part of a snapshot, octets. Signal an ETCD-ERROR if the snapshot is
incomplete."
  (let ((left nil))
    (call-etcd etcd timeout
               (lambda (seconds metadata)
                 (rpc:with-call (call (maintenance:snapshot
                                       (etcd-channel etcd) (pb:make-snapshot-request)
                                       :timeout seconds :metadata metadata :wait-for-ready t))
                   (loop for response = (rpc:receive call)
                         while response
                         do (funcall function (pb:snapshot-response-blob response))
                            (setf left (pb:snapshot-response-remaining-bytes response))))))
    (unless (eql 0 left)
      (error 'unavailable :text "the snapshot has ended before it was whole"))))

(define-keyword-function save-snapshot (etcd path &key endpoint (timeout 600))
  "Write all that the member at ENDPOINT, or any member, stores to the file PATH, and return its
size in octets. An existing file is replaced only by a complete one. etcdctl snapshot restore makes
a member from the file; its last 32 octets are the SHA-256 of the others. Signal an ETCD-ERROR if it
has not arrived within TIMEOUT seconds, or a FILE-ERROR. From any thread."
  (let ((size 0))
    (with-endpoint (etcd etcd endpoint)
      (with-open-file (out path :direction :output :if-exists :supersede
                                :element-type 'octet)
        (map-snapshot (lambda (blob)
                        (write-sequence blob out)
                        (incf size (length blob)))
                      etcd timeout)))
    size))
