;;;; The lines that a program prints about its telemetry.

(in-package #:clgrpc.tests.program)

(test lines-say-what-is-recorded-and-where-it-goes
  (loop for (sample collector . lines)
          in '((nil nil)
               (0.5 nil "recording 0.5 of the traces that begin here, for the log only")
               (nil "c:1" "recording 1.0 of the traces that begin here"
                "exporting metrics and spans to c:1")
               (0 "c:1" "recording 0.0 of the traces that begin here"
                "exporting metrics and spans to c:1"))
        do (is (equal lines (program::telemetry-lines sample collector)) "~S ~S" sample collector)))

(test the-share-of-recorded-traces-is-as-asked
  "All with only a collector, none with neither; without a collector one span waits."
  (flet ((recorded (sample collector)
           (let ((tracing (program::make-tracing-as-asked sample collector)))
             (and tracing
                  (progn (dotimes (i 1000) (grpc:with-span ("work" :tracing tracing) nil))
                         (+ (clgrpc.trace:spans-waiting tracing)
                            (clgrpc.trace:spans-dropped tracing)))))))
    (is (null (recorded nil nil)))
    (is (= 0 (recorded 0 nil) (recorded 0 "c:1")))
    (is (= 1000 (recorded nil "c:1") (recorded 1 "c:1") (recorded 1 nil)))
    (is (< 350 (recorded 1/2 "c:1") 650) "nine deviations"))
  (is (= 1 (let ((tracing (program::make-tracing-as-asked 1 nil)))
             (dotimes (i 3) (grpc:with-span ("work" :tracing tracing) nil))
             (clgrpc.trace:spans-waiting tracing)))))
