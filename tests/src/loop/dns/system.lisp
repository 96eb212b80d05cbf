;;;; The servers of a resolv.conf.

(in-package #:clgrpc.tests.dns)

(defun servers-of (&rest lines)
  (mapcar #'os:address-text (parse-servers (format nil "~{~A~%~}" lines))))

(test servers-of-the-system
  (is (equal '("127.0.0.1:53") (servers-of)))
  (is (equal '("127.0.0.1:53") (servers-of "# nameserver 1.1.1.1" "search a b" "nameserver x")))
  (is (equal '("1.2.3.4:53" "[::1]:53")
             (servers-of "nameserver 1.2.3.4" (format nil "  nameserver~C::1  # local" #\Tab))))
  (is (= 3 (length (servers-of "nameserver 1.1.1.1" "nameserver 1.1.1.2" "nameserver 1.1.1.3"
                               "nameserver 1.1.1.4"))))
  (is (plusp (length (system-servers)))))
