;;;; Rings: links come at the end and go from anywhere.

(in-package #:clgrpc.tests.base)

(test rings
  (let ((head (make-ring)) (a (make-ring)) (b (make-ring)))
    (is (null (ring-first head)))
    (enter-ring a head)
    (enter-ring b head)
    (is (eq a (ring-first head)))
    (is (eq b (ring-last head)))
    (quit-ring a)
    (quit-ring a)
    (is (eq b (ring-first head)))
    (quit-ring b)
    (is (null (ring-last head)))))
