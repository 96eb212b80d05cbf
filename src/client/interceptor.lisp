;;;; Channels with interceptors or call credentials. They are of a class of their own, so that calls
;;;; on others do not even look for them.

(in-package #:clgrpc.client)

(defclass interception ()
  ((interceptors :initarg :interceptors :reader channel-interceptors)
   (call-credentials :initarg :call-credentials :reader channel-call-credentials))
  (:documentation "What a channel whose calls go through interceptors is besides."))

(document-functions
  channel-interceptors "The functions around the calls of CHANNEL, the outermost first."
  channel-call-credentials "A function of a method's path that returns metadata, or nil.")

(defclass intercepted-channel (interception wire-channel) ()
  (:documentation "A channel over the network whose calls go through interceptors."))

(defmethod rpc:invoke :around ((channel interception) method request &rest options)
  (let ((credentials (channel-call-credentials channel)))
    (rpc:invoke-intercepted
     (channel-interceptors channel) method request options
     (lambda (request options)
       (apply #'call-next-method channel method request
              (if credentials
                  (list* :metadata (append (getf options :metadata)
                                           (credentials-metadata channel credentials method))
                         options)
                  options))))))

(defun credentials-metadata (channel credentials method)
  "The metadata that CREDENTIALS give for a call of METHOD on CHANNEL. Signal :unauthenticated if
anybody on the way could read them."
  (unless (or (channel-secure-p channel) (channel-plaintext-credentials channel))
    (error (rpc:make-rpc-error
            :unauthenticated :ended-by :local :sent nil
            :message (format nil "call credentials are not sent to ~A without TLS; ~
                                  :plaintext-credentials t of its channel allows that"
                             (channel-target channel)))))
  (rpc:credentials-metadata credentials method))
