;;;; The cipher suites of TLS connections: the default ones, and others that a program requests in
;;;; the form of gRPC's variable GRPC_SSL_CIPHER_SUITES. Whatever the list is, TLS 1.2 uses only the
;;;; suites that HTTP/2 allows: those with ephemeral keys and AEAD (RFC 9113 section 9.2.2 and
;;;; appendix A).

(in-package #:clgrpc.os)

(defparameter *tls-1.2-ciphers* "ECDHE+AESGCM:ECDHE+CHACHA20"
  "All suites that RFC 9113 appendix A allows and that clients support.")
(defparameter *tls-1.2-exclusions*
  ":!aNULL:!eNULL:!kRSA:!kPSK:!kRSAPSK:!kSRP:!MD5:!SHA1:!SHA256:!SHA384"
  "The text that is added to any other list of ciphers. It excludes suites without a certificate,
without encryption or without ephemeral keys, and suites with a separate MAC, that is, without
AEAD.")
(defparameter *tls-1.3-ciphers*
  "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
  "The default suites of TLS 1.3. AES-128 is first, because it is secure enough for decades, and the
cheapest.")
(defparameter *tls-1.3-names*
  '("TLS_AES_128_GCM_SHA256" "TLS_AES_256_GCM_SHA384" "TLS_CHACHA20_POLY1305_SHA256"
    "TLS_AES_128_CCM_SHA256" "TLS_AES_128_CCM_8_SHA256")
  "All suites of TLS 1.3 (RFC 8446 appendix B.4). No other name is accepted as a suite of TLS 1.3.")

(defun tls-1.3-name-p (name)
  "True if NAME is the name of a cipher suite of TLS 1.3. Names of the form TLS_…_WITH_… belong to
earlier suites in the registry."
  (and (uiop:string-prefix-p "TLS_" name) (not (search "_WITH_" name))))

(defun use-cipher-suites (context text source)
  "Make CONTEXT use the cipher suites in TEXT, names separated by colons, in that order of
preference. Names of TLS 1.3's suites replace the defaults for TLS 1.3; other names, which are
OpenSSL's, replace the defaults for TLS 1.2. If TEXT is nil or \"\", all defaults remain. Signal
TLS-ERROR if any suite of TLS 1.3, or all suites of TLS 1.2, are unknown or excluded; the error
names SOURCE as the origin of TEXT."
  (let* ((names (remove "" (uiop:split-string (or text "") :separator ":") :test #'string=))
         (newer (remove-if-not #'tls-1.3-name-p names))
         (older (remove-if #'tls-1.3-name-p names))
         (strange (find-if-not (lambda (name) (member name *tls-1.3-names* :test #'string=))
                               newer)))
    (when strange (tls-error "~A has ~A, which is not a cipher suite of TLS 1.3." source strange))
    (ssl-ctx-set-ciphersuites context (if newer
                                          (format nil "~{~A~^:~}" newer)
                                          *tls-1.3-ciphers*))
    (when (zerop (ssl-ctx-set-cipher-list context
                                          (if older
                                              (format nil "~{~A~^:~}~A" older
                                                      *tls-1.2-exclusions*)
                                              *tls-1.2-ciphers*)))
      (err-clear-error)
      (tls-error "~A has no cipher suite for HTTP/2 over TLS 1.2 that OpenSSL knows: ~{~A~^:~}."
                 source older))))
