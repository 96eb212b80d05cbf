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

;;; A layer

(defun layer-name (folder name)
  "What the layer whose tests are in FOLDER of tests/ is called: NAME, or as the folder is."
  (or name (first (last (split-string folder :separator "/")))))

(defun layer-paths (folder rooms)
  "The paths of the files in FOLDER of tests/ and in ROOMS, folders in it."
  (let ((home (subpathname (or *load-truename* (system-source-file "clgrpc-tests"))
                           (format nil "tests/~A/" folder))))
    (flet ((names (room)
             (loop for path in (directory-files (subpathname home room))
                   collect (format nil "~A~A" room (file-namestring path)))))
      (append (names "")
              (loop for room in rooms append (names (format nil "~A/" room)))))))

(defun layer-components (folder &key first data rooms &allow-other-keys)
  "A component for each file in FOLDER and its ROOMS: before all others what is not compiled, DATA
among them; then what defines the package; then those called FIRST; then the rest by name."
  (let* ((paths (layer-paths folder rooms))
         (lisp-p (lambda (path) (and (equal "lisp" (pathname-type path))
                                     (not (member (pathname-name path) data :test #'string=)))))
         (heads (append '("proto" "package") first))
         (sources (sort (remove-if-not lisp-p paths) #'string< :key #'pathname-name)))
    (flet ((rank (path) (or (position (pathname-name path) heads :test #'string=)
                            (length heads))))
      (append (loop for path in (remove-if lisp-p paths) collect `(:static-file ,path))
              (loop for path in (stable-sort sources #'< :key #'rank)
                    collect `(:file ,(subseq path 0 (- (length path) (length ".lisp")))))))))

(defmacro define-layers (&rest rows)
  "Define a system for each of ROWS, in the order in which they run. A row is a list of a folder of
tests/, the systems that its tests need, and: what the layer is called if not as its folder (:NAME),
the folders in it that have files, too (:ROOMS), the files that others build upon (:FIRST), and Lisp
that is not loaded (:DATA)."
  `(progn
     ,@(loop for (folder needs . keys) in rows
             collect `(defsystem ,(format nil "clgrpc-tests/~A"
                                          (layer-name folder (getf keys :name)))
                        :class layer-tests
                        :depends-on (,@needs "clgrpc-tests/support" "fiveam")
                        :pathname ,(format nil "tests/~A/" folder)
                        :serial t
                        :components ,(apply #'layer-components folder keys)))
     (defsystem "clgrpc-tests"
       :description "All tests and their runner."
       :depends-on (,@(loop for (folder nil . keys) in rows
                            collect (format nil "clgrpc-tests/~A"
                                            (layer-name folder (getf keys :name))))
                    "sb-posix" "sb-introspect")
       :pathname "tests/"
       :serial t
       :components ((:file "package")
                    (:file "runner")
                    (:file "runner-test")
                    (:file "architecture")
                    (:file "arrow")
                    (:file "packages")
                    (:file "loading")
                    (:file "path")
                    (:file "slot")
                    (:file "glossary")
                    (:file "documentation") (:file "environment-table")
                    (:file "prose")
                    (:file "chapter")
                    (:file "chapters")
                    (:file "mutant")
                    (:file "promises"))
       :perform (test-op (operation system)
                  (symbol-call '#:clgrpc.tests '#:test-system)))))

(defsystem "clgrpc-tests/support"
  :description "Programs as peers, for the tests of several layers."
  :depends-on ("fiveam" "sb-bsd-sockets")
  :pathname "tests/support/programs/"
  :serial t
  :components ((:file "package") (:file "test-form") (:file "descriptor")
               (:file "interrupt") (:file "program") (:file "suite") (:file "walk")
               (:file "raw-listener") (:file "notice") (:file "unprintable")
               (:file "record")))

(define-layers
  ("src/base" ("clgrpc/option") :rooms ("log" "memory" "option" "text"))
  ("src/os" ("clgrpc/os" "sb-posix") :first ("socket"))
  ("src/loop" ("clgrpc/loop" "sb-bsd-sockets" "sb-posix")
   :first ("support" "interleaving" "memory") :rooms ("io" "names" "threads"))
  ("async" ("clgrpc-async" "clgrpc-async/examples" "clgrpc-tests/loop")
   :first ("program" "user-socket"))
  ("src/loop/dns" ("clgrpc/dns" "clgrpc-tests/loop" "sb-bsd-sockets") :first ("server" "dns-query"))
  ("src/http/hpack" ("clgrpc/hpack") :first ("support" "vector"))
  ("src/http/http1" ("clgrpc/http1") :first ("support"))
  ("src/http/exchange" ("clgrpc/exchange") :first ("request"))
  ("src/http/http2" ("clgrpc-tests/hpack" "clgrpc-tests/dialogue") :first ("support"))
  ("support/dialogue" ("clgrpc/http2") :first ("frame" "script"))
  ("src/protobuf" ("clgrpc/protobuf")
   :first ("support" "vector" "import" "extension" "field" "json-writer")
   :rooms ("codec" "formats" "source" "types"))
  ("src/web/rest" ("clgrpc/rest" "clgrpc-tests/server") :first ("support" "path-template"))
  ("whole/fuzz" ("clgrpc-tests/protobuf" "clgrpc-tests/loop" "clgrpc-tests/dns"
                 "clgrpc-tests/dialogue" "clgrpc-tests/rest" "clgrpc-tests/server" "clgrpc-sim")
   :first ("chance" "octets" "wire" "text" "target" "rest" "frame" "dns" "hpack" "http1" "http2"
           "grpc" "web" "tls"))
  ("src/rpc" ("clgrpc/attempt" "clgrpc/calling" "clgrpc/serving"))
  ("support/world" ("clgrpc/loop" "clgrpc-tests/dialogue") :first ("world"))
  ("src/wire" ("clgrpc/wire" "clgrpc-tests/world") :first ("script"))
  ("src/rpc/status" ("clgrpc-tests/rpc"))
  ("src/rpc/method" ("clgrpc-tests/rpc"))
  ("src/rpc/encoding" ("clgrpc-tests/rpc"))
  ("src/rpc/credentials" ("clgrpc-tests/rpc"))
  ("src/rpc/attempt" ("clgrpc-tests/rpc"))
  ("src/rpc/calling" ("clgrpc-tests/rpc" "clgrpc-tests/credentials")
   :first ("channel" "interceptor"))
  ("src/rpc/serving" ("clgrpc-tests/rpc"))
  ("examples" ("clgrpc/examples" "clgrpc-tools" "clgrpc-tests/server") :first ("service"))
  ("tools/profile" ("clgrpc-tools/profile" "clgrpc-tests/page" "sb-posix"))
  ("tools/command" ("clgrpc-tools/testee" "clgrpc-tests/report" "clgrpc-tests/examples"
                    "clgrpc-tests/etcd" "sb-posix")
   :first ("serve") :name "tools")
  ("tools/load" ("clgrpc-tools/load" "clgrpc/examples" "clgrpc-tests/abuse") :first ("load-run"))
  ("tools/page" ("clgrpc-tools/page"))
  ("tools/report" ("clgrpc-tools/report" "clgrpc-tests/page") :first ("sample"))
  ("tools/manual" ("clgrpc-tools/manual"))
  ("tools/interop" ("clgrpc-tools/testee"))
  ("src/server" ("clgrpc" "clgrpc-tests/world" "sb-bsd-sockets")
   :first ("support" "service" "peer" "script" "plain" "opening" "http1" "server-call")
   :rooms ("http" "limits"))
  ("src/client/config" ("clgrpc/config"))
  ("src/client" ("clgrpc-tests/server" "clgrpc-tests/dns")
   :first ("support" "response" "retry" "resolver") :rooms ("attempts" "naming" "picking" "proxy"))
  ("src/client/balance" ("clgrpc-tests/client") :first ("support"))
  ("src/rpc/topic" ("clgrpc-tests/server") :first ("topic"))
  ("src/client/token" ("clgrpc-tests/server" "sb-bsd-sockets")
   :first ("support" "token-file"))
  ("src/observe/trace" ("clgrpc-tests/client") :first ("trace-context" "observe"))
  ("whole/transports" ("clgrpc-tests/server") :first ("support" "retry"))
  ("src/inproc" ("clgrpc-tests/server"))
  ("src/web" ("clgrpc/rest" "clgrpc-tests/server" "alexandria")
   :first ("support" "frames" "attack") :rooms ("connect" "grpc-json" "grpc-web"))
  ("src/services" ("clgrpc-tests/server" "clgrpc-tests/exchange"))
  ("src/gateway" ("clgrpc-tests/server"))
  ("src/observe/logs" ("clgrpc-tests/client" "sb-posix"))
  ("src/observe/metrics" ("clgrpc/metrics" "clgrpc-tests/client"))
  ("src/observe/channelz" ("clgrpc-tests/server"))
  ("tools/console" ("clgrpc-tools/workflow-console" "clgrpc-etcd/memory" "clgrpc-tests/server"))
  ("sim" ("clgrpc-sim" "clgrpc-tests/server" "clgrpc-tests/dns") :first ("mix" "driver" "network"))
  ("sim/policy" ("clgrpc-tests/sim" "clgrpc-tests/dns" "clgrpc-tests/dialogue")
   :first ("backend" "attempt" "scenario"))
  ("whole/abuse" ("clgrpc-tests/server" "clgrpc-tests/dialogue" "clgrpc-tests/hpack"
                  "clgrpc-tools/testee")
   :first ("watch" "attacker" "victim" "server" "load" "limit" "memory" "peer"))
  ("whole/promise" ("clgrpc-async" "clgrpc-tests/server" "clgrpc-tests/dialogue" "clgrpc/examples")
   :first ("measure") :data ("saving"))
  ("src/observe/otlp" ("clgrpc/otlp" "clgrpc-tests/server" "clgrpc/examples") :first ("collector"))
  ("etcd/client" ("clgrpc-etcd" "clgrpc-etcd/memory" "clgrpc/inproc" "sb-bsd-sockets" "alexandria")
   :first ("server" "stand-in") :name "etcd")
  ("etcd/discovery" ("clgrpc-etcd/discovery" "clgrpc-etcd/memory" "clgrpc-tests/etcd"
                     "clgrpc/examples" "alexandria")
   :first ("host-addresses" "etcd-resolver" "service-watcher"))
  ("etcd/memory" ("clgrpc-etcd/memory" "clgrpc/server" "clgrpc-tests/etcd" "alexandria"))
  ("cluster/authority" ("clgrpc-cluster/authority"))
  ("cluster/raft" ("clgrpc-cluster/raft" "clgrpc" "clgrpc-sim")
   :first ("member"))
  ("cluster/raft-example" ("clgrpc-cluster/raft-example" "clgrpc-sim")
   :first ("platter" "invariant" "linearizability" "raft-group"))
  ("cluster/workflow" ("clgrpc-cluster/workflow" "clgrpc-etcd/memory" "clgrpc-tests/etcd")
   :first ("access" "decision" "service" "worker") :rooms ("decisions" "schedules" "stored"))
  ("cluster/membership" ("clgrpc" "clgrpc-cluster" "clgrpc-tests/etcd")
   :first ("support") :name "cluster")
  ("src/program/command" ("clgrpc/command"))
  ("src/program" ("clgrpc/examples" "sb-bsd-sockets" "sb-posix") :data ("greeter" "late"))
  ("cluster/simulation" ("clgrpc" "clgrpc-cluster" "clgrpc-cluster/workflow" "clgrpc-sim")
   :first ("lab" "workflow"))
  ("sim/record" ("clgrpc-tests/sim" "clgrpc-tests/dialogue" "clgrpc-tests/simulation"
                 "clgrpc-tests/raft-example" "clgrpc-etcd/memory" "clgrpc-etcd/discovery"
                 "clgrpc-tools/testee")
   :first ("transcript"))
  ("cluster/faults" ("clgrpc" "clgrpc-cluster/workflow" "clgrpc-cluster" "clgrpc-etcd/memory"
                     "clgrpc-tests/etcd" "sb-posix")
   :first ("place" "fault" "load" "run")))
