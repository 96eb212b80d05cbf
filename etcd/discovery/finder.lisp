;;;; Finders: each follows a name in etcd, and tells the resolvers of all channels to that name.
;;;;
;;;; 1. The finder's job fetches all entries of the name and its service config, at one revision;
;;;;    then it watches both from the revision behind. So no change is lost.
;;;; 2. A watch goes on by itself after each break. If it ends, since what it was to tell has been
;;;;    compacted or for any other reason, the job begins with 1; also, after a pause, if that
;;;;    fails, whatever the error is, with fewer entries at a time.
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
(defconstant +page+ 25 "So many entries are fetched at a time.")
(defconstant +shortest-page+ 4 "So many after failures, since each entry may have 1.5 MB.")
(defstruct (finder (:constructor %make-finder) (:copier nil))
  "What follows a name."
  (place nil :type (or string etcd:etcd) :read-only t) ; the client, or an authority that names it
  (etcd nil :type etcd:etcd :read-only t) ; the client
  (name "" :type string :read-only t)   ; of the service
  (meter nil :type (or null meter) :read-only t) ; counts what happens, or nil
  (age nil :type (or null function))    ; what METER asks
  (heard-ns 0 :type nanoseconds)        ; when etcd has last said how things are; 0: not yet
  (hosts nil :type (or null hosts))     ; the names in its addresses
  (job nil :type (or null loop:job))    ; that follows the name; the next six are the job's
  (watches '() :type list)              ; of the name; empty: it is to be fetched
  (page +page+ :type (integer 1))       ; how many entries are fetched at a time
  (pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)
   :type loop:pauses :read-only t)      ; before the name is fetched again
  (fetch-ns 0 :type nanoseconds)        ; when it may be fetched, or again
  (ask-ns 0 :type nanoseconds)          ; when etcd is asked how far its changes were told
  (settled-ns 0 :type nanoseconds)      ; when news may be told
  (ending nil :type (or null function)) ; ends the job when ETCD is closed
  (lock (sb-thread:make-mutex :name "clgrpc finder") :read-only t) ; of what follows
  (resolvers '() :type list)            ; that are to be told
  (roster nil :type roster)             ; what the store says
  (news nil :type boolean)              ; the resolvers have not been told of all of that
  (broken nil :type boolean)            ; a watch has ended
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

;;; Its job

(defun ended-p (finder)
  (loop:job-ended (finder-job finder)))

(defun note-change-kinds (finder kinds)
  "Changes of KINDS, texts, have come to FINDER."
  (dolist (kind kinds) (note (finder-meter finder) #'meter-changes 1 (finder-name finder) kind)))

(defconstant +reach-seconds+ 5 "How long etcd may take to be connected, until that is told.")

(defun fetch-roster (finder)
  "Have FINDER's roster be what the store says now. Return the revision of that, and the entry that
was changed last, if there is one; or nil if FINDER ends."
  ;; a fetch would wait for etcd until its own deadline, and callers would not learn why
  (etcd:reach (finder-etcd finder) :timeout +reach-seconds+)
  (let ((roster (make-roster (finder-name finder))) (etcd (finder-etcd finder)) (newest nil))
    (flet ((note-entry (entry)
             (when (ended-p finder) (return-from fetch-roster nil))
             (when (or (null newest) (< (etcd:entry-changed newest) (etcd:entry-changed entry)))
               (setf newest entry))
             (unless (note-put roster entry)
               (note (finder-meter finder) #'meter-ignored 1 (finder-name finder)))))
      (let ((revision (etcd:map-entries #'note-entry etcd :prefix (name-prefix (finder-name finder))
                                                          :page (finder-page finder))))
        (note-config roster (etcd:fetch etcd (service-config-key (finder-name finder))
                                        :revision revision))
        (setf (finder-page finder) +page+)
        (note-change-kinds finder '("fetch"))
        (sb-thread:with-mutex ((finder-lock finder))
          (setf (finder-roster finder) roster
                (finder-heard-ns finder) (loop:world-now)
                (finder-news finder) t
                (finder-broken finder) nil))
        (values revision newest)))))

(defun change-servers (finder changes)
  "CHANGES are of FINDER's servers. Under its lock."
  (let ((wrong (count-if-not (lambda (change) (note-change (finder-roster finder) change))
                             changes)))
    (note (finder-meter finder) #'meter-ignored wrong (finder-name finder))
    (mapcar (lambda (change) (string-downcase (etcd:change-kind change))) changes)))

(defun change-config (finder changes)
  "CHANGES are of FINDER's service config. Under its lock."
  (dolist (change changes)
    (note-config (finder-roster finder)
                 (and (eq :put (etcd:change-kind change)) (etcd:change-entry change))))
  '("service_config"))

(defun watch-name (finder revision mark)
  "Watch FINDER's name, and its service config, behind REVISION, where the entry MARK, if it is not
nil, is in the store. Return a list of watches."
  (let ((watches '()) (opened nil))
    (flet ((watch (function &rest range)
             (push (apply #'etcd:watch (finder-etcd finder)
                          (lambda (changes revision)
                            (declare (ignore revision))
                            (note-change-kinds
                             finder
                             (with-finder (finder)
                               (setf (finder-news finder) t
                                     (finder-heard-ns finder) (loop:world-now))
                               (funcall function finder changes))))
                          :after revision :mark mark
                          :on-end (lambda (condition)
                                    (declare (ignore condition))
                                    (with-finder (finder) (setf (finder-broken finder) t)))
                          range)
                   watches)))
      (unwind-protect
           (progn
             (watch #'change-servers :prefix (name-prefix (finder-name finder)))
             (watch #'change-config :key (service-config-key (finder-name finder)))
             (setf opened t))
        (unless opened (mapc #'etcd:cancel-watch watches))))
    watches))

(defun ask-how-far (finder watch)
  "Learn whether etcd still tells FINDER of changes, by WATCH."
  (handler-case (progn (etcd:await-progress watch :timeout +answer-seconds+)
                       (setf (finder-heard-ns finder) (loop:world-now)))
    (etcd:etcd-error ())))

(defun begin-following (finder)
  "Tell what FINDER's name is, and watch it, unless FINDER ends. Signal an ETCD-ERROR if it cannot
be fetched."
  (multiple-value-bind (revision mark) (fetch-roster finder)
    (when revision
      (tell-news finder)
      (setf (finder-watches finder) (watch-name finder revision mark)
            (finder-fetch-ns finder) (loop:notice-end +refetch-seconds+)
            (finder-ask-ns finder) (loop:notice-end +ask-seconds+)))))

(defun end-following (finder)
  "Have FINDER's name be fetched again, after a pause. Return when that is."
  (mapc #'etcd:cancel-watch (shiftf (finder-watches finder) '()))
  (setf (finder-fetch-ns finder) (loop:notice-end (loop:next-pause (finder-pauses finder)))))

(defun follow-changes (finder)
  "Tell the news of FINDER, and begin the look-ups that it has to do. Return when it is to again."
  (when (and (finder-news finder) (<= (finder-settled-ns finder) (loop:world-now)))
    (let ((milliseconds (max +settle-ms+ (floor (tell-news finder) +servers-per-ms+))))
      (setf (finder-settled-ns finder) (loop:notice-end (/ milliseconds 1000)))))
  (when (<= (finder-ask-ns finder) (loop:world-now))
    (when (finder-meter finder) (ask-how-far finder (first (finder-watches finder))))
    (setf (finder-ask-ns finder) (loop:notice-end +ask-seconds+)))
  (min (finder-ask-ns finder)
       (or (begin-look-ups (finder-hosts finder)) most-positive-fixnum)
       (if (finder-news finder) (finder-settled-ns finder) most-positive-fixnum)))

(defun follow-name (finder)
  "What the job of FINDER does. Return the seconds until it has to again. It begins anew if a watch
has ended, or servers had to be left out that there is room for by now."
  (loop:seconds-until
   (handler-case
       (let ((due (<= (finder-fetch-ns finder) (loop:world-now))))
         (cond ((null (finder-watches finder)) (when due (begin-following finder)))
               ((or (finder-broken finder) (and due (incomplete-p (finder-roster finder))))
                (loop:forget-failures (finder-pauses finder))
                (end-following finder)))
         (if (finder-watches finder) (follow-changes finder) (finder-fetch-ns finder)))
     (error (condition)
       (note (finder-meter finder) #'meter-failures 1 (finder-name finder) "read")
       (log-event (if (typep condition 'etcd:etcd-error) :warning :error)
                  :discovery-failed :name (finder-name finder)
                                    :condition (princ-to-string condition))
       (tell finder :failure (princ-to-string condition))
       (setf (finder-page finder) (max +shortest-page+ (floor (finder-page finder) 8)))
       (end-following finder)))))

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
    (loop:wake-job (finder-job finder))
    finder))

(defun end-job (finder)
  (end-age (finder-meter finder) (finder-age finder))
  (loop:end-job (finder-job finder))
  (mapc #'etcd:cancel-watch (shiftf (finder-watches finder) '()))
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
                                      (not (ended-p finder))))
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
