;;;; Tokens that a client signs itself: their contents, their signatures (which the program openssl
;;;; verifies), and the keys.

(in-package #:clgrpc.tests.token)

(defun generated-key (directory name &rest arguments)
  "Two values: the files of a new private key, made by openssl with ARGUMENTS, and its public half."
  (let ((key (uiop:native-namestring (merge-pathnames (format nil "~A.key" name) directory)))
        (public (uiop:native-namestring (merge-pathnames (format nil "~A.pub" name) directory))))
    (uiop:run-program `("openssl" "genpkey" ,@arguments "-out" ,key))
    (uiop:run-program `("openssl" "pkey" "-in" ,key "-pubout" "-out" ,public)
                      :ignore-error-status t)
    (values key public)))

(defun token-parts (token)
  "The header and the claims of TOKEN, alists, the signed text, and the signature."
  (destructuring-bind (head claims signature) (uiop:split-string token :separator ".")
    (values (parse-json (token::base64-url-octets head))
            (parse-json (token::base64-url-octets claims))
            (format nil "~A.~A" head claims) (token::base64-url-octets signature))))

(defun write-octets-to (path octets)
  (with-open-file (stream path :direction :output :if-exists :supersede :element-type 'octet)
    (write-sequence octets stream))
  (uiop:native-namestring path))

(defun der-signature (raw)
  "The DER of RAW, an ECDSA signature of 64 octets."
  (flet ((number (start)
           (let* ((octets (coerce (subseq raw start (+ start 32)) 'list))
                  (short (or (member-if #'plusp octets) '(0)))
                  (whole (if (< 127 (first short)) (cons 0 short) short)))
             (list* 2 (length whole) whole))))
    (let ((body (append (number 0) (number 32))))
      (coerce (list* 48 (length body) body) 'octets))))

(defun verified-p (directory public signed signature)
  "True if openssl accepts SIGNATURE for SIGNED, text, by the public key in PUBLIC."
  (zerop (nth-value 2 (uiop:run-program
                       (list "openssl" "dgst" "-sha256" "-verify" public "-signature"
                             (write-octets-to (merge-pathnames "signature" directory) signature)
                             (write-octets-to (merge-pathnames "signed" directory)
                                              (string-octets signed)))
                       :ignore-error-status t))))

(test self-signed-tokens
  "RS256 and ES256, by keys of openssl; each signature is valid, but not for other octets."
  (support:with-folder (directory)
    (loop for (algorithm . arguments)
            in '(("RS256" "-algorithm" "RSA" "-pkeyopt" "rsa_keygen_bits:2048")
                 ("ES256" "-algorithm" "EC" "-pkeyopt" "ec_paramgen_curve:P-256"))
          do (multiple-value-bind (key public)
                 (apply #'generated-key directory algorithm arguments)
               (dotimes (i (if (string= "ES256" algorithm) 20 2))
                 (let ((token (ask-token (grpc:self-signed-token :key key :key-id "k1" :issuer "me"
                                                                 :claims '(("n" . 5))))))
                   (multiple-value-bind (head claims signed signature) (token-parts token)
                     (is (equal `(("alg" . ,algorithm) ("typ" . "JWT") ("kid" . "k1")) head))
                     (is (equal '("iss" "sub" "aud" "iat" "exp" "n") (mapcar #'car claims)))
                     (is (equal "me" (parameter "sub" claims)))
                     (is (equal "https://shop.example/shop.Shop" (parameter "aud" claims)))
                     (is (= 3600 (- (parameter "exp" claims) (parameter "iat" claims))))
                     (is (= (parameter "exp" claims) (token::web-token-expiry token)))
                     (let ((signature (if (string= "ES256" algorithm)
                                          (der-signature signature)
                                          signature)))
                       (is (verified-p directory public signed signature))
                       (is (not (verified-p directory public (concatenate 'string signed "x")
                                            signature)))))))))))

(test a-key-that-does-not-exist-is-named
  (is (equal "The key /nowhere/jwt.key cannot be read: it does not exist."
             (handler-case (grpc:self-signed-token :key "/nowhere/jwt.key" :issuer "me")
               (grpc:tls-error (error) (princ-to-string error))))))

(test a-key-without-end-is-refused
  (is (search "The key /dev/zero cannot be read: it is longer than"
              (handler-case (grpc:self-signed-token :key "/dev/zero" :issuer "me")
                (grpc:tls-error (error) (princ-to-string error))))))

(test self-signed-tokens-are-kept
  "There is one token for each audience, until it is old; their number is bounded."
  (support:with-folder (directory)
    (let* ((key (generated-key directory "k" "-algorithm" "EC" "-pkeyopt"
                               "ec_paramgen_curve:P-256"))
           (credentials (grpc:self-signed-token :key key :issuer "me" :seconds 60))
           (token (ask-token credentials)))
      (flet ((for (service)
               (credentials::make-credentials-request (format nil "/~A/M" service) "h" t)))
        (is (equal token (ask-token credentials)))
        (is (not (equal token (ask-token credentials :request (for "a")))))
        (dotimes (i 200) (ask-token credentials :request (for (format nil "s~D" i))))
        (is (>= 64 (hash-table-count (token::signer-kept credentials)))))
      ;; in the text itself, for one audience
      (let ((credentials (grpc:self-signed-token :key (uiop:read-file-string key) :issuer "me"
                                                 :subject nil :audience "all")))
        (is (equal (ask-token credentials) (ask-token credentials)))
        (is (equal "all" (parameter "aud" (nth-value 1 (token-parts (ask-token credentials))))))
        (is (null (assoc "sub" (nth-value 1 (token-parts (ask-token credentials)))
                         :test #'string=)))
        (is (not (search "BEGIN" (princ-to-string credentials))))))))

(test keys-that-sign-nothing
  (support:with-folder (directory)
    (loop for arguments in '(("-algorithm" "RSA" "-pkeyopt" "rsa_keygen_bits:1024")
                             ("-algorithm" "EC" "-pkeyopt" "ec_paramgen_curve:P-384")
                             ("-algorithm" "EC" "-pkeyopt" "ec_paramgen_curve:secp256k1")
                             ("-algorithm" "ED25519"))
          for i from 0
          do (signals grpc:tls-error
               (grpc:self-signed-token :key (apply #'generated-key directory i arguments)
                                       :issuer "me")))
    (signals grpc:tls-error (grpc:self-signed-token :key (merge-pathnames "none" directory)
                                                    :issuer "me"))
    (signals grpc:tls-error (grpc:self-signed-token :key "-----BEGIN nothing" :issuer "me")))
  (signals grpc:misuse (grpc:self-signed-token :key 5 :issuer "me"))
  (signals grpc:misuse (grpc:self-signed-token :key "k"))
  (signals grpc:misuse (grpc:self-signed-token :key "k" :issuer "me" :seconds 5)))

(test locked-keys
  (let ((key (support:certificate-file "locked.key")))
    (signals grpc:tls-error (grpc:self-signed-token :key key :issuer "me"))
    (is (stringp (ask-token (grpc:self-signed-token :key key :password "open" :issuer "me"))))))

(test expiry-of-web-tokens
  "A token that cannot be read has no expiry."
  (flet ((token (claims)
           (format nil "e30.~A.c2ln" (token::base64-url (string-octets claims)))))
    (is (= 1700000000 (token::web-token-expiry (token "{\"exp\":1700000000}"))))
    (is (= 1.7d9 (token::web-token-expiry (token "{\"exp\":1.7e9}"))))
    ;; the end of the year 9999, and later: a token that does not expire
    (is (= 253402300799 (token::web-token-expiry (token "{\"exp\":253402300799}"))))
    (is (= (expt 10 12) (token::web-token-expiry (token "{\"exp\":1e300}"))))
    (dolist (bad (list "" "." ".." "a.b" "a.b.c" "a.!!.c" (token "{}") (token "[1]") (token "5")
                       (token "{\"exp\":\"1700000000\"}") (token "{\"exp\":-5}")
                       (token "{\"exp\":0}") (token "{\"exp\":{}}") (token "{\"exp\":null}")
                       (token (make-string 1000 :initial-element #\[))
                       (format nil "e30.~A.x" (make-string 60000 :initial-element #\A))))
      (is (null (token::web-token-expiry bad)) "~S" (subseq bad 0 (min 60 (length bad)))))))
