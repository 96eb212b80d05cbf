;;;; Forwarding. Messages are forwarded as octets, so a gateway needs no types; if it knows the
;;;; types of a method, protocols with JSON reach that method as well. A unary call occupies no
;;;; thread; a stream occupies one thread, and a second one if the client streams. Each direction
;;;; receives a message only after the previous one was sent, so a side that reads slowly makes the
;;;; other side wait.

(in-package #:clgrpc.gateway)

(defclass gateway-service (method:generic-service) ()
  (:documentation "A service that forwards its calls to a channel; see MAKE-GATEWAY-SERVICE."))

(defun run-beside (call function)
  "Call FUNCTION on another thread. It is a reserve thread of CALL's server or, for a call within
the image that has no server, a new thread."
  (let ((server (rpc:operate server call)))
    (unless (and server
                 (loop:run-on-reserve (serving:server-reserve server) function :if-busy :exceed))
      (sb-thread:make-thread (lambda () (loop:guarding (:gateway-error) (funcall function)))
                             :name "clgrpc gateway"))))

;;; Metadata

(defun client-metadata (call)
  "Return the metadata for the backend server: the metadata of CALL, the client's call, with one
x-forwarded-for, whose last address is the client's. Servers should trust only the last address,
because the client may have sent the others."
  (let* ((metadata (status:sendable-metadata (rpc:call-metadata call)))
         (name "x-forwarded-for")
         (before (loop for (other . value) in metadata when (string= name other) collect value))
         (peer (or (rpc:call-peer call) "unknown")) ; as in RFC 7239
         (host (subseq peer 0 (position #\: peer :from-end t))))
    (acons name (format nil "~{~A, ~}~A" before host)
           (remove name metadata :key #'car :test #'string=))))

(defun tell-headers (call forwarded)
  "Send the client of CALL the metadata that the server has sent before its messages."
  (let ((metadata (status:sendable-metadata (rpc:call-metadata forwarded))))
    (when (or metadata (not (rpc:call-status forwarded)))
      (rpc:send-metadata call metadata))))

(defun finish-as-forwarded (call forwarded)
  (rpc:finish call :trailers (status:sendable-metadata (rpc:call-trailers forwarded))))

(defun finish-as (call error)
  "End CALL with the status of ERROR, the error of the forwarded call."
  (rpc:finish call :status (status:rpc-error-status error) :message (status:rpc-error-message error)
              :details (status:rpc-error-details-octets error)
              :trailers (status:sendable-metadata (status:rpc-error-trailers error))))

(defmacro with-outcome ((call) &body body)
  "Evaluate BODY; if the forwarded call fails, end CALL in the same way."
  `(handler-case (progn ,@body)
     (status:rpc-error (error) (finish-as ,call error))))

;;; The kinds of calls

(defun begin-forwarded (channel method request call &rest options)
  "INVOKE METHOD on CHANNEL with OPTIONS and the metadata of CALL, the client's call. Signal
:unavailable if CHANNEL is closed."
  (handler-bind ((misuse (lambda (condition)
                           (declare (ignore condition))
                           (when (eq :shutdown (calling:channel-state channel))
                             (error (status:make-rpc-error
                                     :unavailable :ended-by :local :sent nil
                                     :message "the gateway's channel is closed"))))))
    (apply #'method:invoke channel method request :metadata (client-metadata call) options)))

(defun send-answer (call forwarded receive)
  "End CALL with the only answer of FORWARDED, which RECEIVE returns."
  (tell-headers call forwarded)
  (let ((message (values (funcall receive forwarded))))
    (setf (rpc:call-trailers call) (status:sendable-metadata (rpc:call-trailers forwarded)))
    (rpc:reply call message)))

(defun forward-unary (channel method request call)
  (with-outcome (call)                  ; the forwarded call may fail before it is sent
    (let ((forwarded (begin-forwarded channel method request call :async t)))
      (rpc:on-cancel call (lambda () (rpc:cancel forwarded)))
      (rpc:on-end forwarded
                  (lambda ()
                    (with-outcome (call) (send-answer call forwarded #'loop:await)))))))

(defun send-answers (call forwarded)
  "Pass the messages of FORWARDED on to the client, until FORWARDED ends."
  (tell-headers call forwarded)
  (rpc:do-messages (message forwarded) (rpc:send call message))
  (finish-as-forwarded call forwarded))

(defun forward-server-stream (channel method request call)
  (with-outcome (call)
    (rpc:with-call (forwarded (begin-forwarded channel method request call))
      (rpc:on-cancel call (lambda () (rpc:cancel forwarded)))
      (send-answers call forwarded))))

(defun send-requests (requests forwarded note-failure)
  "Forward the messages of REQUESTS, the client's call. If one of the two calls ends earlier, its
status reaches the thread that waits for the answers of FORWARDED. If a message cannot be sent,
because it is too long for example, call NOTE-FAILURE with the error. After any error FORWARDED is
cancelled, because the backend server might otherwise wait for ever for further messages."
  (let ((over nil))
    (flet ((over-p () (or (rpc:call-status requests) (rpc:call-status forwarded))))
      (unwind-protect
           (handler-case (progn (rpc:do-messages (message requests) (rpc:send forwarded message))
                                (rpc:close-send forwarded)
                                (setf over t))
             (status:rpc-error (error)
               (unless (setf over (over-p)) (funcall note-failure error))))
        (unless over (rpc:cancel forwarded))))))

(defun forward-client-stream (channel method requests call)
  (let ((failure nil))                  ; the error that kept a request from being forwarded
    (handler-case
        (rpc:with-call (forwarded (begin-forwarded channel method :open call))
          (rpc:on-cancel call (lambda () (rpc:cancel forwarded)))
          (run-beside call (lambda ()
                             (send-requests requests forwarded
                                            (lambda (error) (setf failure error)))))
          (if (eq :bidi (method:rpc-method-kind method))
              (send-answers call forwarded)
              (send-answer call forwarded #'rpc:receive)))
      (status:rpc-error (error) (finish-as call (or failure error))))))

(define-keyword-function make-gateway-service (channel &key methods)
  "Return a service, for START-SERVER, that forwards each call to CHANNEL and the answer to the
client. The service forwards messages as octets, metadata, the remaining time, cancellation, status,
details and trailers. METHODS are the methods whose types the service knows, from POOL-METHODS with
:RAW. All protocols of the server can call these methods; only gRPC can call other methods.
GENERIC-SERVICE-METHODS can be set to other methods later. The service does not close CHANNEL. From
any thread."
  (make-instance
   'gateway-service
   :methods methods :unknown t
   :handler (lambda (method request call)
              (ecase (method:rpc-method-kind method)
                (:unary (forward-unary channel method request call))
                (:server-streaming (forward-server-stream channel method request call))
                ((:client-streaming :bidi)
                 (forward-client-stream channel method request call)))
              call)))
