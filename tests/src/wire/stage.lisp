;;;; Spans and marks.

(in-package #:clgrpc.tests.wire)
(in-suite :clgrpc.wire)

(test spans
  "From nothing to a century, true to one part in eight thousand, and in order."
  (is (= 1 (wire::span-ns (wire::ns-span 0))))
  (is (= 1 (wire::span-ns (wire::ns-span -5))))
  (let ((random (sb-ext:seed-random-state 7)) (before 0))
    (dolist (ns (sort (append (loop for bits from 1 to 61
                                    append (list (1- (ash 1 bits)) (ash 1 bits)))
                              (loop repeat 1000 collect (1+ (random (ash 1 (1+ (random 61 random)))
                                                                    random))))
                      #'<))
      (let ((again (wire::span-ns (wire::ns-span ns))))
        (is (<= before again ns))
        (is (<= (- ns again) (/ ns 8000)))
        (setf before again)))))

(test marks
  "Three moments in one fixnum, none of which disturbs the others."
  (let ((marks 0))
    (dolist (mark (list wire:+end+ wire:+headers+ wire:+answer+))
      (is (null (wire::mark-ns marks mark)))
      (setf marks (wire::add-mark marks mark (+ 1000 mark))))
    (is (typep marks 'fixnum))
    (dolist (mark (list wire:+headers+ wire:+answer+ wire:+end+))
      (is (= (+ 1000 mark) (wire::mark-ns marks mark)))))
  (is (= 1 (wire::mark-ns (wire::add-mark 0 wire:+answer+ 0) wire:+answer+))))
