;;;; Spans and marks.

(in-package #:clgrpc.tests.wire)

(test spans
  "From nothing to a century, exact to one part in eight thousand, and in order."
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
  "Three moments and two flags in one fixnum do not disturb each other."
  (with-link (link)
    (let ((call (calls 1)) (flags '(:closed :unattended)) (moments '(:headers :answer :end)))
      (flet ((ns (moment) (wire::moment-ns (wire::wire-call-marks call) moment)))
        (on-loop
         (lambda ()
           (loop for (moment . later) on moments
                 do (memory:passes 1)
                    (loop:update-time (wire:wire-call-loop call))
                    (wire:mark-call call moment)
                    (is-true (wire:marked-p call moment))
                    (is (notany (lambda (other) (wire:marked-p call other))
                                (append later flags))))))
        (wire:mark-call call :closed)
        (is-true (wire:marked-p call :closed))
        (is (null (wire:marked-p call :unattended)))
        (loop for moment in moments
              for seconds from 1
              do (is (< 0.999 (/ (ns moment) 1d9 seconds) 1.001)))
        (wire:reset-marks call)
        (is (notany (lambda (moment) (ns moment)) moments))
        (is-true (wire:marked-p call :closed))))))
