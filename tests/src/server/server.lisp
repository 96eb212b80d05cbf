;;;; The life of a server: addresses, refused arguments, drain, redefinition while serving.

(in-package #:clgrpc.tests.server)

(defun open-descriptors () (os:open-descriptor-count))

(defun our-threads ()
  (count-if (lambda (thread) (search "clgrpc" (or (sb-thread:thread-name thread) "")))
            (sb-thread:list-all-threads)))

;;; Starting

(test start-and-stop
  "An address, statistics, a printed line; a second stop has no effect."
  (let ((server (start-probe '())))
    (is (grpc:server-running-p server))
    (is (uiop:string-prefix-p "127.0.0.1:" (grpc:server-address server)))
    (is (equal (list (grpc:server-address server)) (grpc:server-addresses server)))
    (is (search "serving" (princ-to-string server)))
    (is (equal '(:calls 0 :connections 0)
               (loop for (key value) on (grpc:server-statistics server) by #'cddr
                     unless (eq key :turns) append (list key value))))
    (is-true (grpc:stop-server server))
    (is-true (grpc:stop-server server))
    (is (not (grpc:server-running-p server)))
    (is (search "stopped" (princ-to-string server)))))

(test several-addresses
  "IPv4, IPv6, a name; all serve."
  (with-started (server (start-probe (list :ask #'double)
                                     :listen '("127.0.0.1:0" "[::1]:0" "localhost:0")))
    (is (= 3 (length (grpc:server-addresses server))))
    (is (uiop:string-prefix-p "[::1]:" (second (grpc:server-addresses server))))
    (dolist (address (grpc:server-addresses server))
      (grpc:with-channel (channel address)
        (is (= 2 (number-of (ask channel (note 1)))))))))

(test another-object-is-not-a-server
  (signals grpc:misuse (grpc:stop-server nil))
  (signals grpc:misuse (grpc:stop-server "localhost:1" :drain 0))
  (signals grpc:misuse (grpc:call-before-stop nil #'list))
  (dolist (function '(grpc:server-address grpc:server-addresses grpc:server-running-p
                      grpc:server-statistics grpc:server-service-names))
    (is (search "\"localhost:1\" is not a server, such as the value of START-SERVER."
                (handler-case (progn (funcall function "localhost:1") "")
                  (grpc:misuse (error) (princ-to-string error))))
        "~S" function)))

(test drain-is-a-number-of-seconds
  (let ((server (start-probe '())))
    (signals grpc:misuse (grpc:stop-server server :drain :no))
    (signals grpc:misuse (grpc:stop-server server :drain -1))
    (signals grpc:misuse (grpc:call-before-stop server (lambda () nil)))
    (is (grpc:server-running-p server))
    (grpc:stop-server server)))

(test services-without-handlers-are-told
  "At each start the log has the service, its class, and a generic function with such handlers,
once; nothing is logged of a service with a handler."
  (with-log ()
    (grpc:stop-server (grpc:start-server (make-instance 'lab:bench)))
    (let ((events (events-of :service-without-handlers)))
      (is (= 1 (length events)))
      (destructuring-bind (&key service class reason) (first events)
        (is (equal "lab.Bench" service))
        (is (eq 'lab:bench class))
        (is (search "LAB.BENCH:" reason)))))
  (with-log ()
    (grpc:stop-server (start-probe '()))
    (grpc:stop-server (grpc:start-server (grpc:make-generic-service #'list)))
    (is (null (events-of :service-without-handlers)))))

(test refused-when-starting
  "Wrong arguments are misuse, an address in use is a socket error; nothing is left behind."
  (let ((descriptors (open-descriptors)) (threads (our-threads)))
    (signals grpc:misuse (start-probe '() :loops 0))
    (signals grpc:misuse (start-probe '() :loops 1.5))
    (signals grpc:misuse (start-probe '() :no-such-option 5))
    (signals grpc:misuse (start-probe '() :max-receive-octets -1))
    (signals grpc:misuse (start-probe '() :execution :never))
    (signals grpc:misuse (grpc:start-server 'probe))
    (signals grpc:misuse (grpc:start-server (list (make-probe) "x")))
    (signals grpc:misuse (grpc:start-server (list (make-probe) (make-probe))))
    (signals grpc:misuse (start-probe '() :listen "nonsense"))
    (is (search "an address is the value of :LISTEN"
                (handler-case (apply #'grpc:start-server (make-probe)
                                     (copy-list '("127.0.0.1:0")))
                  (grpc:misuse (error) (princ-to-string error)))))
    (signals grpc:misuse (start-probe '() :listen '()))
    (let ((server (start-probe '())))
      (signals loop:socket-error (start-probe '() :listen (list "127.0.0.1:0"
                                                                (grpc:server-address server))))
      (grpc:stop-server server))
    (eventually (= threads (our-threads)))
    (eventually (= descriptors (open-descriptors)))))

(loop:register-scheme "left" :listen (fn (_server _address) (throw 'left :left)))

(test a-start-that-is-left-leaves-nothing-behind
  "An interrupt comes while a name is looked up: the loops and the first address are given up."
  (let ((descriptors (open-descriptors)) (threads (our-threads))
        (servers (registered server:**servers**)))
    (is (eq :left (catch 'left (start-probe '() :listen '("127.0.0.1:0" "left:x") :loops 2))))
    (is (null (set-difference (registered server:**servers**) servers)))
    (eventually (= threads (our-threads)))
    (eventually (= descriptors (open-descriptors)))))

;;; Stopping

(test drain-lets-calls-end
  "Running calls finish; then the server stops at once, long before the time is up."
  (let ((running (make-signal)) (go-on (make-signal)) (stopped nil))
    (with-probe (channel :server server)
        (:ask (double-when running go-on)
         :chat (lambda (stream call) (signal-it running) (echo stream call)))
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 4) :timeout 20))
            (chat (chat channel :open)))
        (is (await-signal running :count 2))
        (let* ((stopper (in-thread (grpc:stop-server server :drain 20)))
               (seconds (elapsed-seconds
                          (eventually (not (grpc:server-running-p server)))
                          (grpc:send chat (note 1))
                          (is (= 1 (number-of (grpc:receive chat))))
                          ;; new calls fail once the client has got the GOAWAY
                          (eventually (not (eq :ready (grpc:channel-state channel))))
                          (let ((error (caught (ask channel (note 1) :timeout 5))))
                            (is (typep error 'grpc:unavailable))
                            (is (not (grpc:rpc-error-sent-p error))))
                          (signal-it go-on)
                          (is (= 8 (number-of (grpc:await future))))
                          (grpc:close-send chat)
                          (is (null (grpc:receive chat)))
                          (setf stopped (sb-thread:join-thread stopper :timeout 20)))))
          (is-true stopped)
          (is (< seconds 5)))))))

(test drain-ends-what-does-not-end
  "After the time calls end with :unavailable at both ends, and the server stops."
  (let ((running (make-signal)) (seen (make-signal)))
    (with-probe (channel :server server)
        (:chat (handling (stream)
                 (signal-it running)
                 (handler-bind ((grpc:rpc-error (fn (_error) (signal-it seen))))
                   (grpc:receive stream)))
         :watch (fn (_note call)
                  (grpc:on-cancel call (lambda () (signal-it seen)))
                  (signal-it running)
                  call))
      (let ((chat (chat channel :open)) (watch (watch channel (note 1))))
        (is (await-signal running :count 2))
        (let ((seconds (elapsed-seconds
                         (is (not (grpc:stop-server server :drain 0.2))))))
          (is (<= 0.19 seconds 10)))
        (is (typep (caught (grpc:receive chat)) 'grpc:unavailable))
        (is (typep (caught (grpc:receive watch)) 'grpc:unavailable))
        (is (await-signal seen :count 2))))))

(test drain-of-idle-connections
  "Peers without calls do not hold up the stop."
  (with-probe (channel :server server) (:ask #'double)
    (ask channel (note 1))
    (with-raw-client (peer (grpc:server-address server))
      (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))
      (let* ((stopper (in-thread (grpc:stop-server server :drain 20)))
             (seconds (elapsed-seconds
                        (await-peer peer (lambda () (peer-closed peer)))
                        (is-true (sb-thread:join-thread stopper :timeout 20)))))
        (is (< seconds 10))
        (is (eql http2:+no-error+ (second (peer-goaway peer))))))))

(test a-drained-connection-leaves-no-timer
  (with-probe (channel :server server) (:ask #'double)
    (ask channel (note 1))
    (let ((server-loops (server:server-loops server)))
      (is-true (grpc:stop-server server))
      (dolist (server-loop server-loops)
        (is
         (zerop (wheel-count (loop:event-loop-wheel (server:server-loop-loop server-loop)))))))))

(test drain-takes-what-is-on-its-way
  "A request that was sent before the GOAWAY arrived is still served."
  (with-probe (channel :server server) (:ask #'double :chat #'echo)
    (with-raw-client (peer (grpc:server-address server))
      (let* ((chat (send-request peer "/lab.Bench/Chat" :data (note-octets 1) :end nil))
             (stopper (progn
                        (await-peer peer (lambda () (plusp (length (exchange-data-octets chat)))))
                        (in-thread (grpc:stop-server server :drain 20))))
             (late nil))
        (eventually (not (grpc:server-running-p server)))
        ;; the peer has not read the GOAWAY
        (setf late (send-request peer "/lab.Bench/Ask" :data (note-octets 5)))
        (http2:send-data (exchange-stream chat) (make-octets 0) 0 0 t)
        (is (equalp (note-octets 10) (exchange-data-octets (await-answer peer late))))
        (is (eq :ok (status-of (await-answer peer chat))))
        (await-peer peer (lambda () (peer-closed peer)))
        (is-true (sb-thread:join-thread stopper :timeout 20))))))

(test drain-of-a-peer-that-does-not-answer
  "A peer that reads nothing and has no calls delays the stop only a moment."
  (with-probe (channel :server server) (:ask #'double)
    (with-raw-client (peer (grpc:server-address server))
      (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))
      (is (< (elapsed-seconds (grpc:stop-server server :drain 20)) 10)))))

(test a-stop-that-cuts-no-call-off-is-true
  "However short its time is: a peer that has not answered yet, or is in its handshake, has no
call."
  (with-probe (channel :server server) (:ask #'double)
    (with-raw-client (peer (grpc:server-address server))
      (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))
      (is (eq t (grpc:stop-server server :drain 0)))))
  (with-started (server (start-probe (list :ask #'double) :credentials (certified "server")))
    (with-plain-socket (socket (grpc:server-address server))
      (say-text socket (string (code-char 22)))
      (eventually (server-links server))
      (is (eq t (grpc:stop-server server :drain 0.1))))))

(test stop-with-a-handler-that-hangs
  "The stop returns nevertheless, and the handler's thread ends when the handler does."
  (let ((running (make-signal)) (go-on (make-signal)) (threads (our-threads)))
    (with-probe (channel :server server)
        (:ask (double-when running go-on))
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
        (is (await-signal running))
        (is (< (elapsed-seconds (is (not (grpc:stop-server server :drain 0)))) 5))
        (is (typep (caught (grpc:await future)) 'grpc:unavailable))
        (signal-it go-on)))
    (eventually (= threads (our-threads)))))

(test stop-from-several-threads
  (with-probe (channel :server server) (:ask #'double)
    (ask channel (note 1))
    (is (equal '(t t t t) (with-threads (i 4) (grpc:stop-server server :drain 5))))))

;;; Redefinition while serving. The class and its methods are made anew by each test.

(defmacro with-live-service ((channel form &rest options) &body body)
  "Evaluate BODY with a server of the service that FORM makes."
  (let ((server (gensym "SERVER")))
    `(let ((,server (grpc:start-server ,form ,@options)))
       (unwind-protect (grpc:with-channel (,channel (grpc:server-address ,server)) ,@body)
         (grpc:stop-server ,server)))))

(defun evaluate (form)
  "EVAL without the notices about redefinitions."
  (handler-bind ((warning #'muffle-warning))
    (eval form)))

(defun define-answer (class number)
  "Let instances of CLASS answer NUMBER, by a definition as at the REPL."
  (evaluate `(defmethod lab.bench:ask ((service ,class) request &key)
               (declare (ignore request))
               (lab:make-note :number ,number))))

(defun forget-method (class &rest qualifiers)
  (remove-method #'lab.bench:ask
                 (find-method #'lab.bench:ask qualifiers (list (find-class class) (find-class t)))))

(test redefinition
  "Methods that are replaced, wrapped, inherited and removed take effect at the next call."
  (eval '(progn (defclass live-base (lab:bench) ())
                (defclass live-mixin () ())
                (defclass live (live-base) ())))
  (dolist (execution '(:inline :blocking))
    (with-live-service (channel (make-instance 'live) :execution execution)
      (flet ((answer () (number-of (ask channel (note 0)))))
        (is (typep (caught (answer)) 'grpc:unimplemented))
        (define-answer 'live-base 1)
        (is (= 1 (answer)))
        (define-answer 'live 2)
        (is (= 2 (answer)))
        (define-answer 'live 3)
        (is (= 3 (answer)))
        (evaluate '(defmethod lab.bench:ask :around ((service live-base) request &key)
                    (declare (ignore request))
                    (let ((reply (call-next-method)))
                      (incf (lab:note-number reply) 100)
                      reply)))
        (is (= 103 (answer)))
        (evaluate '(defmethod lab.bench:ask ((service live) request &key call)
                    (declare (ignore request))
                    (lab:make-note :number (+ 10 (number-of (call-next-method))
                                              (if (typep call 'grpc:call) 0 1000)))))
        (is (= 111 (answer)))
        (forget-method 'live)
        (is (= 101 (answer)))
        (forget-method 'live-base :around)
        (is (= 1 (answer)))
        (forget-method 'live-base)
        (is (typep (caught (answer)) 'grpc:unimplemented))))))

(test routes-that-cannot-be-made-are-not-renewed
  "The reason is logged, and the old routes stay."
  (with-started (server (start-probe (list :ask #'double)) :drain 5)
    (with-logged (events)
      (with-replaced (('clgrpc.server::make-routes (lambda (&rest arguments)
                                                     (declare (ignore arguments))
                                                     (error "no routes"))))
        (clgrpc.server::renew-routes server))
      (destructuring-bind (level name . plist) (first (events))
        (is (equal (list :error :services-not-renewed server)
                   (list level name (getf plist :server))))
        (is (string= "no routes" (princ-to-string (getf plist :condition))))))
    (grpc:with-channel (channel (grpc:server-address server))
      (is (= 4 (number-of (ask channel (note 2))))))))

(test redefined-hierarchy
  "A class that gets another superclass inherits from it at the next call."
  (eval '(progn (defclass live-other (lab:bench) ())
                (defclass live-leaf (live-base) ())))
  (define-answer 'live-base 1)
  (define-answer 'live-other 2)
  (with-live-service (channel (make-instance 'live-leaf))
    (flet ((answer () (number-of (ask channel (note 0)))))
      (is (= 1 (answer)))
      (eval '(defclass live-leaf (live-other) ()))
      (is (= 2 (answer)))
      (eval '(defclass live-leaf (live-base live-other) ()))
      (is (= 1 (answer)))))
  (forget-method 'live-base)
  (forget-method 'live-other))

(test handler-of-the-stream
  "A handler may specialise its parameter for the stream of requests on CALL."
  (evaluate '(progn
              (defclass live-stream (lab:bench) ())
              (defmethod lab.bench:collect ((service live-stream) (stream grpc:call) &key)
                (lab:make-note :number (length (numbers stream))))
              (defmethod lab.bench:ask ((service live-stream) (note lab:note) &key)
                note)))
  (with-live-service (channel (make-instance 'live-stream))
    (is (= 2 (number-of (collect channel (list (note 7) (note 8))))))
    (is (= 5 (number-of (ask channel (note 5)))))))

(defun eval-text (text)
  (let ((*package* (find-package '#:clgrpc.tests.server)))
    (evaluate (read-from-string text))))

(defun define-thing (fields)
  "Define the message live.Thing with FIELDS, and its service, again."
  (evaluate `(clgrpc:define-proto "live.proto"
               :source ,(format nil "syntax = \"proto3\"; package live; message Thing { ~A }
                                     service Things { rpc Turn(Thing) returns (Thing); }" fields))))

(test redefined-messages
  "A message gets another field while a server runs: old messages and new ones work."
  (define-thing "int32 a = 1;")
  ;; as text, since the package comes to be only now
  (eval-text "(defclass things (live:things) ())")
  (eval-text "(defmethod live.things:turn ((service things) thing &key) thing)")
  (with-live-service (channel (make-instance 'things))
    (flet ((turn (thing) (uiop:symbol-call '#:live.things '#:turn channel thing :timeout 20))
           (make (&rest arguments) (apply #'uiop:symbol-call '#:live '#:make-thing arguments))
           (value (name thing) (uiop:symbol-call '#:live name thing)))
      (let ((old (make :a 5)))
        (is (= 5 (value '#:thing-a (turn old))))
        (define-thing "int32 a = 1; string b = 2;")
        (is (= 5 (value '#:thing-a (turn old))))
        (let ((new (turn (make :a 6 :b "six"))))
          (is (= 6 (value '#:thing-a new)))
          (is (string= "six" (value '#:thing-b new))))
        (is (string= "" (value '#:thing-b (turn old))))))))
