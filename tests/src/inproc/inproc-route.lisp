;;;; The routes of methods within the image.

(in-package #:clgrpc.tests.inproc)

(test methods-remember-their-route
  "They remember one callee at a time; a method that the services lack has no route."
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

(test routes-of-a-closed-callee-are-forgotten
  "This happens when a server stops, or a service's channel closes. Routes of other callees stay."
  (let ((ask (method:stub-method 'lab.bench:ask)))
    (flet ((remembered-p (channel)
             (eq (inproc::inproc-core-callee (inproc::channel-inproc-core channel))
                 (let ((route (method:rpc-method-route ask)))
                   (and route (serving::route-server route))))))
      (let ((server (start-probe (list :ask #'double) :listen "inproc:forgotten"))
            (alone (inproc:service-channel (make-probe :ask #'double))))
        (grpc:with-channel (channel "inproc:forgotten")
          (is (= 4 (number-of (ask channel (note 2)))))
          (is-true (remembered-p channel))
          (is (= 4 (number-of (ask alone (note 2)))))
          (grpc:stop-server server)
          (is-true (remembered-p alone))
          (grpc:close-channel alone)
          (is (null (method:rpc-method-route ask)))
          (let ((server (start-probe (list :ask #'double) :listen "inproc:forgotten")))
            (is (= 4 (number-of (ask channel (note 2)))))
            (is-true (remembered-p channel))
            (grpc:stop-server server)
            (is (null (method:rpc-method-route ask)))))))))

(test handlers-that-answer-later-are-remembered
  "They are remembered until they are redefined."
  (let* ((callee (inproc::make-callee :services (list (make-probe :ask #'double))
                                      :options (make-server-options)))
         (route (progn (inproc::renew-table callee)
                       (inproc::route-to callee (method:stub-method 'lab.bench:ask)))))
    (is (not (inproc::keeps-p route)))
    (setf (inproc::route-kept route) (method:binding-function (serving::route-binding route)))
    (is-true (inproc::keeps-p route))
    (setf (inproc::route-kept route) #'identity)
    (is (not (inproc::keeps-p route)))))
