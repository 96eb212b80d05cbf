;;;; The one options table: every limit and default that a user may set, with its scope, type,
;;;; range, default and reason. Everything a peer can grow has its row here. A server or channel
;;;; makes an OPTIONS object from its keyword arguments, and its connections share the object.
;;;;
;;;; A row's scope is its subject. OPTIONS has the rows for both ends of a connection (:method,
;;;; :stream, :connection); SERVER-OPTIONS and CHANNEL-OPTIONS include these rows and add their own.
;;;; An option given to an object that does not accept it is rejected by name.
;;;;
;;;; An option whose default is an integer is a count and must be an integer; a time may be any
;;;; real. An option whose default is T or NIL takes T or NIL.
;;;;
;;;; A reason is shown alone, so one must understand it without the rows around it.

(in-package #:clgrpc.option)

(deftype option-scope ()
  '(member :method :stream :connection :listener :server :reserve :channel :tracing))

(defstruct (option-row (:copier nil))
  "A row of the options table. See OPTION-TABLE."
  (name :none :type keyword)            ; the name of the option, as a keyword argument
  (scope :method :type option-scope)    ; the option's subject, see OPTION-ROW-SCOPE
  (only nil :type (member nil :server :channel)) ; the only end that takes the option, or nil
  (default nil :type (or real boolean)) ; the value if none is given
  (minimum nil :type (or null real))    ; the smallest value allowed, nil for a boolean
  (maximum nil :type (or null real))    ; the largest
  (unit "" :type string)                ; the unit of the value, as text
  (reason "" :type string))             ; the option's purpose, as text that is shown alone

(define-printer (row option-row)
  "~(~A~) ~A~@[ from ~A~]~@[ to ~A~] ~A" (option-row-name row) (option-row-default row)
  (option-row-minimum row) (option-row-maximum row) (option-row-unit row))

(document-functions
  option-row-name "The keyword that START-SERVER and MAKE-CHANNEL take."
  option-row-scope "The subject of the option. Servers and channels take options of :method, :stream
and :connection. Servers take options of :listener, :server and :reserve. Channels take options of
:channel, and MAKE-TRACING takes options of :tracing. Channels within the image take the options of
:method."
  option-row-only ":server or :channel if only servers or only channels accept the option, whatever
its scope; else nil."
  option-row-default "The value of the option if no value is given."
  option-row-minimum "The minimum of the option's value, or nil if the option is T or NIL."
  option-row-maximum "The maximum of the option's value, or nil if the option is T or NIL."
  option-row-unit "The unit of the value, as text."
  option-row-reason "The effect of the option and the reason of its default, as text.")

(defglobal **option-table** '())

(defun option-table ()
  "Return the list of all options that a server or channel takes as keyword arguments, each with its
scope, default, range, unit and reason. From any thread."
  **option-table**)

(defun find-option-row (name)
  "The row of the option NAME, a keyword, or nil if there is no such option."
  (find name **option-table** :key #'option-row-name))

(defun option-default (name)
  "Return the value that the option NAME, a keyword, has if no value is given."
  (option-row-default (or (find-option-row name) (misuse "There is no option ~S." name))))

;;; Takers of options and their rows

(defglobal **takers**
    '((:connection "connections" :method :stream :connection)
      (:server "servers" :method :stream :connection :listener :server :reserve)
      (:channel "channels" :method :stream :connection :channel)
      (:inproc "channels within the image" :method)
      (:tracing "tracing" :tracing))
  "A table of the kinds of objects that accept options. A row has the kind, its name in the plural,
and the scopes of the options that it accepts.")

(defun takes-option-p (taker row)
  "True if TAKER, a key of **TAKERS**, takes ROW."
  (and (member (option-row-scope row) (cddr (assoc taker **takers**)))
       (or (null (option-row-only row))
           (eq :connection taker)
           (eq taker (option-row-only row)))))

(defun takers-text (row)
  "Return a text with the names, in the plural, of the kinds of objects that accept ROW."
  (format nil "~{~A~#[~; and ~:;, ~]~}"
          (loop for (taker text) in (rest **takers**)
                when (takes-option-p taker row) collect text)))

;;; Values

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun decimal-readings (number)
    "Return the numbers that users may mean by NUMBER, a real in a row. For instance 0.1 may mean
1/10, 0.1f0 or 0.1d0, which are three different numbers."
    (let ((exact (rationalize number)))
      (list exact (rational (float exact 1f0)) (rational (float exact 1d0)))))

  (defun option-type (default minimum maximum unit)
    "The type of the values of a row."
    (cond ((typep default 'boolean) 'boolean)
          ((and (integerp default) (string/= unit "seconds")) `(integer ,minimum ,maximum))
          (t `(real ,(reduce #'min (decimal-readings minimum))
                    ,(reduce #'max (decimal-readings maximum))))))

  (defun parse-option-row (scope form)
    "Return the arguments of MAKE-OPTION-ROW for FORM, a row of the section SCOPE of
DEFINE-OPTIONS."
    (destructuring-bind (name default . more) form
      (destructuring-bind (minimum maximum unit reason &key for)
          (if (typep default 'boolean) (list* nil nil "T or NIL" more) more)
        (list :name (intern (string name) :keyword) :scope scope :only for :default default
              :minimum minimum :maximum maximum :unit unit :reason reason)))))

(defun row-type (row)
  (option-type (option-row-default row) (option-row-minimum row) (option-row-maximum row)
               (option-row-unit row)))

(defun check-option (row value)
  "Signal MISUSE unless VALUE is valid for ROW."
  (let ((type (row-type row)))
    (cond ((typep value type))
          ((eq 'boolean type)
           (misuse "Option ~S must be T or NIL, not ~S." (option-row-name row) value))
          (t
           (misuse "Option ~S must be ~:[a number~;an integer~] from ~A to ~A (~A), not ~S."
                   (option-row-name row) (eq 'integer (first type)) (option-row-minimum row)
                   (option-row-maximum row) (option-row-unit row) value)))))

(defparameter *other-keywords*
  '("listen" "loops" "execution" "credentials" "compression" "interceptors" "http" "fallback"
    "observer" "balance" "service-config" "call-credentials" "attempt-interceptors"
    "plaintext-credentials" "proxy" "authority" "user-agent" "resolvers" "codec" "protocols"
    "origins" "sampler" "propagators" "on-batch" "semantic-conventions")
  "Names of keywords of START-SERVER, MAKE-CHANNEL and MAKE-TRACING that are not options.")

(defparameter *keyword-hints*
  '((:port "it is a part of the address, \"HOST:PORT\"") (:host :port) (:address :port)
    (:tls ":credentials makes it TLS, see TLS-CREDENTIALS") (:ssl :tls) (:secure :tls)
    (:tls-cert :tls) (:tls-key :tls) (:tls-ca :tls) (:certificate :tls) (:key :tls)
    (:log "*LOG-FUNCTION* gets the events of the whole process") (:logger :log) (:log-level :log)
    (:timeout "it is a keyword of each call") (:deadline :timeout) (:metadata :timeout)
    (:max-message-size ":max-receive-octets and :max-send-octets are the limits")
    (:max-message-length :max-message-size) (:max-message-octets :max-message-size)
    (:keepalive ":keepalive-seconds and :keepalive-timeout-seconds are its times")
    (:keepalive-time :keepalive) (:keepalive-interval :keepalive)
    (:retries ":service-config has the policies for retries") (:max-retries :retries)
    (:retry-policy :retries)
    (:threads ":loops and :reserve-threads are the numbers of threads") (:workers :threads)
    (:max-workers :threads))
  "Hints for keywords of other libraries. A hint is a text, or another keyword that has the same
hint.")

(defun keyword-hint (name)
  "Return a hint for the unknown keyword NAME, a text with the option that was probably meant, or
nil if no option is similar."
  (let ((hint (second (assoc name *keyword-hints*))))
    (if (keywordp hint)
        (keyword-hint hint)
        (or hint
            (let ((likely (suggested-name (string-downcase name)
                                          (append *other-keywords*
                                                  (loop for row in (option-table)
                                                        collect (string-downcase
                                                                 (option-row-name row)))))))
              (and likely (format nil "is it :~A?" likely)))))))

(defun check-options (taker arguments)
  "Signal MISUSE unless ARGUMENTS, a plist, names options of TAKER and valid values."
  (loop for (name value) on arguments by #'cddr
        for row = (find-option-row name)
        do (cond ((not (keywordp name))
                  (misuse "Options are alternately keywords and values; ~S is not a keyword."
                          name))
                 ((null row)
                  (misuse "There is no keyword or option ~S~@[ (~A)~]; (clgrpc:option-table) lists ~
                           the options." name (keyword-hint name)))
                 ((not (takes-option-p taker row))
                  (misuse "The option ~S is for ~A, not for ~A." name (takers-text row)
                          (second (assoc taker **takers**))))
                 (t (check-option row value)))))

(defmacro define-options-structure (name include constructor rows documentation)
  "Define the structure NAME with a slot for each of ROWS, plists that PARSE-OPTION-ROW has made."
  `(progn
     ;; no constructor with all keywords, since it would take long to compile; see FILL-OPTIONS
     (defstruct (,name (:constructor ,constructor ()) (:conc-name options-)
                       (:copier ,(and (eq name 'options) 'copy-options))
                       ,@(and include `((:include ,include))))
       ,documentation
       ,@(loop for row in rows
               collect (destructuring-bind (&key name default minimum maximum unit scope only
                                              reason)
                           row
                         (declare (ignore scope only reason))
                         `(,(intern (string name) '#:clgrpc.option) ,default
                           :type ,(option-type default minimum maximum unit)))))
     (document-functions
       ,@(loop for row in rows
               collect (intern (format nil "OPTIONS-~A" (getf row :name)) '#:clgrpc.option)
               collect (getf row :reason)))))

(defmacro define-options (&body sections)
  "Define the options table and the structures OPTIONS, SERVER-OPTIONS and CHANNEL-OPTIONS from
SECTIONS of the form (scope . rows). A row is (name default minimum maximum unit reason &key for);
or, for an option that is T or NIL, (name default reason &key for). FOR is :server or :channel if
only servers or only channels accept the option."
  (let ((rows (loop for (scope . forms) in sections
                    append (loop for form in forms collect (parse-option-row scope form)))))
    (flet ((of (&rest scopes)
             (remove-if-not (lambda (row) (member (getf row :scope) scopes)) rows)))
      `(progn
         (setf **option-table** (list ,@(loop for row in rows collect `(make-option-row ,@row))))
         (define-options-structure options nil %make-options ,(of :method :stream :connection)
           "The values of the options that both ends of a connection have.")
         (define-options-structure server-options options %make-server-options
           ,(of :listener :server :reserve) "The values of all options of a server.")
         (define-options-structure channel-options options %make-channel-options ,(of :channel)
           "The values of all options of a channel.")
         (define-options-structure tracing-options nil %make-tracing-options ,(of :tracing)
           "The values of all options of tracing.")
         (declaim (sb-ext:freeze-type options))
         (document-functions copy-options "Return a copy of OPTIONS, which may be a server's or
channel's.")))))

(define-options
  (:method
   (max-receive-octets 4194304 0 2147483647 "octets"
    "The maximum length of a message that is accepted. Every gRPC has this default. A longer message
ends its call with :resource-exhausted.")
   (max-send-octets 2147483647 0 2147483647 "octets"
    "The maximum length of a message that is sent. Other gRPC implementations set no limit.")
   (max-message-depth 100 1 1000 "levels"
    "The maximum number of levels of messages and groups that may nest in a message that is decoded.
Other implementations of Protocol Buffers have the same default. The limit bounds the stack.")
   (max-decoded-octets 33554432 0 1099511627776 "octets"
    "Memory that the messages inside one message may occupy when it is decoded, beyond eight times
its serialized size. The limit is needed because an empty message of two octets occupies forty
octets and more: 4 MB could become 2 GB.")
   (compress-minimum-octets 256 0 2147483647 "octets"
    "The minimum length of a message that calls with compression compress, unless `send` has
:compress t. Shorter messages are sent uncompressed, because gzip adds 18 octets and costs 4 µs,
more than all the rest of a call.")
   (compression-level 1 1 9 "zlib's level"
    "The level of compression. For text, level 6 (zlib's default) takes four to six times as long as
level 1, and its result is a fifth shorter. Level 3 takes up to twice as long as level 1, and its
result is a tenth shorter.")
   (send-budget-octets 65536 1024 16777216 "octets"
    "The maximum number of octets of one call that may wait to be sent. At this limit `send` waits
and `try-send` refuses.")
   (room-wait-seconds 10 0 3600 "seconds"
    "The maximum time that a call may wait for room in the Lisp heap, of which a fifth is kept free.
Calls wait if they send a message of more than 64 KB, or if the recent answers of their method were
longer than 64 KB. They also wait if they decode a message of more than 16 KB, JSON of more than 2
KB, or a shorter message that becomes more than 1 MB. After this time the call ends with
:resource-exhausted."))
  (:stream
   (max-concurrent-streams 1000 1 #x7FFFFFFF "streams"
    "The maximum number of open calls of one connection; the peer is informed of this limit. RFC
9113 6.5.2 recommends at least 100.")
   (max-header-list-octets 16384 1024 1048576 "octets"
    "The maximum size of a header list, counted as in RFC 9113 6.5.2, that we advertise and enforce.
A server does not send longer header lists either, even if a handler sets more metadata. gRPC peers
send 8 to 16 KB at most.")
   (max-header-fields 128 8 10000 "fields"
    "The maximum number of fields in a header list; a list with more fields is treated as too large.
Each field occupies 150 octets of memory in addition to those that max-header-list-octets counts.")
   (stream-window-octets 2621440 65535 16777216 "octets"
    "The number of octets that a peer may send on one stream before we read them. With the default a
message of 1 MB can be sent at once. The limit bounds the memory of a call that does not read."))
  (:connection
   (header-table-octets 4096 0 65536 "octets"
    "The size of the HPACK dynamic table that we offer for decoding, and the maximum size of the
table that we use for encoding (RFC 7541 4.2).")
   (max-frame-octets 16384 16384 1048576 "octets"
    "The maximum length of a frame's payload that is accepted. Longer frames only make other streams
wait longer.")
   (connection-window-octets 4194304 65535 134217728 "octets"
    "The number of octets that a peer may send on all streams of a connection before we read them.
The window is returned as octets arrive, even if their calls do not read, until half of
max-held-octets waits.")
   (max-held-octets 67108864 65536 1099511627776 "octets"
    "The maximum amount of memory that one connection may hold. Header lists of open calls,
incomplete messages, messages that calls have not read yet, output, tables and caches are counted
(doc/limits.md, \"One account\"). The buffers of an incomplete message may take 32 times the octets
that have arrived. While messages that calls have not read fill at most half of this memory, only
those calls get no more window. Above half, the whole connection gets no more window, so that the
rest is left for incomplete messages. A call that would exceed the limit ends with
:resource-exhausted. Two messages of max-receive-octets are always allowed.")
   (max-total-held-octets 0 0 1099511627776 "octets"
    "The maximum amount of memory, counted as for max-held-octets, that all connections of a server
or of a channel may hold together. 0 means a quarter of the Lisp heap, but at most 128 MB. The
default is low because all calls wait while a collection copies this memory, a millisecond for each
megabyte. Choose a higher limit where many long messages arrive at once. Above half of this limit,
each connection is limited to two of the largest messages and to 64 KB of output. One peer may hold
three times as much as is still free; a call that would exceed that ends with :resource-exhausted.
If memory exceeds this limit by an eighth, a connection of the peer that holds the most memory is
ended. It is the connection of this peer that holds the most.")
   (max-unsent-octets 1048576 16384 67108864 "octets"
    "The maximum amount of unsent output of a connection. A connection with more is not read, and no
more of its calls begin, until the peer reads the output. While the connections of a server together
hold half of max-total-held-octets, this limit is 64 KB.")
   (send-timeout-seconds 60 0.1 86400 "seconds"
    "If the peer of a connection accepts no waiting output for this time, the connection is
closed.")
   (frame-timeout-seconds 60 0.1 86400 "seconds"
    "The maximum time from the arrival of the beginning of a frame, or of a header block with
CONTINUATIONs, to the arrival of its end. After this time the connection is closed.")
   (max-queued-control-frames 1000 10 1000000 "frames"
    "The maximum number of answers to PING and SETTINGS, and of RST_STREAMs, that may wait for a
peer that does not read. More frames than this end the connection.")
   (max-header-block-octets 65536 4096 1048576 "octets"
    "The maximum size of one compressed header block with all its CONTINUATIONs. A longer block ends
the connection.")
   (max-reset-burst 4000 1 1000000 "resets"
    "The maximum number of RST_STREAMs that the peer of one connection may send or provoke at once,
not counting one for each call that has ended with :ok. With the default a client can cancel
max-concurrent-streams calls several times over. More RST_STREAMs end the connection with
ENHANCE_YOUR_CALM (rapid reset, CVE-2023-44487)."
    :for :server)
   (max-resets-per-second 200 1 1000000 "resets a second"
    "The rate at which the resets of max-reset-burst become available again."
    :for :server)
   (max-idle-frame-burst 1000 1 1000000 "frames"
    "The maximum number of frames without content that the peer of one connection may send at once.
Such frames are SETTINGS, PRIORITY, empty DATA, a server's PINGs, GOAWAY, frames of unknown type,
and interim responses after the first of a stream. WINDOW_UPDATEs, and frames without content on
streams that have ended, count only beyond eight for each DATA frame sent and for each stream. More
such frames end the connection with ENHANCE_YOUR_CALM.")
   (max-idle-frames-per-second 100 1 1000000 "frames a second"
    "The rate at which the frames of max-idle-frame-burst become available again.")
   (settings-timeout-seconds 10 0.1 600 "seconds"
    "The maximum time that a peer may take to acknowledge SETTINGS (RFC 9113 6.5.3).")
   (preface-timeout-seconds 10 0.1 600 "seconds"
    "The maximum time that a new connection may take until its TLS handshake, if any, has ended and
the peer's preface and first SETTINGS have arrived.")
   (keepalive-seconds 330 0 1000000000 "seconds"
    "After this time without an octet from the peer, a PING is sent (gRFC A8, A9); a client sends it
only while calls are under way. 0 means never. Servers of other implementations tolerate at most one
PING each 300 seconds.")
   (keepalive-timeout-seconds 20 0.01 3600 "seconds"
    "The maximum time that the peer may be silent after a keepalive PING. After this time its
connection is closed, and its calls end with :unavailable.")
   (min-keepalive-seconds 10 0 1000000000 "seconds"
    "The minimum value of keepalive-seconds of a client, unless its keepalive-seconds is 0. A
smaller value is raised to this value (gRFC A8)."
    :for :channel)
   (keepalive-without-calls nil
    "Whether a client sends keepalive PINGs also while no call is under way. Many servers close
such a connection."
    :for :channel)
   (max-connection-idle-seconds 1800 0 1000000000 "seconds"
    "A connection that has had no calls for this time, or up to a quarter longer, is closed in
order. A client closes it and connects again for the next call; a server sends GOAWAY. 0 means
never.")
   (max-connection-age-seconds 0 0 1000000000 "seconds"
    "A connection of this age, plus or minus a tenth, takes no more calls, so that clients connect
again through their load balancer. 0 means never.")
   (max-connection-age-grace-seconds 0 0 1000000000 "seconds"
    "The maximum time for which the calls, and HTTP responses in chunks, of a connection older than
max-connection-age-seconds may continue. After this time they end, the calls with :unavailable. 0
means for ever.")
   (min-ping-interval-seconds 300 0 1000000000 "seconds"
    "A client's PING is a strike (max-ping-strikes) if it follows the previous one sooner than this,
and in between no call began or ended and no DATA was sent (gRFC A8)."
    :for :server)
   (ping-without-calls nil
    "Whether a client without a call under way may send PINGs at intervals of
min-ping-interval-seconds. If false, such a client must wait at least two hours between PINGs."
    :for :server)
   (max-ping-strikes 2 0 1000000 "strikes"
    "The maximum number of PINGs of a client that may come sooner than min-ping-interval-seconds
allows. More PINGs end the connection with ENHANCE_YOUR_CALM, too_many_pings."
    :for :server))
  (:listener
   (max-connections 20000 1 1000000 "connections"
    "The maximum number of connections that a server holds at once. It is lower if the process has
not enough descriptors. At the limit a new connection replaces a connection of the peer that has the
most connections. If the peer of the new connection itself has the most, the new connection is
closed as soon as it is accepted.")
   (backlog 4096 1 65535 "connections"
    "The length of the kernel's queue of connections that are not yet accepted.")
   (reuse-port nil
    "Whether other processes of the same user may listen on the same TCP port, if they set this
option too. The kernel distributes new connections among all of them (SO_REUSEPORT). A server that
stops accepts the connections that wait, and leaves later connections to the other processes.")
   (unix-socket-mode #o600 0 #o777 "bits"
    "The permissions of a unix socket that the server listens on, as for chmod: #o600 means that
only its owner may connect, #o660 the group as well. The directory's permissions count too."))
  (:server
   (max-connections-per-peer 10000 1 1000000 "connections"
    "The maximum number of connections of one peer. A peer is an IPv4 address, an IPv6 network of 64
bits, or a user on a unix socket. With a load balancer in front of the server, all connections come
from the balancer's addresses. If the process has fewer descriptors than max-connections needs, one
peer gets at most half of the available descriptors.")
   (max-handshakes 2000 1 1000000 "connections"
    "The maximum number of connections of a server that have not yet sent their preface and
SETTINGS, or have not finished their TLS handshake. At this limit each new connection closes another
connection of this kind: the oldest connection of the peer that has the most.")
   (spare-descriptors 256 0 1000000 "descriptors"
    "The number of descriptors of the process's limit (RLIMIT_NOFILE) that a server leaves to other
users, such as clients, files and logs. It is at most a quarter of that limit. Descriptors that are
open when the server starts are not counted.")
   (raise-descriptor-limit t
    "Whether a server that needs more descriptors than the soft limit allows raises the soft
limit, up to the hard limit. Programs that the process starts inherit it.")
   (max-calls 100000 1 10000000 "calls"
    "The maximum number of calls that a server has under way at once. A further call ends with
:resource-exhausted before any work is done for it. A sixteenth of this number is reserved for peers
without a call, and half of that sixteenth for connections without a call. A peer with calls may
begin another call while it has at most 7 times as many calls as are neither under way nor reserved:
of 100,000 calls, one peer alone may have 82,000, and each of two peers 43,750.")
   (max-fallback-body-octets 1048576 0 1073741824 "octets"
    "The maximum length of the body of a request that is not gRPC, for `start-server`'s :http and
:fallback. A longer body is answered with 413.")
   (http1 t
    "Whether a server with :http or :fallback answers HTTP/1.1 in addition to HTTP/2, on the same
ports. A server with neither keyword never answers HTTP/1.1.")
   (max-http1-head-octets 16384 1024 1048576 "octets"
    "The maximum length of the head of an HTTP/1.1 request, that is, its request line and headers. A
longer head is answered with 431. The trailers of a body in chunks have the same limit.")
   (max-http1-target-octets 8192 128 1048576 "octets"
    "The maximum length of the path, with its query, of an HTTP/1.1 request. A longer path is
answered with 414.")
   (max-http1-fields 100 4 10000 "fields"
    "The maximum number of headers of an HTTP/1.1 request. A request with more headers is answered
with 431.")
   (max-http1-requests 100000 1 1000000000 "requests"
    "The maximum number of requests of one HTTP/1.1 connection that are answered. The last answer
closes the connection, so that clients connect again through their load balancer.")
   (http1-head-timeout-seconds 10 0.1 3600 "seconds"
    "The maximum time that the head of an HTTP/1.1 request may take, counted from its first octet or
from the beginning of the connection. After this time the request is answered with 408, so that
clients that send an octet now and then cannot hold connections.")
   (http1-body-timeout-seconds 60 0.1 86400 "seconds"
    "The maximum time that the body of an HTTP/1.1 request may take after its head. After this time
the request is answered with 408. A stream of messages that comes in chunks may take longer if at
least one whole message comes in each period of this length.")
   (http1-idle-seconds 75 0.1 86400 "seconds"
    "The maximum time that an HTTP/1.1 connection may be without a request before it is closed. Most
load balancers keep their connections for 60 seconds.")
   (http1-send-timeout-seconds 60 0.1 86400 "seconds"
    "If the peer of an HTTP/1.1 connection accepts no octets of a waiting answer for this time, the
connection is closed.")
   (stream-head-seconds 1 0.01 86400 "seconds"
    "The time after which the head of an answer is sent although the handler, of a stream over
gRPC-Web, Connect or REST, has sent nothing, because clients and proxies may wait for the head. In
REST, an error before the head sets the HTTP status; a later error is in the body.")
   (max-running-handlers 1000 1 1000000 "handlers"
    "The maximum number of handlers of one connection that run on reserve threads or wait for a
thread, including handlers whose calls were reset. Further calls end with :resource-exhausted. The
default equals max-concurrent-streams, so that a decent client never reaches it. The number of
handlers that run at once is limited by reserve-threads.")
   (decompression-percent 25 1 100000 "percent"
    "The part of one processor's time that compressed messages of one peer may cost, in addition to
200 nanoseconds for each octet on the wire. It is limited because 236 octets may become 200 KB that
take 5 ms to decode. A peer may use a quarter of a second of this time at once; after that only its
compressed messages wait. A server whose clients all use one proxy may need more.")
   (max-queued-octets 33554432 65536 1099511627776 "octets"
    "The maximum number of octets of one connection's answers that wait because its peer gives no
window or does not read. Above this limit, no further call of the connection begins until some
answers are sent. While the connections of a server together hold half of max-total-held-octets,
this limit is 64 KB.")
   (drain-seconds 10 0 3600 "seconds"
    "The time for which `stop-server` waits for running calls to end before it cancels them."))
  (:reserve
   (reserve-threads 256 1 4096 "threads"
    "The maximum number of threads for handlers that block. Threads start when needed and end after
idling (reserve-idle-seconds). A quarter of them is kept for connections without a thread, a
sixteenth for peers without a thread, and a sixteenth for handlers that begin on the loop. A
connection may take another thread while it has at most 4 times as many threads as are free beyond
that quarter: of 256 threads, one connection alone may have 110; with more connections each gets
fewer. With fewer than 16 threads no thread is kept for handlers that begin on the loop, but an
additional thread may be started for them. An additional thread may also run for each loop that a
reserve thread has taken over for good.")
   (reserve-queue 10000 0 1000000 "calls"
    "The maximum number of calls that may wait for a reserve thread. A further call is refused with
:resource-exhausted.")
   (reserve-wait-seconds 5 0.001 3600 "seconds"
    "The maximum time that a call may wait for a reserve thread before it is refused with
:resource-exhausted. Without this limit, handlers that hold all threads and call the same server
would wait for ever.")
   (reserve-idle-seconds 3 0.1 3600 "seconds"
    "A reserve thread ends after this time without work. Starting a thread again costs 0.1 ms; idle
threads make garbage collection longer."))
  (:channel
   (retry t
    "Whether calls are retried and hedged by the policies of the service config (gRFC A6). If false,
only calls that their server has not seen are repeated.")
   (max-attempts 5 1 1000 "attempts"
    "The maximum number of attempts of one call that a retry or hedging policy may request (5 in
gRFC A6).")
   (replay-octets 262144 0 1073741824 "octets"
    "The maximum number of octets of its requests that a call keeps until its response begins, if
its method has a retry or hedging policy. A call that sends more is not tried again. The default is
grpc-go's.")
   (resend-octets 16384 0 1073741824 "octets"
    "The maximum number of octets of a stream's requests that a call without a retry or hedging
policy keeps until its response begins, so that the call can be repeated if its server has not seen
it. With 0 nothing is kept, and only calls that have sent no message yet, or have a single request,
can be repeated.")
   (resend-messages 4 1 1000000 "messages"
    "The maximum number of messages of a stream that a call without a retry or hedging policy keeps,
so that it can be repeated. A call that sends more keeps nothing, because servers refuse calls at
their beginning, and each kept message costs time.")
   (total-replay-octets 16777216 0 1099511627776 "octets"
    "The maximum number of octets of requests that all calls of a channel together keep
(replay-octets and resend-octets). Above this limit a call keeps nothing.")
   (connect-timeout-seconds 20 0.01 600 "seconds"
    "The maximum time that an attempt to connect to one address may take (gRPC connection back-off
document).")
   (connection-attempt-delay-seconds 0.25 0.1 2 "seconds"
    "If a server has several addresses, the time from an attempt to connect to one address until an
attempt to the next begins in parallel (gRFC A61).")
   (backoff-initial-seconds 1 0.001 600 "seconds"
    "The wait after the first failed attempt to connect (gRPC connection back-off document).")
   (backoff-factor 1.6 1 10 "times"
    "The factor by which the wait between attempts to connect grows with each failed attempt.")
   (backoff-jitter 0.2 0 1 "of the wait"
    "The maximum fraction by which the wait between attempts to connect varies at random, so that
clients do not all connect again at once.")
   (backoff-maximum-seconds 120 0.001 3600 "seconds"
    "The maximum wait between attempts to connect.")
   (dns-timeout-seconds 5 0.05 600 "seconds"
    "The time limit of a query to a DNS server that a channel's target names, or for service
configs. Within that time the query is sent three times.")
   (resolve-interval-seconds 30 0 3600 "seconds"
    "A channel that has lost a server, or cannot reach one, looks its target's name up again, but at
the earliest when this time has passed since the last look-up that had an answer.")
   (max-addresses 1000 1 1000000 "addresses"
    "The maximum number of addresses of its target that a channel uses, which are the first
addresses that its resolver reports. If there are more, a warning is logged. The number is limited
because round_robin and some other policies connect to each address.")
   (max-subchannels 4000 1 1000000 "subchannels"
    "The maximum number of servers that all balancers of a channel together may have, including
removed servers that finish their last calls. It is limited because a service config may have many
targets, each with all addresses. Further servers are ignored, with a warning.")
   (dns-service-config nil
    "Whether a channel to a name takes its service config from the TXT records of _grpc_config.NAME
(gRFC A2). Most names have no such record, and each look-up of the name costs one more query.")
   (idle-seconds 1800 0 1000000000 "seconds"
    "A channel that has had no calls for this time becomes idle: its connections, its balancer and
its resolver end. The next call starts them again. Surplus connections to one server (see
connections-per-subchannel) end after this time too, while the channel continues. The time may be an
eighth longer. 0 means never; other times under a second count as one second.")
   (max-connections-per-subchannel 10 1 1000 "connections"
    "The maximum number of connections to one server that a service config may request
(connectionScaling, gRFC A105).")
   (connections-per-subchannel 1 1 1000 "connections"
    "The number of connections to each server that are made and kept, even if a service config asks
for fewer. A call uses the oldest connection with a free stream.")
   (share-connections nil
    "Whether channels that have the same options, credentials and authority use the same connections
to the same addresses. Channels that share connections share one event loop, so threads that block
on them wait for each other; threads on channels with their own connections do not.")
   (health-checking t
    "Whether the health of servers is checked if the service config requests it (gRFC A17).")
   (ring-size-limit 4096 1 8388608 "entries"
    "The maximum number of entries in the ring of the policy ring_hash, even if a service config
asks for more (gRFC A42). Each channel has a ring, in which an entry takes 16 octets.")
   (max-concurrent-requests 0 0 1000000000 "calls"
    "The maximum number of calls of a channel in flight. A further call ends at once with
:unavailable, and is not retried (gRFC A32). 0 means no limit.")
   (breaker-max-calls 0 0 1000000000 "calls"
    "The maximum number of calls to one server. A call that no other server accepts
ends at once with :unavailable, and is not retried. 0 means no limit.")
   (breaker-max-waiting 0 0 1000000000 "calls"
    "The maximum number of calls that may wait, on a channel that is ready, until one server allows
them a stream. A further call for that server ends at once with :unavailable, and is not retried. 0
means no limit.")
   (breaker-failure-percent 0 0 100 "percent"
    "If this percentage of the calls to one server in breaker-window-seconds has failed by its
fault, it gets no calls for breaker-open-seconds. Then one call is tried; its outcome decides
whether the server gets more calls. Calls that no other server accepts end at once with
:unavailable, and are not retried. 0 means that failures are not counted.")
   (breaker-min-calls 20 1 1000000000 "calls"
    "The minimum number of calls in breaker-window-seconds with which breaker-failure-percent
applies. With fewer calls, one or two failures prove little.")
   (breaker-window-seconds 10 0.01 3600 "seconds"
    "The time in which calls and their failures are counted for breaker-failure-percent.")
   (breaker-open-seconds 5 0.01 3600 "seconds"
    "The time for which a server gets no calls after too many have failed
(breaker-failure-percent).")
   (max-client-loops 0 0 1024 "loops"
    "A new channel gets an event loop of its own while the channels of the image have fewer loops
than this; otherwise it shares a loop. Blocking callers on different loops do not wait for each
other's thread, and loops run on different processors. An idle loop keeps a thread and 0.1 MB. 0
means as many loops as processors, but at least 4 and at most 16."))
  (:tracing
   (max-span-attributes 128 0 65536 "attributes"
    "The maximum number of attributes of a span, an event or a link. The default is OpenTelemetry's.
Further attributes are dropped and counted.")
   (max-span-events 128 0 65536 "events"
    "The maximum number of events, such as the messages of its call, of a span. The default is
OpenTelemetry's. Further events are omitted and counted.")
   (max-span-links 128 0 65536 "links"
    "The maximum number of links of a span. The default is OpenTelemetry's. Further links are
omitted and counted.")
   (max-attribute-characters 1024 1 1048576 "characters"
    "The maximum length of a text in a span: a value of an attribute, a name, or the text of a
status, which may come from a peer. A longer text is truncated.")
   (max-queued-spans 2048 1 1000000 "spans"
    "The maximum number of finished spans of one loop that may wait for an exporter. The same number
may wait for all threads that run no loop together. The default is OpenTelemetry's. Further spans
are dropped and counted.")
   (batch-spans 512 1 1000000 "spans"
    "When this many finished spans of one loop wait, the exporter is called early; the default is
OpenTelemetry's.")))

(defun option-slot (name)
  "The slot of the option NAME, a keyword."
  (find-symbol (string name) '#:clgrpc.option))

(defun fill-options (options arguments)
  "Fill OPTIONS, a new object, from the keyword ARGUMENTS, which CHECK-OPTIONS has checked. If two
arguments have the same name, the first is used. Return OPTIONS."
  (loop for (name) on arguments by #'cddr
        do (setf (slot-value options (option-slot name)) (getf arguments name)))
  options)

(defun make-options (&rest arguments)
  "Return options for one end of a connection, with the values of the keyword ARGUMENTS and defaults
for the rest. Signal MISUSE for a name that is not in the table or does not apply to one end of a
connection, and for a wrong value."
  (check-options :connection arguments)
  (fill-options (%make-options) arguments))

(defun make-server-options (&rest arguments)
  "Return options for a server; ARGUMENTS and conditions are as for MAKE-OPTIONS."
  (check-options :server arguments)
  (fill-options (%make-server-options) arguments))

(defun make-channel-options (&rest arguments)
  "Return options for a channel; ARGUMENTS and conditions are as for MAKE-OPTIONS."
  (check-options :channel arguments)
  (fill-options (%make-channel-options) arguments))

(defun make-inproc-options (&rest arguments)
  "Return options for a channel within the image; ARGUMENTS and conditions are as for MAKE-OPTIONS."
  (check-options :inproc arguments)
  (fill-options (%make-options) arguments))

(defun make-tracing-options (&rest arguments)
  "Return options for tracing; ARGUMENTS and conditions are as for MAKE-OPTIONS."
  (check-options :tracing arguments)
  (fill-options (%make-tracing-options) arguments))

(defun option-values (options)
  "The values of all options that OPTIONS have, a list of (row . value)."
  (loop for row in **option-table**
        for slot = (option-slot (option-row-name row))
        when (slot-exists-p options slot)
          collect (cons row (slot-value options slot))))

(defconstant +most-held-octets+ (* 128 1024 1024)
  "The maximum default of the limit for all links together, however large the heap is. It is limited
because a collection that copies this number of octets stops all threads for about an eighth of a
second.")

(define-hot (total-held-limit :inline t) ((options options)) index
  "The maximum number of octets that all links of a server or channel with OPTIONS may hold
together."
  (let ((limit (options-max-total-held-octets options)))
    (if (zerop limit)
        (min +most-held-octets+ (ash (sb-ext:dynamic-space-size) -2))
        limit)))

(defun check-authority (authority)
  "Return AUTHORITY if it can be the :authority of calls. Signal MISUSE if AUTHORITY has invalid
characters (RFC 3986)."
  (unless (and (stringp authority)
               (plusp (length authority))
               (every (lambda (character) (char< #\Space character #\Rubout)) authority))
    (misuse "~S cannot be the :authority of calls, which is ASCII without spaces; for a name in ~
             another alphabet give its ASCII form, xn--…" authority))
  authority)

(defmethod print-object ((options options) stream)
  (print-unreadable-object (options stream :type t)
    (loop for (row . value) in (option-values options)
          unless (eql value (option-row-default row))
            do (format stream "~(~S~) ~A " (option-row-name row) value))))
