;;;; The result of a TLS handshake: a SECURITY, or a text with the reason of its failure and its
;;;; likely cause. SSL is OpenSSL's session; the data of its peer may come from an attacker.

(in-package #:clgrpc.loop)

(defstruct (security (:copier nil))
  "The result of the handshake of a TLS connection."
  (protocol "" :type string :read-only t) ; the version of TLS
  (cipher "" :type string :read-only t) ; the name of the cipher suite
  (resumed-p nil :type boolean :read-only t) ; true if the session continued an earlier one
  (alpn nil :type (or null string) :read-only t) ; the protocol that both ends agreed on
  (server-name nil :type (or null string) :read-only t) ; the host that the client asked for
  (peer-certificate nil :type (or null os:certificate) :read-only t)) ; nil: the peer has shown none

(document-functions
  security-p "True if the argument is an object that CALL-SECURITY returned for a connection with
TLS."
  security-protocol "The version of TLS in use, \"TLSv1.3\" or \"TLSv1.2\"."
  security-cipher "The name of the cipher suite, such as \"TLS_AES_128_GCM_SHA256\"."
  security-alpn "The protocol on which both ends agreed (RFC 7301), such as \"h2\", or nil if they
agreed on none."
  security-resumed-p "True if the handshake continued an earlier session."
  security-server-name "The host name that the client requested (RFC 6066), or nil if it requested
none."
  security-peer-certificate "The CERTIFICATE that the other end has shown, or nil if it has shown
none. It was verified, unless the credentials have :verify nil.")

(define-printer (security security)
  "~A ~A~@[ ~A~]" (security-protocol security) (security-cipher security)
  (security-peer-certificate security))

(defconstant +most-names-shown+ 5
  "The maximum number of names of a certificate in the text of a failure.")

(defun presented-names (ssl)
  "The hosts and addresses of the refused certificate of SSL's server, as text; NIL if it cannot be
read. The certificate may come from an attacker."
  (let* ((der (os:presented-certificate ssl))
         (all (handler-case (and der (os:certificate-names (os:make-certificate der)))
                (os:tls-error () (return-from presented-names nil))))
         (names (loop for (kind name) in all
                      when (member kind '(:dns :ip)) collect name))
         (shown (loop for name in names
                      repeat +most-names-shown+ collect (printable-text name :limit 80)))
         (more (- (length names) (length shown))))
    (cond ((null der) nil)
          ((null names) "no name")
          (t (format nil "~{~A~^, ~}~[~:;~:* and ~D more~]" shown more)))))

(defun explain-failure (failure ssl server-name name-refused)
  "Return FAILURE, OpenSSL's text for a failed handshake of SSL, with its likely cause. SERVER-NAME
is the name by which a client calls its server. NAME-REFUSED is true if a server has refused the
name that its client requested."
  (format nil "TLS handshake failed: ~A~A" failure
          (cond ((or (search "hostname mismatch" failure) (search "IP address mismatch" failure))
                 (format nil " (the certificate is ~@[for ~A, ~]not for ~A); :server-name sets the ~
                              name to check"
                         (presented-names ssl) server-name))
                ((or (search "issuer certificate" failure) (search "self-signed" failure)
                     (search "self signed" failure))
                 " (the certificate's issuer is not trusted; :roots sets the trusted certificates)")
                ((or (search "wrong version number" failure) (search "http request" failure))
                 " (does the peer speak without TLS?)")
                (name-refused
                 " (the name that the client asks for is not a host name)")
                ((or (search "no application protocol" failure) (string= "callback failed" failure))
                 " (no common protocol: ALPN h2 is needed)")
                (t ""))))

(defun session-text (ssl)
  "A text with the reason why the session of SSL has failed."
  (let ((failure (os:session-failure ssl)))
    (format nil "TLS: ~A~:[~; (the server requires a certificate: give :certificate and :key)~]"
            failure (search "alert certificate required" failure))))
