;;;; Service watchers: each follows a name in etcd, and informs the resolvers of all channels to
;;;; that name.
;;;;
;;;; 1. A service watcher keeps two mirrors, of the servers of the name and of its service config,
;;;;    which follow the store even if connections break (etcd/client/mirror.lisp). Resolvers get
;;;;    nothing before both mirrors have begun.
;;;; 2. The watcher's job passes the changes of both watches to the resolvers, and begins look-ups.
;;;; 3. A first change is passed on at once; the changes of the next 20 ms, or of a longer time if
;;;;    there are many servers, are passed on together. A change that has no effect is not passed
;;;;    on.
;;;; 4. While etcd is unreachable, resolvers keep their last addresses. Channels also keep their
;;;;    addresses when the last registered server has gone: the channels then get a failure, and a
;;;;    failure removes no servers from a channel.
;;;; 5. The host in an address may be a name, which is looked up meanwhile (host-addresses.lisp).
;;;;    Resolvers get the other servers, and this server is omitted until its name has an answer.

(in-package #:clgrpc.discovery)

(defconstant +settle-ms+ 20
  "How long changes after the first are awaited before they are passed on.")
(defconstant +servers-per-ms+ 50
  "A pause lasts a millisecond for each group of this many servers, but at least +SETTLE-MS+.")
(defconstant +refetch-seconds+ 30 "The shortest time between two fetches of a list that is too
long.")
(defconstant +ask-seconds+ 10 "How often etcd is asked for the revision up to which it has sent
changes.")
(defconstant +answer-seconds+ 1/2 "How long to wait for the revision for which etcd was asked.")

(defstruct (service-watcher (:constructor %make-service-watcher) (:copier nil))
  "A follower of a name in etcd."
  (place nil :type (or string etcd:etcd) :read-only t) ; the client, or an authority that names it
  (etcd nil :type etcd:etcd :read-only t) ; the client
  (world loop:*world* :read-only t)     ; the watcher's world
  (name "" :type string :read-only t)   ; the name of the service
  (meter nil :type (or null meter) :read-only t) ; a meter that counts events, or nil
  (age nil :type (or null function))    ; reports HEARD-NS to METER
  (heard-ns 0 :type nanoseconds)        ; when etcd last reported its state; 0: not yet
  (hosts nil :type (or null hosts))     ; the names in its addresses
  (servers nil :type (or null etcd:mirror)) ; the mirror of the servers of the name
  (config nil :type (or null etcd:mirror)) ; the mirror of its service config
  ;; the job that informs resolvers; the next three slots are the job's own
  (job nil :type (or null loop:job))
  (refresh-ns 0 :type nanoseconds)      ; when a list that was too long may be fetched again
  ;; when to ask etcd up to which revision it has sent changes
  (ask-ns 0 :type nanoseconds)
  (settled-ns 0 :type nanoseconds)      ; when news may be passed on
  (ending nil :type (or null function)) ; ends the job when ETCD is closed
  (lock (sb-thread:make-mutex :name "clgrpc service watcher") :read-only t) ; guards the slots below
  (resolvers '() :type list)            ; the resolvers that get the addresses
  (endpoint-table nil :type endpoint-table) ; the store's endpoints
  (news nil :type boolean)              ; true if the resolvers have not received all news
  (begun '() :type list)                ; :servers, :config or both, once they are known
  (told nil :type list))                ; the resolvers' last news: (:addresses LIST CONFIG) or
                                        ; (:failure TEXT); nil while nothing is known

(declaim (sb-ext:freeze-type service-watcher))

(define-printer (service-watcher service-watcher)
  "~A, for ~D resolver~:P" (service-watcher-endpoint-table service-watcher)
  (length (service-watcher-resolvers service-watcher)))

(defmacro with-service-watcher ((service-watcher) &body body)
  "Evaluate BODY, which changes SERVICE-WATCHER, under SERVICE-WATCHER's lock; then
SERVICE-WATCHER's job handles the change."
  (let ((it (gensym "SERVICE-WATCHER")))
    `(let ((,it ,service-watcher))
       (multiple-value-prog1 (sb-thread:with-mutex ((service-watcher-lock ,it)) ,@body)
         (loop:wake-job (service-watcher-job ,it))))))

;;; Informing resolvers

(defun tell-resolver (service-watcher resolver)
  "Give RESOLVER the last news of SERVICE-WATCHER, if it has any. The caller must hold the lock of
SERVICE-WATCHER."
  (destructuring-bind (&optional kind what config) (service-watcher-told service-watcher)
    (ecase kind
      ((nil))
      (:addresses (client:push-addresses resolver what :service-config config))
      (:failure (client:push-failure resolver what)))))

(defun tell (service-watcher &rest told)
  "Give TOLD to the present and later resolvers of SERVICE-WATCHER, unless the last addresses that
these resolvers got are the same. If addresses are known, later resolvers do not get a failure.
Return true if TOLD is new."
  (sb-thread:with-mutex ((service-watcher-lock service-watcher))
    (let ((before (service-watcher-told service-watcher)) (news nil))
      (setf news (not (equal before told)))
      (when (or news (eq :failure (first told)))
        (setf (service-watcher-told service-watcher) told)
        (dolist (resolver (service-watcher-resolvers service-watcher))
                (tell-resolver service-watcher resolver))
        (when (and (eq :failure (first told)) (eq :addresses (first before)))
          (setf (service-watcher-told service-watcher) before)))
      news)))

(defun backend-items (service-watcher endpoints)
  "The argument of PUSH-ADDRESSES for ENDPOINTS, without endpoints that cannot be used, or cannot be
used yet."
  (let* ((hosts (service-watcher-hosts service-watcher))
         (targets (mapcar #'parse-address endpoints))
         (named (lambda (target) (and target (null (loop:target-addresses target))))))
    (know-hosts hosts (loop for endpoint in endpoints
                            for target in targets
                            when (funcall named target) collect (endpoint-address endpoint)))
    (loop for endpoint in endpoints
          for target in targets
          for texts = (cond ((null target) '())
                            ((funcall named target)
                             (host-addresses hosts (endpoint-address endpoint)))
                            (t (list (endpoint-address endpoint))))
          when texts collect (cons texts (endpoint-attributes endpoint)))))

(defun measure-servers (service-watcher all)
  "Report the number of ALL, the endpoints of SERVICE-WATCHER's name."
  (let ((meter (service-watcher-meter service-watcher))
        (draining (count :draining all :key #'endpoint-state)))
    (when meter
      (metrics:record (meter-servers meter) draining (service-watcher-name service-watcher)
                      "draining")
      (metrics:record (meter-servers meter) (- (length all) draining)
                      (service-watcher-name service-watcher) "serving"))))

(defun tell-news (service-watcher)
  "Give the resolvers the contents of SERVICE-WATCHER's endpoint table. Return how many servers the
resolvers have got."
  (multiple-value-bind (all config)
      (sb-thread:with-mutex ((service-watcher-lock service-watcher))
        (setf (service-watcher-news service-watcher) nil)
        (values (all-endpoints (service-watcher-endpoint-table service-watcher))
                (endpoint-table-config (service-watcher-endpoint-table service-watcher))))
    (measure-servers service-watcher all)
    (let* ((endpoints (serving-endpoints all))
           (items (backend-items service-watcher endpoints)))
      (when (cond (items (tell service-watcher :addresses items config))
                  ((null endpoints) (tell service-watcher :failure "no server is registered"))
                  ((unanswered-p (service-watcher-hosts service-watcher)) nil)
                  (t (tell service-watcher :failure "no address of its servers can be used")))
        (log-event :info :discovery :name (service-watcher-name service-watcher)
                   :servers (length items)))
      (length endpoints))))

(defun note-lookup (service-watcher news failure)
  "Note that a look-up for SERVICE-WATCHER has ended, perhaps with FAILURE; NEWS is true if its
result differs from the previous one."
  (when failure (note (service-watcher-meter service-watcher) #'meter-failures 1
                      (service-watcher-name service-watcher) "look_up"))
  (with-service-watcher (service-watcher)
    (when news (setf (service-watcher-news service-watcher) t))))

;;; News from the store

(defun count-change (service-watcher kind)
  "Count a change of KIND, a text, for SERVICE-WATCHER."
  (note (service-watcher-meter service-watcher) #'meter-changes 1
        (service-watcher-name service-watcher) kind))

(defmacro taking-news ((service-watcher what) &body body)
  "Evaluate BODY, which changes SERVICE-WATCHER's endpoint table, under SERVICE-WATCHER's lock. From
then on WHAT, :servers or :config, counts as known."
  (alexandria:once-only (service-watcher)
    `(with-service-watcher (,service-watcher)
       (setf (service-watcher-news ,service-watcher) t
             (service-watcher-heard-ns ,service-watcher) (loop:world-now))
       (pushnew ,what (service-watcher-begun ,service-watcher))
       ,@body)))

(defun take-servers (service-watcher kind items revision)
  "Take ITEMS, which the mirror of SERVICE-WATCHER's servers has reported; see ETCD:MIRROR."
  (declare (ignore revision))
  (let ((wrong (taking-news (service-watcher :servers)
                 (when (eq :entries kind)
                       (clear-endpoint-table (service-watcher-endpoint-table service-watcher)))
                 (count-if-not (lambda (item)
                                 (if (eq :entries kind)
                                     (note-put (service-watcher-endpoint-table service-watcher)
                                               item)
                                     (note-change (service-watcher-endpoint-table service-watcher)
                                                  item)))
                               items))))
    (note (service-watcher-meter service-watcher) #'meter-ignored wrong
          (service-watcher-name service-watcher))
    (if (eq :entries kind)
        (count-change service-watcher "fetch")
        (dolist (change items)
          (count-change service-watcher (string-downcase (etcd:change-kind change)))))))

(defun take-config (service-watcher kind items revision)
  "Take ITEMS, which the mirror of SERVICE-WATCHER's service config has reported; see ETCD:MIRROR."
  (declare (ignore revision))
  (flet ((entry-of (item)
           (cond ((eq :entries kind) item)
                 ((eq :put (etcd:change-kind item)) (etcd:change-entry item)))))
    (taking-news (service-watcher :config)
      (note-config (service-watcher-endpoint-table service-watcher)
                   (and items (entry-of (first (last items)))))))
  (when (eq :changes kind) (count-change service-watcher "service_config")))

(defun note-read-failure (service-watcher condition)
  "Note that SERVICE-WATCHER's servers or config cannot be read, because of CONDITION."
  (note (service-watcher-meter service-watcher) #'meter-failures 1
        (service-watcher-name service-watcher) "read")
  (log-event (if (typep condition 'etcd:etcd-error) :warning :error)
             :discovery-failed :name (service-watcher-name service-watcher)
             :condition (bounded-text condition))
  (tell service-watcher :failure (bounded-text condition)))

(defun begin-following (service-watcher)
  "Begin the mirrors of SERVICE-WATCHER's name."
  (flet ((mirror (function wanted-p &rest range)
           (apply #'etcd:mirror (service-watcher-etcd service-watcher)
                  (lambda (kind items revision)
                    (funcall function service-watcher kind items revision))
                  :on-error (lambda (condition)
                              (when (funcall wanted-p)
                                (note-read-failure service-watcher condition)))
                  range)))
    (setf (service-watcher-config service-watcher)
          (mirror #'take-config
                  ;; else the other mirror reports the error
                  (lambda () (member :servers (service-watcher-begun service-watcher)))
                  :key (service-config-key (service-watcher-name service-watcher)))
          (service-watcher-servers service-watcher)
          (mirror #'take-servers (constantly t)
                  :prefix (name-prefix (service-watcher-name service-watcher))
                  ;; one more than allowed, so that an excess is noticed
                  :most (1+ +most-endpoints+)))))

(defun ask-how-far (service-watcher)
  "Check that changes still reach SERVICE-WATCHER from etcd."
  (let ((watch (etcd:mirror-watch (service-watcher-servers service-watcher))))
    (when watch
      (handler-case (progn (etcd:await-progress watch :timeout +answer-seconds+)
                           (setf (service-watcher-heard-ns service-watcher) (loop:world-now)))
        (etcd:etcd-error ())))))

(defun refresh-endpoint-table (service-watcher)
  "If servers of SERVICE-WATCHER were omitted for lack of room, and there is room by now, fetch all
again."
  (when (and (incomplete-p (service-watcher-endpoint-table service-watcher))
             (<= (service-watcher-refresh-ns service-watcher) (loop:world-now)))
    (setf (service-watcher-refresh-ns service-watcher) (loop:notice-end +refetch-seconds+))
    (etcd:refresh-mirror (service-watcher-servers service-watcher))))

(defun follow-name (service-watcher)
  "Run the job of SERVICE-WATCHER once: pass its news on, and begin the look-ups that are due.
Return the seconds until the job runs again."
  (let ((known (= 2 (length (service-watcher-begun service-watcher)))))
    (when (and known (service-watcher-news service-watcher)
               (<= (service-watcher-settled-ns service-watcher) (loop:world-now)))
      (let ((milliseconds (max +settle-ms+ (floor (tell-news service-watcher) +servers-per-ms+))))
        (setf (service-watcher-settled-ns service-watcher)
              (loop:notice-end (/ milliseconds 1000)))))
    (refresh-endpoint-table service-watcher)
    (when (<= (service-watcher-ask-ns service-watcher) (loop:world-now))
      (when (service-watcher-meter service-watcher) (ask-how-far service-watcher))
      (setf (service-watcher-ask-ns service-watcher) (loop:notice-end +ask-seconds+)))
    (loop:seconds-until
     (min (service-watcher-ask-ns service-watcher)
          (or (begin-lookups (service-watcher-hosts service-watcher)) most-positive-fixnum)
          (if (and known (service-watcher-news service-watcher))
              (service-watcher-settled-ns service-watcher) most-positive-fixnum)))))

;;; Whose they are

(sb-ext:defglobal **service-watchers** '())

(sb-ext:defglobal **service-watchers-lock** (sb-thread:make-mutex :name "clgrpc service watchers"))

(defun age-of (service-watcher)
  "The seconds since etcd last sent anything to SERVICE-WATCHER; nil if it never has."
  (let ((heard-ns (service-watcher-heard-ns service-watcher)))
    (and (plusp heard-ns) (ns-seconds (max 0 (- (loop:world-now) heard-ns))))))

(defun start-service-watcher (place name)
  "A new service watcher of NAME in PLACE: an etcd, or the authority of a target that names one."
  (let* ((etcd (if (stringp place) (etcd:make-etcd (authority-endpoints place)) place))
         (service-watcher (%make-service-watcher :place place :etcd etcd :name name
                                                 :endpoint-table (make-endpoint-table name)
                                                 :meter (meter-of etcd))))
    (setf (service-watcher-hosts service-watcher) (make-hosts (lambda (news failure)
                                                                (note-lookup service-watcher news
                                                                             failure)))
          (service-watcher-job service-watcher)
          (etcd:add-job etcd (lambda () (follow-name service-watcher)))
          (service-watcher-ending service-watcher) (lambda () (end-job service-watcher))
          (service-watcher-age service-watcher) (lambda () (age-of service-watcher)))
    (begin-age (service-watcher-meter service-watcher) (service-watcher-age service-watcher))
    (etcd:add-ending etcd (service-watcher-ending service-watcher))
    (begin-following service-watcher)
    (loop:wake-job (service-watcher-job service-watcher))
    service-watcher))

(defun end-job (service-watcher)
  (end-age (service-watcher-meter service-watcher) (service-watcher-age service-watcher))
  (mapc #'etcd:cancel-mirror (remove nil (list (service-watcher-servers service-watcher)
                                               (service-watcher-config service-watcher))))
  (loop:end-job (service-watcher-job service-watcher))
  (tell service-watcher :failure "the client of etcd is closed"))

(defun end-service-watcher (service-watcher)
  "End SERVICE-WATCHER, which has no resolvers left."
  (end-job service-watcher)
  (etcd:remove-ending (service-watcher-etcd service-watcher)
                      (service-watcher-ending service-watcher))
  (when (stringp (service-watcher-place service-watcher))
        (etcd:close-etcd (service-watcher-etcd service-watcher))))

(defun present-service-watcher (place name)
  "The service watcher of NAME in PLACE that has begun; nil if none has begun. The caller must hold
the lock."
  (find-if (lambda (service-watcher)
             (and (equal place (service-watcher-place service-watcher))
                  (string= name (service-watcher-name service-watcher))
                  (eq loop:*world* (service-watcher-world service-watcher))
                  (not (loop:job-ended (service-watcher-job service-watcher)))))
           **service-watchers**))

(defun attach-resolver (resolver place name)
  "Inform RESOLVER of NAME in PLACE, at once if something is known of NAME. Return the service
watcher. Interrupts are off meanwhile, and the function does not wait, so that each service watcher
of NAME has a resolver."
  (sb-sys:without-interrupts
    (sb-thread:with-mutex (**service-watchers-lock**)
      (let ((service-watcher (or (present-service-watcher place name)
                                 (first (push (start-service-watcher place name)
                                              **service-watchers**)))))
        (sb-thread:with-mutex ((service-watcher-lock service-watcher))
          (push resolver (service-watcher-resolvers service-watcher))
          (tell-resolver service-watcher resolver))
        service-watcher))))

(defun detach-resolver (resolver service-watcher)
  "Stop informing RESOLVER. SERVICE-WATCHER ends with its last resolver."
  (when (sb-sys:without-interrupts
          (sb-thread:with-mutex (**service-watchers-lock**)
            (sb-thread:with-mutex ((service-watcher-lock service-watcher))
              (setf (service-watcher-resolvers service-watcher)
                    (remove resolver (service-watcher-resolvers service-watcher)))
              (unless (service-watcher-resolvers service-watcher)
                (setf **service-watchers** (remove service-watcher **service-watchers**))
                t))))
    (end-service-watcher service-watcher)))
