;;;; Faults: what stands on etcd is used while things go wrong around it, and nothing may be lost,
;;;; told twice or held by two. place.lisp has the etcd and the proxy before it, fault.lisp what
;;;; goes wrong, load.lisp who uses it meanwhile and what must then be true, run.lisp puts them
;;;; together; workflow.lisp has nodes, workers and workflows instead of users. All of it takes a
;;;; few seconds as tests, minutes as `make faults`.

(defpackage #:clgrpc.tests.faults
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.base #:monotonic-ns #:ns-seconds #:seconds-ns)
  (:local-nicknames (#:etcd #:clgrpc.etcd) (#:shared #:clgrpc.tests.etcd)
                    (#:support #:clgrpc.tests.support) (#:base #:clgrpc.base)
                    (#:grpc #:clgrpc) (#:workflow #:clgrpc.workflow)
                    (#:cluster #:clgrpc.cluster) (#:memory #:clgrpc.memory)
                    (#:loop #:clgrpc.loop) (#:pb #:clgrpc.workflow.v1))
  (:export #:run-faults #:run-workflows #:be-part #:fault-names #:list-faults))

(in-package #:clgrpc.tests.faults)

(def-suite :clgrpc.faults :description "What stands on etcd, while things go wrong.")
