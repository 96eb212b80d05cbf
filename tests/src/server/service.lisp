;;;; A service whose handlers are functions that a test gives, and a server of it with a channel to
;;;; it.

(in-package #:clgrpc.tests.server)

(defclass probe (lab:bench)
  ((ask :initarg :ask) (watch :initarg :watch) (collect :initarg :collect) (chat :initarg :chat)
   (peek :initarg :peek))
  (:documentation "A service whose handlers are the functions (request call) in its slots; a method
without one is not implemented."))

(macrolet ((define-handlers (&rest names)
             `(progn
                ,@(loop for name in names
                        for slot = (intern (string name) '#:clgrpc.tests.server)
                        collect `(defmethod ,name ((service probe) request &key call)
                                   (if (slot-boundp service ',slot)
                                       (funcall (slot-value service ',slot) request call)
                                       (call-next-method)))))))
  (define-handlers lab.bench:ask lab.bench:watch lab.bench:collect lab.bench:chat
    lab.bench:peek))

(defun make-probe (&rest handlers)
  "A service with HANDLERS, a plist from :ask, :watch, :collect, :chat and :peek to functions."
  (apply #'make-instance 'probe handlers))

(defmacro handling ((&optional (request nil request-p)) &body body)
  "A handler with the parameter REQUEST, a message or a stream, whose BODY does not use its call;
without the parameter BODY does not use the request either."
  (let ((parameter (if request-p request 'request)))
    `(lambda (,parameter call)
       (declare (ignore call ,@(unless request-p (list parameter))))
       ,@body)))

(defun start-probe (handlers &rest options)
  "Start a server of a probe with HANDLERS, and OPTIONS as for START-SERVER."
  (apply #'grpc:start-server (apply #'make-probe handlers) options))

(defmacro with-started ((server form &rest stop) &body body)
  "Evaluate BODY with SERVER the value of FORM, a running server, which is stopped at the end with
STOP, options of STOP-SERVER."
  `(let ((,server ,form))
     (unwind-protect (progn ,@body)
       (grpc:stop-server ,server ,@stop))))

(defun call-with-probe (function handlers server-options channel-options events)
  (call-with-log
   events
   (lambda ()
     (with-started (server (apply #'start-probe handlers server-options) :drain 5)
       (let ((channel (apply #'grpc:make-channel (grpc:server-address server)
                             channel-options)))
         (unwind-protect (funcall function channel server)
           (grpc:close-channel channel)))))))

(defmacro with-probe ((channel &key (server (gensym "SERVER")) options channel-options events)
                      (&rest handlers)
                      &body body)
  "Evaluate BODY with CHANNEL bound to a channel to SERVER, a server of a probe with HANDLERS, a
plist of forms. OPTIONS and CHANNEL-OPTIONS are forms for lists of options. The test fails if an
error other than EVENTS is logged."
  `(call-with-probe (lambda (,channel ,server)
                      (declare (ignorable ,channel ,server))
                      ,@body)
                    (list ,@handlers) ,options ,channel-options ',events))

;;; Stubs that never hang

(macrolet ((define-stubs (&rest names)
             `(progn
                ,@(loop for name in names
                        for stub = (find-symbol (string name) '#:lab.bench)
                        collect `(defun ,name (channel request &rest options
                                               &key (timeout +patience+) &allow-other-keys)
                                   (apply #',stub channel request :timeout timeout options))))))
  (define-stubs ask watch collect chat))

(defun ask-and-pass-on (channel note &rest options)
  "Call ASK in a handler whose caller must get the status of ASK's error."
  (handler-case (apply #'ask channel note options)
    (status:rpc-error (error) (grpc:fail (status:rpc-error-status error) nil))))

;;; Functions in observers

(defun check-calls-at (end place make-observer)
  "Check that two calls succeed over one connection if END, :server or :client, has the observer
that MAKE-OBSERVER returns. MAKE-OBSERVER gets a function that fails, which that observer must call.
PLACE is :wire or :image."
  (let* ((failures (list 0))
         (connections (list 0))
         (observer (funcall make-observer (fn (&rest _arguments)
                                            (sb-ext:atomic-incf (car failures))
                                            (error "it fails"))))
         (counting (grpc:make-observer :connection-begun
                                       (fn (_peer) (sb-ext:atomic-incf (car connections))))))
    (with-started (server (start-probe (list :ask (handling (note)
                                                    (note (1+ (number-of note)))))
                                       :listen (if (eq :wire place)
                                                   "127.0.0.1:0"
                                                   (format nil "inproc:~A" (gensym "OBSERVED")))
                                       :observer (if (eq :server end)
                                                     (list observer counting)
                                                     counting))
                   :drain 0)
      (grpc:with-channel (channel (grpc:server-address server)
                                  :observer (and (eq :client end) observer))
        (is (= 8 (number-of (ask channel (note 7)))))
        (is (= 9 (number-of (ask channel (note 8)))))
        (eventually (plusp (car failures)))
        (when (eq :wire place) (is (= 1 (car connections))))))))

(defun check-failing-function (end make-observer)
  "CHECK-CALLS-AT each place."
  (with-log (:observer-error)
    (check-calls-at end :wire make-observer)
    (check-calls-at end :image make-observer)))
