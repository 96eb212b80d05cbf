;;;; Servers and clients for users: TCP-SERVER, PIPE-SERVER, TCP-CONNECT, PIPE-CONNECT.

(in-package #:clgrpc.async)

(defstruct (server (:include handle) (:constructor %make-server) (:conc-name %server-)
                   (:copier nil))
  "An object that listens for connections and makes a socket for each."
  (listener nil :type (or null loop:listener)) ; accepts its connections
  (closed nil :type boolean))           ; true once the server accepts no more

(define-printer (server server)
  "~A~:[~; closed~]" (server-address server) (%server-closed server))

(defun server-address (server)
  "The address that SERVER listens on, as text, with the port it really has. From any thread."
  (loop:listener-address (%server-listener server)))

(defun server-port (server)
  "The port that SERVER, a TCP server, listens on. From any thread."
  (let ((address (server-address server)))
    (parse-integer address :start (1+ (position #\: address :from-end t)))))

(defun host-target (host port)
  "The target, a text, made of HOST, a name or numeric address, and PORT."
  (unless (and (stringp host) (typep port '(or string integer)))
    (misuse "Give a host and a port, such as \"127.0.0.1\" and 8080, not ~S and ~S." host
            port))
  (format nil "~:[~A~;[~A]~]:~D" (find #\: host) host port))

(defun event-cb-first (arguments)
  "The keyword arguments in the list ARGUMENTS. As in cl-async, the event callback may stand before
the keyword arguments."
  (if (oddp (length arguments))
      (list* :event-cb arguments)
      arguments))

(defparameter *socket-arguments*
  '(:event-cb :connect-cb :write-cb :drain-cb :in-place :stream :tls :high-water :low-water
    :max-unsent-octets :read-timeout :write-timeout)
  "The keyword arguments of servers and clients that are settings of their sockets.")

(defun make-settings-from (read-cb incoming arguments)
  "The settings of sockets that ARGUMENTS contains, the plist that a caller gave a server or
client."
  (loop for (key) on arguments by #'cddr
        unless (member key *socket-arguments*)
          do (misuse "The argument ~S is unknown; the arguments for sockets are~{ ~S~}." key
                     *socket-arguments*))
  (destructuring-bind (&key event-cb connect-cb write-cb drain-cb in-place stream tls
                         (high-water +high-water-octets+) (low-water (ash high-water -2))
                         (max-unsent-octets (options-max-unsent-octets loop:**default-options**))
                         read-timeout write-timeout)
      arguments
    (let ((tls (if (eq t tls) (tls-credentials :alpn nil) tls)))
      (when tls (loop:check-credentials tls (if incoming :server :client)))
      (when (and stream in-place)
        (misuse "A socket has :STREAM or :IN-PLACE, not both: a stream keeps unread octets."))
      (make-socket-settings :read-cb (if stream (stream-feeder read-cb) read-cb)
                            :stream (and stream #'stream-feeder)
                            :event-cb event-cb :connect-cb connect-cb :write-cb write-cb
                            :drain-cb drain-cb :in-place (and (or stream in-place) t)
                            :incoming incoming :tls tls
                            :high-water high-water :low-water low-water
                            :max-unsent max-unsent-octets
                            :read-timeout read-timeout :write-timeout write-timeout))))

;;; Servers

(defun accept-socket (settings loop byte-channel)
  "The listener's ON-ACCEPT."
  (let ((socket (%make-socket :loop loop :settings settings)))
    (begin-socket socket)
    (handler-case (open-connection socket byte-channel nil)
      (error (error)
        (close-now socket t)
        (tell-event socket error))
      (:no-error (nothing)
        (declare (ignore nothing))
        (when (settings-connect-cb settings)
          (with-callback (socket (settings-event-cb settings))
            (funcall (settings-connect-cb settings) socket)))))))

(defun serve (target read-cb &rest arguments
              &key (loop *event-loop*) (loops (list (the-loop loop)))
                (backlog (option-default :backlog))
                (max-connections (option-default :max-connections)) reuse-port
              &allow-other-keys)
  (let* ((settings (make-settings-from read-cb t (without-keys arguments :loop :loops :backlog
                                                               :max-connections :reuse-port)))
         (loop (the-loop (first loops)))
         (options (make-server-options :backlog (if (and backlog (plusp backlog)) backlog 128)
                                       :max-connections max-connections
                                       :reuse-port (and reuse-port t)))
         (listener (loop:listen-on target options loops
                              (lambda (loop byte-channel peer)
                                (declare (ignore peer))
                                (accept-socket settings loop byte-channel))))
         (server (%make-server :loop loop :listener listener)))
    (on-loop (loop) (begin-use server))
    server))

(defun without-keys (arguments &rest keys)
  (loop for (key value) on arguments by #'cddr
        unless (member key keys)
          collect key and collect value))

(defun tcp-server (address port read-cb &rest arguments)
  "Listen on PORT, 0 for any free port, of ADDRESS: a numeric address, a host's name, or nil for all
IPv4 addresses of the machine; return the server. Each connection becomes a socket, whose data is
given to (READ-CB socket octets). The keyword arguments, all optional: :EVENT-CB (condition) is
called when a socket has closed, with SOCKET-EOF, SOCKET-RESET, SOCKET-TIMEOUT or another
SOCKET-ERROR. :CONNECT-CB (socket) is called with each new socket, :WRITE-CB (socket) each time all
output has been given to the system. While a socket has more unsent octets than :HIGH-WATER (65536),
WRITE-SOCKET-DATA returns false. When only :LOW-WATER octets are left (a quarter of :HIGH-WATER),
:DRAIN-CB (socket) is called. A socket with more than :MAX-UNSENT-OCTETS unsent octets (1 MB) is not
read. :READ-TIMEOUT and :WRITE-TIMEOUT are those of SET-SOCKET-TIMEOUTS. If :IN-PLACE is true,
(READ-CB socket octets start end) reads the received octets in the loop's own vector, without a
copy; they are valid until READ-CB returns. If :STREAM is true, (READ-CB socket stream) is called
when octets have come, and reads them from STREAM, the socket's ASYNC-IO-STREAM. :TLS, credentials,
as TLS-CREDENTIALS returns with :ALPN nil: the connections speak TLS. :BACKLOG is the maximum number
of connections that wait to be accepted. :MAX-CONNECTIONS is the maximum number of open connections;
further connections are closed. If :REUSE-PORT is true, other processes that set it may listen on
the same port. :LOOP is an event loop, by default that of this thread. :LOOPS is a list of event
loops instead: each connection goes to the loop with the fewest connections, which runs its
callbacks. The server keeps the first of these loops from ending. Signal SOCKET-ERROR, for instance
SOCKET-ADDRESS-IN-USE, if the server cannot listen on the address, MISUSE if ADDRESS and PORT are
not an address or the loop has stopped. EVENT-CB may also be the fourth argument. From any thread."
  (apply #'serve (host-target (or address "0.0.0.0") port) read-cb (event-cb-first arguments)))

(defun pipe-server (name read-cb &rest arguments)
  "Listen on the unix socket whose file is NAME, a pathname or its text, and return the server;
otherwise this does what TCP-SERVER does. A file that a dead server has left is replaced. Only the
owner of the file may connect."
  (apply #'serve (pipe-target name) read-cb (event-cb-first arguments)))

(defun pipe-target (name)
  (with-output-to-string (target)
    (write-string "unix:" target)
    (loop for char across (uiop:native-namestring name)
          do (if (char= char #\%) (write-string "%25" target) (write-char char target)))))

(defun close-tcp-server (server)
  "Stop accepting connections at SERVER; present connections continue. Closing again does nothing.
From any thread."
  (end-handle server (lambda (server)
                       (setf (%server-closed server) t)
                       (loop:close-listener (%server-listener server))
                       (end-use server))))

(defun close-socket-server (server)
  "As CLOSE-TCP-SERVER."
  (close-tcp-server server))

(defun tcp-server-closed (server)
  "True if SERVER was closed. From any thread."
  (%server-closed server))

(defmethod cancel ((server server) &optional text)
  (declare (ignore text))
  (close-tcp-server server))

;;; Clients

(defun connect (target read-cb &rest arguments
                &key (loop *event-loop*) data
                  (connect-timeout (option-default :connect-timeout-seconds))
                &allow-other-keys)
  (let* ((loop (the-loop loop))
         (connect-ns (if connect-timeout (timeout-ns connect-timeout) most-positive-fixnum))
         (target (loop:parse-target target))
         (data (and data (output-octets data)))
         (settings (make-settings-from read-cb nil (without-keys arguments :loop :data
                                                                 :connect-timeout)))
         (socket (%make-socket :loop loop :settings settings))
         (result (if (settings-stream settings) (socket-stream socket) socket)))
    (on-loop (loop)
      (begin-socket socket)
      (when data (write-socket-data socket data))
      (loop:connect-to loop target connect-ns
                  (lambda (byte-channel condition)
                    (socket-connected socket target byte-channel condition))))
    result))

(defun socket-connected (socket target byte-channel condition)
  (let ((settings (%socket-settings socket)) (closed (%socket-closed socket)))
    (flet ((fail-socket (condition)
             (close-now socket t)
             (unless closed (tell-event socket condition))))
      (cond ((and closed (null (%socket-early socket)))
             (when byte-channel (loop:close-byte-channel byte-channel)))
            (condition (fail-socket condition))
            (t (handler-case (open-connection socket byte-channel (loop:target-host target))
                 (error (error) (fail-socket error))
                 (:no-error (nothing)
                   (declare (ignore nothing))
                   (when closed (close-now socket nil))
                   (when (and (settings-connect-cb settings) (not closed))
                     (with-callback (socket (settings-event-cb settings))
                       (funcall (settings-connect-cb settings) socket))))))))))

(defun tcp-connect (host port read-cb &rest arguments)
  "Connect to PORT of HOST, a name or a numeric address, and return the socket at once: it can be
written to, and written octets wait for the connection. (READ-CB socket octets) gets the received
octets. The keyword arguments, all optional:
:DATA, octets or a string to send first. :CONNECT-CB (socket) is called when there is a connection.
:EVENT-CB (condition) is called when the socket has closed or could not be connected; in the latter
case with SOCKET-REFUSED, CONNECT-TIMEOUT, DNS-ERROR or another CONNECT-ERROR. :CONNECT-TIMEOUT is
in seconds (20), or nil for no time-out. :TLS, credentials, as TLS-CREDENTIALS returns with :ALPN
nil, or T for credentials that trust the system's certificates. The connection then speaks TLS with
HOST, and written octets wait for the handshake. :LOOP, an event loop, by default that of this
thread. If :STREAM is true, (READ-CB socket stream) is called when octets have come, and this
function returns that stream, an ASYNC-IO-STREAM, instead of the socket. :WRITE-CB, :DRAIN-CB,
:HIGH-WATER, :LOW-WATER, :MAX-UNSENT-OCTETS, :READ-TIMEOUT, :WRITE-TIMEOUT and :IN-PLACE as for
TCP-SERVER. Signal MISUSE if HOST and PORT are not an address, or the loop has stopped. EVENT-CB may
also be the fourth argument. From any thread."
  (apply #'connect (host-target host port) read-cb (event-cb-first arguments)))

(defun pipe-connect (name read-cb &rest arguments)
  "Connect to the unix socket whose file is NAME, a pathname or its text; otherwise this does what
TCP-CONNECT does."
  (apply #'connect (pipe-target name) read-cb (event-cb-first arguments)))
