;;;; SHA-256, and signatures over it with a private key, by OpenSSL's EVP: RSA with PKCS #1 v1.5
;;;; padding (RFC 8017 section 8.2) and ECDSA on the curve P-256 (FIPS 186-5). Octets of any length
;;;; can be signed. ECDSA signatures are returned in the form of JSON Web Signatures: r and s, 32
;;;; octets each (RFC 7518 section 3.4), not as the DER that OpenSSL makes.

(in-package #:clgrpc.os)

(defun sha256-digest (octets)
  "Return the 32 octets of the SHA-256 digest (FIPS 180-4) of OCTETS. From any thread."
  (open-openssl)
  (let ((digest (make-octets 32)))
    (with-pinned-objects (octets digest)
      (unless (= 1 (evp-digest (sap-int (vector-sap octets)) (length octets)
                               (sap-int (vector-sap digest)) 0 (evp-sha256) 0))
        (tls-error "OpenSSL makes no SHA-256: ~A." (or (openssl-failure) "unknown reason"))))
    digest))

(defconstant +evp-pkey-rsa+ 6)
(defconstant +evp-pkey-ec+ 408)

(defparameter *p-256* (coerce #(6 8 #x2A #x86 #x48 #xCE #x3D 3 1 7) 'octets)
  "The DER of the identifier of the curve P-256 (RFC 5480 section 2.1.1.1), as public keys contain
it.")

(defun key-kind (key what)
  "Return the kind of KEY, a private key of OpenSSL: :rsa, or :ec for a key on P-256. WHAT is the
name, for errors, of the text with KEY. Signal TLS-ERROR for other kinds, and for RSA with fewer
than 2048 bits."
  (let ((kind (evp-pkey-base-id key)) (bits (evp-pkey-bits key)))
    (cond ((and (= +evp-pkey-rsa+ kind) (<= 2048 bits)) :rsa)
          ((= +evp-pkey-rsa+ kind)
           (tls-error "The RSA key in ~A has ~D bits; it needs at least 2048." what bits))
          ((and (= +evp-pkey-ec+ kind) (search *p-256* (der-octets #'i2d-pubkey key))) :ec)
          (t (tls-error "The private key in ~A signs neither RS256 nor ES256: it is neither RSA ~
                         nor on the curve P-256." what)))))

(defun private-key-kind (text what &optional password)
  "Return the kind of the private key in TEXT, PEM, which may be encrypted with PASSWORD: :rsa, or
:ec for a key on P-256. Signal TLS-ERROR, in which WHAT names the text, for other texts. From any
thread."
  (open-openssl)
  (call-with-private-key (lambda (key) (key-kind key what)) text what password))

(defun der-integer (der at)
  "Return two values: the number of the INTEGER in DER at AT, of at most 256 bits, as 32 octets; and
the position after the INTEGER."
  (let* ((length (aref der (1+ at)))
         (end (+ at 2 length))
         (start (if (= 33 length) (+ at 3) (+ at 2))) ; skip a leading zero
         (octets (make-octets 32)))
    (replace octets der :start1 (- 32 (- end start)) :start2 start :end2 end)
    (values octets end)))

(defun raw-ecdsa-signature (der)
  "Return the signature in DER, an ECDSA-Sig-Value (RFC 3279 section 2.2.3) on P-256, as 64 octets."
  (multiple-value-bind (r end) (der-integer der 2)
    (concatenate 'octets r (der-integer der end))))

(defun digest-sign (key octets what)
  "Return the signature, as OpenSSL makes it, of the SHA-256 digest of OCTETS by KEY."
  (let ((context (evp-md-ctx-new)))
    (flet ((must (result)
             (unless (= 1 result)
               (tls-error "The private key in ~A does not sign: ~A." what
                          (or (openssl-failure) "unknown reason")))))
      (unwind-protect
           (let ((signature (make-octets (evp-pkey-size key)))
                 (length (make-array 1 :element-type '(unsigned-byte 64))))
             (must (evp-digest-sign-init context 0 (evp-sha256) 0 key))
             (with-pinned-objects (octets signature length)
               (setf (aref length 0) (length signature))
               (must (evp-digest-sign context (sap-int (vector-sap signature))
                                      (sap-int (vector-sap length))
                                      (sap-int (vector-sap octets)) (length octets))))
             (subseq signature 0 (aref length 0)))
        (evp-md-ctx-free context)))))

(defun sign-octets (octets text what &optional password)
  "Sign the SHA-256 digest of OCTETS with the private key in TEXT, PEM, perhaps encrypted with
PASSWORD. Return two values: the signature, and the kind of the key, :rsa or :ec. The signature of
an :ec key is r and s, 32 octets each. Signal TLS-ERROR, in which WHAT names the text, if the key
cannot be used. From any thread."
  (open-openssl)
  (call-with-private-key (lambda (key)
                           (let ((kind (key-kind key what))
                                 (signature (digest-sign key octets what)))
                             (values (if (eq :ec kind) (raw-ecdsa-signature signature) signature)
                                     kind)))
                         text what password))
