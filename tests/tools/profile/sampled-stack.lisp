;;;; What SBCL's profiler has seen.

(in-package #:clgrpc.tests.profile)

(defun recorded-stacks ()
  (lines (format nil "3~{~C~A~}" '(#\Tab "clgrpc server 1" #\Tab "sb-vm::alloc-tramp" #\Tab
                                   "clgrpc.server::make-server-call" #\Tab
                                   "clgrpc.server::server-headers"))
         (format nil "2~{~C~A~}" '(#\Tab "clgrpc server 1" #\Tab "foreign function epoll_wait" #\Tab
                                   "clgrpc.loop::wait-for-epoll"))
         (format nil "1~{~C~A~}" '(#\Tab "main thread" #\Tab "" #\Tab "clgrpc.loop::run-turn"))))

(test stacks
  (let ((sums (profile::sum-stacks (recorded-stacks))))
    (is (equal '(6 15 1 1)
               (list (profile::sums-samples sums) (profile::sums-frames sums)
                     (profile::sums-unknown-samples sums) (profile::sums-unknown-frames sums))))
    (is (equal '(3 2 1) (mapcar (lambda (area) (gethash area (profile::sums-areas sums)))
                                '("allocation" "kernel: epoll" "unknown"))))
    (is (= 5 (gethash "clgrpc server 1" (profile::sums-threads sums))))))

(test who-allocates
  "It is not the runtime."
  (let ((sums (profile::sum-allocation (recorded-stacks))))
    (is (= 3 (gethash "server" (profile::sums-areas sums))))
    (is (= 3 (gethash "clgrpc.server::make-server-call" (profile::sums-own sums))))))
