;;;; Counts of calls.

(in-package #:clgrpc.tests.inproc)

(test many-callers
  "Threads that call at once; every call is counted."
  (with-inproc (channel :server server) (:ask #'double)
    (let ((wrong (call-with-threads
                  20 (lambda (i)
                       (loop repeat 500
                             count (/= (* 2 i) (number-of (ask channel (note i)))))))))
      (is (every #'zerop wrong))
      (is (= 10000 (getf (grpc:server-statistics server) :calls))))))

(test tallies
  "Each thread counts at a place of its own; the sums are over all places."
  (let ((tally (inproc::make-tally)))
    (call-with-threads 4 (fn (_i)
                           (loop repeat 100 do (inproc::count-begun tally))
                           (loop repeat 60 do (inproc::count-ended tally))))
    (is (= 240 (inproc::tally-ended tally)))
    (is (= 160 (inproc::tally-open tally)))))
