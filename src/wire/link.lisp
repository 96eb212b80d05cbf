;;;; A link: one connection on an event loop, at either end, that usually speaks HTTP/2. The loop
;;;; reads and writes, the http2 core interprets the octets, and the link joins the two. The link
;;;; passes octets to the core, lends the loop's output buffer to the core for a turn, and has one
;;;; timer for all its checks (link-keepalive.lisp). All code of this file runs on the link's loop.

(in-package #:clgrpc.wire)

(defstruct (connection-protocol (:copier nil))
  "The functions of a link without a core of HTTP/2, either because it has no core yet, or because
it uses another protocol. All functions run on the link's loop. A server includes this structure."
  (octets nil :type function :read-only t) ; (link): about how many octets it keeps
  ;; (call paused): if PAUSED is true, stop reading the body of CALL, else continue
  (pause nil :type function :read-only t)
  (abandon nil :type function :read-only t)) ; (link status text): end the link's calls

(defmethod print-object ((connection-protocol connection-protocol) stream)
  (print-unreadable-object (connection-protocol stream :type t :identity t)))

(defstruct (link (:constructor make-link (loop options owner)) (:copier nil))
  "One connection, at either end; at a server it may speak another protocol than HTTP/2."
  (loop nil :type loop:event-loop)      ; the loop on which the link and its calls run
  (options nil :type options)           ; the options of the link's owner
  (owner nil)                           ; the server loop, or the connection set
  (observer nil :type (or null observer)) ; the observer of its events, or nil
  (socket nil :type (or null loop:connection)) ; the loop's connection
  (peer nil :type (or null string))     ; the address of its peer
  (account nil :type (or null account)) ; the account of the octets that it holds
  (http2 nil :type (or null http2:connection)) ; the core, if the link speaks HTTP/2
  (calls 0 :type fixnum)                ; the number of open calls
  (measured 0 :type index)              ; charged by MEASURE-LINK, see link-memory.lisp
  (window-withheld nil :type boolean)   ; the connection's; see link-memory.lisp
  (arriving '() :type list)             ; calls with messages in the read under way
  (held-up nil :type (or null fifo))    ; a server's calls that wait until output is sent
  (draining nil :type boolean)          ; true: the link gets no more calls
  (broken nil :type boolean)            ; the link sends no more, and ends after its last input
  (stopped nil :type boolean)           ; the core reads no more until output is sent
  (last-fields #() :type simple-vector) ; the metadata of the last call, to be shared
  (last-octets 0 :type index)           ; about how many octets LAST-FIELDS take
  (late 0 :type fixnum)                 ; running handlers and callbacks that have lost the loop
  (waiting-calls nil :type (or null ring)) ; calls whose callbacks wait for a thread
  (asked nil :type boolean)             ; a function for WAITING-CALLS is queued, see ASK-FOR-THREAD
  ;; the link's quota of the reserve's threads; nil without a limit
  (quota nil :type (or null loop:quota))
  ;; at a server, (call came function): call FUNCTION, which decompresses and decodes a message of
  ;; CALL of CAME octets, within the budget of the peer, and return its values
  (budget nil :type (or null function))
  ;; the timer of link-keepalive.lisp, to which the slots up to QUIET-NS belong, too
  (life nil :type (or null timer))
  (born-ns 0 :type (unsigned-byte 62))  ; when the link began
  (age-ns 0 :type (unsigned-byte 62))   ; the age at which the link must end; 0 without a limit
  (keepalive-ns 0 :type (unsigned-byte 62)) ; the silence after which we send a PING; 0 for never
  ;; how long the peer may be silent after a keepalive PING
  (keepalive-timeout-ns 0 :type (unsigned-byte 62))
  (dormant nil :type boolean)           ; a PING is due when a call begins
  (pinged-ns 0 :type (unsigned-byte 62)) ; when the last PING was sent
  (taken-ns 0 :type (unsigned-byte 62)) ; when the incomplete frame at hand began to arrive
  (filled-ns 0 :type (unsigned-byte 62)) ; when output was last offered to the peer
  (told '() :type list)                 ; those of the events :AGE, :GRACE and :IDLE that the owner
                                        ; has received
  (quiet-opened -1 :type fixnum)        ; the number of calls so far when it was last idle
  (quiet-ns 0 :type (unsigned-byte 62)) ; the time since which the link is idle
  (goaway nil :type (or null string))   ; the error in a GOAWAY of the peer, or nil
  (protocol nil :type (or null connection-protocol)) ; nil for HTTP/2
  ;; for channelz; a time of 0 means that there was no such event
  (number (new-number) :type (unsigned-byte 62) :read-only t) ; the link's permanent number
  (stream-ns 0 :type (unsigned-byte 62)) ; when the link's last stream began
  (messages-sent 0 :type (unsigned-byte 62)) ; messages sent, in each attempt of a call
  (sent-ns 0 :type (unsigned-byte 62))  ; when the last message was sent
  (messages-received 0 :type (unsigned-byte 62)) ; whole messages received
  (received-ns 0 :type (unsigned-byte 62)) ; when the last message came
  (keepalives 0 :type (unsigned-byte 62)) ; how many keepalive PINGs were sent
  (failure nil))                        ; the reason why the link ended, a text

(defmethod print-object ((link link) stream)
  (print-unreadable-object (link stream :type t :identity t)
    (format stream "~A, ~D calls~@[, ~A~]" (link-peer link) (link-calls link) (link-failure link))))

(define-hot (note-message-sent :inline t) ((link link)) null
  (incf (link-messages-sent link))
  (setf (link-sent-ns link) (loop:event-loop-now (link-loop link)))
  nil)

(define-hot (note-messages-received :inline t) ((link link) (count index)) null
  (incf (link-messages-received link) count)
  (setf (link-received-ns link) (loop:event-loop-now (link-loop link)))
  nil)

(defun describe-link (link)
  "Return a plist that describes LINK. A time of 0 means never. The values of :NUMBER, :LOOP and
:PEER are valid on any thread, the other values only on LINK's loop."
  (list :number (link-number link) :loop (link-loop link) :peer (link-peer link)
        :socket (link-socket link) :http2 (link-http2 link)
        :security (loop:connection-security (link-socket link))
        :stream-ns (link-stream-ns link)
        :messages-sent (link-messages-sent link) :sent-ns (link-sent-ns link)
        :messages-received (link-messages-received link) :received-ns (link-received-ns link)
        :keepalives (link-keepalives link)))

(defgeneric link-event (owner link event)
  (:documentation "Handle EVENT of LINK for OWNER, on its loop. EVENT is one of
:ENDED        it has ended and all its streams with it
:OUTPUT-LEFT  output of the link, which has delayed calls, may have been sent
:IDLE         it should end in order, since it has been without calls
:AGE          it should end in order, since it is old
:GRACE        it should end at once, since its calls have had time enough after :AGE"))

;;; Its end

(defun abort-calls (link status text)
  "End every call on LINK with STATUS and TEXT."
  (let ((protocol (link-protocol link)))
    (when protocol (funcall (connection-protocol-abandon protocol) link status text)))
  (when (link-http2 link)
    (http2:map-streams (lambda (stream)
                         (let ((call (http2:stream-user stream)))
                           (when (typep call 'call) (operate abort call status text :local))))
                       (link-http2 link))))

(defun end-core (link error-code text)
  "Send a GOAWAY with ERROR-CODE and TEXT on LINK, if it speaks HTTP/2."
  (setf (link-failure link) text)
  (when (link-http2 link) (http2:close-connection (link-http2 link) error-code text)))

(defun close-link (link text &key status how)
  "End LINK because of TEXT. If STATUS is not nil, first end every call on LINK with STATUS. Return
nil. HOW is one of
nil      in order: send GOAWAY, send the queued output, close
:EXPEL   at once, and every call on it with :unavailable. We send a GOAWAY with ENHANCE_YOUR_CALM,
         but do not wait until the peer has received it
:LOST    at once, because its peer is silent
:ABORT   at once, for another reason"
  (when status (abort-calls link status text))
  (ecase how
    ((nil) (unless (link-failure link)
             (end-core link http2:+no-error+ text)
             (loop:close-connection (link-socket link))))
    (:expel (unless (link-failure link)
              (abort-calls link :unavailable text)
              (end-core link http2:+enhance-your-calm+ text)
              (loop:flush-connection (link-socket link)))
     (loop:close-connection (link-socket link) :abort t))
    ((:lost :abort)
     (when (eq :lost how)
       (trace-event :http-keepalive :peer-silent :peer (link-peer link) :reason text))
     (setf (link-failure link) text)
     (loop:close-connection (link-socket link) :abort t)))
  nil)
