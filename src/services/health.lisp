;;;; Health checking (gRPC document "GRPC Health Checking Protocol"; List is of its later version).
;;;; The service knows the names of the services it is served with; each, and "" for the whole
;;;; server, is :serving until somebody says otherwise or the server stops.
;;;;
;;;; A watcher holds no thread: its call is kept, and told when the status changes. What a slow one
;;;; has not taken is not queued; when there is room again it gets the status of then. LOCK orders
;;;; the changes and what watchers are told; nothing waits while it is held.
;;;;
;;;; HEALTH-HANDLER tells the same over plain HTTP, for load balancers and probes without gRPC.

(in-package #:clgrpc.services)

(defconstant +listed-services+ 100
  "With more services than this List is answered with :resource-exhausted, as the protocol asks.")

(defconstant +longest-name+ 1000
  "Watchers keep the name they ask for as long as they like; nobody has a longer one.")

(defstruct (watcher (:copier nil))
  "A call of Watch, for NAME; TOLD is the last status that it was sent."
  (call nil :type rpc:call :read-only t) ; that watches
  (name "" :type string :read-only t)   ; of the service that it watches
  (told nil :type symbol))              ; the status that it was told last

(defclass health-service (health:health)
  (;; from name to status
   (statuses :initform (make-hash-table :test 'equal) :reader service-statuses)
   (overall :initform :serving :accessor service-overall) ; the status of "", to be read alone
   (watchers :initform (make-hash-table :test 'equal) :reader service-watchers) ; calls that watch
   (stopping :initform nil :accessor service-stopping) ; true once its server stops
   ;; of all of these
   (lock :initform (sb-thread:make-mutex :name "clgrpc health") :reader service-lock))
  (:documentation "The service grpc.health.v1.Health: give START-SERVER an instance beside your own
services. See SET-HEALTH-STATUS."))

(defmethod initialize-instance :after ((service health-service) &key)
  (setf (gethash "" (service-statuses service)) :serving))

(defmacro with-service ((service) &body body)
  `(sb-thread:with-mutex ((service-lock ,service)) ,@body))

(defun status-of (service name)
  (gethash name (service-statuses service)))

(defun health-status (service name)
  "Return the status that SERVICE, a health service, has of NAME, the full name of a service such as
\"helloworld.Greeter\", or \"\" for the whole server: :serving, :not-serving or :unknown; nil if it
knows no such name. From any thread."
  (with-service (service) (status-of service name)))

(defun set-health-status (service name status)
  "Have SERVICE, a health service, say from now on that NAME, the full name of a service, or \"\"
for the whole server, is :serving, :not-serving or :unknown; return STATUS. Watchers are told. Once
the server stops everything is :not-serving, whatever is said. Signal MISUSE for another status.
From any thread."
  (unless (member status '(:serving :not-serving :unknown))
    (misuse "~S is no health: :serving, :not-serving or :unknown." status))
  (with-service (service)
    (unless (service-stopping service) (change-status service (copy-seq name) status)))
  status)

(defun change-status (service name status)
  "The lock is held."
  (setf (gethash name (service-statuses service)) status)
  (when (string= "" name) (setf (service-overall service) status))
  (dolist (watcher (gethash name (service-watchers service)))
    (tell-watcher service watcher)))

;;; The server's life

(defmethod server:note-server-started ((service health-service) server)
  (with-service (service)
    (dolist (name (server:server-service-names server))
      (unless (status-of service name) (change-status service name :serving)))))

(defmethod server:note-server-stopping ((service health-service) server)
  (declare (ignore server))
  (with-service (service)
    (setf (service-stopping service) t)
    (loop for name in (loop for name being the hash-keys of (service-statuses service)
                            collect name)
          do (change-status service name :not-serving))
    ;; the server waits for its calls to end, and these would not by themselves
    (loop for watchers being the hash-values of (service-watchers service)
          do (dolist (watcher watchers) (dismiss watcher)))))

(defun dismiss (watcher)
  (rpc:finish (watcher-call watcher) :status :unavailable :message "the server is stopping"))

;;; Watchers

(defun tell-watcher (service watcher)
  "Send WATCHER the status it wants to know, unless it knows. The lock is held."
  (let ((status (or (status-of service (watcher-name watcher)) :service-unknown)))
    (unless (or (eq status (watcher-told watcher))
                (rpc:call-status (watcher-call watcher)))
      (handler-case
          (when (rpc:try-send (watcher-call watcher) (answer status))
            (setf (watcher-told watcher) status))
        ;; it has ended meanwhile; ON-CANCEL follows
        (status:rpc-error ())))))

(defun answer (status)
  (health:make-health-check-response :status status))

(defun add-watcher (service watcher)
  (with-service (service)
    ;; one that has ended may have been removed already
    (unless (rpc:call-status (watcher-call watcher))
      (push watcher (gethash (watcher-name watcher) (service-watchers service)))
      (tell-watcher service watcher)
      (when (service-stopping service) (dismiss watcher)))))

(defun remove-watcher (service watcher)
  (let ((name (watcher-name watcher)) (watchers (service-watchers service)))
    (with-service (service)
      (unless (setf (gethash name watchers) (delete watcher (gethash name watchers)))
        (remhash name watchers)))))

;;; The methods

(defmethod health-methods:check ((service health-service) request &key)
  (let ((name (health:health-check-request-service request)))
    (answer (or (health-status service name)
                (status:fail :not-found "the service is not known")))))

(defmethod health-methods:list ((service health-service) request &key)
  (declare (ignore request))
  (with-service (service)
    (let ((statuses (service-statuses service)))
      (when (> (hash-table-count statuses) +listed-services+)
        (status:fail :resource-exhausted (format nil "more than ~D services" +listed-services+)))
      (health:make-health-list-response
       :statuses (loop for name being the hash-keys of statuses using (hash-value status)
                       collect (cons name (answer status)))))))

(defmethod health-methods:watch ((service health-service) request &key call)
  (let* ((name (health:health-check-request-service request))
         (watcher (make-watcher :call call :name name)))
    (when (> (length name) +longest-name+)
      (status:fail :invalid-argument "the name of the service is too long"))
    (rpc:on-cancel call (lambda () (remove-watcher service watcher)))
    (rpc:on-writable call (lambda () (with-service (service) (tell-watcher service watcher))))
    (add-watcher service watcher)
    call))

;;; Over plain HTTP

(defun health-answer (http-status text)
  (server:fixed-answer http-status '(("content-type" . "text/plain; charset=utf-8")
                                     ("cache-control" . "no-store"))
                       text))

(sb-ext:define-load-time-global **serving** (health-answer 200 "serving"))
(sb-ext:define-load-time-global **not-serving** (health-answer 503 "not serving"))
(sb-ext:define-load-time-global **health-unknown** (health-answer 503 "unknown"))
(sb-ext:define-load-time-global **draining** (health-answer 503 "draining"))
(sb-ext:define-load-time-global **no-such-service** (health-answer 404 "the service is not known"))

(defun tell-health (service query)
  "The answer to a request with QUERY, a string or nil: what SERVICE knows of its parameter
\"service\"."
  (let ((status (if query
                    (health-status service (or (server:query-parameter query "service") ""))
                    (service-overall service))))
    (cond ((service-stopping service) **draining**)
          (t (ecase status
               (:serving **serving**)
               (:not-serving **not-serving**)
               (:unknown **health-unknown**)
               ((nil) **no-such-service**))))))

(defun health-handler (service &key (path "/healthz"))
  "Return a handler for START-SERVER's :http that tells over HTTP/1.1 and HTTP/2, at PATH, a string,
what SERVICE, a health service, says of the whole server, or of the service that the parameter
\"service\" of the query names: 200 while it is :serving, 503 while it is not, 503 and \"draining\"
once a server that SERVICE is served with stops, 404 for a name that it does not know. The handler
need not be given to the same server: on one of its own it answers while the other drains. From any
thread."
  (server:prompt-handler path (lambda (query) (tell-health service query))))
