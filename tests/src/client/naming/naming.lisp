;;;; Names that a DNS server of our own looks up: the times of look-ups, and the effect of answers.

(in-package #:clgrpc.tests.client)

(defun call-with-name-resolver (function arguments)
  "Call FUNCTION with a DNS server; a resolver of x.test:80, which asks that server, has the options
ARGUMENTS and notes in the journal what it publishes; and its loop."
  (dns-tests:with-name-server (server)
    (with-resolvers (loop)
      (let ((resolver (client:make-resolver
                       (format nil "dns://~A/x.test:80" (dns-tests:name-server-address server))
                       (apply #'make-channel-options arguments))))
        (setf (client:resolver-loop resolver) loop
              (client::resolver-deliver resolver)
              (lambda (backends failure config)
                (note-deed (mapcar #'client:backend-key backends) failure config)))
        (funcall function server resolver loop)
        (loop:post loop (lambda () (client:quit-resolver resolver)))))))

(defmacro with-name-resolver ((server resolver loop &rest arguments) &body body)
  `(call-with-name-resolver (lambda (,server ,resolver ,loop)
                              (declare (ignorable ,resolver ,loop))
                              ,@body)
                            (list ,@arguments)))

(defun resolve (resolver loop)
  (loop:post loop (lambda () (client:resolve-again resolver))))

(defun answer-told (count)
  "The entry of the journal with the number COUNT, from 1, once it exists."
  (eventually (<= count (length (deeds))))
  (nth (1- count) (deeds)))

(test names-are-looked-up-by-the-server-of-the-target
  (with-name-resolver (server resolver loop)
    (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.2" "10.0.0.1")
    (is (string= "x.test:80" (client:resolver-authority resolver)))
    (resolve resolver loop)
    (is (equal '(("10.0.0.2:80" "10.0.0.1:80") nil :none) (answer-told 1)))
    (is (equal '(("x.test" 1 :udp) ("x.test" 28 :udp))
               (sort (dns-tests:name-server-asked server) #'< :key #'second)))))

(test names-are-not-looked-up-too-often
  "A look-up that is requested too early is made once, when the time has come."
  (with-name-resolver (server resolver loop :resolve-interval-seconds 0.3)
    (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.1")
    (resolve resolver loop)
    (answer-told 1)
    (let ((begin (monotonic-ns)))
      (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.2")
      (dotimes (i 5) (resolve resolver loop))
      (is (equal '(("10.0.0.2:80") nil :none) (answer-told 2)))
      (is (<= (seconds-ns 0.2) (- (monotonic-ns) begin)))
      (is (= 4 (length (dns-tests:name-server-asked server)))))))

(test failures-may-be-followed-by-a-lookup-at-once
  (with-name-resolver (server resolver loop)
    (dns-tests:set-code server "x.test" 3)
    (resolve resolver loop)
    (destructuring-bind (backends failure config) (answer-told 1)
      (declare (ignore config))
      (is (null backends))
      (is (search "no such host x.test" failure)))
    (dns-tests:set-code server "x.test" nil)
    (resolve resolver loop)
    (is (search "x.test has no address" (second (answer-told 2))))
    (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.1")
    (resolve resolver loop)
    (is (equal '("10.0.0.1:80") (first (answer-told 3))))))

(test who-has-addresses-does-not-wait-long-for-others
  (with-name-resolver (server resolver loop :resolve-interval-seconds 0 :dns-timeout-seconds 60)
    (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.1")
    (resolve resolver loop)
    (answer-told 1)
    (dns-tests:set-manner server (constantly :drop))
    (resolve resolver loop)
    (is (equal '("10.0.0.1:80") (first (answer-told 2))))))

(defun method-names (config)
  (loop for key being the hash-keys of (config:service-config-methods config) collect key))

(test service-configs-come-with-addresses
  (with-name-resolver (server resolver loop :resolve-interval-seconds 0 :dns-service-config t)
    (flet ((offer (&rest strings)
             (dns-tests:set-records server "_grpc_config.x.test" dns:+txt+ strings))
           (config (count)
             (resolve resolver loop)
             (destructuring-bind (backends failure config) (answer-told count)
               (is (equal '("10.0.0.1:80") backends))
               (is (null failure))
               config)))
      (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.1")
      (dns-tests:set-code server "_grpc_config.x.test" 3)
      (is (eq :none (config 1)))
      (dns-tests:set-code server "_grpc_config.x.test" nil)
      (offer (choices (choice "a.A")))
      (is (equal '("/a.A/") (method-names (config 2))))
      ;; an unknown answer does not mean that there is no config
      (dns-tests:set-code server "_grpc_config.x.test" 2)
      (is (equal '("/a.A/") (method-names (config 3))))
      (dns-tests:set-code server "_grpc_config.x.test" nil)
      (offer "grpc_config=" "[nonsense")
      (is (typep (config 4) 'config:service-config-error))
      (offer "something else")
      (is (eq :none (config 5))))))

(test configs-that-do-not-come-hold-up-no-address
  (with-name-resolver (server resolver loop :dns-service-config t :dns-timeout-seconds 60)
    (dns-tests:set-records server "x.test" dns:+a+ "10.0.0.1")
    (dns-tests:set-manner server (fn (_name type _carrier) (when (= type dns:+txt+) :drop)))
    (resolve resolver loop)
    (is (equal '(("10.0.0.1:80") nil :none) (answer-told 1)))))

(test calls-find-servers-by-dns
  (let ((server (start-probe (list :ask #'double))))
    (dns-tests:with-name-server (names)
      (dns-tests:set-records names "x.test" dns:+a+ "127.0.0.1")
      (grpc:with-channel (channel (format nil "dns://~A/x.test:~A"
                                          (dns-tests:name-server-address names)
                                          (subseq (grpc:server-address server)
                                                  (1+ (position #\: (grpc:server-address
                                                                     server))))))
        (is (= 2 (number-of (ask channel (note 1)))))))
    (grpc:stop-server server)))
