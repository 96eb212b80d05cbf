;;;; JSON Web Tokens (RFC 7519): their expiry, and tokens that a client signs itself, with RS256 or
;;;; ES256 (RFC 7518 section 3). The server, not this file, verifies tokens.

(in-package #:clgrpc.token)

(defun base64-url (octets)
  "OCTETS in base64url without padding (RFC 4648 section 5)."
  (substitute #\_ #\/ (substitute #\- #\+ (encode-base64 (coerce octets 'octets)))))

(defun base64-url-octets (text)
  "The octets in TEXT, base64url without padding."
  (decode-base64 (substitute #\/ #\_ (substitute #\+ #\- text))))

(defconstant +latest-expiry+ (expt 10 12)
  "The latest expiry of a token that is used, in seconds since 1970: some issuers write
the last second of the year 9999, or a greater number, for tokens that do not expire.")

(defun web-token-expiry (token)
  "The member `exp` of TOKEN, a JSON Web Token, a real, seconds since 1970; nil if it cannot be
read."
  (let* ((first (position #\. token))
         (second (and first (position #\. token :start (1+ first)))))
    (and second
         (handler-case
             (let* ((claims (parse-json (base64-url-octets (subseq token (1+ first) second))
                                        :max-length +most-token-octets+ :max-depth 20))
                    (exp (and (listp claims) (cdr (assoc "exp" claims :test #'string=)))))
               (and (realp exp) (plusp exp) (min exp +latest-expiry+)))
           (error () nil)))))

(defun seconds-until (expiry)
  "The seconds from now until EXPIRY, seconds since 1970."
  (- (rational expiry) (/ (wall-now) +ns-per-second+)))

(defun signed-token (claims key-text what password key-id)
  "A JSON Web Token with CLAIMS, an alist for WRITE-JSON, signed with the key in KEY-TEXT, PEM.
KEY-ID, a string, is the member `kid` of its header if it is not nil."
  (flet ((part (value)
           (base64-url (string-octets (write-json value)))))
    (let* ((kind (os:private-key-kind key-text what password))
           (head (part `(("alg" . ,(ecase kind (:rsa "RS256") (:ec "ES256")))
                         ("typ" . "JWT")
                         ,@(when key-id `(("kid" . ,key-id))))))
           (signed (format nil "~A.~A" head (part claims))))
      (format nil "~A.~A" signed
              (base64-url (os:sign-octets (string-octets signed) key-text what password))))))

;;; Call credentials

(defconstant +remembered-audiences+ 64
  "The maximum number of services for which self-signed tokens are kept; when one more service needs
a token, all kept tokens are dropped.")

(defclass self-signed-credentials (credentials:call-credentials)
  ((key :initarg :key :reader signer-key) ; the private key, as PEM
   (what :initarg :what :reader signer-what) ; the name of KEY in errors
   (password :initarg :password :reader signer-password) ; the password of KEY, or nil
   (key-id :initarg :key-id :reader signer-key-id) ; the header `kid`, or nil
   (issuer :initarg :issuer :reader signer-issuer) ; the claim `iss`
   (subject :initarg :subject :reader signer-subject) ; the claim `sub`, or nil
   (audience :initarg :audience :reader signer-audience) ; a string, or :service
   (claims :initarg :claims :reader signer-claims) ; an alist
   (seconds :initarg :seconds :reader signer-seconds) ; how many seconds a token lives
   ;; of KEPT
   (lock :initform (sb-thread:make-mutex :name "clgrpc self-signed tokens") :reader signer-lock)
   ;; from audiences to KEPT-TOKENs
   (kept :initform (make-hash-table :test 'equal) :reader signer-kept))
  (:documentation "Call credentials of JSON Web Tokens that the client signs; see
SELF-SIGNED-TOKEN."))

(define-printer (signer self-signed-credentials)
  "issuer ~A, key ~A" (signer-issuer signer) (signer-what signer))

(define-keyword-function self-signed-token
    (&key key password key-id issuer (subject issuer) (audience :service)
       claims (seconds 3600))
  "Return call credentials, for :call-credentials of a channel or stub, that send a JSON Web Token
(RFC 7519) which this client signs itself, as `authorization: Bearer TOKEN`. A token is made when it
is first needed, once for each audience, and again before it expires.
KEY       the private key: PEM, a string that holds it or the name of a file, which is read now. RSA
          of 2048 bits or more signs by RS256, a key on the curve P-256 by ES256
PASSWORD  a string, the password of KEY if it is encrypted
KEY-ID    a string, by which the server finds the public key (`kid`); none by default
ISSUER    a string, the issuer of the token (`iss`)
SUBJECT   a string, the caller (`sub`); ISSUER by default
AUDIENCE  a string, the recipient of the token (`aud`); :service, the default, is the URL of the
          called service, see CREDENTIALS-REQUEST-AUDIENCE
CLAIMS    an alist from strings to strings or other values of JSON, further claims of the token
SECONDS   a real, 60 to 86400, the life of a token; 3600 by default
Signal MISUSE for a wrong argument, TLS-ERROR if KEY cannot be used. From any thread."
  (flet ((check (value type name)
           ;; secrets are not shown
           (unless (typep value type)
             (if (member name '(:key :password))
                 (misuse "~S of a token cannot be of the type ~S." name (type-of value))
                 (misuse "~S of a token cannot be ~S." name value)))))
    (check key '(or string pathname) :key)
    (check password '(or null string) :password)
    (check key-id '(or null string) :key-id)
    (check issuer 'string :issuer)
    (check subject '(or null string) :subject)
    (check audience '(or string (eql :service)) :audience)
    (check claims 'list :claims)
    (check seconds '(real 60 86400) :seconds))
  (multiple-value-bind (text what) (loop:pem-text key "key")
    (os:private-key-kind text what password)
    (make-instance 'self-signed-credentials
                   :key text :what what :password password :key-id key-id :issuer issuer
                   :subject subject :audience audience :claims claims :seconds seconds)))

(defun new-signed-token (signer audience)
  (let ((now (floor (wall-now) +ns-per-second+)) (seconds (signer-seconds signer)))
    (keep-token (signed-token `(("iss" . ,(signer-issuer signer))
                                ,@(when (signer-subject signer)
                                    `(("sub" . ,(signer-subject signer))))
                                ("aud" . ,audience)
                                ("iat" . ,now)
                                ("exp" . ,(+ now (floor seconds)))
                                ,@(signer-claims signer))
                              (signer-key signer) (signer-what signer) (signer-password signer)
                              (signer-key-id signer))
                (floor seconds))))

(defmethod credentials:get-request-metadata ((signer self-signed-credentials) request)
  (let* ((audience (if (eq :service (signer-audience signer))
                       (credentials:credentials-request-audience request)
                       (signer-audience signer)))
         (kept (sb-thread:with-mutex ((signer-lock signer))
                 (gethash audience (signer-kept signer)))))
    (unless (and kept (< (wall-now) (kept-token-refresh-ns kept)))
      (setf kept (new-signed-token signer audience)) ; a millisecond
      (sb-thread:with-mutex ((signer-lock signer))
        (when (<= +remembered-audiences+ (hash-table-count (signer-kept signer)))
          (clrhash (signer-kept signer)))
        (setf (gethash audience (signer-kept signer)) kept)))
    (token-metadata (kept-token-text kept))))
