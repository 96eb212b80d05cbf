;;;; The service passes messages of other members to the state machine, and returns its answers.
;;;; Each stream has a waiting thread, so the state machine may block, for a disk or a lock. While a
;;;; peer does not accept answers, no more of its requests are handled.
;;;;
;;;; Each request is admitted first: its group and receiver are those of a local member, and its
;;;; sender is the member that the peer's certificate names. A request with the same address as the
;;;; one before it on its stream is admitted without these checks. Without TLS no peer proves a
;;;; name.

(in-package #:clgrpc.raft)

(defclass raft-service (v1:raft)
  (; the peers' permissions to send as members, see MAKE-RAFT-SERVICE
   (authority :initarg :authority :reader service-authority)
   ;; without TLS each peer that can connect may send
   (open :initarg :open :reader service-open-p)
   ;; the longest snapshot that is received, in octets
   (max-snapshot-octets :initarg :max-snapshot-octets :reader service-max-snapshot-octets)
   ;; how long a stream waits for the next part of a snapshot, in seconds
   (chunk-seconds :initarg :chunk-seconds :reader service-chunk-seconds)
   ;; from a group's name to its local member
   (groups :initform (make-hash-table :test 'equal) :reader service-groups)
   ;; the local member of the last request, or nil; it may have been removed
   (recent :initform nil :accessor service-recent)
   ;; guards the table of groups
   (lock :initform (sb-thread:make-mutex :name "clgrpc raft groups") :reader service-lock))
  (:documentation "Raft's service, for START-SERVER: see MAKE-RAFT-SERVICE."))

(defparameter *default-permissions* '((:raft . "{name}"))
  "The permission by default: with TLS the peer's certificate must have the name of the sender.")

(defun make-raft-service (&key (allow nil allow-p) (max-snapshot-octets (expt 2 40))
                            (chunk-seconds 60))
  "Return a service without groups; see ADD-GROUP. ALLOW is a list of permissions with the role
:raft, see CLGRPC.AUTHORITY:CHECK-PERMISSION. A peer whose identity matches the pattern may send as
any member or, if the pattern contains {name}, as the member of that name. By default, with TLS the
peer's certificate must have the sender's name; without TLS each peer that can connect may send as
any member. A snapshot that is longer than MAX-SNAPSHOT-OCTETS is refused with :resource-exhausted.
A stream that sends no part of its snapshot for CHUNK-SECONDS ends with :aborted. Signal MISUSE for
a wrong permission. From any thread."
  (check-type max-snapshot-octets (integer 0))
  (check-type chunk-seconds (real (0)))
  (make-instance 'raft-service
                 :authority (authority:make-authority (if allow-p allow *default-permissions*))
                 :open (not allow-p)
                 :max-snapshot-octets max-snapshot-octets :chunk-seconds chunk-seconds))

(define-printer (service raft-service)
  "~D group~:P" (hash-table-count (service-groups service)))

(defun add-group (service group name state)
  "Add the member NAME of GROUP, both strings, to SERVICE. SERVICE answers Raft's messages for that
member by the methods of HANDLE-APPEND-ENTRIES and so on for STATE, an object of a class that the
user has defined. Return SERVICE. Signal MISUSE if SERVICE already has a member of GROUP. From any
thread."
  (let ((member (make-local-member (checked-name group) (checked-name name) state)))
    (sb-thread:with-mutex ((service-lock service))
      (when (gethash group (service-groups service))
        (misuse "This service already has a member of the group ~A." group))
      (setf (gethash group (service-groups service)) member)))
  service)

(defun remove-group (service group)
  "Remove GROUP from SERVICE, which then refuses messages for GROUP; a message that is being handled
is still answered. Return true if SERVICE had a member of GROUP. From any thread."
  (sb-thread:with-mutex ((service-lock service))
    (let ((member (gethash group (service-groups service))))
      (when member (setf (local-member-removed member) t))
      (remhash group (service-groups service)))))

(defun group-state (service group)
  "Return the state machine of the member of GROUP at SERVICE, or nil if there is no such member.
From any thread."
  (let ((member (sb-thread:with-mutex ((service-lock service))
                  (gethash group (service-groups service)))))
    (and member (local-member-state member))))

(defmethod server:note-server-started ((service raft-service) server)
  (let* ((credentials (server:server-credentials server))
         (warning (if (and (service-open-p service) (null credentials))
                      "without TLS each peer that can connect may send as any member"
                      (authority:authority-warning (service-authority service) credentials
                                                   "send Raft's messages"))))
    (when warning (log-event :warning :raft-access :condition warning))))

;;; Admission

(defun member-of-group (service group)
  "The local member of GROUP at SERVICE; nil if SERVICE has none."
  (let ((recent (service-recent service)))
    (if (and recent
             (not (local-member-removed recent))
             (same-name-p group (local-member-group recent)))
        recent
        (setf (service-recent service)
              (sb-thread:with-mutex ((service-lock service))
                (gethash group (service-groups service)))))))

(defun find-local-member (service group sender receiver)
  "The local member of GROUP that is called RECEIVER. Signal an RPC-ERROR if GROUP has no such
member, or if SENDER cannot be another member."
  (declare (type string group sender receiver))
  (let ((member (member-of-group service group)))
    (cond ((null member)
           (refuse-address :not-found :group-unknown group sender receiver
                           "this server has no member of the group ~S" (printable-text group)))
          ((not (same-name-p receiver (local-member-name member)))
           (refuse-address :not-found :receiver-differs group sender receiver
                           "the member of the group ~S here is ~S, not ~S" (printable-text group)
                           (local-member-name member) (printable-text receiver)))
          ((or (string= "" sender) (same-name-p sender receiver))
           (refuse-address :invalid-argument :sender-missing group sender receiver
                           "the request ~:[names its receiver as its sender~;has no sender~]"
                           (string= "" sender)))
          (t member))))

(defun check-sender (service group sender receiver call)
  "Refuse the request on CALL unless its peer may send as SENDER."
  (unless (and (service-open-p service) (null (rpc:call-security call)))
    (let ((refusal (authority:access-refusal (service-authority service) :raft call :name sender)))
      (when refusal
        (refuse-address :permission-denied :sender-denied group sender receiver "~A" refusal)))))

(defun admit (service group sender receiver call)
  "The local member that a request on CALL, from SENDER to RECEIVER in GROUP, addresses. Refuse the
request if there is no such member, or if the peer may not send as SENDER."
  (prog1 (find-local-member service group sender receiver)
    (check-sender service group sender receiver call)))

(defun admit-vote (service request call)
  "The state machine that REQUEST, a RequestVoteRequest, is for."
  (local-member-state (admit service (v1:request-vote-request-group request)
                             (v1:request-vote-request-sender request)
                             (v1:request-vote-request-receiver request) call)))

(defun admit-entries (service request call)
  "The local member that REQUEST, an AppendEntriesRequest, is for."
  (admit service (v1:append-entries-request-group request)
         (v1:append-entries-request-sender request)
         (v1:append-entries-request-receiver request) call))

(defun admitted-before-p (request member sender)
  "True if REQUEST, an AppendEntriesRequest, has the same address as an admitted request from SENDER
to MEMBER, and MEMBER has not been removed."
  (and member
       (not (local-member-removed member))
       (same-name-p (v1:append-entries-request-group request) (local-member-group member))
       (same-name-p (v1:append-entries-request-receiver request) (local-member-name member))
       (same-name-p (v1:append-entries-request-sender request) sender)))

;;; The methods

(defmethod methods:pre-vote ((service raft-service) request &key call)
  (handle-pre-vote (admit-vote service request call) request :call call))

(defmethod methods:request-vote ((service raft-service) request &key call)
  (handle-request-vote (admit-vote service request call) request :call call))

(defmethod methods:append-entries ((service raft-service) request &key call)
  (handle-append-entries (local-member-state (admit-entries service request call)) request
                         :call call))

(defmethod methods:timeout-now ((service raft-service) request &key call)
  (handle-timeout-now
   (local-member-state (admit service (v1:timeout-now-request-group request)
                              (v1:timeout-now-request-sender request)
                              (v1:timeout-now-request-receiver request) call))
   request :call call))

(defmethod methods:pipeline-entries ((service raft-service) stream &key call)
  (loop with member = nil
        with sender = nil
        for request = (rpc:receive stream)
        while (and request
                   (progn
                     (unless (admitted-before-p request member sender)
                       (setf member (admit-entries service request call)
                             sender (v1:append-entries-request-sender request)))
                     (rpc:send call (handle-append-entries (local-member-state member) request
                                                           :call call))))))
