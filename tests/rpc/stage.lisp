;;;; Spans, marks and the clock of what calls wait for.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test spans
  "From nothing to a century, true to one part in eight thousand, and in order."
  (is (= 1 (rpc::span-ns (rpc::ns-span 0))))
  (is (= 1 (rpc::span-ns (rpc::ns-span -5))))
  (let ((random (sb-ext:seed-random-state 7)) (before 0))
    (dolist (ns (sort (append (loop for bits from 1 to 61
                                    append (list (1- (ash 1 bits)) (ash 1 bits)))
                              (loop repeat 1000 collect (1+ (random (ash 1 (1+ (random 61 random)))
                                                                    random))))
                      #'<))
      (let ((again (rpc::span-ns (rpc::ns-span ns))))
        (is (<= before again ns))
        (is (<= (- ns again) (/ ns 8000)))
        (setf before again)))))

(test marks
  "Three moments in one fixnum, none of which disturbs the others."
  (let ((marks 0))
    (dolist (mark (list rpc:+end+ rpc:+headers+ rpc:+answer+))
      (is (null (rpc::mark-ns marks mark)))
      (setf marks (rpc::add-mark marks mark (+ 1000 mark))))
    (is (typep marks 'fixnum))
    (dolist (mark (list rpc:+headers+ rpc:+answer+ rpc:+end+))
      (is (= (+ 1000 mark) (rpc::mark-ns marks mark)))))
  (is (= 1 (rpc::mark-ns (rpc::add-mark 0 rpc:+answer+ 0) rpc:+answer+))))

(test wait-clock
  "What a call has waited for is what the clock adds from when it began to when it stopped."
  (let ((clock (rpc:make-wait-clock)))
    (flet ((waited (before now)
             (multiple-value-bind (totals attempts) (rpc::clock-difference clock before now)
               (list (coerce totals 'list) attempts))))
      (rpc:enter-stage clock :resolve 100)
      (let ((first (rpc:read-clock-for-call clock 110)))
        (rpc:enter-stage clock :connect 130)
        (is (equal '((20 5 0 0 0) 1) (waited first 135)))
        (rpc:enter-stage clock :back-off 150)
        (let ((second (rpc:read-clock-for-call clock 160)))
          (rpc:enter-stage clock :resolve 200)
          (rpc:enter-stage clock :connect 201)
          (rpc:enter-stage clock :handshake 205)
          (rpc:enter-stage clock :queue 210)
          (is (equal '((21 24 5 50 0) 2) (waited first 210)))
          (is (equal '((1 4 5 40 7) 1) (waited second 217)))
          (rpc:stop-waiting clock second 217)
          (rpc:stop-waiting clock second 300)
          (is (equalp #(1 4 5 40 7) (rpc::wait-clock-totals second))))))))
