;;;; Resolvers: what tells a channel the addresses of its servers (gRPC's document "Name
;;;; Resolution"). Each scheme of targets has its resolvers in the registry of
;;;; loop/names/scheme.lisp. DEFINE-RESOLVER adds one of a user's: a class, of which each channel
;;;; has an instance, with methods of START-RESOLVER, RESOLVE-NOW and STOP-RESOLVER. It pushes
;;;; addresses, or that there are none, whenever it likes and from any thread; a push goes to the
;;;; channel's loop.
;;;;
;;;; A user's methods run on reserve threads, so they may block. Those of one resolver run one after
;;;; another, in the order in which the channel asked. Between STOP-RESOLVER, when the channel goes
;;;; idle or is closed, and the next START-RESOLVER nothing is asked.

(in-package #:clgrpc.client)

;;; Backends

(defstruct (backend (:copier nil))
  "A server that a channel may use: what gRPC's document A61 calls an endpoint."
  (addresses '() :type list)            ; the kernel's, to be tried in turn; octets
  (key "" :type string)                 ; the same backend has the same addresses, and so this text,
                                        ; whatever their order
  (attributes '() :type list))          ; a plist of what a resolver says of it besides

(document-functions
  backend-key "The addresses of BACKEND as text, sorted: the same for the same server."
  backend-attributes "What the resolver says of BACKEND besides its addresses, a plist.")

(defmethod print-object ((backend backend) stream)
  (print-unreadable-object (backend stream :type t)
    (format stream "~A~{ ~S~}" (backend-key backend) (backend-attributes backend))))

(defun addresses-key (addresses)
  "The key of a backend that has ADDRESSES, the kernel's, in whatever order (gRFC A61)."
  (if (rest addresses)
      (format nil "~{~A~^,~}" (sort (mapcar #'os:address-text addresses) #'string<))
      (first-address addresses)))

(defun first-address (addresses)
  "The first of ADDRESSES, the kernel's, as text."
  (os:address-text (first addresses)))

(defun addresses-backend (addresses &optional attributes)
  "The backend that has ADDRESSES, the kernel's."
  (make-backend :addresses addresses :attributes attributes :key (addresses-key addresses)))

(defun attributes-at (address backends)
  "What the resolver says of that of BACKENDS which has ADDRESS, the kernel's."
  (let ((backend (find-if (lambda (backend)
                            (member address (backend-addresses backend) :test #'equalp))
                          backends)))
    (and backend (backend-attributes backend))))

(defun backend-with (backend name value)
  "BACKEND, whose attribute NAME is VALUE."
  (make-backend :addresses (backend-addresses backend) :key (backend-key backend)
                :attributes (list* name value
                                   (alexandria:remove-from-plist (backend-attributes backend)
                                                                 name))))

(defun parse-backend (item)
  "The backend that ITEM of PUSH-ADDRESSES means."
  (destructuring-bind (texts &rest attributes) (if (listp item) item (list item))
    (flet ((addresses (text)
             (or (loop:target-addresses (loop:parse-target text))
                 (misuse "~S is a name; resolvers push addresses." text))))
      (addresses-backend (or (mapcan (lambda (text) (copy-list (addresses text)))
                                     (if (listp texts) texts (list texts)))
                             (misuse "~S has no address." item))
                         attributes))))

;;; What a channel asks of its resolver

(defclass resolver ()
  ((target :initarg :target :reader resolver-target
           :documentation "The target of the channel, text.")
   (name :initarg :name :reader resolver-name
         :documentation "What of the target names the servers.")
   (authority :initarg :authority :reader resolver-authority
              :documentation "What calls have as :authority, unless credentials say otherwise.")
   (host :initarg :host :reader resolver-host
         :documentation "The name that a server's certificate must have, unless credentials say.")
   (own-host :initform nil :accessor resolver-own-host
             :documentation "The host of the :authority that the channel's user has given, or nil.")
   (proxy :initform nil :initarg :proxy :reader resolver-proxy
          :documentation "The PROXY whose addresses are told instead of the servers', or nil.")
   (loop :initform nil :accessor resolver-loop
         :documentation "The channel's event loop, once the resolver has begun.")
   (deliver :initform nil :accessor resolver-deliver
            :documentation "While the channel wants to know: a function of backends, a failure and
a service config, to be called on the loop. One of the first two is nil; the third is one as
PARSE-SERVICE-CONFIG returns it, the error that it is none, or :none."))
  (:documentation "What tells a channel the addresses of its servers; see DEFINE-RESOLVER."))

(document-functions
  resolver-target "The target of the channel that RESOLVER is for, as text."
  resolver-name "What of RESOLVER's target follows the scheme, and the authority if there is one,
without slashes before it and with each %XX decoded."
  resolver-authority "What calls to the servers of RESOLVER have as :authority, text."
  resolver-host "The name that a certificate of RESOLVER's servers must have, text."
  resolver-loop "The event loop of RESOLVER's channel, once it has begun; nil before that.")

(defmethod print-object ((resolver resolver) stream)
  (print-unreadable-object (resolver stream :type t)
    (when (slot-boundp resolver 'target)
      (format stream "~A~:[~; runs~]" (resolver-target resolver) (resolver-deliver resolver)))))

(defgeneric begin-resolving (resolver)
  (:documentation "Begin to tell RESOLVER's channel of addresses, for the first time or after
END-RESOLVING. On its loop."))

(defgeneric resolve-again (resolver)
  (:documentation "The channel has reason to believe that addresses have changed. On its loop."))

(defgeneric end-resolving (resolver)
  (:documentation "The channel of RESOLVER is closed, or idle. On its loop.")
  (:method ((resolver resolver)) nil))

(defgeneric certificate-name (resolver address)
  (:documentation "The name that the certificate of the server at ADDRESS, one of RESOLVER's, must
have, text.")
  (:method ((resolver resolver) address)
    (declare (ignore address))
    (resolver-host resolver)))

(defgeneric answers-p (resolver)
  (:documentation "True if RESOLVER soon answers each RESOLVE-AGAIN, so that an attempt to connect
waits for the answer.")
  (:method ((resolver resolver)) nil))

(defun run-resolver (resolver loop deliver)
  "Begin RESOLVER, which tells DELIVER, on LOOP, its channel's."
  (setf (resolver-loop resolver) loop
        (resolver-deliver resolver) deliver)
  (begin-resolving resolver))

(defun quit-resolver (resolver)
  "The channel wants nothing more of RESOLVER. On its loop."
  (when (shiftf (resolver-deliver resolver) nil) (end-resolving resolver)))

(defun deliver (resolver backends failure &optional (service-config :none))
  "Tell RESOLVER's channel of BACKENDS with a SERVICE-CONFIG, or of FAILURE, a text. On its loop."
  (flet ((tell (backends failure service-config)
           (let ((deliver (resolver-deliver resolver)))
             (when deliver
               (nth-value 1 (loop:guarding (:resolver-error :resolver resolver)
                              (funcall (the function deliver) backends failure
                                       service-config)))))))
    ;; calls would wait for ever if the channel failed with what it was told
    (let ((error (tell backends failure service-config)))
      (when error (tell '() (princ-to-string error) :none))))
  nil)

;;; Addresses that are known

(defclass fixed-resolver (resolver)
  ((backends :initarg :backends :reader resolver-backends)) ; all there will ever be
  (:documentation "For targets that are addresses themselves."))

(defmethod begin-resolving ((resolver fixed-resolver))
  (trace-event :dns-resolver :resolved
               :name (resolver-target resolver)
               :addresses (mapcan (lambda (backend)
                                    (mapcar #'os:address-text (backend-addresses backend)))
                                  (resolver-backends resolver)))
  (deliver resolver (resolver-backends resolver) nil))

(defmethod resolve-again ((resolver fixed-resolver))
  nil)

(defmethod certificate-name ((resolver fixed-resolver) address)
  "Of several addresses in the target each is the name of its own server."
  (or (and (os:make-address (resolver-host resolver) 0)
           (null (resolver-proxy resolver))
           (os:address-host address))
      (resolver-host resolver)))

;;; Resolvers of users

(defclass user-resolver (resolver)
  (;; of its methods: one runs at a time
   (lock :initform (sb-thread:make-mutex :name "clgrpc resolver") :reader resolver-lock)
   (errands :initform (make-fifo) :reader resolver-errands
            :documentation "Functions that a reserve thread has still to call; under LOCK.")
   (running :initform nil :accessor resolver-running
            :documentation "True while a reserve thread calls them; under LOCK.")
   (asked :initform nil :accessor resolver-asked
          :documentation "True while RESOLVE-NOW is among them and has not begun; under LOCK."))
  (:documentation "What each class of DEFINE-RESOLVER is a subclass of."))

(defgeneric start-resolver (resolver)
  (:documentation "A channel needs the addresses of its servers, for the first time or for the first
time since STOP-RESOLVER: begin to PUSH-ADDRESSES, at once or later, also if they are those that
were pushed before. Each class of DEFINE-RESOLVER has a method. An error in it is told to the
channel as by PUSH-FAILURE. On a thread that may block."))

(defgeneric resolve-now (resolver)
  (:documentation "The channel has lost a server, or cannot reach one: addresses may have changed. A
resolver that looks itself may have a method that looks now; one that is told of changes needs none.
Called once for all that the channel has lost while another method ran. On a thread that may
block.")
  (:method ((resolver resolver)) nil))

(defgeneric stop-resolver (resolver)
  (:documentation "The channel of RESOLVER is closed, or has gone idle for want of calls (the option
idle-seconds); what RESOLVER pushes is of no interest any more. The next call on an idle channel has
START-RESOLVER called again, with the same RESOLVER. On a thread that may block, after any other
method has returned.")
  (:method ((resolver resolver)) nil))

(defun run-errands (resolver)
  "Call what RESOLVER is asked for, in turn."
  (loop for function = (sb-thread:with-mutex ((resolver-lock resolver))
                         (or (dequeue (resolver-errands resolver))
                             (setf (resolver-running resolver) nil)))
        while function
        do (funcall (the function function))))

(defun send-on-errand (resolver function)
  "Have FUNCTION called with RESOLVER on a reserve thread, after what was asked before. An error in
it is a failure to resolve."
  (flet ((errand ()
           (let ((error (nth-value 1 (loop:guarding (:resolver-error :resolver resolver)
                                       (funcall (the function function) resolver)))))
             (when error (push-failure resolver (princ-to-string error))))))
    (when (sb-thread:with-mutex ((resolver-lock resolver))
            (enqueue #'errand (resolver-errands resolver))
            (not (shiftf (resolver-running resolver) t)))
      (unless (loop:run-on-resolver (resolver-loop resolver) (lambda () (run-errands resolver)))
        (sb-thread:with-mutex ((resolver-lock resolver))
          (clear-fifo (resolver-errands resolver))
          (setf (resolver-running resolver) nil
                (resolver-asked resolver) nil))
        (push-failure resolver "no thread is free for it"))))
  nil)

(defmethod begin-resolving ((resolver user-resolver))
  (send-on-errand resolver #'start-resolver))

(defmethod resolve-again ((resolver user-resolver))
  ;; once for all that ask before it begins: servers may be lost by the thousand meanwhile
  (flet ((asked (new)
           (sb-thread:with-mutex ((resolver-lock resolver))
             (shiftf (resolver-asked resolver) new))))
    (unless (asked t)
      (send-on-errand resolver (lambda (resolver)
                                 (asked nil)
                                 (resolve-now resolver))))))

(defmethod end-resolving ((resolver user-resolver))
  (send-on-errand resolver #'stop-resolver))

(defun push-to-channel (resolver backends failure &optional (service-config :none))
  (let ((loop (resolver-loop resolver)))
    (and loop
         (resolver-deliver resolver)
         (loop:post loop (lambda () (deliver resolver backends failure service-config))))))

(defun parse-pushed-config (source)
  "SOURCE parsed as a service config, the error of an invalid one, or :none if SOURCE is nil."
  (if source
      (handler-case (config:parse-service-config source)
        (config:service-config-error (error) error))
      :none))

(defun push-addresses (resolver addresses &key service-config)
  "Tell RESOLVER's channel that its servers are at ADDRESSES, from now until the next push. Each is
text such as \"10.0.0.1:50051\", \"[::1]:50051\" or \"unix:/run/a.sock\", never a name; or a list of
such a text, or of a list of several, which are then tried in turn as those of one server, and a
plist of what else is known of it. Calls on servers that stay go on; those that are gone get no new
calls, and their connections end with their last call. SERVICE-CONFIG is how they are to be used,
as MAKE-CHANNEL takes it, in place of the channel's own; one that is wrong is refused and the one
before it stays in force, or if there was none the channel's own; without that its calls end with
:unavailable until a right one comes. Return false if the channel does not want to know any more.
Signal MISUSE if an address is not one. From any thread."
  (and (push-to-channel resolver (mapcar #'parse-backend addresses) nil
                        (parse-pushed-config service-config))
       t))

(defun push-failure (resolver text)
  "Tell RESOLVER's channel that no addresses can be found because of TEXT. If it has some it
goes on with them; else its calls end with :unavailable and TEXT, and it asks with RESOLVE-NOW
later. Return false if the channel does not want to know any more. From any thread."
  (check-type text string)
  (and (push-to-channel resolver '()
                        (format nil "Cannot resolve ~A: ~A" (resolver-target resolver)
                                (string-right-trim "." text)))
       t))

(defun make-user-resolver (class text)
  "The resolver of CLASS, a symbol, for a channel to TEXT."
  (let ((name (loop:address-name text)))
    (when (string= "" name) (misuse "~S names no server: give SCHEME:NAME." text))
    (make-instance class :target text :name name :authority name
                         :host (subseq name 0 (position #\: name)))))

(defmacro define-resolver (name scheme (&rest slots) &body class-options)
  "Define the class NAME of resolvers with SLOTS and CLASS-OPTIONS as DEFCLASS has them, and have
MAKE-CHANNEL make one for each target that begins with SCHEME, a string, and a colon; if SCHEME is
nil only channels have it that name it among their :resolvers. It has a method of START-RESOLVER
that calls PUSH-ADDRESSES, and may have others of RESOLVE-NOW and STOP-RESOLVER. RESOLVER-NAME says
which servers are asked for; it is the channel's :authority, too.
A scheme that has resolvers gets others; channels that there are keep theirs."
  `(progn
     (defclass ,name (user-resolver) (,@slots) ,@class-options)
     ,@(when scheme
         `((loop:register-scheme ,scheme :resolver (lambda (text options)
                                                     (declare (ignore options))
                                                     (make-user-resolver ',name text)))))
     ',name))

(defun check-resolvers (resolvers)
  "Return RESOLVERS, an alist from schemes to names of classes of resolvers. Signal MISUSE if it is
none."
  (flet ((right-p (row)
           (and (consp row)
                (stringp (car row))
                (symbolp (cdr row))
                (find-class (cdr row) nil)
                (subtypep (cdr row) 'user-resolver))))
    (unless (and (listp resolvers) (every #'right-p resolvers))
      (misuse ":RESOLVERS is an alist from schemes, strings, to names of classes that ~
               DEFINE-RESOLVER has defined, not ~S." resolvers)))
  resolvers)

(defun own-resolver (text resolvers)
  "The class, a symbol, that RESOLVERS, an alist, have for the scheme of TEXT, a target, or nil."
  (let ((colon (and (stringp text) (position #\: text))))
    (and colon
         (cdr (assoc (subseq text 0 colon) resolvers :test #'string-equal)))))
