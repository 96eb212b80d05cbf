;;;; A DNS server in the simulator: what the DNS server of the tests of clgrpc.dns answers
;;;; (tests/src/loop/dns/server.lisp), in datagrams of a host. It has no TCP.

(in-package #:clgrpc.tests.sim)

(defun add-name-server (&optional (name "names"))
  "Return a DNS server without records, for DNS-TESTS:SET-RECORDS and its like, on a new host called
NAME, and \"ADDRESS:53\"."
  (let* ((server (dns-tests:make-name-server))
         (host (sim:add-host name (lambda ()
                                    (sim:serve-datagrams
                                     53 (lambda (octets) (dns-tests:answers server octets :udp)))
                                    '()))))
    (values server (format nil "10.0.0.~D:53" (sim::host-number host)))))

(defun lookup (address name)
  "The addresses of NAME that the DNS server at ADDRESS knows, as texts, or the outcome and why there
are none."
  (let ((loop (loop:make-event-loop :name "asker")) (answer nil))
    (loop:launch-event-loop loop)
    (unwind-protect
         (progn
           (loop:post loop (lambda ()
                             (dns:lookup-host loop (list (os:make-address
                                                          (subseq address 0 (position #\: address))
                                                          53))
                                              (dns:name-octets name) 50051 (seconds-ns 5)
                                              (lambda (addresses outcome text)
                                                (setf answer (list addresses outcome text))))))
           (sim:wait-until (lambda () answer))
           (destructuring-bind (addresses outcome text) answer
             (if addresses (mapcar #'os:address-text addresses) (list outcome text))))
      (loop:stop-event-loop loop))))

(test names-are-looked-up-by-datagrams
  (sim:with-simulation (simulation :latency '(1/10 1/10))
    (multiple-value-bind (server address) (add-name-server)
      (dns-tests:set-records server "a.test" dns:+a+ "10.0.0.7" "10.0.0.8")
      (let ((start (sim:now)))
        (is (equal '("10.0.0.7:50051" "10.0.0.8:50051") (lookup address "a.test")))
        (is (< 0.2 (- (sim:now) start) 0.21))
        (is (equal '(("names" "home") ("names" "home") ("home" "names") ("home" "names"))
                   (loop for entry across (sim::history-entries
                                           (sim::simulation-history simulation))
                         when (eq :datagram (sim::entry-event entry))
                           collect (list (sim::entry-where entry)
                                         (first (sim::entry-arguments entry)))))))
      (is (equal :no-data (first (lookup address "b.test")))))))

(test datagrams-that-are-lost-are-sent-again
  "One in two is lost here; three tries are made of each question."
  (let ((found 0))
    (loop for seed from 1 to 20
          do (sim:with-simulation (simulation :seed seed :losses 500)
               (multiple-value-bind (server address) (add-name-server)
                 (dns-tests:set-records server "a.test" dns:+a+ "10.0.0.7")
                 (when (equal '("10.0.0.7:50051") (lookup address "a.test")) (incf found)))))
    (is (< 5 found 20))))

(test datagrams-that-nobody-takes-are-refused
  (sim:with-simulation (simulation)
    (sim:add-host "nobody")
    (let ((start (sim:now)))
      (destructuring-bind (outcome text) (lookup "10.0.0.2:53" "a.test")
        (is (eq :unreachable outcome))
        (is (search "refused" text)))
      (is (< (- (sim:now) start) 1)))))

(test datagrams-do-not-pass-a-partition
  (sim:with-simulation (simulation)
    (multiple-value-bind (server address) (add-name-server)
      (dns-tests:set-records server "a.test" dns:+a+ "10.0.0.7")
      (destructuring-bind (home names) (sim::simulation-hosts simulation)
        (sim:partition home names)
        (is (eq :no-answer (first (lookup address "a.test"))))
        (sim:heal home names)
        (is (equal '("10.0.0.7:50051") (lookup address "a.test")))))))

;;; Channels to names, when the DNS is away

(defun call-with-named-server (function options)
  "Call FUNCTION with a DNS server, a host that serves, and a channel with OPTIONS to its name,
which has been used."
  (sim:with-simulation (simulation)
    (multiple-value-bind (names address) (add-name-server)
      (let ((server (sim:add-host "server" #'start-echo)))
        (dns-tests:set-records names "svc.test" dns:+a+
                               (format nil "10.0.0.~D" (sim::host-number server)))
        (let ((channel (apply #'grpc:make-channel (format nil "dns://~A/svc.test:50051" address)
                              options)))
          (is (= 1 (ask channel 1)))
          (funcall function names server channel)
          (grpc:close-channel channel))))))

(defmacro with-named-server ((names server channel &rest options) &body body)
  `(call-with-named-server (lambda (,names ,server ,channel)
                             (declare (ignorable ,names ,server ,channel))
                             ,@body)
                           (list ,@options)))

(test known-addresses-are-used-although-the-dns-fails
  "A server restarts in order, again and again, while each look-up fails, or nobody answers: nobody
waits longer than for a look-up that is under way, which is a second."
  (dolist (fail (list (lambda (names) (dns-tests:set-code names "svc.test" 2))
                      (lambda (names) (dns-tests:set-manner names (constantly :drop)))))
    (with-named-server (names server channel)
      (sim:wait-for 31)
      (funcall fail names)
      (loop for pause in '(1 7 29 31 61 3 119 11)
            do (sim:restart-host server :drain 1)
               (sim:wait-for pause)
               (is (> 1.3 (seconds-of (ask channel 1 :wait-for-ready t :timeout 300))))))))

(test known-addresses-are-used-after-idleness
  "At once if they are new enough, else after a second at most, whatever the DNS says."
  (with-named-server (names server channel :idle-seconds 2)
    (sim:wait-for 5)
    (is (eq :idle (grpc:channel-state channel)))
    (is (> 0.1 (seconds-of (ask channel 1 :timeout 5))))
    (dolist (fail (list (lambda () (dns-tests:set-code names "svc.test" 2))
                        (lambda () (dns-tests:set-manner names (constantly :drop)))))
      (funcall fail)
      (loop for pause in '(5 40 5 3)
            do (sim:wait-for pause)
               (is (eq :idle (grpc:channel-state channel)))
               (is (> 1.3 (seconds-of (ask channel 1 :timeout 5))))))))
