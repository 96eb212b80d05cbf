;;;; Where methods lead within the image.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test methods-remember-their-route
  "For one host at a time; a method that the services have not has none."
  (let ((ask (method:find-rpc-method 'lab.bench:ask))
        (hosts (loop repeat 2
                     collect (inproc::make-host :services (list (make-probe :ask #'double))
                                                :options (make-server-options)))))
    (mapc #'inproc::renew-table hosts)
    (destructuring-bind (one other) hosts
      (let ((route (inproc::route-to one ask)))
        (is (eq ask (serving:route-method route)))
        (is (eq route (method:rpc-method-route ask)))
        (is (eq route (inproc::route-to one ask)))
        (is (not (eq route (inproc::route-to other ask))))
        (is (eq route (inproc::route-to one ask)))
        (inproc::renew-table one)
        (is (not (eq route (inproc::route-to one ask))))
        (is (= 2 (serving:route-epoch (inproc::route-to one ask))))))
    (is (null (inproc::route-to (first hosts)
                                (method:find-rpc-method 'grpc.health.v1.health:check))))))

(test handlers-that-answer-later-are-remembered
  "Until they are defined anew."
  (let* ((host (inproc::make-host :services (list (make-probe :ask #'double))
                                  :options (make-server-options)))
         (route (progn (inproc::renew-table host)
                       (inproc::route-to host (method:find-rpc-method 'lab.bench:ask)))))
    (is (not (inproc::keeps-p route)))
    (setf (inproc::route-kept route) (method:binding-function (serving:route-binding route)))
    (is-true (inproc::keeps-p route))
    (setf (inproc::route-kept route) #'identity)
    (is (not (inproc::keeps-p route)))))
