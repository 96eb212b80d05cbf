;;;; cl-async's verbs on the event loop of clgrpc, and examples of them.

(defsystem "clgrpc-async"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "cl-async's verbs on the event loop, for its users."
  :depends-on ("clgrpc/loop")
  :pathname "async/"
  :serial t
  :components ((:file "package") (:file "socket-condition") (:file "async-structure")
               (:file "handle") (:file "event") (:file "user-watch") (:file "dns")
               (:file "user-socket") (:file "socket-stream") (:file "tcp-server")
               (:file "program"))
  :in-order-to ((test-op (test-op "clgrpc-tests/async"))))

(defsystem "clgrpc-async/examples"
  :description "What users of the event loop alone write."
  :depends-on ("clgrpc-async")
  :pathname "examples/async/"
  :serial t
  :components ((:file "delayed-answer") (:file "echo-server") (:file "chat-server")
               (:file "proxy")))
