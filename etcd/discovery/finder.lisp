;;;; Finders: each follows a name in etcd, and tells the resolvers of all channels to that name.
;;;;
;;;; 1. The finder keeps two mirrors, of the servers of the name and of its service config, which
;;;;    say what the store has whatever breaks (etcd/client/mirror.lisp). Nothing is told before
;;;;    both have begun.
;;;; 2. Its job tells what they have brought, and begins look-ups.
;;;; 3. Changes are told at once; those of the next 20 ms together, or of longer if there are many
;;;;    servers. What leaves everything as it was is not told.
;;;; 4. While etcd is away resolvers keep what they were told. They do so, too, when no server is
;;;;    registered any more: a failure is told, which takes nothing from a channel that has servers.
;;;; 5. An address may have a name for its host, which is looked up beside (host.lisp): what is
;;;;    known of the other servers is told, and one is left out until its name has an answer.

(in-package #:clgrpc.discovery)

(defconstant +settle-ms+ 20 "How long changes after the first are awaited before they are told.")
(defconstant +servers-per-ms+ 50 "With many servers it is a millisecond for so many of them.")
(defconstant +refetch-seconds+ 30 "How often a list is fetched anew that was too long, at most.")
(defconstant +ask-seconds+ 10 "How often etcd is asked how far its changes were told.")
(defconstant +answer-seconds+ 1/2 "How long its answer is waited for.")

(defstruct (finder (:constructor %make-finder) (:copier nil))
  "What follows a name."
  (place nil :type (or string etcd:etcd) :read-only t) ; the client, or an authority that names it
  (etcd nil :type etcd:etcd :read-only t) ; the client
  (world loop:*world* :read-only t)     ; that it is in
  (name "" :type string :read-only t)   ; of the service
  (meter nil :type (or null meter) :read-only t) ; counts what happens, or nil
  (age nil :type (or null function))    ; what METER asks
  (heard-ns 0 :type nanoseconds)        ; when etcd has last said how things are; 0: not yet
  (hosts nil :type (or null hosts))     ; the names in its addresses
  (servers nil :type (or null etcd:mirror)) ; of the name
  (config nil :type (or null etcd:mirror)) ; of its service config
  (job nil :type (or null loop:job))    ; that tells; the next three are the job's
  (refresh-ns 0 :type nanoseconds)      ; when a list that was too long may be fetched again
  (ask-ns 0 :type nanoseconds)          ; when etcd is asked how far its changes were told
  (settled-ns 0 :type nanoseconds)      ; when news may be told
  (ending nil :type (or null function)) ; ends the job when ETCD is closed
  (lock (sb-thread:make-mutex :name "clgrpc finder") :read-only t) ; of what follows
  (resolvers '() :type list)            ; that are to be told
  (roster nil :type roster)             ; what the store says
  (news nil :type boolean)              ; the resolvers have not been told of all of that
  (begun '() :type list)                ; which of :servers and :config are known
  (told nil :type list))                ; what resolvers are told: (:addresses LIST CONFIG) or
                                        ; (:failure TEXT); nil while nothing is known

(declaim (sb-ext:freeze-type finder))

(defmethod print-object ((finder finder) stream)
  (print-unreadable-object (finder stream :type t)
    (format stream "~A, for ~D resolver~:P" (finder-roster finder)
            (length (finder-resolvers finder)))))

(defmacro with-finder ((finder) &body body)
  "Evaluate BODY, which changes FINDER, under its lock; then its job looks at that."
  (let ((it (gensym "FINDER")))
    `(let ((,it ,finder))
       (multiple-value-prog1 (sb-thread:with-mutex ((finder-lock ,it)) ,@body)
         (loop:wake-job (finder-job ,it))))))

;;; Telling

(defun tell-resolver (finder resolver)
  "Tell RESOLVER what FINDER tells, if anything. Under its lock."
  (destructuring-bind (&optional kind what config) (finder-told finder)
    (ecase kind
      ((nil))
      (:addresses (client:push-addresses resolver what :service-config config))
      (:failure (client:push-failure resolver what)))))

(defun tell (finder &rest told)
  "Have FINDER's resolvers, now and to come, be told TOLD, unless they were told these addresses
last. A failure is not told to those to come if addresses are known."
  (sb-thread:with-mutex ((finder-lock finder))
    (let ((before (finder-told finder)) (news nil))
      (setf news (not (equal before told)))
      (when (or news (eq :failure (first told)))
        (setf (finder-told finder) told)
        (dolist (resolver (finder-resolvers finder)) (tell-resolver finder resolver))
        (when (and (eq :failure (first told)) (eq :addresses (first before)))
          (setf (finder-told finder) before)))
      news)))

(defun parse-address (endpoint)
  "The target that the address of ENDPOINT is, or nil if it is none."
  (handler-case (loop:parse-target (endpoint-address endpoint))
    (misuse (error)
      (log-event :warning :discovery-ignored :address (endpoint-address endpoint)
                                             :reason (princ-to-string error))
      nil)))

(defun backend-items (finder endpoints)
  "What PUSH-ADDRESSES is given for ENDPOINTS, without those that cannot be used, or not yet."
  (let* ((hosts (finder-hosts finder))
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

(defun measure-servers (finder all)
  "ALL are the endpoints of FINDER's name."
  (let ((meter (finder-meter finder))
        (draining (count :draining all :key #'endpoint-state)))
    (when meter
      (metrics:record (meter-servers meter) draining (finder-name finder) "draining")
      (metrics:record (meter-servers meter) (- (length all) draining)
                      (finder-name finder) "serving"))))

(defun tell-news (finder)
  "Tell what FINDER's roster says by now. Return how many servers it has."
  (multiple-value-bind (all config)
      (sb-thread:with-mutex ((finder-lock finder))
        (setf (finder-news finder) nil)
        (values (all-endpoints (finder-roster finder)) (roster-config (finder-roster finder))))
    (measure-servers finder all)
    (let* ((endpoints (serving-endpoints all))
           (items (backend-items finder endpoints)))
      (when (cond (items (tell finder :addresses items config))
                  ((null endpoints) (tell finder :failure "no server is registered"))
                  ((unanswered-p (finder-hosts finder)) nil)
                  (t (tell finder :failure "no address of its servers can be used")))
        (log-event :info :discovery :name (finder-name finder) :servers (length items)))
      (length endpoints))))

(defun note-look-up (finder news failure)
  "A look-up of FINDER's has ended, perhaps with FAILURE; NEWS is true if that changes anything."
  (when failure (note (finder-meter finder) #'meter-failures 1 (finder-name finder) "look_up"))
  (with-finder (finder)
    (when news (setf (finder-news finder) t))))

;;; What the store says

(defun count-change (finder kind)
  "A change of KIND, a text, has come to FINDER."
  (note (finder-meter finder) #'meter-changes 1 (finder-name finder) kind))

(defmacro taking-news ((finder what) &body body)
  "Evaluate BODY, which changes FINDER's roster, under its lock; WHAT of it is known then."
  (alexandria:once-only (finder)
    `(with-finder (,finder)
       (setf (finder-news ,finder) t
             (finder-heard-ns ,finder) (loop:world-now))
       (pushnew ,what (finder-begun ,finder))
       ,@body)))

(defun take-servers (finder kind items revision)
  "The mirror of FINDER's servers tells ITEMS, see ETCD:MIRROR."
  (declare (ignore revision))
  (let ((wrong (taking-news (finder :servers)
                 (when (eq :entries kind) (clear-roster (finder-roster finder)))
                 (count-if-not (lambda (item)
                                 (if (eq :entries kind)
                                     (note-put (finder-roster finder) item)
                                     (note-change (finder-roster finder) item)))
                               items))))
    (note (finder-meter finder) #'meter-ignored wrong (finder-name finder))
    (if (eq :entries kind)
        (count-change finder "fetch")
        (dolist (change items)
          (count-change finder (string-downcase (etcd:change-kind change)))))))

(defun take-config (finder kind items revision)
  "The mirror of FINDER's service config tells ITEMS, see ETCD:MIRROR."
  (declare (ignore revision))
  (flet ((entry-of (item)
           (cond ((eq :entries kind) item)
                 ((eq :put (etcd:change-kind item)) (etcd:change-entry item)))))
    (taking-news (finder :config)
      (note-config (finder-roster finder) (and items (entry-of (first (last items)))))))
  (when (eq :changes kind) (count-change finder "service_config")))

(defun note-trouble (finder condition)
  "What FINDER needs cannot be read because of CONDITION."
  (note (finder-meter finder) #'meter-failures 1 (finder-name finder) "read")
  (log-event (if (typep condition 'etcd:etcd-error) :warning :error)
             :discovery-failed :name (finder-name finder) :condition (princ-to-string condition))
  (tell finder :failure (princ-to-string condition)))

(defun begin-following (finder)
  "Have the store say what FINDER's name is."
  (flet ((mirror (function trouble-p &rest range)
           (apply #'etcd:mirror (finder-etcd finder)
                  (lambda (kind items revision) (funcall function finder kind items revision))
                  :on-trouble (lambda (condition)
                                (when (funcall trouble-p) (note-trouble finder condition)))
                  range)))
    (setf (finder-config finder) (mirror #'take-config
                                         ;; else the other mirror says what is wrong
                                         (lambda () (member :servers (finder-begun finder)))
                                         :key (service-config-key (finder-name finder)))
          (finder-servers finder) (mirror #'take-servers (constantly t)
                                          :prefix (name-prefix (finder-name finder))
                                          ;; one more, so that it is seen
                                          :most (1+ +most-endpoints+)))))

(defun ask-how-far (finder)
  "Learn whether etcd still tells FINDER of changes."
  (let ((watch (etcd:mirror-watch (finder-servers finder))))
    (when watch
      (handler-case (progn (etcd:await-progress watch :timeout +answer-seconds+)
                           (setf (finder-heard-ns finder) (loop:world-now)))
        (etcd:etcd-error ())))))

(defun refresh-roster (finder)
  "If servers of FINDER had to be left out that there is room for by now, fetch all again."
  (when (and (incomplete-p (finder-roster finder))
             (<= (finder-refresh-ns finder) (loop:world-now)))
    (setf (finder-refresh-ns finder) (loop:notice-end +refetch-seconds+))
    (etcd:refresh-mirror (finder-servers finder))))

(defun follow-name (finder)
  "What the job of FINDER does: tell its news, and begin the look-ups that it has to do. Return the
seconds until it has to again."
  (let ((known (= 2 (length (finder-begun finder)))))
    (when (and known (finder-news finder) (<= (finder-settled-ns finder) (loop:world-now)))
      (let ((milliseconds (max +settle-ms+ (floor (tell-news finder) +servers-per-ms+))))
        (setf (finder-settled-ns finder) (loop:notice-end (/ milliseconds 1000)))))
    (refresh-roster finder)
    (when (<= (finder-ask-ns finder) (loop:world-now))
      (when (finder-meter finder) (ask-how-far finder))
      (setf (finder-ask-ns finder) (loop:notice-end +ask-seconds+)))
    (loop:seconds-until
     (min (finder-ask-ns finder)
          (or (begin-look-ups (finder-hosts finder)) most-positive-fixnum)
          (if (and known (finder-news finder)) (finder-settled-ns finder) most-positive-fixnum)))))

;;; Whose they are

(sb-ext:defglobal **finders** '())

(sb-ext:defglobal **finders-lock** (sb-thread:make-mutex :name "clgrpc finders"))

(defun age-of (finder)
  "Since how many seconds FINDER has heard nothing of etcd; nil if it never has."
  (let ((heard-ns (finder-heard-ns finder)))
    (and (plusp heard-ns) (ns-seconds (max 0 (- (loop:world-now) heard-ns))))))

(defun start-finder (place name)
  "A new finder of NAME in PLACE, an etcd or the authority that says which."
  (let* ((etcd (if (stringp place) (etcd:make-etcd (authority-endpoints place)) place))
         (finder (%make-finder :place place :etcd etcd :name name :roster (make-roster name)
                               :meter (meter-of etcd))))
    (setf (finder-hosts finder) (make-hosts (lambda (news failure)
                                              (note-look-up finder news failure)))
          (finder-job finder) (etcd:add-job etcd (lambda () (follow-name finder)))
          (finder-ending finder) (lambda () (end-job finder))
          (finder-age finder) (lambda () (age-of finder)))
    (begin-age (finder-meter finder) (finder-age finder))
    (etcd:add-ending etcd (finder-ending finder))
    (begin-following finder)
    (loop:wake-job (finder-job finder))
    finder))

(defun end-job (finder)
  (end-age (finder-meter finder) (finder-age finder))
  (mapc #'etcd:cancel-mirror (remove nil (list (finder-servers finder) (finder-config finder))))
  (loop:end-job (finder-job finder))
  (tell finder :failure "the client of etcd is closed"))

(defun end-finder (finder)
  "End FINDER, which nobody needs any more."
  (end-job finder)
  (etcd:remove-ending (finder-etcd finder) (finder-ending finder))
  (when (stringp (finder-place finder)) (etcd:close-etcd (finder-etcd finder))))

(defun attach-resolver (resolver place name)
  "Have RESOLVER be told of NAME in PLACE, now if something is known of it. Return the finder."
  (sb-thread:with-mutex (**finders-lock**)
    (let ((finder (or (find-if (lambda (finder)
                                 (and (equal place (finder-place finder))
                                      (string= name (finder-name finder))
                                      (eq loop:*world* (finder-world finder))
                                      (not (loop:job-ended (finder-job finder)))))
                               **finders**)
                      (first (push (start-finder place name) **finders**)))))
      (sb-thread:with-mutex ((finder-lock finder))
        (push resolver (finder-resolvers finder))
        (tell-resolver finder resolver))
      finder)))

(defun detach-resolver (resolver finder)
  "Tell RESOLVER nothing any more. FINDER ends with its last resolver."
  (when (sb-thread:with-mutex (**finders-lock**)
          (sb-thread:with-mutex ((finder-lock finder))
            (setf (finder-resolvers finder) (remove resolver (finder-resolvers finder)))
            (unless (finder-resolvers finder)
              (setf **finders** (remove finder **finders**))
              t)))
    (end-finder finder)))
