;;;; Interceptors: functions around calls, for what all methods have in common. A server's are
;;;; called around its handlers, where these run; a channel's around its stubs, in the caller's
;;;; thread. The first of a list is the outermost. What they do not see by that, the messages of
;;;; streams and the ends of calls that outlive their handler or stub, they learn by FILTER-MESSAGES
;;;; and ON-END (verb.lisp).
;;;;
;;;; A server or channel without interceptors pays nothing for them: channels with interceptors or
;;;; call credentials are of a class of their own, a subclass of INTERCEPTION, so that calls on
;;;; others do not even look for them.

(in-package #:clgrpc.rpc)

(defun check-interceptors (interceptors)
  "Return INTERCEPTORS, a list of functions or their names; signal MISUSE if it is none."
  (unless (and (listp interceptors)
               (every (lambda (item) (typep item '(or function (and symbol (not null)))))
                      interceptors))
    (misuse "Interceptors are a list of functions, not ~S." interceptors))
  interceptors)

(defun call-intercepted (interceptors call request handler)
  "Call HANDLER, a function of a request, as INTERCEPTORS, a server's, have it for CALL and
REQUEST."
  (declare (type function handler))
  (if interceptors
      (funcall (first interceptors) call request
               (lambda (request) (call-intercepted (rest interceptors) call request handler)))
      (funcall handler request)))

(defun invoke-intercepted (interceptors method request options invoker)
  "Call INVOKER, a function of a request and a plist of options, as INTERCEPTORS, a channel's, have
it for METHOD, REQUEST and OPTIONS."
  (declare (type function invoker))
  (if interceptors
      (funcall (first interceptors) method request options
               (lambda (request options)
                 (invoke-intercepted (rest interceptors) method request options invoker)))
      (funcall invoker request options)))

;;; Call credentials: metadata that says who calls, made anew for each call

(defun bearer-token (token)
  "Return call credentials, for :call-credentials of a channel or stub, that send `authorization:
Bearer TOKEN`. TOKEN is a string, or a function without arguments that returns one, called for each
call in the caller's thread."
  (check-type token (or string function))
  (lambda (method)
    (declare (ignore method))
    (list (cons "authorization"
                (concatenate 'string "Bearer " (if (functionp token) (funcall token) token))))))

(defun credentials-metadata (channel credentials method)
  "The metadata that CREDENTIALS, a function of a method's path, give for a call of METHOD on
CHANNEL. Signal :unauthenticated if anybody on the way could read them."
  (unless (or (channel-secure-p channel) (channel-plaintext-credentials channel))
    (error (make-rpc-error
            :unauthenticated :ended-by :local :sent nil
            :message (format nil "call credentials are not sent to ~A without TLS; ~
                                  :plaintext-credentials t of its channel allows that"
                             (channel-target channel)))))
  (unless (typep credentials '(or function symbol))
    (misuse "Call credentials are a function of the method's path, such as BEARER-TOKEN returns, ~
             not ~S."
            credentials))
  (check-metadata (funcall credentials (rpc-method-path method))))

;;; Channels

(defclass interception ()
  ((interceptors :initarg :interceptors :reader channel-interceptors) ; the outermost first
   ;; a function of a method's path that returns metadata, or nil
   (call-credentials :initarg :call-credentials :reader channel-call-credentials))
  (:documentation "What a channel whose calls go through interceptors is besides."))

(document-functions
  channel-interceptors "The functions around the calls of CHANNEL, the outermost first."
  channel-call-credentials "A function of a method's path that returns metadata, or nil.")

(defmethod invoke :around ((channel interception) method request &rest options)
  (let ((credentials (channel-call-credentials channel)))
    (invoke-intercepted
     (channel-interceptors channel) method request options
     (lambda (request options)
       (apply #'call-next-method channel method request
              (if credentials
                  (list* :metadata (append (getf options :metadata)
                                           (credentials-metadata channel credentials method))
                         options)
                  options))))))
