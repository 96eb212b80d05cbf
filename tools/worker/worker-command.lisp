;;;; The command `qps-worker` serves grpc.testing.WorkerService, by which the driver of gRPC's
;;;; benchmarks uses this process as a client or a server.

(in-package #:clgrpc.tools)

(defclass worker-service (testing:worker-service)
  ((host :initarg :host :reader worker-host :documentation "The host on which the worker's servers
listen.")
   (server-port :initarg :server-port :initform 0 :reader worker-server-port
                :documentation "The port of these servers if the driver names none; 0 for a free
one.")
   (server-credentials :initarg :server-credentials :initform nil
                       :reader worker-server-credentials
                       :documentation "The credentials of these servers if the driver requests
TLS.")
   (client-credentials :initarg :client-credentials :initform nil
                       :reader worker-client-credentials
                       :documentation "The credentials of the worker's clients if the driver
requests TLS.")
   (quit :initarg :quit :initform (constantly nil) :reader worker-quit
         :documentation "A function without arguments that ends the process."))
  (:documentation "A worker of gRPC's benchmarks."))

(defun credentials-wanted (wanted credentials)
  "CREDENTIALS if WANTED, a SecurityParams or nil, is given, else nil. Fail the call if they are
wanted but nil."
  (when wanted
    (or credentials
        (grpc:fail :failed-precondition
                   "This worker was started without certificates, so it cannot use TLS."))))

(defun answer-driver (call arguments start report stop)
  "Answer each message of CALL; ARGUMENTS is a plist of its readers. The setup is passed to START,
which returns the object that does the work. Each mark is answered with the value of REPORT for that
object. STOP ends the server or client."
  (let ((worker nil))
    (unwind-protect
         (grpc:do-messages (message call)
           (let ((setup (funcall (getf arguments :setup) message))
                 (mark (funcall (getf arguments :mark) message)))
             (cond (setup
                    (when worker (funcall stop (shiftf worker nil)))
                    (setf worker (funcall start setup)))
                   ((not (and mark worker))
                    (grpc:fail :invalid-argument "No setup has come before this message.")))
             (grpc:send call (funcall report worker
                                      (and mark (testing:mark-reset mark))))))
      (when worker (funcall stop worker)))))

(defmethod grpc.testing.worker-service:run-client ((service worker-service) call &key)
  (answer-driver call '(:setup testing:client-args-setup :mark testing:client-args-mark)
                 (lambda (config)
                   (start-load-client config
                                      (credentials-wanted
                                       (testing:client-config-security-params config)
                                       (worker-client-credentials service))))
                 (lambda (client reset)
                   (testing:make-client-status :stats (client-stats client reset)))
                 #'stop-load-client))

(defstruct (load-server (:copier nil))
  "The server of a worker."
  (server nil :type grpc:server :read-only t) ; the server that serves BenchmarkService
  (begin (read-clocks) :type clock-reading)) ; the time since which it counts

(defun start-load-server (service config)
  "A LOAD-SERVER with the settings of CONFIG, a ServerConfig."
  (let ((payload (testing:server-config-payload-config config))
        (port (testing:server-config-port config))
        (loops (testing:server-config-async-server-threads config)))
    (when (and payload (not (testing:payload-config-simple-params payload)))
      (grpc:fail :unimplemented "Only payloads of simple_params can be served."))
    (make-load-server
     :server (grpc:start-server (list (make-instance 'bench-service))
                                :listen (format nil "~A:~D" (worker-host service)
                                                (if (zerop port)
                                                    (worker-server-port service)
                                                    port))
                                :loops (if (<= 1 loops 64) loops 1)
                                :execution :inline
                                :credentials (credentials-wanted
                                              (testing:server-config-security-params config)
                                              (worker-server-credentials service))))))

(defun server-status (worker reset)
  "The ServerStatus of WORKER, a LOAD-SERVER, since its last reset; if RESET is true, reset it now."
  (let* ((now (read-clocks)) (begin (load-server-begin worker))
         (address (grpc:server-address (load-server-server worker))))
    (when reset (setf (load-server-begin worker) now))
    (testing:make-server-status
     :stats (apply #'testing:make-server-stats
                   :total-cpu-time (- (reading-total-ticks now) (reading-total-ticks begin))
                   :idle-cpu-time (- (reading-idle-ticks now) (reading-idle-ticks begin))
                   (times-since begin now))
     :port (parse-integer address :start (1+ (position #\: address :from-end t)))
     :cores (os:processor-count))))

(defmethod grpc.testing.worker-service:run-server ((service worker-service) call &key)
  (answer-driver call '(:setup testing:server-args-setup :mark testing:server-args-mark)
                 (lambda (config) (start-load-server service config))
                 #'server-status
                 (lambda (worker) (grpc:stop-server (load-server-server worker) :drain 0))))

(defmethod grpc.testing.worker-service:core-count ((service worker-service) request &key)
  (declare (ignore request))
  (testing:make-core-response :cores (os:processor-count)))

(defmethod grpc.testing.worker-service:quit-worker ((service worker-service) request &key)
  (declare (ignore request))
  (funcall (worker-quit service))
  (testing:make-void))

(defun end-this-process ()
  "End this process as SIGTERM does, which lets running calls end."
  (sb-unix:unix-kill (sb-unix:unix-getpid) os:+sigterm+))

(defun parse-host-and-port (string)
  "STRING, an address, which must have a port, since the servers of a worker have other ports on its
host."
  (funcall (address-parser 0) string)
  (when (uiop:string-prefix-p "unix" string)
    (refuse "a host and a port are wanted, not ~S: servers listen on the same host" string))
  string)

(define-command "qps-worker"
    (()
     ((listen "HOST:PORT" #'parse-host-and-port "127.0.0.1:10000"
              "The address at which the driver finds this worker; the worker's servers listen
      on the same host.")
      (server-port "PORT" (integer-parser 0 65535) 0
                   "The port of the worker's servers, if the driver does not name one; 0 picks
      a free port.")
      (tls-cert "FILE" #'identity nil
                "The certificates (PEM) of the worker's servers, if the driver wants TLS.")
      (tls-key "FILE" #'identity nil
               "The private key of --tls-cert; by default the key is in the same file.")
      (tls-ca "FILE" #'identity nil
              "The certificates, in FILE, that the worker's clients trust if the driver wants TLS.")
      (tls-name "NAME" #'identity nil "The name that the server's certificate must be for.")))
    "Serve grpc.testing.WorkerService, so that the driver of gRPC's benchmarks, or `clgrpc load
--workers`, can use this process as the client or the server of a measurement. It makes unary calls,
in a closed loop or at random times, and round trips in streams, with payloads of messages. Prints
`listening on ADDRESS` when ready; QuitWorker, SIGTERM or SIGINT end it with 0."
  (tune-collector)
  (let* ((server (grpc:start-server
                  (list (make-instance
                         'worker-service
                         :host (subseq listen 0 (position #\: listen :from-end t))
                         :server-port server-port
                         :server-credentials (program:server-credentials tls-cert tls-key '() nil)
                         :client-credentials (client-credentials tls-ca nil nil tls-name)
                         :quit #'end-this-process))
                  :listen listen)))
    (serve-until-told server))
  0)
