;;;; Bundles of SPIFFE trust domains (SPIFFE Trust Domain and Bundle, section 4; gRFC A87): a file
;;;; of JSON with the roots of each trust domain; these vouch only for identities of that domain.
;;;; {"trust_domains": {"example.org": {"keys": [{"use": "x509-svid", "kty": "EC", "x5c": ["base64
;;;; of DER"]}]}}}. A file with an error anywhere is refused as a whole.
;;;;
;;;; OpenSSL trusts the roots of all domains. Then a check here shows whether the root of the chain
;;;; that OpenSSL has found belongs to the domain of the peer's identity.

(in-package #:clgrpc.loop)

(defconstant +max-bundle-octets+ (expt 2 22) "The maximum length of a file of bundles, in octets.")
(defconstant +trust-domain-characters+ 255 "The maximum length of a trust domain's name.")

(defun trust-domain-p (text)
  "True if TEXT, a string, can be the name of a trust domain (SPIFFE-ID, section 2.1)."
  (and (<= 1 (length text) +trust-domain-characters+)
       (every (lambda (character)
                (or (char<= #\a character #\z) (char<= #\0 character #\9) (find character "-_.")))
              text)))

(defun identity-domain (uri)
  "Return the trust domain of URI, a string, if URI is a SPIFFE identity, else nil."
  (let ((scheme "spiffe://"))
    (when (and (uiop:string-prefix-p scheme uri) (<= (length uri) 2048))
      (let* ((start (length scheme))
             (domain (subseq uri start (position #\/ uri :start start))))
        (and (trust-domain-p domain)
             (notany (lambda (character) (find character "?#%@ ")) uri)
             domain)))))

(defun certificate-identity (certificate)
  "Return two values: the SPIFFE identity of CERTIFICATE, a string such as
\"spiffe://example.org/shop\", and its trust domain, \"example.org\". Return nil unless the
certificate has exactly one URI and this URI is a SPIFFE identity (X.509-SVID, section 2). From any
thread."
  (let ((uris (loop for (kind text) in (os:certificate-names certificate)
                    when (eq :uri kind) collect text)))
    (when (= 1 (length uris))
      (let ((domain (identity-domain (first uris))))
        (and domain (values (first uris) domain))))))

(defun bundle-error (what control &rest arguments)
  (os:tls-error "The bundles of ~A cannot be used: ~?." what control arguments))

(defun json-member (object name)
  (and (listp object) (cdr (assoc name object :test #'equal))))

(defun key-certificate (key domain what)
  "The DER of the certificate in KEY, an element of the list of keys of DOMAIN."
  (let ((chain (json-member key "x5c")))
    (unless (equal "x509-svid" (json-member key "use"))
      (bundle-error what "a key of ~A is not for \"x509-svid\"" domain))
    (unless (and (simple-vector-p chain) (= 1 (length chain)) (stringp (svref chain 0)))
      (bundle-error what "the x5c of a key of ~A is not one certificate" domain))
    (or (ignore-errors (decode-base64 (svref chain 0)))
        (bundle-error what "the x5c of a key of ~A is not base64" domain))))

(defun domain-roots (domain bundle what)
  "Return the root certificates, as DER, of DOMAIN, whose value in the file is BUNDLE."
  (let ((keys (json-member bundle "keys")))
    (unless (trust-domain-p domain)
      (bundle-error what "~S is not the name of a trust domain" domain))
    (unless (simple-vector-p keys) (bundle-error what "~A has no keys" domain))
    (map 'list (lambda (key) (key-certificate key domain what)) keys)))

(defun parse-bundles (text what)
  "Return the root certificates in TEXT, which is JSON: an alist from trust domains to lists of DER.
Signal TLS-ERROR, in which WHAT names the text, if TEXT does not have that form."
  (let ((domains (handler-case
                     (json-member (parse-json text :max-depth 10 :max-length +max-bundle-octets+)
                                  "trust_domains")
                   (clgrpc-error (error) (bundle-error what "~A" error)))))
    (unless (consp domains) (bundle-error what "it has no trust_domains"))
    (loop for (domain . bundle) in domains
          when (< 1 (count domain domains :key #'car :test #'string=))
            do (bundle-error what "it has ~A twice" domain)
          collect (cons domain (domain-roots domain bundle what)))))

(defun vouched-for-p (bundles certificate root)
  "True if ROOT, the DER of the last certificate of the chain that vouches for CERTIFICATE, is a
root of the trust domain of CERTIFICATE's identity in BUNDLES."
  (let ((domain (nth-value 1 (certificate-identity certificate))))
    (and domain
         (member root (cdr (assoc domain bundles :test #'string=)) :test #'octets-equal)
         t)))
