(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test every-manner-calls
  (with-offer (channel "bench")
    (dolist (manner '(:one :threads :async))
      (let ((latencies (testee::call-in-manner-until
                        manner (+ (tools::monotonic-ns) 20000000) channel 7)))
        (is (plusp (load:histogram-count latencies)) "~(~A~)" manner)))))
