;;;; Tokens from an authorization server: its requests, its answers, its misbehaviour.

(in-package #:clgrpc.tests.token)

(test client-tokens
  (let ((seen '()))
    (with-endpoint (url (lambda (form request)
                          (push (cons (grpc:http-request-header request "authorization") form) seen)
                          (token-answer (format nil "t~D" (length seen)))))
      (let ((credentials (grpc:client-token url :client-id "m:e" :client-secret "s&=é"
                                                :scope "read write")))
        (dotimes (i 3) (is (equal "t1" (ask-token credentials))))
        (is (= 1 (length seen)))
        (is (equal "Basic bSUzQWU6cyUyNiUzRCVDMyVBOQ==" (car (first seen))))
        (is (equal '(("grant_type" . "client_credentials") ("scope" . "read write"))
                   (cdr (first seen)))))
      (ask-token (client-of url :in-body t :audience "x"))
      (is (null (car (first seen))))
      (is (equal '(("grant_type" . "client_credentials") ("audience" . "x") ("client_id" . "me")
                   ("client_secret" . "s3cret"))
                 (cdr (first seen)))))))

(test exchanged-tokens
  (let ((seen nil) (count 0))
    (with-endpoint (url (fn (form _request)
                          (setf seen form)
                          (token-answer "exchanged")))
      (let ((credentials (grpc:exchanged-token url :subject-token (lambda ()
                                                                    (format nil "s~D" (incf count)))
                                                   :actor-token "actor" :actor-type :access-token
                                                   :requested-type "urn:x" :resource "https://r"
                                                   :audience "a" :scope "s" :client-id "me")))
        (is (equal "exchanged" (ask-token credentials)))
        (is (equal '(("grant_type" . "urn:ietf:params:oauth:grant-type:token-exchange")
                     ("subject_token" . "s1")
                     ("subject_token_type" . "urn:ietf:params:oauth:token-type:jwt")
                     ("actor_token" . "actor")
                     ("actor_token_type" . "urn:ietf:params:oauth:token-type:access_token")
                     ("requested_token_type" . "urn:x")
                     ("resource" . "https://r") ("audience" . "a") ("scope" . "s")
                     ("client_id" . "me"))
                   seen))
        (age-token credentials :refresh -90 :end -1)
        (ask-token credentials)
        (is (equal "s2" (parameter "subject_token" seen))))
      (with-token-file (path (format nil "from file~%"))
        (ask-token (grpc:exchanged-token url :subject-token path))
        (is (equal "from file" (parameter "subject_token" seen))))
      (is (eq :unavailable (status-of-token (grpc:exchanged-token
                                             url :subject-token #p"/nonexistent/token")))))))

(test tokens-over-tls
  "The endpoint must prove its name, and speaks HTTP/1.1."
  (flet ((trusting (root)
           (grpc:tls-credentials :roots (support:certificate-file root) :alpn nil)))
    (with-endpoint (url (fn (_form _request) (token-answer "secure"))
                        :credentials (grpc:tls-credentials
                                      :certificate (support:certificate-file "server.pem")
                                      :key (support:certificate-file "server.key")))
      (is (equal "secure" (ask-token (client-of url :credentials (trusting "ca.pem")))))
      (multiple-value-bind (status text)
          (status-of-token (client-of url :credentials (trusting "stranger.pem")))
        (is (eq :unavailable status))
        (is (search "certificate" text)))
      ;; the roots of the system do not know the tests'
      (is (eq :unavailable (status-of-token (client-of url))))
      (signals grpc:misuse (client-of url :credentials (grpc:tls-credentials)))
      (signals grpc:misuse (client-of "http://x/" :credentials (trusting "ca.pem"))))))

(test answers-that-give-no-token
  "The answer determines a status by gRFC A83; its text has no secret."
  (loop for (expected text . answer)
          in `((:unavailable "answers 503" 503 () "")
               (:unavailable "answers 429" 429 () "{}")
               (:unavailable "answers 504" 504 () "")
               (:unauthenticated "answers 400: invalid_client: who?" 400 ()
                ,(json "error" "invalid_client" "error_description" "who?"))
               (:unauthenticated "answers 401" 401 () "no JSON")
               (:unauthenticated "answers 403" 403 () "[]")
               (:unauthenticated "answers 500" 500 () "")
               (:unauthenticated "answers 302" 302 (("location" . "http://127.0.0.1:1/")) "")
               (:unauthenticated "not a JSON object" 200 () "")
               (:unauthenticated "not a JSON object" 200 () "{\"access_token\":")
               (:unauthenticated "not a JSON object" 200 () "[\"t\"]")
               (:unauthenticated "not a JSON object" 200 () "{}")
               (:unauthenticated "not a JSON object" 200 ()
                ,(make-string 100000 :initial-element #\[))
               (:unauthenticated "without an access_token" 200 () ,(json "access_token" 5))
               (:unauthenticated "type mac" 200 () ,(json "access_token" "t" "token_type" "mac"))
               (:unauthenticated "not Bearer" 200 () ,(json "access_token" "t"))
               (:unauthenticated "not a token" 200 () ,(json "access_token" "a b"
                                                             "token_type" "bearer"))
               (:unauthenticated "expired" 200 () ,(json "access_token" "t" "token_type" "bearer"
                                                         "expires_in" 0))
               (:unauthenticated "expired" 200 () ,(json "access_token" "t" "token_type" "bearer"
                                                         "expires_in" "soon"))
               (:unauthenticated "expired" 200 () ,(json "access_token" "t" "token_type" "bearer"
                                                         "expires_in" -1))
               ;; else each call would request another
               (:unauthenticated "expired" 200 () ,(json "access_token" "t" "token_type" "bearer"
                                                         "expires_in" 0.99d0)))
        do (with-endpoint (url (fn (_form _request) (values-list answer)))
             (multiple-value-bind (status said) (status-of-token (client-of url))
               (is (eq expected status) "~S ~S" answer said)
               (is (and said (search text said)) "~S is not in ~S" text said)
               (is (not (search "s3cret" said)))))))

(test lives-that-answers-say
  (loop for (seconds . members) in '((3600) (120 "expires_in" 120) (120 "expires_in" "120")
                                     (2.5 "expires_in" 2.5d0) (1 "expires_in" 1)
                                     (1000000000 "expires_in" 1000000000)
                                     (1000000000 "expires_in" 2147483647)
                                     (1000000000 "expires_in" "2147483647")
                                     (1000000000 "expires_in" 1d300))
        do (with-endpoint (url (fn (_form _request)
                                 (values 200 '() (apply #'json "access_token" "t" "token_type"
                                                        "BEARER" members))))
             (let ((credentials (client-of url)))
               (is (equal "t" (ask-token credentials)))
               (is (> (* (+ seconds 1) 1000000000)
                      (- (token::kept-token-end-ns (token::token-kept credentials))
                         (token::wall-now))))))))

(test wrong-endpoints-are-misuse
  (dolist (url '("" "x" "ftp://h/" "http://" "http://h:0/" "http://h:x/" "http://u:p@h/"
                 "http://h/a b" "https:///" "http://h:99999/" 5))
    (handler-case (fail "~S" (client-of url))
      (grpc:misuse (error) (is (not (search "u:p" (princ-to-string error))) "the URL is secret"))))
  (signals grpc:misuse (grpc:client-token "http://h/" :client-id "x"))
  (signals grpc:misuse (client-of "http://h/" :timeout 0))
  (dolist (name '(:scope :audience))
    (signals grpc:misuse (client-of "http://h/" name 5) "~A" name))
  (dolist (name '(:scope :audience :resource :client-id :client-secret))
    (signals grpc:misuse (grpc:exchanged-token "http://h/" name 5 :subject-token "x" :client-id "y")
      "~A" name))
  (signals grpc:misuse (grpc:exchanged-token "http://h/"))
  (signals grpc:misuse (grpc:exchanged-token "http://h/" :subject-token "x" :subject-type :saml))
  (signals grpc:misuse (grpc:exchanged-token "http://h/" :subject-token "x" :client-secret "y")))
