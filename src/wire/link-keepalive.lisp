;;;; The life of a link apart from its calls: keepalive (gRFCs A8 and A9), idleness, age.
;;;;
;;;; Each link has one timer, for the earliest time at which one of the checks may be due. The
;;;; checks use data that exist anyway: the time of the last octets, and the number of streams so
;;;; far. Nothing is stored for these checks when octets arrive or calls end, so they cost calls
;;;; nothing. An option of 0 seconds means never.

(in-package #:clgrpc.wire)

(defconstant +keepalive-ping+ #x616C697665
  "The payload of keepalive PINGs. Any octets from the peer count as an answer.")

(defun begin-life (link)
  "Begin to watch LINK, which was opened in this turn."
  (let ((age-ns (seconds-ns (options-max-connection-age-seconds (link-options link)))))
    (setf (link-born-ns link) (loop:event-loop-now (link-loop link))
          (link-taken-ns link) (link-born-ns link)
          (link-filled-ns link) (link-born-ns link)
          ;; a random age, so that connections that were made together do not end together
          (link-age-ns link)
          (round (* age-ns (+ 0.9 (random 0.2 (loop:event-loop-random (link-loop link))))))
          (link-life link) (loop:make-lasting-timer (link-loop link) #'check-link link))
    (check-link link)))

(defun end-life (link)
  (loop:stop-timer (link-loop link) (link-life link)))

(defun check-link (link)
  "Make the checks of LINK, and start the timer for the next time at which one may be due."
  (let ((now (loop:event-loop-now (link-loop link)))
        (due nil))
    (dolist (check (if (link-http2 link)
                       '(advance-core keep-alive check-frame check-output check-age check-idle)
                       '(check-age)))   ; the code of the other protocol makes its own checks
      (let ((next (and (null (link-failure link)) (funcall check link now))))
        (when next (setf due (if due (min due next) next)))))
    (when (and due (null (link-failure link)))
      (loop:start-timer (link-loop link) (link-life link) due))))

;;; Each check acts if it is due at NOW, and returns the time when it is due next, or NIL for never.

(defun advance-core (link now)
  "Pass the time NOW to the core of LINK, which checks its own time-outs."
  (http2:advance-time (link-http2 link) now))

(defun check-frame (link now)
  "End LINK if the rest of a frame, or of a header block, has been missing for too long."
  (let* ((timeout (seconds-ns (options-frame-timeout-seconds (link-options link))))
         (socket (link-socket link))
         (since (cond ((plusp (loop:connection-unsent socket)) nil) ; we may not be reading
                      ((http2:connection-block-since-ns (link-http2 link)))
                      ((loop:connection-unread-p socket) (link-taken-ns link)))))
    (cond ((or (null since) (loop:connection-stopped-p socket)) (+ now timeout))
          ((< now (+ since timeout)) (+ since timeout))
          (t (close-link link "the rest of a frame did not arrive in time" :how :lost)))))

(defun check-output (link now)
  "End LINK if its peer has received none of the waiting output for too long."
  (let ((timeout (seconds-ns (options-send-timeout-seconds (link-options link)))))
    (cond ((not (loop:connection-blocked-p (link-socket link))) (+ now timeout))
          ((< now (+ (link-filled-ns link) timeout)) (+ (link-filled-ns link) timeout))
          (t (close-link link "the peer does not receive our output" :how :lost)))))

(defun keep-alive (link now)
  (let* ((interval (link-keepalive-ns link))
         (timeout (link-keepalive-timeout-ns link))
         (heard (http2:connection-last-receive-ns (link-http2 link)))
         (pinged (link-pinged-ns link)))
    (cond ((zerop interval) nil)
          ((< pinged heard)             ; the last PING has been answered
           (cond ((< now (+ heard interval)) (+ heard interval))
                 ((keepalive-wanted-p link)
                  (setf (link-pinged-ns link) now)
                  (trace-event :http-keepalive :keepalive-ping :peer (link-peer link)
                               :silent-seconds (ns-seconds (- now heard)))
                  (incf (link-keepalives link))
                  (http2:send-ping (link-http2 link) +keepalive-ping+)
                  (+ now (min interval timeout)))
                 (t (setf (link-dormant link) t)
                    (+ now interval))))
          ((< now (+ pinged timeout)) (min (+ pinged timeout) (+ now interval)))
          (t (close-link link (format nil "keepalive: no sign of the peer for ~,3F s"
                                      (ns-seconds (- now heard)))
                         :how :lost)))))

(defun keepalive-wanted-p (link)
  (or (eq :server (http2:connection-role (link-http2 link)))
      (plusp (link-calls link))
      (options-keepalive-without-calls (link-options link))))

(defun note-told (link event)
  "If LINK's owner has not received EVENT yet, note that it receives EVENT now, and return true."
  (unless (member event (link-told link))
    (push event (link-told link))))

(defun check-age (link now)
  (let ((grace-ns (seconds-ns (options-max-connection-age-grace-seconds (link-options link))))
        (old-ns (+ (link-born-ns link) (link-age-ns link))))
    (cond ((zerop (link-age-ns link)) nil)
          ((< now old-ns) old-ns)
          ((note-told link :age)
           (trace-event :http-keepalive :connection-old :peer (link-peer link))
           (link-event (link-owner link) link :age)
           (and (plusp grace-ns) (+ now grace-ns)))
          ((zerop grace-ns) nil)
          ((< now (+ old-ns grace-ns)) (+ old-ns grace-ns))
          (t (when (note-told link :grace)
               (link-event (link-owner link) link :grace))
             nil))))

(defun check-idle (link now)
  (let ((limit (seconds-ns (options-max-connection-idle-seconds (link-options link))))
        (opened (http2:counters-streams-opened
                 (http2:connection-counters (link-http2 link)))))
    (cond ((or (zerop limit) (link-draining link)) nil)
          ((or (plusp (link-calls link)) (/= opened (link-quiet-opened link))
               ;; calls may wait until the link is ready
               (not (http2:connection-ready-p (link-http2 link))))
           (setf (link-quiet-opened link) opened
                 (link-quiet-ns link) now
                 (link-told link) (remove :idle (link-told link)))
           (+ now (ceiling limit 4)))
          ((< now (+ limit (link-quiet-ns link)))
           (http2:shrink-connection (link-http2 link))
           (setf (link-last-fields link) #()
                 (link-last-octets link) 0)
           (measure-link link)
           (+ limit (link-quiet-ns link)))
          ((note-told link :idle)
           (trace-event :http-keepalive :connection-idle :peer (link-peer link))
           (link-event (link-owner link) link :idle)
           nil))))
