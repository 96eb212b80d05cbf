;;;; The traces of seeds: of each how many events it has, when the last one happens, and the number
;;;; that stands for it, which differs if one octet on the wire, one event or its time does.
;;;; SIM:WRITE-HISTORY writes the trace of a seed, to be compared with that of the former sources.

(in-package #:clgrpc.tests.record)

(defun call-with-user-agent (text function)
  "Call FUNCTION while channels send TEXT as the field user-agent, not the version of clgrpc."
  (with-changed ((client::**user-agent** (hpack:string-field "user-agent" text)))
    (funcall function)))

(defun trace-text (simulation)
  "The number of events in SIMULATION, the seconds until the last one, and the digest of all."
  (let* ((entries (sim::history-entries (sim::simulation-history simulation)))
         (last (aref entries (1- (length entries)))))
    (format nil "~D events in ~,6F s, ~D" (length entries)
            (ns-seconds (- (sim::entry-ns last) (* 1000 +ns-per-second+)))
            (sim:simulation-digest simulation))))

(test traces-of-seeds
  "Each scenario of scripts/simulate goes, for each seed, as recorded."
  (support:check-record
   'traces-of-seeds
   (with-output-to-string (*standard-output*)
     (call-with-user-agent
      "test"
      (lambda ()
        (loop for (option . scenario) in (acons "--mix" 'sim-tests:run-mix (sim-tests:scenarios))
              do (apply #'sim:run-seeds scenario
                        :count 12
                        :on-seed (lambda (seed simulation)
                                   (format t "~A ~D: ~A~%" option seed (trace-text simulation)))
                        sim-tests:*mix-options*)))))))
