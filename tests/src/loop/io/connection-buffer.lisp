;;;; The pool of a loop's buffers.

(in-package #:clgrpc.tests.loop)

(test unused-buffers-are-kept-within-bounds
  "The length of a buffer, the sum of lengths and the number are bounded; a kept buffer is empty,
and is borrowed next."
  (let ((loop (make-event-loop)))
    (flet ((give (octets)
             (let ((buffer (make-buffer :size octets)))
               (loop::give-buffer-back loop buffer)
               (list (loop::event-loop-pool-count loop) (loop::event-loop-pool-octets loop)))))
      (unwind-protect
           (let ((longest loop::+pooled-buffer-octets+))
             (is (equal '(0 0) (give (1+ longest))))
             (loop for count from 1 to 8
                   do (is (equal (list count (* count longest)) (give longest))))
             (is (equal (list 8 (* 8 longest)) (give 16)) "no ninth buffer is kept")
             (loop repeat 8 do (is (= longest (length (buffer-octets (loop::borrow-buffer loop))))))
             (dotimes (i loop::+pool-buffers+) (give 16))
             (is (equal (list loop::+pool-buffers+ (* 16 loop::+pool-buffers+)) (give 16)))
             (let ((buffer (loop::borrow-buffer loop)))
               (append-octets buffer (octets-of 1 2))
               (loop::give-buffer-back loop buffer)
               (is (eq buffer (loop::borrow-buffer loop)))
               (is (zerop (buffer-fill buffer)))))
        (stop-event-loop loop)))))
