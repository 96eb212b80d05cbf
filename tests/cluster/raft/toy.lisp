;;;; The example examples/raft-toy.

(in-package #:clgrpc.tests.raft)
(in-suite :clgrpc.raft)

(test the-toy-shows-the-calls
  (is (equal '("A stands for election: it leads"
               "three entries, committed up to 3"
               "C has one, two, three"
               "C has lost its memory; it has 0 entries"
               "not as far as A: C"
               "after a snapshot C has one, two, three"
               "B was told to stand for election: it leads"
               "another entry, committed up to 4"
               "A has one, two, three, four")
             (uiop:split-string
              (string-right-trim '(#\Newline)
                                 (with-output-to-string (*standard-output*) (toy:show)))
              :separator '(#\Newline)))))
