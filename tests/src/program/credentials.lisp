;;;; The certificates of a command line.

(in-package #:clgrpc.tests.program)

(test clients-are-asked-for-certificates-if-roots-are-given
  "This holds for each certificate of the server; without roots clients need none. A key or roots
alone are refused."
  (flet ((file (name) (support:certificate-file name))
         (status (address &rest own)
           (grpc:with-channel (channel address
                               :credentials (apply #'grpc:tls-credentials
                                                   :roots (support:certificate-file "ca.pem") own))
             (handler-case (progn (grpc:ensure-connected channel :timeout 20)
                                  (helloworld.greeter:say-hello
                                   channel (helloworld:make-hello-request) :timeout 20)
                                  :ok)
               (grpc:rpc-error (error) (grpc:rpc-error-status error))))))
    (loop for (roots none own) in `((nil :ok :ok) (,(file "ca.pem") :unavailable :ok))
          do (let* ((credentials (program:server-credentials (file "server.pem")
                                                             (file "server.key") '() roots))
                    (server (grpc:start-server (make-instance 'clgrpc.examples:greeter)
                                               :credentials credentials))
                    (address (grpc:server-address server)))
               (unwind-protect
                    (progn (is (eq none (status address)))
                           (is (eq own (status address :certificate (file "client.pem")
                                                       :key (file "client.key")))))
                 (grpc:stop-server server :drain 0))))
    (is (null (program:server-credentials nil nil '() nil)))
    (loop for arguments in `((nil "k" () nil) (nil nil (("c" "k")) nil) (nil nil () "r"))
          do (signals clgrpc.command:usage-error
               (apply #'program:server-credentials arguments)))))

(test certificates-and-origins-of-a-command-line
  (loop for (parser . rows)
          in '((program::parse-certificate ("a" ("a" nil)) ("a,b" ("a" "b")) ("a,b,c" ("a" "b,c"))
                ("") ("a,") (",b"))
               (program::parse-origins ("any" :any) ("http://a,http://b" ("http://a" "http://b"))))
        do (loop for (text . expected) in rows
                 for value = (handler-case (list (funcall parser text))
                               (clgrpc.command:usage-error () nil))
                 do (is (equal expected value) "~A of ~S: ~S" parser text value))))
