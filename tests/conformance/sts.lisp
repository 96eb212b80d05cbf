;;;; The suite sts of run, the part in Lisp: call credentials that are asked for over HTTP, against
;;;; the Go program tests/peers/sts, of which CLGRPC_STS, CLGRPC_STS_TLS and CLGRPC_STS_GREETER are
;;;; the addresses and CLGRPC_STS_FOLDER has the tokens and the keys. Loaded after
;;;; scripts/load.lisp. Prints `ok NAME` or `FAIL NAME -- why` for each case.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/examples")

(defpackage #:clgrpc.sts
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc)))

(in-package #:clgrpc.sts)

(defvar *service* (sb-ext:posix-getenv "CLGRPC_STS"))
(defvar *service-tls* (sb-ext:posix-getenv "CLGRPC_STS_TLS"))
(defvar *greeter* (sb-ext:posix-getenv "CLGRPC_STS_GREETER"))
(defvar *folder* (uiop:ensure-directory-pathname (sb-ext:posix-getenv "CLGRPC_STS_FOLDER")))

(defun file (name) (merge-pathnames name *folder*))

(defun url (path &key tls)
  (format nil "http~:[~;s~]://~A/~A" tls (if tls *service-tls* *service*) path))

(defun call (credentials &key (name "who") (timeout 20))
  "What the Greeter says to a call with CREDENTIALS, or a list of the status and the text."
  (handler-case
      (grpc:with-channel (channel *greeter* :call-credentials credentials :plaintext-credentials t)
        (helloworld:hello-reply-message
         (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name name)
                                       :timeout timeout)))
    (grpc:rpc-error (error)
      (list (grpc:rpc-error-status error) (grpc:rpc-error-message error)))))

(defun requests ()
  "How many requests the service has had."
  (parse-integer (call nil :name "requests")))

(defun one-line (value)
  (substitute #\Space #\Newline (prin1-to-string value)))

(defun expect (name expected said)
  "EXPECTED is the answer, or a list of a status and a part of its text."
  (let ((good (if (and (consp expected) (consp said) (keywordp (first expected)))
                  (and (eq (first expected) (first said))
                       (search (second expected) (second said)))
                  (equal expected said))))
    (let ((*print-pretty* nil))
      (format t "~:[FAIL ~A -- ~A, not ~S~;ok ~A~]~%" good name (one-line said) expected))
    (finish-output)))

(defmacro check (name expected form)
  `(expect ,name ,expected (handler-case ,form (error (error) (princ-to-string error)))))

(defmacro eventually (seconds form)
  "The value of FORM when it is true, or nil after SECONDS."
  `(loop with end = (+ (get-universal-time) ,seconds)
         for value = ,form
         until (or value (< end (get-universal-time)))
         do (sleep 0.1)
         finally (return value)))

;;; The service

(defun client (path &rest arguments)
  (apply #'grpc:client-token (url path) :client-id "sid1" :client-secret "verysecret" arguments))

(defun exchange (subject &rest arguments &key (path "oauth/token") &allow-other-keys)
  (apply #'grpc:exchanged-token (url path) :subject-token subject :client-id "web"
                                           :client-secret "web's secret"
         (uiop:remove-plist-key :path arguments)))

(defclass echo-greeter (helloworld:greeter) ()
  (:documentation "Answers with the caller's token."))

(defmethod helloworld.greeter:say-hello ((service echo-greeter) request &key call)
  (declare (ignore request))
  (helloworld:make-hello-reply
   :message (subseq (cdr (assoc "authorization" (grpc:call-metadata call) :test #'string=))
                    (length "Bearer "))))

(defvar *echo* (grpc:start-server (make-instance 'echo-greeter)))

(defun web-token (key &key (subject "ada") (audience "sts") claims)
  "A JSON Web Token of the other issuer, signed with the key in the file KEY."
  (grpc:with-channel (channel (grpc:server-address *echo*)
                      :plaintext-credentials t
                      :call-credentials (grpc:self-signed-token
                                         :key (file key) :issuer "elsewhere" :subject subject
                                         :audience audience :claims claims :seconds 60))
    (helloworld:hello-reply-message
     (helloworld.greeter:say-hello channel (helloworld:make-hello-request) :timeout 20))))

(check "client" "sid1 by sid1 for shop; scope read write; actor "
  (call (client "oauth/token" :scope "read write")))
(check "client in body" "sid1 by sid1 for shop; scope ; actor "
  (call (client "oauth/token" :in-body t)))
(check "client with all characters" "m&e é by m&e é for shop; scope ; actor "
  (call (grpc:client-token (url "oauth/token") :client-id "m&e é" :client-secret "s&=% +é")))
(check "client with a wrong secret" '(:unauthenticated "invalid_client")
  (call (grpc:client-token (url "oauth/token") :client-id "sid1" :client-secret "x")))
(check "unknown client" '(:unauthenticated "invalid_client")
  (call (grpc:client-token (url "oauth/token") :client-id "x" :client-secret "x" :in-body t)))
(check "no token endpoint" '(:unauthenticated "answers 404") (call (client "elsewhere")))

(check "access token" "id1 by web for shop; scope ; actor "
  (call (exchange (file "access-id1") :subject-type :access-token)))
(check "ID token" "id1 by web for shop; scope ; actor "
  (call (exchange (file "id-id1") :subject-type :id-token)))
(check "ID token as the answer" "id token of id1"
  (call (exchange (file "access-id1") :subject-type :access-token :requested-type :id-token
                                      :scope "openid")))
(check "JWT by ES256" "ada by web for shop; scope ; actor "
  (call (exchange (lambda () (web-token "ec.key")))))
(check "JWT by RS256" "ada by web for shop; scope ; actor "
  (call (exchange (lambda () (web-token "rsa.key")))))
(check "JWT by another key" '(:unauthenticated "subject_token is invalid")
  (call (exchange (lambda () (web-token "other.key")))))
(check "JWT for later" '(:unauthenticated "subject_token is invalid")
  (call (exchange (lambda () (web-token "ec.key" :claims '(("nbf" . 4000000000)))))))
(check "JWT for others" '(:unauthenticated "subject_token is invalid")
  (call (exchange (lambda () (web-token "ec.key" :audience "others")))))
(check "actor, resource, audience and scope"
    "ada by web for shop books; scope read write; actor bob at https://shop.example/a?b=c&d"
  (call (exchange (web-token "ec.key") :actor-token (web-token "rsa.key" :subject "bob")
                                       :actor-type :jwt :audience "books" :scope "read write"
                                       :resource "https://shop.example/a?b=c&d"
                                       :requested-type :access-token)))
(check "wrong actor" '(:unauthenticated "actor_token is invalid")
  (call (exchange (web-token "ec.key") :actor-token (web-token "other.key"))))
(check "no such target" '(:unauthenticated "invalid_target: not there")
  (call (exchange (web-token "ec.key") :audience "forbidden")))
(check "subject that may not" '(:unauthenticated "access_denied: guests stay guests")
  (call (exchange (file "access-guest") :subject-type :access-token)))
(check "type that is not issued" '(:unauthenticated "requested_token_type")
  (call (exchange (web-token "ec.key") :requested-type :saml2)))
(check "subject of another type" '(:unauthenticated "subject_token is invalid")
  (call (exchange (file "access-id1") :subject-type :id-token)))
(check "wrong secret" '(:unauthenticated "invalid_client")
  (call (grpc:exchanged-token (url "oauth/token") :subject-token (web-token "ec.key")
                                                  :client-id "web" :client-secret "x")))

(flet ((exchange-over-tls (root)
         (call (grpc:exchanged-token
                (url "oauth/token" :tls t)
                :subject-token (web-token "ec.key") :client-id "web" :client-secret "web's secret"
                :credentials (grpc:tls-credentials :roots (file root) :alpn nil)))))
  (check "over TLS" "ada by web for shop; scope ; actor " (exchange-over-tls "ca.pem"))
  (check "over TLS, by a stranger" '(:unavailable "certificate")
    (exchange-over-tls "stranger.pem")))

(check "many calls, one request" '(50 1)
  (let* ((before (requests))
         (credentials (exchange (web-token "ec.key")))
         (threads (loop repeat 50
                        collect (sb-thread:make-thread #'call :arguments (list credentials)))))
    (list (count "ada by web for shop; scope ; actor " (mapcar #'sb-thread:join-thread threads)
                 :test #'equal)
          (- (requests) before))))

(check "tokens of four seconds, for twelve" '(t t)
  (let ((before (requests)) (credentials (client "oauth/token" :scope "brief"))
        (end (+ (get-universal-time) 12)))
    (list (loop while (< (get-universal-time) end)
                always (stringp (call credentials))
                do (sleep 0.1))
          (<= 3 (- (requests) before) 6))))

(check "subject in a file that changes" '(t t t)
  (let ((path (file "subject")) (credentials nil))
    (flet ((store (text)
             (with-open-file (stream path :direction :output :if-exists :supersede)
               (write-line text stream))))
      (store (web-token "ec.key"))
      (setf credentials (exchange path :scope "brief"))
      (list (stringp (call credentials))
            (progn (store "forgotten")
                   (eventually 30 (equal :unauthenticated (first (alexandria:ensure-list
                                                                  (call credentials))))))
            (progn (store (web-token "rsa.key"))
                   (eventually 30 (stringp (call credentials))))))))

;;; Subjects that misbehave

(check "subject that fails" '(:unauthenticated "no subject today")
  (call (exchange (lambda () (error "no subject today")))))
(check "subject that is none" '(:unauthenticated "") (call (exchange (lambda () nil))))
(check "subject that takes long" '(:deadline-exceeded "")
  (call (exchange (lambda () (sleep 2) "late")) :timeout 0.5))
(check "subject with lines" '(:unauthenticated "subject_token is invalid")
  (call (exchange (format nil "a~C~C~C~Cb: c&grant_type=x" #\Return #\Newline #\Return #\Newline))))
(check "subject of a million characters" '(:unauthenticated "subject_token is invalid")
  (call (exchange (make-string 1000000 :initial-element #\a))))

;;; Requests like those of Go's clients

(check "client, as Go's" '(:unauthenticated "not active")
  (call (grpc:client-token (url "strict/client") :client-id "m:e é" :client-secret "s&=% +é"
                                                 :scope "read write")))
(check "client in body, as Go's" '(:unauthenticated "not active")
  (call (grpc:client-token (url "strict/client-in-body") :client-id "m:e é" :in-body t
                                                         :client-secret "s&=% +é"
                                                         :scope "read write")))
(check "exchange, as Zitadel's" '(:unauthenticated "not active")
  (call (grpc:exchanged-token (url "strict/exchange")
                              :client-id "m:e é" :client-secret "s&=% +é"
                              :subject-token "a.b-c_d~e+f/g=" :subject-type :jwt
                              :actor-token "actor é" :actor-type :access-token
                              :resource "https://shop.example/a?b=c&d" :audience "shop ä"
                              :scope "read write" :requested-type :access-token)))
(check "exchange, as Go's" '(:unauthenticated "not active")
  (call (grpc:exchanged-token (url "strict/external")
                              :subject-token "subject" :audience "//iam.example/pools/1"
                              :scope "read" :requested-type :access-token)))
(check "another than Go's" '(:unauthenticated "invalid_request")
  (call (grpc:exchanged-token (url "strict/external")
                              :subject-token "subject" :audience "//iam.example/pools/2"
                              :scope "read" :requested-type :access-token)))

;;; Services that misbehave. A good token of theirs reaches the Greeter, which does not know it.

(defparameter *hostile*
  '((:good "good" "hints" "trailers" "two-answers" "endless-life")
    ((:unauthenticated "not a JSON object")
     "not-json" "empty" "array" "string" "null" "cut" "more" "nul" "mark" "not-utf8" "deep" "gzip")
    ((:unauthenticated "without an access_token") "no-token" "number" "error-with-200")
    ((:unauthenticated "is not a token") "no-text" "lines" "not-ascii" "long")
    ((:unauthenticated "not Bearer") "no-type" "mac" "dpop" "type-number")
    ((:unauthenticated "has expired") "expired" "negative" "life-text" "life-null")
    ((:unauthenticated "answers 30") "301" "302" "303" "307" "308")
    ((:unauthenticated "answers 204") "204")
    ((:unauthenticated "answers 401") "401-basic")
    ((:unauthenticated "answers 500") "500")
    ((:unauthenticated "answers 400: invalid_grant: ") "error-bomb")
    ((:unavailable "answers 429") "429")
    ((:unavailable "answers 503") "503")
    ((:unavailable "more than 1048576 octets") "endless" "endless-chunks")
    ((:unavailable "no answer") "slow" "silent")
    ((:unavailable "before the answer") "reset" "cut-body" "no-http" "http2")
    ((:unauthenticated "answers 101") "upgrade")
    ((:unavailable "not HTTP/1.1")
     "two-lengths" "bad-length" "huge-length" "bad-chunk" "length-and-chunks"
     "long-line" "endless-fields" "endless-hints" "endless-trailer"))
  "Lists of what comes of the endpoints that follow.")

(defun open-files ()
  (length (directory "/proc/self/fd/*" :resolve-symlinks nil)))

(defun counts ()
  (list (length (sb-thread:list-all-threads)) (open-files)))

(let ((before (progn (call nil :name "requests") (counts))))
  (loop for (expected . names) in *hostile*
        do (dolist (name names)
             (check (format nil "hostile: ~A" name)
                 (if (eq :good expected) '(:unauthenticated "not active") expected)
               (let ((said (call (client (format nil "hostile/~A" name)
                                         :timeout (if (search "no answer" (second
                                                                           (alexandria:ensure-list
                                                                            expected)))
                                                      1
                                                      20))
                                 :timeout 60)))
                 ;; nothing long, nothing that a terminal obeys, nothing secret
                 (if (and (consp said)
                          (or (< 400 (length (second said)))
                              (notevery #'graphic-char-p (second said))
                              (search "verysecret" (second said))))
                     (list :said (second said))
                     said)))))
  (check "no redirection was followed" "0" (call nil :name "caught"))
  (check "nothing is left of them" t
    (eventually 30 (every #'<= (counts) before))))
