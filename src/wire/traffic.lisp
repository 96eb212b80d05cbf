;;;; The traffic of a link: opening it, handling octets that arrive, moving queued messages into the
;;;; output, and cleaning up when the connection ends.

(in-package #:clgrpc.wire)

(defconstant +fill-octets+ (* 14 (+ 16384 9))
  "The number of octets of queued DATA that are appended to the output at once, which is that of 14
frames. Over loopback, 64 KB at a time reach 1.2 GB/s and 256 KB reach 3 GB/s (doc/decisions.md). A
frame of another call waits at most for this number of octets.")

(defconstant +frames-per-look+ 64
  "The number of frames of a read after which we check the amount of output and the clock again. The
work that a peer can cause between two checks takes a fraction of a millisecond.")

(defconstant +frames-at-first+ 4
  "The number of frames of a read after which we first check the amount of output and the clock. A
peer may have a thousand connections that all send; each of them gets this number of frames in a
turn (joined frames count as one), however long the turn has become.")

(defconstant +calls-per-read+ 128
  "The approximate maximum number of calls of a link that begin in a turn. The calls of other links
wait until the handlers of these calls have run.")
(defconstant +calls-of-a-long-turn+ 32
  "The approximate maximum number of calls that begin in a turn of a link whose last input was
+LONG-TURN-NS+ ago or more. If long turns are the reason, the link's handlers may be slow, and 128
handlers of 200 µs each would delay other links for 26 ms. If the link was merely quiet, its other
calls begin in the next turn.")
(defconstant +long-turn-ns+ 2000000)

(define-hot (streams-opened :inline t) ((http2 http2:connection)) (unsigned-byte 62)
  (http2:counters-streams-opened (http2:connection-counters http2)))

(define-hot (most-streams :inline t) ((http2 http2:connection) (now nanoseconds))
    (unsigned-byte 62)
  "Return the number of opened streams at which HTTP2 stops reading in the turn that began at NOW."
  (+ (streams-opened http2)
     (if (< (- now (http2:connection-last-receive-ns http2)) +long-turn-ns+)
         +calls-per-read+
         +calls-of-a-long-turn+)))

(define-hot link-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT. If the link has much output, many calls have begun or the turn has taken
long, the remaining OCTETS are left for the next turn."
  (let* ((link (loop:connection-user socket))
         (http2 (link-http2 (the link link)))
         (now (loop:event-loop-now (link-loop link)))
         (enough (most-streams http2 now))
         (frames +frames-at-first+)
         (at start))
    (declare (type index frames at))
    (multiple-value-prog1
        (loop
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
                       (loop:turn-long-p (link-loop link)))
                   (return (values at t)))))
          (setf frames +frames-per-look+))
      (seal-link link)
      (when (or (< start at) (not (loop:connection-unread-p socket)))
        (setf (link-taken-ns link) now))
      (measure-link link)
      (when (http2:connection-stop-reading-p http2)
        (setf (link-stopped link) t)
        (loop:stop-reading socket)))))

(define-hot link-fill ((socket loop:connection)) null
  (let* ((link (loop:connection-user socket))
         (http2 (link-http2 (the link link)))
         (unsent (loop:connection-unsent socket))
         ;; with more than MAX-UNSENT unsent octets the connection is not read, and so gets no
         ;; WINDOW_UPDATEs
         (limit (min +fill-octets+ (ash (loop:connection-max-unsent socket) -1))))
    (declare (type index unsent limit))
    (http2:write-queued http2 (if (< unsent limit) limit 0))
    ;; the loop calls this function again in this turn only if output was added
    (unless (< unsent limit) (loop:defer (link-loop link) #'loop:connection-output socket))
    ;; at a flush the loop takes its buffer back, and later the core requests a buffer again
    (http2:give-output-back http2)
    (setf (link-filled-ns link) (loop:event-loop-now (link-loop link)))
    (measure-link link)
    (when (and (link-stopped link) (not (http2:connection-stop-reading-p http2)))
      (setf (link-stopped link) nil)
      (loop:start-reading socket))
    (let ((held-up (link-held-up link)))
      (when (and held-up (fifo-items held-up)) (link-event (link-owner link) link :output-left)))
    nil))

(defun link-sent (socket octets start end)
  "The handler's SENT."
  (tap-output (loop:connection-user socket) octets start end))

(defun end-link (link reason)
  "Inform the owner of LINK that its connection has ended because of REASON, as for CLOSED of a
handler."
  (unless (link-failure link)
    (setf (link-failure link)
          (typecase reason
            (null (if (link-goaway link)
                      (format nil "the peer has ended the connection: ~A" (link-goaway link))
                      "connection closed by the peer"))
            (loop:socket-error (loop:socket-error-reason reason))
            (t (princ-to-string reason)))))
  (end-life link)
  (when (link-http2 link) (http2:receive-eof (link-http2 link)))
  (close-account (link-account link))
  (observe connection-ended (link-observer link)
           (link-peer link) (link-failure link))
  (link-event (link-owner link) link :ended))

(defun link-closed (socket reason)
  "The handler's CLOSED."
  (end-link (loop:connection-user socket) reason))

;;; The sink

(define-hot link-output ((http2 http2:connection)) buffer
  "The sink's on-output: lend the core the buffer of the loop's connection."
  (loop:connection-output (the loop:connection (link-socket (http2:connection-user http2)))))

(defun link-http2-closed (http2 error-code text)
  "The sink's on-close. The core has ended the connection; send its last output and close the
connection."
  (let* ((link (http2:connection-user http2))
         (socket (link-socket link))
         (handshaking (loop:connection-handshaking-p socket)))
    (unless (link-failure link)
      (setf (link-failure link)
            ;; the core has received nothing, so a time-out of the core has ended the connection
            (if handshaking
                (format nil "the TLS handshake was not over within ~A seconds"
                        (options-preface-timeout-seconds (link-options link)))
                (format nil "HTTP/2 connection error ~A: ~A" (http2:error-code-name error-code)
                        text))))
    (loop:close-connection socket :abort handshaking)))

(defun link-queued (http2)
  "The sink's on-queued. It measures the queue, because no DATA is sent while windows are closed,
and no other event would then cause a measurement."
  (measure-link (http2:connection-user http2)))

(defun link-sink (&rest functions)
  "Return a sink of HTTP/2 with FUNCTIONS, as for HTTP2:MAKE-SINK, and with the functions that all
links have."
  (apply #'http2:make-sink :on-output #'link-output :on-close #'link-http2-closed
                           :on-queued #'link-queued functions))

;;; Opening a link

(defun note-broken (socket)
  "The handler's BROKEN."
  (setf (link-broken (loop:connection-user socket)) t))

(define-load-time-global **server-link-handler**
    (loop:make-handler :input #'link-input :fill #'link-fill :closed #'link-closed
                       :sent #'link-sent))

(define-load-time-global **client-link-handler**
    (loop:make-handler :input #'link-input :fill #'link-fill :closed #'link-closed
                       :sent #'link-sent :broken #'note-broken))

(defun link-handler (role)
  "The handler of links in ROLE, :client or :server."
  (ecase role
    (:client **client-link-handler**)
    (:server **server-link-handler**)))

(defun speak-http2 (link role sink pool)
  "Make LINK begin to speak HTTP/2 in ROLE. The link shares http2's POOL with its owner's other
links."
  (let ((http2 (http2:make-connection role sink (link-options link) :user link :pool pool)))
    (setf (link-http2 link) http2
          (link-protocol link) nil
          (loop:connection-handler (link-socket link)) (link-handler role))
    (measure-link link)
    ;; the time-outs count from the opening of the link
    (http2:start-connection http2 (link-born-ns link))
    (check-link link)))

(defun open-link (owner loop byte-channel role sink options pool
                  &key account observer protocol handler (make #'make-link)
                    (keepalive-ns (seconds-ns (options-keepalive-seconds options)))
                    (keepalive-timeout-ns (seconds-ns (options-keepalive-timeout-seconds options))))
  "Make a link over BYTE-CHANNEL, which is connected, on LOOP, begin HTTP/2 in ROLE, and return the
link. The link shares http2's POOL with its owner's other links. The link's account is part of
ACCOUNT, and the link's events are reported to OBSERVER. After a silence of KEEPALIVE-NS, unless
that is 0, the link sends the peer a PING; if no answer arrives within KEEPALIVE-TIMEOUT-NS, the
link ends. MAKE is called with LOOP, OPTIONS and OWNER and returns the link. If the protocol of the
link is not known yet, the link has PROTOCOL and the loop's HANDLER until SPEAK-HTTP2 is called."
  (let ((link (funcall make loop options owner)))
    (setf (link-observer link) observer
          (link-peer link) (loop:byte-channel-peer byte-channel)
          (link-account link) (make-account account)
          (link-keepalive-ns link) keepalive-ns
          (link-keepalive-timeout-ns link) keepalive-timeout-ns
          (link-protocol link) protocol
          (link-socket link) (loop:make-connection
                              loop byte-channel (or handler (link-handler role))
                              :user link
                              :account (link-account link)
                              :max-unsent-octets (options-max-unsent-octets options)))
    (begin-life link)
    (if protocol
        (measure-link link)
        (speak-http2 link role sink pool))
    (observe connection-begun observer (link-peer link))
    link))
