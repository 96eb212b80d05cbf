;;;; Tests of discovery, against etcd itself. Skipped where that is missing.

(defpackage #:clgrpc.tests.discovery
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.base #:misuse #:octets-of)
  (:import-from #:clgrpc.tests.etcd
                #:with-store #:*etcd* #:store-address #:store-program #:begin-store #:wait-until
                #:eventually
                #:free-port #:+patience+ #:with-stand-in #:held-by #:unwind-within
                #:call-with-failing-client)
  (:local-nicknames (#:discovery #:clgrpc.discovery) (#:etcd #:clgrpc.etcd) (#:grpc #:clgrpc)
                    (#:loop #:clgrpc.loop) (#:memory #:clgrpc.memory)
                    (#:metrics #:clgrpc.metrics)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.discovery)

(def-suite :clgrpc.discovery
  :description "Servers that register themselves, and channels that find them.")

(defun call-with-memory (function class)
  (let ((engine (let ((clgrpc.base:*log-function* nil)) (memory:make-engine))))
    (change-class engine class)
    (unwind-protect (let ((*etcd* (memory:connect engine)))
                      (unwind-protect (funcall function engine)
                        (etcd:close-etcd *etcd*)))
      (memory:close-engine engine))))

(defmacro with-memory ((engine &key (class ''memory:engine)) &body body)
  "Evaluate BODY with ENGINE a store in memory, of CLASS, and *ETCD* its client."
  `(call-with-memory (lambda (,engine) (declare (ignorable ,engine)) ,@body) ,class))
