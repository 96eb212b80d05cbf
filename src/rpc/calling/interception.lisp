;;;; Calls that pass through the interceptors of their channel, with the channel's call credentials.

(in-package #:clgrpc.calling)

(defclass interception ()
  ((interceptors :initarg :interceptors :reader channel-interceptors) ; the outermost first
   ;; see call-credentials.lisp, or nil
   (call-credentials :initarg :call-credentials :reader channel-call-credentials))
  (:documentation "A mixin for channels of all kinds with interceptors or call credentials."))

(defun invoke-intercepted (interceptors method request options invoker)
  "Call INVOKER, a function of a request and a plist of options, through INTERCEPTORS, functions,
for METHOD, REQUEST and OPTIONS."
  (declare (type function invoker))
  (if interceptors
      (funcall (first interceptors) method request options
               (lambda (request options)
                 (invoke-intercepted (rest interceptors) method request options invoker)))
      (funcall invoker request options)))

(document-functions
  channel-interceptors "The interceptors of CHANNEL, in the form that CHECK-INTERCEPTORS takes."
  channel-call-credentials "The call credentials of CHANNEL's calls; nil if CHANNEL has none.")

(defmethod invoke :around ((channel interception) method request &rest options)
  (let ((credentials (channel-call-credentials channel)))
    (invoke-intercepted
     (if (typep method 'rpc-method)
         (interceptors-for (channel-interceptors channel) method)
         (refuse-method method))
     method request options
     (lambda (request options)
       (apply #'call-next-method channel method request
              (if credentials
                  (list* :call-credentials
                         (let ((own (getf options :call-credentials)))
                           (if own (compose-credentials credentials own) credentials))
                         options)
                  options))))))
