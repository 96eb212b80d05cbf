;;;; Targets as text: the forms of gRPC's naming document, and invalid texts.

(in-package #:clgrpc.tests.loop)

(defun target-parts (text &rest options)
  "Authority, host, port and addresses as text of the target TEXT."
  (let ((target (apply #'parse-target text options)))
    (list (target-authority target) (target-host target)
          (clgrpc.loop:target-port target)
          (mapcar #'os:address-text (clgrpc.loop:target-addresses target)))))

(test target-forms
  (loop for (text . parts) in
        '(("127.0.0.1:80" "127.0.0.1:80" "127.0.0.1" 80 ("127.0.0.1:80"))
          ("[::1]:65535" "[::1]:65535" "::1" 65535 ("[::1]:65535"))
          ("example.org:1" "example.org:1" "example.org" 1 ())
          ("localhost:5" "localhost:5" "localhost" 5 ("127.0.0.1:5" "[::1]:5"))
          ("dns:example.org:1" "example.org:1" "example.org" 1 ())
          ("dns:example.org" "example.org" "example.org" 443 ())
          ("dns:///example.org" "example.org" "example.org" 443 ())
          ("DNS:///example.org:7" "example.org:7" "example.org" 7 ())
          ("dns:///127.0.0.1:80" "127.0.0.1:80" "127.0.0.1" 80 ("127.0.0.1:80"))
          ("dns:///[::1]" "[::1]" "::1" 443 ("[::1]:443"))
          ("dns:::1" "::1" "::1" 443 ("[::1]:443"))
          ("dns:///ex%61mple.org:1" "example.org:1" "example.org" 1 ())
          ("passthrough:///example.org:1" "example.org:1" "example.org" 1 ())
          ("ipv4:127.0.0.1:80" "127.0.0.1:80" "127.0.0.1" 80 ("127.0.0.1:80"))
          ("ipv4:///127.0.0.1" "127.0.0.1:443" "127.0.0.1" 443 ("127.0.0.1:443"))
          ("ipv4:127.0.0.1:80,127.0.0.2:81" "127.0.0.1:80" "127.0.0.1" 80
           ("127.0.0.1:80" "127.0.0.2:81"))
          ("ipv6:[::1]:80,[::2]" "[::1]:80" "::1" 80 ("[::1]:80" "[::2]:443"))
          ("ipv6:::1" "[::1]:443" "::1" 443 ("[::1]:443"))
          ("ipv6:%5B::1%5D:80" "[::1]:80" "::1" 80 ("[::1]:80"))
          ("unix:a/b.sock" "localhost" "localhost" 0 ("unix:a/b.sock"))
          ("unix:/a/b.sock" "localhost" "localhost" 0 ("unix:/a/b.sock"))
          ("unix:///a/b.sock" "localhost" "localhost" 0 ("unix:/a/b.sock"))
          ("unix:/a%20b" "localhost" "localhost" 0 ("unix:/a%20b"))
          ("unix-abstract:name" "localhost" "localhost" 0 ("unix-abstract:name"))
          ("unix-abstract:a%00b" "localhost" "localhost" 0 ("unix-abstract:a%00b")))
        do (is (equal parts (target-parts text)) "~A is ~S" text (target-parts text)))
  (is (equal '("0.0.0.0" 0) (subseq (target-parts ":0" :smallest-port 0) 1 3)))
  (is (equal '("unix:/λ") (list (format nil "~A" (target-text (parse-target "unix:/λ"))))))
  (is (equal '("unix:/%CE%BB") (fourth (target-parts "unix:/λ")))))

(test what-is-no-target
  (dolist (text (list "" "host" "host:" ":80" "host:0" "host:65536" "host:x" "host:-1" "host:+5"
                      "host: 5" "[::1]" "::1:80:x" "::1:80" "[::1:80" "[::1]x:80" "1:2:3"
                      "dns:" "dns:///" "dns:///:80" "dns://8.8.8.8/host:80" "http://host:80"
                      "ipv4:example.org:80" "ipv4:[::1]:80" "ipv4:" "ipv4:1.2.3.4:80,"
                      "ipv6:127.0.0.1:80" "ipv6:[::1]:x" "unix:" "unix://path" "unix:a%00b"
                      "unix:%4"
                      "unix:%zz" "unix-abstract:" (format nil "unix:/~A" (make-string 107
                                                                           :initial-element #\a))
                      nil 5 #(1)))
    (signals misuse (parse-target text) "~S is a target" text))
  (flet ((complaint (text)
           (handler-case (progn (parse-target text) "")
             (misuse (error) (princ-to-string error)))))
    (is (search "not 5: the port is part of the address, HOST:PORT" (complaint 5)))
    (is (search "write several addresses as one: ipv4:" (complaint '("a:1" "b:2"))))
    (is (search "SERVER-ADDRESS returns" (complaint (make-instance 'standard-object))))
    (is (search "leave http:// out" (complaint "http://host:80")))
    (is (search "leave https:// out; TLS needs :credentials" (complaint "https://host:80")))
    (is (search "no scheme ftp; use dns" (complaint "ftp://host:80")))
    (is (search "ipv4:10.0.0.1:50051,10.0.0.2:50051" (complaint "10.0.0.1:80,10.0.0.2:80")))
    (unless (loop:find-scheme "etcd:")
      (is (search "the scheme etcd belongs to the system clgrpc-etcd/discovery"
                  (complaint "etcd:///shop"))))
    (is (search "only channels" (complaint "dns://8.8.8.8/host:80")))
    (is (search "HOST:PORT" (complaint "host")))
    (is (search "107" (complaint "unix:")))
    (dolist (form '("~A:80" "a~Ab:80" "dns:///~A:80" "unix:/~A" "unix-abstract:~A" "ipv4:~A:80"
                    "~A" "dns://~A/a:80"))
      (is (search "a surrogate" (complaint (format nil form (code-char #xD800)))) form))))

(test targets-for-channels
  "They may name a DNS server, and need no port."
  (flet ((parts (text)
           (let ((target (parse-target text :for-channel t)))
             (list (and (target-server target) (os:address-text (target-server target)))
                   (target-host target) (target-port target) (target-authority target)))))
    (loop for (text . parts)
            in '(("host" nil "host" 443 "host")
                 ("host:80" nil "host" 80 "host:80")
                 ("dns://8.8.8.8/host:80" "8.8.8.8:53" "host" 80 "host:80")
                 ("dns://127.0.0.1:5353/a.b" "127.0.0.1:5353" "a.b" 443 "a.b")
                 ("dns://[::1]/host:80" "[::1]:53" "host" 80 "host:80")
                 ("dns://[::1]:5353/host:80" "[::1]:5353" "host" 80 "host:80")
                 ("dns:///host:80" nil "host" 80 "host:80"))
          do (is (equal parts (parts text)) "~A is ~S" text (parts text)))
    (dolist (text '("dns://ns.example.org/host:80" "dns://8.8.8.8:0/host:80" "dns://8.8.8.8:x/h:80"
                    "dns://8.8.8.8" "dns://8.8.8.8/" "dns://8.8.8.8/:80" "dns://[::1/host:80"
                    "dns://a@8.8.8.8/host" "ipv4://8.8.8.8/1.2.3.4:80" "passthrough://8.8.8.8/h:1"
                    "" ":80" "host:" "::1:80:x"))
      (signals misuse (parse-target text :for-channel t) "~S is a target" text))))

(test targets-of-noise
  "Any text is a target or signals MISUSE."
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed))
         (pieces #("dns" "unix" "unix-abstract" "ipv4" "ipv6" "passthrough" ":" "::" "/" "//" "///"
                   "[" "]" "%" "%41" "%00" "," "1" "127.0.0.1" "::1" "80" "host" "." "é")))
    (format *test-dribble* "~&seed ~D~%" seed)
    (dotimes (i 5000)
      (let ((text (apply #'concatenate 'string
                         (loop repeat (random 7 random)
                               collect (aref pieces (random (length pieces) random))))))
        (handler-case (target-parts text :smallest-port (random 2 random))
          (misuse () nil))))
    (pass)))

(test addresses-name-no-user
  "An address with a user is refused, and the error does not show the password."
  (dolist (text '("u:s3cret@h:1" "http://u:s3cret@h:1" "dns:///u:s3cret@h:1"
                  "dns://u:s3cret@h/h:1"))
    (let ((error (nth-value 1 (ignore-errors (loop:parse-target text :for-channel t)))))
      (is (typep error 'misuse))
      (is (search "without an @" (princ-to-string error)))
      (is (null (search "s3cret" (princ-to-string error))))))
  (is-true (loop:parse-target "unix:/a@b")))
