;;;; TLS 1.2 (RFC 5246) and 1.3 (RFC 8446) by OpenSSL, without its sockets: octets from the peer are
;;;; put into an AREA, and a session decrypts them; in the other direction a session encrypts octets
;;;; into the area. All sessions of a loop share one area, with two memory BIOs, since each step
;;;; takes all available octets; a session itself keeps an incomplete record. So a session without
;;;; work has no buffer.
;;;;
;;;; The contexts of a server and of a client are made here as RFC 9113 section 9.2 requires for
;;;; HTTP/2: ALPN, no renegotiation, no compression, ephemeral keys and AEAD ciphers only.

(in-package #:clgrpc.os)

(defconstant +record-octets+ 16640
  "A little more than the length of the longest record: 2^14 octets of content and the overhead of
encryption.")

(defconstant +max-client-chain-octets+ 16384
  "The maximum number of octets of all certificates that a client shows. A chain of five large
certificates has 10,000 octets.")

;;; Numbers from OpenSSL's headers

(defconstant +ssl-ctrl-mode+ 33)
(defconstant +ssl-ctrl-set-session-cache-mode+ 44)
(defconstant +ssl-ctrl-set-max-cert-list+ 51)
(defconstant +ssl-ctrl-set-tlsext-hostname+ 55)
(defconstant +ssl-ctrl-chain-cert+ 89)
(defconstant +ssl-ctrl-set-groups-list+ 92)
(defconstant +ssl-ctrl-set-min-proto-version+ 123)
(defconstant +tls-1.2+ #x0303)
(defconstant +ssl-modes+ (logior 1 2 #x10)
  "The modes of OpenSSL that allow partial writes and buffers that move between tries, and release
empty buffers.")
(defconstant +ssl-options+ (logior #x40000000 ; no renegotiation
                                   #x20000 ; no compression
                                   #x400000 ; the server's preference of ciphers, but
                                   #x200000) ; ChaCha20 for peers without AES in hardware
  "SSL_OP_…")
(defconstant +ssl-verify-peer+ 1)
(defconstant +ssl-verify-fail-if-no-peer-cert+ 2)
(defconstant +ssl-error-want-read+ 2)
(defconstant +ssl-error-want-write+ 3)
(defconstant +ssl-error-zero-return+ 6)
(defconstant +ssl-error-want-client-hello+ 11)
(defconstant +x509-flag-partial-chain+ #x80000
  "The flag by which a given root is trusted even if it is not self-signed.")
(defconstant +extension-server-name+ 0)
(defconstant +extension-alpn+ 16)
(defconstant +alert-unrecognized-name+ 112)
(defconstant +alert-no-application-protocol+ 120)
(defconstant +client-hello-retry+ -1)
(defconstant +accepted+ 1
  "The datum of a server's session whose ClientHello was accepted. Before the decision the datum is
0; after a refusal it is the number of an alert.")
(defconstant +unix-epoch+ 2208988800
  "1970-01-01, as a universal time.")
(defconstant +tlsext-err-ok+ 0)
(defconstant +tlsext-err-alert-fatal+ 2)

;;; OpenSSL's callbacks. The callbacks run inside SSL_do_handshake, on the loop; they neither
;;; allocate (except LOG-SECRET, see the file key-log) nor unwind, and do not examine a ClientHello:
;;; the callback for a ClientHello first makes OpenSSL return; then SHAKE-HANDS decides by CHOOSE.

(defun hello-extension (ssl kind)
  "Return the address and the length of the extension KIND of the ClientHello that SSL has read, or
0 and 0 if it has no such extension."
  (with-alien ((octets (unsigned 64) 0) (length (unsigned 64) 0))
    (if (= 1 (ssl-client-hello-get0-ext ssl kind (sap-int (sb-alien:alien-sap (addr octets)))
                                        (sap-int (sb-alien:alien-sap (addr length)))))
        (values octets length)
        (values 0 0))))

(define-callable check-client-hello int
    ((ssl (unsigned 64)) (alert (unsigned 64)) (alpn (unsigned 64)))
  (flet ((refuse (why)
           (setf (sb-sys:signed-sap-ref-32 (int-sap alert) 0) why)
           0))
    (let ((decision (ssl-get-ex-data ssl 0)))
      (cond ((zerop decision) +client-hello-retry+)
            ((/= decision +accepted+) (refuse decision))
            ;; without ALPN OpenSSL would not call the next function
            ((and (= 1 alpn) (zerop (hello-extension ssl +extension-alpn+)))
             (refuse +alert-no-application-protocol+))
            ;; after a HelloRetryRequest there is another ClientHello
            (t (ssl-set-ex-data ssl 0 0)
               1)))))

(defun find-protocol (name names length)
  "Return the position of NAME, a string, among the protocols that a client offers, LENGTH octets at
the address NAMES, or nil if NAME is not among them."
  (let ((sap (int-sap names)) (at 0))
    (declare (type (unsigned-byte 33) at))
    (loop while (< at length)
          do (let ((count (sb-sys:sap-ref-8 sap at)))
               (when (and (= count (length name))
                          (<= (+ at 1 count) length)
                          (loop for character across (the simple-string name)
                                for i from (1+ at)
                                always (= (sb-sys:sap-ref-8 sap i) (char-code character))))
                 (return (+ names at 1)))
               (incf at (1+ count))))))

(define-callable select-protocol int
    ((nil (unsigned 64)) (out (unsigned 64)) (out-length (unsigned 64)) (in (unsigned 64))
     (in-length (unsigned 32)) (http1 (unsigned 64)))
  (flet ((select (name)
           (let ((found (find-protocol name in in-length)))
             (when found
               (setf (sb-sys:sap-ref-64 (int-sap out) 0) found
                     (sb-sys:sap-ref-8 (int-sap out-length) 0) (length name))
               +tlsext-err-ok+))))
    (or (select "h2")
        (and (= 1 http1) (select "http/1.1"))
        +tlsext-err-alert-fatal+)))

;;; The name that a client asks for (RFC 6066 section 3). An unknown peer may send any octets as the
;;; name.

(defun host-name-character-p (character)
  "True if CHARACTER may be in the name of a host: ASCII letters, digits and a few signs."
  (or (char<= #\a character #\z) (char<= #\A character #\Z) (char<= #\0 character #\9)
      (and (find character "-_.:") t)))

(defun host-name-p (name)
  "True if the string NAME can be the name of a host, or a numeric address: up to 255 letters,
digits and signs of ASCII, the first of which is not a dot. From any thread."
  (and (<= 1 (length name) 255)
       (char/= #\. (char name 0))
       (every #'host-name-character-p name)))

(defun host-name-matches-p (name pattern)
  "True if PATTERN, a name in a certificate, is for the host NAME (RFC 6125 section 6.4)."
  (or (string-equal name pattern)
      (let ((dot (position #\. name)))
        (and dot
             (plusp dot)
             (< 2 (length pattern))
             (string= "*." pattern :end2 2)
             (string-equal name pattern :start1 (1+ dot) :start2 2)))))

(defun hello-server-name (ssl)
  "Return the name that the ClientHello that SSL has read requests, as a string of Latin-1, or NIL
if it requests none, or if the name has a form that OpenSSL will refuse."
  (multiple-value-bind (address length) (hello-extension ssl +extension-server-name+)
    (when (> length 5)
      (let ((octets (foreign-octets address (min length 1024))))
        ;; a list, 2 + N octets, whose one element has a kind, 0, and a name, 2 + N octets
        (when (and (= (- length 2) (u16be octets 0))
                   (zerop (aref octets 2))
                   (= (- length 5) (u16be octets 3)))
          (octets-latin (subseq octets 5)))))))

(defun change-context (ssl context)
  "Let SSL, whose handshake has begun, continue with CONTEXT. OpenSSL itself changes only
certificates and roots, not the settings of CONTEXT for verification (see revocation-list.lisp)."
  (ssl-set-context ssl context)
  (ssl-set-verify ssl (ssl-ctx-get-verify-mode context) (ssl-ctx-get-verify-callback context)))

(defun answer-client-hello (ssl choose)
  "Call CHOOSE, see SHAKE-HANDS, for the ClientHello that SSL has read, and set OpenSSL's answer to
it."
  (let ((context (funcall choose (hello-server-name ssl))))
    (cond ((eq context :refused) (ssl-set-ex-data ssl 0 +alert-unrecognized-name+))
          (t (when context (change-context ssl context))
             (ssl-set-ex-data ssl 0 +accepted+)))))

;;; A session may be resumed while all certificates that vouched for its peer are valid. A ticket
;;; does not contain these certificates. So a server's ticket contains the end of this time, as a
;;; universal time, for the new tickets of sessions that are resumed with it.

(defun chain-end (chain)
  "Return the time until which all certificates of CHAIN are valid, a universal time, or NIL if
there is no chain."
  (unless (zerop chain)
    (with-alien ((days int 0) (seconds int 0))
      (let ((now (get-universal-time)) (left (ash 1 50)))
        (declare (type (signed-byte 60) left))
        (dotimes (i (sk-num chain) (max 0 (+ now left)))
          (let ((end (x509-get0-not-after (sk-value chain i))))
            (if (= 1 (asn1-time-diff (sap-int (sb-alien:alien-sap (addr days)))
                                     (sap-int (sb-alien:alien-sap (addr seconds))) 0 end))
                (setf left (min left (+ (* 86400 days) seconds)))
                (setf left -1))))))))

(defun ticket-end (session)
  "Return the time in SESSION's ticket, or NIL if it has none."
  (with-alien ((octets (unsigned 64) 0) (length (unsigned 64) 0))
    (when (and (= 1 (ssl-session-get0-ticket-datum session
                                                   (sap-int (sb-alien:alien-sap (addr octets)))
                                                   (sap-int (sb-alien:alien-sap (addr length)))))
               (= 8 length))
      (ldb (byte 62 0) (sb-sys:sap-ref-64 (int-sap octets) 0)))))

(defun session-span (end begin timeout)
  "Return two values, a start time and a time-out, for a session that began at BEGIN, with TIMEOUT.
With these values the session ends by END, the time at which a certificate expires. Times are in
seconds since 1970, time-outs in seconds."
  ;; OpenSSL accepts the session until the sum of start time and time-out. The time-out is at least
  ;; one second, so the start time may be earlier than the session
  (let* ((last (max 2 (1- end)))
         (begin (min begin (1- last))))
    (values begin (min (- last begin) timeout))))

(define-callable limit-ticket int ((ssl (unsigned 64)) (nil (unsigned 64)))
  (let* ((session (ssl-get-session ssl))
         (end (or (chain-end (ssl-get0-verified-chain ssl)) (ticket-end session))))
    (when end
      (with-alien ((datum (signed 64) end))
        (ssl-session-set1-ticket-datum session (sap-int (sb-alien:alien-sap (addr datum))) 8))
      (multiple-value-bind (begin timeout)
          (session-span (- end +unix-epoch+) (ssl-session-get-time session)
                        (ssl-session-get-timeout session))
        (ssl-session-set-time session begin)
        (ssl-session-set-timeout session timeout)))
    1))

;;; Contexts

(defun add-certificate-chain (context text what)
  "Make CONTEXT show the certificates of TEXT, PEM: its own certificate first, then the certificates
of the issuers up to a root."
  (call-with-certificates
   (lambda (certificate index)
     (unless (= 1 (if (zerop index)
                      (ssl-ctx-use-certificate context certificate)
                      (ssl-ctx-ctrl context +ssl-ctrl-chain-cert+ 1 certificate)))
       (tls-error "A certificate of ~A cannot be used: ~A." what (openssl-failure))))
   text what))

(defun add-private-key (context text what password)
  "Make CONTEXT use the private key in TEXT, PEM, which may be encrypted with PASSWORD. Signal
TLS-ERROR, in which WHAT names the text, if it cannot be read or does not match the certificate."
  (call-with-private-key
   (lambda (key)
     (unless (and (= 1 (ssl-ctx-use-private-key context key))
                  (= 1 (ssl-ctx-check-private-key context)))
       (tls-error "The private key in ~A does not match the certificate: ~A." what
                  (openssl-failure))))
   text what password))

(defun add-roots (context text what client-names)
  "Make CONTEXT trust the certificates of TEXT, PEM. If CLIENT-NAMES is true, make it send the names
of these certificates to clients."
  (let ((store (ssl-ctx-get-cert-store context)))
    (x509-store-set-flags store +x509-flag-partial-chain+)
    (call-with-certificates
     (lambda (certificate index)
       (declare (ignore index))
       (unless (= 1 (x509-store-add-cert store certificate))
         (tls-error "A certificate of ~A cannot be used: ~A." what (openssl-failure)))
       (when client-names (ssl-ctx-add-client-ca context certificate)))
     text what)))

(defun add-root (context der what)
  "Make CONTEXT trust the certificate DER, octets. If the certificate cannot be used, signal
TLS-ERROR, in which WHAT names its origin."
  (call-with-x509 (lambda (certificate)
                    (let ((store (ssl-ctx-get-cert-store context)))
                      (x509-store-set-flags store +x509-flag-partial-chain+)
                      (unless (= 1 (x509-store-add-cert store certificate))
                        (tls-error "A certificate of ~A cannot be used: ~A." what
                                   (openssl-failure)))))
                  der))

(defun add-system-roots (context)
  "Make CONTEXT trust the root certificates that OpenSSL finds in the system. Signal TLS-ERROR if
they cannot be read."
  (unless (= 1 (ssl-ctx-set-default-verify-paths context))
    (tls-error "The system's root certificates cannot be read: ~A." (openssl-failure))))

(defun offer-protocols (context role alpn)
  (ecase role
    (:client
     (let ((names (octets-of 2 (char-code #\h) (char-code #\2))))
       (with-pinned-objects (names)
         (ssl-ctx-set-alpn-protos context (sap-int (vector-sap names)) 3))))
    (:server (ssl-ctx-set-alpn-select context (callable-address 'select-protocol)
                                      (if (eq :http1 alpn) 1 0)))))

(defparameter *group-lists*
  '("*X25519MLKEM768:*X25519:P-256:X448:P-521:P-384" "X25519:P-256:X448:P-521:P-384"
    "P-256:P-521:P-384")
  "Lists of groups for the exchange of keys, each in order of preference; the first list that
OpenSSL knows is used. OpenSSL's own lists also have finite-field groups (RFC 7919). The lists here
omit those groups, because a peer could cause a handshake with a group of 8,192 bits, which costs
150 ms, by sending a few octets.")

(defun use-groups (context list)
  "Make CONTEXT agree only on the groups in LIST; if OpenSSL does not know all of them, change
nothing and return false."
  (let ((octets (concatenate 'octets (ascii-octets list) (octets-of 0))))
    (with-pinned-objects (octets)
      (or (= 1 (ssl-ctx-ctrl context +ssl-ctrl-set-groups-list+ 0 (sap-int (vector-sap octets))))
          (progn (err-clear-error) nil)))))

(declaim (type cons **server-contexts**))
(defglobal **server-contexts** (list 0)) ; how many contexts have been made; atomic

(defun prepare-server (context alpn)
  "Make CONTEXT, a server's context, call our function for ClientHellos and issue one ticket for
each session. Other contexts do not accept the ticket; CONTEXT does not accept it after the expiry
of a certificate that vouched for the client."
  (ssl-ctx-set-client-hello context (callable-address 'check-client-hello)
                            (if (eq t alpn) 1 0))
  (ssl-ctx-set-num-tickets context 1)
  (ssl-ctx-ctrl context +ssl-ctrl-set-max-cert-list+ +max-client-chain-octets+ 0)
  (ssl-ctx-set-session-ticket context (callable-address 'limit-ticket) 0 0)
  (let ((id (make-octets 8)))
    (setf (u64be id 0) (1+ (sb-ext:atomic-incf (car **server-contexts**))))
    (with-pinned-objects (id)
      (ssl-ctx-set-session-id-context context (sap-int (vector-sap id)) 8))))

(defun make-tls-context (role verify &key (alpn t) cipher-suites (cipher-source "The list"))
  "Return a new context of ROLE, :client or :server. VERIFY is the rule for the peer's certificate:
:none, :request (invalid certificates are refused) or :require. If ALPN is T, both ends must agree
to HTTP/2. If it is :http1, for a server, the client may also offer http/1.1 or nothing.
CIPHER-SUITES and CIPHER-SOURCE are the list for USE-CIPHER-SUITES and its name in errors. Signal
TLS-ERROR if OpenSSL is missing or has none of the suites. From any thread; free the context with
FREE-TLS-CONTEXT."
  (open-openssl)
  (err-clear-error)
  (let ((context (ssl-ctx-new (tls-method))))
    (when (zerop context) (tls-error "No TLS context can be made: ~A." (openssl-failure)))
    (ssl-ctx-ctrl context +ssl-ctrl-set-min-proto-version+ +tls-1.2+ 0)
    (ssl-ctx-ctrl context +ssl-ctrl-mode+ +ssl-modes+ 0)
    ;; servers send tickets and keep no sessions; clients keep sessions in Lisp
    (ssl-ctx-ctrl context +ssl-ctrl-set-session-cache-mode+ 0 0)
    (ssl-ctx-set-options context +ssl-options+)
    (handler-bind ((tls-error (lambda (error)
                                (declare (ignore error))
                                (ssl-ctx-free context))))
      (use-cipher-suites context cipher-suites cipher-source)
      (unless (some (lambda (list) (use-groups context list)) *group-lists*)
        (tls-error "OpenSSL has no elliptic curve for the exchange of keys.")))
    (ssl-ctx-set-verify context (ecase verify
                                  (:none 0)
                                  (:request +ssl-verify-peer+)
                                  (:require (logior +ssl-verify-peer+
                                                    +ssl-verify-fail-if-no-peer-cert+)))
                        0)
    (when (eq role :server) (prepare-server context alpn))
    (when alpn (offer-protocols context role alpn))
    context))

(defun free-tls-context (context)
  "Free CONTEXT as soon as its last session is freed."
  (when **key-logs** (end-key-log context))
  (ssl-ctx-free context))

;;; Areas

(defstruct (tls-area (:constructor %make-tls-area (reading writing)) (:copier nil))
  "The working memory of TLS sessions: the memory BIOs of OpenSSL, and octets that have come from
the socket or will be sent to it. Both BIOs are empty while no session has the area."
  (reading 0 :type foreign-pointer :read-only t) ; BIO with octets from the peer
  (writing 0 :type foreign-pointer :read-only t) ; BIO with octets for the peer
  (lent nil :type boolean)              ; true while a session has the area
  ;; where records are received, and from where they are sent
  (octets (make-octets (* 5 +record-octets+)) :type octets :read-only t))

(declaim (sb-ext:freeze-type tls-area))

(defmethod print-object ((area tls-area) stream)
  (print-unreadable-object (area stream :type t :identity t)))

(document-functions
  tls-area-lent "True while a session has AREA. Only the code that lends AREA may use SETF."
  tls-area-octets "The vector through which octets pass between AREA and the network.")

(defun make-tls-area ()
  "Return an area for the sessions of one loop; free it with FREE-TLS-AREA."
  (open-openssl)
  (%make-tls-area (bio-new (bio-s-mem)) (bio-new (bio-s-mem))))

(defun free-tls-area (area)
  "Free the memory BIOs of AREA."
  (bio-free (tls-area-reading area))
  (bio-free (tls-area-writing area)))

(define-hot feed-area ((area tls-area) (count index)) null
  "Pass the first COUNT octets of AREA's vector to the next session that works through AREA."
  (let ((octets (tls-area-octets area)))
    (assert (<= count (length octets)))
    (with-pinned-objects (octets)
      (bio-write (tls-area-reading area) (sap-int (vector-sap octets)) count))
    nil))

(define-hot drain-area ((area tls-area)) index
  "Move octets that a session has written, as many as fit, into AREA's vector; return their number."
  (if (zerop (bio-ctrl-pending (tls-area-writing area)))
      0
      (let ((octets (tls-area-octets area)))
        (with-pinned-objects (octets)
          (max 0 (bio-read (tls-area-writing area) (sap-int (vector-sap octets))
                           (length octets)))))))

(define-hot area-unread-p ((area tls-area)) boolean
  "True if the session at work has not read all octets fed to AREA."
  (plusp (bio-ctrl-pending (tls-area-reading area))))

(define-hot area-empty-p ((area tls-area)) boolean
  "True if AREA contains no octets, so that another session may use it."
  (and (zerop (bio-ctrl-pending (tls-area-reading area)))
       (zerop (bio-ctrl-pending (tls-area-writing area)))))

(defun drop-unread (area)
  "Drop the unread octets in AREA. The session that uses AREA must not read afterwards."
  (drop-octets area (tls-area-reading area)))

(defun empty-area (area)
  "Drop all octets that a session has left in AREA."
  (drop-unread area)
  (drop-octets area (tls-area-writing area)))

(defun drop-octets (area bio)
  (let ((octets (tls-area-octets area)))
    (with-pinned-objects (octets)
      (loop while (plusp (bio-read bio (sap-int (vector-sap octets)) (length octets)))))))

;;; Sessions

(declaim (type cons **tls-sessions**))
(defglobal **tls-sessions** (list 0))   ; how many sessions there are; atomic

(defun tls-session-count ()
  "The number of sessions, by which tests find leaks."
  (car **tls-sessions**))

(defun open-tls-session (context area role &key name (check-name t) resumed)
  "Return a new session of CONTEXT that works through AREA. A client names its server NAME, a host
name or a numeric address; unless CHECK-NAME is false, the server's certificate must be for that
name. RESUMED is an earlier session's ticket, see SESSION-TICKET. CLOSE-TLS-SESSION must free the
session."
  (let ((ssl (ssl-new context))
        (reading (tls-area-reading area))
        (writing (tls-area-writing area)))
    (when (zerop ssl) (tls-error "No TLS session can be made: ~A." (openssl-failure)))
    (sb-ext:atomic-incf (car **tls-sessions**))
    (bio-up-ref reading)
    (bio-up-ref writing)
    (ssl-set-bio ssl reading writing)
    (ecase role
      (:server (ssl-set-accept-state ssl))
      (:client
       (ssl-set-connect-state ssl)
       (let ((named nil))
         (unwind-protect (progn (name-server ssl name check-name)
                                (setf named t))
           (unless named (close-tls-session ssl))))
       (when resumed (ssl-set-session ssl resumed))))
    ssl))

(defun name-server (ssl name check)
  "Make SSL ask for the host NAME, a string or NIL, and, if CHECK is true, accept only a certificate
that has NAME among its alternative names (RFC 9525). Signal TLS-ERROR if the name cannot be
checked."
  (flet ((must (result)
           (unless (= 1 result)
             (tls-error "~S cannot be a name in a certificate." name))))
    (cond ((and name (make-address name 0))
           (when check (must (x509-verify-param-set1-ip-asc (ssl-get0-param ssl) name))))
          ((and name (host-name-p name))
           (must (ssl-ctrl ssl +ssl-ctrl-set-tlsext-hostname+ 0 name))
           (when check
             (ssl-set-hostflags ssl (logior +no-partial-wildcards+ +never-check-subject+))
             (must (ssl-set1-host ssl name))))
          ((or name check)
           (tls-error "~:[A server without a name cannot be verified.~;~
                       ~:*~S is not a host name.~]" name)))))

(defun close-tls-session (ssl)
  "Free SSL. The session's ticket remains valid, even if the session has not ended in order."
  (ssl-set-shutdown ssl 3)
  (ssl-free ssl)
  (sb-ext:atomic-decf (car **tls-sessions**)))

(deftype outcome ()
  "The outcome of a step of a session."
  '(member :done :more :ended :failed))

(define-hot step-outcome (ssl (result (signed-byte 32))) (member :more :ended :failed)
  (declare (type foreign-pointer ssl))
  (let ((error (ssl-get-error ssl result)))
    (cond ((or (= error +ssl-error-want-read+) (= error +ssl-error-want-write+)) :more)
          ((= error +ssl-error-zero-return+) :ended)
          (t :failed))))

(defun shake-hands (ssl &key (choose (constantly nil)))
  "Continue the handshake of SSL. Return :done, :more if the peer must send more, :ended or :failed.
In a server's session, CHOOSE is called once for each ClientHello, before its other contents, such
as a ticket, are checked. The argument of CHOOSE is the name that the client requests, a string of
the octets that it has sent, or NIL if it requests none. CHOOSE returns a pointer to the context to
use, or NIL for the present context, or :refused."
  (loop
    (err-clear-error)
    (let ((result (ssl-do-handshake ssl)))
      (cond ((= result 1) (return :done))
            ((= +ssl-error-want-client-hello+ (ssl-get-error ssl result))
             (answer-client-hello ssl choose))
            (t (return (step-outcome ssl result)))))))

(define-hot decrypt-octets ((ssl foreign-pointer) (area tls-area) (octets octets) (start index)
                            (end index))
    (values index outcome)
  "Decrypt the octets fed to AREA for SSL into OCTETS from START to END. Return two values: the
position after the result; and :more if the peer must send more, :ended if it sends no more, :failed
after an error, or :done if the room is used up."
  (assert (<= start end (length octets)))
  (err-clear-error)
  (with-pinned-objects (octets)
    (let ((at start))
      (declare (type index at))
      (loop
        (when (= at end) (return (values at :done)))
        (let ((count (ssl-read ssl (sap-int (sap+ (vector-sap octets) at)) (- end at))))
          (unless (plusp count) (return (values at (step-outcome ssl count))))
          (incf at count)
          ;; the last read ended a record; without further octets another read brings nothing
          (when (and (< at end) (not (area-unread-p area)))
            (return (values at :more))))))))

(define-hot encrypt-octets ((ssl foreign-pointer) (octets octets) (start index) (end index))
    boolean
  "Encrypt OCTETS from START to END into the area of SSL. Return false if the encryption fails."
  (assert (<= start end (length octets)))
  (err-clear-error)
  (with-pinned-objects (octets)
    (loop
      (when (= start end) (return t))
      (let ((count (ssl-write ssl (sap-int (sap+ (vector-sap octets) start)) (- end start))))
        (unless (plusp count) (return nil))
        (incf start count)))))

(defconstant +octets-per-certificate-octet+ 8
  "The approximate number of octets that OpenSSL keeps for each octet of the certificates that a
client has shown.")

(defun session-octets (ssl certificate)
  "Return the approximate number of octets of memory that OpenSSL keeps for SSL in addition to those
of an idle session. CERTIFICATE is the certificate that the peer, a client, has shown, or NIL if it
has shown none."
  (+ (if (and (/= 0 ssl) (= 1 (ssl-has-pending ssl))) +record-octets+ 0) ; half a record
     (if certificate
         (* +octets-per-certificate-octet+ (length (certificate-der certificate)))
         0)))

(defun end-session-output (ssl)
  "Write close_notify."
  (err-clear-error)
  (ssl-shutdown ssl)
  (err-clear-error))

(defun update-keys (ssl)
  "Make SSL, a session of TLS 1.3, change its keys with its next output, and ask the peer to change
its keys too."
  (ssl-key-update ssl 1))

(defun session-failure (ssl)
  "Return the reason of the failure of a step of SSL, as text: OpenSSL's message and, if the peer's
certificate was rejected, the reason of the rejection."
  (let ((failure (or (openssl-failure) "unknown reason"))
        (verified (ssl-get-verify-result ssl)))
    (if (and (plusp verified) (string= failure "certificate verify failed"))
        (format nil "~A: ~A" failure (x509-verify-cert-error-string verified))
        failure)))

;;; Facts of an open session

(defun session-alpn (ssl)
  "Return the protocol on which both ends agreed, as a string, which is empty if they agreed on
none."
  (with-alien ((octets (unsigned 64) 0) (length (unsigned 32) 0))
    (ssl-get0-alpn-selected ssl (sap-int (sb-alien:alien-sap (addr octets)))
                            (sap-int (sb-alien:alien-sap (addr length))))
    (octets-latin (foreign-octets octets length))))

(defun session-version (ssl)
  "The protocol of SSL, such as \"TLSv1.3\"."
  (ssl-get-version ssl))

(defun session-cipher (ssl)
  "The cipher of SSL, such as \"TLS_AES_128_GCM_SHA256\"."
  (ssl-cipher-get-name (ssl-get-current-cipher ssl)))

(defun session-resumed-p (ssl)
  "True if the handshake of SSL resumed an earlier session (RFC 8446 section 2.2)."
  (= 1 (ssl-session-reused ssl)))

(defun session-certificate (ssl)
  "The DER of the certificate of SSL's peer, or NIL if it has shown none."
  (let ((x509 (ssl-get-peer-certificate ssl)))
    (unless (zerop x509)
      (unwind-protect (x509-octets x509)
        (x509-free x509)))))

(defun own-certificate (ssl)
  "The DER of the certificate that this end of SSL shows, or NIL if it shows none."
  (let ((x509 (ssl-get-certificate ssl)))
    (unless (zerop x509) (x509-octets x509))))

(defun presented-certificate (ssl)
  "Return the DER of the certificate that SSL's peer, a server, has shown, even if the server was
refused because of it. Return NIL if it has shown none, or if OpenSSL does not keep it, as before
version 3."
  (let ((chain (ssl-get-peer-cert-chain ssl)))
    (unless (or (zerop chain) (zerop (sk-num chain)))
      (x509-octets (sk-value chain 0)))))

(defun chain-root (ssl)
  "The DER of the last certificate of the chain that vouches for the peer of SSL, or NIL if no chain
was verified in this handshake, for instance because it resumed an earlier session."
  (let ((chain (ssl-get0-verified-chain ssl)))
    (unless (or (zerop chain) (zerop (sk-num chain)))
      (x509-octets (sk-value chain (1- (sk-num chain)))))))

(defun session-end (ssl)
  "The time until which all certificates that vouched for the peer of SSL are valid, a universal
time, or NIL if no chain was verified in this handshake, for instance because it resumed an earlier
session."
  (chain-end (ssl-get0-verified-chain ssl)))

(defun session-ticket (ssl)
  "Return a ticket with which a later session can resume this session, or NIL if there is none.
FREE-SESSION-TICKET must free the ticket."
  (let ((session (ssl-get1-session ssl)))
    (cond ((zerop session) nil)
          ((= 1 (ssl-session-is-resumable session)) session)
          (t (ssl-session-free session) nil))))

(defun free-session-ticket (session)
  "Free SESSION, which a client kept in order to resume it."
  (ssl-session-free session))
