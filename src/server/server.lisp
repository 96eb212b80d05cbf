;;;; The server object: its loops, listeners and connections, from START-SERVER to STOP-SERVER,
;;;; which always returns. Stopping drains: no new connections, GOAWAY to the peers, running calls
;;;; may end within the time given, and the rest end with :unavailable.
;;;;
;;;; Each loop of a server has a SERVER-LOOP, the owner of the loop's links; only that loop uses it,
;;;; so nothing here needs a lock except the wait for the drain.

(in-package #:clgrpc.server)

(defmethod initialize-instance :after ((server wire-server) &key options)
  (setf (server-refusals server) (make-refusals)
        (server-admission server) (make-admission options (options-max-connections options)))
  (bound-account server))

(define-printer (server wire-server)
  "~(~A~)~{ ~A~} ~{~(~A~)~^ ~}" (server-state server) (server-addresses server)
  (mapcar (lambda (service) (class-name (class-of service))) (server-services server)))

(defun note-server-event (server text &rest arguments)
  "Add an event of SERVER to its channelz trace: TEXT, a control string, with ARGUMENTS."
  (note-channel-event (server-channel-trace server) (loop:world-now)
                      (apply #'format nil text arguments)))

(defun checked-server (thing)
  "THING. Signal MISUSE unless THING is a server."
  (if (typep thing 'server)
      thing
      (misuse "~S is not a server, such as the value of START-SERVER." thing)))

(defun server-addresses (server)
  "The addresses SERVER listens on, a list of strings such as \"HOST:PORT\" or \"unix:PATH\", each
usable by a client. Signal MISUSE unless SERVER is a server. From any thread."
  (checked-server server)
  (append (mapcar #'loop:listener-address (server-listeners server))
          (values (acceptor-state server))))

(defun server-address (server)
  "The first address SERVER listens on, a string as in SERVER-ADDRESSES. Signal MISUSE unless
SERVER is a server. From any thread."
  (first (server-addresses server)))

(defun server-running-p (server)
  "True while SERVER accepts calls. Signal MISUSE unless SERVER is a server. From any thread."
  (eq :serving (server-state (checked-server server))))

(defun server-statistics (server)
  "Return a plist of counts since SERVER started: :calls that ended, :turns of its loops,
:connections open now. The counts are read while they change. From any thread."
  (let ((server-loops (server-loops (checked-server server))))
    (list :calls (+ (reduce #'+ server-loops :key #'server-loop-calls)
                    (nth-value 2 (acceptor-state server)))
          :turns (reduce #'+ server-loops
                         :key (lambda (server-loop)
                                (loop:event-loop-turns (server-loop-loop server-loop))))
          :connections (reduce #'+ server-loops :key #'server-loop-link-count))))

;;; Notifications of services

(defgeneric note-server-started (service server)
  (:documentation "Called for each service of SERVER once it listens, before START-SERVER returns,
on its thread. Users may define methods for their service classes; by default nothing happens.")
  (:method (service server) (declare (ignore service server))))

(defgeneric note-server-stopping (service server)
  (:documentation "Called for each service of SERVER by STOP-SERVER, before the calls under way are
given time to end, on its thread. Users may define methods for their service classes; by default
nothing happens. A method ends calls that would not end by themselves. A method must not wait.")
  (:method (service server) (declare (ignore service server))))

(defgeneric min-ping-seconds (service)
  (:documentation "The minimum interval, in seconds, between PINGs of a client of SERVICE. Nil, the
default, leaves that to the server's option :min-ping-interval-seconds. The shortest interval of all
services of a server counts. Define a method for a service whose clients must soon detect that a
server hangs. Called by START-SERVER on its thread.")
  (:method (service) (declare (ignore service)) nil))

(defun allow-pings (options services)
  "Change OPTIONS, those of a server with SERVICES, so that they allow the PINGs that any of these
services allows; return OPTIONS."
  (dolist (service services options)
    (let ((seconds (min-ping-seconds service)))
      (when seconds
        (setf (options-min-ping-interval-seconds options)
              (min seconds (options-min-ping-interval-seconds options)))))))

(defun server-service-names (server)
  "The full names of the services that SERVER serves, such as \"helloworld.Greeter\", a list without
duplicates. From any thread."
  (remove-duplicates (loop for service in (server-services (checked-server server))
                           append (mapcar #'method:rpc-method-service-name
                                          (method:service-methods service)))
                     :test #'string= :from-end t))

(defun tell-services (function server)
  "Call FUNCTION with two arguments, a service of SERVER and SERVER, for each service; log errors."
  (dolist (service (server-services server))
    (handler-case (funcall function service server)
      (error (error) (log-event :error :service-error :service service :condition error)))))

;;; Starting

(define-keyword-function
    (start-server
     :hint "an address is the value of :LISTEN, and several services are a list")
    (services &rest arguments &key (listen "127.0.0.1:0") (loops 1) (execution :auto) credentials
                                compression interceptors http fallback observer protocols origins
     &allow-other-keys)
  "Start serving SERVICES, a service object or a list of them, and return the server.
LISTEN        an address, \"HOST:PORT\", \"[IPV6]:PORT\", \"unix:PATH\", \"inproc:NAME\" or any
              other form in doc/addresses.md, or a list of these; port 0, the default, picks a free
              port (see SERVER-ADDRESS)
LOOPS         how many event loops, each a thread, share the connections: 1 to 1024
EXECUTION     where handlers run. :inline: always on the loop that received the call. :blocking: on
              a reserve thread. :auto, the default: on the loop until a handler takes too long, or
              waits while others are due. From then on handlers of its method run on reserve
              threads, until 64 in a row have returned within 100 µs. If a handler only waited, its
              method's handlers still begin on the loop while there is no other call. An alist from
              methods, the symbols of their generic functions, to one of these keywords sets it for
              each method. With any EXECUTION, a handler that blocks does not delay others for long:
              another thread takes the loop over
CREDENTIALS   TLS credentials made by TLS-CREDENTIALS, with which the server accepts only TLS; nil,
              the default, is plaintext
COMPRESSION   the compression of answers for clients that accept it, unless a handler sets the
              CALL-COMPRESSION: :gzip, :deflate, a name of REGISTER-COMPRESSOR, or :identity, the
              default
INTERCEPTORS  a list of functions (call request next), the first the outermost. Each is called
              around every handler, on the handler's thread; (funcall next request) returns the
              handler's value. The interceptor's own value or condition replaces it. An element
              (WHERE . functions) of the list is for some methods only: WHERE is the full name of
              a service, a string, or the symbol of one method
HTTP          a handler or a list of handlers, see HTTP-HANDLER, for requests that are not gRPC;
              each handler answers the requests for its path
FALLBACK      answers other requests that are not gRPC: a function (http-method path headers body)
              of two strings, an alist of strings, and octets, :max-fallback-body-octets at most.
              The fallback returns an HTTP status, an alist of headers, and a body: a string, octets
              or nil. The fallback runs as handlers do, on the thread that EXECUTION requires unless
              that is an alist. After an error in the fallback the answer is 500, and the error is
              logged; after FAIL the answer is the closest HTTP status. With FALLBACK or HTTP, the
              server speaks HTTP/1.1 on the same addresses (see the option :http1). Without both, it
              answers such requests with 415 or 405
PROTOCOLS     a list of keywords: further protocols for calls, on the same addresses, over HTTP/1.1
              and HTTP/2; gRPC is always served
ORIGINS       the origins of web pages that may call this server by these protocols (CORS): a list
              of strings such as \"https://app.example\", exactly as browsers send them; or :any,
              for all pages, but without credentials such as cookies; empty by default
OBSERVER      an object made by MAKE-OBSERVER, MAKE-METRICS, MAKE-TRACING, MAKE-ACCESS-LOG or
              MAKE-CONSOLE, or a list of these, which receives the events of the server's calls,
              messages, connections and refusals
All other keywords are rows of the options table, see OPTION-TABLE. Signal MISUSE for a wrong
argument, TLS-ERROR if CREDENTIALS cannot be used, and a socket error if the server cannot listen on
an address. From any thread."
  (declare (notinline make-instance))   ; else SBCL compiles a constructor when this first runs
  (let* ((services (check-services (if (listp services) services (list services))))
         (addresses (or (if (listp listen) listen (list listen))
                        (misuse "LISTEN names no address.")))
         (options (allow-pings
                   (apply #'make-server-options
                          (alexandria:remove-from-plist arguments :listen :loops :execution
                                                        :credentials :compression :interceptors
                                                        :http :fallback :observer :protocols
                                                        :origins))
                   services))
         (server (make-instance 'wire-server
                                :services services :options options :execution execution
                                :protocols (find-protocols protocols)
                                :origins (check-origins origins)
                                :loop-count loops
                                :interceptors (check-arities (rpc:check-interceptors interceptors)
                                                             '(call request next))
                                :observer (rpc:check-observer observer)
                                :credentials credentials
                                :channel-trace (make-channel-trace (loop:world-now))
                                :encoding (nth-value 1 (encoding:check-compression compression))
                                :reserve (loop:make-reserve
                                          :threads (options-reserve-threads options)
                                          :queue (options-reserve-queue options)
                                          :idle-seconds (options-reserve-idle-seconds options))))
         (routes (make-routes server services (route-maker execution)
                              :interceptors interceptors)))
    (unless (typep fallback '(or null function (and symbol (satisfies fboundp))))
      (misuse "FALLBACK is a function, not ~S." fallback))
    (when fallback (check-arity fallback '(http-method path headers body) "FALLBACK"))
    (read-environment)
    (check-methods execution interceptors routes)
    (setf (server-claimers server) (prepare-claimers server (server-protocols server) routes)
          (server-router server) (make-server-router server (if (listp http) http (list http))
                                                     fallback execution))
    (when credentials
      (loop:check-credentials credentials (if (and (server-router server) (options-http1 options))
                                              :http-server
                                              :server)))
    (unless (typep loops '(integer 1 1024)) (misuse "LOOPS must be from 1 to 1024, not ~S." loops))
    (note-server-event server "server created")
    (let ((started nil))
      (unwind-protect (progn (begin-serving server routes addresses)
                             (setf started t))
        (unless started (stop-server server :drain 0))))
    (log-event :info :server-started :addresses (server-addresses server)
                                     :services (server-service-names server))
    (warn-of-idle-services services)
    (tell-services #'note-server-started server)
    server))

(defun begin-serving (server routes addresses)
  "Give SERVER its loops, with ROUTES, and make it listen on ADDRESSES."
  (unless (loop:simulated-p)            ; descriptors cost nothing in a simulation
    (let ((options (server-options server)))
      (setf (server-admission server) (make-admission options (allowed-connections options)))))
  (loop for i from 1 to (server-loop-count server) do (add-server-loop server routes i))
  (dolist (server-loop (server-loops server))
    (loop:launch-event-loop (server-loop-loop server-loop)))
  ;; not before, since channelz asks the loops; in a simulation only its own loops answer
  (unless (loop:simulated-p) (enter-registry server **servers**))
  (loop:end-before-save server (lambda (server) (stop-server server :drain 0)))
  (setf (server-watcher server) (method:watch-services (lambda () (renew-routes server))))
  (dolist (address addresses)
    (let ((scheme (loop:find-scheme address)))
      (if (and scheme (loop:scheme-listen scheme))
          (funcall (loop:scheme-listen scheme) server address)
          (push (begin-listening server address) (server-listeners server)))))
  (setf (server-listeners server) (reverse (server-listeners server))
        (server-state server) :serving))

(defun check-services (services)
  "Return SERVICES, a list; signal MISUSE if an element is not a service."
  (mapc #'method:check-service services))

(defun warn-of-idle-services (services)
  "Log which of SERVICES have no handlers, probably because these are methods of functions of the
same names in another package."
  (dolist (service services)
    (when (nth-value 1 (method:check-service service))
      (log-event :warning :service-without-handlers
                 :service (method:rpc-method-service-name (first (method:service-methods service)))
                 :class (class-name (class-of service))
                 :reason (format nil "its class has no method of ~S, nor of its other functions"
                                 (method:rpc-method-function-name
                                  (first (method:service-methods service))))))))

(defun scheme-name-p (text)
  "True if TEXT is the scheme of a URL, in lower case."
  (flet ((letter-p (char) (char<= #\a char #\z)))
    (and (string/= "" text)
         (letter-p (char text 0))
         (every (lambda (char) (or (letter-p char) (char<= #\0 char #\9) (find char "+-.")))
                text))))

(defun host-name-p (text)
  "True if TEXT may be the host of an origin, in lower case: a name, an IPv4 address, or an IPv6
address in brackets."
  (let ((last (1- (length text))))
    (cond ((minusp last) nil)
          ((char= #\[ (char text 0))
           (and (char= #\] (char text last))
                (loop for char across (subseq text 1 last)
                      always (find char "0123456789abcdef:."))))
          (t (loop for char across text
                   never (or (find char "/*?#@,\\\"[]:") (char<= #\A char #\Z)
                             (not (char< #\Space char #\Rubout))))))))

(defun port-named-p (text scheme)
  "True if browsers name the port TEXT in an origin with SCHEME: they omit the scheme's own."
  (and (<= 1 (length text) 5)
       (loop for char across text always (char<= #\0 char #\9))
       (char/= #\0 (char text 0))
       (<= (parse-integer text) 65535)
       (not (member (cons scheme text) '(("http" . "80") ("https" . "443")) :test #'equal))))

(defun origin-p (thing)
  "True if THING is an origin as browsers send it: a scheme, \"://\", a host and, unless it is the
scheme's own, a port, in lower case."
  (let ((end (and (stringp thing) (search "://" thing))))
    (when end
      (let* ((scheme (subseq thing 0 end)) (place (subseq thing (+ end 3)))
             (colon (position #\: place :start (or (position #\] place) 0))))
        (and (scheme-name-p scheme)
             (host-name-p (subseq place 0 colon))
             (or (null colon) (port-named-p (subseq place (1+ colon)) scheme)))))))

(defun check-origins (origins)
  "Return ORIGINS if it is valid for START-SERVER; else signal MISUSE."
  (unless (or (eq :any origins)
              (and (listp origins) (every #'origin-p origins)))
    (misuse ":origins is :any, or a list of origins such as \"https://app.example\", each in lower ~
             case, without a path, without wildcards and without the default port of ~
             its scheme, not ~S." origins))
  origins)

(defun add-server-loop (server routes number)
  (let ((event-loop (loop:make-event-loop :name (format nil "clgrpc server ~D" number)
                                          :reserve (server-reserve server))))
    (loop:call-after-closing event-loop (lambda (loop)
                                          (declare (ignore loop))
                                          (unless (server-running-p server)
                                            (note-emptied server))))
    (push (make-server-loop :server server :loop event-loop :routes routes
                            :claimers (server-claimers server)
                            :http (make-server-loop-http server (server-router server))
                            :options (server-options server) :encoding (server-encoding server)
                            :max-open (share-out (options-max-calls (server-options server)) server)
                            :account (server-account server)
                            :observer (rpc:observer-for (server-observer server)
                                                        :role :server :loop event-loop))
          (server-loops server))))

(defun renew-routes (server)
  "Make SERVER's routes again, since a service has been redefined, perhaps a service of SERVER, with
other methods than before."
  (handler-case
      (sb-thread:with-mutex ((server-routes-lock server))
        (let ((table (make-routes server (server-services server)
                                  (route-maker (server-execution server))
                                  :interceptors (server-interceptors server)
                                  :before (server-loop-routes (first (server-loops server))))))
          (let ((claimers (prepare-claimers server (server-protocols server) table)))
            (setf (server-claimers server) claimers)
            (dolist (server-loop (server-loops server))
              (setf (server-loop-claimers server-loop) claimers
                    (server-loop-routes server-loop) table))
            (when (server-router server) (incf (exchange:router-epoch (server-router server)))))))
    (error (error) (log-event :error :services-not-renewed :server server :condition error))))

(defun listening-options (server)
  "The options of SERVER's listeners. The admission, not the listeners, decides which connections
are admitted. So the listeners have a higher limit, which is reached only while too many dismissed
connections have not ended."
  (let ((options (copy-options (server-options server)))
        (connections (admission-max-connections (server-admission server))))
    (setf (options-max-connections options)
          (min 1000000 (+ connections (max-leaving connections)
                          (* loop:+most-lingering+ (server-loop-count server)))))
    options))

(defun begin-listening (server address)
  "Make SERVER listen on ADDRESS as well, and return the listener."
  (let ((listener (listen-for server address)))
    (push (cons (new-number) listener) (server-sockets server))
    (note-server-event server "listening on ~A" (loop:listener-address listener))
    listener))

(defun listen-for (server address)
  "Listen on ADDRESS for SERVER; return the listener."
  (let ((server-loops (server-loops server)))
    (loop:listen-on address (listening-options server) (mapcar #'server-loop-loop server-loops)
                    (lambda (loop byte-channel peer)
                      (declare (ignore peer))
                      (accept-link (find loop server-loops :key #'server-loop-loop) byte-channel))
                    :on-full (lambda () (note-no-descriptors (first server-loops))))))

(defun accept-link (server-loop byte-channel)
  "Begin to serve a new connection. On SERVER-LOOP's loop."
  (let ((permit (admit server-loop byte-channel)) (begun nil))
    (if permit
        (unwind-protect (progn (begin-link server-loop permit byte-channel) (setf begun t))
          (unless begun (give-permit-up server-loop permit)))
        (loop:close-byte-channel byte-channel))))

(defun begin-link (server-loop permit byte-channel)
  "Make a link of BYTE-CHANNEL, which SERVER-LOOP has admitted with PERMIT."
  (let* ((server (server-loop-server server-loop))
         (credentials (server-credentials server))
         (byte-channel (if credentials
                           (loop:make-tls-byte-channel (server-loop-loop server-loop) byte-channel
                                                       credentials
                                                       :server
                                                       :http1 (speaks-http1-p server-loop)
                                                       :peer (permit-entry permit))
                           byte-channel))
         (link (wire:open-link server-loop (server-loop-loop server-loop) byte-channel
                               :server **server-sink**
                               (server-loop-options server-loop) (server-loop-pool server-loop)
                               :account (peer-entry-account (permit-entry permit))
                               :observer (server-loop-observer server-loop)
                               :protocol **opening** :handler **opening-handler**
                               :make #'make-server-link)))
    (setf (server-link-budget link) (peer-entry-budget-caller (permit-entry permit)))
    (begin-opening link)
    (trace-event :server :connection-begun :peer (server-link-peer link))
    (add-link server-loop link)
    (note-permit-taken server-loop permit link)
    ;; clients may know the address of a server that is still starting
    (when (server-stopping-p server) (drain-link link))))

(defun link-ended (server-loop link)
  "Forget LINK of SERVER-LOOP, which has ended."
  (trace-event :server :connection-ended :peer (server-link-peer link)
                                         :reason (server-link-failure link))
  (remove-link server-loop link)
  (forget-waiting link)
  (forget-drain link)
  (give-permit-up server-loop (server-link-permit link))
  (let ((server (server-loop-server server-loop)))
    (when (and (zerop (server-loop-link-count server-loop)) (not (server-running-p server)))
      (note-emptied server))))

(defmethod wire:link-event ((server-loop server-loop) link event)
  (ecase event
    (:ended (link-ended server-loop link))
    (:output-left (output-left link))
    ((:idle :age) (drain-link link))
    (:grace (wire:close-link link "the connection is too old" :status :unavailable))))

;;; Stopping

(defconstant +peer-seconds+ 1
  "How long peers may take to close their side of a connection that has drained, in seconds.")

;;; Functions called before and after the stop

(defun call-before-stop (server function)
  "Make STOP-SERVER call FUNCTION first, while SERVER still accepts calls, on the thread of
STOP-SERVER; even if other such functions run already. FUNCTION's argument is the number of seconds
that running calls will have. FUNCTION should remove SERVER from registries and load balancers, and
may block for a part of these seconds. FUNCTION returns nil, or a function without arguments to be
called when SERVER has stopped. An error in one of these functions goes to the log. Signal MISUSE if
SERVER does not run, or FUNCTION takes no argument. From any thread."
  (check-arity function '(seconds) "The function of CALL-BEFORE-STOP")
  (sb-thread:with-mutex ((server-routes-lock (checked-server server)))
    (unless (member (server-state server) '(:starting :serving))
      (misuse "~A does not run." server))
    (push function (server-stop-functions server)))
  nil)

(defun run-stop-functions (server drain)
  "Call the functions of CALL-BEFORE-STOP for SERVER, including those that are added meanwhile.
Return the functions to call after SERVER has stopped, and the state that SERVER had before."
  (let ((after '()))
    (loop
      (let* ((function
               (sb-thread:with-mutex ((server-routes-lock server))
                 (or (pop (server-stop-functions server))
                     (return (values after (shiftf (server-state server) :draining))))))
             (value (loop:guarding (:server-stop-error :server server)
                      (funcall function drain))))
        (when value (push value after))))))

(defun call-after-stop (server functions)
  "Call FUNCTIONS, without arguments, since SERVER has stopped; log their errors."
  (dolist (function functions)
    (loop:guarding (:server-stop-error :server server) (funcall function))))

(define-keyword-function stop-server
    (server
     &key (drain (options-drain-seconds (server-options (checked-server server)))))
  "Stop SERVER: close its listeners, send GOAWAY to the peers, give running calls DRAIN seconds to
end, end the others with :unavailable, close every connection and thread. Return true if all calls
ended by themselves. This always returns, shortly after DRAIN at the latest, unless a function given
to CALL-BEFORE-STOP takes longer. Stopping again does nothing. Saving the image stops all servers,
with a DRAIN of 0. In a handler, interceptor or callback of one of SERVER's own calls, return nil at
once: another thread then stops SERVER, and gives that call DRAIN seconds, as it does all others.
Signal MISUSE for another object than a server. From any thread."
  (unless (typep drain '(real 0))
    (misuse "DRAIN is a number of seconds, 0 or more, not ~S." drain))
  (cond ((in-call-of-p (checked-server server))
         (loop:start-thread (lambda ()
                              (loop:guarding (:server-stop-error :server server)
                                (stop-and-wait server drain)))
                            "clgrpc stop")
         nil)
        (t (stop-and-wait server drain))))

(defun in-call-of-p (server)
  "True if this thread runs user code of one of SERVER's calls, so that it would wait for itself if
it waited for SERVER's end."
  (let ((call (method:current-call)))
    (and call
         (not (rpc:client-p call))
         (eq server (operate server call)))))

(defun stop-and-wait (server drain)
  "Stop SERVER, see STOP-SERVER, on a thread that runs none of SERVER's calls."
  (multiple-value-bind (after before) (run-stop-functions server drain)
    (unwind-protect (end-server server drain before)
      (call-after-stop server after))))

(defun end-server (server drain before)
  "Stop SERVER, whose state was BEFORE; see STOP-SERVER."
  (when (eq before :stopped)
    (setf (server-state server) :stopped)
    (return-from end-server t))
  (when (server-watcher server) (funcall (server-watcher server)))
  (note-server-event server "draining")
  (log-event :info :server-draining :addresses (server-addresses server) :seconds drain)
  (mapc #'loop:close-listener (server-listeners server))
  (close-acceptor server)
  (tell-services #'note-server-stopping server)
  ;; a server that could not start may have no loop that runs
  (unless (eq before :starting) (drain-links server))
  (let ((drained (or (and (wait-for-links server drain)
                          (progn (wait-for-peers server (min drain +peer-seconds+)) t))
                     (abandon server))))
    (dolist (server-loop (server-loops server))
      (loop:stop-event-loop (server-loop-loop server-loop))
      (loop:join-event-loop (server-loop-loop server-loop)))
    (loop:close-reserve (server-reserve server) 1)
    (loop:forget-ending server)
    (quit-registry server **servers**)
    (setf (server-state server) :stopped)
    (log-event :info :server-stopped :addresses (server-addresses server) :drained drained)
    drained))

(defun drain-links (server)
  "Begin to drain the links of SERVER, whose listeners are closing."
  ;; connections accepted so far become links of their server loops before the links drain
  (call-on-loops server #'identity)
  (call-on-loops server (lambda (server-loop) (map-links #'stop-link server-loop))))

(defun idle-p (server-loop)
  "True if SERVER-LOOP has no call, and no output that its peers do not take. On its loop."
  (and (zerop (server-loop-open server-loop))
       (notany (lambda (link) (loop:connection-blocked-p (server-link-socket link)))
               (server-loop-links server-loop))))

(defun abandon (server)
  "End every link of SERVER, with its calls. Return true if this has cut nothing off: the links were
only in a handshake, or waited for their peers."
  (multiple-value-bind (status text) (rpc:verdict :server-stopping)
    (let ((busy (list (length (server-loops server)))) ; how many loops may have calls
          (idle (not (nth-value 1 (acceptor-state server)))))
      (close-acceptor server status text)
      (call-on-loops server
                     (lambda (server-loop)
                       (when (idle-p server-loop) (sb-ext:atomic-decf (car busy)))
                       (map-links (lambda (link) (wire:close-link link text :status status))
                                  server-loop)))
      (wait-for-links server 1)
      (and idle (zerop (car busy))))))

(defun call-on-loops (server function)
  "Call FUNCTION with each server loop of SERVER on its loop, and wait until all calls have
returned, at most one second: a working loop needs less."
  (let* ((done (sb-thread:make-semaphore))
         (count (loop for server-loop in (server-loops server)
                      count (let ((server-loop server-loop))
                              (loop:post (server-loop-loop server-loop)
                                         (lambda ()
                                           (funcall function server-loop)
                                           (sb-thread:signal-semaphore done)))))))
    (when (plusp count) (loop:await-semaphore done :count count :timeout-seconds 1))))

(defun wait-for-peers (server seconds)
  "Wait, at most SECONDS, until the peers of SERVER, which has no open link, have closed their side.
Closing a connection earlier might destroy answers that are on their way."
  (await-emptied server seconds
                 (lambda ()
                   (loop for server-loop in (server-loops server)
                         always
                         (zerop (loop:event-loop-connections (server-loop-loop server-loop)))))))

(defun wait-for-links (server seconds)
  "Wait until SERVER has no link, at most SECONDS; return true if it has none."
  (await-emptied server seconds
                 (lambda ()
                   (and (every #'zerop (mapcar #'server-loop-link-count (server-loops server)))
                        (not (nth-value 1 (acceptor-state server)))))))
