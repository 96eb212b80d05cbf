;;;; The functions of OpenSSL that are used, of libssl 3 or 1.1 with its libcrypto. The library is
;;;; opened when TLS is first needed, so that a process without TLS does not need it. Pointers are
;;;; integers.
;;;;
;;;; A saved core opens the library again. Pointers made before the core was saved are invalid, so
;;;; code that keeps a pointer keeps OPENSSL-INSTANCE with it.

(in-package #:clgrpc.os)

(define-condition tls-error (clgrpc-error)
  ((text :initarg :text :reader tls-error-text)) ; the fault and its reason
  (:report (lambda (condition stream) (write-string (tls-error-text condition) stream)))
  (:documentation "A certificate, key or other part of TLS credentials cannot be used, or OpenSSL is
missing. TEXT describes the fault and its reason. Nothing was sent."))

(document-functions
  tls-error-text "A text with the part of TLS credentials that cannot be used, and the reason.")

(defun tls-error (control &rest arguments)
  "Signal TLS-ERROR with the text that CONTROL and ARGUMENTS format. From any thread."
  (error 'tls-error :text (format nil "~?" control arguments)))

(deftype foreign-pointer ()
  "The address of an object of OpenSSL. On Linux no address has more bits than this type."
  '(unsigned-byte 62))

(sb-alien:define-alien-type pointer (unsigned 64))
(sb-alien:define-alien-type size (unsigned 64))
(sb-alien:define-alien-type long (signed 64))

(declaim (type (unsigned-byte 62) **openssl-instance**)
         (type boolean **openssl-ready**))
(defglobal **openssl-instance** 0)
(defglobal **openssl-ready** nil)
(defglobal **openssl-lock** (sb-thread:make-mutex :name "clgrpc openssl"))

(defun openssl-instance ()
  "A number that differs in each core. Objects that OpenSSL has made in another core, which had
another number, no longer exist."
  **openssl-instance**)

(defun forget-openssl ()
  (setf **openssl-ready** nil)
  (incf **openssl-instance**))

(define-library **libssl** ("libssl.so.3" "libssl.so.1.1") (:on-forget 'forget-openssl)
  (init-ssl "OPENSSL_init_ssl" int (options (unsigned 64)) (settings pointer))
  (openssl-version-number "OpenSSL_version_num" (unsigned 64))
  ;; contexts
  (tls-method "TLS_method" pointer)
  (ssl-ctx-new "SSL_CTX_new" pointer (method pointer))
  (ssl-ctx-free "SSL_CTX_free" void (context pointer))
  (ssl-ctx-ctrl "SSL_CTX_ctrl" long (context pointer) (command int) (number long) (datum pointer))
  (ssl-ctx-set-options "SSL_CTX_set_options" (unsigned 64) (context pointer)
                       (options (unsigned 64)))
  (ssl-ctx-set-cipher-list "SSL_CTX_set_cipher_list" int (context pointer) (text c-string))
  (ssl-ctx-set-ciphersuites "SSL_CTX_set_ciphersuites" int (context pointer) (text c-string))
  (ssl-ctx-set-alpn-protos "SSL_CTX_set_alpn_protos" int (context pointer) (octets pointer)
                           (length (unsigned 32)))
  (ssl-ctx-set-alpn-select "SSL_CTX_set_alpn_select_cb" void (context pointer) (function pointer)
                           (argument pointer))
  (ssl-ctx-set-client-hello "SSL_CTX_set_client_hello_cb" void (context pointer)
                            (function pointer) (argument pointer))
  (ssl-ctx-get-verify-mode "SSL_CTX_get_verify_mode" int (context pointer))
  (ssl-ctx-get-verify-callback "SSL_CTX_get_verify_callback" pointer (context pointer))
  (ssl-ctx-set-verify "SSL_CTX_set_verify" void (context pointer) (mode int) (function pointer))
  (ssl-ctx-set-default-verify-paths "SSL_CTX_set_default_verify_paths" int (context pointer))
  (ssl-ctx-get-cert-store "SSL_CTX_get_cert_store" pointer (context pointer))
  (ssl-ctx-use-certificate "SSL_CTX_use_certificate" int (context pointer) (certificate pointer))
  (ssl-ctx-use-private-key "SSL_CTX_use_PrivateKey" int (context pointer) (key pointer))
  (ssl-ctx-check-private-key "SSL_CTX_check_private_key" int (context pointer))
  (ssl-ctx-set-session-id-context "SSL_CTX_set_session_id_context" int (context pointer)
                                  (octets pointer) (length (unsigned 32)))
  (ssl-ctx-set-session-ticket "SSL_CTX_set_session_ticket_cb" int (context pointer)
                              (on-give pointer) (on-take pointer) (argument pointer))
  (ssl-ctx-add-client-ca "SSL_CTX_add_client_CA" int (context pointer) (certificate pointer))
  (ssl-ctx-set-num-tickets "SSL_CTX_set_num_tickets" int (context pointer) (count size))
  (ssl-ctx-set-keylog "SSL_CTX_set_keylog_callback" void (context pointer) (function pointer))
  ;; sessions
  (ssl-new "SSL_new" pointer (context pointer))
  (ssl-get-context "SSL_get_SSL_CTX" pointer (ssl pointer))
  (ssl-free "SSL_free" void (ssl pointer))
  (ssl-ctrl "SSL_ctrl" long (ssl pointer) (command int) (number long) (text c-string))
  (ssl-set-bio "SSL_set_bio" void (ssl pointer) (reading pointer) (writing pointer))
  (ssl-set-accept-state "SSL_set_accept_state" void (ssl pointer))
  (ssl-set-connect-state "SSL_set_connect_state" void (ssl pointer))
  (ssl-get0-param "SSL_get0_param" pointer (ssl pointer))
  (ssl-set1-host "SSL_set1_host" int (ssl pointer) (name c-string))
  (ssl-set-hostflags "SSL_set_hostflags" void (ssl pointer) (flags (unsigned 32)))
  (ssl-do-handshake "SSL_do_handshake" int (ssl pointer))
  (ssl-read "SSL_read" int (ssl pointer) (octets pointer) (count int))
  (ssl-write "SSL_write" int (ssl pointer) (octets pointer) (count int))
  (ssl-shutdown "SSL_shutdown" int (ssl pointer))
  (ssl-has-pending "SSL_has_pending" int (ssl pointer))
  (ssl-set-shutdown "SSL_set_shutdown" void (ssl pointer) (mode int))
  (ssl-key-update "SSL_key_update" int (ssl pointer) (kind int))
  (ssl-get-error "SSL_get_error" int (ssl pointer) (result int))
  (ssl-get-verify-result "SSL_get_verify_result" long (ssl pointer))
  (ssl-get0-alpn-selected "SSL_get0_alpn_selected" void (ssl pointer) (octets pointer)
                          (length pointer))
  (ssl-get-version "SSL_get_version" c-string (ssl pointer))
  (ssl-get-current-cipher "SSL_get_current_cipher" pointer (ssl pointer))
  (ssl-cipher-get-name "SSL_CIPHER_get_name" c-string (cipher pointer))
  (ssl-session-reused "SSL_session_reused" int (ssl pointer))
  (ssl-set-ex-data "SSL_set_ex_data" int (ssl pointer) (index int) (datum pointer))
  (ssl-get-ex-data "SSL_get_ex_data" pointer (ssl pointer) (index int))
  (ssl-set-context "SSL_set_SSL_CTX" pointer (ssl pointer) (context pointer))
  (ssl-set-verify "SSL_set_verify" void (ssl pointer) (mode int) (function pointer))
  (ssl-get-peer-certificate ("SSL_get1_peer_certificate" "SSL_get_peer_certificate") pointer
                            (ssl pointer))
  (ssl-get-certificate "SSL_get_certificate" pointer (ssl pointer))
  (ssl-get-peer-cert-chain "SSL_get_peer_cert_chain" pointer (ssl pointer))
  (ssl-get0-verified-chain "SSL_get0_verified_chain" pointer (ssl pointer))
  (ssl-get-session "SSL_get_session" pointer (ssl pointer))
  (ssl-get1-session "SSL_get1_session" pointer (ssl pointer))
  (ssl-set-session "SSL_set_session" int (ssl pointer) (session pointer))
  (ssl-session-free "SSL_SESSION_free" void (session pointer))
  (ssl-session-is-resumable "SSL_SESSION_is_resumable" int (session pointer))
  (ssl-session-get-time "SSL_SESSION_get_time" long (session pointer))
  (ssl-session-set-time "SSL_SESSION_set_time" long (session pointer) (seconds long))
  (ssl-session-set-timeout "SSL_SESSION_set_timeout" long (session pointer) (seconds long))
  (ssl-session-get-timeout "SSL_SESSION_get_timeout" long (session pointer))
  (ssl-session-set1-ticket-datum "SSL_SESSION_set1_ticket_appdata" int (session pointer)
                                 (octets pointer) (length size))
  (ssl-session-get0-ticket-datum "SSL_SESSION_get0_ticket_appdata" int (session pointer)
                                 (octets pointer) (length pointer))
  (ssl-client-hello-get0-ext "SSL_client_hello_get0_ext" int (ssl pointer) (kind (unsigned 32))
                             (octets pointer) (length pointer))
  ;; BIOs
  (bio-new "BIO_new" pointer (kind pointer))
  (bio-s-mem "BIO_s_mem" pointer)
  (bio-new-mem-buf "BIO_new_mem_buf" pointer (octets pointer) (length int))
  (bio-free "BIO_free" int (bio pointer))
  (bio-up-ref "BIO_up_ref" int (bio pointer))
  (bio-read "BIO_read" int (bio pointer) (octets pointer) (count int))
  (bio-write "BIO_write" int (bio pointer) (octets pointer) (count int))
  (bio-ctrl-pending "BIO_ctrl_pending" size (bio pointer))
  ;; errors
  (err-clear-error "ERR_clear_error" void)
  (err-get-error "ERR_get_error" (unsigned 64))
  (err-reason-error-string "ERR_reason_error_string" c-string (code (unsigned 64)))
  (x509-verify-cert-error-string "X509_verify_cert_error_string" c-string (code long))
  ;; certificates and keys
  (pem-read-bio-x509 "PEM_read_bio_X509" pointer (bio pointer) (into pointer) (function pointer)
                     (password c-string))
  (pem-read-bio-private-key "PEM_read_bio_PrivateKey" pointer (bio pointer) (into pointer)
                            (function pointer) (password c-string))
  (evp-pkey-free "EVP_PKEY_free" void (key pointer))
  (evp-pkey-base-id ("EVP_PKEY_get_base_id" "EVP_PKEY_base_id") int (key pointer))
  (evp-pkey-bits ("EVP_PKEY_get_bits" "EVP_PKEY_bits") int (key pointer))
  (evp-pkey-size ("EVP_PKEY_get_size" "EVP_PKEY_size") int (key pointer))
  (i2d-pubkey "i2d_PUBKEY" int (key pointer) (into pointer))
  (evp-md-ctx-new "EVP_MD_CTX_new" pointer)
  (evp-md-ctx-free "EVP_MD_CTX_free" void (context pointer))
  (evp-sha256 "EVP_sha256" pointer)
  (evp-digest "EVP_Digest" int (octets pointer) (length size) (into pointer) (into-length pointer)
              (digest pointer) (engine pointer))
  (evp-digest-sign-init "EVP_DigestSignInit" int (context pointer) (key-context pointer)
                        (digest pointer) (engine pointer) (key pointer))
  (evp-digest-sign "EVP_DigestSign" int (context pointer) (signature pointer)
                   (signature-length pointer) (octets pointer) (length size))
  (x509-free "X509_free" void (certificate pointer))
  (x509-store-add-cert "X509_STORE_add_cert" int (store pointer) (certificate pointer))
  (pem-read-bio-x509-crl "PEM_read_bio_X509_CRL" pointer (bio pointer) (into pointer)
                         (function pointer) (password c-string))
  (x509-crl-free "X509_CRL_free" void (list pointer))
  (x509-store-add-crl "X509_STORE_add_crl" int (store pointer) (list pointer))
  (x509-store-ctx-get-error "X509_STORE_CTX_get_error" int (verification pointer))
  (x509-store-ctx-set-error "X509_STORE_CTX_set_error" void (verification pointer) (error int))
  (x509-store-set-flags "X509_STORE_set_flags" int (store pointer) (flags (unsigned 64)))
  (x509-verify-param-set1-ip-asc "X509_VERIFY_PARAM_set1_ip_asc" int (parameters pointer)
                                 (address c-string))
  (i2d-x509 "i2d_X509" int (certificate pointer) (into pointer))
  (d2i-x509 "d2i_X509" pointer (into pointer) (octets pointer) (length long))
  (x509-get-subject-name "X509_get_subject_name" pointer (certificate pointer))
  (x509-get-issuer-name "X509_get_issuer_name" pointer (certificate pointer))
  (x509-get0-not-before "X509_get0_notBefore" pointer (certificate pointer))
  (x509-get0-not-after "X509_get0_notAfter" pointer (certificate pointer))
  (x509-get-serial-number "X509_get_serialNumber" pointer (certificate pointer))
  (x509-get-ext-d2i "X509_get_ext_d2i" pointer (certificate pointer) (kind int) (critical pointer)
                    (index pointer))
  (x509-check-host "X509_check_host" int (certificate pointer) (name c-string) (length size)
                   (flags (unsigned 32)) (found pointer))
  (x509-check-ip-asc "X509_check_ip_asc" int (certificate pointer) (address c-string)
                     (flags (unsigned 32)))
  (x509-name-print-ex "X509_NAME_print_ex" int (bio pointer) (name pointer) (indent int)
                      (flags (unsigned 64)))
  (sk-num "OPENSSL_sk_num" int (stack pointer))
  (sk-value "OPENSSL_sk_value" pointer (stack pointer) (index int))
  (general-names-free "GENERAL_NAMES_free" void (names pointer))
  (asn1-time-diff "ASN1_TIME_diff" int (days pointer) (seconds pointer) (from pointer)
                  (to pointer))
  (asn1-string-get0-data "ASN1_STRING_get0_data" pointer (string pointer))
  (asn1-string-length "ASN1_STRING_length" int (string pointer)))

;;; Opening

(defconstant +openssl-init-no-atexit+ #x80000
  "The flag OPENSSL_INIT_NO_ATEXIT. Without this flag a process that ends would clean up OpenSSL
while other threads still use it.")

(defun open-openssl ()
  "Open OpenSSL unless it is open. Signal TLS-ERROR if OpenSSL is missing. From any thread."
  (unless **openssl-ready**
    (sb-thread:with-mutex (**openssl-lock**)
      (multiple-value-bind (open failure) (open-library **libssl**)
        (unless open
          (tls-error "TLS needs OpenSSL 3 or 1.1 (Debian's package libssl3): ~A." failure)))
      (init-ssl +openssl-init-no-atexit+ 0)
      (setf **openssl-ready** t)))
  nil)

(defun openssl-open-p ()
  "True if this process has opened OpenSSL."
  **openssl-ready**)

;;; Its errors

(defun openssl-failure ()
  "Return the text of the oldest error in this thread's queue of errors, or NIL if the queue is
empty. The queue is emptied."
  (let ((code (err-get-error)))
    (err-clear-error)
    (cond ((zerop code) nil)
          ((err-reason-error-string code))
          (t (format nil "OpenSSL error ~X" code)))))
