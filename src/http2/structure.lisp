;;;; The structures: sink (whom we tell), accounting (what a peer costs us), pool (what connections
;;;; of one loop share), stream and connection. No behaviour; the files that follow have it.
;;;;
;;;; Invariants: a stream is in its connection's table from the moment it exists until it is
;;;; finished; STREAM-COUNT is the number in the table. A stream with queued octets and room in its
;;;; window is in the ring of writers exactly once. Every stream the owner has seen gets
;;;; ON-STREAM-CLOSED once.

(in-package #:clgrpc.http2)

(deftype window ()
  "A flow-control window; SETTINGS can make one negative (RFC 9113 section 6.9.2)."
  '(signed-byte 32))
(deftype time-ns () '(unsigned-byte 62))
(deftype event-count () '(unsigned-byte 62))

(defun ignore-call (&rest arguments)
  (declare (ignore arguments))
  nil)

(defstruct (sink (:copier nil) (:predicate nil))
  "The functions a connection calls; arguments are valid only during the call. Each defaults to a
function that does nothing, except ON-OUTPUT, which has no default.
  ON-OUTPUT (connection) returns the buffer to append to: there is, or may soon be, output.
  ON-HEADERS (stream field-list end-stream-p): a request at a server, a final response at a client.
  ON-DATA (stream octets start end end-stream-p): content; give it back with CONSUME-DATA.
  ON-TRAILERS (stream field-list): trailers; they end the peer's side.
  ON-RESET (stream error-code source): the stream ended early. SOURCE is :PEER (it sent RST_STREAM),
    :LOCAL (we found an error of the peer and sent RST_STREAM), :GOAWAY (not processed by the peer,
    may be tried again) or :CONNECTION (the connection ended).
  ON-WRITABLE (stream): its queue fell under half of the option send-budget-octets.
  ON-STREAM-CLOSED (stream): the last call for this stream, once for each.
  ON-GOAWAY (connection last-stream-id error-code debug-octets)
  ON-SETTINGS (connection): the peer's settings are in force.
  ON-PING-ACK (connection payload): the answer to SEND-PING.
  ON-CLOSE (connection error-code text): the connection is finished; flush and close it."
  (on-output (lambda (connection) (misuse "The sink of ~S has no ON-OUTPUT." connection))
   :type function)
  (on-headers #'ignore-call :type function)
  (on-data #'ignore-call :type function)
  (on-trailers #'ignore-call :type function)
  (on-reset #'ignore-call :type function)
  (on-writable #'ignore-call :type function)
  (on-stream-closed #'ignore-call :type function)
  (on-goaway #'ignore-call :type function)
  (on-settings #'ignore-call :type function)
  (on-ping-ack #'ignore-call :type function)
  (on-close #'ignore-call :type function))

(defstruct (accounting (:copier nil) (:predicate nil))
  "What a peer makes one connection hold and do. QUEUED-OCTETS: DATA waiting for windows;
CONTROL-FRAMES: answers appended since the output was last empty; BLOCK-OCTETS: the unfinished
header block. RESETS-DUE to PING-STRIKES are of patience.lisp. The others count events since the
connection began; CALLS-SERVED those of NOTE-CALL-SERVED."
  (queued-octets 0 :type index)
  (control-frames 0 :type event-count)
  (block-octets 0 :type index)
  (streams-opened 0 :type event-count)
  (streams-refused 0 :type event-count)
  (resets-received 0 :type event-count)
  (resets-sent 0 :type event-count)
  (pings-received 0 :type event-count)
  (settings-received 0 :type event-count)
  (empty-frames 0 :type event-count)
  (malformed-messages 0 :type event-count)
  (resets-due 0 :type time-ns)
  (idle-due 0 :type time-ns)
  (calls-served 0 :type event-count)
  (resets-borne 0 :type event-count)
  (pinged-ns 0 :type time-ns)
  (opened-at-ping 0 :type event-count)
  (open-at-ping 0 :type index)
  (data-since-ping nil :type boolean)
  (updates-earned 0 :type (unsigned-byte 31))
  (ping-strikes 0 :type event-count))

;;; Pools and connections point to streams, which are defined after them; until then the compiler
;;; notes that it does not know the type.
(declaim (sb-ext:muffle-conditions sb-ext:compiler-note))

(defstruct (pool (:constructor make-pool ()) (:copier nil) (:predicate nil))
  "What the connections of one thread may share: streams to use again, the list a header block is
decoded into, and fields that their peers have in common; and the DATA octets that they have queued
together. Never used by two threads at once."
  (streams nil :type (or null stream))
  (stream-count 0 :type index)
  (queued-octets 0 :type index)
  (field-list nil :type (or null hpack:field-list))
  (common (hpack:make-common-fields) :type simple-vector))

(defmethod print-object ((pool pool) stream)
  (print-unreadable-object (pool stream :type t :identity t)
    (format stream "~D streams" (pool-stream-count pool))))

;;; Connections

(defconstant +awaiting-preface+ 0)
(defconstant +awaiting-settings+ 1)
(defconstant +running+ 2)
(defconstant +in-header-block+ 3)
(defconstant +finished-connection+ 4)

(defconstant +default-window+ 65535 "Every window before SETTINGS or WINDOW_UPDATE (6.9.2).")
(defconstant +default-frame-octets+ 16384 "The largest frame before SETTINGS (6.5.2).")
(defconstant +default-table-octets+ 4096 "The HPACK table before SETTINGS (6.5.2).")
(defconstant +no-goaway+ -1)

(defstruct (connection (:constructor %make-connection
                           (server-p sink options user pool encoder decoder
                            stream-window connection-window))
                       (:copier nil))
  "One end of an HTTP/2 connection."
  (server-p nil :type boolean)
  (sink nil :type sink)
  (options nil :type options)
  (user nil)
  (pool nil :type pool)
  (accounting (make-accounting) :type accounting)
  (phase +awaiting-preface+ :type (unsigned-byte 3))
  (output nil :type (or null buffer))
  (encoder nil :type hpack:encoder)
  (decoder nil :type hpack:decoder)
  (error-text "" :type simple-string)
  ;; Streams. HIGHEST-ID is the last one the client opened; SKIPPED-* the newest gap it left below.
  (table #() :type simple-vector)
  (seed (hash-seed) :type (unsigned-byte 62)) ; see STREAM-SLOT
  (stream-count 0 :type index)
  (highest-id -1 :type (signed-byte 32))
  (skipped-low 0 :type stream-id)
  (skipped-high 0 :type stream-id)
  (opening nil :type (or null stream))
  (current nil :type (or null stream))
  (resets (load-time-value (make-array 0 :element-type '(unsigned-byte 32)))
   :type (simple-array (unsigned-byte 32) (*)))
  (reset-count 0 :type index)
  (reset-forgotten 0 :type stream-id)
  (goaway-sent +no-goaway+ :type (signed-byte 32))
  (goaway-received +no-goaway+ :type (signed-byte 32))
  ;; Sending: the peer's settings and the ring of writers
  (send-window +default-window+ :type window)
  (peer-stream-window +default-window+ :type window)
  (peer-frame-octets +default-frame-octets+ :type (unsigned-byte 24))
  (peer-max-streams 100 :type (unsigned-byte 32))
  (peer-max-header-list #xFFFFFFFF :type (unsigned-byte 32))
  (ring-head nil :type (or null stream))
  (ring-tail nil :type (or null stream))
  (open-mark -1 :type fixnum)
  ;; Receiving
  (stream-window 0 :type window)
  (connection-window 0 :type window)
  (receive-window +default-window+ :type window)
  (unreturned 0 :type window)
  (due nil :type (or null stream))
  (block-id 0 :type stream-id)
  (block-flags 0 :type (unsigned-byte 9))
  (block-buffer nil :type (or null buffer))
  ;; Time; a deadline of 0 is none
  (settings-deadline 0 :type time-ns)
  (preface-deadline 0 :type time-ns)
  (last-receive-ns 0 :type time-ns))

;;; Streams

(declaim (sb-ext:unmuffle-conditions sb-ext:compiler-note))

(defconstant +received-headers+ #b1 "Request, or final response, has come.")
(defconstant +sent-headers+ #b10 "Request or response has been sent.")
(defconstant +in-ring+ #b100 "Among the writers that take turns.")
(defconstant +update-due+ #b1000 "A WINDOW_UPDATE is to be written.")
(defconstant +queue-ends+ #b10000 "END_STREAM goes with the last queued octet.")
(defconstant +finished+ #b100000 "Out of the table; ON-STREAM-CLOSED was called.")
(defconstant +released+ #b1000000 "The owner keeps no reference.")
(defconstant +had-interim+ #b10000000 "A 1xx response has come.")

(defstruct (segment (:constructor make-segment (octets start end storable)) (:copier nil)
                    (:predicate nil))
  "Octets queued on a stream. If STORABLE they go back to the store of clgrpc.base."
  (octets (make-octets 0) :type octets)
  (start 0 :type index)
  (end 0 :type index)
  (storable nil :type boolean)
  (next nil :type (or null segment)))

(defstruct (stream (:constructor %make-stream (connection id)) (:copier nil))
  "An HTTP/2 stream. NEXT chains its bucket of the table, or the pool; LINK the ring of writers;
DUE those whose WINDOW_UPDATE is to be written. RECEIVE-WINDOW is what the peer may still send,
UNCONSUMED what the owner holds, CREDITED how much of that the connection's window has back already,
UNRETURNED what was consumed and not yet given back. CONTENT-LEFT is what content-length promises
and did not come yet, or -1."
  (id 0 :type stream-id)
  (state +idle+ :type state)
  (flags 0 :type (unsigned-byte 8))
  (connection nil :type connection)
  (user nil)
  (next nil :type (or null stream))
  (link nil :type (or null stream))
  (due nil :type (or null stream))
  (send-window 0 :type window)
  (receive-window 0 :type window)
  (unreturned 0 :type window)
  (unconsumed 0 :type window)
  (credited 0 :type window)
  (content-left -1 :type fixnum)
  (queue-head nil :type (or null segment))
  (queue-tail nil :type (or null segment))
  (queued-octets 0 :type index)
  (trailers-function nil :type (or null function)))

(declaim (sb-ext:freeze-type sink accounting pool segment stream connection))

(define-hot (stream-flag-p :inline t) ((stream stream) (flag (unsigned-byte 8))) boolean
  (logtest flag (stream-flags stream)))

(define-hot (set-stream-flag :inline t) ((stream stream) (flag (unsigned-byte 8))) null
  (setf (stream-flags stream) (logior flag (stream-flags stream)))
  nil)

(define-hot (clear-stream-flag :inline t) ((stream stream) (flag (unsigned-byte 8))) null
  (setf (stream-flags stream) (logandc2 (stream-flags stream) flag))
  nil)

(define-hot (connection-closed-p :inline t) ((connection connection)) boolean
  "True once CONNECTION is finished: whatever it still gets is ignored."
  (= (connection-phase connection) +finished-connection+))

(defun connection-ready-p (connection)
  "True once the peer's first SETTINGS have come and until CONNECTION is finished."
  (< +awaiting-settings+ (connection-phase connection) +finished-connection+))

(defun connection-draining-p (connection)
  "True if either end sent GOAWAY: running streams go on, new ones are not for this connection."
  (or (/= +no-goaway+ (connection-goaway-sent connection))
      (/= +no-goaway+ (connection-goaway-received connection))))

(defun connection-role (connection)
  "Return :SERVER or :CLIENT."
  (if (connection-server-p connection) :server :client))

(defun stream-state-name (stream)
  "Return the state of STREAM (RFC 9113 section 5.1) as a keyword: :IDLE, :OPEN, :HALF-CLOSED-LOCAL,
:HALF-CLOSED-REMOTE, :CLOSED or, if closed by a RST_STREAM of ours, :RESET."
  (intern (string (nth (stream-state stream) *states*)) :keyword))

(define-hot stream-sendable-p ((stream stream)) boolean
  "True if our side of STREAM may still send: HEADERS first, then DATA or trailers."
  (or (sending-state-p (stream-state stream)) (= +idle+ (stream-state stream))))

(define-hot stream-receivable-p ((stream stream)) boolean
  "True if the peer may still send DATA or trailers on STREAM."
  (receiving-state-p (stream-state stream)))

(define-hot stream-open-p ((stream stream)) boolean
  "True until STREAM is closed in both directions or reset."
  (< (stream-state stream) +closed+))

(defmethod print-object ((stream stream) output)
  (print-unreadable-object (stream output :type t)
    (format output "~D ~(~A~)~[~:;, ~:*~D octets queued~]" (stream-id stream)
            (stream-state-name stream) (stream-queued-octets stream))))

(defmethod print-object ((connection connection) output)
  (print-unreadable-object (connection output :type t :identity t)
    (format output "~(~A~), ~D stream~:P~:[~;, draining~]~:[~;, closed~]"
            (connection-role connection) (connection-stream-count connection)
            (connection-draining-p connection) (connection-closed-p connection))))

;;; What the exported accessors mean to the owner

(macrolet ((document (&rest rows)
             `(setf ,@(loop for (name text) in rows
                            append `((documentation ',name 'function) ,text)))))
  (document
   (make-sink "Return a sink of functions given by keywords. See the structure SINK.")
   (make-pool "Return a pool for MAKE-CONNECTION. Connections that one thread runs may share one.")
   (stream-p "True if the argument is a STREAM.")
   (stream-id "The identifier of a stream: odd, as clients open them all (RFC 9113 section 5.1.1).")
   (stream-connection "The connection that a stream belongs to.")
   (stream-user "Whatever the owner wants to find with a stream; NIL at first. SETFable.")
   (stream-queued-octets "How many octets wait on a stream for windows or a turn.")
   (connection-p "True if the argument is a CONNECTION.")
   (connection-user "Whatever the owner wants to find with a connection. SETFable.")
   (connection-options "The OPTIONS that limit a connection.")
   (connection-sink "The SINK that a connection calls.")
   (connection-accounting "What the peer has made a connection do: an ACCOUNTING structure.")
   (connection-output
    "The buffer that a connection appends to, or NIL if it has nothing to say since the owner set
this to NIL. The owner does so each time it takes the buffer away to send it.")
   (connection-stream-count "How many streams of a connection are not closed yet.")
   (connection-error-text
    "What was wrong, for logs: the reason of the last stream error or of the end of a connection.")
   (connection-last-receive-ns "The NOW of the last RECEIVE-OCTETS; for keepalive.")
   (connection-peer-max-streams
    "The peer's SETTINGS_MAX_CONCURRENT_STREAMS: 100 until its SETTINGS come, 2^32-1 if not there.")
   (connection-peer-max-header-list
    "The peer's SETTINGS_MAX_HEADER_LIST_SIZE; 2^32-1 if it named none. It is only advice (6.5.2).")
   (connection-goaway-received
    "The last stream that the peer's GOAWAY says it has seen, 0 for none; -1 without a GOAWAY.")
   (pool-queued-octets "DATA octets queued on all connections of a pool.")
   (accounting-queued-octets "DATA octets queued on all streams, waiting for windows or a turn.")
   (accounting-control-frames "Answers appended since the output was last empty.")
   (accounting-block-octets "Octets of the header block that is being collected.")
   (accounting-streams-opened "Streams that were opened, by either side.")
   (accounting-streams-refused "Streams of the peer above our limit.")
   (accounting-resets-received "RST_STREAM frames received.")
   (accounting-resets-sent "RST_STREAM frames sent.")
   (accounting-pings-received "PING frames received, answers to ours among them.")
   (accounting-settings-received "SETTINGS frames received, acknowledgements not counted.")
   (accounting-empty-frames "DATA frames received that had no content and ended nothing.")
   (accounting-malformed-messages "Requests, responses and trailers that broke section 8.")))
