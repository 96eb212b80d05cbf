;;;; Gathering: that no output is forgotten, in every interleaving of who gathers and who sweeps.
;;;; What it does to messages is in tests/src/client/flow.lisp.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

(defparameter *gather-places*
  '((clgrpc.loop::driving-gathered-ns . :gathered)
    (clgrpc.loop::driving-sweeper . :sweeper)
    (clgrpc.loop:event-loop-reserve . :reserve)))

(defparameter *gather-stubs*
  '((run-on-reserve (reserve function &key if-busy)
     (declare (ignore function if-busy))
     (when reserve (ask-value :add :sweepers 1))
     reserve)
    (clgrpc.loop::driving-of (loop) (declare (ignore loop)) nil)
    (sweep (loop) (declare (ignore loop)) nil)))

(defparameter *gatherer* '(clgrpc.loop::begin-gathering loop 7))

(defparameter *sweeper* '(when (clgrpc.loop::leave-sweeping-p loop) (ask-value :add :sweepers -1)))

(defun explore-gathering (reserve programs &optional (definitions (gather-definitions)))
  "Explore PROGRAMS from a loop that has a sweeper, and RESERVE."
  (explore (list (cons :gathered 0) (cons :sweeper 1) (cons :sweepers 1) (cons :reserve reserve))
           (compile-programs definitions
                             '(clgrpc.loop::begin-gathering clgrpc.loop::leave-sweeping-p)
                             *gather-places* *gather-stubs* programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Stuck: ~S ~S" memory done))
             (let ((sweepers (place-value memory :sweepers)))
               (unless (= sweepers (place-value memory :sweeper))
                 (error "~D sweep: ~S" sweepers memory))
               (when (and (zerop sweepers) (plusp (place-value memory :gathered)))
                 (error "Nobody sweeps: ~S" memory))))))

(defun gather-definitions ()
  (read-definitions "gathering"))

(test nothing-gathered-is-forgotten
  (dolist (reserve '(t nil))
    (let ((complaint (complaint-of
                      (lambda () (explore-gathering reserve (list *gatherer* *sweeper*))))))
      (is (null complaint) "~A" complaint)))
  (dolist (name '(clgrpc.loop::begin-gathering clgrpc.loop::leave-sweeping-p))
    (is-true (complaint-of
              (lambda ()
                (explore-gathering t (list *gatherer* *sweeper*)
                                   (without '(sb-thread:barrier (:memory)) name
                                     (gather-definitions)))))
             "the barrier of ~S is not missed" name)))
