(in-package #:clgrpc.tests.tools)

(test every-manner-calls
  (with-offer (channel "bench")
    (dolist (manner '(:one :threads :async))
      (flet ((calls ()
               (load:histogram-count (testee::call-in-manner-until
                                      manner (+ (tools::monotonic-ns) 20000000) channel 7))))
        ;; on a busy machine a thread may begin when the time is over
        (is-true (wait-until (lambda () (plusp (calls)))) "~(~A~)" manner)))))
