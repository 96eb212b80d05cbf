;;;; The tests as a whole: the runner, and the one test that looks at all sources at once.

(defpackage #:clgrpc.tests
  (:use #:cl)
  (:local-nicknames (#:os #:clgrpc.os) (#:support #:clgrpc.tests.support))
  (:export #:run-suites #:test-system))
