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
