;;;; An error of a user's whose report fails, too.

(in-package #:clgrpc.tests.support)

(define-condition unprintable (error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore condition stream))
             (error "The report fails as well.")))
  (:documentation "An error that cannot be printed: what logs it, or passes its text on, must not
fail by that."))
