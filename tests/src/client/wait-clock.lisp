;;;; The clock for the waits of calls.

(in-package #:clgrpc.tests.client)

(test wait-clock
  "The waits of a call are the increase of the clock's totals from its begin to its stop."
  (let ((clock (client::make-wait-clock)))
    (flet ((waited (before now)
             (multiple-value-bind (totals attempts) (client::clock-difference clock before now)
               (list (coerce totals 'list) attempts))))
      (client::enter-clock-stage clock :resolve 100)
      (let ((first (client::read-clock-for-call clock 110)))
        (client::enter-clock-stage clock :connect 130)
        (is (equal '((20 5 0 0 0) 1) (waited first 135)))
        (client::enter-clock-stage clock :back-off 150)
        (let ((second (client::read-clock-for-call clock 160)))
          (client::enter-clock-stage clock :resolve 200)
          (client::enter-clock-stage clock :connect 201)
          (client::enter-clock-stage clock :handshake 205)
          (client::enter-clock-stage clock :queue 210)
          (is (equal '((21 24 5 50 0) 2) (waited first 210)))
          (is (equal '((1 4 5 40 7) 1) (waited second 217)))
          (client::stop-clock clock second 217)
          (client::stop-clock clock second 300)
          (is (equalp #(1 4 5 40 7) (client::wait-clock-totals second))))))))
