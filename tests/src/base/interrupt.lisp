;;;; Interrupts: an announcement is withdrawn, wherever an interrupt unwinds the thread.

(in-package #:clgrpc.tests.base)

(test what-begins-is-undone-wherever-an-interrupt-comes
  (let ((announced (list 0)) (inside 0))
    (declare (type fixnum inside))
    (clgrpc.tests.support:interrupt-again-and-again
     (lambda ()
       (with-undoing ((sb-ext:atomic-incf (car announced)) (sb-ext:atomic-decf (car announced)))
         (dotimes (i 20) (incf inside))))
     2000)
    (is (= 0 (car announced)))
    (is (plusp inside))))

(test undoing-keeps-values
  (let ((steps '()))
    (is (equal '(1 2) (multiple-value-list
                       (with-undoing ((push :begin steps) (push :undo steps))
                         (push :body steps)
                         (values 1 2)))))
    (is (equal '(:begin :body :undo) (reverse steps)))
    (signals error (with-undoing (nil (push :undone steps)) (error "left")))
    (is (eq :undone (first steps)))))
