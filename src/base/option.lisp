;;;; The one options table: every limit and default that a user may set, with its scope, type,
;;;; range, default and reason. Everything a peer can grow has its row here. A server or channel
;;;; makes its options from its keyword arguments, and its connections share them.
;;;;
;;;; A row's scope says what it is about. OPTIONS has the rows of what both ends of a connection
;;;; have (:method, :stream, :connection); SERVER-OPTIONS and CHANNEL-OPTIONS include it and have
;;;; the rest. A row that is not for the thing that it is given to is refused by name.
;;;;
;;;; A row counts whole things, and takes integers, if its default is one; but times are reals. One
;;;; whose default is T or NIL takes T or NIL.

(in-package #:clgrpc.base)

(deftype option-scope ()
  '(member :method :stream :connection :listener :server :reserve :channel))

(defstruct (option-row (:copier nil))
  "A row of the options table. See OPTION-TABLE."
  (name :none :type keyword)            ; of the option, as keyword arguments spell it
  (scope :method :type option-scope)    ; what it may be given to
  (only nil :type (member nil :server :channel)) ; the end that has it, if not both of its scope do
  (default nil :type (or real boolean)) ; its value where nothing is given
  (minimum nil :type (or null real))    ; the smallest value allowed, nil for a boolean
  (maximum nil :type (or null real))    ; the largest
  (unit "" :type string)                ; of the value, as text
  (reason "" :type string))             ; what it is for, understood when it is shown alone

(defmethod print-object ((row option-row) stream)
  (print-unreadable-object (row stream :type t)
    (format stream "~(~A~) ~A~@[ from ~A~]~@[ to ~A~] ~A" (option-row-name row)
            (option-row-default row) (option-row-minimum row) (option-row-maximum row)
            (option-row-unit row))))

(document-functions
  option-row-name "The keyword that START-SERVER and MAKE-CHANNEL take."
  option-row-scope "What the option is about: :method, :stream or :connection, which servers and
channels take; :listener, :server or :reserve, which servers take; :channel, which channels take.
Channels within the image take those of :method."
  option-row-only ":server or :channel if only that takes the option, whatever its scope; else nil."
  option-row-default "The value where none is given."
  option-row-minimum "The smallest value allowed; nil if the value is T or NIL."
  option-row-maximum "The largest value allowed; nil if the value is T or NIL."
  option-row-unit "What the value counts, as text."
  option-row-reason "What the option bounds and why its default is what it is, as text.")

(defglobal **option-table** '())

(defun option-table ()
  "Return the list of all options that a server or channel takes as keyword arguments, each with its
scope, default, range, unit and reason."
  **option-table**)

(defun find-option-row (name)
  "The row of the option NAME, a keyword, or nil."
  (find name **option-table** :key #'option-row-name))

(defun option-default (name)
  "Return the value that the option NAME, a keyword, has where none is given."
  (option-row-default (or (find-option-row name) (misuse "There is no option ~S." name))))

;;; What takes which rows

(defglobal **takers**
    '((:connection "connections" :method :stream :connection)
      (:server "servers" :method :stream :connection :listener :server :reserve)
      (:channel "channels" :method :stream :connection :channel)
      (:inproc "channels within the image" :method))
  "What takes options, what several of it are called, and the scopes of the rows that it takes.")

(defun takes-option-p (taker row)
  "True if TAKER, a key of **TAKERS**, takes ROW."
  (and (member (option-row-scope row) (cddr (assoc taker **takers**)))
       (or (null (option-row-only row))
           (eq :connection taker)
           (eq taker (option-row-only row)))))

(defun takers-text (row)
  "What takes ROW, in the plural, as text."
  (format nil "~{~A~#[~; and ~:;, ~]~}"
          (loop for (taker text) in (rest **takers**)
                when (takes-option-p taker row) collect text)))

;;; Values

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun option-type (default minimum maximum unit)
    "The type of the values of a row."
    (cond ((typep default 'boolean) 'boolean)
          ((and (integerp default) (string/= unit "seconds")) `(integer ,minimum ,maximum))
          (t `(real ,minimum ,maximum))))

  (defun parse-option-row (scope form)
    "The arguments of MAKE-OPTION-ROW for FORM, a row of the section SCOPE of DEFINE-OPTIONS."
    (destructuring-bind (name default . more) form
      (destructuring-bind (minimum maximum unit reason &key for)
          (if (typep default 'boolean) (list* nil nil "T or NIL" more) more)
        (list :name (intern (string name) :keyword) :scope scope :only for :default default
              :minimum minimum :maximum maximum :unit unit :reason reason)))))

(defun row-type (row)
  "The type of the values of ROW."
  (option-type (option-row-default row) (option-row-minimum row) (option-row-maximum row)
               (option-row-unit row)))

(defun check-option (row value)
  "Signal MISUSE unless VALUE is one of ROW's."
  (let ((type (row-type row)))
    (cond ((typep value type))
          ((eq 'boolean type)
           (misuse "Option ~S must be T or NIL, not ~S." (option-row-name row) value))
          (t
           (misuse "Option ~S must be ~:[a number~;an integer~] from ~A to ~A (~A), not ~S."
                   (option-row-name row) (eq 'integer (first type)) (option-row-minimum row)
                   (option-row-maximum row) (option-row-unit row) value)))))

(defun check-options (taker arguments)
  "Signal MISUSE unless ARGUMENTS, a plist, names options of TAKER and good values."
  (loop for (name value) on arguments by #'cddr
        for row = (find-option-row name)
        do (cond ((null row)
                  (misuse "There is no keyword or option ~S; (clgrpc:option-table) lists the ~
                          options." name))
                 ((not (takes-option-p taker row))
                  (misuse "The option ~S is for ~A, not for ~A." name (takers-text row)
                          (second (assoc taker **takers**))))
                 (t (check-option row value)))))

(defmacro define-options-structure (name include constructor rows documentation)
  "Define the structure NAME with a slot for each of ROWS, plists that PARSE-OPTION-ROW has made."
  `(progn
     (defstruct (,name (:constructor ,constructor) (:conc-name options-)
                       (:copier ,(if include nil 'copy-options))
                       ,@(and include `((:include ,include))))
       ,documentation
       ,@(loop for row in rows
               collect (destructuring-bind (&key name default minimum maximum unit scope only
                                              reason)
                           row
                         (declare (ignore scope only reason))
                         `(,(intern (string name) '#:clgrpc.base) ,default
                           :type ,(option-type default minimum maximum unit)))))
     (document-functions
       ,@(loop for row in rows
               collect (intern (format nil "OPTIONS-~A" (getf row :name)) '#:clgrpc.base)
               collect (getf row :reason)))))

(defmacro define-options (&body sections)
  "Define the options table and the structures OPTIONS, SERVER-OPTIONS and CHANNEL-OPTIONS from
SECTIONS of the form (scope . rows). A row is (name default minimum maximum unit reason &key for),
or, of T or NIL, (name default reason &key for). FOR is the only end that takes the option."
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
         (declaim (sb-ext:freeze-type options))
         (document-functions copy-options "Return a copy of OPTIONS, which may be a server's or
channel's.")))))

(define-options
  (:method
   (max-receive-octets 4194304 0 2147483647 "octets"
    "Largest message accepted, as in every gRPC; a larger one ends its call with
:resource-exhausted.")
   (max-send-octets 2147483647 0 2147483647 "octets"
    "Largest message we send; gRPC sets no limit here.")
   (max-message-depth 100 1 1000 "levels"
    "How deep messages and groups may nest in one that is decoded, as in protobuf's other
implementations. Bounds the stack.")
   (max-decoded-octets 33554432 0 1099511627776 "octets"
    "Memory that the messages inside one message may take when it is decoded, over eight times its
serialized size. Two octets make an empty message, which takes forty and more: without this 4 MB
could become 2 GB.")
   (compress-minimum-octets 256 0 2147483647 "octets"
    "Shorter messages of calls that compress go as they are, unless `send` is told otherwise: gzip
adds 18 octets and costs 4 µs where all else that a call costs is less.")
   (compression-level 1 1 9 "zlib's level"
    "How hard to compress. Level 6, zlib's own default, takes four to six times as long as 1 for a
fifth fewer octets of text, 3 up to twice as long for a tenth.")
   (send-budget-octets 65536 1024 16777216 "octets"
    "How much one call may have queued unsent before `send` waits and `try-send` refuses.")
   (room-wait-seconds 10 0 3600 "seconds"
    "How long a message of more than 64 KB that is to be sent, or a call of a method whose answers
have been as long lately, may wait for room in the Lisp heap, of which a fifth is kept free; past it
the call ends with :resource-exhausted."))
  (:stream
   (max-concurrent-streams 1000 1 #x7FFFFFFF "streams"
    "What we advertise. Bounds the calls one connection may have open; RFC 9113 6.5.2 asks for 100
or more.")
   (max-header-list-octets 16384 1024 1048576 "octets"
    "What we advertise and enforce, counted as RFC 9113 6.5.2 says; a server sends no longer list
either, whatever its handlers say. gRPC peers send 8 to 16 KB at most.")
   (stream-window-octets 1048576 65535 16777216 "octets"
    "What a peer may send on one stream before we read it. Bounds memory per call that does not
read."))
  (:connection
   (header-table-octets 4096 0 65536 "octets"
    "HPACK dynamic table we offer for decoding, and the most we use for encoding (RFC 7541 4.2).")
   (max-frame-octets 16384 16384 1048576 "octets"
    "Largest frame payload we accept; larger frames only lengthen the wait of other streams.")
   (connection-window-octets 4194304 65535 134217728 "octets"
    "What a peer may send on all streams of a connection before we read it. Given back as octets
arrive, also those of calls that do not read, until half of max-held-octets waits.")
   (max-held-octets 67108864 65536 1099511627776 "octets"
    "Messages of one connection that are not whole yet, with the memory that they have been given,
up to eight times what has come of them, or that nobody has taken. Up to half of it calls that do
not read keep only themselves from getting more; past half neither they nor the connection get
window, so that the rest is for messages under way; past it a call that adds to it ends with
:resource-exhausted. Two messages of max-receive-octets are always allowed.")
   (max-total-held-octets 0 0 1099511627776 "octets"
    "What all connections of a server, or of a channel, may hold together (max-held-octets); 0 is a
quarter of the Lisp heap. Past half of it every connection is held to two of the largest messages;
past all of it a call that adds to it ends with :resource-exhausted.")
   (max-unsent-octets 1048576 16384 67108864 "octets"
    "A connection with a longer unsent tail is not read, nor are its calls begun, until the peer
takes it.")
   (max-queued-control-frames 1000 10 1000000 "frames"
    "Answers to PING and SETTINGS, and RST_STREAMs, waiting for a peer that does not read.")
   (max-header-block-octets 65536 4096 1048576 "octets"
    "One compressed header block with all its CONTINUATIONs; past it the connection ends.")
   (max-reset-burst 4000 1 1000000 "resets"
    "RST_STREAMs that one connection's peer may send or provoke at once, beyond one for each call
that has ended with :ok; a client with max-concurrent-streams calls may cancel all of them, time and
again. Past it the connection ends with ENHANCE_YOUR_CALM (rapid reset, CVE-2023-44487)."
    :for :server)
   (max-resets-per-second 200 1 1000000 "resets a second"
    "How fast that allowance comes back."
    :for :server)
   (max-idle-frame-burst 1000 1 1000000 "frames"
    "Frames of one connection's peer that carry nothing, at once: SETTINGS, PRIORITY, empty DATA, a
server's PINGs, GOAWAY, interim responses after the first of a stream, frames of unknown type,
and, beyond eight for each DATA frame sent and each stream, WINDOW_UPDATEs and frames without
content on streams that have ended. Past it the connection ends with ENHANCE_YOUR_CALM.")
   (max-idle-frames-per-second 100 1 1000000 "frames a second"
    "How fast that allowance comes back.")
   (settings-timeout-seconds 10 0.1 600 "seconds"
    "How long a peer may take to acknowledge SETTINGS (RFC 9113 6.5.3).")
   (preface-timeout-seconds 10 0.1 600 "seconds"
    "How long a new peer may take until the TLS handshake, if there is one, is over and its preface
and first SETTINGS are whole.")
   (keepalive-seconds 330 0 1000000000 "seconds"
    "After so long without an octet from the peer we send a PING (gRFC A8, A9), a client only while
calls are under way; 0 is never. Servers of other implementations take one each 300 seconds amiss at
the earliest.")
   (keepalive-timeout-seconds 20 0.01 3600 "seconds"
    "How long the peer may be silent after that PING; then its connection is given up and its calls
end with :unavailable.")
   (keepalive-without-calls nil
    "Whether a client sends those PINGs also while no call is under way; many servers take that
amiss."
    :for :channel)
   (max-connection-idle-seconds 1800 0 1000000000 "seconds"
    "A connection that has been without calls for so long, or a quarter longer, is closed in order:
by a client, which connects again for the next call, or by a server, with GOAWAY; 0 is never.")
   (max-connection-age-seconds 0 0 1000000000 "seconds"
    "A connection as old as that, give or take a tenth, takes no more calls, so that clients come
back by way of their load balancer; 0 is never.")
   (max-connection-age-grace-seconds 0 0 1000000000 "seconds"
    "How long the calls of a connection that is too old may go on; then they end with :unavailable;
0 is for ever.")
   (min-ping-interval-seconds 300 0 1000000000 "seconds"
    "A client's PING that follows another sooner than this, with no call begun or ended and no DATA
sent between, is a strike against it (gRFC A8)."
    :for :server)
   (ping-without-calls nil
    "Whether a client may send PINGs that often also without a call under way; if not, that interval
is two hours at least."
    :for :server)
   (max-ping-strikes 2 0 1000000 "strikes"
    "With one strike more than this the connection ends with ENHANCE_YOUR_CALM, too_many_pings."
    :for :server))
  (:listener
   (max-connections 20000 1 1000000 "connections"
    "Connections a server holds at once, or fewer if the process may have no more descriptors. When
there are so many and a peer comes that has fewer than another, the peer that has most loses one; if
it has most itself, its new connection is closed as soon as it is accepted.")
   (backlog 4096 1 65535 "connections"
    "Length of the kernel's queue of connections not yet accepted.")
   (reuse-port nil
    "Whether other processes of the same user may listen on the same TCP port, if they say so too;
the kernel deals new connections out to all of them (SO_REUSEPORT).")
   (unix-socket-mode #o600 0 #o777 "bits"
    "Who may connect to a unix socket that we listen on, as for chmod: #o600 its owner alone, #o660
the group as well. The directory's permissions count too."))
  (:server
   (max-connections-per-peer 10000 1 1000000 "connections"
    "Connections of one peer: an IPv4 address, an IPv6 network of 64 bits, a user on a unix socket.
Behind a load balancer all connections come from its addresses. Where descriptors are fewer than
max-connections, half of what is left at most.")
   (max-handshakes 2000 1 1000000 "connections"
    "Connections of a server that have not yet sent their preface and SETTINGS, or done their TLS
handshake. When there are so many, each new one has the oldest closed of the peer that has most.")
   (spare-descriptors 256 0 1000000 "descriptors"
    "Of the descriptors that the process may have (RLIMIT_NOFILE) a server leaves so many to others:
clients, files, logs; a quarter of them at most. What is open when it starts counts besides.")
   (raise-descriptor-limit t
    "Whether a server that needs more descriptors than the soft limit allows raises that, as far as
the hard limit does. Programs that the process starts inherit it.")
   (max-calls 100000 1 10000000 "calls"
    "Calls under way that a server has at once; more end with :resource-exhausted before anything is
done for them. One peer alone may have four fifths of them, and the more have some, the less each; a
sixteenth is kept for peers, and half of that for connections, that have none.")
   (max-running-handlers 1000 1 1000000 "handlers"
    "Handlers of one connection that run on reserve threads, or wait for one, those of calls that
were reset while they ran among them; more calls end with :resource-exhausted. As many as streams,
so that a decent client never comes to it; how many run at once is for reserve-threads to say.")
   (max-queued-octets 33554432 65536 1099511627776 "octets"
    "Answers of one connection that its peer has no window for or does not take. Past it no more of
its calls are begun until some have left. While the connections of a server together have as much as
half of max-total-held-octets, each is held to 64 KB.")
   (drain-seconds 10 0 3600 "seconds"
    "How long `stop-server` lets running calls end before it cancels them."))
  (:reserve
   (reserve-threads 256 1 4096 "threads"
    "Threads for handlers that block; they start when needed and end after idling. One connection
alone may have 110 of 256, and the more have some, the less each; a quarter is kept for connections
that have none, a sixteenth for peers' addresses that have none, another for handlers on the loop.")
   (reserve-queue 10000 0 1000000 "calls"
    "Calls that may wait for a reserve thread; more are refused with :resource-exhausted.")
   (reserve-wait-seconds 5 0.001 3600 "seconds"
    "How long a call may wait for a reserve thread; past it, it is refused with :resource-exhausted.
The threads may all wait, themselves, for calls to this server that wait for a thread.")
   (reserve-idle-seconds 3 0.1 3600 "seconds"
    "After so long without work a reserve thread ends. Starting one anew costs 0.1 ms; idle ones
make garbage collection longer."))
  (:channel
   (replay-octets 0 0 1073741824 "octets"
    "What a stream of requests has sent is kept up to so much, until its response begins, so that a
call that its server has not seen can be made again. 0 keeps nothing, which costs nothing: then only
calls that have sent no message yet, or have one request only, are made again.")
   (total-replay-octets 16777216 0 1099511627776 "octets"
    "What all calls of a channel together keep (replay-octets); past it a call keeps nothing.")
   (connect-timeout-seconds 20 0.01 600 "seconds"
    "How long one attempt to connect may take (gRPC connection back-off document).")
   (backoff-initial-seconds 1 0.001 600 "seconds"
    "First wait after a failed attempt to connect (gRPC connection back-off document).")
   (backoff-factor 1.6 1 10 "times"
    "Growth of that wait with each failed attempt.")
   (backoff-jitter 0.2 0 1 "of the wait"
    "Random part of that wait, so that clients do not come back together.")
   (backoff-maximum-seconds 120 0.001 3600 "seconds"
    "Longest such wait.")
   (max-client-loops 0 0 1024 "loops"
    "The channel gets an event loop of its own while the channels of the image have fewer, else it
shares one. Blocking callers on different loops do not wait for one another's thread, and loops run
on different processors; one that is idle keeps a thread and 0.1 MB. 0 is the number of processors,
but at least 4 and at most 16.")))

(defun make-options (&rest arguments)
  "Return options for one end of a connection, with the values of the keyword ARGUMENTS and defaults
for the rest. Signal MISUSE for a name that is not in the table, or not for it, or a wrong value."
  (check-options :connection arguments)
  (apply #'%make-options arguments))

(defun make-server-options (&rest arguments)
  "Return options for a server; ARGUMENTS and what may be signalled are as for MAKE-OPTIONS."
  (check-options :server arguments)
  (apply #'%make-server-options arguments))

(defun make-channel-options (&rest arguments)
  "Return options for a channel; ARGUMENTS and what may be signalled are as for MAKE-OPTIONS."
  (check-options :channel arguments)
  (apply #'%make-channel-options arguments))

(defun make-inproc-options (&rest arguments)
  "Return options for a channel within the image; ARGUMENTS and what may be signalled are as for
MAKE-OPTIONS."
  (check-options :inproc arguments)
  (apply #'%make-options arguments))

(defmethod print-object ((options options) stream)
  (print-unreadable-object (options stream :type t)
    (loop for row in **option-table**
          for slot = (find-symbol (string (option-row-name row)) '#:clgrpc.base)
          for value = (if (slot-exists-p options slot)
                          (slot-value options slot)
                          (option-row-default row))
          unless (eql value (option-row-default row))
            do (format stream "~(~S~) ~A " (option-row-name row) value))))
