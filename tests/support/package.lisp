;;;; What tests of several layers share: programs run as peers, the patience to wait for them,
;;;; what FiveAM knows, and what no emulator can do.

(defpackage #:clgrpc.tests.support
  (:use #:cl)
  (:export #:root-file #:certificate-file #:peer-program #:clgrpc-program #:go-absence
           #:program #:program-process #:program-pid #:program-line #:program-exit-code
           #:signal-program
           #:terminate-program #:start-program #:stop-program #:kill-program
           #:call-with-program #:with-program #:run-to-end #:server-address
           #:with-server-program #:set-descriptor-limit #:foreign-octets
           #:suite-tests #:patient-seconds #:exhausting-a-stack #:skip-on-slow-machine))
