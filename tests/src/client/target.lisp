;;;; Targets of channels and the corresponding addresses of servers: every form, several listeners
;;;; at once, the :authority, the peer's address, and the texts of failures.

(in-package #:clgrpc.tests.client)

(defun ipv6-p ()
  "True if this machine has the address ::1."
  (let ((socket (os:open-socket os:+af-inet6+)))
    (unless (os:failed-p socket)
      (unwind-protect (not (os:failed-p (os:bind-socket socket (os:make-address "::1" 0))))
        (os:close-descriptor socket)))))

(defun free-path ()
  "A path at which there is no file."
  (uiop:with-temporary-file (:pathname path :type "sock")
    (uiop:native-namestring path)))

(test servers-listen-on-several-addresses
  (let* ((path (free-path))
         (addresses `("127.0.0.1:0" "ipv4:127.0.0.1:0" "dns:///localhost:0"
                      ,@(when (ipv6-p) '("[::1]:0" "ipv6:[::1]:0"))
                      ,(format nil "unix:~A" path)
                      ,(format nil "unix-abstract:~A" (pathname-name path))))
         (descriptors (os:open-descriptor-count))
         (server (start-probe (list :ask (fn (_note call) (note 1 :text (grpc:call-peer call))))
                              :listen addresses)))
    (unwind-protect
         (progn
           (is (= (length addresses) (length (grpc:server-addresses server))))
           (is (= (length addresses) (length (remove-duplicates (grpc:server-addresses server)
                                                                :test #'string=))))
           (dolist (address (grpc:server-addresses server))
             (grpc:with-channel (channel address)
               (multiple-value-bind (reply call) (ask channel (note 1))
                 (is (string= address (grpc:call-peer call)))
                 (let ((peer (lab:note-text reply)))
                   (if (uiop:string-prefix-p "unix" address)
                       (is (string= address peer))
                       (is (string= (subseq address 0 (position #\: address))
                                    (subseq peer 0 (position #\: peer))))))))))
      (grpc:stop-server server))
    (is (null (probe-file path)))
    (eventually (= descriptors (os:open-descriptor-count)))))

(test one-address-that-cannot-be-had
  "If one address cannot be used, the server gives up the others, too."
  (let ((path (free-path)) (descriptors (os:open-descriptor-count)))
    (with-probe (channel :server server) ()
      (signals grpc:socket-error
        (start-probe '() :listen (list (format nil "unix:~A" path) (grpc:server-address server)))))
    (is (null (probe-file path)))
    (signals grpc:socket-error (start-probe '() :listen "unix:/no/such/directory/x.sock"))
    (signals grpc:misuse (start-probe '() :listen "dns://1.1.1.1/localhost:0"))
    (eventually (= descriptors (os:open-descriptor-count)))))

(test targets-of-channels
  (let ((path (free-path)))
    (with-started (server (start-probe (list :ask #'double)
                                       :listen (list "127.0.0.1:0" (format nil "unix:~A" path))))
      (let* ((address (grpc:server-address server))
             (port (subseq address (1+ (position #\: address)))))
        (dolist (form '("dns:///127.0.0.1:~A" "dns:localhost:~A" "localhost:~A"
                        "passthrough:///127.0.0.1:~A" "ipv4:127.0.0.1:~A"
                        "ipv4:127.0.0.1:1,127.0.0.1:~A"))
          (grpc:with-channel (channel (format nil form port))
            (is (= 4 (number-of (ask channel (note 2)))) "~A" form)))
        (grpc:with-channel (channel (format nil "unix://~A" path))
          (is (= 4 (number-of (ask channel (note 2))))))))))

(test authority-of-targets
  (let ((seen nil))
    (with-raw-server (address) (fn (_peer exchange)
                                 (setf seen (field-of ":authority" (exchange-headers exchange)))
                                 (ok-response exchange (note-octets 1)))
      (let ((port (subseq address (1+ (position #\: address)))))
        (loop for (form authority) in '(("127.0.0.1:~A" "127.0.0.1:~A")
                                        ("dns:///localhost:~A" "localhost:~A")
                                        ("ipv4:127.0.0.1:~A" "127.0.0.1:~A")
                                        ("passthrough:///localhost:~A" "localhost:~A"))
              do (grpc:with-channel (channel (format nil form port))
                   (ask channel (note 1))
                   (is (string= (format nil authority port) seen)))))))
  (is (string= "localhost" (loop:target-authority (loop:parse-target "unix:/x"))))
  (is (string= "localhost" (loop:target-authority (loop:parse-target "unix-abstract:x")))))

(test failures-of-targets
  (flet ((failure (target)
           (grpc:with-channel (channel target)
             (let ((error (caught (ask channel (note 1)))))
               (is (typep error 'grpc:unavailable))
               (is (not (grpc:rpc-error-sent-p error)))
               (princ-to-string error)))))
    (is (search "No such file" (failure (format nil "unix:~A" (free-path)))))
    (is (search "refused" (failure "unix-abstract:clgrpc-nobody-listens-here")))
    (is (search "refused" (failure (free-address))))
    (let ((text (failure "nobody.invalid:80")))
      (is (or (search "no such host nobody.invalid" text)
              (search "no name server answers for nobody.invalid" text))
          "~A" text))))

(test a-unix-server-that-comes-back
  "Its channel connects again, after a back-off."
  (let* ((address (format nil "unix:~A" (free-path)))
         (server (start-probe (list :ask #'double) :listen address)))
    (grpc:with-channel (channel address :backoff-initial-seconds 0.01)
      (is (= 2 (number-of (ask channel (note 1)))))
      (grpc:stop-server server)
      (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
      (setf server (start-probe (list :ask #'double) :listen address))
      (is (= 2 (number-of (ask channel (note 1) :wait-for-ready t))))
      (grpc:stop-server server))))
