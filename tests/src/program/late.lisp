;;;; A program whose end takes too long; run by the tests.

(asdf:load-system "clgrpc")
(setf clgrpc:*log-function* (clgrpc:log-writer :level :info))
(clgrpc.program:call-with-ending
 (lambda (ending)
   (setf (clgrpc.program:ending-seconds ending) 0)
   (clgrpc.program:end ending)
   (clgrpc.program:await-end ending)
   (loop (sleep 1))))
