;;;; Addresses as text and back, and names.

(in-package #:clgrpc.tests.os)

(test addresses
  (loop for (host port text) in '(("127.0.0.1" 50051 "127.0.0.1:50051") ("0.0.0.0" 0 "0.0.0.0:0")
                                  ("::1" 80 "[::1]:80") ("::" 65535 "[::]:65535")
                                  ("2001:DB8::ff00:42" 1 "[2001:db8::ff00:42]:1"))
        for address = (os:make-address host port)
        do (is (string= text (os:address-text address)))
           (is (= port (os:address-port address)))
           (is (= (if (find #\: host) os:+af-inet6+ os:+af-inet+) (os:address-family address))))
  (dolist (host '("localhost" "1.2.3" "1.2.3.4.5" "256.1.1.1" "" "::1::" "[::1]"))
    (is-false (os:make-address host 1))))

(test address-parsing
  (loop for (text host port) in '(("127.0.0.1:80" "127.0.0.1" 80) ("[::1]:0" "::1" 0)
                                  ("localhost:50051" "localhost" 50051) (":50051" "0.0.0.0" 50051))
        do (is (equal (list host port) (multiple-value-list (os:parse-address text)))))
  (dolist (text '("" "localhost" "::1" "::1:80" "1.2.3.4:" "1.2.3.4:x" "1.2.3.4:65536" "1.2.3.4:-1"
                  "[::1]" "[::1]80"))
    (signals misuse (os:parse-address text) "~S is an address" text)))

(test names
  (is (equal '("127.0.0.1:5" "[::1]:5")
             (mapcar #'os:address-text (os:resolve-host "LocalHost" 5))))
  (is (equal '("127.0.0.2:5") (mapcar #'os:address-text (os:resolve-host "127.0.0.2" 5))))
  (multiple-value-bind (addresses failure needed) (os:resolve-host "host.example" 5 :lookup nil)
    (is (null addresses))
    (is (null failure))
    (is-true needed)))

(test resolver
  ;; a numeric address reaches the resolver only here; it answers without asking anybody
  (let ((addresses (clgrpc.os::query-resolver "127.0.0.3")))
    (is (equal '("127.0.0.3:0") (mapcar #'os:address-text addresses))))
  (multiple-value-bind (addresses failure) (clgrpc.os::query-resolver "127.0.0.3.4.5")
    (is (null addresses))
    (is (stringp failure)))
  (when (search "127.0.0.1" (uiop:read-file-string "/etc/hosts"))
    (multiple-value-bind (host service failure) (os:lookup-name (os:make-address "127.0.0.1" 9))
      (is (null failure))
      (is (every #'graphic-char-p host))
      (is (every #'graphic-char-p service)))))

(test unix-addresses
  (flet ((text (name &rest options)
           (let ((address (apply #'os:make-unix-address (string-octets name) options)))
             (and address (os:address-text address)))))
    (is (string= "unix:/a/b" (text "/a/b")))
    (is (string= "unix:a%20b%25" (text "a b%")))
    (is (string= "unix-abstract:x" (text "x" :abstract t)))
    (is (null (text "")))
    (is (null (text (make-string 108 :initial-element #\a))))
    (is (stringp (text (make-string 107 :initial-element #\a)))))
  (is (= os:+af-unix+ (os:address-family (os:make-unix-address (octets-of 65)))))
  (is (string= "unix:" (os:address-text (octets-of 1 0)))))
