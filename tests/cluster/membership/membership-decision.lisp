;;;; What is decided about memberships, without a store.

(in-package #:clgrpc.tests.cluster)

(test joins-are-decided
  "Who may join where there is somebody of the name already."
  (flet ((decided (existing if-taken &key (instance "") (known 0))
           (cluster::decide-join (and existing
                                      (member-of "a" :generation (first existing)
                                                     :instance (second existing)))
                                 (member-of "a" :instance instance) if-taken known)))
    (is (eq :enter (decided nil :take-over)))
    (is (eq :enter (decided nil :refuse)))
    (is (eq :enter (decided '(5 "") :take-over)))
    (is (eq :taken (decided '(5 "") :refuse)))
    ;; without a name of its own a process is nobody's self
    (is (eq :taken (decided '(5 "") :refuse :instance "")))
    (is (eq :same (decided '(5 "x") :refuse :instance "x")))
    (is (eq :same (decided '(5 "x") :take-over :instance "x")))
    (is (eq :taken (decided '(5 "y") :refuse :instance "x")))
    ;; it was a member before
    (is (eq :enter (decided '(5 "x") :refuse :instance "x" :known 5)))
    (is (eq :enter (decided '(6 "x") :refuse :instance "x" :known 5)))
    (is (eq :superseded (decided '(6 "y") :take-over :instance "x" :known 5)))
    (is (eq :superseded (decided '(6 "y") :refuse :instance "x" :known 5)))
    (is (eq :enter (decided nil :refuse :instance "x" :known 5)))))

(test generations-only-grow
  "Also behind a store that has gone back to lower revisions."
  (flet ((next (revision existing known)
           (cluster::next-generation revision
                                     (and existing (member-of "a" :generation existing)) known)))
    (is (= 11 (next 10 nil 0)))
    (is (= 11 (next 10 5 7)))
    (is (= 21 (next 10 20 0)))
    (is (= 31 (next 10 20 30)))))

(test lives-are-told-apart
  "Only the generation that is there is alive."
  (let ((existing (member-of "a" :generation 5)))
    (is (eq :alive (cluster::decide-life existing 5)))
    (is (eq :superseded (cluster::decide-life existing 4)))
    (is (eq :superseded (cluster::decide-life existing 0)))
    (is (eq :gone (cluster::decide-life nil 5)))
    (signals not-a-member (cluster::require-life nil "a" 5))
    (signals superseded (cluster::require-life existing "a" 4))
    (is (eq existing (cluster::require-life existing "a" 5)))))
