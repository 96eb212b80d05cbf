;;;; Flags in a word.

(in-package #:clgrpc.tests.loop)

(defstruct thing (flags 0 :type (unsigned-byte 3)))
(define-flags thing flags
  red green blue)

(test flags-are-independent
  (let ((thing (make-thing)))
    (flet ((all () (list (thing-red thing) (thing-green thing) (thing-blue thing))))
      (is (equal '(nil nil nil) (all)))
      (is (eq :yes (setf (thing-blue thing) :yes)))
      (is (equal '(nil nil t) (all)))
      (is (null (shiftf (thing-red thing) t)))
      (is (equal '(t nil t) (all)))
      (setf (thing-blue thing) nil
            (thing-green thing) t)
      (is (equal '(t t nil) (all))))))
