;;;; The tests of all packages: a system clgrpc-tests/LAYER for each folder of tests/, made from the
;;;; files that are in it, and the system clgrpc-tests, which runs everything.

(defclass layer-tests (system)
  ()
  (:documentation "The tests of a layer: clgrpc-tests/LAYER, whose suites are :clgrpc.LAYER and
:clgrpc.LAYER.PART."))

(defmethod component-depends-on ((operation test-op) (system layer-tests))
  (list* '(load-op "clgrpc-tests/support") (call-next-method)))

(defmethod perform ((operation test-op) (system layer-tests))
  (symbol-call '#:clgrpc.tests.support '#:test-layer
               (subseq (component-name system) (length "clgrpc-tests/"))))

(defun layer-directory (layer)
  (subpathname (or *load-truename* (system-source-file "clgrpc-tests"))
               (format nil "tests/~A/" layer)))

(defun layer-components (layer first data)
  "A component for each file in the folder of LAYER: first those that are not compiled, DATA among
them, then what defines the package, then the files FIRST, then all others by name."
  (let* ((paths (directory-files (layer-directory layer)))
         (lisp-p (lambda (path) (and (equal "lisp" (pathname-type path))
                                     (not (member (pathname-name path) data :test #'string=)))))
         (files (sort (mapcar #'pathname-name (remove-if-not lisp-p paths)) #'string<))
         (heads (intersection (append '("proto" "package") first) files :test #'string=)))
    (append (mapcar (lambda (path) `(:static-file ,(file-namestring path)))
                    (remove-if lisp-p paths))
            (mapcar (lambda (name) `(:file ,name))
                    (append (remove-if-not (lambda (name) (member name heads :test #'string=))
                                           (append '("proto" "package") first))
                            (set-difference-in-order files heads))))))

(defun set-difference-in-order (names others)
  (remove-if (lambda (name) (member name others :test #'string=)) names))

(defmacro define-layers (&rest rows)
  "Define a system for each of ROWS, in the order in which they run: a list of LAYER, which is the
name of a folder of tests/, the systems that its tests need, and the files that others of the folder
build upon (:FIRST) or that are not loaded (:DATA)."
  `(progn
     ,@(loop for (layer needs . keys) in rows
             collect (destructuring-bind (&key first data) keys
                       `(defsystem ,(format nil "clgrpc-tests/~A" layer)
                          :class layer-tests
                          :depends-on (,@needs "clgrpc-tests/support" "fiveam")
                          :pathname ,(format nil "tests/~A/" layer)
                          :serial t
                          :components ,(layer-components layer first data))))
     (defsystem "clgrpc-tests"
       :description "All tests and their runner."
       :depends-on (,@(loop for (layer) in rows collect (format nil "clgrpc-tests/~A" layer))
                    "sb-posix" "sb-introspect")
       :pathname "tests/"
       :serial t
       :components ((:file "package")
                    (:file "runner")
                    (:file "runner-test")
                    (:file "architecture")
                    (:file "arrow")
                    (:file "packages")
                    (:file "slot")
                    (:file "documentation")
                    (:file "chapter")
                    (:file "chapters"))
       :perform (test-op (operation system)
                  (symbol-call '#:clgrpc.tests '#:test-system)))))

(defsystem "clgrpc-tests/support"
  :description "Programs as peers, for the tests of several layers."
  :depends-on ("fiveam")
  :pathname "tests/support/"
  :serial t
  :components ((:file "package")
               (:file "descriptor")
               (:file "interrupt")
               (:file "program")
               (:file "suite")))

(define-layers
  ("base" ("clgrpc/base"))
  ("os" ("clgrpc/os" "sb-posix") :first ("socket"))
  ("loop" ("clgrpc/loop" "sb-bsd-sockets" "sb-posix") :first ("support" "interleaving" "memory"))
  ("async" ("clgrpc-async" "clgrpc-async/examples" "clgrpc-tests/loop") :first ("program"))
  ("dns" ("clgrpc/dns" "clgrpc-tests/loop" "sb-bsd-sockets") :first ("server" "query"))
  ("hpack" ("clgrpc/hpack") :first ("support" "vector"))
  ("http1" ("clgrpc/http1") :first ("support"))
  ("http2" ("clgrpc-tests/hpack" "clgrpc-tests/dialogue") :first ("support"))
  ("dialogue" ("clgrpc/http2") :first ("frame" "script"))
  ("protobuf" ("clgrpc/protobuf")
   :first ("support" "vector" "import" "extension" "field" "json-writer"))
  ("fuzz" ("clgrpc-tests/protobuf" "clgrpc-tests/loop" "clgrpc-tests/dns" "clgrpc-tests/dialogue"
           "clgrpc-tests/server" "clgrpc-sim")
   :first ("chance" "octets" "wire" "text" "target" "frame" "dns" "hpack" "http1" "http2" "grpc"
           "tls"))
  ("rpc" ("clgrpc/calling" "clgrpc/serving"))
  ("world" ("clgrpc/loop" "clgrpc-tests/dialogue") :first ("world"))
  ("wire" ("clgrpc/wire" "clgrpc-tests/world") :first ("script"))
  ("status" ("clgrpc-tests/rpc"))
  ("service" ("clgrpc-tests/rpc"))
  ("calling" ("clgrpc-tests/rpc") :first ("channel" "interceptor"))
  ("serving" ("clgrpc-tests/rpc"))
  ("examples" ("clgrpc/examples" "clgrpc-tools") :first ("service"))
  ("profile" ("clgrpc-tools/profile" "clgrpc-tests/page"))
  ("tools" ("clgrpc-tools/testee" "clgrpc-tests/report" "clgrpc-tests/examples" "clgrpc-tests/etcd"
           "sb-posix")
   :first ("serve"))
  ("load" ("clgrpc-tools/load" "clgrpc/examples" "clgrpc-tests/abuse"))
  ("page" ("clgrpc-tools/page"))
  ("report" ("clgrpc-tools/report" "clgrpc-tests/page") :first ("sample"))
  ("interop" ("clgrpc-tools/testee"))
  ("server" ("clgrpc" "clgrpc-tests/world" "sb-bsd-sockets")
   :first ("support" "service" "peer" "script" "plain" "opening" "http1"))
  ("config" ("clgrpc/config"))
  ("client" ("clgrpc-tests/server" "clgrpc-tests/dns")
   :first ("support" "response" "retry" "resolver"))
  ("balance" ("clgrpc-tests/client") :first ("support"))
  ("trace" ("clgrpc-tests/client") :first ("context" "observe"))
  ("transports" ("clgrpc-tests/server") :first ("support" "retry"))
  ("inproc" ("clgrpc-tests/server"))
  ("services" ("clgrpc-tests/server"))
  ("logs" ("clgrpc-tests/client" "sb-posix"))
  ("metrics" ("clgrpc/metrics" "clgrpc-tests/client"))
  ("channelz" ("clgrpc-tests/server"))
  ("console" ("clgrpc-tools/console" "clgrpc-tests/server"))
  ("sim" ("clgrpc-sim" "clgrpc-tests/server" "clgrpc-tests/dns") :first ("mix" "driver" "network"))
  ("policy" ("clgrpc-tests/sim" "clgrpc-tests/dns" "clgrpc-tests/dialogue")
   :first ("backend" "attempt" "scenario"))
  ("abuse" ("clgrpc-tests/server" "clgrpc-tests/dialogue" "clgrpc-tests/hpack"
           "clgrpc-tools/testee")
   :first ("watch" "attacker" "victim" "server" "load" "limit" "memory"))
  ("promise" ("clgrpc-async" "clgrpc-tests/server" "clgrpc-tests/dialogue" "clgrpc/examples")
   :first ("measure") :data ("saving"))
  ("otlp" ("clgrpc/otlp" "clgrpc-tests/server" "clgrpc/examples") :first ("collector"))
  ("etcd" ("clgrpc-etcd" "clgrpc-etcd/memory" "clgrpc/inproc" "sb-bsd-sockets" "alexandria")
   :first ("server" "stand-in"))
  ("discovery" ("clgrpc-etcd/discovery" "clgrpc-etcd/memory" "clgrpc-tests/etcd" "clgrpc/examples"
                "alexandria")
   :first ("host" "resolver"))
  ("memory" ("clgrpc-etcd/memory" "clgrpc/server" "clgrpc-tests/etcd" "alexandria"))
  ("raft" ("clgrpc-cluster/raft" "clgrpc" "clgrpc-sim" "clgrpc-cluster/raft-toy") :first ("member"))
  ("workflow" ("clgrpc-cluster/workflow" "clgrpc-etcd/memory" "clgrpc-tests/etcd"))
  ("cluster" ("clgrpc" "clgrpc-cluster" "clgrpc-tests/etcd") :first ("support"))
  ("command" ("clgrpc/command"))
  ("program" ("clgrpc/examples") :data ("greeter" "late"))
  ("faults" ("clgrpc" "clgrpc-cluster/workflow" "clgrpc-cluster" "clgrpc-etcd/memory"
             "clgrpc-tests/etcd" "sb-posix")
   :first ("place" "fault" "load" "run")))
