;;;; Requests of HTTP, most of them for tokens: their octets, and peers that are absent, slow,
;;;; endless, or speak another protocol.

(in-package #:clgrpc.tests.token)

(test urls-of-endpoints
  (loop for (url secure host port path)
          in '(("http://h" nil "h" 80 "/") ("https://h/t?x=1" t "h" 443 "/t?x=1")
               ("HTTPS://H:8443/" t "H" 8443 "/") ("http://[::1]:5/a#b" nil "::1" 5 "/a")
               ("http://h?x" nil "h" 80 "/?x"))
        do (let ((url (token::parse-url url)))
             (is (eq secure (token::url-secure url)))
             (is (equal host (token::url-host url)))
             (is (eql port (token::url-port url)))
             (is (equal path (token::url-path url))))))

(defparameter *good-body* "{\"access_token\":\"t\",\"token_type\":\"Bearer\"}")

(test what-is-sent
  (let ((request nil))
    (with-socket (url (lambda (stream)
                        (setf request (read-request stream))
                        (say stream "HTTP/1.1 200 OK|content-length: ~D||~A" (length *good-body*)
                             *good-body*)))
      (is (equal "t" (ask-token (client-of url))))
      (is (eql 0 (search "POST /token HTTP/1.1" request)))
      (dolist (text '("host: 127.0.0.1:" "connection: close" "accept: application/json"
                      "content-type: application/x-www-form-urlencoded"
                      "grant_type=client_credentials"))
        (is (search text request))))))

(test what-is-there-is-got
  "A request without a body; the answer may be as long as the caller allows."
  (let ((request nil))
    (with-socket (url (lambda (stream)
                        (setf request (read-request stream))
                        (say stream "HTTP/1.1 404 Not Found|content-length: 300000||~A"
                             (make-string 300000 :initial-element #\x))))
      (flet ((get-url (&rest options)
               (apply #'token:http-request "GET" (token:parse-url url)
                      :headers '(("accept" . "text/plain")) options)))
        (multiple-value-bind (status body) (get-url)
          (is (= 404 status))
          (is (equalp (make-array 300000 :initial-element (char-code #\x)) body)))
        (is (eql 0 (search "GET /token HTTP/1.1" request)))
        (is (search "accept: text/plain" request))
        (is (not (search "content-length" request)))
        (is (= 404 (get-url :most-octets 300000)))
        (signals grpc:unavailable (get-url :most-octets 299999))))))

(test answers-in-other-forms
  "In chunks, until the connection's end, after an interim answer, an octet at a time."
  (flet ((check (&rest texts)
           (with-socket (url (lambda (stream)
                               (read-request stream)
                               (dolist (text texts) (say stream "~A" text))))
             (is (equal "t" (ask-token (client-of url))) "~S" texts))))
    (check "HTTP/1.1 200 OK|transfer-encoding: chunked||" (format nil "~X|~A|0||"
                                                                   (length *good-body*)
                                                                   *good-body*))
    (check "HTTP/1.1 200 OK||" *good-body*)
    (check "HTTP/1.0 200 OK||" *good-body*)
    (check (format nil "HTTP/1.1 100 Continue||HTTP/1.1 200 OK|content-length: ~D||~A"
                   (length *good-body*) *good-body*))
    (apply #'check (map 'list #'string (format nil "HTTP/1.1 200 OK|content-length: ~D||~A"
                                               (length *good-body*) *good-body*)))))

(test endpoints-that-misbehave
  "The attempt fails with :unavailable, soon, whatever the endpoint does."
  (flet ((check (text manner &rest arguments)
           (with-socket (url manner)
             (multiple-value-bind (status said)
                 (status-of-token (apply #'client-of url arguments))
               (is (eq :unavailable status))
               (is (and said (search text said)) "~S is not in ~S" text said)))))
    (check "within 0.2 s" (lambda (stream) (read-request stream) (read-byte stream nil))
           :timeout 0.2)
    (check "no answer" (lambda (stream)
                         (read-request stream)
                         (say stream "HTTP/1.1 200 OK|content-length: 5||ab")
                         (read-byte stream nil))
           :timeout 0.2)
    ;; one that never pauses
    (check "no answer" (lambda (stream)
                         (read-request stream)
                         (say stream "HTTP/1.1 200 OK|transfer-encoding: chunked||")
                         (loop (say stream "1|x|")))
           :timeout 0.2)
    (check "before the answer" #'read-request)
    (check "before the answer" (lambda (stream) (declare (ignore stream))))
    (check "before the answer" (lambda (stream)
                                 (read-request stream)
                                 (say stream "HTTP/1.1 200 OK|content-length: 500||ab")))
    (check "not HTTP/1.1" (lambda (stream) (read-request stream) (say stream "SSH-2.0-x||")))
    (check "not HTTP/1.1" (lambda (stream)
                            (read-request stream)
                            (say stream "HTTP/1.1 200 OK|content-length: 5|content-length: 6||")))
    (check "not HTTP/1.1" (lambda (stream)
                            (read-request stream)
                            (say stream "HTTP/1.1 200 OK|x: ~A||"
                                 (make-string 100000 :initial-element #\a))))
    (check "more than" (lambda (stream)
                         (read-request stream)
                         (say stream "HTTP/1.1 200 OK||")
                         (let ((octets (make-octets 65536)))
                           (loop (write-sequence octets stream)))))
    (check "not HTTP/1.1" (lambda (stream)
                            (read-request stream)
                            (loop (say stream "HTTP/1.1 100 Continue||"))))))

(test endpoints-that-are-not-there
  (with-log ()
    (multiple-value-bind (status text)
        (status-of-token (client-of "http://127.0.0.1:1/token"))
      (is (eq :unavailable status))
      (is (search "127.0.0.1:1" text)))
    (is (eq :unavailable (status-of-token (client-of "http://no-such-host.invalid/token"))))
    (is (eq :unavailable (status-of-token (client-of "https://127.0.0.1:1/token"))))))
