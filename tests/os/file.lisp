;;;; Files for their owner alone.

(in-package #:clgrpc.tests.os)
(in-suite :clgrpc.os)

(test a-file-is-made-for-those-it-is-for-and-only-once
  (uiop:with-temporary-file (:pathname pathname)
    (let ((path (ascii-octets (sb-ext:native-namestring pathname))))
      (os:remove-file path)
      (let ((descriptor (os:create-file path #o600)))
        (is-false (os:failed-p descriptor))
        (os:close-descriptor descriptor)
        (is (= #o600 (logand #o777 (sb-posix:stat-mode (sb-posix:stat pathname)))))
        (is-true (os:failed-p (os:create-file path #o600)) "there is one")))))
