;;;; The end of the connections of a server that stops (RFC 9113 section 6.8):
;;;;
;;;; 1. A first GOAWAY, with the largest identifier, asks the peer to begin no more calls. A PING
;;;;    follows the GOAWAY.
;;;; 2. The answer to the PING shows that the peer has seen the GOAWAY, so no further request is on
;;;;    its way. A second GOAWAY names the last call.
;;;; 3. When the last call has ended the connection is closed.

(in-package #:clgrpc.server)

(defconstant +drain-ping+ #x647261696E
  "The payload of the PING whose answer shows that the peer has seen our first GOAWAY.")
(defconstant +drain-ping-ns+ 1000000000
  "How long the answer to the drain's PING may take, in nanoseconds.")
(defconstant +drain-look-ns+ (ash +drain-ping-ns+ -2)
  "The interval, in nanoseconds, at which a connection that waits for the answer to the drain's PING
is checked.")
(defconstant +longest-drain-ping-ns+ (* 10 +drain-ping-ns+)
  "How long the answer may take, in nanoseconds, while one of these is true: calls are under way,
for which the connection stays open in any case; output, perhaps with the PING, is unsent; or the
peer sends other frames first.")

(defun drain-link (link)
  "Stop accepting calls on LINK, and end LINK with its last call. On its loop."
  (let ((protocol (server-link-protocol link)))
    (if protocol
        (funcall (server-connection-protocol-drain protocol) link)
        (drain-http2 link))))

(defun drain-http2 (link)
  "As DRAIN-LINK, for a LINK that speaks HTTP/2."
  (let ((now (loop:event-loop-now (server-link-loop link))) (permit (server-link-permit link)))
    (http2:send-goaway (server-link-http2 link) http2:+no-error+ :last-stream-id #x7FFFFFFF)
    (http2:send-ping (server-link-http2 link) +drain-ping+)
    (let ((wait (or (permit-drain permit)
                    (setf (permit-drain permit)
                          (make-drain-wait (loop:make-lasting-timer (server-link-loop link)
                                                                    #'look-at-drain link))))))
      (setf (drain-wait-end-ns wait) (+ now +longest-drain-ping-ns+)
            (drain-wait-busy-ns wait) now)
      (await-drain-ping link wait now))))

(defun stop-link (link)
  "Drain LINK, since its server stops, and end the responses on LINK that handlers write in chunks:
they may never end by themselves. On its loop."
  (drain-link link)
  (flet ((end (request) (when request (exchange:end-open-response request))))
    (cond ((server-link-http1 link)
           (end (exchange:state-request (server-link-http1 link))))
          ((server-link-http2 link)
           (http2:map-streams (lambda (stream)
                                (let ((call (http2:stream-user stream)))
                                  (when (typep call 'server-call) (end (call-http-request call)))))
                              (server-link-http2 link))))))

(defun await-drain-ping (link wait now)
  "Start the timer of WAIT, which checks a while after NOW whether LINK's PING was answered."
  (loop:start-timer (server-link-loop link) (drain-wait-timer wait) (+ now +drain-look-ns+)))

(defun busy-p (link now)
  "True if LINK may wait longer for the answer to the PING at NOW; see +LONGEST-DRAIN-PING-NS+."
  (let ((http2 (server-link-http2 link)))
    (or (plusp (server-link-calls link))
        ;; a peer that has not ended its preface has begun no call
        (and (http2:connection-ready-p http2)
             (or (plusp (loop:connection-unsent (server-link-socket link)))
                 (< (- now +drain-look-ns+) (http2:connection-last-receive-ns http2)))))))

(defun look-at-drain (link)
  "Check LINK, whose peer has not answered the PING so far; continue without the answer if the time
for it has passed."
  (let ((now (loop:event-loop-now (server-link-loop link)))
        (wait (permit-drain (server-link-permit link))))
    (when (and (busy-p link now) (< now (drain-wait-end-ns wait)))
      (setf (drain-wait-busy-ns wait) now))
    (if (< now (+ (drain-wait-busy-ns wait) +drain-ping-ns+))
        (await-drain-ping link wait now)
        (drain-further link))))

(defun forget-drain (link)
  "Stop waiting for the answer to the PING of DRAIN-LINK, since LINK has ended."
  (let ((wait (permit-drain (server-link-permit link))))
    (when wait (loop:stop-timer (server-link-loop link) (drain-wait-timer wait)))))

(defun server-ping-ack (http2 payload)
  "The sink's on-ping-ack."
  (when (= payload +drain-ping+) (drain-further (http2:connection-user http2))))

(defun drain-further (link)
  "Send the second GOAWAY, since LINK's peer begins no more calls; LINK ends with its last call. On
its loop."
  (unless (server-link-draining link)
    (setf (server-link-draining link) t)
    (http2:send-goaway (server-link-http2 link) http2:+no-error+)
    (when (zerop (server-link-calls link))
      (wire:close-link link "drained"))))
