;;;; Resolvers, which find the addresses of a channel's servers (gRPC's document "Name Resolution").
;;;; Each scheme of targets has its resolvers in the registry of loop/names/scheme.lisp.
;;;; DEFINE-RESOLVER adds the resolver of a user: a class, of which each channel has an instance,
;;;; with methods of START-RESOLVER, RESOLVE-NOW and STOP-RESOLVER. A resolver pushes addresses or
;;;; failures at any time and from any thread; a push goes to the channel's loop.
;;;;
;;;; A user's methods run on reserve threads, so they may block. The methods of one resolver run one
;;;; after another, in the order of the channel's requests. Between STOP-RESOLVER, when the channel
;;;; goes idle or is closed, and the next START-RESOLVER no method is called.

(in-package #:clgrpc.client)

;;; Backends

(defstruct (backend (:copier nil))
  "A server that a channel may use; an endpoint in the terms of gRFC A61."
  (addresses '() :type list)            ; octets in the kernel's form, to be tried in turn
  ;; a text made of the addresses, which is the same for any order of them
  (key "" :type string)
  (attributes '() :type list))          ; a plist, from the resolver

(document-functions
  backend-key "The addresses of BACKEND as text, sorted: the same for the same server."
  backend-attributes "The attributes that the resolver gives for BACKEND, a plist.")

(define-printer (backend backend)
  "~A~{ ~S~}" (backend-key backend) (backend-attributes backend))

(defun addresses-key (addresses)
  "The key of a backend with ADDRESSES, the kernel's, in any order (gRFC A61)."
  (if (rest addresses)
      (format nil "~{~A~^,~}" (sort (mapcar #'os:address-text addresses) #'string<))
      (first-address addresses)))

(defun first-address (addresses)
  "The first of ADDRESSES, which have the kernel's form, as text."
  (os:address-text (first addresses)))

(defun addresses-backend (addresses &optional attributes)
  "The backend that has ADDRESSES, the kernel's."
  (make-backend :addresses addresses :attributes attributes :key (addresses-key addresses)))

(defun attributes-at (address backends)
  "The attributes of the backend among BACKENDS that has ADDRESS, the kernel's."
  (let ((backend (find-if (lambda (backend)
                            (member address (backend-addresses backend) :test #'equalp))
                          backends)))
    (and backend (backend-attributes backend))))

(defun backend-with (backend name value)
  "A copy of BACKEND whose attribute NAME is VALUE."
  (make-backend :addresses (backend-addresses backend) :key (backend-key backend)
                :attributes (list* name value
                                   (alexandria:remove-from-plist (backend-attributes backend)
                                                                 name))))

(defun parse-backend (item)
  "The backend for ITEM, an element of PUSH-ADDRESSES."
  (destructuring-bind (texts &rest attributes) (if (listp item) item (list item))
    (flet ((addresses (text)
             (or (loop:target-addresses (loop:parse-target text))
                 (misuse "~S is a name; resolvers push addresses." text))))
      (addresses-backend (or (mapcan (lambda (text) (copy-list (addresses text)))
                                     (if (listp texts) texts (list texts)))
                             (misuse "~S has no address." item))
                         attributes))))

;;; The interface of resolvers

(defclass resolver ()
  ((target :initarg :target :reader resolver-target
           :documentation "The target of the channel, text.")
   (name :initarg :name :reader resolver-name
         :documentation "The part of the target that names the servers.")
   (authority :initarg :authority :reader resolver-authority
              :documentation "The :authority of calls, unless credentials set another.")
   (host :initarg :host :reader resolver-host
         :documentation "The name that a server's certificate must have, unless credentials set
another.")
   (own-host :initform nil :accessor resolver-own-host
             :documentation "The host of the :authority that the channel's user has set; nil if the
user has set none.")
   (proxy :initform nil :initarg :proxy :reader resolver-proxy
          :documentation "The PROXY whose addresses are published instead of the servers'; nil if
the channel uses no proxy.")
   (loop :initform nil :accessor resolver-loop
         :documentation "The channel's event loop, once the resolver has begun.")
   (deliver :initform nil :accessor resolver-deliver
            :documentation "While the channel uses the resolver: a function of BACKENDS and FAILURE,
of which one is nil, and CONFIG, called on the loop. CONFIG is an object that PARSE-SERVICE-CONFIG
returned, or the error if the config is invalid, or :none."))
  (:documentation "An object that finds the addresses of a channel's servers; see
DEFINE-RESOLVER."))

(document-functions
  resolver-target "The target of RESOLVER's channel, as text. From any thread."
  resolver-name "The part of RESOLVER's target after the scheme and the authority, without leading
slashes and with each %XX decoded. From any thread."
  resolver-authority "The :authority of calls to the servers of RESOLVER, text."
  resolver-host "The name that a certificate of RESOLVER's servers must have, text."
  resolver-loop "The event loop of RESOLVER's channel, once RESOLVER has begun; nil before that.")

(defmethod print-object ((resolver resolver) stream)
  (print-unreadable-object (resolver stream :type t)
    (when (slot-boundp resolver 'target)
      (format stream "~A~:[~; runs~]" (resolver-target resolver) (resolver-deliver resolver)))))

(defgeneric begin-resolving (resolver)
  (:documentation "Begin to publish addresses to RESOLVER's channel, for the first time or after
END-RESOLVING. On its loop."))

(defgeneric resolve-again (resolver)
  (:documentation "Look for new addresses, since the channel has reason to believe that they have
changed. On its loop."))

(defgeneric end-resolving (resolver)
  (:documentation "Stop publishing, since the channel of RESOLVER is closed or idle. On its loop.")
  (:method ((resolver resolver)) nil))

(defgeneric certificate-name (resolver address)
  (:documentation "The name, a text, that the certificate of the server at ADDRESS, an address of
RESOLVER, must have.")
  (:method ((resolver resolver) address)
    (declare (ignore address))
    (resolver-host resolver)))

(defgeneric answers-p (resolver)
  (:documentation "True if RESOLVER soon answers each RESOLVE-AGAIN, so that an attempt to connect
waits for the answer.")
  (:method ((resolver resolver)) nil))

(defun run-resolver (resolver loop deliver)
  "Begin RESOLVER, which calls DELIVER, on LOOP, its channel's."
  (setf (resolver-loop resolver) loop
        (resolver-deliver resolver) deliver)
  (begin-resolving resolver))

(defun quit-resolver (resolver)
  "End RESOLVER, because the channel no longer needs it. On its loop."
  (when (shiftf (resolver-deliver resolver) nil) (end-resolving resolver)))

(defun deliver (resolver backends failure &optional (service-config :none))
  "Publish BACKENDS with a SERVICE-CONFIG, or FAILURE, a text, to RESOLVER's channel. On its loop."
  (flet ((tell (backends failure service-config)
           (when-let ((deliver (resolver-deliver resolver)))
             (nth-value 1 (loop:guarding (:resolver-error :resolver resolver)
                            (funcall (the function deliver) backends failure
                                     service-config))))))
    ;; calls would wait for ever if the channel failed to use the backends
    (let ((error (tell backends failure service-config)))
      (when error (tell '() (bounded-text error) :none))))
  nil)

;;; Targets that are addresses

(defclass fixed-resolver (resolver)
  ((backends :initarg :backends :reader resolver-backends)) ; the backends, which never change
  (:documentation "A resolver for targets that are addresses themselves."))

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
  "The name for ADDRESS: if the target has several addresses, each address is the name of the server
there."
  (or (and (os:make-address (resolver-host resolver) 0)
           (null (resolver-proxy resolver))
           (os:address-host address))
      (resolver-host resolver)))

;;; Resolvers of users

(defclass user-resolver (resolver)
  (;; guards its methods: one runs at a time
   (lock :initform (sb-thread:make-mutex :name "clgrpc resolver") :reader resolver-lock)
   (errands :initform (make-fifo) :reader resolver-errands
            :documentation "Functions that a reserve thread will call; under LOCK.")
   (running :initform nil :accessor resolver-running
            :documentation "True while a reserve thread calls these functions; under LOCK.")
   (asked :initform nil :accessor resolver-asked
          :documentation "True while RESOLVE-NOW is among these functions and has not begun; under
LOCK."))
  (:documentation "The superclass of each class of DEFINE-RESOLVER."))

(defgeneric start-resolver (resolver)
  (:documentation "Begin to push addresses by PUSH-ADDRESSES, at once or later, even if they are the
same as before. Called when a channel needs the addresses of its servers, for the first time or
after STOP-RESOLVER. Each class of DEFINE-RESOLVER has a method. An error in the method is passed to
the channel as if by PUSH-FAILURE. On a thread that may block."))

(defgeneric resolve-now (resolver)
  (:documentation "Look for new addresses at once. Called when the channel has lost a server, or
cannot reach one; but only once for all servers that are lost while another method runs. A resolver
that polls may have a method; one that is notified of changes needs none. On a thread that may
block.")
  (:method ((resolver resolver)) nil))

(defgeneric stop-resolver (resolver)
  (:documentation "Stop the work of RESOLVER. Called when RESOLVER's channel is closed, or has
become idle (the option idle-seconds); pushes are ignored from then on. The next call on an idle
channel calls START-RESOLVER again, with the same RESOLVER. On a thread that may block, after any
other method has returned.")
  (:method ((resolver resolver)) nil))

(defun run-errands (resolver)
  "Call the functions in RESOLVER's queue, in order."
  (let ((over nil))
    (unwind-protect
         (loop for function = (sb-thread:with-mutex ((resolver-lock resolver))
                                (or (dequeue (resolver-errands resolver))
                                    (setf (resolver-running resolver) nil)))
               while function
               do (funcall (the function function))
               finally (setf over t))
      ;; a function has ended its thread: another thread calls the remaining functions
      (unless over
        (push-failure resolver "a method of the resolver has not returned")
        (start-errands resolver)))))

(defun start-errands (resolver)
  "Call the functions in RESOLVER's queue on a reserve thread. RUNNING is true. If no thread is
free, the functions wait for the next request: RESOLVE-NOW alone need not find any address."
  (unless (loop:run-on-resolver (resolver-loop resolver) (lambda () (run-errands resolver)))
    (sb-thread:with-mutex ((resolver-lock resolver))
      (setf (resolver-running resolver) nil))
    (push-failure resolver "no thread is free for the resolver")))

(defun ensure-errands (resolver)
  "If RESOLVER's queue has functions and no thread calls them, let a thread do so."
  (when (sb-thread:with-mutex ((resolver-lock resolver))
          (and (fifo-items (resolver-errands resolver))
               (not (shiftf (resolver-running resolver) t))))
    (start-errands resolver)))

(defun send-on-errand (resolver function)
  "Call FUNCTION with RESOLVER on a reserve thread, after the functions queued before. An error in
FUNCTION counts as a failure to resolve."
  (flet ((errand ()
           (let ((error (nth-value 1 (loop:guarding (:resolver-error :resolver resolver)
                                       (funcall (the function function) resolver)))))
             (when error (push-failure resolver (bounded-text error))))))
    (sb-thread:with-mutex ((resolver-lock resolver))
      (enqueue #'errand (resolver-errands resolver))))
  (ensure-errands resolver)
  nil)

(defmethod begin-resolving ((resolver user-resolver))
  (send-on-errand resolver #'start-resolver))

(defmethod resolve-again ((resolver user-resolver))
  ;; one look-up serves all requests that come before it begins: thousands of servers may be lost
  ;; meanwhile
  (flet ((asked (new)
           (sb-thread:with-mutex ((resolver-lock resolver))
             (shiftf (resolver-asked resolver) new))))
    (if (asked t)
        (ensure-errands resolver)
        (send-on-errand resolver (lambda (resolver)
                                   (asked nil)
                                   (resolve-now resolver))))))

(defmethod end-resolving ((resolver user-resolver))
  (send-on-errand resolver #'stop-resolver))

(defun push-to-channel (resolver backends failure &optional (service-config :none))
  "Give BACKENDS or FAILURE, and SERVICE-CONFIG, to the channel of RESOLVER, on its loop."
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

(define-keyword-function push-addresses (resolver addresses &key service-config)
  "Make ADDRESSES the addresses of RESOLVER's channel until the next push. An element is a text such
as \"10.0.0.1:50051\", \"[::1]:50051\" or \"unix:/run/a.sock\", never a name; or a list of such a
text and a plist of attributes of the server. A list of several texts in place of the text means one
server, whose addresses are tried in turn. Calls on servers that remain continue. Servers that are
missing from ADDRESSES get no new calls, and their connections end with their last call.
SERVICE-CONFIG is a service config as in MAKE-CHANNEL, in place of the channel's own. An invalid
config is refused: the last valid one stays in force, or else the channel's own. Without either,
calls end with :unavailable until a valid config is pushed. Return false if the channel no longer
uses RESOLVER. Signal MISUSE if an address is invalid. From any thread."
  (and (push-to-channel resolver (mapcar #'parse-backend addresses) nil
                        (parse-pushed-config service-config))
       t))

(defun push-failure (resolver text)
  "Report to RESOLVER's channel that no addresses can be found because of TEXT. If the channel has
addresses, it keeps them; else its calls end with :unavailable and TEXT, and the channel calls
RESOLVE-NOW later. Return false if the channel no longer uses RESOLVER. From any thread."
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
  "Define the class NAME of resolvers with SLOTS and CLASS-OPTIONS as in DEFCLASS. MAKE-CHANNEL
makes an instance for each target that begins with SCHEME, a string, and a colon. If SCHEME is nil,
only channels that name the class among their :resolvers use it. Define a method of START-RESOLVER
for the class, which calls PUSH-ADDRESSES, and perhaps methods of RESOLVE-NOW and STOP-RESOLVER.
RESOLVER-NAME is the name to resolve, and also the channel's :authority. A new class for a scheme
replaces the old one; existing channels keep their resolvers. Evaluate the form at top level, from
one thread at a time, like DEFCLASS."
  `(progn
     (defclass ,name (user-resolver) (,@slots) ,@class-options)
     ,@(when scheme
         `((loop:register-scheme ,scheme :resolver (lambda (text options)
                                                     (declare (ignore options))
                                                     (make-user-resolver ',name text)))))
     ',name))

(defun check-resolvers (resolvers)
  "Return RESOLVERS, an alist from schemes to names of classes of resolvers. Signal MISUSE for any
other value."
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
  "The class, a symbol, for the scheme of TEXT, a target, in RESOLVERS, an alist; nil if RESOLVERS
have none."
  (when-let ((colon (and (stringp text) (position #\: text))))
    (cdr (assoc (subseq text 0 colon) resolvers :test #'string-equal))))
