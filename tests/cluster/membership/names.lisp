;;;; What users of clusters find in one package.

(in-package #:clgrpc.tests.cluster)
(in-suite :clgrpc.cluster)

(test one-package-has-all
  (dolist (package '(#:clgrpc.discovery #:clgrpc.raft #:clgrpc.workflow))
    (let ((missing (loop for symbol being the external-symbols of package
                         unless (multiple-value-bind (found status)
                                    (find-symbol (symbol-name symbol) '#:clgrpc.cluster)
                                  (and (eq symbol found) (eq :external status)))
                           collect symbol)))
      (is (null missing) "~S are no names of clusters" missing))))
