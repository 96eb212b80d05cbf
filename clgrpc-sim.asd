;;;; The simulator: servers and clients as they are on a virtual network and clock, for the tests of
;;;; users too.

(defsystem "clgrpc-sim"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "Servers and clients as they are on a virtual network and clock, from a seed."
  :depends-on ("clgrpc")
  :pathname "sim/"
  :serial t
  :components ((:file "package") (:file "chance") (:file "event-queue") (:file "history")
               (:file "simulation-structure") (:file "network") (:file "schedule")
               (:file "virtual-datagram") (:file "simulation") (:file "fault") (:file "peer")
               (:file "seed"))
  :in-order-to ((test-op (test-op "clgrpc-tests/sim" "clgrpc-tests/policy" "clgrpc-tests/fuzz"))))
