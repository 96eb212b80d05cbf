;;;; Faults: what stands on etcd is used while things go wrong around it, and nothing may be lost,
;;;; told twice or held by two. place.lisp has the etcd and the proxy before it, fault.lisp what
;;;; goes wrong, load.lisp who uses it meanwhile and what must then be true, run.lisp puts them
;;;; together: for a few seconds as a test, for minutes as `make faults`.

(defpackage #:clgrpc.tests.faults
  (:use #:cl #:fiveam)
  (:import-from #:clgrpc.base #:monotonic-ns #:ns-seconds #:seconds-ns)
  (:local-nicknames (#:etcd #:clgrpc.etcd) (#:shared #:clgrpc.tests.etcd)
                    (#:support #:clgrpc.tests.support) (#:base #:clgrpc.base))
  (:export #:run-faults #:fault-names #:list-faults))

(in-package #:clgrpc.tests.faults)

(def-suite :clgrpc.faults :description "What stands on etcd, while things go wrong.")
