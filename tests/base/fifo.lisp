;;;; The plain queue.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(test first-come-first-gone
  (let ((fifo (make-fifo)))
    (is (null (dequeue fifo)))
    (dotimes (i 3) (enqueue i fifo))
    (is (equal '(0 1 2) (fifo-items fifo)))
    (is (= 0 (dequeue fifo)))
    (enqueue 3 fifo)
    (enqueue-first :before fifo)
    (is (eq :before (dequeue fifo)))
    (is (equal '(1 2 3) (loop repeat 3 collect (dequeue fifo))))
    (is (null (dequeue fifo)))
    (enqueue-first 4 fifo)
    (enqueue 5 fifo)
    (is (equal '(4 5) (clear-fifo fifo)))
    (enqueue 6 fifo)
    (is (equal '(6) (fifo-items fifo)))))

(test taken-out-of-the-middle-and-the-end
  (let ((fifo (make-fifo)))
    (dotimes (i 3) (enqueue i fifo))
    (remove-from-fifo 2 fifo)
    (enqueue 3 fifo)
    (remove-from-fifo 1 fifo)
    (remove-from-fifo :nothing fifo)
    (is (equal '(0 3) (fifo-items fifo)))
    (remove-from-fifo 0 fifo)
    (remove-from-fifo 3 fifo)
    (enqueue 4 fifo)
    (is (equal '(4) (fifo-items fifo)))))

(test what-has-gone-holds-nothing
  (let* ((fifo (make-fifo))
         (cells (progn (dotimes (i 3) (enqueue i fifo))
                       (loop for cell on (fifo-items fifo) collect cell))))
    (dotimes (i 3) (dequeue fifo))
    (is (every (lambda (cell) (null (cdr cell))) cells))
    (is (null (clgrpc.base::fifo-tail fifo)))))
