;;;; Tokens from an authorization server: by OAuth 2.0's client credentials (RFC 6749 section 4.4),
;;;; and in exchange for another token (RFC 8693), both by one POST to its token endpoint.
;;;;
;;;;   answer                                     the status of the attempts that wait
;;;;   no answer, or not HTTP                     :unavailable
;;;;   429, 502, 503, 504                         :unavailable (gRFC A83, as the mapping of HTTP's)
;;;;   another status than 200                    :unauthenticated, with `error` of the answer
;;;;   200 without a token that can be sent so    :unauthenticated

(in-package #:clgrpc.token)

(defconstant +default-life-seconds+ 3600
  "The life, in seconds, that is assumed for a token if the answer does not say; RFC 6749 section
5.1 leaves it to the client.")

(defconstant +longest-life-seconds+ (expt 10 9)
  "The maximum life of a token, thirty years in seconds; a longer life counts as this. Some servers
send 2^31-1 or more for a token that does not expire.")

(defclass endpoint-credentials (token-credentials)
  ((url :initarg :url :reader endpoint-url) ; a URL
   (parameters :initarg :parameters :reader endpoint-parameters) ; a function that returns an alist
   (headers :initarg :headers :reader endpoint-headers) ; an alist
   (tls :initarg :tls :reader endpoint-tls) ; TLS credentials, or nil
   (timeout :initarg :timeout :reader endpoint-timeout)) ; how long the request may take, in seconds
  (:documentation "Call credentials with a token from an authorization server; see CLIENT-TOKEN and
EXCHANGED-TOKEN."))

(define-printer (credentials endpoint-credentials)
  "~A" (url-text (endpoint-url credentials)))

(defun refuse-answer (credentials text &rest arguments)
  "Signal :unauthenticated, since the answer of CREDENTIALS' endpoint has no valid token."
  (status:fail :unauthenticated (format nil "~A ~?" (url-text (endpoint-url credentials)) text
                                        arguments)))

(defun answer-members (body)
  "The object in BODY, JSON as octets, an alist; nil if BODY is not an object."
  (handler-case (let ((value (parse-json body :max-length +most-answer-octets+ :max-depth 20)))
                  (and (consp value) value))
    (clgrpc-error () nil)))

(defun text-member (name members)
  "The member NAME of MEMBERS, an alist, if it is a string, else nil."
  (let ((value (cdr (assoc name members :test #'string=))))
    (and (stringp value) value)))

(defun told-error (members)
  "The error in MEMBERS, of an answer (RFC 6749 section 5.2), as text; nil if MEMBERS have none."
  (let ((code (text-member "error" members)))
    (and code
         (printable-text (format nil "~A~@[: ~A~]" code (text-member "error_description" members))
                         :limit 200))))

(defun check-answer-status (credentials status members)
  "Signal :unavailable or :unauthenticated unless STATUS, of HTTP, is 200."
  (unless (= 200 status)
    (if (eq :unavailable (client:http-status-status status))
        (status:fail :unavailable (format nil "~A answers ~D"
                                          (url-text (endpoint-url credentials)) status))
        (refuse-answer credentials "answers ~D~@[: ~A~]" status (told-error members)))))

(defun life-member (members)
  "The life in seconds of the token in MEMBERS; 0 if their expires_in is invalid. A life of less
than a second also counts as invalid, because a token that is never valid for longer would be
requested for each call."
  (let ((member (assoc "expires_in" members :test #'string=)))
    (cond ((null member) +default-life-seconds+)
          ((typep (cdr member) '(real 1)) (rational (min (cdr member) +longest-life-seconds+)))
          ;; some send the number as a string
          ((and (stringp (cdr member))
                (< 0 (length (cdr member)) 20)
                (every (lambda (character) (char<= #\0 character #\9)) (cdr member)))
           (min (parse-integer (cdr member)) +longest-life-seconds+))
          (t 0))))

(defun form-text (parameters)
  "PARAMETERS, an alist of strings, as application/x-www-form-urlencoded."
  (flet ((encoded (text)
           (with-output-to-string (stream)
             (loop for octet across (string-octets text)
                   for character = (code-char octet)
                   do (if (and (< octet 128)
                               (or (alphanumericp character) (find character "-._~")))
                          (write-char character stream)
                          (format stream "%~2,'0X" octet))))))
    (format nil "~{~A=~A~^&~}" (loop for (name . value) in parameters
                                     collect (encoded name) collect (encoded value)))))

(defmethod fetch-token ((credentials endpoint-credentials))
  (multiple-value-bind (status body)
      (http-request "POST" (endpoint-url credentials)
                    :headers (list* '("accept" . "application/json")
                                    '("content-type" . "application/x-www-form-urlencoded")
                                    (endpoint-headers credentials))
                    :body (string-octets (form-text (funcall (endpoint-parameters credentials))))
                    :credentials (endpoint-tls credentials)
                    :timeout (endpoint-timeout credentials))
    (let ((members (answer-members body)))
      (check-answer-status credentials status members)
      (unless members (refuse-answer credentials "answers with a body that is not a JSON object"))
      (let ((token (text-member "access_token" members))
            (type (text-member "token_type" members)))
        (unless token (refuse-answer credentials "answers without an access_token"))
        (unless (and type (member type '("bearer" "n_a") :test #'string-equal))
          (refuse-answer credentials "gives a token of the type ~A, not Bearer"
                         (printable-text (or type "?") :limit 40)))
        (values token (life-member members))))))

;;; Functions for users

(defun check-strings (&rest names-and-values)
  "Signal MISUSE unless each of NAMES-AND-VALUES, a plist, is a string or nil."
  (loop for (name value) on names-and-values by #'cddr
        unless (typep value '(or null string))
          do (misuse "~S of a token is a string, not a value of the type ~S." name
                     (type-of value))))

(defun make-endpoint-credentials (url parameters headers credentials timeout)
  (let ((url (parse-url url)))
    (unless (typep timeout '(real (0) 3600)) (misuse ":TIMEOUT is seconds, not ~S." timeout))
    (when (and credentials (not (url-secure url)))
      (misuse "~A is reached without TLS, so it takes no :credentials; did you mean https://?"
              (url-text url)))
    (let ((tls (and (url-secure url)
                    (or credentials (loop:tls-credentials :alpn nil)))))
      (when tls
        (when (loop:tls-credentials-alpn tls)
          (misuse "The TLS credentials of a token endpoint are made with :alpn nil: it speaks ~
                   HTTP/1.1."))
        (loop:check-credentials tls :client))
      (make-instance 'endpoint-credentials :url url :parameters parameters :headers headers
                                           :tls tls :timeout timeout))))

(defun optional-parameters (&rest names-and-values)
  "An alist of NAMES-AND-VALUES, a plist, without those whose value is nil."
  (loop for (name value) on names-and-values by #'cddr
        when value collect (cons name value)))

(defun basic-header (id secret)
  "The header that authenticates the client (RFC 6749 section 2.3.1)."
  (flet ((encoded (text) (subseq (form-text (list (cons "" text))) 1)))
    `(("authorization" . ,(format nil "Basic ~A"
                                  (encode-base64 (string-octets (format nil "~A:~A" (encoded id)
                                                                        (encoded secret)))
                                                 :padding t))))))

(define-keyword-function client-token
    (url &key client-id client-secret scope audience in-body credentials
           (timeout 10))
  "Return call credentials, for :call-credentials of a channel or stub, that send a token from the
authorization server's token endpoint at URL, http:// or https:// (OAuth 2.0, client credentials,
RFC 6749 section 4.4). The token is requested when it is first needed, and again 90 seconds before
it expires, by one request at a time.
CLIENT-ID      a string, the id of this client
CLIENT-SECRET  a string, the secret of this client
SCOPE          a string, the requested scopes, separated by spaces; none by default
AUDIENCE       a string, the service that the token is for, which some servers require; none by
               default
IN-BODY        true to send id and secret as parameters of the request, not in the header of RFC
               6749
CREDENTIALS    TLS credentials made by TLS-CREDENTIALS with :alpn nil, for https://; by default the
               roots of the system are trusted
TIMEOUT        a real, the seconds that a request may take; 10 by default
Without a token, an attempt of a call fails with :unavailable if the server cannot be reached or
answers 429, 502, 503 or 504, else with :unauthenticated; the next request follows after 1 to 120 s
(gRFC A83). To a URL with http:// secrets are sent in plaintext. Signal MISUSE for a wrong argument,
TLS-ERROR if CREDENTIALS cannot be used. From any thread."
  (check-strings :client-id client-id :client-secret client-secret :scope scope :audience audience)
  (unless (and client-id client-secret)
    (misuse "CLIENT-TOKEN needs :client-id and :client-secret."))
  (let ((parameters (append '(("grant_type" . "client_credentials"))
                            (optional-parameters "scope" scope "audience" audience)
                            (when in-body
                              (optional-parameters "client_id" client-id
                                                   "client_secret" client-secret)))))
    (make-endpoint-credentials url (constantly parameters)
                               (if in-body '() (basic-header client-id client-secret))
                               credentials timeout)))

(defun token-text (token)
  "The present text of TOKEN: TOKEN itself if it is a string, the contents of the file if it is a
pathname, or the value if it is a function."
  (etypecase token
    (string token)
    (pathname (read-token token))
    (function (funcall token))))

(defparameter *token-types*
  '((:jwt . "urn:ietf:params:oauth:token-type:jwt")
    (:access-token . "urn:ietf:params:oauth:token-type:access_token")
    (:id-token . "urn:ietf:params:oauth:token-type:id_token")
    (:saml2 . "urn:ietf:params:oauth:token-type:saml2"))
  "The types of tokens by their keywords (RFC 8693 section 3).")

(defun token-type (type)
  "The URI of TYPE, a keyword of *TOKEN-TYPES* or a URI itself; nil for nil."
  (cond ((null type) nil)
        ((stringp type) type)
        ((cdr (assoc type *token-types*)))
        (t (misuse "~S is not a type of a token; give one of~{ ~(~S~)~^,~}, or a URI." type
                   (mapcar #'car *token-types*)))))

(define-keyword-function exchanged-token
    (url &key subject-token (subject-type :jwt) actor-token (actor-type :jwt)
           requested-type resource audience scope client-id client-secret
           credentials (timeout 10))
  "Return call credentials, for :call-credentials of a channel or stub, that send a token from a
security token service. The service at URL, http:// or https://, issues it in exchange for another
token (RFC 8693). The token is requested when it is first needed, and again 90 seconds before it
expires, by one request at a time.
SUBJECT-TOKEN   the token of the subject, the party for which calls are made: a string, a pathname,
                whose file is read for each exchange, or a function without arguments that returns a
                string, called on a thread of its own
SUBJECT-TYPE    its type: :jwt, the default, :access-token, :id-token, :saml2 or a URI
ACTOR-TOKEN     the acting party's token, given like SUBJECT-TOKEN; none by default
ACTOR-TYPE      its type, as SUBJECT-TYPE
REQUESTED-TYPE  the type of the wanted token, as SUBJECT-TYPE; nil, the default, for any
RESOURCE        a string, the URI of the service that the token is for; none by default
AUDIENCE        a string, the name of that service; none by default
SCOPE           a string, the requested scopes, separated by spaces; none by default
CLIENT-ID       a string, the id of this client, with CLIENT-SECRET, if the service needs it
CREDENTIALS, TIMEOUT, the failures of attempts and the conditions are as for CLIENT-TOKEN. From any
thread."
  (check-strings :resource resource :audience audience :scope scope :client-id client-id
                 :client-secret client-secret)
  (flet ((check (token name)
           (unless (typep token '(or string pathname function))
             (misuse "~S is a string, a pathname or a function, not a value of the type ~S." name
                     (type-of token)))))
    (check subject-token :subject-token)
    (when actor-token (check actor-token :actor-token)))
  (when client-secret (unless client-id (misuse ":client-secret needs a :client-id too.")))
  (let ((subject-type (or (token-type subject-type) (misuse ":subject-type must not be NIL.")))
        (actor-type (and actor-token (or (token-type actor-type)
                                         (misuse ":actor-token needs an :actor-type."))))
        (requested-type (token-type requested-type)))
    (make-endpoint-credentials
     url
     (lambda ()
       (append '(("grant_type" . "urn:ietf:params:oauth:grant-type:token-exchange"))
               (optional-parameters "subject_token" (token-text subject-token)
                                    "subject_token_type" subject-type
                                    "actor_token" (and actor-token (token-text actor-token))
                                    "actor_token_type" actor-type
                                    "requested_token_type" requested-type
                                    "resource" resource "audience" audience "scope" scope)
               (when (and client-id (null client-secret))
                 (optional-parameters "client_id" client-id))))
     (and client-secret (basic-header client-id client-secret))
     credentials timeout)))
