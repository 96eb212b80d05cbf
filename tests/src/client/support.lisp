;;;; Handlers that several files use, and functions by which tests observe a channel.

(in-package #:clgrpc.tests.client)

(defun cycles ()
  "How many connections the tests for leaks make; the promise is for CLGRPC_TLS_CYCLES=10000."
  (parse-integer (or (uiop:getenvp "CLGRPC_TLS_CYCLES") "100")))

(defun free-address ()
  "An address where nobody listens, as far as this can be known."
  (let ((server (start-probe '())))
    (prog1 (grpc:server-address server)
      (grpc:stop-server server :drain 0))))

(defun the-subchannel (channel)
  "The only subchannel of CHANNEL, which has been used."
  (first (client:core-subchannels (client::channel-core channel))))

(defun connection-set-of (subchannel)
  (client:subchannel-connection-set subchannel))

(defun speak (call number)
  "Send NUMBER on CALL, whose handler is ECHO, and receive it."
  (grpc:send call (note number))
  (is (eql number (number-of (grpc:receive call)))))

(defun give-links (channel count)
  "Give the only subchannel of CHANNEL, which is ready, COUNT links; return it."
  (let ((subchannel (the-subchannel channel)))
    (loop:post (client:core-loop (client:subchannel-core subchannel))
               (lambda () (client::widen (connection-set-of subchannel) count)))
    (wait-until (lambda ()
                  (= count (length (client::connection-set-links (connection-set-of subchannel))))))
    subchannel))

;;; Channels without sockets: a core on a loop that runs only when a test runs it, and a resolver
;;; whose answers a test determines.

(defclass puppet (client:resolver)
  ((answers :initarg :answers :initform nil :accessor puppet-answers)
   (asked :initform 0 :accessor puppet-asked)
   (ended :initform nil :accessor puppet-ended))
  (:documentation "A resolver that counts how often it is asked."))

(defmethod client:begin-resolving ((puppet puppet))
  (incf (puppet-asked puppet)))

(defmethod client:resolve-again ((puppet puppet))
  (incf (puppet-asked puppet)))

(defmethod client:end-resolving ((puppet puppet))
  (setf (puppet-ended puppet) t))

(defmethod client:answers-p ((puppet puppet))
  (puppet-answers puppet))

(defun call-with-core (policy answers options default function)
  "See WITH-CORE."
  (let* ((loop (loop:make-event-loop :name "nobody runs it"))
         (puppet (make-instance 'puppet :target "puppet:x" :name "x" :authority "x" :host "x"
                                        :answers answers))
         (core (client::new-core :name "puppet:x" :loop loop
                                 :resolution (client::make-resolution puppet)
                                 :options (apply #'make-channel-options options)
                                 :balancing (and policy (config:default-policy-config policy))
                                 :default-config (and default
                                                      (config:parse-service-config default))
                                 :receive-limit (getf options :max-receive-octets)
                                 :plaintext-credentials t
                                 :authority (hpack:string-field ":authority" "x"))))
    (setf (client::core-balancer core)
          (make-instance 'client:switch :parent core))
    (unwind-protect (funcall function core puppet)
      (client::shut-down core)
      (loop:stop-event-loop loop))))

(defmacro with-core ((core puppet policy &key answers options default) &body body)
  "Evaluate BODY with CORE and PUPPET bound. CORE is a channel's core that balances by POLICY, if
that is not nil, and has OPTIONS and the DEFAULT service config. PUPPET is its resolver, which
ANSWERS each question, or pushes at any time."
  `(call-with-core ,policy ,answers ,(if (symbolp options) options `(list ,@options)) ,default
                   (lambda (,core ,puppet)
                     (declare (ignorable ,puppet))
                     ,@body)))

(defun tell-backends (puppet &rest items)
  "Let PUPPET publish the backends that ITEMS represent."
  (client:deliver puppet (mapcar #'client::parse-backend items) nil))

(defun run-loop-of (core)
  "Run the functions that were posted to CORE's loop."
  (let ((loop (client:core-loop core)))
    (loop::with-taken-loop (loop (loop::take loop))
      (unwind-protect (loop::run-turn loop)
        (loop::hand-over loop)))))

(defun open-breaker-of (subchannel)
  "Open the breaker of SUBCHANNEL; make it first if needed."
  (client::open-breaker (client::ensure-breaker subchannel)
                        (client::core-now (client:subchannel-core subchannel))))

(defun subchannel-to (core address)
  "The subchannel of CORE whose addresses are ADDRESS, text."
  (find address (client:core-subchannels core) :key #'client:server-text :test #'string=))
