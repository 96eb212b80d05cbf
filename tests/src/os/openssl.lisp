;;;; OpenSSL: it is opened when needed, and reports errors.

(in-package #:clgrpc.tests.os)

(test openssl-opens
  (os:open-openssl)
  (is-true (os:openssl-open-p))
  (os:open-openssl)
  (is (integerp (os:openssl-instance))))

(test openssl-is-opened-by-one-thread-at-a-time
  (with-changed (((symbol-value 'os::**openssl-ready**) nil))
    (is (null (support:lockless os::**openssl-lock** '(os:open-openssl))))))

(test openssl-failures
  (os:open-openssl)
  (is (null (os::openssl-failure)))
  (let ((context (os:make-tls-context :client :none)))
    (is (= 0 (os::ssl-ctx-set-cipher-list context "nonsense")))
    (os:free-tls-context context))
  (is (stringp (os::openssl-failure)))
  (is (null (os::openssl-failure)) "the queue is empty afterwards"))

(test sha256-of-octets
  "The examples are those of FIPS 180-4."
  (flet ((digest (text)
           (format nil "~(~{~2,'0x~}~)" (coerce (os:sha256-digest (string-octets text)) 'list))))
    (is (string= "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" (digest "")))
    (is (string= "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" (digest "abc")))
    (is (string= "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
                 (digest (make-string 1000000 :initial-element #\a))))))

(test openssl-of-a-saved-core
  ;; what OpenSSL made before has another number
  (let ((before (os:openssl-instance)))
    (os::forget-libraries)
    (is (/= before (os:openssl-instance)))
    (is (not (os:openssl-open-p)))
    (os:open-openssl)
    (is-true (os:openssl-open-p))))
