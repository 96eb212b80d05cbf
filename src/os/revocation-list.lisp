;;;; Certificate revocation lists (RFC 5280 section 5, gRFC A69) of a TLS context. OpenSSL refuses a
;;;; certificate that a list contains. By the default of gRFC A69, OpenSSL accepts a certificate if
;;;; the context has no list of the certificate's issuer. A list that has expired refuses all
;;;; certificates of its issuer.

(in-package #:clgrpc.os)

(defconstant +x509-flag-revocation+ #xC
  "X509_V_FLAG_CRL_CHECK and X509_V_FLAG_CRL_CHECK_ALL. With these flags all certificates of a chain
are looked up in revocation lists.")
(defconstant +x509-no-revocation-list+ 3 "X509_V_ERR_UNABLE_TO_GET_CRL.")

(define-callable bear-missing-list int ((ok int) (verification (unsigned 64)))
  (cond ((= 1 ok) 1)
        ((= +x509-no-revocation-list+ (x509-store-ctx-get-error verification))
         (x509-store-ctx-set-error verification 0)
         1)
        (t 0)))

(defun add-revocation-lists (context text what)
  "Make CONTEXT refuse the certificates in the revocation lists of TEXT, PEM. Signal TLS-ERROR, in
which WHAT names the text, if a list cannot be used."
  (let ((store (ssl-ctx-get-cert-store context)))
    (x509-store-set-flags store +x509-flag-revocation+)
    (ssl-ctx-set-verify context (ssl-ctx-get-verify-mode context)
                        (callable-address 'bear-missing-list))
    (call-with-revocation-lists
     (lambda (list)
       (unless (= 1 (x509-store-add-crl store list))
         (tls-error "A revocation list of ~A cannot be used: ~A." what (openssl-failure))))
     text what)))
