;;;; The conditions of etcd's errors. etcd reports an error by a gRPC status and a text. The text is
;;;; more specific (etcd's api/v3rpc/rpctypes): each error that a program can handle has a
;;;; condition.

(in-package #:clgrpc.etcd)

(define-condition etcd-error (clgrpc-error)
  ((text :initarg :text :reader etcd-error-text) ; the error, as text
   ;; the condition that reported the error, or nil
   (cause :initarg :cause :initform nil :reader etcd-error-cause)
   ;; true if the request may have been done nevertheless
   (perhaps-done :initarg :perhaps-done :initform nil :reader etcd-error-perhaps-done-p))
  (:report (lambda (condition stream)
             (format stream "etcd: ~A~:[~; (it may have been done)~]" (etcd-error-text condition)
                     (etcd-error-perhaps-done-p condition))))
  (:documentation "etcd has refused a request, or could not do it."))

(document-functions
  etcd-error-text "Return the description of the error, a string."
  etcd-error-cause "Return the RPC-ERROR that reported the error, the condition of a user's
function, or nil."
  etcd-error-perhaps-done-p "True if it is unknown whether the request was done: it was sent, and no
answer has arrived.")

(define-condition compacted (etcd-error)
  ((revision :initarg :revision :initform nil :reader compacted-revision)) ; see below
  (:documentation "The requested revision, or the one from which a watch was to continue, is no
longer in the store: the changes since then cannot be read one by one. Fetch the entries again, and
watch from the revision after theirs."))

(document-functions
  compacted-revision "The oldest revision that the store still has, or nil if the store has not
reported that revision.")

(defmacro define-etcd-errors (&body rows)
  "Define conditions, each a row of NAME and documentation."
  `(progn
     ,@(loop for (name documentation) in rows
             collect `(define-condition ,name (etcd-error) ()
                        (:documentation ,documentation)))))

(define-etcd-errors
  (future-revision "The store has not reached the requested revision. From a watch: the store has
lost its data or was restored from older data.")
  (lease-not-found "No lease has this number: it has ended, or never existed.")
  (lease-exists "Another lease has this number.")
  (invalid-request "etcd does not accept the request: a key is empty, a transaction changes a key
twice, or there are too many operations or octets. Or the answer has more octets than the client
accepts, see MAX-RECEIVE-OCTETS of MAKE-ETCD.")
  (access-denied "The user may not do this, or is not known, or must authenticate first.")
  (space-exceeded "The store is full and takes no more until its operator makes room.")
  (not-found "No such user, role or member exists.")
  (already-exists "Such a user, role or member exists already.")
  (not-ready "etcd's state does not allow the request, for the reason in its text: a role is not
granted, only the leader can do it, too few members have started, authentication is not enabled.")
  (not-obtained "The lock, or the leadership, could not be obtained in time, or the request was
cancelled.")
  (ownership-lost "The lock, or the leadership, may belong to another client: its lease has ended,
or its entry was removed.")
  (overloaded "etcd has more requests than it can handle.")
  (unavailable "No member of etcd, or no member that has a leader, has answered in time, or the
answer broke off; or the function that returns the user's password has failed."))

(defun need-part (part &optional perhaps-done)
  "Return PART, which every answer of this kind must have. Signal UNAVAILABLE, with PERHAPS-DONE, if
PART is nil."
  (or part (error 'unavailable :text "a part of etcd's answer is missing or wrong"
                               :perhaps-done perhaps-done)))

(defparameter *texts*
  '(("required revision has been compacted" compacted)
    ("required revision is a future revision" future-revision)
    ("requested lease not found" lease-not-found)
    ("lease already exists" lease-exists)
    ("database space exceeded" space-exceeded)
    ("too many requests" overloaded)
    ;; of a request, by etcd's gRPC and ours, and of an answer
    ("received message larger than max" invalid-request)
    ("octets to send, limit" invalid-request)
    ("octets received, limit" invalid-request)
    ;; of watches
    ("permission denied" access-denied)
    ("watcher range is empty" invalid-request)
    ("duplicate watch ID" invalid-request)
    ("authentication failed" access-denied)
    ("user name is empty" access-denied)
    ("user name not found" not-found)
    ("role name not found" not-found)
    ("member not found" not-found)
    ("user name already exists" already-exists)
    ("role name already exists" already-exists)
    ("member ID already exist" already-exists)
    ("Peer URLs already exists" already-exists))
  "Parts of etcd's texts, and the conditions for them.")

(defparameter *statuses*
  '((:permission-denied access-denied) (:unauthenticated access-denied)
    (:invalid-argument invalid-request) (:out-of-range invalid-request)
    (:resource-exhausted overloaded) (:failed-precondition not-ready)
    (:unavailable unavailable) (:deadline-exceeded unavailable) (:cancelled unavailable)
    ;; such as the error that a connection does not speak HTTP/2
    (:internal unavailable))
  "The conditions of statuses whose texts are not more specific.")

(defparameter *not-done-texts*
  '("no leader" "rpc not supported for learner" "not capable" "unhealthy cluster")
  "Parts of the texts with which a member refuses a request without doing anything, for a reason
that is temporary or does not concern other members.")

(defun uncertain-p (error)
  "True if the request that failed with ERROR, an RPC-ERROR, may have been done."
  (and (status:rpc-error-sent-p error)
       (member (status:rpc-error-status error)
               '(:unavailable :deadline-exceeded :cancelled :unknown :internal))
       (notany (lambda (text) (search text (or (status:rpc-error-message error) "")))
               *not-done-texts*)))

(defun text-condition (text)
  "The name of the condition for TEXT, of etcd; nil if TEXT is not a known text."
  (second (find-if (lambda (row) (search (first row) text)) *texts*)))

(defun message-text (error)
  "The text of ERROR, an RPC-ERROR; if a deadline has passed on this side, the text also names the
event that was awaited."
  (let ((message (or (status:rpc-error-message error) "")))
    (format nil "~A~@[ (~A)~]"
            (if (string= "" message)
                (string-downcase (status:rpc-error-status error))
                message)
            (and (eq :deadline-exceeded (status:rpc-error-status error))
                 (eq :local (status:rpc-error-ended-by error))
                 (status:rpc-error-reason error)))))

(defun etcd-condition (error)
  "The condition of etcd's that corresponds to ERROR, an RPC-ERROR."
  (let ((text (message-text error)))
    (make-condition (or (text-condition text)
                        (second (assoc (status:rpc-error-status error) *statuses*))
                        'etcd-error)
                    :text text
                    :cause error :perhaps-done (uncertain-p error))))

(defun refused-p (condition)
  "True if CONDITION, an ETCD-ERROR, says that a member has refused a request that another member
might accept, or the same member a little later."
  (and (typep condition 'unavailable)
       (some (lambda (text) (search text (etcd-error-text condition))) *not-done-texts*)))

(defun passing-p (condition)
  "True if a repeatable request should be repeated after CONDITION: the request itself is right.
The function is also true of a status without information, such as that of a proxy's page of HTML."
  (or (typep condition '(or unavailable overloaded))
      (and (typep condition 'etcd-error)
           (typep (etcd-error-cause condition) 'status:rpc-error)
           (eq :unknown (status:rpc-error-status (etcd-error-cause condition))))))

(defmacro with-etcd-errors (&body body)
  "Evaluate BODY; signal an RPC-ERROR in it as the corresponding condition of etcd."
  `(handler-case (progn ,@body)
     (status:rpc-error (error) (error (etcd-condition error)))))

(defun stream-error-of (error)
  "The ETCD-ERROR that corresponds to ERROR for a job that opens a stream. An error of a user's
interceptor, for instance, becomes UNAVAILABLE, since the next stream may be opened without it."
  (if (typep error 'etcd-error)
      error
      (make-condition 'unavailable :cause error
                                   :text (format nil "a stream cannot be opened: ~A"
                                                 (bounded-text error)))))
