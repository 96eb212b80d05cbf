;;;; A new connection: ALPN or its first octets decide its protocol
;;;; (http/exchange/http-version.lisp), before it has a core of HTTP/2 or a parser of HTTP/1.1. The
;;;; connection's permit and limits do not depend on the protocol. HTTP/2 loses no time by this
;;;; decision, since it gets the first octets in the same read. HTTP/2 also answers connections that
;;;; speak neither protocol.

(in-package #:clgrpc.server)

(defun speaks-http1-p (server-loop)
  "True if connections of SERVER-LOOP may speak HTTP/1.1."
  (and (server-loop-http server-loop) (options-http1 (server-loop-options server-loop))))

(defun http-version-of (link octets start end)
  "The protocol of LINK, whose first octets are those from START to END, as a value of
EXCHANGE:HTTP-VERSION-OF."
  (let ((security (loop:connection-security (server-link-socket link))))
    (if (speaks-http1-p (server-link-owner link))
        (exchange:http-version-of (and security (loop:security-alpn security)) octets start end)
        :http2)))

;;; HTTP/1.1

(defun abandon-exchange (link status text)
  "The function ABANDON of connections that speak HTTP/1.1: end the call under way."
  (let ((request (exchange:state-request (server-link-http1 link))))
    (when request
      (let ((call (exchange-call request))) (operate abort call status text :local)))))

(define-load-time-global **http1**
    (make-server-connection-protocol
     :octets (lambda (link) (exchange:http1-connection-octets (server-link-http1 link)))
     :pause (lambda (call paused)
              (if paused
                  (exchange:pause-body (call-http-request call))
                  (exchange:resume-body (call-http-request call))))
     :drain (lambda (link) (exchange:drain-http1 (server-link-http1 link)))
     :abandon #'abandon-exchange))

(defun speak-http1 (link)
  "Begin HTTP/1.1 on LINK."
  (setf (server-link-http1 link)
        (exchange:begin-http1 link (server-loop-http (server-link-owner link))
                              (server-link-socket link) (server-link-born-ns link))
        (server-link-protocol link) **http1**)
  ;; HTTP/2 is ready with its SETTINGS
  (note-ready link))

;;; Links whose protocol is not known yet

(defun stop-opening (link)
  "Cancel the timer of LINK's opening: its protocol is known, or LINK has ended."
  (loop:stop-timer (server-link-loop link) (shiftf (server-link-opening link) nil)))

(defun settle (link version)
  "Begin the protocol VERSION, :HTTP1 or :HTTP2, on LINK."
  (stop-opening link)
  (ecase version
    (:http1 (speak-http1 link))
    (:http2 (wire:speak-http2 link :server **server-sink**
                              (server-loop-pool (server-link-owner link))))))

(defun make-opening-protocol (drain)
  "The protocol, with the function DRAIN, of a link whose protocol is not known."
  (make-server-connection-protocol
   :octets (constantly 0)
   :pause #'list                        ; such a link has no calls yet
   :drain drain
   :abandon (lambda (link status text) (declare (ignore status text)) (settle link :http2))))

(define-load-time-global **draining-opening** (make-opening-protocol #'identity))

(defun opening-input (socket octets start end)
  "The handler's INPUT."
  (let* ((link (loop:connection-user socket))
         (draining (eq **draining-opening** (server-link-protocol link)))
         (version (http-version-of link octets start end)))
    (cond ((eq :more version) start)
          (t (settle link version)
             (multiple-value-prog1
                 (funcall (loop:handler-input (loop:connection-handler socket))
                          socket octets start end)
               (when (and draining (not (server-link-failure link))) (drain-link link)))))))

(defun opening-closed (socket reason)
  "The handler's CLOSED."
  (let ((link (loop:connection-user socket)))
    (stop-opening link)
    (wire:end-link link reason)))

(define-load-time-global **opening-handler**
    (loop:make-handler :input #'opening-input :closed #'opening-closed))

(defun handshaking-p (link)
  "True if LINK's TLS handshake is under way."
  (loop:connection-handshaking-p (server-link-socket link)))

(defun undecided-p (link)
  "True if the protocol of LINK depends on octets, of TLS or of the protocol, that have not come."
  (or (handshaking-p link) (eq :more (http-version-of link (make-octets 0) 0 0))))

(defun mute-p (link)
  "True if the peer of LINK has sent nothing yet and its protocol need not be HTTP/2."
  (and (not (loop:connection-unread-p (server-link-socket link)))
       (not (handshaking-p link))
       (undecided-p link)))

(defun opening-due (link)
  "Decide the protocol of LINK, whose peer has not sent enough octets in time. The server treats the
link as HTTP/2, whose error names the missing preface. A mute peer gets no octets, because browsers
connect in advance, and would take an error for the answer to their first request."
  (cond ((server-link-failure link))
        ((eq **draining-opening** (server-link-protocol link))
         (wire:close-link link "drained" :how :abort))
        ((mute-p link) (wire:close-link link "the peer has sent nothing in time" :how :lost))
        (t (settle link :http2))))

(defun drain-opening (link)
  "The DRAIN of a link whose protocol is not known: the rest of a handshake, or of the octets that
show the protocol, must arrive within a second. A new peer may have sent octets already."
  (let ((now (loop:event-loop-now (server-link-loop link))))
    (cond ((and (mute-p link) (<= (+ (server-link-born-ns link) +drain-ping-ns+) now))
           (wire:close-link link "drained" :how :abort))
          ((undecided-p link)
           (setf (server-link-protocol link) **draining-opening**)
           (loop:start-timer (server-link-loop link) (server-link-opening link)
                             (+ now +drain-ping-ns+)))
          (t (settle link :http2)
             (drain-link link)))))

(define-load-time-global **opening** (make-opening-protocol #'drain-opening))

(defun begin-opening (link)
  "Wait for the first octets of LINK, a new connection, to learn its protocol."
  (let ((timer (loop:make-lasting-timer (server-link-loop link) #'opening-due link)))
    (setf (server-link-opening link) timer)
    (loop:start-timer (server-link-loop link) timer
                      (+ (server-link-born-ns link)
                         (seconds-ns
                          (options-preface-timeout-seconds (server-link-options link)))))))
