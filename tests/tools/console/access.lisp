;;;; Who may look: this machine, by a name of its own, with the token.

(in-package #:clgrpc.tests.console)

(test secrets-are-compared-whole
  (is-true (console::secrets-equal-p "abcdef" "abcdef"))
  (dolist (wrong '("" "abcde" "abcdefg" "abcdeg" "Abcdef" "abcdefabcdef"))
    (is (null (console::secrets-equal-p "abcdef" wrong)) "~S" wrong)))

(test hosts-of-this-machine
  (dolist (address '(nil "127.0.0.1:80" "127.9.8.7:1" "[::1]:80" "[::ffff:127.0.0.1]:80" "::1"
                     "localhost:80" "LOCALHOST" "a.localhost:3" "unix:/tmp/x" "unix-abstract:x"))
    (is-true (console:loopback-address-p address) "~S" address))
  (dolist (address '("10.0.0.1:80" "0.0.0.0:80" "[::]:80" "[fe80::1]:80" "128.0.0.1:1" "example.com"
                     "127.0.0.1.example.com:80" "localhost.example.com" "notlocalhost" ""
                     "[::ffff:10.0.0.1]:80" "[127.0.0.1]example.com" "[::1].example.com:80"))
    (is (null (console:loopback-address-p address)) "~S" address)))

(test cookies-are-found
  (loop for (header value) in '(("a=1" "1") (" a=1 " "1") ("b=2; a=1" "1") ("b=2;a=1;a=2" "1")
                                ("a=" "") ("a=x=y" "x=y") (";;; ;a=1" "1") ("" nil) (";" nil)
                                ("a" nil) ("aa=1" nil) ("b=a=1" nil) ("A=1" nil))
        do (is (equal value (console::find-cookie "a" header)) "~S" header))
  (is (null (console::find-cookie "a" (make-string 16000 :initial-element #\;)))))

(test the-token-is-wanted
  (with-shown (console server channel)
    (let ((token (console::console-token console)))
      (flet ((status (path &rest headers) (values (fetch server path :headers headers))))
        (dolist (path '("/console/" "/console/events" "/console/options" "/console/other"))
          (is (= 401 (status path)) "~A" path)
          (is (= 401 (status (format nil "~A?token=~A" path (reverse token)))))
          (is (= 401 (status path '("authorization" . "Bearer x"))))
          (is (= 401 (status path (cons "authorization" (format nil "Basic ~A" token)))))
          (is (= 401 (status path (cons "cookie" (format nil "clgrpc-console-0=~A" token))))))
        (multiple-value-bind (status headers body) (fetch server "/console/")
          (declare (ignore status))
          (is (search "Bearer" (header "www-authenticate" headers)))
          (is (null (search token body))))
        (is (= 200 (status "/console/" (cons "authorization" (format nil "bearer ~A" token)))))
        ;; the first visit
        (multiple-value-bind (status headers body)
            (fetch server (format nil "/console/?token=~A" token))
          (is (= 303 status))
          (is (string= "/console/" (header "location" headers)))
          (is (string= "" body))
          (let ((cookie (header "set-cookie" headers)))
            (is (search "; Path=/console/; HttpOnly; SameSite=Lax" cookie))
            (let ((pair (subseq cookie 0 (position #\; cookie))))
              (is (= 200 (status "/console/" (cons "cookie" pair))))
              (is (= 200 (status "/console/" (cons "cookie" (format nil "a=b; ~A;c=d" pair)))))
              ;; an address that has it is left even by who has the cookie
              (is (= 303 (status (format nil "/console/?token=~A" token)
                                 (cons "cookie" pair))))
              (is (= 401 (status "/console/"
                                 (cons "cookie" (concatenate 'string pair "x"))))))))))))

(test other-names-are-refused
  "As a page has whose name is made to lead here."
  (with-shown (console server channel)
    (flet ((status (host) (values (fetch server "/console/" :headers (cons (cons "host" host)
                                                                           (bearer console))))))
      (is (= 403 (status "evil.example:80")))
      (is (= 403 (status "10.0.0.1")))
      (is (= 200 (status "localhost:9")))
      (is (= 200 (status "127.0.0.1:9")))
      (is (= 200 (status "[::1]:9")))))
  (with-shown (console server channel :remote t)
    (is (= 200 (fetch server "/console/" :headers (acons "host" "our.example:80"
                                                         (bearer console)))))
    (is (= 401 (fetch server "/console/" :headers '(("host" . "our.example:80")))))))

(test other-machines-are-refused
  (let ((console (console:make-console)) (remote (console:make-console :remote t)))
    (is-true (console::peer-allowed-p console "127.0.0.1:3"))
    (is (null (console::peer-allowed-p console "192.168.0.7:3")))
    (is-true (console::peer-allowed-p remote "192.168.0.7:3"))))

(test the-token-is-in-no-log
  (let* ((lines '()) (lock (sb-thread:make-mutex)) (*print-length* nil)
         (console (console:make-console)) (token (console::console-token console))
         (listener (lambda (&rest event)
                     (let ((line (prin1-to-string event)))
                       (sb-thread:with-mutex (lock) (push line lines))))))
    (add-log-listener listener)
    (unwind-protect
         (with-probe (channel :server server
                      :options (list :observer (list console (grpc:make-access-log))
                                     :http (list (console:console-handler console))))
             (:ask #'double)
           (setf (grpc:tracers) "all")
           (unwind-protect
                (progn (ask channel (note 1))
                       (is (= 303 (fetch server (format nil "/console/?token=~A" token))))
                       (is (= 200 (fetch server "/console/" :headers (bearer console)))))
             (setf (grpc:tracers) '())))
      (remove-log-listener listener))
    (is (< 10 (length lines)))
    (is (null (find-if (lambda (line) (search token line)) lines)))))
