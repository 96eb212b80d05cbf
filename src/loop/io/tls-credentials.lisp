;;;; TLS credentials: the certificate that a server or client shows, and the authorities that it
;;;; trusts. The OpenSSL contexts, one for each role, are made of the credentials when they are
;;;; first needed. Renewed certificate files are noticed when a connection begins; open connections
;;;; keep the old certificates. A renewal that cannot be used is logged, and the old context stays.
;;;;
;;;; A file may be on a disk that hangs. So a separate thread checks the files, without the lock,
;;;; and the loop on which a connection begins waits for this check no longer than +LOOK-NS+. After
;;;; that time connections get the old context until the thread has finished.
;;;;
;;;; Contexts are freed by finalizers, since each open session needs its own. A client's context
;;;; keeps a ticket for each server, with which the next session is resumed.

(in-package #:clgrpc.loop)

(defconstant +tickets+ 256
  "The maximum number of servers for which a client keeps tickets. When tickets for a further server
arrive, all tickets are dropped.")

(defconstant +look-ns+ 100000000
  "The maximum time in nanoseconds that a loop waits for a check of files, which usually takes a
millisecond.")
(defconstant +patient-look-ns+ (* 10 +ns-per-second+)
  "The maximum time in nanoseconds that a thread that runs no loop waits for a check of files.")

(defstruct (context (:copier nil))
  "An OpenSSL context made of credentials, for one role."
  (pointer 0 :type os:foreign-pointer :read-only t) ; OpenSSL's context, valid in INSTANCE
  ;; the OS:OPENSSL-INSTANCE the context was made in
  (instance 0 :type (unsigned-byte 62) :read-only t)
  (digests '() :type list :read-only t) ; digests of the files from which the context was made
  (checked-ns 0 :type nanoseconds)      ; when the files were last checked
  (names '() :type list :read-only t)   ; the hosts that a server's certificate is for
  (bundles '() :type list :read-only t) ; the roots of each trust domain; nil without SPIFFE
  (others '() :type list)               ; contexts of a server's other credentials
  ;; tickets by name of the server
  (tickets (make-hash-table :test 'equal) :type hash-table :read-only t))

(defstruct (ticket (:constructor make-ticket (pointer until)) (:copier nil))
  "A ticket with which a client resumes a session."
  (pointer 0 :type os:foreign-pointer :read-only t) ; OpenSSL's session
  ;; a universal time, until which the server's certificate is valid
  (until 0 :type (integer 0) :read-only t))

(declaim (sb-ext:freeze-type ticket))

(defmethod print-object ((ticket ticket) stream)
  (print-unreadable-object (ticket stream :type t :identity t)))

(define-printer (context context)
  "~D tickets" (hash-table-count (context-tickets context)))

(defstruct (tls-credentials (:constructor %make-tls-credentials) (:copier nil))
  "The certificate that one end shows, and the certificates that it trusts. The function
TLS-CREDENTIALS has an argument for each slot but the last four, and explains it."
  (certificate nil :type (or null string pathname) :read-only t) ; the certificate, PEM or a file
  (key nil :type (or null string pathname) :read-only t) ; the key, PEM or a file
  (password nil :type (or null string) :read-only t) ; the password of the key
  ;; trusted certificates, PEM, a file or the system's
  (roots :system :type (or string pathname (eql :system)) :read-only t)
  (client-certificates :none :type (member :none :request :require) :read-only t) ; a server's
  (verify t :type boolean :read-only t) ; a client verifies its server
  (server-name nil :type (or null string) :read-only t) ; nil for the target's host
  (others '() :type list :read-only t)  ; credentials that a server has for other names
  (peer-check nil :type (or null function) :read-only t) ; checks the peer's certificate
  (spiffe-bundle nil :type (or null string pathname) :read-only t) ; a file: roots, by trust domain
  (revoked nil :type (or null string pathname) :read-only t) ; revocation lists: PEM or a file
  (key-log nil :type (or null string pathname) :read-only t) ; the file for secrets
  (check-seconds nil :type (or null real) :read-only t) ; how often the files are checked
  (alpn t :type boolean :read-only t)   ; true if ALPN agrees on HTTP/2
  ;; the context of clients, of servers, and of servers that speak HTTP/1.1 as well
  (contexts (list nil nil nil) :type list :read-only t)
  (looking nil :type boolean)           ; a thread checks the files
  ;; notified when LOOKING becomes nil
  (looked (sb-thread:make-waitqueue :name "clgrpc credentials checked") :read-only t)
  ;; held while files are reloaded
  (lock (sb-thread:make-mutex :name "clgrpc credentials") :read-only t))

(document-functions
  tls-credentials-server-name "The name that a client with CREDENTIALS expects of its server, a
  string; nil for the name in the channel's target."
  tls-credentials-alpn "True if connections with CREDENTIALS agree on HTTP/2 by ALPN."
  tls-credentials-client-certificates "The rule of a server with CREDENTIALS for its peers'
certificates: :none, :request or :require."
  tls-credentials-peer-check "The function that accepts or refuses the peer's certificate, or nil if
no function does."
  tls-credentials-verify "True if a client with CREDENTIALS verifies its server."
  tls-credentials-p "True if the argument is an object that TLS-CREDENTIALS returned.")

(defun source-text (source)
  "The name of SOURCE in messages and when printed. PEM is never shown, because it may be secret."
  (cond ((null source) nil)
        ((and (stringp source) (find #\{ source)) "JSON given as a string")
        ((pem-p source) "PEM given as a string")
        (t (princ-to-string source))))

(defmethod print-object ((credentials tls-credentials) stream)
  (print-unreadable-object (credentials stream :type t)
    (with-slots (certificate roots verify client-certificates) credentials
      (format stream "~@[certificate ~A, ~]roots ~A~:[, verifies nothing~;~]~@[, clients' ~(~A~)~]"
              (source-text certificate) (if (eq roots :system) "of the system" (source-text roots))
              verify (unless (eq :none client-certificates) client-certificates)))))

;;; PEM, as text or in a file

(defun pem-p (source)
  (and (stringp source) (search "-----BEGIN" source) t))

(defconstant +most-pem-octets+ 4194304 "The maximum length of a PEM file in octets.")

(defun file-text (source)
  "The text of the file SOURCE, in Latin-1."
  (sb-ext:octets-to-string (file-octets source :most +most-pem-octets+) :external-format :latin-1))

(defun pem-text (source &optional (kind "file"))
  "Return two values: the PEM in SOURCE, which is PEM or the name of a file; and a name of SOURCE
for errors. KIND is the noun for SOURCE in errors."
  (if (pem-p source)
      (values source (format nil "the ~A" kind))
      (handler-case (values (file-text source) (princ-to-string source))
        (sb-ext:file-does-not-exist ()
          (os:tls-error "The ~A ~A cannot be read: it does not exist." kind source))
        (error (error) (os:tls-error "The ~A ~A cannot be read: ~A" kind source error)))))

(defun file-digest (source)
  "Return a number that changes with the contents of the file SOURCE, or NIL if SOURCE is not a file
that can be read. The file's date would not suffice, because the file may be written twice in a
second, and a clock may be set back."
  (unless (or (null source) (eq source :system) (pem-p source))
    (ignore-errors
     (with-open-file (stream source :element-type 'octet)
       (let* ((length (file-length stream))
              (octets (make-octets (min +most-pem-octets+ length)))
              (digest (ldb (byte 61 0) (1+ length))))
         (declare (type (unsigned-byte 61) digest))
         (dotimes (i (read-sequence octets stream) digest)
           (setf digest (ldb (byte 61 0) (* #x100000001B3 (logxor digest (aref octets i)))))))))))

(defun roots-in-use (credentials)
  "The roots that CREDENTIALS trust: PEM, the name of a file, or :system. The environment may name a
file that replaces the system's roots (gRPC's document \"environment variables\")."
  (let ((roots (tls-credentials-roots credentials))
        (named (sb-ext:posix-getenv "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")))
    (if (and (eq :system roots) (plusp (length named))) named roots)))

(defun file-digests (credentials)
  (mapcar #'file-digest (list (tls-credentials-certificate credentials)
                              (tls-credentials-key credentials)
                              (tls-credentials-revoked credentials)
                              (tls-credentials-spiffe-bundle credentials)
                              (roots-in-use credentials))))

;;; Making

(define-keyword-function tls-credentials
    (&key certificate key password (roots :system)
       spiffe-bundle
       (client-certificates (if (and (eq roots :system) (null spiffe-bundle))
                                :none
                                :require))
       (verify t) server-name others peer-check revoked key-log
       (check-seconds 10) (alpn t))
  "Return TLS credentials for MAKE-CHANNEL or START-SERVER. Any number of channels and servers may
use the same object; they share its sessions.

CERTIFICATE          the certificate chain of the own end, as PEM (RFC 7468): a string that holds
                     it, or the name of a file. The own certificate comes first, then the
                     certificates of the issuers up to a root. A server needs a chain; a client
                     needs a chain if the server asks for it
KEY                  the private key, as PEM likewise; without KEY it is read from CERTIFICATE
PASSWORD             a string that decrypts the private key; nil, the default, for a key that is
                     not encrypted
ROOTS                the trusted certificates, as PEM likewise. :system, the default, means the
                     certificates in the file that the environment variable
                     GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names or, without it, those of the system
CLIENT-CERTIFICATES  a server's rule for its clients' certificates: :none asks for none; :request
                     asks, and refuses a client whose certificate ROOTS do not vouch for; :require
                     also refuses a client without a certificate. The default is :require if ROOTS
                     or SPIFFE-BUNDLE is given, otherwise :none
VERIFY               whether a client checks its server: ROOTS must vouch for the server's
                     certificate, and SERVER-NAME must be among the certificate's alternative names;
                     its subject does not count (RFC 9525). With nil, any machine between the two
                     ends can read and change all data
SERVER-NAME          the name that a client checks, a host's name or a numeric address; by default
                     the host of the channel's target
OTHERS               a list of TLS credentials, each with a certificate, that a server has for other
                     names. For a client that asks for a name (SNI, RFC 6066) the server uses the
                     first of OTHERS whose certificate is for that name, with the roots of
                     those credentials. For all other clients it uses its own certificate
SPIFFE-BUNDLE        a file of bundles of SPIFFE trust domains (gRFC A87), in place of ROOTS: a peer
                     must have a SPIFFE identity, and a root of its trust domain must vouch for it.
                     With such a file a client checks no host name, so it needs a PEER-CHECK that
                     accepts only the identities that its server may have. See CERTIFICATE-IDENTITY
PEER-CHECK           a function that is called with the CERTIFICATE of a peer that has passed all
                     these checks; it returns true to accept the peer, false to refuse the
                     connection. The function runs on the loop in every handshake, so it must not
                     wait. The function is not called for a client that has shown no certificate
REVOKED              certificate revocation lists (RFC 5280), as PEM likewise. A certificate is
                     refused if it is in a list, or if its issuer's list has expired. A
                     certificate whose issuer has no list is accepted (gRFC A69)
KEY-LOG              a file to which the secrets of all connections are appended, in the format of
                     SSLKEYLOGFILE (RFC 9850), for Wireshark: with this file one can decrypt the
                     connections. Only the owner of the file may read it. An environment variable
                     alone does not switch this on
CHECK-SECONDS        the time between two checks of the files, a real, by default 10; nil means that
                     they are not checked. When this time has passed, the next connection causes a
                     check, and files that have changed are read again. If that takes longer than a
                     tenth of a second, only connections that begin afterwards use the new files.
                     See RELOAD-CREDENTIALS
ALPN                 with nil, no protocol is agreed on by ALPN. Use nil only for TCP-SERVER and
                     TCP-CONNECT of CLGRPC.ASYNC, because gRPC needs HTTP/2

The environment variable GRPC_SSL_CIPHER_SUITES names the cipher suites of all TLS credentials, in
place of the defaults. The variable is read with the files.

A session is resumed only with the credentials with which it began, and only while all certificates
that vouched for the peer are valid. Signal MISUSE for a wrong argument. Files are first read when a
channel or server is made, which signals TLS-ERROR if they cannot be used. From any thread."
  (flet ((check (value type name)
           (unless (typep value type)
             (if (member name '(:key :password)) ; secrets are not shown
                 (misuse "~S of TLS credentials cannot be of the type ~S." name (type-of value))
                 (misuse "~S of TLS credentials cannot be ~S." name value)))))
    (check certificate '(or null string pathname) :certificate)
    (check key '(or null string pathname) :key)
    (check password '(or null string) :password)
    (check roots '(or string pathname (eql :system)) :roots)
    (unless (member client-certificates '(:none :request :require))
      (misuse ":CLIENT-CERTIFICATES of TLS credentials is :none, :request or :require, not ~S."
              client-certificates))
    (unless (typep verify 'boolean)
      (misuse ":VERIFY of TLS credentials is T or NIL, not ~S." verify))
    (check server-name '(or null (satisfies server-name-p)) :server-name)
    (check check-seconds '(or null (real 0 1000000)) :check-seconds)
    (check peer-check '(or null function) :peer-check)
    (check spiffe-bundle '(or null string pathname) :spiffe-bundle)
    (check revoked '(or null string pathname) :revoked)
    (check key-log '(or null string pathname) :key-log)
    (check others 'list :others))
  (dolist (other others) (check-other other client-certificates alpn peer-check))
  (unless (or (null spiffe-bundle) (eq :system roots))
    (misuse "TLS credentials have :roots or a :spiffe-bundle, not both."))
  (when (and key (not certificate)) (misuse "TLS credentials with a key need its certificate."))
  (%make-tls-credentials :certificate certificate :key (or key certificate) :password password
                         :roots roots :client-certificates client-certificates
                         :verify verify :server-name server-name
                         :others others :peer-check peer-check :revoked revoked :key-log key-log
                         :spiffe-bundle spiffe-bundle
                         :check-seconds check-seconds :alpn (and alpn t)))

(defun server-name-p (object)
  "True if the argument is a string that can be a server's name: a host name or a numeric address."
  (and (stringp object)
       (or (os:host-name-p object) (and (os:make-address object 0) t))))

(defun check-other (other client-certificates alpn peer-check)
  "Signal MISUSE if OTHER cannot be among the OTHERS of credentials."
  (unless (and (tls-credentials-p other)
               (tls-credentials-certificate other)
               (null (tls-credentials-others other))
               (eq (and alpn t) (tls-credentials-alpn other))
               (eq peer-check (tls-credentials-peer-check other))
               (eq client-certificates (tls-credentials-client-certificates other)))
    (misuse "~S cannot be for other names: that requires TLS credentials with a certificate and ~
             without :others of their own, and with the same ALPN, :client-certificates (~(~S~)) ~
             and :peer-check."
            other client-certificates)))

(defun build-context (credentials role)
  "Return a new context of CREDENTIALS for ROLE: :client, :server, or :http-server for a server that
also speaks HTTP/1.1. Signal TLS-ERROR if a part of CREDENTIALS cannot be used."
  (with-slots (certificate key password client-certificates verify revoked key-log spiffe-bundle)
      credentials
    (let* ((digests (file-digests credentials))
           (roots (roots-in-use credentials))
           (server (not (eq role :client)))
           (chain (and certificate (pem-text certificate)))
           (bundles (and spiffe-bundle (read-bundles spiffe-bundle)))
           (checks (cond (server client-certificates) (verify :require) (t :none)))
           (pointer (os:make-tls-context
                     (if server :server :client) checks
                     :alpn (and (tls-credentials-alpn credentials)
                                (if (eq role :http-server) :http1 t))
                     :cipher-suites (sb-ext:posix-getenv "GRPC_SSL_CIPHER_SUITES")
                     :cipher-source "GRPC_SSL_CIPHER_SUITES"))
           (done nil))
      (unwind-protect
           (progn
             (when certificate
               (os:add-certificate-chain pointer chain (source-text certificate))
               (os:add-private-key pointer (pem-text key) (source-text key) password))
             (cond ((eq checks :none))
                   (bundles (add-bundles pointer bundles (source-text spiffe-bundle)))
                   ((eq roots :system) (os:add-system-roots pointer))
                   (t (os:add-roots pointer (pem-text roots) (source-text roots) server)))
             (when revoked
               (os:add-revocation-lists pointer (pem-text revoked) (source-text revoked)))
             (when key-log (os:log-secrets pointer (uiop:native-namestring key-log)))
             (setf done t))
        (unless done (os:free-tls-context pointer)))
      (note-context (make-context :pointer pointer :instance (os:openssl-instance)
                                  :digests digests :checked-ns (monotonic-ns)
                                  :names (and server chain (host-names chain))
                                  :bundles (if (eq checks :none) '() bundles))))))

(defun read-bundles (source)
  "The roots of each trust domain in SOURCE, JSON or a file, as PARSE-BUNDLES returns them."
  (parse-bundles (if (and (stringp source) (find #\{ source)) source (pem-text source))
                 (source-text source)))

(defun add-bundles (pointer bundles what)
  "Make the context at POINTER trust the roots of all BUNDLES."
  (loop for (nil . roots) in bundles
        do (dolist (root roots) (os:add-root pointer root what))))

(defun host-names (chain)
  "The host names in the first certificate of CHAIN, which is PEM."
  (loop for (kind name) in (os:certificate-names (os:first-certificate chain "the certificate"))
        when (eq kind :dns) collect name))

(defun note-context (context)
  "Make the collector of CONTEXT free OpenSSL's memory for it."
  (let ((pointer (context-pointer context))
        (instance (context-instance context))
        (tickets (context-tickets context)))
    (sb-ext:finalize context
                     (lambda ()
                       (when (= instance (os:openssl-instance))
                         (drop-tickets tickets)
                         (os:free-tls-context pointer)))
                     :dont-save t)
    context))

(defun drop-tickets (tickets)
  (loop for ticket being the hash-values of tickets
        do (os:free-session-ticket (ticket-pointer ticket)))
  (clrhash tickets))

;;; The context to use now

(defmacro role-context (credentials role)
  `(nth (ecase ,role (:client 0) (:server 1) (:http-server 2))
        (tls-credentials-contexts ,credentials)))

(defun look-due-p (credentials context)
  "Return true if the files of CONTEXT must be checked now. In that case the interval until the next
check begins now."
  (let ((interval (tls-credentials-check-seconds credentials))
        (now (monotonic-ns)))
    (when (and interval (>= now (+ (context-checked-ns context) (seconds-ns interval))))
      (setf (context-checked-ns context) now)
      t)))

(defun renewed-context (credentials context role)
  "Return a new context of CREDENTIALS for ROLE, or nil if their files have not changed since
CONTEXT was made. Call this without the lock of CREDENTIALS."
  (handler-case (unless (equal (file-digests credentials) (context-digests context))
                  (build-context credentials role))
    (os:tls-error (error)
      (log-event :warning :credentials-not-reloaded :credentials credentials :condition error)
      nil)))

(defun look-at-files (credentials context role)
  "Read the files of CREDENTIALS again if they have changed, and replace CONTEXT, the context for
ROLE. Call this without the lock of CREDENTIALS."
  (let ((new nil))
    (unwind-protect (setf new (renewed-context credentials context role))
      (sb-thread:with-mutex ((tls-credentials-lock credentials))
        (when (and new (eq context (role-context credentials role)))
          (setf (role-context credentials role) new))
        (setf (tls-credentials-looking credentials) nil)
        (sb-thread:condition-broadcast (tls-credentials-looked credentials))))))

(defvar *look-end-ns* nil
  "The time until which this thread, which fetches contexts, waits for checks of files.")

(defun look-end-ns ()
  (+ (monotonic-ns) (if (runs-loop-p) +look-ns+ +patient-look-ns+)))

(defun have-files-looked-at (credentials context role)
  "Start a thread that checks the files, unless a thread is checking them, and wait for it until
*LOOK-END-NS*. Call this with the lock of CREDENTIALS."
  (flet ((look () (look-at-files credentials context role)))
    (when (and (not (tls-credentials-looking credentials))
               (setf (tls-credentials-looking credentials)
                     (and (run-on-reader #'look) t)))
      (loop while (and (tls-credentials-looking credentials)
                       (await-notice (tls-credentials-looked credentials)
                                     (tls-credentials-lock credentials) *look-end-ns*))))))

(defun current-context (credentials role)
  "The context of CREDENTIALS for ROLE. The context is made if it does not exist or its files have
changed. Call this with the lock of CREDENTIALS, which is released while the thread waits."
  (let ((context (role-context credentials role)))
    (cond ((or (null context) (/= (context-instance context) (os:openssl-instance)))
           (setf (role-context credentials role) (build-context credentials role)))
          ((not (look-due-p credentials context)) context)
          ((simulated-p)                ; a simulated world has neither such threads nor such files
           (setf (role-context credentials role)
                 (or (renewed-context credentials context role) context)))
          (t (have-files-looked-at credentials context role)
             (role-context credentials role)))))

(defmacro with-context ((context credentials role) &body body)
  "Do BODY with CONTEXT bound to the context of CREDENTIALS to use for ROLE now. This waits, once,
for the checks of all files that are due, including the files of OTHERS."
  (let ((held (gensym "CREDENTIALS")) (wanted (gensym "ROLE")))
    `(let ((,held ,credentials) (,wanted ,role) (*look-end-ns* (or *look-end-ns* (look-end-ns))))
       (sb-thread:with-mutex ((tls-credentials-lock ,held))
         (let ((,context (current-context ,held ,wanted)))
           (unless (or (eq ,wanted :client) (null (tls-credentials-others ,held)))
             (refresh-others ,held ,context ,wanted))
           ,@body)))))

(defun refresh-others (credentials context role)
  "Update the other contexts of CONTEXT, the context of CREDENTIALS for ROLE, which is a server's
role. Call this with the lock of CREDENTIALS."
  (let ((others (loop for other in (tls-credentials-others credentials)
                      collect (with-context (current other role) current))))
    (unless (equal others (context-others context))
      (setf (context-others context) others))))

(defun context-for-name (context name)
  "Return the first of the other contexts of CONTEXT whose certificate is for the host NAME, or NIL
if there is no such context. From any thread."
  (and name
       (find-if (lambda (other)
                  (find name (context-names other) :test #'os:host-name-matches-p))
                (context-others context))))

(defun check-credentials (credentials role)
  "Signal MISUSE if CREDENTIALS are not TLS credentials or lack a part that ROLE needs, and
TLS-ERROR if they cannot be used. ROLE is :client, :server, or :http-server for a server that also
speaks HTTP/1.1. The files are read now, for all connections of that ROLE. From any thread."
  (unless (tls-credentials-p credentials)
    (misuse "~S are not TLS credentials: call TLS-CREDENTIALS, or give nil for plaintext."
            credentials))
  (unless (or (eq role :client) (tls-credentials-certificate credentials))
    (misuse "A server's TLS credentials need a certificate and its key."))
  (when (and (eq role :client)
             (tls-credentials-verify credentials)
             (tls-credentials-spiffe-bundle credentials)
             (null (tls-credentials-peer-check credentials)))
    (misuse "A client's TLS credentials with a :spiffe-bundle need a :peer-check, which decides ~
             which identities the server may have."))
  (with-context (context credentials role) (context-pointer context))
  nil)

(defun new-contexts (credentials)
  "A list of a new context for each role for which CREDENTIALS have a context, and nil for each
other role."
  (loop for role in '(:client :server :http-server)
        collect (and (role-context credentials role)
                     (build-context credentials role))))

(defun reload-credentials (credentials)
  "Read the files of CREDENTIALS again, now. New connections use them; open connections do not
change. Signal TLS-ERROR if the files cannot be used; in that case nothing changes. From any
thread."
  (let ((new (loop for each in (cons credentials (tls-credentials-others credentials))
                   ;; without the lock: otherwise loops would wait for the files as well
                   collect (cons each (new-contexts each)))))
    (loop for (each . contexts) in new
          do (sb-thread:with-mutex ((tls-credentials-lock each))
               (loop for context in contexts
                     for place on (tls-credentials-contexts each)
                     do (when context (setf (first place) context))))))
  nil)

;;; Tickets

(defun keep-ticket (credentials context server pointer until)
  "Keep the ticket at POINTER for sessions with SERVER, a string, that begin before UNTIL."
  (sb-thread:with-mutex ((tls-credentials-lock credentials))
    (let ((tickets (context-tickets context)))
      (when (>= (hash-table-count tickets) +tickets+) (drop-tickets tickets))
      (drop-ticket tickets server)
      (setf (gethash server tickets) (make-ticket pointer until)))))

(defun good-ticket (context server)
  "Return the TICKET with which a session with SERVER can be resumed now, or NIL if there is none.
Call this with the lock of the credentials."
  (let ((ticket (gethash server (context-tickets context))))
    (cond ((null ticket) nil)
          ((< (get-universal-time) (ticket-until ticket)) ticket)
          (t (drop-ticket (context-tickets context) server)))))

(defun drop-ticket (tickets server)
  (let ((old (gethash server tickets)))
    (when old
      (remhash server tickets)
      (os:free-session-ticket (ticket-pointer old))
      nil)))

(defun forget-ticket (credentials context server)
  (sb-thread:with-mutex ((tls-credentials-lock credentials))
    (drop-ticket (context-tickets context) server)))
