;;;; Registrations: a server puts its address into the store under a lease, so its entry is removed
;;;; soon after it has died.
;;;;
;;;; 1. The registration's job, one of its client's background jobs, puts the entry under a lease
;;;;    that was granted for it. The client's keepalive keeps that lease alive
;;;;    (etcd/client/keepalive.lisp).
;;;; 2. When the lease is lost, because etcd was away for too long or does not know it, another is
;;;;    granted and the key put again, until that succeeds. The new entry has the same key, so the
;;;;    end of the former lease does not remove it.
;;;; 3. Once in the time of a lease the job checks that the key exists, and puts a missing key
;;;;    again. Nothing is written as long as the key has the right value.
;;;; 4. The first put replaces the entry of the key's present owner: a server that was killed at the
;;;;    same address, and whose lease has not ended yet. After that the key is put only if it does
;;;;    not exist or belongs to a lease of this registration. An entry that another server has put
;;;;    since, for instance a server that was started later at the same address, remains.
;;;; 5. STOP-SERVER first puts :draining and gives clients notice; calls are taken meanwhile. When
;;;;    the server has stopped, the lease is revoked, and the key is removed with it.

(in-package #:clgrpc.discovery)

(defconstant +write-seconds+ 2 "The time limit, in seconds, of a request of a registration's.")
(defconstant +last-seconds+ 1/2
  "The time limit, in seconds, of the last request if the previous one has failed.")
(defconstant +withdraw-seconds+ 3 "The longest duration of WITHDRAW, in seconds.")
(defconstant +first-pause-seconds+ 1/20
  "The wait, in seconds, before a request that has failed once is made again.")
(defconstant +longest-pause-seconds+ 2 "The longest pause after failures, in seconds.")
(defconstant +own-leases+ 4
  "The number of remembered leases to which the key may belong.")

(defstruct (registration (:constructor %make-registration) (:copier nil))
  "The entry of a server in the store, and the job that maintains it; see REGISTER."
  (etcd nil :type etcd:etcd :read-only t) ; the client of the etcd that has the entry
  (name "" :type string :read-only t)   ; the name of the service
  (key "" :type string :read-only t)    ; the registration's key
  (seconds 10 :type (integer 1) :read-only t) ; how long its lease lasts
  ;; time from the state :draining until the server stops
  (notice-seconds 1 :type (real 0) :read-only t)
  (meter nil :type (or null meter) :read-only t) ; a meter that counts events, or nil
  (job nil :type (or null loop:job))    ; the job that writes the entry
  ;; the pauses between writes that fail
  (pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)
   :type loop:pauses :read-only t)
  (ending nil :type (or null function)) ; ends the job when ETCD is closed
  (lock (sb-thread:make-mutex :name "clgrpc registration") :read-only t) ; guards the slots below
  ;; notified when a slot has changed
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc registration") :read-only t)
  (endpoint nil :type endpoint)         ; the value to put
  (version 1 :type (integer 1))         ; the version of ENDPOINT
  (written 0 :type (integer 0))         ; the version that the store has; 0: no version
  (lease nil :type (or null etcd:lease)) ; the lease with which the key is put
  (leases 0 :type (integer 0))          ; how many leases the registration has requested
  ;; leases, by number, that the key may have; () before the first put that has succeeded
  (own '() :type list)
  (failure nil :type (or null condition)) ; why the last attempt to write the entry has failed
  (standing nil :type boolean)          ; true while the server is counted as present in the store
  (ended nil :type boolean))            ; true once the entry must not be kept any longer

(declaim (sb-ext:freeze-type registration))

(document-functions
  registration-name "The name of the service that the server of REGISTRATION serves."
  registration-key "The key of REGISTRATION in the store."
  registration-endpoint "Return the description of REGISTRATION's server, an endpoint.")

(defun registration-state (registration)
  "Return the state of REGISTRATION's entry according to the store's last answer: :registering while
the entry is missing, because etcd has not accepted it yet or has lost it; :serving; :draining;
:withdrawn. From any thread."
  (sb-thread:with-mutex ((registration-lock registration))
    (cond ((registration-ended registration) :withdrawn)
          ((/= (registration-written registration) (registration-version registration))
           :registering)
          (t (endpoint-state (registration-endpoint registration))))))

(define-printer (registration registration)
  "~A ~(~A~)" (registration-key registration) (registration-state registration))

(defmacro with-registration ((registration) &body body)
  "Evaluate BODY, which changes REGISTRATION, under its lock and without interrupts, and wake the
threads that wait."
  (let ((it (gensym "REGISTRATION")))
    `(let ((,it ,registration))
       (sb-sys:without-interrupts
         (sb-thread:with-mutex ((registration-lock ,it))
           (multiple-value-prog1 (progn ,@body)
             (sb-thread:condition-broadcast (registration-waitqueue ,it))))))))

(defun await (registration end-ns predicate)
  "Wait until PREDICATE, which is called under REGISTRATION's lock, is true, until REGISTRATION
ends, or until END-NS. Return the value of PREDICATE."
  (let ((value nil))
    (loop:await-until (registration-waitqueue registration) (registration-lock registration) end-ns
                      (lambda ()
                        (or (setf value (funcall predicate)) (registration-ended registration))))
    value))

;;; Its job

(defun count-standing (registration standing)
  "Count whether the key of REGISTRATION is in the store, with the right value. The caller must hold
the lock of REGISTRATION."
  (unless (eq standing (shiftf (registration-standing registration) standing))
    (note (registration-meter registration) #'meter-registered (if standing 1 -1)
          (registration-name registration))))

(defun drop-lease (registration number condition)
  "Note that the lease of REGISTRATION with NUMBER is lost because of CONDITION."
  (with-registration (registration)
    (when (= number (registration-leases registration))
      (count-standing registration nil)
      (note (registration-meter registration) #'meter-losses 1 (registration-name registration))
      (setf (registration-lease registration) nil
            (registration-written registration) 0
            (registration-failure registration) condition))))

(defun lose-lease (registration number condition)
  "Do what DROP-LEASE does; then wake the job, which asks for another lease."
  (drop-lease registration number condition)
  (loop:wake-job (registration-job registration)))

(defun ensure-lease (registration)
  "The lease of REGISTRATION; a new lease if it has none. Signal an ETCD-ERROR, also if REGISTRATION
ends before the new lease is granted."
  (or (registration-lease registration)
      (let* ((number (sb-thread:with-mutex ((registration-lock registration))
                       (incf (registration-leases registration))))
             (lease (etcd:grant-lease (registration-etcd registration)
                                      (registration-seconds registration)
                                      :timeout +write-seconds+
                                      :on-loss (lambda (condition)
                                                 (lose-lease registration number condition)))))
        (unless (with-registration (registration)
                  (when (and (etcd:lease-alive-p lease) (not (registration-ended registration)))
                    (setf (registration-lease registration) lease)))
          ;; nothing else would end the lease: it is kept alive
          (etcd:revoke-lease lease :timeout +write-seconds+)
          (error 'etcd:unavailable :text "the answer to the request for a lease has arrived too ~
                                          late"))
        lease)))

(defun put-own (registration text lease)
  "Put TEXT under LEASE if the key of REGISTRATION does not exist, or belongs to one of the
registration's leases. Return false if another server has put the key."
  (let ((key (registration-key registration)))
    (labels ((attempt (comparison &rest others)
               `(:when (,comparison) :then ((:put ,key ,text :lease ,lease))
                 :else ,(and others `((:transact ,@(apply #'attempt others))))))
             (done-p (so values)
               (or so (and values (done-p (car (first values)) (cdr (first values)))))))
      (multiple-value-bind (so values)
          (apply #'etcd:transact (registration-etcd registration) :timeout +write-seconds+
                 (apply #'attempt `(:absent ,key)
                        (loop for own in (registration-own registration)
                              collect `(:lease ,key = ,own))))
        (done-p so values)))))

(defun stands-p (registration text lease)
  "True if the key of REGISTRATION is in the store under LEASE and has the value TEXT."
  (let ((key (registration-key registration)))
    (etcd:transact (registration-etcd registration)
                   :when `((:lease ,key = ,lease) (:value ,key = ,text))
                   :timeout +write-seconds+)))

(defun note-own (registration lease)
  "Note that the key of REGISTRATION may belong to LEASE. The oldest noted leases are forgotten,
since they have ended."
  (let ((all (adjoin (etcd:lease-id lease) (registration-own registration))))
    (setf (registration-own registration) (subseq all 0 (min +own-leases+ (length all))))))

(defun put-text (registration text lease written)
  "Give the key of REGISTRATION the value TEXT under LEASE; WRITTEN is true if the key had that
value at the last check. Return the outcome: :standing if the key has the value already; :put;
:renewed if it had disappeared and was put again; :left if the key belongs to another server; nil if
REGISTRATION has ended."
  (cond ((registration-ended registration) nil)
        ((null (registration-own registration))
         (etcd:put (registration-etcd registration) (registration-key registration) text
                   :lease lease :timeout +write-seconds+)
         :put)
        ((and written (stands-p registration text lease)) :standing)
        ((registration-ended registration) nil)
        (t
         ;; a put whose answer is lost may have been done
         (note-own registration lease)
         (cond ((not (put-own registration text lease)) :left)
               ((or written (zerop (registration-written registration))) :renewed)
               (t :put)))))

(defun note-outcome (registration outcome lease version)
  "Note that VERSION of REGISTRATION was written under LEASE, with OUTCOME."
  (unless (eq :left outcome)
    (setf (registration-own registration) (list (etcd:lease-id lease))))
  (let ((meter (registration-meter registration)) (name (registration-name registration)))
    (note meter #'meter-writes 1 name (string-downcase outcome))
    (when (eq :renewed outcome) (note meter #'meter-renewals 1 name)))
  (with-registration (registration)
    (when (eq lease (registration-lease registration))
      (count-standing registration (not (or (eq :left outcome) (registration-ended registration))))
      (setf (registration-written registration) version
            (registration-failure registration) nil))))

(defun write-registration (registration)
  "Put REGISTRATION's value into the store, if the store lacks it. Signal an ETCD-ERROR."
  (multiple-value-bind (endpoint version written)
      (sb-thread:with-mutex ((registration-lock registration))
        (values (registration-endpoint registration) (registration-version registration)
                (registration-written registration)))
    (let* ((lease (ensure-lease registration))
           (outcome (handler-case (put-text registration (endpoint-json endpoint) lease
                                            (= version written))
                      (etcd:lease-not-found (condition)
                        (drop-lease registration (registration-leases registration) condition)
                        (error condition)))))
      (when outcome (note-outcome registration outcome lease version))
      (unless (or (null outcome) (= version written))
        (log-event :info (if (eq :left outcome)
                             :server-registered-by-another
                             :server-registered)
                   :key (registration-key registration)
                   :state (endpoint-state endpoint))))))

(defun keep-registered (registration)
  "Run the job of REGISTRATION once. Return the seconds until the job runs again."
  (handler-case (progn (write-registration registration)
                       (loop:forget-failures (registration-pauses registration))
                       (loop:tell-recovery (registration-job registration) :server-registered-again
                                           :key (registration-key registration))
                       (registration-seconds registration))
    ;; every error, such as one of an interceptor of the client's channel: without this job the
    ;; server would lose its registration
    (error (condition)
      (with-registration (registration)
        (setf (registration-failure registration) condition))
      (note (registration-meter registration) #'meter-writes 1
            (registration-name registration) "failed")
      (loop:tell-failure (registration-job registration) :server-not-registered condition
                         :key (registration-key registration))
      (loop:next-pause (registration-pauses registration)))))

;;; Interface

(defun check-address (address)
  "Return ADDRESS, a server's address for clients. Signal MISUSE if ADDRESS is not an address, or
one by which clients cannot reach the server. From any thread."
  (let ((target (loop:parse-target address)))
    (when (member (loop:target-host target) '("0.0.0.0" "::" "") :test #'string=)
      (unless (zerop (loop:target-port target))
        (misuse "Clients cannot connect to ~A: give the address by which they reach the server as ~
                 :address."
                address)))
    address))

(define-keyword-function register
    (server name &key (etcd (default-etcd)) address id weight zone hash-key metadata
                   (lease-seconds 10) (notice-seconds 1))
  "Register SERVER, which START-SERVER returned, so that channels find it as etcd:///NAME, and
return the REGISTRATION. The registration is an entry in ETCD with the key NAME/ID, under a lease of
LEASE-SECONDS, 1 to 86400; ID is by default the address. The entry has ADDRESS, by default SERVER's
first one; its WEIGHT, 1 to 65535, its ZONE and HASH-KEY, strings, and METADATA, an alist from names
to JSON. If etcd cannot be reached now, or loses the entry, SERVER is registered as soon as
possible; AWAIT-REGISTRATION waits for the registration. STOP-SERVER sets the state to :draining,
waits NOTICE-SECONDS, at most half of its :DRAIN, while clients turn to other servers, stops SERVER,
and removes the entry. SERVER is nil for a server outside this image; then ADDRESS is required, and
WITHDRAW ends the registration. Signal MISUSE for a wrong argument. From any thread."
  (checked-etcd etcd)
  (check-name name)
  (check-type lease-seconds (integer 1 86400))
  (check-type notice-seconds (real 0 3600))
  (check-type metadata list)
  (let* ((address (check-address (or address
                                     (and server (server:server-address server))
                                     (misuse "Without a server an :address is needed."))))
         (endpoint (checked-endpoint :address address :weight weight :zone zone
                                     :hash-key hash-key :metadata metadata))
         (registration (%make-registration :etcd etcd :name name :meter (meter-of etcd)
                                           :key (endpoint-key name (or id address))
                                           :seconds lease-seconds :notice-seconds notice-seconds
                                           :endpoint endpoint)))
    ;; if this thread is unwound meanwhile no program has the registration, so it ends
    (let ((begun nil))
      (with-undoing ((setf (registration-ending registration)
                           (lambda () (stop-keeping registration))
                           (registration-job registration)
                           (etcd:add-job etcd (lambda () (keep-registered registration))))
                     (unless begun (end-keeping registration)))
        (etcd:add-ending etcd (registration-ending registration))
        (when server
          (server:call-before-stop server (lambda (drain) (take-leave registration drain))))
        (setf begun t)))
    (loop:wake-job (registration-job registration))
    registration))

(defun checked-endpoint (&rest arguments &key address weight zone hash-key &allow-other-keys)
  "The endpoint of ARGUMENTS, those of MAKE-ENDPOINT. Signal MISUSE for a wrong argument."
  (unless (typep weight `(or null (integer 1 ,+most-weight+)))
    (misuse "A weight is an integer from 1 to ~D, not ~S." +most-weight+ weight))
  (dolist (text (list zone hash-key))
    (unless (typep text '(or null string))
      (misuse "Zones and hash keys are strings, not ~S." text)))
  (dolist (text (list address zone hash-key))
    (when (< +longest-word+ (length text))
      (misuse "Addresses, zones and hash keys have at most ~D characters, not ~D." +longest-word+
              (length text))))
  (let* ((endpoint (apply #'make-endpoint arguments))
         (octets (string-octets (endpoint-json endpoint))))
    (when (< +longest-endpoint+ (length octets))
      (misuse "The description of a server (address, weight, zone, hash key, metadata) has ~
               at most ~D octets, not ~D."
              +longest-endpoint+
              (length octets)))
    endpoint))

(define-keyword-function await-registration (registration &key (timeout 5))
  "Wait until the store has REGISTRATION's value, TIMEOUT seconds at most. Return true if the store
has the value. From any thread."
  (await registration (loop:notice-end timeout)
         (lambda ()
           (= (registration-version registration) (registration-written registration)))))

(defun say (registration &rest changes)
  "Change the value of REGISTRATION by CHANGES, arguments of MAKE-ENDPOINT."
  (with-registration (registration)
    (let ((now (registration-endpoint registration)))
      (setf (registration-endpoint registration)
            (apply #'checked-endpoint
                   (append changes
                           (list :address (endpoint-address now) :weight (endpoint-weight now)
                                 :zone (endpoint-zone now) :hash-key (endpoint-hash-key now)
                                 :state (endpoint-state now)
                                 :metadata (endpoint-metadata now)))))
      (incf (registration-version registration))))
  (loop:wake-job (registration-job registration))
  nil)

(define-keyword-function change-registration
    (registration &rest changes &key weight zone hash-key metadata)
  "Change the WEIGHT, ZONE, HASH-KEY or METADATA of REGISTRATION, in the form of REGISTER; those not
given remain. Clients get the change as soon as etcd has it. Signal MISUSE for a wrong argument.
From any thread."
  (declare (ignore weight zone hash-key metadata))
  (apply #'say registration changes))

(defun drain-registration (registration)
  "Set the state of REGISTRATION's server to :draining: channels turn to other servers, if any are
registered. From any thread."
  (say registration :state :draining))

(defun end-keeping (registration)
  "End the job of REGISTRATION, without waiting and without interrupts. If the job waits for a
lease, the job ends that lease itself when it is granted."
  (sb-sys:without-interrupts
    (with-registration (registration)
      (count-standing registration nil)
      (setf (registration-ended registration) t))
    (loop:end-job (registration-job registration) :seconds 0)
    (etcd:remove-ending (registration-etcd registration) (registration-ending registration))))

(defun stop-keeping (registration &optional (seconds 3600))
  "Do what END-KEEPING does, and wait for the job, SECONDS at most."
  (end-keeping registration)
  (loop:end-job (registration-job registration) :seconds seconds))

(defun withdraw (registration)
  "End REGISTRATION, whose entry is removed from the store, at once if etcd can be reached, else
when the lease ends. Return within three seconds. From any thread."
  (let ((end-ns (loop:notice-end +withdraw-seconds+)))
    (stop-keeping registration (- +withdraw-seconds+ +last-seconds+))
    (multiple-value-bind (lease seconds)
        (sb-thread:with-mutex ((registration-lock registration))
          (values (registration-lease registration)
                  (if (registration-failure registration) +last-seconds+ +write-seconds+)))
      (when lease
        ;; the lease stays known if this thread is unwound meanwhile, so that this function can be
        ;; called again
        (handler-case (etcd:revoke-lease lease :timeout (min seconds
                                                         ;; so that something can be asked
                                                         (loop:seconds-until end-ns 1/10)))
          (etcd:etcd-error (condition)
            (log-event :warning :server-not-withdrawn :key (registration-key registration)
                                                      :condition (bounded-text condition))))
        (with-registration (registration) (setf (registration-lease registration) nil))))
    (log-event :info :server-withdrawn :key (registration-key registration)))
  nil)

(defun take-leave (registration drain-seconds)
  "Set the state to :draining, because the server of REGISTRATION is about to be stopped, and give
its clients time. The stop may take DRAIN-SECONDS. Return a function that withdraws REGISTRATION."
  (let ((share (/ drain-seconds 2)))
    (unless (registration-ended registration)
      (drain-registration registration)
      (when (and (plusp share)
                 (await-registration registration :timeout (min share +write-seconds+)))
        (await registration
               (loop:notice-end (min share (registration-notice-seconds registration)))
               (constantly nil)))))
  (lambda () (withdraw registration)))
