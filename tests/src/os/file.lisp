;;;; Files for their owner alone.

(in-package #:clgrpc.tests.os)

(test a-file-is-made-for-those-it-is-for-and-only-once
  (uiop:with-temporary-file (:pathname pathname)
    (let ((path (ascii-octets (sb-ext:native-namestring pathname))))
      (os:remove-file path)
      (let ((descriptor (os:create-file path #o600)))
        (is-false (os:failed-p descriptor))
        (os:close-descriptor descriptor)
        (is (= #o600 (logand #o777 (sb-posix:stat-mode (sb-posix:stat pathname)))))
        (is-true (os:failed-p (os:create-file path #o600)) "the file exists already")))))

(test what-is-there-and-how-long-it-is
  (uiop:with-temporary-file (:pathname pathname)
    (let* ((path (ascii-octets (sb-ext:native-namestring pathname)))
           (new (concatenate 'octets path (ascii-octets ".new"))))
      (is (equal '(:regular 0) (multiple-value-list (os:file-type path))))
      (os:remove-file path)
      (is (equal '(nil 0) (multiple-value-list (os:file-type path))))
      (let ((descriptor (os:create-file path #o600)))
        (is (= 3 (os:write-octets descriptor (octets-of 1 2 3 4) 1 4)))
        (is (= 3 (os:file-size descriptor)))
        (is (= 0 (os:truncate-file descriptor 1)))
        ;; it writes to the end, wherever that is
        (is (= 1 (os:write-octets descriptor (octets-of 5) 0 1)))
        (os:close-descriptor descriptor))
      (is (= 0 (os:rename-file-to path new)))
      (is (equal '(:regular 2) (multiple-value-list (os:file-type new))))
      (os:rename-file-to new path)
      (with-open-file (stream pathname :element-type 'octet)
        (is (equal '(2 5) (list (read-byte stream) (read-byte stream)))))))
  (is (eq :directory (os:file-type (ascii-octets "/"))))
  (is (eq :device (os:file-type (ascii-octets "/dev/null"))))
  (let ((descriptor (os:open-to-write (ascii-octets "/dev/full"))))
    (is (= -28 (os:write-octets descriptor (octets-of 1) 0 1)) "ENOSPC")
    (os:close-descriptor descriptor)))

(test a-pipe-is-opened-without-a-wait-and-written-to-with-one
  "A pipe without a reader is refused; with a reader, a write waits until the pipe has room."
  (uiop:with-temporary-file (:pathname pathname)
    (let* ((name (sb-ext:native-namestring pathname)) (path (ascii-octets name)))
      (os:remove-file path)
      (sb-posix:mkfifo name #o600)
      (is (= (- os:+enxio+) (os:open-to-write path)))
      (let ((reader (sb-posix:open name (logior sb-posix:o-rdonly sb-posix:o-nonblock))))
        (unwind-protect
             (let ((writer (os:open-to-write path)))
               (is-false (os:failed-p writer))
               (is-false (logtest sb-posix:o-nonblock (sb-posix:fcntl writer sb-posix:f-getfl)))
               (os:close-descriptor writer))
          (sb-posix:close reader))))))
