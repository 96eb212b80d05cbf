;;;; OpenSSL: it is opened when it is wanted, and says what went wrong.

(in-package #:clgrpc.tests.os)
(in-suite :clgrpc.os)

(test openssl-opens
  (os:open-openssl)
  (is-true (os:openssl-open-p))
  (os:open-openssl)
  (is (integerp (os:openssl-instance))))

(test openssl-failures
  (os:open-openssl)
  (is (null (os::openssl-failure)))
  (let ((context (os:make-tls-context :client :none)))
    (is (= 0 (os::ssl-ctx-set-cipher-list context "nonsense")))
    (os:free-tls-context context))
  (is (stringp (os::openssl-failure)))
  (is (null (os::openssl-failure)) "the queue is empty afterwards"))

(test openssl-of-a-saved-core
  ;; what OpenSSL made before has another number
  (let ((before (os:openssl-instance)))
    (os::forget-libraries)
    (is (/= before (os:openssl-instance)))
    (is (not (os:openssl-open-p)))
    (os:open-openssl)
    (is-true (os:openssl-open-p))))
