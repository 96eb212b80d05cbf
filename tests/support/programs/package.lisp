;;;; What tests of several layers share: programs run as peers, the patience to wait for them,
;;;; what FiveAM knows, and how a test ends that cannot be run here.

(defpackage #:clgrpc.tests.form
  (:use #:cl #:fiveam)
  (:shadow #:test #:in-suite)
  (:export #:test #:in-suite #:with-replaced #:with-changed #:with-logged #:with-signalled
           #:fn #:in-thread)
  (:documentation "FiveAM, with a TEST whose body is compiled with its file, in the suite of its
package."))

(do-external-symbols (symbol '#:fiveam)
  (unless (member symbol '(fiveam:test fiveam:in-suite))
    (export symbol '#:clgrpc.tests.form)))

(defpackage #:clgrpc.tests.support
  (:use #:cl)
  (:export #:root-file #:with-folder #:system-sources #:certificate-file #:install-certificate
           #:clgrpc-program #:testee-program
           #:program-path
           #:need-program #:go-absence #:need-peer #:need-web-clients #:look-with-browser
           #:skip-test
           #:program #:program-process #:program-pid #:program-line #:program-exit-code
           #:signal-program
           #:terminate-program #:start-program #:stop-program #:kill-program
           #:call-with-program #:with-program #:run-to-end #:server-address
           #:with-server-program #:call-with-service-manager
           #:set-descriptor-limit #:foreign-octets
           #:suite-tests #:test-name #:suite-p #:failed-check-p #:skipped-check-p #:check-reason
           #:test-layer #:tests-failed #:tests-failed-suites
           #:at-length #:patient-seconds #:wait-until #:eventually #:exhausting-a-stack
           #:skip-on-slow-machine
           #:lockless #:interrupt-again-and-again #:interrupt-at-each-call
           #:walk-octets #:unprintable
           #:check-record #:call-outcomes #:renew-records #:replaced
           #:make-socket #:close-socket #:connect-socket #:with-silent-listener
           #:call-with-served-sockets #:with-served-sockets)
  ;; for other tests
  (:export #:layer-suites))
