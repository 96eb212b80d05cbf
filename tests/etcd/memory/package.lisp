;;;; Tests of the engine in memory. What etcd itself says to the same is in memory-service.lisp and
;;;; likeness.lisp.

(defpackage #:clgrpc.tests.memory
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.base #:octets-of #:misuse #:string-octets #:octets-string)
  (:import-from #:clgrpc.tests.etcd #:*etcd* #:wait-until #:eventually #:with-store)
  (:local-nicknames (#:memory #:clgrpc.memory) (#:etcd #:clgrpc.etcd) (#:base #:clgrpc.base)
                    (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:calling #:clgrpc.calling) (#:inproc #:clgrpc.inproc)
                    (#:server #:clgrpc.server) (#:support #:clgrpc.tests.support)
                    (#:shared #:clgrpc.tests.etcd)
                    (#:protobuf #:clgrpc.protobuf)
                    (#:pb #:etcdserverpb) (#:kv #:etcdserverpb.kv)
                    (#:leases #:etcdserverpb.lease) (#:watches #:etcdserverpb.watch)))

(in-package #:clgrpc.tests.memory)

(def-suite :clgrpc.memory :description "The engine in memory.")

(defun call-with-engine (function &rest options)
  (let ((engine (let ((base:*log-function* nil)) (apply #'memory:make-engine options))))
    (unwind-protect
         (let ((*etcd* (memory:connect engine)))
           (unwind-protect (funcall function engine)
             (etcd:close-etcd *etcd*)))
      (memory:close-engine engine))))

(defmacro with-engine ((engine &rest options) &body body)
  "Evaluate BODY with ENGINE a new one, and *ETCD* its client."
  `(call-with-engine (lambda (,engine) (declare (ignorable ,engine)) ,@body) ,@options))

(defun new-store (&key (octets 1000000) (revisions 100) (leases 10))
  (memory::make-store (memory::make-limits :octets octets :revisions revisions :leases leases)))

(defun put (store key &key (value "x") (lease 0))
  "Put VALUE at KEY, strings, and return the revision."
  (memory::answer-put store (pb:make-put-request :key (string-octets key)
                                                 :value (string-octets value) :lease lease))
  (memory::store-revision store))

(defun put-many (store count &key (lease 0))
  "Put COUNT keys into STORE, at one revision."
  (let ((write-batch (memory::write-batch-of store)))
    (dotimes (i count)
      (memory::put-item write-batch (string-octets (format nil "many/~8,'0D" i)) (octets-of) lease))
    (memory::commit write-batch)))

(defun item-text (item)
  (octets-string (memory::item-key item)))

(defun keys-of (tree)
  "The keys of TREE, as strings."
  (let ((keys '()))
    (memory::map-range (lambda (item) (push (item-text item) keys)) tree (octets-of) nil)
    (nreverse keys)))

(defmacro refused-with ((status text) &body body)
  "Check that BODY ends with STATUS and TEXT."
  `(with-signalled (error status:rpc-error ,@body)
     (is (eq ,status (status:rpc-error-status error)))
     (is (string= ,text (status:rpc-error-message error)))))
