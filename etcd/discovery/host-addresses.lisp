;;;; Names of hosts. An address may have a name of DNS for its host. Names are looked up by the
;;;; system's resolver, which may take long: on threads that all service watchers share, so that
;;;; news from etcd does not wait for a look-up.
;;;;
;;;; 1. KNOW-HOSTS sets the addresses with names that exist now, and forgets all others.
;;;; 2. BEGIN-LOOKUPS begins the look-ups that are due, a few at a time, and returns the time at
;;;;    which others will be due. An answer is valid for +LOOKUP-SECONDS+; a failure is tried again
;;;;    after +FAILURE-SECONDS+, and removes no addresses.
;;;; 3. The hosts' owner is notified of each answer, and BEGIN-LOOKUPS is due again.

(in-package #:clgrpc.discovery)

(defconstant +look-up-seconds+ 30 "How long the addresses of a name are used before the name is
looked up again.")
(defconstant +failure-seconds+ 5 "The pause after a look-up that has failed.")
(defconstant +look-ups-at-once+ 4
  "The maximum number of look-ups of one service that are under way at once.")

(defun make-lookup-threads ()
  (loop:make-reserve :threads 8 :queue 10000 :idle-seconds 0))

(sb-ext:define-load-time-global **look-up-threads** (make-lookup-threads))

(defstruct (lookup (:copier nil))
  "The addresses of a host name."
  (addresses '() :type list)            ; the addresses found last, texts
  (failure nil :type (or null string))  ; why the last look-up found no address
  (due-ns 0 :type nanoseconds)          ; when the name must be looked up
  (asking nil :type boolean))           ; true while the look-up is under way

(defstruct (hosts (:constructor make-hosts (notify &key (resolve #'loop:find-addresses)))
                  (:copier nil))
  "The names of a service's hosts."
  (notify nil :type function :read-only t) ; of whether an answer changes anything, and of a
                                        ; failure or nil; called on any thread
  (resolve nil :type function :read-only t) ; (host port): addresses, and a reason for none
  ;; the reserve whose threads look names up, in this world
  (reserve (if (loop:simulated-p) (make-lookup-threads) **look-up-threads**) :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc hosts") :read-only t) ; guards the slots below
  (table (make-hash-table :test #'equal) :type hash-table) ; maps an address to its look-up
  ;; the pauses before a name is asked for again
  (pauses (loop:make-pauses +failure-seconds+ +failure-seconds+) :type loop:pauses :read-only t)
  (asking 0 :type (integer 0)))         ; how many look-ups are under way

(declaim (sb-ext:freeze-type lookup hosts))

(define-printer (hosts hosts)
  "~D name~:P, ~D asked for" (hash-table-count (hosts-table hosts)) (hosts-asking hosts))

(defun know-hosts (hosts addresses)
  "Make HOSTS look up ADDRESSES, texts that contain names."
  (sb-thread:with-mutex ((hosts-lock hosts))
    (let ((table (make-hash-table :test #'equal)))
      (dolist (address addresses)
        (setf (gethash address table)
              (or (gethash address (hosts-table hosts)) (make-lookup))))
      (setf (hosts-table hosts) table))))

(defun host-addresses (hosts address)
  "The addresses, texts, for ADDRESS, one that HOSTS knows; '() while there are none."
  (sb-thread:with-mutex ((hosts-lock hosts))
    (lookup-addresses (gethash address (hosts-table hosts)))))

(defun unanswered-p (hosts)
  "True if the look-up of a name of HOSTS has neither succeeded nor failed yet."
  (sb-thread:with-mutex ((hosts-lock hosts))
    (loop for lookup being the hash-values of (hosts-table hosts)
          thereis (not (or (lookup-addresses lookup) (lookup-failure lookup))))))

(defun note-answer (hosts lookup texts failure)
  "Note the outcome of LOOKUP: TEXTS, its addresses, or FAILURE, the reason why it has found none.
Return two values: true if this changes anything, and true if FAILURE is a new one."
  (sb-thread:with-mutex ((hosts-lock hosts))
    (let ((new-failure (and failure (not (equal failure (lookup-failure lookup)))))
          (new-addresses (not (or failure (equal texts (lookup-addresses lookup))))))
      (when new-addresses (setf (lookup-addresses lookup) texts))
      (setf (lookup-failure lookup) failure
            (lookup-asking lookup) nil
            (lookup-due-ns lookup) (loop:notice-end (if failure
                                                        (loop:next-pause (hosts-pauses hosts))
                                                        +look-up-seconds+)))
      (decf (hosts-asking hosts))
      (values (or new-addresses new-failure) new-failure))))

(defun resolve-address (hosts address)
  "Two values: the addresses, as texts, for ADDRESS, which has a name for its host; and, if the name
has no addresses, the reason."
  (handler-case
      (let ((target (loop:parse-target address)))
        (multiple-value-bind (addresses failure)
            (funcall (hosts-resolve hosts) (loop:target-host target) (loop:target-port target))
          (values (mapcar #'os:address-text addresses)
                  (or failure (and (null addresses) "it has no addresses")))))
    (error (condition) (values '() (bounded-text condition)))))

(defun begin-lookup (hosts lookup address)
  "Begin to look ADDRESS, of LOOKUP, up. The caller must hold the lock of HOSTS."
  (when (loop:run-on-reserve (hosts-reserve hosts)
                             (lambda ()
                               (multiple-value-bind (texts failure) (resolve-address hosts address)
                                 (multiple-value-bind (news new-failure)
                                     (note-answer hosts lookup texts failure)
                                   (when new-failure
                                     (log-event :warning :discovery-look-up-failed
                                                :address address :reason failure))
                                   (funcall (hosts-notify hosts) news failure)))))
    (setf (lookup-asking lookup) t)
    (incf (hosts-asking hosts))))

(defun begin-lookups (hosts)
  "Begin the due look-ups of HOSTS, up to their limit. Return the time of the next look-ups, or
nil."
  (sb-thread:with-mutex ((hosts-lock hosts))
    (loop with now = (loop:world-now) and next = nil
          for address being the hash-keys of (hosts-table hosts) using (hash-value lookup)
          unless (lookup-asking lookup)
            do (cond ((< now (lookup-due-ns lookup))
                      (setf next (min (lookup-due-ns lookup) (or next most-positive-fixnum))))
                     ((< (hosts-asking hosts) +look-ups-at-once+)
                      (begin-lookup hosts lookup address)))
          finally (return next))))
