;;;; The client: a channel to the members of etcd. Each call has a deadline, and waits for a member
;;;; until then. What only reads is asked again, of whatever member can be reached; what writes is
;;;; not once it may have been done, since it would perhaps be done twice.

(in-package #:clgrpc.etcd)

(defclass etcd ()
  ((channel :initarg :channel :reader etcd-channel) ; to the members
   (timeout :initarg :timeout :reader etcd-timeout) ; of each call, in seconds
   ;; functions that end its leases' and watches' threads
   (endings :initform '() :accessor etcd-endings)
   (lock :initform (sb-thread:make-mutex :name "clgrpc etcd") :reader etcd-lock)) ; of ENDINGS
  (:documentation "A client of etcd, see MAKE-ETCD."))

(document-functions
  etcd-channel "The channel of ETCD, for other services of its members.")

(defparameter *service-config*
  '(:method-config
    ((:name ((:service "etcdserverpb.KV" :method "Range")
             (:service "etcdserverpb.Lease" :method "LeaseTimeToLive")
             (:service "etcdserverpb.Cluster" :method "MemberList"))
      :retry-policy (:max-attempts 5 :initial-backoff 0.05 :max-backoff 1 :backoff-multiplier 2
                     :retryable-status-codes (:unavailable)))))
  "What only reads is asked again.")

(defun endpoints-target (endpoints)
  "The target of a channel to ENDPOINTS, a string or a list of strings."
  (let ((endpoints (if (listp endpoints) endpoints (list endpoints))))
    (cond ((or (null endpoints) (notevery #'stringp endpoints))
           (misuse "An endpoint is a string such as \"127.0.0.1:2379\"."))
          ((null (rest endpoints)) (first endpoints))
          ((every (lambda (endpoint) (char= #\[ (char endpoint 0))) endpoints)
           (format nil "ipv6:~{~A~^,~}" endpoints))
          ((every (lambda (endpoint) (digit-char-p (char endpoint 0))) endpoints)
           (format nil "ipv4:~{~A~^,~}" endpoints))
          (t (misuse "Several endpoints are numeric addresses of one kind; or give one name that ~
                      has several addresses.")))))

(defun make-etcd (endpoints &rest options &key (timeout 5) (keepalive-seconds 10)
                                            (max-receive-octets 268435456) &allow-other-keys)
  "Return a client of etcd's members at ENDPOINTS, a string \"HOST:PORT\", or a list of numeric
addresses with ports. Calls go to all that can be reached, by turns. TIMEOUT is the seconds that a
call may take unless it says otherwise. All else is as for MAKE-CHANNEL: :credentials for TLS,
KEEPALIVE-SECONDS, MAX-RECEIVE-OCTETS and so on. Connects nothing yet. Signal MISUSE for wrong
arguments. From any thread; end it with CLOSE-ETCD, or use WITH-ETCD."
  (check-type timeout (real (0)))
  (make-instance 'etcd
                 :timeout timeout
                 :channel (apply #'client:make-channel (endpoints-target endpoints)
                                 :balance :round-robin :service-config *service-config*
                                 :keepalive-seconds keepalive-seconds
                                 :max-receive-octets max-receive-octets
                                 (alexandria:remove-from-plist options :timeout :keepalive-seconds
                                                               :max-receive-octets))))

(defun close-etcd (etcd)
  "End ETCD: its watches end, its leases are kept alive no longer and end by themselves, its
connections are closed. From any thread but that of a watch or a lease."
  (mapc #'funcall (sb-thread:with-mutex ((etcd-lock etcd))
                    (shiftf (etcd-endings etcd) '())))
  (calling:close-channel (etcd-channel etcd)))

(defmacro with-etcd ((variable endpoints &rest options) &body body)
  "Evaluate BODY with VARIABLE bound to a client made as MAKE-ETCD makes it, closed on the way out."
  `(let ((,variable (make-etcd ,endpoints ,@options)))
     (unwind-protect (progn ,@body)
       (close-etcd ,variable))))

(defun add-ending (etcd function)
  "Have FUNCTION called when ETCD is closed, before its channel is: it ends what uses that. From any
thread."
  (sb-thread:with-mutex ((etcd-lock etcd))
    (push function (etcd-endings etcd))))

(defun remove-ending (etcd function)
  "Have FUNCTION, which ADD-ENDING was given, not be called any more. From any thread."
  (sb-thread:with-mutex ((etcd-lock etcd))
    (setf (etcd-endings etcd) (remove function (etcd-endings etcd)))))

(defun ask (etcd stub request timeout)
  "What STUB, a unary one, answers to REQUEST, within TIMEOUT seconds or, if it is nil, those of
ETCD. Signal an ETCD-ERROR."
  (with-etcd-errors
    (values (funcall stub (etcd-channel etcd) request
                     :timeout (or timeout (etcd-timeout etcd)) :wait-for-ready t))))

(defun list-members (etcd &key timeout)
  "Return the members of ETCD's cluster, a list of plists with :NAME, a string, empty before it has
started, :ID, :PEERS and :CLIENTS, lists of URLs, and :LEARNER, true if it has no vote. Signal an
ETCD-ERROR. From any thread."
  (map 'list
       (lambda (member)
         (list :name (pb:member-name member) :id (pb:member-id member)
               :peers (coerce (pb:member-peer-ur-ls member) 'list)
               :clients (coerce (pb:member-client-ur-ls member) 'list)
               :learner (pb:member-is-learner member)))
       (pb:member-list-response-members
        (ask etcd #'cluster:member-list (pb:make-member-list-request) timeout))))

(defparameter *require-leader* '(("hasleader" . "true"))
  "Has a member that has lost the leader end a stream, so that another can be asked.")

;;; Waiting in threads of our own

(defun now-ns ()
  "The time by the clock of the loops."
  (funcall (the function (loop:world-clock loop:*world*))))
