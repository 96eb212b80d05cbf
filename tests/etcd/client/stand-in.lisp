;;;; A store that a test can have fail as it likes: it stands in for etcd within the image, answers
;;;; as the engine in memory does, and calls the test's hook before each answer. So what a break, a
;;;; lost answer or another store behind the same address does is tested at once, each time alike.

(in-package #:clgrpc.tests.etcd)

(defclass stand-in (pb:kv pb:lease pb:watch pb:auth)
  ((engine :initarg :engine :accessor stand-in-engine) ; that answers
   ;; of the RPC's name, the request, or of a stream the call, and the function that answers; or nil
   (hook :initform nil :accessor stand-in-hook)
   (streams :initform '() :accessor stand-in-streams)) ; the calls of Watch, the newest first
  (:documentation "A store for tests, see WITH-STAND-IN."))

(defun pass-on (store name request function)
  "What the hook of STORE makes of REQUEST of the RPC NAME, which FUNCTION answers."
  (if (stand-in-hook store)
      (funcall (stand-in-hook store) name request function)
      (funcall function)))

(macrolet ((define-unary (&rest names)
             `(progn
                ,@(loop for name in names
                        collect `(defmethod ,name ((store stand-in) request &key)
                                   (pass-on store ,(intern (symbol-name name) '#:keyword) request
                                            (lambda ()
                                              (,name (stand-in-engine store) request))))))))
  (define-unary kv:range kv:put kv:delete-range kv:txn kv:compact
    leases:lease-grant leases:lease-revoke leases:lease-time-to-live leases:lease-leases))

(defmethod auth:authenticate ((store stand-in) request &key)
  (pass-on store :authenticate request
           (lambda () (pb:make-authenticate-response :token "token"))))

(defmethod leases:lease-keep-alive ((store stand-in) requests &key call)
  (pass-on store :lease-keep-alive call
           (lambda () (leases:lease-keep-alive (stand-in-engine store) requests :call call))))

(defmethod watches:watch ((store stand-in) requests &key call)
  (push call (stand-in-streams store))
  (pass-on store :watch call
           (lambda () (watches:watch (stand-in-engine store) requests :call call))))

(defun silent-call (call)
  "Have CALL, a stream of the store, wait for an answer for ever."
  (rpc:on-message call #'identity)
  call)

(defun break-streams (store)
  "Break the watches of STORE, as a connection that is lost does."
  (dolist (call (shiftf (stand-in-streams store) '()))
    (rpc:finish call :status :unavailable :message "broken by the test")))

(defun new-engine ()
  (let ((base:*log-function* nil)) (memory:make-engine)))

(defun call-with-stand-in (function options)
  (let ((store (make-instance 'stand-in :engine (new-engine))))
    (flet ((connect (&rest options)
             (apply #'etcd:make-etcd nil :channel (inproc:service-channel store) options)))
      (unwind-protect
           (let ((*etcd* (apply #'connect options)) (other (connect)))
             (unwind-protect (funcall function store other)
               (etcd:close-etcd *etcd*)
               (etcd:close-etcd other)))
        (memory:close-engine (stand-in-engine store))))))

(defmacro with-stand-in ((store other &rest options) &body body)
  "Evaluate BODY with STORE a STAND-IN, *ETCD* a client of it that has OPTIONS, and OTHER another
one."
  `(call-with-stand-in (lambda (,store ,other)
                         (declare (ignorable ,store ,other))
                         ,@body)
                       (list ,@options)))

(defmacro with-hook ((store name request next) &body body)
  "Have BODY answer what STORE is asked for from now on, see STAND-IN-HOOK."
  `(setf (stand-in-hook ,store) (lambda (,name ,request ,next)
                                  (declare (ignorable ,name ,request))
                                  (flet ((,next () (funcall ,next))) ,@body))))

(defun replace-store (store function)
  "Put an engine that FUNCTION has filled, called with a client of it, in the place of that of
STORE, whose watches break."
  (let ((engine (new-engine)))
    (let ((etcd (memory:connect engine)))
      (funcall function etcd)
      (etcd:close-etcd etcd))
    (memory:close-engine (shiftf (stand-in-engine store) engine))))

(defmacro seconds-of (form)
  "How long FORM takes."
  `(let ((began (base:monotonic-ns)))
     ,form
     (base:ns-seconds (- (base:monotonic-ns) began))))
