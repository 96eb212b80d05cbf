;;;; Where methods lead within the image.

(in-package #:clgrpc.tests.inproc)

(test methods-remember-their-route
  "For one callee at a time; a method that the services have not has none."
  (let ((ask (method:stub-method 'lab.bench:ask))
        (callees (loop repeat 2
                       collect (inproc::make-callee :services (list (make-probe :ask #'double))
                                                    :options (make-server-options)))))
    (mapc #'inproc::renew-table callees)
    (destructuring-bind (one other) callees
      (let ((route (inproc::route-to one ask)))
        (is (eq ask (serving::route-method route)))
        (is (eq route (method:rpc-method-route ask)))
        (is (eq route (inproc::route-to one ask)))
        (is (not (eq route (inproc::route-to other ask))))
        (is (eq route (inproc::route-to one ask)))
        (inproc::renew-table one)
        (is (not (eq route (inproc::route-to one ask))))
        (is (= 2 (serving::route-epoch (inproc::route-to one ask))))))
    (is (null (inproc::route-to (first callees)
                                (method:stub-method 'grpc.health.v1.health:check))))))

(test handlers-that-answer-later-are-remembered
  "Until they are defined anew."
  (let* ((callee (inproc::make-callee :services (list (make-probe :ask #'double))
                                      :options (make-server-options)))
         (route (progn (inproc::renew-table callee)
                       (inproc::route-to callee (method:stub-method 'lab.bench:ask)))))
    (is (not (inproc::keeps-p route)))
    (setf (inproc::route-kept route) (method:binding-function (serving::route-binding route)))
    (is-true (inproc::keeps-p route))
    (setf (inproc::route-kept route) #'identity)
    (is (not (inproc::keeps-p route)))))
