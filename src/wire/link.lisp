;;;; A link: one HTTP/2 connection on an event loop, at either end. The loop reads and writes, the
;;;; http2 core decides, the link joins the two: octets in, output lent from the loop to the core
;;;; for a turn, one timer for whatever may be due (life.lisp).
;;;; Everything here runs on the link's loop.

(in-package #:clgrpc.wire)

(defconstant +fill-octets+ (* 14 (+ 16384 9))
  "How much queued DATA goes into the output at once: 14 frames. Over loopback 64 KB at a time carry
1.2 GB/s, 256 KB 3 (doc/decisions.md); a frame of another call waits for no more than this.")

(defstruct (answers (:copier nil))
  "What server/limit.lisp notes of a link with answers from other threads, or more than its peer
takes: the octets that are COMING to the loop (atomic), and the calls that are HELD-UP until some
have left."
  (coming 0 :type sb-ext:word)
  (held-up (make-fifo) :type fifo :read-only t))

(declaim (sb-ext:freeze-type answers))

(defstruct (ledger (:copier nil))
  "The octets that all links of a server, or of a channel, are charged with."
  (held 0 :type sb-ext:word))

(declaim (sb-ext:freeze-type ledger))

(defstruct (link (:constructor %make-link (loop options owner ledger)) (:copier nil))
  "OWNER is the server's hub or the subchannel; CALLS counts the open ones; HELD the octets of
messages that wait, for their rest or for somebody to take them (held.lisp; atomic); DAMMED is true
while so much waits that the connection's window is withheld; ARRIVING are the calls that the read
being worked through has brought messages for; PLACE is where the owner keeps it; LAST-FIELDS is the
metadata vector of the call before, so that a repeated one is shared; SEAT and GUEST are of
server/peer.lisp, SHARE and ANSWERS of server/limit.lisp: its place among the peer's connections,
what its hub knows of the peer, what it has of the reserve once it has had something, and what its
peer does not take. LIFE to
QUIET-NS are of life.lisp: when the link began and how old it may get, when we last asked whether
the peer is there, whether it has been told that it is old, and how many calls it had had when it
was last seen to be without any new one, and since when that is."
  (loop nil :type loop:event-loop)
  (options nil :type options)
  (owner nil)
  (ledger nil :type ledger)             ; of all links of a server, or of a channel
  (socket nil :type (or null loop:connection))
  (http2 nil :type (or null http2:connection))
  (calls 0 :type fixnum)
  (held 0 :type sb-ext:word)
  (dammed nil :type boolean)
  (arriving '() :type list)
  (answers nil :type (or null answers))
  (draining nil :type boolean)
  (stopped nil :type boolean)           ; the core wants nothing more read until output has left
  (place 0 :type index)
  (last-fields #() :type simple-vector)
  (seat nil)
  (guest nil)
  (late 0 :type fixnum)                 ; handlers and callbacks that have lost the loop, see there
  (waiting-calls nil :type (or null ring)) ; whose callbacks wait for one of them to return
  (share nil :type (or null loop:share))
  (life nil :type (or null timer))
  (born-ns 0 :type (unsigned-byte 62))
  (age-ns 0 :type (unsigned-byte 62))
  (keepalive-ns 0 :type (unsigned-byte 62)) ; after such a silence we ask; 0 is never
  (pinged-ns 0 :type (unsigned-byte 62))
  (aged nil :type boolean)
  (quiet-opened -1 :type fixnum)
  (quiet-ns 0 :type (unsigned-byte 62))
  (goaway nil :type (or null string))   ; what a GOAWAY of the peer's has said, if it was an error
  ;; a server's, until it is known what the link speaks: (link octets start end) returns what
  ;; OPENING-DIALECT does
  (opening nil :type (or null function))
  (dialect nil :type (or null connection-dialect)) ; what it speaks; nil is HTTP/2
  (failure nil))                        ; text: why the link ended

(declaim (sb-ext:freeze-type link))

(defmethod print-object ((link link) stream)
  (print-unreadable-object (link stream :type t :identity t)
    (format stream "~A, ~D calls~@[, ~A~]" (link-peer link) (link-calls link) (link-failure link))))

(defun link-peer (link)
  "The address of LINK's peer."
  (let ((socket (link-socket link)))
    (and socket (loop:connection-peer socket))))

(defun link-security (link)
  "What the TLS handshake of LINK came to, or nil without TLS or before its end. From any thread."
  (let ((socket (link-socket link)))
    (and socket (loop:transport-security (loop:connection-transport socket)))))

(defgeneric link-ended (owner link)
  (:documentation "Tell OWNER that LINK has ended and all its streams with it."))

(defgeneric link-observer (owner)
  (:documentation "The OBSERVER that is told of OWNER's links, or nil."))

(defgeneric answers-left (owner link)
  (:documentation
   "Tell OWNER that output of LINK, which has calls that are held up, may have left."))

(defun open-link (owner loop transport role sink options pool
                  &key ledger opening
                    (keepalive-ns (seconds-ns (options-keepalive-seconds options))))
  "Make a link over TRANSPORT, a connected one, on LOOP and begin HTTP/2 in ROLE, with the POOL of
http2 and the LEDGER that other links share. After a silence of KEEPALIVE-NS, unless that is 0, we
ask the peer whether it is there. With OPENING, the function of a link that has yet to find out what
it speaks, HTTP/2 begins only once that is what it is. Return the link."
  (let ((link (%make-link loop options owner ledger)))
    (setf (link-keepalive-ns link) keepalive-ns
          (link-http2 link) (http2:make-connection role sink options :user link :pool pool)
          (link-opening link) opening
          (link-socket link) (loop:make-connection
                              loop transport (if opening (opening-handler) (link-handler))
                              :user link
                              :max-unsent-octets (options-max-unsent-octets options)))
    (unless opening (http2:start-connection (link-http2 link) (loop:event-loop-now loop)))
    (begin-life link)
    (observe connection-begun (link-observer owner) (link-peer link))
    link))

(defun end-opening (link)
  "LINK speaks HTTP/2 from now on, if it is not known yet what it speaks."
  (when (shiftf (link-opening link) nil)
    (setf (loop:connection-handler (link-socket link)) (link-handler))
    ;; its time-outs count from when it was accepted
    (http2:start-connection (link-http2 link) (link-born-ns link))))

(defun take-over (link dialect)
  "LINK speaks DIALECT, a CONNECTION-DIALECT, from now on."
  (setf (link-opening link) nil
        (link-dialect link) dialect
        (loop:connection-handler (link-socket link)) (connection-dialect-handler dialect))
  (funcall (connection-dialect-begin dialect) link))

(defun opening-input (socket octets start end)
  "The handler's INPUT of a link that has yet to find out what it speaks."
  (let* ((link (loop:connection-user socket))
         (dialect (funcall (the function (link-opening link)) link octets start end)))
    (cond ((eq :more dialect) start)
          (t (if dialect (take-over link dialect) (end-opening link))
             (funcall (loop:handler-input (loop:connection-handler socket))
                      socket octets start end)))))

(defconstant +frames-per-look+ 64
  "After so many frames of a read we look how much output there is and what time it is: what a peer
makes us do in between takes a fraction of a millisecond.")

(defconstant +reading-ns+ 2000000
  "A link takes more of its peer's frames only while the turn is younger than that. A read may hold
7,000 requests, and the other links' peers are not to wait for all of them.")

(defconstant +calls-per-read+ 128
  "So many calls of a link begin in a turn, or some more: their handlers run in the order in which
the calls came, and those of other links' calls after them.")
(defconstant +calls-of-a-long-turn+ 32
  "The same for a link whose last input is +LONG-TURN-NS+ ago or more: where its handlers take long,
so do turns, and 128 handlers of 200 µs would hold up the others for 26 ms; where it was quiet, the
rest comes in the next.")
(defconstant +long-turn-ns+ 2000000)

(define-hot (streams-opened :inline t) ((http2 http2:connection)) (unsigned-byte 62)
  (http2:counters-streams-opened (http2:connection-counters http2)))

(define-hot (most-streams :inline t) ((http2 http2:connection) (now nanoseconds))
    (unsigned-byte 62)
  "How many streams HTTP2 may have opened when it has had enough of the turn that began at NOW."
  (+ (streams-opened http2)
     (if (< (- now (http2:connection-last-receive-ns http2)) +long-turn-ns+)
         +calls-per-read+
         +calls-of-a-long-turn+)))

(define-hot link-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT. What is left when there is much output, many calls have begun or the turn
has taken long, is for the next turn."
  (let* ((link (loop:connection-user socket))
         (http2 (link-http2 (the link link)))
         (now (loop:event-loop-now (link-loop link)))
         (enough (most-streams http2 now))
         (at start))
    (declare (type index at))
    (multiple-value-prog1
        (loop
          (let ((frames +frames-per-look+))
            (when (tracing-p :http :flowctl :http-keepalive)
              (setf frames 1)
              (tap-input link octets at end))
            (multiple-value-bind (consumed more)
                (http2:receive-octets http2 octets at end now frames)
              (setf at consumed)
              (cond ((not more)
                     (return (values at nil)))
                    ((or (not (http2:connection-writable-p http2))
                         (<= enough (streams-opened http2))
                         (< +reading-ns+ (- (loop:read-clock (link-loop link)) now)))
                     (return (values at t)))))))
      (seal-arrivals link)
      (when (http2:connection-stop-reading-p http2)
        (setf (link-stopped link) t)
        (loop:stop-reading socket)))))

(define-hot link-fill ((socket loop:connection)) null
  (let* ((link (loop:connection-user socket))
         (http2 (link-http2 (the link link))))
    ;; beyond what is there already, since the loop asks again only if this adds something
    (http2:write-queued http2 (+ +fill-octets+ (loop:connection-unsent socket)))
    ;; the loop takes its buffer back when it has flushed: the core asks for one anew
    (setf (http2:connection-output http2) nil)
    (when (and (link-stopped link) (not (http2:connection-stop-reading-p http2)))
      (setf (link-stopped link) nil)
      (loop:start-reading socket))
    (let ((answers (link-answers link)))
      (when (and answers (fifo-items (answers-held-up answers)))
        (answers-left (link-owner link) link)))
    nil))

(defun link-sent (socket octets start end)
  "The handler's SENT."
  (tap-output (loop:connection-user socket) octets start end))

(defun link-closed (socket reason)
  "The CLOSED of a link's handler, whatever the link speaks: its owner hears why it has ended."
  (let ((link (loop:connection-user socket)))
    (unless (link-failure link)
      (setf (link-failure link)
            (typecase reason
              (null (if (link-goaway link)
                        (format nil "the peer has ended the connection: ~A" (link-goaway link))
                        "connection closed by the peer"))
              (loop:socket-error (loop:socket-error-reason reason))
              (t (princ-to-string reason)))))
    (end-life link)
    (http2:receive-eof (link-http2 link))
    (observe connection-ended (link-observer (link-owner link))
             (link-peer link) (link-failure link))
    (link-ended (link-owner link) link)))

(defglobal **opening-handler** nil)

(defun opening-handler ()
  (or **opening-handler**
      (setf **opening-handler**
            (loop:make-handler :input #'opening-input :closed #'link-closed :sent #'link-sent))))

(defglobal **link-handler** nil)

(defun link-handler ()
  (or **link-handler**
      (setf **link-handler**
            (loop:make-handler :input #'link-input :fill #'link-fill :closed #'link-closed
                               :sent #'link-sent))))

;;; What every sink does alike

(define-hot link-output ((http2 http2:connection)) buffer
  "The sink's on-output: lend the core the buffer of the loop's connection."
  (loop:connection-output (the loop:connection (link-socket (http2:connection-user http2)))))

(defun link-http2-closed (http2 error-code text)
  "The sink's on-close: the core has ended the connection; send what it wrote and close."
  (let* ((link (http2:connection-user http2))
         (socket (link-socket link))
         (handshaking (loop:transport-handshaking-p (loop:connection-transport socket))))
    (unless (link-failure link)
      (setf (link-failure link)
            (if handshaking             ; so the core has seen nothing, and has run out of time
                (format nil "the TLS handshake was not over within ~A seconds"
                        (options-preface-timeout-seconds (link-options link)))
                (format nil "HTTP/2 connection error ~A: ~A" (http2:error-code-name error-code)
                        text))))
    (loop:close-connection socket :abort handshaking)))

(defun close-link (link text)
  "End LINK in order: GOAWAY, send what is queued, close."
  (unless (link-failure link)
    (end-opening link)
    (setf (link-failure link) text)
    (unless (link-dialect link)
      (http2:close-connection (link-http2 link) http2:+no-error+ text))
    (loop:close-connection (link-socket link))))

(defun abort-calls (link status text)
  "End every call on LINK with STATUS and TEXT."
  (let ((dialect (link-dialect link)))
    (when (and dialect (connection-dialect-abandon dialect))
      (funcall (connection-dialect-abandon dialect) link status text)))
  (http2:map-streams (lambda (stream)
                       (let ((call (http2:stream-user stream)))
                         (when (typep call 'call) (operate abort call status text :local))))
                     (link-http2 link)))

(defun abandon-link (link status text)
  "End every call on LINK with STATUS and TEXT, and LINK in order."
  (abort-calls link status text)
  (close-link link text))

(defun expel-link (link text)
  "End every call on LINK with :unavailable and TEXT, and LINK at once: its peer is told by a
GOAWAY with ENHANCE_YOUR_CALM, if it takes that now, and not waited for."
  (unless (link-failure link)
    (end-opening link)
    (abort-calls link :unavailable text)
    (setf (link-failure link) text)
    (unless (link-dialect link)
      (http2:close-connection (link-http2 link) http2:+enhance-your-calm+ text))
    (loop:flush-connection (link-socket link)))
  (loop:close-connection (link-socket link) :abort t))
