;;;; The addresses of both families.

(in-package #:clgrpc.tests.dns)

(defun addresses-of (loop server name &key (seconds 10))
  "The texts of NAME's addresses, the outcome and the failure."
  (let ((done (sb-thread:make-semaphore)) (answer nil))
    (on-loop loop (lambda ()
                    (lookup-host loop (list (server-address server)) (name-octets name) 80
                                 (seconds-ns seconds)
                                 (lambda (&rest values)
                                   (setf answer values)
                                   (sb-thread:signal-semaphore done)))))
    (is-true (sb-thread:wait-on-semaphore done :timeout *patience-seconds*))
    (values (mapcar #'os:address-text (first answer)) (second answer) (third answer))))

(defun ip6-p (loop)
  "True if LOOP can reach this machine by IPv6."
  (on-loop loop (lambda () (loop:route-p loop (os:make-address "::1" 80)))))

(test both-families
  "IPv6 is first where it can be reached."
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "127.0.0.2" "127.0.0.1")
    (is (equal '("127.0.0.2:80" "127.0.0.1:80") (addresses-of loop server "a.test")))
    (set-records server "a.test" +aaaa+ "::1")
    (is (equal (if (ip6-p loop)
                   '("[::1]:80" "127.0.0.2:80" "127.0.0.1:80")
                   '("127.0.0.2:80" "127.0.0.1:80" "[::1]:80"))
               (addresses-of loop server "a.test")))
    (set-records server "six.test" +aaaa+ "2001:db8::1")
    (is (equal '("[2001:db8::1]:80") (addresses-of loop server "six.test")))))

(test a-family-that-is-not-answered-does-not-hold-up-the-other
  (with-server-and-loop (server loop)
    (set-records server "a.test" +a+ "127.0.0.1")
    (set-manner server (fn (_name type _carrier) (when (= type +aaaa+) :drop)))
    (let ((begin (monotonic-ns)))
      (is (equal '("127.0.0.1:80") (addresses-of loop server "a.test" :seconds 600)))
      (is (< (- (monotonic-ns) begin) (seconds-ns *patience-seconds*))))))

(test hosts-without-addresses
  (with-server-and-loop (server loop)
    (flet ((check (outcome text)
             (multiple-value-bind (addresses got failure) (addresses-of loop server "a.test")
               (is (null addresses))
               (is (eq outcome got))
               (is (search text failure) "~A" failure))))
      (check :no-data "a.test has no address")
      (set-code server "a.test" 3)
      (check :no-such-name "no such host a.test")
      (set-code server "a.test" nil)
      ;; it is not known that the other family has no address
      (set-manner server (fn (_name type _carrier)
                           (when (= type +a+)
                             (lambda (answer)
                               (list (answer-octets (question-octets "a.test" +a+) '()
                                                    :id (u16be answer 0) :code 2))))))
      (check :server-failed "fails"))))
