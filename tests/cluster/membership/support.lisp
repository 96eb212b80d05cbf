;;;; What the tests of clusters share.

(in-package #:clgrpc.tests.cluster)

(defun member-of (name &rest arguments &key (address "127.0.0.1:1") &allow-other-keys)
  (apply #'make-cluster-member :name name :address address arguments))

(defun told-changes (changes)
  "CHANGES as lists (kind name generation)."
  (loop for change in changes
        for member = (change-member change)
        collect (list (change-kind change) (member-name member) (member-generation member))))

(defun names (members)
  (mapcar #'member-name members))

(defmacro with-memory (() &body body)
  "Evaluate BODY with *ETCD* a client of a store in memory."
  `(let ((*etcd* (open-store "memory")))
     (unwind-protect (progn ,@body)
       (etcd:close-etcd *etcd*))))

(defun call-with-engine-at (function port)
  "Call FUNCTION while a new engine in memory serves at PORT of the loopback."
  (let* ((engine (memory:make-engine))
         (server (grpc:start-server engine :listen (format nil "127.0.0.1:~D" port))))
    (unwind-protect (funcall function)
      (grpc:stop-server server :drain 0)
      (memory:close-engine engine))))

(defmacro with-engine-at ((port) &body body)
  `(call-with-engine-at (lambda () ,@body) ,port))

(defun make-open-service (&rest arguments)
  "A cluster service on *ETCD*, made with ARGUMENTS, at which anybody may join."
  (apply #'make-cluster-service *etcd*
         :allow '((:join . "anyone") (:read . "anyone")) arguments))

(defmacro with-service ((channel &rest arguments) &body body)
  "Evaluate BODY with CHANNEL to a server of a cluster service on *ETCD*, made with ARGUMENTS."
  (let ((service (gensym)) (server (gensym)))
    `(let* ((,service (make-open-service ,@arguments))
            (,server (grpc:start-server ,service)))
       (unwind-protect
            (grpc:with-channel (,channel (grpc:server-address ,server)) ,@body)
         (grpc:stop-server ,server :drain 1)
         (close-cluster-service ,service)))))

(defun join (channel name &rest arguments)
  "Join as NAME; return the member, a message, and the revision."
  (let ((response (methods:join channel
                                (apply #'pb:make-join-request :name name
                                       :address "127.0.0.1:1" arguments)
                                :timeout +patience+)))
    (values (pb:join-response-member response) (pb:join-response-revision response))))

(defun leave (channel name generation)
  (pb:leave-response-left
   (methods:leave channel (pb:make-leave-request :name name :generation generation)
                  :timeout +patience+)))

(defun watch-members (channel &optional (revision 0))
  (methods:watch channel (pb:make-watch-request :revision revision) :timeout +patience+))

(defun told (response)
  "RESPONSE of Watch as a list: :members and their names, or (kind name generation) for each
change."
  (if (pb:watch-response-snapshot response)
      (cons :members (map 'list #'pb:member-name (pb:watch-response-members response)))
      (map 'list (lambda (change)
                   (let ((member (pb:change-member change)))
                     (list (pb:change-kind change) (pb:member-name member)
                           (pb:member-generation member))))
           (pb:watch-response-changes response))))

(defun next-told (call)
  (told (grpc:receive call)))
