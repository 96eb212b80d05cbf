;;;; Call credentials: metadata that identify the caller, obtained before each attempt of a call
;;;; (gRPC's "authentication" guide; gRFC A54 for the statuses of failures).
;;;;
;;;; Call credentials are one of:
;;;;
;;;;   a function of a method's path    returns metadata, and may wait. For the first attempt of a
;;;;                                    call it is called in the caller's thread
;;;;   an instance of CALL-CREDENTIALS  GET-REQUEST-METADATA returns metadata, or a future of
;;;;                                    them, and does not wait. The function is asked where the
;;;;                                    attempt begins, on the channel's loop
;;;;
;;;; ASK-CREDENTIALS asks either kind without waiting; CREDENTIALS-METADATA asks and waits. Every
;;;; failure becomes an RPC-ERROR; no other condition reaches the loop. Credentials go only over
;;;; secure channels, unless the channel's user allows more.

(in-package #:clgrpc.credentials)

(defclass call-credentials ()
  ()
  (:documentation "The superclass of call credentials: metadata that identify the caller. Instances
of subclasses are the :call-credentials of a channel or a stub; BEARER-TOKEN, COMPOSE-CREDENTIALS,
TOKEN-FILE, SELF-SIGNED-TOKEN, CLIENT-TOKEN and EXCHANGED-TOKEN return instances. For a subclass of
your own, define a method of GET-REQUEST-METADATA."))

(defstruct (credentials-request (:constructor make-credentials-request (path authority secure))
                                (:copier nil))
  "The call for which call credentials give metadata; see GET-REQUEST-METADATA."
  (path "" :type string :read-only t)   ; the path of the method
  (authority "" :type string :read-only t) ; the :authority of the call, HOST or HOST:PORT
  (secure nil :type boolean :read-only t)) ; true if the channel is secure

(document-functions
  credentials-request-path "The path of the method that is called, \"/package.Service/Method\". From
any thread."
  credentials-request-authority "The :authority of the call, \"HOST\" or \"HOST:PORT\"; within the
image the channel's target. From any thread.")

(defun credentials-request-secure-p (request)
  "True if the metadata are sent over TLS to a server that has proved its name, or stay in the
image. If false, the channel's :plaintext-credentials allows sending them. From any thread."
  (credentials-request-secure request))

(define-printer (request credentials-request)
  "~A at ~A" (credentials-request-path request) (credentials-request-authority request))

(defun credentials-request-audience (request)
  "The URL of the called service, \"https://HOST/package.Service\", as the audience of a token: a
string, which contains the port unless that is 443. From any thread."
  (let* ((path (credentials-request-path request))
         (authority (credentials-request-authority request))
         (port (search ":443" authority :start2 (max 0 (- (length authority) 4))))
         (host (subseq authority 0 port)))
    (format nil "https://~A~A" host (subseq path 0 (position #\/ path :from-end t)))))

(defgeneric get-request-metadata (credentials request)
  (:documentation "Return the metadata that identify the caller of REQUEST, a CREDENTIALS-REQUEST:
an alist as for :metadata of a stub, or a future of such an alist (MAKE-FUTURE) if it must be
fetched first. This is called before each attempt of a call, each retry and each hedge, and for the
channel's own health checks. It is called on the channel's loop or, for calls within the image, in
the caller's thread, so it must not wait. If it signals an RPC-ERROR, or the future is rejected with
one, the attempt fails with this error, and the retry policy of the called method applies. A status
that only applications may give becomes :internal (gRFC A54). Any other error becomes
:unauthenticated."))

;;; Kinds

(defgeneric channel-secure-p (channel)
  (:documentation "True if CHANNEL is secure: third parties cannot read the data that it sends. The
second value is true if CHANNEL sends call credentials even though it is not secure.")
  (:method ((channel channel)) nil))

(defclass composite-credentials (call-credentials)
  ((parts :initarg :parts :reader composite-credentials-parts)) ; the parts in their order
  (:documentation "Several call credentials of one call."))

(defun check-credentials (credentials &optional channel)
  "Return two values: CREDENTIALS, and true if they include functions that may wait.
Signal MISUSE if CREDENTIALS are not call credentials, and :unauthenticated if they must not be sent
on CHANNEL: a channel, a core or nil."
  (unless (typep credentials '(or call-credentials function (and symbol (not null))))
    (misuse "Call credentials are a value of BEARER-TOKEN, for example, an instance of a ~
             subclass of CALL-CREDENTIALS, or a function of a method's path, not a value of the ~
             type ~S." (type-of credentials)))
  (unless (or (null channel) (some #'identity (multiple-value-list (channel-secure-p channel))))
    (error (make-rpc-error
            :unauthenticated :ended-by :local :sent nil
            :message (format nil "call credentials are not sent to ~A without TLS; ~
                                  :plaintext-credentials t of its channel allows that"
                             (channel-target channel)))))
  (values credentials (waiting-credentials-p credentials)))

(defun compose-credentials (&rest credentials)
  "Return call credentials that send the metadata of all CREDENTIALS, in this order. If one of the
credentials fails, the attempt fails with its error. Signal MISUSE if an argument is not call
credentials. From any thread."
  (mapc #'check-credentials credentials)
  (if (= 1 (length credentials))
      (first credentials)
      (make-instance 'composite-credentials :parts credentials)))

(define-printer (credentials composite-credentials)
  "~{~A~^, ~}" (composite-credentials-parts credentials))

(defun waiting-credentials-p (credentials)
  "True if functions that may wait are among CREDENTIALS."
  (typecase credentials
    (composite-credentials (some #'waiting-credentials-p (composite-credentials-parts credentials)))
    (call-credentials nil)
    (t t)))

;;; Asking

(defun refusal-error (cause status text)
  "The RPC-ERROR of a call that is not sent, because a component between its user and its server,
which TEXT describes, has signalled CAUSE. The error has the status of CAUSE, changed by
CONTROL-STATUS, if CAUSE is an RPC-ERROR; else STATUS."
  (multiple-value-bind (status said)
      (if (typep cause 'rpc-error)
          (control-status (rpc-error-status cause) (rpc-error-message cause))
          (values status (bounded-text cause)))
    (make-rpc-error status :message (format nil "~A: ~A" text said) :ended-by :local :sent nil
                    :cause cause)))

(defun credentials-failure (cause)
  "The RPC-ERROR of an attempt whose call credentials have signalled CAUSE."
  (refusal-error cause :unauthenticated "the call credentials have failed"))

(defun fit-metadata (metadata)
  "Two values: METADATA, from call credentials, and nil; or nil and the RPC-ERROR with
the reason for which METADATA cannot be sent."
  (handler-case (values (check-metadata metadata) nil)
    (error (error)
      (values nil (refusal-error error :internal
                                 "the metadata of the call credentials cannot be sent")))))

(defun ask-object (credentials request deliver)
  "As ASK-CREDENTIALS, for an instance of CALL-CREDENTIALS."
  (declare (type function deliver))
  (flet ((deliver (metadata error)
           (if error
               (funcall deliver nil (credentials-failure error))
               (multiple-value-call deliver (fit-metadata metadata)))))
    (multiple-value-bind (answer error)
        (handler-case (get-request-metadata credentials request)
          ((or error storage-condition) (error) (values nil error)))
      (cond ((typep answer 'loop:future) (loop:attach-for credentials answer #'deliver))
            (t (deliver answer error)
               nil)))))

(defun ask-function (function request deliver)
  "As ASK-CREDENTIALS, for FUNCTION, a function of a method's path, which may wait."
  (declare (type function deliver))
  (let ((metadata '()) (error nil) (returned nil))
    (unwind-protect
         (setf (values metadata error)
               (handler-case (values (funcall function (credentials-request-path request)) nil)
                 ((or error storage-condition) (error) (values nil error)))
               returned t)
      (cond ((not returned)             ; FUNCTION has ended the thread, or left by another exit
             (funcall deliver nil
                      (make-rpc-error :unavailable :ended-by :local :sent nil
                                      :message "the call credentials have not returned")))
            (error (funcall deliver nil (credentials-failure error)))
            (t (multiple-value-call deliver (fit-metadata metadata))))))
  nil)

(defun ask-parts (parts request run deliver)
  "As ASK-CREDENTIALS, for PARTS, all of which are asked at once."
  (let* ((left (list (length parts)))
         (answers (make-list (length parts)))
         (failure nil))
    (when (null parts) (funcall (the function deliver) nil nil))
    (flet ((ask-part (part place)
             (ask part request run
                  (lambda (metadata error)
                    (setf (first place) metadata)
                    (when error (setf failure error))
                    (when (= 1 (sb-ext:atomic-decf (car left)))
                      (if failure
                          (funcall (the function deliver) nil failure)
                          (funcall (the function deliver)
                                   (apply #'append answers) nil)))))))
      (let ((undoings (remove nil (loop for part in parts
                                        for place on answers
                                        collect (ask-part part place)))))
        (and undoings (lambda () (mapc #'funcall undoings)))))))

(defun ask-credentials (credentials channel method authority run deliver)
  "Ask CREDENTIALS for the metadata of a call of METHOD on CHANNEL, a channel or core, with
AUTHORITY, its :authority. Call (DELIVER metadata error) once, now or later, on any thread. ERROR is
nil, or the RPC-ERROR of a failure, and then METADATA is nil. RUN is called with a function that may
wait: RUN calls this function on a thread that may wait, and returns true; or false if the channel
no longer has such a thread. Return nil, or a function for a call that ends before the answer:
(FUNCTION) makes the credentials forget that call."
  (ask credentials
       (make-credentials-request (rpc-method-path method) authority
                                 (and (channel-secure-p channel) t))
       run deliver))

(defun ask (credentials request run deliver)
  "As ASK-CREDENTIALS, for REQUEST, a CREDENTIALS-REQUEST."
  (declare (type function run deliver))
  (typecase credentials
    (composite-credentials
     (ask-parts (composite-credentials-parts credentials) request run deliver))
    (call-credentials (ask-object credentials request deliver))
    (t (check-credentials credentials)
       (unless (funcall run (lambda () (ask-function credentials request deliver)))
         (funcall deliver nil (make-rpc-error :unavailable :ended-by :local :sent nil
                                              :message "the channel is closed")))
       nil)))

(defun credentials-metadata (channel credentials method &key authority remaining)
  "Wait for the metadata that CREDENTIALS give for a call of METHOD on CHANNEL, and return them.
AUTHORITY is the :authority of the call, or nil for the channel's target. REMAINING, a function or
nil, returns the seconds until the call's deadline, or nil: a future is not awaited beyond the
deadline, but a function among CREDENTIALS is not interrupted. Signal MISUSE if CREDENTIALS are not
call credentials, and :unauthenticated if CHANNEL is not secure. Signal an RPC-ERROR if CREDENTIALS
fail: with their status, or :internal for a status that only applications may give;
:deadline-exceeded after the deadline."
  (check-credentials credentials channel)
  (let* ((future (loop:make-future))
         (leave (ask-credentials credentials channel method (or authority (channel-target channel))
                                 (lambda (function) (funcall function) t)
                                 (lambda (metadata error)
                                   (if error
                                       (loop:reject-future future error)
                                       (loop:resolve-future future metadata))))))
    (handler-case (unwind-protect
                       (values (await future :timeout (and remaining (funcall remaining))))
                    (when leave (funcall (the function leave))))
      (loop:await-timeout ()
        (error (make-rpc-error
                :deadline-exceeded :ended-by :local :sent nil
                :message "the deadline passed before the call credentials had answered"))))))
