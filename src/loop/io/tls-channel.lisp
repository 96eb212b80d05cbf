;;;; TLS as a byte channel around another. The handshake continues whenever the connection reads or,
;;;; in the beginning, writes. So a connection need not know of the handshake: nothing can be read
;;;; or written until the handshake is over. The session gets the octets of one receive; one send
;;;; transmits all records of a flush.
;;;;
;;;; States: :new → :handshaking → :open → :ended (the peer sends no more) or :closed (we send no
;;;; more either; octets that still come are dropped). A session that fails becomes :failed and
;;;; sends the peer an alert; once the failure was reported, as +BROKEN+ with the reason in
;;;; BYTE-CHANNEL-FAILURE, the session becomes :closed.
;;;;
;;;; All sessions of a loop work through one area. LENDING-AREA lends the area to one session at a
;;;; time, for one step. The area is empty whenever it is lent, because LENDING-AREA checks that
;;;; each step leaves it empty. If a step is left before its end, for instance by a condition, its
;;;; session has failed: the octets that it leaves in the area are dropped, and nothing more of the
;;;; session is sent. Logs and tracers get the events of a step only after the step.
;;;;
;;;; A handshake costs our end more than the peer, and a thousand may be due at once. So one read
;;;; takes only +SHAKING-OCTETS+ of a handshake; no peer may send more than +MAX-SHAKING-OCTETS+
;;;; before its handshake is over; and a turn does only a part of the slow work, in which peers take
;;;; turns (loop-structure.lisp).
;;;;
;;;; Records that the inner byte channel did not take wait in TAIL. The data of records that are not
;;;; sent yet, OWED octets, do not count as written. So the connection offers the owed octets again,
;;;; and has the same back-pressure as without TLS. Records of the handshake have no such data: the
;;;; reads that continue the handshake also send its records.

(in-package #:clgrpc.loop)

(defconstant +record-room+ os:+record-octets+
  "The number of octets reserved in the session for an incomplete record, which the next octets may
complete.")
(defconstant +write-octets+ 65536
  "The maximum number of octets that are encrypted for one send.")
(defconstant +max-answer-octets+ 65536
  "The maximum number of octets of answers that a peer can cause in a session by records other than
data, such as KeyUpdates.")
(defconstant +max-idle-octets+ 32768
  "The maximum number of octets other than data, such as KeyUpdates, that a peer may send: as many
as an incomplete record has, and as many again for tickets. A KeyUpdate has 27 octets and costs us 7
µs.")
(defconstant +max-shaking-octets+ 65536
  "The maximum number of octets that a peer may send until the handshake is over. A chain of five
large certificates has 10,000.")
(defconstant +max-message-octets+ 16384
  "The maximum length of a message of a client's handshake, in octets. It is limited because OpenSSL
allocates memory for a whole message at once.")
(defconstant +shaking-octets+ 8192
  "The maximum number of octets of a handshake that one read takes. If each record has one octet,
these cost us 2 ms.")
(defconstant +octets-per-data-octet+ 24
  "The maximum number of octets of records that a peer may send for each octet of data. A record
with one octet of data has 23 further octets.")

(defstruct (tls (:constructor make-tls
                    (&key inner role used-credentials context server server-name resumable-until
                       loop area peer))
                (:copier nil))
  "The STATE of a TLS byte channel; see above."
  (inner nil :type byte-channel :read-only t) ; the byte channel that carries the records
  (role :client :type (member :client :server) :read-only t) ; the role of our end
  ;; the credentials that were in force when the handshake began
  (used-credentials nil :type tls-credentials :read-only t)
  ;; the context; a server may replace it by the context for another name
  (context nil :type context)
  ;; the server's name and port, as a client names it
  (server nil :type (or null string) :read-only t)
  (server-name nil :type (or null string)) ; the name by which the client calls the server
  (hello :awaited :type (member :awaited :taken :refused)) ; the ClientHello of a server's peer
  ;; reads the messages of a client that shakes hands with this server
  (record-scan nil :type (or null record-scan))
  (resumable-until nil :type (or null (integer 0))) ; UNTIL of the ticket that was offered
  (loop nil :type event-loop :read-only t) ; the loop on which the channel is
  (area nil :type os:tls-area :read-only t) ; the loop's
  (peer nil :read-only t)               ; see HANDSHAKE-MAY-CONTINUE-P
  (ssl 0 :type os:foreign-pointer)      ; OpenSSL's session; 0 once freed
  ;; the progress of the handshake, and of the end
  (state :new :type (member :new :handshaking :open :ended :failed :closed))
  (tail nil :type (or null buffer))     ; records that INNER has not taken
  (owed 0 :type index)                  ; octets of data that TAIL carries
  (written 0 :type (unsigned-byte 62))  ; octets of data that have been written
  (answered 0 :type (unsigned-byte 62)) ; answers in octets, see +max-answer-octets+
  ;; octets taken that are not data, see +max-idle-octets+; all octets until the handshake is over
  (idle 0 :type index)
  (ticket-kept nil :type boolean)       ; a client has kept a ticket of this session
  (security nil :type (or null security))) ; once the handshake is over

(declaim (sb-ext:freeze-type tls))

(define-printer (tls tls)
  "~(~A~) ~(~A~)" (tls-role tls) (tls-state tls))

(define-hot (tls-state-of :inline t) ((byte-channel byte-channel)) tls
  (the tls (byte-channel-state byte-channel)))

(defun tls-established-p (tls)
  "True from the end of the handshake until either end has closed the session."
  (and (member (tls-state tls) '(:open :ended)) t))

(defun connection-handshaking-p (connection)
  "True while the handshake of CONNECTION is not over, so that it transfers no data yet. On the
loop."
  (let ((tls (byte-channel-state (connection-byte-channel connection))))
    (and (typep tls 'tls) (member (tls-state tls) '(:new :handshaking)) t)))

(defconstant +handshake-octets+ 40960
  "The number of additional octets that a session keeps during a handshake, including an incomplete
message.")
(defun byte-channel-kept-octets (byte-channel)
  "Return the number of octets of memory that BYTE-CHANNEL keeps in addition to those of an idle
byte channel. On the loop."
  (let ((tls (byte-channel-state byte-channel)))
    (if (typep tls 'tls)
        (+ (os:session-octets (tls-ssl tls)
                              (and (eq :server (tls-role tls)) (tls-security tls)
                                   (security-peer-certificate (tls-security tls))))
           (if (eq :handshaking (tls-state tls)) +handshake-octets+ 0)
           (if (tls-tail tls) (length (buffer-octets (tls-tail tls))) 0))
        0)))

(defun byte-channel-security (byte-channel)
  "The SECURITY of BYTE-CHANNEL, or NIL if it has no TLS or its handshake is not over. From any
thread."
  (let ((tls (byte-channel-state byte-channel)))
    (and (typep tls 'tls) (tls-security tls))))

(defun connection-security (connection)
  "The result of CONNECTION's TLS handshake, a SECURITY, or nil if CONNECTION has no TLS or the
handshake is not over. From any thread."
  (byte-channel-security (connection-byte-channel connection)))

(defun byte-channel-own-certificate (byte-channel)
  "The DER of the certificate that our end of BYTE-CHANNEL shows, or NIL if it shows none, or the
session has ended. On the loop."
  (let ((tls (byte-channel-state byte-channel)))
    (and (typep tls 'tls) (tls-security tls) (/= 0 (tls-ssl tls))
         (os:own-certificate (tls-ssl tls)))))

;;; The area

(defmacro lending-area ((byte-channel tls) &body body)
  "Do BODY, in which the session of TLS, the state of BYTE-CHANNEL, may use the loop's area, and
return its values. BODY must not leave the form by RETURN-FROM."
  (let ((over (gensym "OVER")))
    `(let ((,over nil))
       (assert (not (shiftf (os:tls-area-lent (tls-area ,tls)) t)))
       (unwind-protect (multiple-value-prog1 (progn ,@body)
                         (assert (os:area-empty-p (tls-area ,tls)))
                         (setf (os:tls-area-lent (tls-area ,tls)) nil
                               ,over t))
         (unless ,over (abandon-session ,byte-channel ,tls))))))

(defun abandon-session (byte-channel tls)
  "Drop all octets that the session of TLS has read or written, because a non-local exit has left a
step of the session."
  (os:empty-area (tls-area tls))
  (setf (os:tls-area-lent (tls-area tls)) nil)
  (unless (eq :closed (tls-state tls))
    (fail-tls byte-channel tls "TLS: the session was left in the middle of a step")))

;;; Sending records

(define-hot send-tail ((tls tls)) fixnum
  "Send the octets of TAIL. Return 0 if all octets are sent, else a negative result of
BYTE-CHANNEL-WRITE."
  (let ((tail (tls-tail tls)))
    (if (null tail)
        0
        (let ((result (byte-channel-write (tls-inner tls) (buffer-octets tail) (buffer-start tail)
                                          (buffer-end tail))))
          (cond ((minusp result) result)
                ((= result (buffer-fill tail)) (setf (tls-tail tls) nil) 0)
                (t (incf (buffer-start tail) result)
                   +wants-write+))))))

(define-hot send-records ((tls tls)) fixnum
  "Send the octets that the session has written; octets that are not accepted become TAIL. Return 0,
even if octets are left, or a negative result of a failed write."
  (let ((octets (os:tls-area-octets (tls-area tls)))
        (failure 0))
    (declare (type fixnum failure))
    (loop
      (let ((count (os:drain-area (tls-area tls)))
            (sent 0))
        (declare (type index sent))
        (when (zerop count) (return failure))
        (incf (tls-written tls) count)
        (unless (tls-tail tls)
          (let ((result (byte-channel-write (tls-inner tls) octets 0 count)))
            (cond ((not (minusp result)) (setf sent result))
                  ((or (= result +wants-write+) (= result +wants-read+)))
                  (t (setf failure result)))))
        (when (and (< sent count) (zerop failure))
          (append-octets (or (tls-tail tls)
                             (setf (tls-tail tls) (make-buffer :size (- count sent))))
                         octets :start sent :end count))))))

(define-hot (pass-result :inline t) ((byte-channel byte-channel) (tls tls) (result fixnum)) fixnum
  "Return RESULT, which the inner byte channel returned. If it has failed, copy the reason to
BYTE-CHANNEL."
  (when (= result +broken+)
    (setf (byte-channel-failure byte-channel) (byte-channel-failure (tls-inner tls))))
  result)

;;; Failing

(defun fail-tls (byte-channel tls text)
  "Note that the session of BYTE-CHANNEL has failed, because of TEXT."
  (when (tls-server tls)
    (forget-ticket (tls-used-credentials tls) (tls-context tls) (tls-server tls)))
  (setf (byte-channel-failure byte-channel) text
        (tls-state tls) :failed)
  nil)

(defun fail-handshake (byte-channel tls failure)
  (fail-tls byte-channel tls (explain-failure failure (tls-ssl tls) (tls-server-name tls)
                                              (eq :refused (tls-hello tls)))))

(defun answer-broken (byte-channel tls)
  "The result of a read or write of BYTE-CHANNEL, whose session has failed."
  (setf (tls-state tls) :closed)
  (unless (tls-security tls)
    (log-event :info :handshake-failed :peer (byte-channel-peer byte-channel) :role (tls-role tls)
                                       :reason (byte-channel-failure byte-channel)))
  +broken+)

;;; The handshake

(defun advance-handshake (byte-channel tls)
  "Continue the handshake as far as the octets that the peer has sent allow. Call this within
LENDING-AREA."
  (setf (tls-state tls) :handshaking)
  (ecase (os:shake-hands (tls-ssl tls) :choose (lambda (name) (choose-context tls name)))
    (:done (end-handshake byte-channel tls))
    (:more)
    (:ended (fail-handshake byte-channel tls "the peer closed the connection"))
    (:failed (fail-handshake byte-channel tls (os:session-failure (tls-ssl tls))))))

(defun short-hello-p (tls count)
  "False if the peer of TLS, a client, begins a message that is too long in the COUNT octets of the
area."
  (or (eq :client (tls-role tls))
      (short-messages-p (or (tls-record-scan tls) (setf (tls-record-scan tls) (make-record-scan)))
                        (os:tls-area-octets (tls-area tls)) count +max-message-octets+
                        (lambda () (os:session-version (tls-ssl tls))))))

(defun take-handshake (byte-channel tls count)
  "Continue the handshake with COUNT octets that have arrived and may end with data. Call this
within LENDING-AREA."
  (incf (tls-idle tls) count)
  (if (short-hello-p tls count)
      (advance-handshake byte-channel tls)
      (fail-tls byte-channel tls "TLS: a message of the handshake is too long"))
  (cond ((not (eq :handshaking (tls-state tls)))
         (setf (tls-idle tls) 0
               (tls-record-scan tls) nil))
        ((< +max-shaking-octets+ (tls-idle tls))
         (fail-tls byte-channel tls "TLS: the peer sends too much before the handshake is over"))))

(defun choose-context (tls name)
  "Return a pointer to the TLS context for NAME, the server name that the client requests (NIL if it
requests none). Return NIL if the session keeps its present context, and :refused if NAME is not
allowed. NAME has not been checked before. A second ClientHello must have the same name (RFC 8446
section 4.1.2)."
  (let ((first (eq :awaited (tls-hello tls))))
    (cond ((not (if first
                    (or (null name) (os:host-name-p name))
                    (equal name (tls-server-name tls))))
           (setf (tls-hello tls) :refused))
          (first
           (setf (tls-hello tls) :taken
                 (tls-server-name tls) name)
           (let ((other (context-for-name (tls-context tls) name)))
             (when other
               ;; this keeps the context alive
               (setf (tls-context tls) other)
               (context-pointer other)))))))

(defun passes-check-p (tls ssl)
  "False if the PEER-CHECK of the credentials rejects the peer of SSL, the session of TLS. An error
in the check is logged and rejects the peer."
  (let ((check (tls-credentials-peer-check (tls-used-credentials tls)))
        (der (os:session-certificate ssl)))
    (or (null check)
        (null der)
        (handler-case (funcall check (os:make-certificate der))
          (error (error)
            (log-event :error :peer-check-failed :condition error)
            nil)))))

(defun in-domain-p (tls ssl)
  "False if the credentials of TLS have SPIFFE bundles and the root that vouches for the peer of SSL
belongs to another trust domain than the peer's identity. A resumed session was checked when it
began, with the same bundles."
  (let ((bundles (context-bundles (tls-context tls)))
        (der (os:session-certificate ssl)))
    (or (null bundles)
        (null der)
        (os:session-resumed-p ssl)
        (handler-case (let ((root (os:chain-root ssl)))
                        (and root (vouched-for-p bundles (os:make-certificate der) root)))
          (os:tls-error () nil)))))

(defun end-handshake (byte-channel tls)
  (let ((ssl (tls-ssl tls)))
    (cond ((not (in-domain-p tls ssl))
           (os:end-session-output ssl)
           (fail-handshake byte-channel tls
                           "the peer's SPIFFE identity is of another trust domain"))
          ((not (passes-check-p tls ssl))
           (os:end-session-output ssl)
           (fail-handshake byte-channel tls "the peer's certificate has not passed :peer-check"))
          ((or (eq :server (tls-role tls)) ; which has chosen
               (not (tls-credentials-alpn (tls-used-credentials tls)))
               (string= "h2" (os:session-alpn ssl)))
           (setf (tls-security tls) (describe-session tls ssl)
                 (tls-state tls) :open))
          (t (os:end-session-output ssl)
             (fail-handshake
              byte-channel tls
              "the server has not agreed to ALPN h2, so it does not support gRPC")))))

(defun trace-handshake (byte-channel tls)
  "Report the end of the handshake of BYTE-CHANNEL to tracers, if it is over and succeeded."
  (let ((security (tls-security tls)))
    (when security
      (trace-event :handshaker :handshake-done
                   :role (tls-role tls) :peer (byte-channel-peer byte-channel)
                   :protocol (security-protocol security) :cipher (security-cipher security)
                   :resumed (security-resumed-p security)))))

(defun describe-session (tls ssl)
  (let ((der (os:session-certificate ssl)))
    (make-security :protocol (os:session-version ssl) :cipher (os:session-cipher ssl)
                   :resumed-p (os:session-resumed-p ssl)
                   :alpn (let ((protocol (os:session-alpn ssl)))
                           (and (plusp (length protocol)) protocol))
                   :server-name (tls-server-name tls)
                   :peer-certificate (and der (os:make-certificate der)))))

(define-hot keep-session-ticket ((tls tls)) null
  "Keep the ticket of the session, if the server has sent a ticket, which it does before the first
data."
  (unless (tls-ticket-kept tls)
    (setf (tls-ticket-kept tls) t)
    (when (tls-server tls)
      (let ((ticket (os:session-ticket (tls-ssl tls))))
        (when ticket
          (keep-ticket (tls-used-credentials tls) (tls-context tls) (tls-server tls) ticket
                       (or (os:session-end (tls-ssl tls)) (tls-resumable-until tls) 0))))))
  nil)

;;; Reading

(define-hot take-records
            ((byte-channel byte-channel) (tls tls) (count index) (octets octets) (at index)
                          (end index))
    index
  "Decrypt COUNT new octets in the area into OCTETS from AT to END, and send the records that the
session has written meanwhile. Return the position after the decrypted octets."
  (let ((shaking (not (eq :open (tls-state tls)))))
    (lending-area (byte-channel tls)
      (os:feed-area (tls-area tls) count)
      (when shaking (take-handshake byte-channel tls count))
      (when (eq :open (tls-state tls))
        (let ((before at))
          (setf at (decrypt-records byte-channel tls octets before end))
          (count-idle byte-channel tls count (- at before))))
      ;; the session reads no more
      (when (member (tls-state tls) '(:ended :failed)) (os:drop-unread (tls-area tls)))
      (send-answers byte-channel tls))
    (when shaking (trace-handshake byte-channel tls))
    at))

(define-hot decrypt-records
            ((byte-channel byte-channel) (tls tls) (octets octets) (at index) (end index))
    index
  "Decrypt the octets in the area into OCTETS from AT to END. Return the position after the result."
  (multiple-value-bind (position outcome)
      (os:decrypt-octets (tls-ssl tls) (tls-area tls) octets at end)
    (when (> position at) (keep-session-ticket tls))
    (ecase outcome
      (:more)
      (:ended (setf (tls-state tls) :ended))
      (:failed
       (fail-tls byte-channel tls (session-text (tls-ssl tls)))))
    position))

(define-hot count-idle ((byte-channel byte-channel) (tls tls) (count index) (data index)) null
  "Note that the session has read COUNT octets, of which DATA were data. Fail the session if too
many octets were not data."
  (let ((idle (max 0 (- (+ (tls-idle tls) count) (* +octets-per-data-octet+ data)))))
    (setf (tls-idle tls) idle)
    (when (and (> idle +max-idle-octets+) (eq :open (tls-state tls)))
      (fail-tls byte-channel tls "TLS: the peer sends too much that is not data"))
    nil))

(define-hot send-answers ((byte-channel byte-channel) (tls tls)) null
  "Send the records that the session has written while it was read."
  (let ((open (eq :open (tls-state tls)))
        (before (tls-written tls)))
    (send-records tls)
    (when (and open
               (> (incf (tls-answered tls) (- (tls-written tls) before)) +max-answer-octets+))
      (fail-tls byte-channel tls "TLS: the peer requests too many answers"))
    nil))

(define-hot shake-hands-now ((byte-channel byte-channel) (tls tls) (octets octets) (start index)
                             (end index))
    fixnum
  "Do what READ-SESSION does during the handshake, unless the handshake must continue in the next
turn."
  (let ((loop (tls-loop tls)))
    (cond ((handshake-may-continue-p loop (tls-peer tls))
           (with-slow-work (loop) (read-session byte-channel tls octets start end)))
          (t (setf (byte-channel-more byte-channel) t)
             +wants-read+))))

(define-hot read-session
            ((byte-channel byte-channel) (tls tls) (octets octets) (start index) (end index))
    fixnum
  (let ((at start) (taken 0) (area (os:tls-area-octets (tls-area tls)))
        (most (if (eq :open (tls-state tls)) most-positive-fixnum +shaking-octets+)))
    (declare (type index at taken) (type fixnum most))
    (labels ((answer (otherwise more)
               (declare (type fixnum otherwise))
               (setf (byte-channel-more byte-channel) more)
               (return-from read-session (if (> at start) (- at start) otherwise)))
             (end-reading ()
               ;; this read returns the available octets, the next read returns the end
               (if (> at start)
                   (answer 0 t)
                   (read-tls byte-channel octets at end))))
      (loop
        (let ((room (min (- end at +record-room+) (length area) (- most taken))))
          (unless (plusp room) (answer +wants-read+ t))
          (let ((result (byte-channel-read (tls-inner tls) area 0 room)))
            (declare (type fixnum result))
            (cond ((plusp result)
                   (setf at (take-records byte-channel tls result octets at end))
                   (incf taken result)
                   (case (tls-state tls)
                     ;; a read that brought no octets of data is repeated, since after a short read
                     ;; no further event may come
                     ((:open :handshaking)
                      (when (and (> at start) (or (< result room) (> taken (length area))))
                        (answer +wants-read+ (= result room))))
                     (t (return (end-reading)))))
                  ((zerop result)
                   (end-of-records byte-channel tls)
                   (return (end-reading)))
                  (t (answer (pass-result byte-channel tls
                                          (if (tls-tail tls) (offer-tail tls result) result))
                             (/= result +wants-read+))))))))))

(defun offer-tail (tls result)
  "The result of a read of TLS whose inner read has returned RESULT. During the handshake send TAIL
first, because the peer may wait for these octets, and the connection, which has nothing to write,
would not send them."
  (let ((sent (if (eq :handshaking (tls-state tls)) (send-tail tls) 0)))
    (if (or (zerop sent) (= sent +wants-read+))
        result
        sent)))

(defun end-of-records (byte-channel tls)
  "Handle the end of the inner byte channel, whether the peer has announced it or not."
  (if (eq :open (tls-state tls))
      (setf (tls-state tls) :ended)
      (fail-handshake byte-channel tls "the peer closed the connection")))

(define-hot read-tls ((byte-channel byte-channel) (octets octets) (start index) (end index)) fixnum
  (let ((tls (tls-state-of byte-channel)))
    (setf (byte-channel-more byte-channel) nil)
    (ecase (tls-state tls)
      (:open (read-session byte-channel tls octets start end))
      ((:new :handshaking) (shake-hands-now byte-channel tls octets start end))
      (:ended 0)
      (:failed (answer-broken byte-channel tls))
      (:closed (byte-channel-read (tls-inner tls) octets start end)))))

;;; Writing

(define-hot write-session ((byte-channel byte-channel) (tls tls) (octets octets) (start index)
                           (end index))
    fixnum
  (let ((at (+ start (shiftf (tls-owed tls) 0))))
    (declare (type index at))
    (assert (<= at end))
    (if (= at end)
        (- at start)
        (let ((result (lending-area (byte-channel tls)
                        (write-records byte-channel tls octets start at end))))
          (if (eq :failed (tls-state tls))
              (answer-broken byte-channel tls)
              (pass-result byte-channel tls result))))))

(define-hot write-records
            ((byte-channel byte-channel) (tls tls) (octets octets) (start index) (at index)
                           (end index))
    fixnum
  "Encrypt OCTETS from AT to END, in parts that are sent at once, and send them. Return the number
of octets from START that count as written, or another result of a write. Call this within
LENDING-AREA."
  (loop
    (let ((next (min end (+ at +write-octets+))))
      (unless (os:encrypt-octets (tls-ssl tls) octets at next)
        (fail-tls byte-channel tls (session-text (tls-ssl tls))))
      (let ((result (send-records tls)))
        (cond ((eq :failed (tls-state tls)) (return +broken+))
              ((minusp result) (return result))
              ((tls-tail tls)
               (setf (tls-owed tls) (- next at))
               (return (if (= at start) +wants-write+ (- at start))))))
      (setf at next)
      (when (= at end) (return (- at start))))))

(defun begin-session (byte-channel tls)
  "Handle the first write of BYTE-CHANNEL, before its handshake. A client begins the handshake."
  (when (eq :client (tls-role tls))
    (lending-area (byte-channel tls)
      (advance-handshake byte-channel tls)
      (send-records tls)))
  (if (eq :failed (tls-state tls))
      (answer-broken byte-channel tls)
      ;; the inner byte channel's result tells which event TAIL needs
      (let ((sent (send-tail tls)))
        (if (zerop sent) +wants-read+ (pass-result byte-channel tls sent)))))

(define-hot write-tls ((byte-channel byte-channel) (octets octets) (start index) (end index)) fixnum
  (let* ((tls (tls-state-of byte-channel))
         (result (send-tail tls)))
    (declare (type fixnum result))
    (if (minusp result)
        (pass-result byte-channel tls result)
        (ecase (tls-state tls)
          ((:open :ended) (write-session byte-channel tls octets start end))
          (:new (begin-session byte-channel tls))
          (:handshaking +wants-read+)
          (:failed (answer-broken byte-channel tls))
          (:closed (- end start))))))

;;; Closing

(defun say-goodbye (byte-channel tls)
  "Send close_notify (RFC 8446 section 6.1), or the part that the byte channel accepts, if the peer
can decrypt it."
  (when (tls-established-p tls)
    (setf (tls-state tls) :closed)
    (lending-area (byte-channel tls)
      (os:end-session-output (tls-ssl tls))
      (send-tail tls)
      (send-records tls))))

(defun shut-tls-down (byte-channel)
  (let ((tls (tls-state-of byte-channel)))
    (say-goodbye byte-channel tls)
    (shut-byte-channel-down (tls-inner tls))))

(defun close-tls (byte-channel)
  (let ((tls (tls-state-of byte-channel)))
    (unwind-protect (say-goodbye byte-channel tls)
      (unless (zerop (tls-ssl tls))
        (os:close-tls-session (shiftf (tls-ssl tls) 0)))
      (setf (tls-state tls) :closed
            (tls-tail tls) nil)
      (close-byte-channel (tls-inner tls)))))

(sb-ext:define-load-time-global **tls**
  (make-byte-channel-kind :name "TLS"
                          :read #'read-tls :write #'write-tls
                          :shutdown #'shut-tls-down :close #'close-tls))

;;; Making

(defun loop-area (loop)
  "The area of all sessions on LOOP."
  (or (event-loop-tls-area loop)
      (setf (event-loop-tls-area loop) (os:make-tls-area))))

(defun release-area (loop)
  "Release the area of LOOP, which has stopped and has no open session."
  (let ((area (shiftf (event-loop-tls-area loop) nil)))
    (when area (os:free-tls-area area))))

(defun make-tls-byte-channel (loop byte-channel credentials role &key server-name http1 peer)
  "Return a byte channel for ROLE with TLS and CREDENTIALS over BYTE-CHANNEL. BYTE-CHANNEL must be
connected, and belongs to the new byte channel afterwards. A client calls its server by the server
name of CREDENTIALS or, if they have none, by SERVER-NAME, a host name or numeric address. A dot at
the end of the name is removed, because names in certificates never end with a dot. With HTTP1 a
server also agrees to HTTP/1.1. Handshakes with different PEERs, any objects, take turns. The first
read or write begins the handshake. Signal TLS-ERROR, with BYTE-CHANNEL unchanged, if there is no
OpenSSL or CREDENTIALS cannot be used. On LOOP."
  (let* ((name (and (eq role :client)
                    (or (tls-credentials-server-name credentials) server-name)))
         (name (and name (string-right-trim "." name)))
         (server (and name (format nil "~A at ~A" name (byte-channel-peer byte-channel))))
         (area (loop-area loop)))
    (with-context (context credentials (if http1 :http-server role))
      (let* ((ticket (and server (good-ticket context server)))
             (tls (make-tls :inner byte-channel :role role :used-credentials credentials
                            :context context :server server :server-name name
                            :resumable-until (and ticket (ticket-until ticket))
                            :loop loop :area area :peer peer)))
        (setf (tls-ssl tls)
              (os:open-tls-session (context-pointer context) area role
                                   :name name
                                   :check-name (and (tls-credentials-verify credentials)
                                                    (null (tls-credentials-spiffe-bundle
                                                           credentials)))
                                   :resumed (and ticket (ticket-pointer ticket))))
        (let ((outer (make-byte-channel **tls** (byte-channel-descriptor byte-channel)
                                        (byte-channel-peer byte-channel) tls)))
          ;; counted once
          (setf (byte-channel-loop outer) (shiftf (byte-channel-loop byte-channel) nil))
          outer)))))
