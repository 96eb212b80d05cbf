;;;; Pages of other origins.

(in-package #:clgrpc.tests.web)

(defun preflight-of (server origin &rest arguments)
  (apply #'curl-text server "/lab.Bench/Ask" "-i" "-X" "OPTIONS"
         "-H" (format nil "origin: ~A" origin) "-H" "access-control-request-method: POST"
         arguments))

(test pages-of-listed-origins-may-call
  "The preflight and the answer name a listed origin; for another origin they have no such header."
  (with-web-probe (server :origins '("https://a.example")) (:ask #'double)
    (let ((text (preflight-of server "https://a.example"
                              "-H" "access-control-request-headers: content-type,x-user")))
      (is (search "204" text))
      (is (search "access-control-allow-origin: https://a.example" text))
      (is (search "access-control-allow-headers: content-type,x-user" text)))
    (loop for (names . status) in `(("A-z_09. ,b" . "204") ("a;b" . "403") ("a/b" . "403")
                                    ("a:b" . "403") ("a@b" . "403") ("a[b" . "403")
                                    ("a`b" . "403") ("a{b" . "403")
                                    (,(make-string 1024 :initial-element #\a) . "204")
                                    (,(make-string 1025 :initial-element #\a) . "403"))
          do (is (search status
                         (preflight-of server "https://a.example" "-H"
                                       (format nil "access-control-request-headers: ~A" names)))
                 "~A" names))
    (dolist (origin '("https://a.example.evil" "https://A.example" "http://a.example" "null"))
      (let ((text (preflight-of server origin)))
        (is (search "403" text))
        (is (null (search "allow-origin" text)))))
    (let ((text (post server "/lab.Bench/Ask" "application/json" "{}" "-i"
                      "-H" "origin: https://a.example")))
      (is (search "access-control-allow-origin: https://a.example" text))
      (is (search "access-control-expose-headers" text)))
    (is (null (search "allow-origin" (post server "/lab.Bench/Ask" "application/json" "{}" "-i"
                                           "-H" "origin: https://b.example"))))))

(test only-preflights-are-answered-as-such
  "Their method is OPTIONS, and they ask for the method by which the path is called."
  (loop for protocol in '(:grpc-web :connect)
        do (with-probe (channel :server server
                                :options (list :protocols (list :grpc protocol) :origins :any))
               (:ask #'double)
             (loop for (verb asked preflight) in '(("OPTIONS" "POST" t) ("OPTIONS" "PUT" nil)
                                                   ("OPTIONS" nil nil) ("PUT" "POST" nil)
                                                   ("GET" "POST" nil))
                   do (let ((text (apply #'curl-text server "/lab.Bench/Ask" "-i" "-X" verb
                                         "-H" "origin: https://a.example"
                                         (and asked
                                              (list "-H" (format nil
                                                                 "access-control-request-method: ~A"
                                                                 asked))))))
                        (is (eq preflight (and (search " 204 " text) t)) "~A ~A ~A: ~A" protocol
                            verb asked text))))))

(test wrong-origins-are-misuse
  (dolist (origins '("https://a.example" :all ("a.example") ("https://a.example/") (5)
                     ("https://a.example" "b.example") ("https://*.example") ("https://a.example/b")
                     ("https://A.example") ("https://") ("://a") ("https://a.example b") ("*")
                     ("https://a.example:443") ("http://a.example:80") ("https://a.example:")
                     ("https://:8080") ("https://a.example:08080") ("https://a.example:65536")
                     ("https://a.example:8o") ("https://a.example:1:2") ("https://[::1]:443")
                     ("https://[::1") ("https://::1") ("https://[a]b") ("a b://c") ("1a://c")))
    (signals grpc:misuse (grpc:start-server '() :listen "127.0.0.1:0" :origins origins)
      "~S" origins)))

(test origins-that-browsers-send-are-valid
  (let ((origins '("https://a.example" "http://a.example:443" "https://a.example:80"
                   "https://a.example:65535" "http://localhost:1" "http://127.0.0.1:8080"
                   "https://[2001:db8::1]" "http://[::1]:8080" "https://a_b.example"
                   "chrome-extension://abcdef" "app+x.1://localhost")))
    (is-true (grpc:stop-server (grpc:start-server '() :listen "127.0.0.1:0" :origins origins)
                               :drain 0))))

(test any-origin-has-no-credentials
  (with-web-probe (server :origins :any) (:ask #'double)
    (let ((text (preflight-of server "https://b.example")))
      (is (search "access-control-allow-origin: *" text))
      (is (null (search "credentials" text))))))

(test without-origins-no-page-may-call
  (with-web-probe (server) (:ask #'double)
    (is (null (search "allow-origin" (preflight-of server "https://a.example"))))
    (let ((text (post server "/lab.Bench/Ask" "application/json" "{}" "-i"
                      "-H" "origin: https://a.example")))
      (is (search "200" text))
      (is (null (search "allow-origin" text))))))
