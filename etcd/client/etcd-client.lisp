;;;; The client: a channel to the members of etcd, its user, and the objects that end with the
;;;; client.

(in-package #:clgrpc.etcd)

(defclass etcd ()
  ((channel :initarg :channel :reader etcd-channel) ; the channel to the members
   ;; gives the channel their addresses; nil for a channel of the user's
   (resolver :initarg :resolver :initform nil :reader etcd-resolver)
   (timeout :initarg :timeout :reader etcd-timeout) ; how long each call may take, in seconds
   ;; the user whose rights calls have, a string; nil if calls are not authenticated
   (user :initarg :user :initform nil :reader etcd-user)
   ;; the user's, a string or a function that returns it
   (password :initarg :password :initform nil :reader etcd-password)
   ;; the token that identifies the user in calls; nil until it was requested, "" if etcd needs none
   (token :initform nil :accessor etcd-token)
   (token-lock :initform (sb-thread:make-mutex :name "clgrpc etcd token")
               :reader etcd-token-lock) ; one thread at a time asks for a token
   ;; the client whose channel this uses, or nil
   (parent :initarg :parent :initform nil :reader etcd-parent)
   ;; the options that MAKE-ETCD was given
   (options :initarg :options :initform '() :reader etcd-options)
   (meter :initarg :meter :initform nil :reader etcd-meter) ; a meter that counts events, or nil
   (closed :initform nil :accessor etcd-closed) ; CLOSE-ETCD was called
   ;; functions that end its leases and watches, the newest first
   (endings :initform '() :accessor etcd-endings)
   ;; runs the jobs of the client, once there are some
   (background :initform nil :accessor etcd-background)
   (multiplex :initform nil :accessor etcd-multiplex) ; serves watches, once there are some
   ;; sends callers' renewals, once there are some
   (renewal-stream :initform nil :accessor etcd-renewal-stream)
   (keepalive :initform nil :accessor etcd-keepalive) ; keeps its leases alive, once there are some
   ;; octets of the changes that its watches keep, see KEEP-FRAGMENTS
   (fragment-octets :initform 0 :accessor etcd-fragment-octets)
   ;; of all from ENDINGS on
   (lock :initform (sb-thread:make-mutex :name "clgrpc etcd") :reader etcd-lock))
  (:documentation "A client of etcd, see MAKE-ETCD."))

(document-functions
  etcd-channel "The channel of ETCD, for other services of its members."
  etcd-user "The user whose rights apply to the calls of ETCD, a string; nil if ETCD has no user.")

(defmethod print-object ((etcd etcd) stream)
  (print-unreadable-object (etcd stream :type t)
    (when (slot-boundp etcd 'channel)
      (format stream "~A~@[ as ~A~]" (method:channel-target (etcd-channel etcd))
              (etcd-user etcd)))))

(macrolet ((define-refusals (&rest readers)
             `(progn
                ,@(loop for reader in readers
                        collect `(defmethod no-applicable-method ((function (eql #',reader))
                                                                  &rest arguments)
                                   (misuse "~S is not a client of etcd, such as the value of ~
                                            MAKE-ETCD." (first arguments)))))))
  (define-refusals etcd-channel etcd-timeout))

(defun check-user (user password)
  "Signal MISUSE unless USER and PASSWORD identify a user, or both are nil."
  (unless (and (typep user '(or null (and string (not (string 0)))))
               (typep password '(or null string function))
               (eq (null user) (null password)))
    (misuse "USER and PASSWORD must be given together: a name, and a string or a function that ~
             returns one.")))

(define-keyword-function
    (make-etcd
     :hint "a port is a part of each endpoint, \"HOST:PORT\", and several endpoints are a list")
    (endpoints &rest options &key user password channel metrics observer (timeout 5)
                               (keepalive-seconds 10) (backoff-initial-seconds 1/4)
                               (backoff-maximum-seconds 2) (max-receive-octets 268435456)
     &allow-other-keys)
  "Return a client of etcd's members at ENDPOINTS, a string \"HOST:PORT\" or a list of such strings;
names and numeric addresses may be mixed. All members that can be reached get calls in turn. TIMEOUT
is the default of the seconds that a call may take. USER, a string, and PASSWORD, a string or a
function that returns one, give calls the rights of that user. The function is called whenever a
call needs a token, perhaps by several threads at once. The token is fetched when it is needed, and
again when etcd refuses it. If CHANNEL, another way to the services of etcd, is given, ENDPOINTS
must be nil; the channel is closed with the client. METRICS, made by MAKE-METRICS, counts its calls,
as an OBSERVER of its channel, and events of its watches, leases, tokens and locks. The other
keywords are MAKE-CHANNEL's: :credentials for TLS, OBSERVER, KEEPALIVE-SECONDS, MAX-RECEIVE-OCTETS
and so on. After a failure the client tries to connect at least about every BACKOFF-MAXIMUM-SECONDS,
so that leases do not end for lack of an attempt. MAKE-ETCD does not connect yet. Signal MISUSE for
wrong arguments. From any thread; end it with CLOSE-ETCD, or use WITH-ETCD."
  (check-type timeout (real (0)))
  (check-user user password)
  (when (and endpoints channel) (misuse "An etcd has ENDPOINTS or a CHANNEL, not both."))
  (let ((*resolver-made* nil))
    (make-instance 'etcd
                   :timeout timeout :user user :password password :options options
                   :meter (meter-of metrics)
                   :channel (or channel
                                (apply #'client:make-channel (endpoints-target endpoints)
                                       :balance :round-robin
                                       :keepalive-seconds keepalive-seconds
                                       :backoff-initial-seconds backoff-initial-seconds
                                       :backoff-maximum-seconds backoff-maximum-seconds
                                       :max-receive-octets max-receive-octets
                                       :observer (append (alexandria:ensure-list metrics)
                                                         (alexandria:ensure-list observer))
                                       (alexandria:remove-from-plist
                                        options :user :password :channel :metrics :observer
                                        :timeout :keepalive-seconds :backoff-initial-seconds
                                        :backoff-maximum-seconds :max-receive-octets)))
                   ;; made by now
                   :resolver *resolver-made*)))

(defun as-user (etcd user password)
  "Return a client that is like ETCD and uses its channel, but whose calls have the rights of USER,
a string. PASSWORD is a string or a function that returns one. The new client is closed with ETCD;
CLOSE-ETCD may end its leases and watches earlier. From any thread."
  (check-user user password)
  (unless user (misuse "A user needs a name."))
  (let ((client (make-instance 'etcd :channel (etcd-channel etcd) :timeout (etcd-timeout etcd)
                               :resolver (etcd-resolver etcd) :meter (etcd-meter etcd)
                               :user user :password password :parent etcd
                               :options (list* :user user :password password
                                               (etcd-options etcd)))))
    (add-ending etcd client)
    client))

(defun etcd-metrics (etcd)
  "Return the METRICS that ETCD was made with; nil if it was made without METRICS. From any thread."
  (getf (etcd-options etcd) :metrics))

(defun run-ending (ending)
  "Call ENDING, one of ETCD-ENDINGS, if it is a function; close ENDING if it is a client that uses
the same channel."
  (if (functionp ending) (funcall ending) (close-etcd ending)))

(defun run-next-ending (etcd)
  "Run the newest of the endings of ETCD. Return false if none remains. If this thread is unwound
out of an ending, the next call runs that ending again."
  (let ((ending nil) (done nil))
    (with-undoing ((setf ending (sb-thread:with-mutex ((etcd-lock etcd))
                                  (setf (etcd-closed etcd) t)
                                  (pop (etcd-endings etcd))))
                   (unless (or done (null ending))
                     (sb-thread:with-mutex ((etcd-lock etcd))
                       (push ending (etcd-endings etcd)))))
      (when ending (run-ending ending))
      (setf done t))
    ending))

(defun close-etcd (etcd)
  "End ETCD: its watches end, its leases are no longer renewed and so end by themselves, its
connections are closed. From any thread but that of a watch or a lease."
  (loop while (run-next-ending etcd))
  (if (etcd-parent etcd)
      (remove-ending (etcd-parent etcd) etcd)
      (calling:close-channel (etcd-channel etcd)))
  ;; its jobs wait for no answers any more
  (when (etcd-background etcd) (loop:end-background (etcd-background etcd))))

(defun end-calls (etcd)
  "Close the channel of ETCD, so that present and later calls fail at once."
  (labels ((note-closed (etcd)
             (dolist (ending (sb-thread:with-mutex ((etcd-lock etcd))
                               (setf (etcd-closed etcd) t)
                               (copy-list (etcd-endings etcd))))
               (unless (functionp ending) (note-closed ending)))))
    (note-closed etcd))
  (calling:close-channel (etcd-channel etcd)))

(defun close-after (etcd seconds)
  "After SECONDS make ETCD's calls fail with UNAVAILABLE, those under way and later ones, so that no
thread waits for etcd any longer. CLOSE-AFTER returns at once; call CLOSE-ETCD afterwards, perhaps
before SECONDS are over. From any thread."
  (check-type seconds (real 0))
  (let* ((begun nil)
         (job (add-job etcd (lambda ()
                              (cond (begun (end-calls etcd) nil)
                                    (t (setf begun t) seconds))))))
    (loop:wake-job job)))

(defmacro with-etcd ((variable endpoints &rest options) &body body)
  "Evaluate BODY with VARIABLE bound to a client that MAKE-ETCD returns. Close the client on exit."
  `(let ((,variable (make-etcd ,endpoints ,@options)))
     (unwind-protect (progn ,@body)
       (close-etcd ,variable))))

(defun note (etcd instrument &optional (number 1))
  "Count NUMBER by INSTRUMENT, a reader of meters, if ETCD counts."
  (let ((meter (etcd-meter etcd)))
    (when meter (metrics:add (funcall (the function instrument) meter) number))))

(defun background-of (etcd)
  "The background that runs the jobs of ETCD; if ETCD is closed, a background that has ended."
  (or (etcd-background etcd)
      (sb-sys:without-interrupts
        (let* ((new (loop:make-background "clgrpc etcd"))
               (present (sb-thread:with-mutex ((etcd-lock etcd))
                          (or (etcd-background etcd)
                              (and (not (etcd-closed etcd))
                                   (setf (etcd-background etcd) new))))))
          (unless (eq present new) (loop:end-background new))
          (or present new)))))

(defun add-job (etcd function)
  "Return a new job of the client ETCD, see LOOP:ADD-JOB; one waiting thread serves all of its jobs.
ADD-ENDING describes how the job ends when ETCD is closed. From any thread."
  (loop:add-job (background-of etcd) function))

(defun run-in-background (etcd function)
  "Call FUNCTION, which may wait, once on a thread of ETCD, unless ETCD is closed. From any thread;
this does not wait."
  (loop:run-in-background (background-of etcd) function))

(defun add-ending (etcd ending)
  "Call ENDING, a function, when ETCD is closed, before its channel is closed: it ends an object
that uses the channel. ENDING is called at once if ETCD was closed before. From any thread."
  (when (sb-thread:with-mutex ((etcd-lock etcd))
          (push ending (etcd-endings etcd))
          (etcd-closed etcd))
    (run-ending ending))
  nil)

(defun remove-ending (etcd ending)
  "Remove ENDING, a function given to ADD-ENDING, so that it is not called. From any thread."
  (sb-thread:with-mutex ((etcd-lock etcd))
    (setf (etcd-endings etcd) (remove ending (etcd-endings etcd)))))

(defun call-with-endpoint (etcd endpoint function)
  "Call FUNCTION with ETCD if ENDPOINT is nil; else with a client of the same kind that asks only
the member at ENDPOINT."
  (cond ((null endpoint) (funcall function etcd))
        ((getf (etcd-options etcd) :channel)
         (misuse "A client that was made with :channel accepts no ENDPOINT."))
        (t (let ((one (apply #'make-etcd endpoint (etcd-options etcd))))
             (unwind-protect (funcall function one)
               (close-etcd one))))))

(defmacro with-endpoint ((variable etcd endpoint) &body body)
  "Evaluate BODY with VARIABLE bound to ETCD, or to a client of ENDPOINT, see CALL-WITH-ENDPOINT."
  `(call-with-endpoint ,etcd ,endpoint (lambda (,variable) ,@body)))
