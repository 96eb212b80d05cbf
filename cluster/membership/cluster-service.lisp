;;;; The service clgrpc.cluster.v1.Cluster, on a store. The service answers from the store, so any
;;;; node may be asked; the service itself has no other state than the list of watchers.

(in-package #:clgrpc.cluster)

(defclass cluster-service (pb:cluster)
  ((informer :initarg :informer :reader service-informer) ; follows the store
   (max-members :initarg :max-members :reader service-max-members) ; the most members that may join
   ;; the lease of a member that asks for none
   (lease-seconds :initarg :lease-seconds :reader service-lease-seconds)
   (authority :initarg :authority :reader service-authority) ; decides about the rights of peers
   (stopping :initform nil :accessor service-stopping)) ; true once its server stops
  (:documentation "The service clgrpc.cluster.v1.Cluster, see MAKE-CLUSTER-SERVICE."))

(defmethod print-object ((service cluster-service) stream)
  (print-unreadable-object (service stream :type t)
    (prin1 (service-informer service) stream)))

(defun make-service (store &key (cluster "default") (max-members 1000) (lease-seconds 10)
                             allow)
  "Do what MAKE-CLUSTER-SERVICE does, but let the service follow its store only after FOLLOW-STORE."
  (check-type max-members (integer 1 100000))
  (check-type lease-seconds (integer 2 3600))
  (make-instance 'cluster-service :informer (make-informer store cluster) :max-members max-members
                                  :lease-seconds lease-seconds
                                  :authority (authority:make-authority allow)))

(defun make-cluster-service (store &rest arguments
                             &key cluster max-members lease-seconds allow)
  "Return a service, for START-SERVER, that reports the members of CLUSTER in STORE. CLUSTER is a
name, by default \"default\"; STORE is a client of etcd. At most MAX-MEMBERS (1000) may join; a
member that asks for no lease gets one of LEASE-SECONDS (10). ALLOW is a list of permissions, (ROLE
. PATTERN): a peer whose identity matches PATTERN may :read or :join. Without a permission for :join
no call may join. Nodes made by START-NODE have such a service. The store need not be reachable yet.
Signal MISUSE for wrong arguments. From any thread; end it with CLOSE-CLUSTER-SERVICE when its
server has stopped."
  (declare (ignore cluster max-members lease-seconds allow))
  (let ((service (apply #'make-service store arguments)))
    (follow-store (service-informer service))
    service))

(defun close-cluster-service (service)
  "End SERVICE, which stops watching its store. From any thread, but not from a function that is
called with changes of the store."
  (close-informer (service-informer service)))

(defmethod server:note-server-started ((service cluster-service) server)
  (when-let ((warning (authority:authority-warning (service-authority service)
                                                   (server:server-credentials server) "read")))
    (log-event :warning :cluster-access :cluster (informer-cluster (service-informer service))
                                        :condition warning)))

(defmethod server:note-server-stopping ((service cluster-service) server)
  (declare (ignore server))
  ;; the server waits for its calls, and calls of Watch do not end by themselves
  (setf (service-stopping service) t)
  (dismiss-watchers (service-informer service)))

(defmacro telling-conditions (&body body)
  "Evaluate BODY; an error of a membership or of the store ends the call with a status."
  `(handler-case (progn ,@body)
     ((or misuse cluster-error etcd:etcd-error) (condition)
       (status:fail (condition-status condition) (bounded-text condition)))))

(defun check-access (service role call &optional name)
  "Signal ACCESS-DENIED unless the peer of CALL has ROLE at SERVICE, as the member NAME if that is
given."
  (let ((refusal (authority:access-refusal (service-authority service) role call :name name)))
    (when refusal (refuse-membership 'access-denied "~A" refusal))))

(defun asked-member (service request)
  "The member that REQUEST, a JoinRequest, asks SERVICE for."
  (make-cluster-member
   :name (pb:join-request-name request) :address (pb:join-request-address request)
   :labels (sorted-labels (pb:join-request-labels request))
   :lease-seconds (if (zerop (pb:join-request-lease-seconds request))
                      (service-lease-seconds service)
                      (pb:join-request-lease-seconds request))
   :instance (pb:join-request-instance request)
   :joined (unix-seconds)))

(defmethod methods:join ((service cluster-service) request &key call)
  (telling-conditions
    (let ((asked (asked-member service request)) (informer (service-informer service)))
      (check-access service :join call (member-name asked))
      (multiple-value-bind (member revision)
          (join-cluster (informer-store informer) (informer-cluster informer) asked
                        :if-taken (if (eq :if-taken-refuse (pb:join-request-if-taken request))
                                      :refuse
                                      :take-over)
                        :max-members (service-max-members service) :keep-alive nil)
        (pb:make-join-response :member (member-message member) :revision revision)))))

(defmethod methods:renew ((service cluster-service) request &key call)
  (telling-conditions
    (let ((name (pb:renew-request-name request)) (informer (service-informer service)))
      (check-access service :join call name)
      (pb:make-renew-response
       :lease-seconds (renew-membership (informer-store informer) (informer-cluster informer) name
                                        (pb:renew-request-generation request))))))

(defmethod methods:leave ((service cluster-service) request &key call)
  (telling-conditions
    (let ((name (pb:leave-request-name request)) (informer (service-informer service)))
      (check-access service :join call name)
      (pb:make-leave-response
       :left (and (leave-cluster (informer-store informer) (informer-cluster informer) name
                                 (pb:leave-request-generation request))
                  t)))))

(defmethod methods:members ((service cluster-service) request &key call)
  (telling-conditions
    (check-access service :read call)
    (let ((informer (service-informer service)))
      (multiple-value-bind (members revision)
          (if (pb:members-request-stale request)
              (informer-members informer)
              (fetch-members (informer-store informer) (informer-cluster informer)))
        (pb:make-members-response :members (mapcar #'member-message members)
                                  :revision revision)))))

(defmethod methods:watch ((service cluster-service) request &key call)
  (telling-conditions
    (check-access service :read call)
    (let* ((informer (service-informer service))
           (revision (pb:watch-request-revision request))
           (watcher (make-watcher :call call :next revision)))
      (when (minusp revision) (misuse "A revision must not be negative, unlike ~D." revision))
      (when (service-stopping service)
        (status:fail :unavailable "the node is stopping"))
      (check-revision informer revision)
      ;; so that the client knows that the watch has begun, though nothing may happen for long
      (rpc:send-metadata call '())
      (rpc:on-cancel call (lambda () (remove-watcher informer watcher)))
      (rpc:on-writable call
                       (lambda () (telling-watchers (informer) (tell-watcher informer watcher))))
      (add-watcher informer watcher)
      ;; the watchers may have been dismissed just before
      (when (service-stopping service) (dismiss-watcher watcher))
      call)))
