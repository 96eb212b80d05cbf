;;;; Calls of handlers, and the client's status if a handler fails or its answer cannot be sent.

(in-package #:clgrpc.serving)

(define-hot (call-handler :inline t) ((route route) request (call call)) t
  (funcall (binding-function (route-binding route)) (route-service route) request call))

(defun call-intercepted (interceptors call request handler)
  "Call HANDLER, a function of a request, through INTERCEPTORS, a server's, for CALL and REQUEST."
  (declare (type function handler))
  (if interceptors
      (funcall (first interceptors) call request
               (lambda (request) (call-intercepted (rest interceptors) call request handler)))
      (funcall handler request)))

(defun call-handler-intercepted (route request call)
  "The value of the handler of ROUTE, called through its interceptors."
  (call-intercepted (route-interceptors route) call request
                    (lambda (request) (call-handler route request call))))

(define-hot (answer-of :inline t) ((route route) request (call call)) t
  "The value of the handler of ROUTE, called through its interceptors if it has any."
  (if (route-interceptors route)
      (call-handler-intercepted route request call)
      (call-handler route request call)))

(defun bad-answer-condition (call message error)
  "The condition that ends CALL, because MESSAGE, the answer of its handler, cannot be sent; ERROR
is the reason."
  (with-user-code (call)
    (if (or (typep error 'rpc-error) (typep error 'storage-condition))
        (error error)
        (error "The handler of ~A has returned ~S, which cannot be sent: ~:[it should return a ~
                ~*~S.~;~A~]"
               (call-path call) message
               (protobuf:message-of-type-p message (outgoing-type call)) error
               (protobuf:message-type-symbol (outgoing-type call))))))

(defun sendable-end (call condition)
  "Four values: the status, message, details and trailers with which CONDITION ends CALL, as far as
they can be sent. A handler may put any objects into CONDITION's slots."
  (let ((status (rpc-error-status condition))
        (message (rpc-error-message condition)))
    (values (if (eq :ok status) :internal status)
            (if (stringp message) message (format nil "~@[~A~]" message))
            (sendable-details call condition)
            (sendable-trailers call (rpc-error-trailers condition)))))

(defun sendable-details (call condition)
  "The octets of CONDITION's details, or nil if they cannot be sent."
  (handler-case (rpc-error-details-octets condition)
    (error (error) (log-bad-answer call error) nil)))

(defun sendable-trailers (call trailers)
  "TRAILERS, or nil if they cannot be sent."
  (handler-case (check-metadata trailers)
    (error (error) (log-bad-answer call error) '())))

(defun log-bad-answer (call error)
  (log-call-event call :error :handler-error :condition error :method (call-path call)))
