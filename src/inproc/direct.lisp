;;;; Direct calls of a service object: if there is no current call, (helloworld.greeter:say-hello
;;;; service request) is a call on a channel to that object, so that programs and tests can use a
;;;; service by calling its methods. A handler that calls another method of a service calls it as a
;;;; plain function.

(in-package #:clgrpc.inproc)

(defun service-channel (service &rest arguments)
  "Return a channel to SERVICE, a service object without a server, as SERVER-CHANNEL does for a
server. ARGUMENTS are as for SERVER-CHANNEL. End the channel with CLOSE-CHANNEL. Signal MISUSE if
SERVICE is not a service. From any thread."
  (method:check-service service)
  (let ((callee (make-callee :services (list service) :options (make-server-options)
                             :name "inproc:")))
    (renew-table callee)
    (make-inproc-channel "inproc:" callee nil arguments)))

(defglobal **direct-lock** (sb-thread:make-mutex :name "clgrpc direct calls"))

(defun direct-channel (service)
  "A channel for direct calls of SERVICE."
  (let ((channel (service-channel service)))
    (setf (inproc-core-direct (channel-inproc-core channel)) t)
    channel))

(defmethod method:service-target ((service method:service))
  (or (method:direct-channel service)
      (sb-thread:with-mutex (**direct-lock**)
        (or (method:direct-channel service)
            (setf (method:direct-channel service) (direct-channel service))))))
