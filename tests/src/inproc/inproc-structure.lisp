;;;; The printed form of a call's objects, and the call pair that few calls need.

(in-package #:clgrpc.tests.inproc)

(test callees-say-what-they-serve
  (let ((text (princ-to-string (inproc::make-callee :name "inproc:shown"
                                                    :options (make-server-options)
                                                    :services (list (make-probe))))))
    (is (search "inproc:shown open" text))
    (is (search "probe" text))))
