;;;; Transports and how cases run over each. A case sees a channel and a server and cannot tell what
;;;; is between them; its name and the transport's are the name of its test.

(in-package #:clgrpc.tests.transports)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *transports* '(:tcp :unix :tls
                               :in-process :in-process-share :in-process-threads :in-process-loop)))

(defvar *transport* :tcp "What carries the calls of the case that runs.")

(defmacro define-case (name (&key except) &body body)
  "Define for each transport that is not in the list EXCEPT the test NAME-OVER-TRANSPORT, which
evaluates BODY."
  (let ((function (intern (format nil "~A-CASE" name))))
    `(progn
       (defun ,function () ,@body)
       ,@(loop for transport in (set-difference *transports* except)
               collect `(test ,(intern (format nil "~A-OVER-~A" name transport))
                          (let ((*transport* ,transport)) (,function)))))))

(defgeneric call-over (transport function service server-options channel-options)
  (:documentation "Call FUNCTION with a channel over TRANSPORT to a server of SERVICE, and that
server."))

(defun call-over-wire (function service server-options channel-options)
  (with-started (server (apply #'grpc:start-server service server-options) :drain 5)
    (let ((channel (apply #'grpc:make-channel (grpc:server-address server) channel-options)))
      (unwind-protect (funcall function channel server)
        (grpc:close-channel channel)))))

(defmethod call-over ((transport (eql :tcp)) function service server-options channel-options)
  (call-over-wire function service (list* :listen "127.0.0.1:0" server-options) channel-options))

(defmethod call-over ((transport (eql :unix)) function service server-options channel-options)
  (uiop:with-temporary-file (:pathname path)
    (uiop:delete-file-if-exists path)
    (call-over-wire function service
                    (list* :listen (format nil "unix:~A" (uiop:native-namestring path))
                           server-options)
                    channel-options)))

(defmethod call-over ((transport (eql :tls)) function service server-options channel-options)
  (call-over-wire function service
                  (list* :listen "127.0.0.1:0"
                         :credentials (grpc:tls-credentials
                                       :certificate (support:certificate-file "server.pem")
                                       :key (support:certificate-file "server.key"))
                         server-options)
                  (list* :credentials (grpc:tls-credentials
                                       :roots (support:certificate-file "ca.pem"))
                         channel-options)))

(defun without-wire-options (arguments)
  "ARGUMENTS, a plist for a channel, without the options that only connections have."
  (loop for (name value) on arguments by #'cddr
        for row = (find-option-row name)
        unless (and row (not (eq :method (option-row-scope row)))
                    (not (member name '(:retry :max-attempts :replay-octets :total-replay-octets))))
          append (list name value)))

(defun call-in-process (function service server-options channel-options)
  "As CALL-OVER, for channels within the image."
  (with-started (server (apply #'grpc:start-server service
                               :listen (format nil "inproc:~A" (gensym "TRANSPORTS"))
                               server-options)
                 :drain 5)
    (let ((channel (apply #'grpc:make-channel (grpc:server-address server)
                          (without-wire-options channel-options))))
      (unwind-protect (funcall function channel server)
        (grpc:close-channel channel)))))

(defmethod call-over ((transport (eql :in-process)) function service server-options
                      channel-options)
  (call-in-process function service server-options channel-options))

(defmethod call-over ((transport (eql :in-process-share)) function service server-options
                      channel-options)
  (call-in-process function service server-options (list* :messages :share channel-options)))

(defmethod call-over ((transport (eql :in-process-threads)) function service server-options
                      channel-options)
  (call-in-process function service server-options (list* :threads t channel-options)))

(defmethod call-over ((transport (eql :in-process-loop)) function service server-options
                      channel-options)
  (let* ((reserve (loop:make-reserve))
         (event-loop (loop:make-event-loop :name "handlers" :reserve reserve :caller-driven t)))
    (loop:launch-event-loop event-loop)
    (unwind-protect
         (call-in-process function service server-options
                          (list* :on event-loop channel-options))
      (loop:stop-event-loop event-loop)
      (loop:join-event-loop event-loop)
      (loop:close-reserve reserve 5))))

(defmacro with-transport ((channel &key (server (gensym "SERVER")) options channel-options events)
                          (&rest handlers)
                          &body body)
  "Evaluate BODY with CHANNEL bound to a channel over the case's transport to SERVER, a server of a
probe with HANDLERS; arguments as for WITH-PROBE."
  `(with-log ,events
     (call-over *transport*
                (lambda (,channel ,server)
                  (declare (ignorable ,channel ,server))
                  ,@body)
                (make-probe ,@handlers) ,options ,channel-options)))

(defun status-of-error (error)
  (and error (grpc:rpc-error-status error)))

(defun ours (metadata)
  "What of METADATA the tests have made: keys that begin with x-."
  (remove-if-not (lambda (pair) (uiop:string-prefix-p "x-" (car pair))) metadata))
