;;;; The traces of seeds, each by the number that stands for it. It differs if one octet on the
;;;; wire, one event or its time does. SIM:WRITE-HISTORY writes the trace of a seed, to be compared
;;;; with that of the former sources.

(in-package #:clgrpc.tests.record)

(test traces-of-seeds
  "Each scenario of scripts/simulate goes, for each seed, as recorded."
  (support:check-record
   'traces-of-seeds
   (with-output-to-string (*standard-output*)
     (loop for (option . scenario) in (acons "--mix" 'sim-tests:run-mix (sim-tests:scenarios))
           do (apply #'sim:run-seeds scenario
                     :count 12
                     :on-seed (lambda (seed simulation)
                                (format t "~A ~D: ~D~%" option seed
                                        (sim:simulation-digest simulation)))
                     sim-tests:*mix-options*)))))
