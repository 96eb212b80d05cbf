;;;; The kernel's constants compared with its headers, and errnos.

(in-package #:clgrpc.tests.os)

(defparameter *headers*
  '("errno.h" "signal.h" "stddef.h" "stdio.h" "sys/types.h" "sys/socket.h" "netinet/in.h"
    "netinet/tcp.h" "arpa/inet.h" "poll.h" "sys/epoll.h" "sys/eventfd.h" "sys/prctl.h"
    "sys/resource.h" "linux/futex.h" "sys/syscall.h" "dlfcn.h" "netdb.h" "fcntl.h" "dirent.h"
    "sys/mman.h" "sys/stat.h" "linux/stat.h" "unistd.h"))

(defun constants-according-to-cc ()
  "The values that the C compiler has for the names in the table, in order."
  (uiop:with-temporary-file (:pathname source :type "c" :keep nil)
    (uiop:with-temporary-file (:pathname program :keep nil)
      (with-open-file (stream source :direction :output :if-exists :supersede)
        (format stream "~{#include <~A>~%~}int main (void) {~%" *headers*)
        (loop for (name) in (os:constant-table)
              do (format stream "  printf (\"%lld\\n\", (long long) (~A));~%" name))
        (format stream "  return 0;~%}~%"))
      (uiop:run-program (list "cc" "-o" (uiop:native-namestring program)
                              (uiop:native-namestring source)))
      (mapcar #'parse-integer
              (uiop:run-program (list (uiop:native-namestring program)) :output :lines)))))

(test constants
  (support:need-program "cc")
  (loop for (name value) in (os:constant-table)
        for real in (constants-according-to-cc)
        do (is (= (ldb (byte 32 0) real) (ldb (byte 32 0) value))
               "~A is ~D, not ~D" name real value)))

(test errnos
  (is (os:failed-p (- os:+ebadf+)))
  (is-false (os:failed-p 0))
  (is (string= "Connection refused" (os:errno-text (- os:+econnrefused+))))
  (is (= (- os:+ebadf+) (os:close-descriptor -1))))
