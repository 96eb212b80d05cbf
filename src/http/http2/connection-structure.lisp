;;;; The structures: sink (the functions that a connection calls), counters (the memory and work
;;;; that a peer causes), pool (the shared data of the connections of one loop), stream and
;;;; connection. The behaviour is in the files that follow.
;;;;
;;;; Invariants: a stream is in its connection's table from its creation until it is finished;
;;;; STREAM-COUNT is the number of streams in the table. A stream with queued octets and room in its
;;;; window is in the ring of writers exactly once. Every stream the owner has seen gets
;;;; ON-STREAM-CLOSED once.

(in-package #:clgrpc.http2)

(deftype window ()
  "A flow-control window; SETTINGS can make a window negative (RFC 9113 section 6.9.2)."
  '(signed-byte 32))
(deftype time-ns () '(unsigned-byte 62))
(deftype event-count () '(unsigned-byte 62))

(defun ignore-call (&rest arguments)
  (declare (ignore arguments))
  nil)

(defstruct (sink (:copier nil) (:predicate nil))
  "The functions a connection calls; arguments are valid only during the call. Each function has a
default that does nothing, except ON-OUTPUT, which has no default.
  ON-OUTPUT (connection) returns the buffer to append to; the call means that there is output, or
    may be soon.
  ON-HEADERS (stream field-list end-stream-p): a request at a server, a final response at a client.
  ON-DATA (stream octets start end end-stream-p): content; call CONSUME-DATA once it is read.
  ON-TRAILERS (stream field-list): trailers; they end the peer's side.
  ON-RESET (stream error-code source): the stream ended early. SOURCE is :PEER (the peer sent
    RST_STREAM), :LOCAL (we found an error of the peer and sent RST_STREAM), :GOAWAY (the peer has
    not processed the stream, so it may be tried again) or :CONNECTION (the connection ended).
  ON-WRITABLE (stream): its queue fell under half of the option send-budget-octets.
  ON-QUEUED (connection): more DATA waits, for windows or a turn.
  ON-STREAM-CLOSED (stream): the last call for this stream, once for each.
  ON-GOAWAY (connection last-stream-id error-code debug-octets): the peer's GOAWAY.
  ON-SETTINGS (connection): the peer's settings are in force.
  ON-PING-ACK (connection payload): the answer to SEND-PING.
  ON-CLOSE (connection error-code text): the connection is finished; flush and close it."
  ;; the buffer to append to
  (on-output (lambda (connection) (misuse "The sink of ~S has no ON-OUTPUT." connection))
   :type function)
  (on-headers #'ignore-call :type function) ; called with a request or a final response
  (on-data #'ignore-call :type function) ; content
  (on-trailers #'ignore-call :type function) ; the last fields of the peer's side
  (on-reset #'ignore-call :type function) ; a stream ended early
  (on-writable #'ignore-call :type function) ; a stream's queue has become short
  (on-queued #'ignore-call :type function) ; more DATA waits
  (on-stream-closed #'ignore-call :type function) ; the last call for a stream
  (on-goaway #'ignore-call :type function) ; the peer opens or takes no more streams
  (on-settings #'ignore-call :type function) ; the peer's settings are in force
  (on-ping-ack #'ignore-call :type function) ; the answer to a PING of ours
  (on-close #'ignore-call :type function)) ; the connection is finished

(defstruct (counters (:constructor make-counters ()) (:copier nil) (:predicate nil))
  "The memory and work that a peer causes at one connection: present amounts, counts since the
beginning of the connection, and the state of its rate limits (rate-limit.lisp)."
  (queued-octets 0 :type index)         ; DATA that waits for windows or a turn to write
  (control-frames 0 :type event-count)  ; answers in the output, with some that were sent lately
  ;; the number of control frames in the output that come after CONTROL-MARK
  (later-control-frames 0 :type event-count)
  (control-mark 0 :type event-count)    ; a place in the output, as SENT-OCTETS counts
  (block-octets 0 :type index)          ; octets of the header block that is being collected
  (streams-opened 0 :type event-count)  ; streams that either side has opened
  ;; the number of opened streams that ended before the server had ended its side
  (streams-failed 0 :type event-count)
  (resets-due 0 :type time-ns)          ; the time when the whole burst of resets is allowed again
  ;; the time when the whole burst of frames without content is allowed again
  (idle-due 0 :type time-ns)
  (calls-served 0 :type event-count)    ; calls of NOTE-CALL-SERVED, which each earn a reset
  (resets-borne 0 :type event-count)    ; earned resets that were used up, or that lapsed
  (pinged-ns 0 :type time-ns)           ; the time when the peer's last PING came
  (opened-at-ping 0 :type event-count)  ; STREAMS-OPENED at the last PING
  (open-at-ping 0 :type index)          ; the number of open streams at the last PING
  (data-since-ping nil :type boolean)   ; true if we have sent DATA since then
  (updates-earned 0 :type (unsigned-byte 31)) ; WINDOW_UPDATEs and late frames still free of charge
  (ping-strikes 0 :type event-count))   ; PINGs that came too soon, one after the other (gRFC A8)

;;; Pools and connections point to streams, which are defined after them; until then the compiler
;;; notes that it does not know the type.
(declaim (sb-ext:muffle-conditions sb-ext:compiler-note))

(defstruct (pool (:constructor make-pool (&key keeps-users)) (:copier nil) (:predicate nil))
  "The shared data of the connections of one thread. Two threads must not use it at once."
  (keeps-users nil :type boolean :read-only t) ; a stream that is used again keeps its user
  (streams nil :type (or null stream))  ; streams to use again, chained by NEXT
  (stream-count 0 :type index)          ; the number of streams in the table
  (field-list nil :type (or null hpack:field-list)) ; the list into which a header block is decoded
  (common (hpack:make-common-fields) :type simple-vector)) ; fields that many peers send

(defmethod print-object ((pool pool) stream)
  (print-unreadable-object (pool stream :type t :identity t)
    (format stream "~D streams" (pool-stream-count pool))))

;;; Connections

(defconstant +awaiting-preface+ 0)
(defconstant +awaiting-settings+ 1)
(defconstant +running+ 2)
(defconstant +in-header-block+ 3)
(defconstant +finished-connection+ 4)

(defconstant +default-window+ 65535
  "The size of every window before SETTINGS or WINDOW_UPDATE change it (6.9.2).")
(defconstant +default-frame-octets+ 16384 "The maximum length of a frame before SETTINGS (6.5.2).")
(defconstant +default-table-octets+ 4096
  "The size of HPACK's table before SETTINGS change it (6.5.2).")
(defconstant +no-goaway+ -1)

(defstruct (partial-block (:constructor make-partial-block (id flags buffer since-ns))
                          (:copier nil) (:predicate nil))
  "A header block that waits for CONTINUATIONs."
  (id 0 :type stream-id :read-only t)   ; its stream
  (flags 0 :type (unsigned-byte 9) :read-only t) ; the flags of its HEADERS
  (buffer nil :type buffer :read-only t) ; the part that has come
  (since-ns 0 :type time-ns :read-only t)) ; the time of the first part

(define-printer (block partial-block)
  "of stream ~D" (partial-block-id block))

(defstruct (connection (:constructor %make-connection
                           (server-p sink options user pool encoder decoder
                            stream-window connection-window))
                       (:copier nil))
  "One end of an HTTP/2 connection."
  (server-p nil :type boolean)          ; true at the server
  (sink nil :type sink)                 ; the functions of the connection's owner
  (options nil :type options)           ; the connection's limits
  (user nil)                            ; any object of the owner
  (pool nil :type pool)                 ; shared with other connections of the thread
  (counters (make-counters) :type counters) ; the work that the peer caused
  (phase +awaiting-preface+ :type (unsigned-byte 3)) ; a constant above
  ;; the buffer to which output is appended; nil until it is borrowed
  (output nil :type (or null buffer))
  (given-octets 0 :type index)          ; the octets of OUTPUT when it was given back
  (sent-octets 0 :type event-count)     ; the octets sent before OUTPUT was last borrowed
  (encoder nil :type hpack:encoder)     ; the encoder of our header blocks
  (decoder nil :type hpack:decoder)     ; the decoder of the peer's header blocks
  (error-text "" :type simple-string)   ; the last error, for logs
  ;; Streams
  (table #() :type simple-vector)       ; chains of streams that are not finished; see STREAM-SLOT
  (seed (hash-seed) :type (unsigned-byte 62)) ; the seed for the choice of chains
  (stream-count 0 :type index)          ; the number of streams in the table
  (highest-id -1 :type (signed-byte 32)) ; the last identifier that the client has used
  ;; the newest gap of identifiers that the client left below HIGHEST-ID: its first identifier
  (skipped-low 0 :type stream-id)
  (skipped-high 0 :type stream-id)      ; and its last
  (opening nil :type (or null stream))  ; the client's new stream, until its headers are sent
  (current nil :type (or null stream))  ; the stream for which a sink function runs
  ;; the streams that we reset and have recorded one by one (reset.lisp), in order
  (resets (load-time-value (make-array 0 :element-type '(unsigned-byte 32)))
   :type (simple-array (unsigned-byte 32) (*)))
  (reset-count 0 :type index)           ; the number of places of RESETS in use
  (reset-forgotten 0 :type stream-id)   ; the highest stream that was dropped from RESETS
  (goaway-sent +no-goaway+ :type (signed-byte 32)) ; the last stream that our GOAWAY named
  (goaway-received +no-goaway+ :type (signed-byte 32)) ; the last stream in the peer's GOAWAY
  ;; Sending
  (send-window +default-window+ :type window) ; octets of DATA that the peer still takes
  (peer-stream-window +default-window+ :type window) ; a new stream's window
  (peer-frame-octets +default-frame-octets+ :type (unsigned-byte 24)) ; the peer's largest frame
  (peer-max-streams 100 :type (unsigned-byte 32)) ; the most streams that the peer allows
  (peer-max-header-list #xFFFFFFFF :type (unsigned-byte 32)) ; the peer's advice (6.5.2)
  (ring-head nil :type (or null stream)) ; the next stream in the ring of writers
  (ring-tail nil :type (or null stream)) ; the last stream of the ring
  (open-mark -1 :type fixnum)           ; the place in the output of an open header block, or -1
  ;; the stream whose DATA frame is the last part of the output
  (data-stream nil :type (or null stream))
  (data-mark 0 :type index)             ; the place in the output where that frame begins
  (data-end 0 :type index)              ; the place in the output where that frame ends
  ;; Receiving
  (stream-window 0 :type window)        ; the full window of a stream
  (connection-window 0 :type window)    ; the full window of the connection
  (receive-window +default-window+ :type window) ; how much the peer may still send
  (unreturned 0 :type window)           ; octets consumed and not yet given back
  (due nil :type (or null stream))      ; streams with a due WINDOW_UPDATE
  ;; the header block that is being collected
  (partial-block nil :type (or null partial-block))
  ;; Time; a deadline of 0 means no deadline
  (settings-deadline 0 :type time-ns)   ; the time by which the peer must acknowledge our SETTINGS
  (preface-deadline 0 :type time-ns) ; the time by which the peer's preface and SETTINGS must come
  (last-receive-ns 0 :type time-ns))    ; the NOW of the last RECEIVE-OCTETS

;;; Streams

(declaim (sb-ext:unmuffle-conditions sb-ext:compiler-note))

(defconstant +received-headers+ #b1 "The request, or the final response, has been received.")
(defconstant +sent-headers+ #b10 "The request or response has been sent.")
(defconstant +in-ring+ #b100 "The stream is among the writers that take turns.")
(defconstant +update-due+ #b1000 "A WINDOW_UPDATE is due.")
(defconstant +queue-ends+ #b10000 "END_STREAM is sent with the last queued octet.")
(defconstant +finished+ #b100000 "The stream is out of the table; ON-STREAM-CLOSED was called.")
(defconstant +released+ #b1000000 "The owner keeps no reference.")
(defconstant +had-interim+ #b10000000 "A 1xx response was received.")

(defstruct (segment (:constructor make-segment (octets start end storable)) (:copier nil)
                    (:predicate nil))
  "Octets queued on a stream."
  (octets (make-octets 0) :type octets) ; the vector that holds the octets
  (start 0 :type index)                 ; the index of the first octet that is not sent yet
  (end 0 :type index)                   ; the end of the octets in the buffer
  (storable nil :type boolean)          ; whether OCTETS go back to the store of clgrpc.base
  (next nil :type (or null segment)))   ; the next segment in the stream's queue

(defstruct (stream (:constructor %make-stream (connection id)) (:copier nil))
  "An HTTP/2 stream."
  (id 0 :type stream-id)                ; the stream's identifier
  (state +idle+ :type state)            ; the state by RFC 9113 section 5.1 (stream-state.lisp)
  (flags 0 :type (unsigned-byte 8))     ; the constants above
  (connection nil :type connection)     ; the stream's connection
  (user nil)                            ; any object of the owner
  (next nil :type (or null stream))     ; the next stream in its chain of the table, or in the pool
  (ring-next nil :type (or null stream)) ; the next stream in the ring of writers
  (ring-before nil :type (or null stream)) ; the stream before it in the ring
  (due nil :type (or null stream)) ; the next stream in the list of due WINDOW_UPDATEs
  (send-window 0 :type window)          ; octets of DATA that the peer still takes
  (receive-window 0 :type window)       ; how much the peer may still send
  (unreturned 0 :type window)           ; octets consumed and not yet given back
  (unconsumed 0 :type window)           ; octets that the owner holds
  (credited 0 :type window)             ; the octets already returned to the connection's window
  (content-left -1 :type fixnum)        ; octets left of content-length, or -1
  (queue-head nil :type (or null segment)) ; the first queued segment
  (queue-tail nil :type (or null segment)) ; the last queued segment
  (queued-octets 0 :type index)         ; the number of queued octets
  (trailers-function nil :type (or null function)) ; writes the trailers after the queue
  (charge 0 :type index)                ; octets that the owner has charged to an account
  (octets-out 0 :type (unsigned-byte 62)) ; octets of messages sent, if the owner counts them
  (octets-in 0 :type (unsigned-byte 62))) ; octets of messages received, likewise

(declaim (sb-ext:freeze-type sink counters pool segment stream partial-block connection))

(define-hot (stream-flag-p :inline t) ((stream stream) (flag (unsigned-byte 8))) boolean
  (logtest flag (stream-flags stream)))

(define-hot (set-stream-flag :inline t) ((stream stream) (flag (unsigned-byte 8))) null
  (setf (stream-flags stream) (logior flag (stream-flags stream)))
  nil)

(define-hot (clear-stream-flag :inline t) ((stream stream) (flag (unsigned-byte 8))) null
  (setf (stream-flags stream) (logandc2 (stream-flags stream) flag))
  nil)

(define-hot (connection-closed-p :inline t) ((connection connection)) boolean
  "True once CONNECTION is finished: then it ignores all further input."
  (= (connection-phase connection) +finished-connection+))

(defun connection-ready-p (connection)
  "True from the arrival of the peer's first SETTINGS until CONNECTION is finished."
  (< +awaiting-settings+ (connection-phase connection) +finished-connection+))

(define-hot (connection-draining-p :inline t) ((connection connection)) boolean
  "True if either end has sent GOAWAY. Then running streams continue, and new streams need another
connection."
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

(define-hot (stream-receivable-p :inline t) ((stream stream)) boolean
  "True if the peer may still send DATA or trailers on STREAM."
  (receiving-state-p (stream-state stream)))

(define-hot (stream-open-p :inline t) ((stream stream)) boolean
  "True until STREAM is closed in both directions or reset."
  (< (stream-state stream) +closed+))

(define-printer (stream stream)
  "~D ~(~A~)~[~:;, ~:*~D octets queued~]" (stream-id stream) (stream-state-name stream)
  (stream-queued-octets stream))

(defmethod print-object ((connection connection) output)
  (print-unreadable-object (connection output :type t :identity t)
    (format output "~(~A~), ~D stream~:P~:[~;, draining~]~:[~;, closed~]"
            (connection-role connection) (connection-stream-count connection)
            (connection-draining-p connection) (connection-closed-p connection))))

;;; The meaning of the exported accessors to the owner

(macrolet ((document (&rest rows)
             `(setf ,@(loop for (name text) in rows
                            append `((documentation ',name 'function) ,text)))))
  (document
   (make-sink "Return a sink of functions given by keywords. See the structure SINK.")
   (make-pool "Return a pool for MAKE-CONNECTION. Connections that one thread runs may share a pool.
If KEEPS-USERS is true, a stream that is used again keeps its STREAM-USER; otherwise the STREAM-USER
becomes nil.")
   (stream-p "True if the argument is a STREAM.")
   (stream-id "The identifier of a stream. It is odd, because clients open all streams (RFC 9113
section 5.1.1).")
   (stream-connection "The connection to which a stream belongs.")
   (stream-charge "The number of octets that the owner of a stream has charged to an account for it,
which the owner sets by SETF; 0 at first.")
   (stream-octets-in "The number of octets of messages received on a stream, if its owner counts
them by SETF.")
  (stream-octets-out "The number of octets of messages sent on a stream, if its owner counts them by
SETF.")
  (stream-user "An object that the owner has stored in a stream by SETF; NIL at first. See
MAKE-POOL.")
   (stream-queued-octets "The number of octets that wait on a stream for windows or for the stream's
turn to send.")
   (connection-p "True if the argument is a CONNECTION.")
   (connection-user "An object that the owner has stored in a connection; SETF replaces it.")
   (connection-options "The OPTIONS that limit a connection.")
   (connection-sink "The SINK that a connection calls.")
   (connection-counters "The counters of a connection: a COUNTERS structure.")
   (connection-stream-count "The number of streams of a connection that are not closed yet.")
   (connection-error-text
    "The reason for the last stream error or for the end of a connection, as text for logs.")
   (connection-last-receive-ns "The time NOW of the last call of RECEIVE-OCTETS, for keepalive.")
   (connection-peer-max-streams
    "The peer's SETTINGS_MAX_CONCURRENT_STREAMS: 100 until its SETTINGS arrive, 2^32-1 if they do
not contain it.")
   (connection-peer-max-header-list
    "The peer's SETTINGS_MAX_HEADER_LIST_SIZE; 2^32-1 if its SETTINGS do not contain it. The peer's
limit is only advisory (6.5.2).")
   (connection-goaway-received
    "The last stream identifier in the peer's GOAWAY, which is 0 if the peer processes no stream, or
-1 if it has sent no GOAWAY.")
   (connection-send-window "The number of octets of DATA that the peer still accepts on a
connection.")
   (connection-receive-window "The number of octets of DATA that the peer may still send on a
connection.")
   (counters-queued-octets "The number of DATA octets queued on all streams, which wait for windows
or for their turn.")
   (counters-control-frames "The number of answers in the output, perhaps with some that were
      sent recently.")
   (counters-block-octets "The number of octets of the header block that is being collected.")
   (counters-streams-opened "The number of streams that either side has opened.")
   (counters-streams-failed
    "The number of opened streams that were reset or lost before the server had ended its side.")))
