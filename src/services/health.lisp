;;;; Health checking (gRPC document "GRPC Health Checking Protocol"; List is of its later version).
;;;; The service knows the names of the other services of its servers; the status of each, and of ""
;;;; for the whole server, is :serving until SET-HEALTH-STATUS changes it or the server stops.
;;;;
;;;; A watcher occupies no thread: its call is kept, and a message is sent on it when the status
;;;; changes. Nothing is queued for a slow watcher: when its call has room again, it gets the status
;;;; of that moment. LOCK orders the changes; no code waits while it is held. While LOCK is held no
;;;; message is sent and no call is ended either, since within the image both would run the other
;;;; end's callbacks on this thread. One thread at a time sends to a watcher; it also sends the
;;;; status that other threads set meanwhile.
;;;;
;;;; A peer can have as many watchers as calls. So a watcher is removed without a search, and a
;;;; change of status releases LOCK for a moment whenever it has notified a few watchers. No table
;;;; contains names only because peers request them: watchers of unknown names are among the
;;;; STRANGERS.
;;;;
;;;; HEALTH-HANDLER gives the same status over plain HTTP, for load balancers and probes without
;;;; gRPC.

(in-package #:clgrpc.services)

(defconstant +listed-services+ 100
  "The maximum number of services that the method List returns. If there are more, its answer is
:resource-exhausted, as the protocol requires.")

(defconstant +longest-name+ 1000
  "The maximum length of a service's name, in characters. It is limited because the health service
keeps the name of each watcher until the watcher's call ends.")

(defconstant +told-at-once+ 64
  "The number of watchers that are notified before other threads get the lock for +PAUSE-SECONDS+.")

(defconstant +pause-seconds+ 1/20000
  "The length in seconds of the pause after +TOLD-AT-ONCE+ watchers, in which a loop that waits for
the lock gets it, and loops send the messages to watchers.")

(defstruct (entry (:constructor make-entry (status)) (:copier nil))
  "A name that a health service knows, with its status and watchers."
  (status nil :type symbol)             ; :serving, :not-serving or :unknown
  (watchers (make-ring) :type ring :read-only t)) ; the head of the list of its watchers

(define-printer (entry entry)
  "~(~A~)" (entry-status entry))

(defstruct (watcher (:include ring) (:constructor %make-watcher) (:copier nil))
  "A call of Watch, in the list of its name's watchers."
  (call nil :type rpc:call :read-only t) ; the watching call
  (name "" :type string :read-only t)   ; the name of the watched service
  (entry nil :type (or null entry))     ; the entry of NAME; nil while NAME is not known
  (leaving nil :type boolean)           ; the watcher's call must end, since the server stops
  (wanted 0 :type sb-ext:word)          ; the number of calls of TELL-WATCHER; atomic
  (told nil :type symbol))              ; the last status sent to the watcher

(defun make-watcher (&key call name)
  (isolate-ring (%make-watcher :call call :name name)))

(defclass health-service (health:health)
  (;; from name to ENTRY
   (entries :initform (make-hash-table :test 'equal) :reader service-entries)
   ;; the status of "", readable without the lock
   (overall :initform (make-entry :serving) :reader service-overall)
   (strangers :initform (make-ring) :reader service-strangers) ; watchers of names without ENTRY
   (served :initform '() :accessor service-served) ; the names of the services of its servers
   (servers :initform '() :accessor service-servers) ; the servers that run
   (stopping :initform nil :accessor service-stopping) ; true once the last of these servers stops
   ;; the entries of all services
   (lock :initform (sb-thread:make-mutex :name "clgrpc health") :reader service-lock))
  (:documentation "The service grpc.health.v1.Health: give START-SERVER an instance in addition to
your own services. See SET-HEALTH-STATUS."))

(defmethod initialize-instance :after ((service health-service) &key)
  (setf (gethash "" (service-entries service)) (service-overall service)))

(defun check-service (service)
  "Signal MISUSE unless SERVICE is a health service."
  (unless (typep service 'health-service)
    (misuse "~S is not a health service: give the instance of HEALTH-SERVICE that you gave to ~
             START-SERVER." service)))

(defun check-service-name (name)
  "Signal MISUSE unless NAME is a string."
  (unless (stringp name)
    (misuse "~S is not the name of a service: give its full name, such as \"helloworld.Greeter\", ~
             or \"\" for the whole server." name)))

(defmacro with-service ((service) &body body)
  `(sb-thread:with-mutex ((service-lock ,service)) ,@body))

(defun find-entry (service name)
  "Return the entry of NAME, or nil if there is none. Call this with the service's lock."
  (gethash name (service-entries service)))

(defun status-of (service name)
  (let ((entry (find-entry service name)))
    (and entry (entry-status entry))))

(defun health-status (service name)
  "Return the status of NAME in SERVICE, a health service: :serving, :not-serving or :unknown, or
nil if SERVICE does not know NAME. NAME is the full name of a service such as
\"helloworld.Greeter\", or \"\" for the whole server. Signal MISUSE for a SERVICE or NAME of another
type. From any thread."
  (check-service service)
  (check-service-name name)
  (with-service (service) (status-of service name)))

(defun set-health-status (service name status)
  "Set the status of NAME in SERVICE, a health service, to STATUS: :serving, :not-serving or
:unknown; return STATUS. NAME is the full name of a service, or \"\" for the whole server. Watchers
get the new status. When the last server of SERVICE begins to stop, every status becomes
:not-serving and cannot be changed until another server starts with SERVICE. If the server does not
serve NAME, this is logged once, because NAME may be misspelt. Signal MISUSE for another status, and
for a SERVICE or NAME of another type. From any thread."
  (check-service service)
  (check-service-name name)
  (unless (member status '(:serving :not-serving :unknown))
    (misuse "~S is not a health status: give :serving, :not-serving or :unknown." status))
  (change-status service (copy-seq name) status)
  status)

(defun note-unserved (service name)
  "If NAME, which has a status, is not a service of SERVICE's servers, log this. NAME may belong to
other software; if it is similar to a service's name, it is probably misspelt."
  (let ((names (service-served service)))
    (unless (or (null names) (string= "" name) (member name names :test #'string=))
      (let ((likely (suggested-name name names)))
        (log-event (if likely :warning :info) :health-of-unserved-name
                   :name name :likely-name likely)))))

(defun change-status (service name status &key if-unknown)
  "Set the status of NAME to STATUS, unless the server stops or, if IF-UNKNOWN is true, NAME already
has a status. Notify its watchers."
  (let ((entry nil) (new nil))
    (with-service (service)
      (unless (or (service-stopping service)
                  (and if-unknown (find-entry service name)))
        (setf entry (find-entry service name)
              new (null entry))
        (if new
            (setf entry (setf (gethash name (service-entries service)) (make-entry status)))
            (setf (entry-status entry) status))))
    (when new
      (note-unserved service name)
      (adopt-strangers service name entry))
    (when entry (map-watchers #'identity service (entry-watchers entry)))))

;;; The server's life

(defmethod server:note-server-started ((service health-service) server)
  (let ((names (server:server-service-names server))
        (known (with-service (service)
                 (loop for name being the hash-keys of (service-entries service) collect name)))
        (again nil))
    (with-service (service)
      (push server (service-servers service))
      (setf (service-served service) (union names (service-served service) :test #'string=)
            again (shiftf (service-stopping service) nil)))
    (dolist (name known) (note-unserved service name))
    ;; an earlier server with this service has stopped, and set every status to :not-serving
    (when again (dolist (name (adjoin "" names)) (change-status service name :serving)))
    (dolist (name names) (change-status service name :serving :if-unknown t))))

(defun leave-server (service server)
  "Note that SERVER begins to stop. If it is the last server of SERVICE, every name becomes
:not-serving. Return the entries of all names; if SERVER could not start, change nothing and return
nil."
  (with-service (service)
    (when (member server (service-servers service))
      (let* ((left (setf (service-servers service) (remove server (service-servers service))))
             (stopping (setf (service-stopping service) (null left))))
        (loop for entry being the hash-values of (service-entries service)
              do (when stopping (setf (entry-status entry) :not-serving))
              collect entry)))))

(defmethod server:note-server-stopping ((service health-service) server)
  (let ((entries (leave-server service server)))
    ;; the server waits until its calls end, and these would not end by themselves; the clients can
    ;; call again if another server has the service
    (flet ((leave (watcher)
             (quit-ring watcher)
             (setf (watcher-leaving watcher) t)))
      (when entries (map-watchers #'leave service (service-strangers service)))
      (dolist (entry entries)
        (map-watchers #'leave service (entry-watchers entry))))))

(defun dismiss (watcher)
  "End WATCHER's call, because the server stops."
  (handler-case (rpc:finish (watcher-call watcher) :status :unavailable
                                                   :message "the server is stopping")
    ;; the call has ended
    (status:rpc-error ())))

;;; Watchers

(defun map-watchers (function service head)
  "Call FUNCTION, with the lock held, with each watcher in the list of HEAD, and perhaps with
watchers that are added meanwhile. After each +TOLD-AT-ONCE+ watchers release the lock, so that
other threads get it, and call TELL-WATCHER with each watcher for which FUNCTION has returned true."
  ;; PLACE, a link in the list, marks where to continue; RING-FIRST and ENTER-RING accept any link
  ;; as a head
  (let ((place (make-ring)))
    (flet ((pass-some ()
             (let ((chosen '()))
               (values (with-service (service)
                         (loop for next = (ring-first place)
                               repeat +told-at-once+
                               until (eq next head)
                               do (quit-ring place)
                                  (enter-ring place (ring-first next))
                                  (when (and (watcher-p next) (funcall function next))
                                    (push next chosen))
                               finally (return (not (eq next head)))))
                       (nreverse chosen)))))
      (with-service (service) (enter-ring place (or (ring-first head) head)))
      (unwind-protect (loop
                        (multiple-value-bind (more chosen) (pass-some)
                          (mapc #'tell-watcher chosen)
                          (unless more (return))
                          (loop:world-sleep +pause-seconds+)))
        (with-service (service) (quit-ring place))))))

(defun adopt-strangers (service name entry)
  "Move the watchers of NAME, which has become known as ENTRY, from the STRANGERS to ENTRY."
  (map-watchers (lambda (watcher)
                  (when (string= name (watcher-name watcher))
                    (quit-ring watcher)
                    (join-list watcher entry service))
                  nil)                  ; the caller notifies the watchers of ENTRY afterwards
                service (service-strangers service)))

(defun join-list (watcher entry service)
  "Put WATCHER, which must be in no list, into the list of ENTRY or, if ENTRY is nil, into the list
of the strangers."
  (setf (watcher-entry watcher) entry)
  (enter-ring watcher (if entry (entry-watchers entry) (service-strangers service))))

(defun tell-status (watcher)
  "Send WATCHER the status for which it waits, unless it has received that status, and end WATCHER's
call if WATCHER must leave."
  (let* ((entry (watcher-entry watcher))
         (status (if entry (entry-status entry) :service-unknown)))
    (unless (or (eq status (watcher-told watcher))
                (rpc:call-status (watcher-call watcher)))
      (handler-case
          (when (rpc:try-send (watcher-call watcher) (answer status))
            (setf (watcher-told watcher) status))
        ;; the call has ended meanwhile; ON-CANCEL follows
        (status:rpc-error ())))
    (when (watcher-leaving watcher) (dismiss watcher))))

(defun tell-watcher (watcher)
  "Call TELL-STATUS for WATCHER. If another call of this function is under way for WATCHER, perhaps
on this thread in a callback of the client, make that call repeat TELL-STATUS, so that the status
that is sent last is the latest. Call this without the lock."
  (sb-sys:without-interrupts
    (when (zerop (sb-ext:atomic-incf (watcher-wanted watcher)))
      (let ((wanted 0) (done nil))
        (flet ((done-p ()
                 (= wanted (sb-ext:compare-and-swap (watcher-wanted watcher) wanted 0))))
          (unwind-protect
               (loop do (setf wanted (watcher-wanted watcher))
                        (sb-sys:with-local-interrupts (tell-status watcher))
                     until (setf done (done-p)))
            ;; this thread is terminated, and other threads may rely on it to send their status
            (unless (or done (done-p))
              (setf (watcher-wanted watcher) 0)
              (tell-watcher watcher))))))))

(defun answer (status)
  (health:make-health-check-response :status status))

(defun add-watcher (service watcher)
  "Make WATCHER a watcher of SERVICE, and send it the present status."
  (with-service (service)
    ;; WATCHER may have been removed already, if its call has ended
    (unless (rpc:call-status (watcher-call watcher))
      (let ((entry (find-entry service (watcher-name watcher))))
        (if (service-stopping service)
            (setf (watcher-entry watcher) entry
                  (watcher-leaving watcher) t)
            (join-list watcher entry service)))))
  (tell-watcher watcher))

(defun remove-watcher (service watcher)
  (with-service (service) (quit-ring watcher)))

;;; The methods

(defmethod health-methods:check ((service health-service) request &key)
  (let ((name (health:health-check-request-service request)))
    (answer (or (health-status service name)
                (status:fail :not-found "the service is not known")))))

(defmethod health-methods:list ((service health-service) request &key)
  (declare (ignore request))
  (with-service (service)
    (let ((entries (service-entries service)))
      (when (> (hash-table-count entries) +listed-services+)
        (status:fail :resource-exhausted (format nil "more than ~D services" +listed-services+)))
      (health:make-health-list-response
       :statuses (loop for name being the hash-keys of entries using (hash-value entry)
                       collect (cons name (answer (entry-status entry))))))))

(defmethod health-methods:watch ((service health-service) request &key call)
  (let* ((name (health:health-check-request-service request))
         (watcher (make-watcher :call call :name name)))
    (when (> (length name) +longest-name+)
      (status:fail :invalid-argument "the name of the service is too long"))
    (rpc:on-cancel call (lambda () (remove-watcher service watcher)))
    (add-watcher service watcher)
    ;; this comes last, since the function is called at once if there is room, and needs the
    ;; watcher's entry
    (rpc:on-writable call (lambda () (tell-watcher watcher)))
    call))

;;; Over plain HTTP

(defun health-answer (http-status text)
  (exchange:fixed-answer http-status '(("content-type" . "text/plain; charset=utf-8")
                                     ("cache-control" . "no-store"))
                       text))

(sb-ext:define-load-time-global **serving** (health-answer 200 "serving"))
(sb-ext:define-load-time-global **not-serving** (health-answer 503 "not serving"))
(sb-ext:define-load-time-global **health-unknown** (health-answer 503 "unknown"))
(sb-ext:define-load-time-global **draining** (health-answer 503 "draining"))
(sb-ext:define-load-time-global **no-such-service** (health-answer 404 "the service is not known"))

(defun tell-health (service query)
  "Return the answer to a request with QUERY, a string or nil. It has the status in SERVICE of the
service that the parameter \"service\" of QUERY names."
  (let ((status (if query
                    (health-status service (or (exchange:query-parameter query "service") ""))
                    (entry-status (service-overall service)))))
    (cond ((service-stopping service) **draining**)
          (t (ecase status
               (:serving **serving**)
               (:not-serving **not-serving**)
               (:unknown **health-unknown**)
               ((nil) **no-such-service**))))))

(define-keyword-function health-handler (service &key (path "/healthz") (quiet t))
  "Return a handler for START-SERVER's :http that reports the status in SERVICE, a health service,
over HTTP/1.1 and HTTP/2 at PATH, a string. The status is that of the service that the query's
parameter \"service\" names or, without this parameter, that of the whole server. The answer is 200
while the status is :serving, 503 while it is not, 503 and \"draining\" when the last server of
SERVICE has begun to stop, and 404 for a name that SERVICE does not know. The handler may also be
given to a separate server, which answers while the main server drains. Traces have the requests,
and access logs have those that end well, only if QUIET is false. From any thread. Signal MISUSE if
SERVICE is not a health service."
  (check-service service)
  (exchange:prompt-handler path (lambda (query) (tell-health service query)) :quiet quiet))
