;;;; The resolver of targets etcd:///NAME and etcd://HOST:PORT/NAME.

(in-package #:clgrpc.discovery)

(client:define-resolver etcd-resolver "etcd"
    ((service-watcher :initform nil :accessor resolver-service-watcher
                      :documentation "The service watcher that gives the resolver addresses, while
the resolver runs."))
  (:documentation "Gives a channel the servers that are registered in etcd under a name."))

(defun authority-text (name)
  "NAME as the :authority of calls: characters that it cannot have are %XX."
  (with-output-to-string (text)
    (loop for octet across (string-octets name)
          for char = (code-char octet)
          do (if (or (and (< octet 128) (alphanumericp char)) (find char "-._~!$&'()*+,;=:[]@"))
                 (write-char char text)
                 (format text "%~2,'0X" octet)))))

(defmethod initialize-instance :around ((resolver etcd-resolver) &rest arguments
                                        &key target name &allow-other-keys)
  (parse-etcd-target target)
  (apply #'call-next-method resolver :authority (authority-text name) arguments))

(defmethod client:start-resolver ((resolver etcd-resolver))
  (let ((place (or (target-authority (client:resolver-target resolver)) (default-etcd)))
        (name (client:resolver-name resolver)))
    (if place
        (setf (resolver-service-watcher resolver) (attach-resolver resolver place name))
        (client:push-failure resolver (format nil "which etcd? Set DEFAULT-ETCD, or name it: ~
                                                   etcd://HOST:PORT/~A" name)))))

(defmethod client:resolve-now ((resolver etcd-resolver))
  (unless (resolver-service-watcher resolver) (client:start-resolver resolver)))

(defmethod client:stop-resolver ((resolver etcd-resolver))
  (let ((service-watcher (shiftf (resolver-service-watcher resolver) nil)))
    (when service-watcher (detach-resolver resolver service-watcher))))
