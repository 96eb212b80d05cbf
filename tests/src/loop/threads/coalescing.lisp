;;;; Coalescing: no output is forgotten, in every interleaving of a thread that coalesces and one
;;;; that flushes. Its effect on messages is in tests/src/client/flow.lisp.

(in-package #:clgrpc.tests.loop)

(defparameter *gather-places*
  '((clgrpc.loop::driving-coalesced-ns . :coalesced)
    (clgrpc.loop::driving-flusher . :flusher)
    (clgrpc.loop:event-loop-reserve . :reserve)))

(defparameter *gather-stubs*
  '((run-on-reserve (reserve function &key if-busy)
     (declare (ignore function if-busy))
     (when reserve (ask-value :add :flushers 1))
     reserve)
    (clgrpc.loop::driving-of (loop) (declare (ignore loop)) nil)
    (flush-later (loop) (declare (ignore loop)) nil)))

(defparameter *gatherer* '(clgrpc.loop::begin-coalescing loop 7))

(defparameter *flusher* '(when (clgrpc.loop::leave-flushing-p loop) (ask-value :add :flushers -1)))

(defun explore-coalescing (reserve programs &optional (definitions (gather-definitions)))
  "Explore PROGRAMS, which begin with a loop that has a flusher, and RESERVE."
  (explore (list (cons :coalesced 0) (cons :flusher 1) (cons :flushers 1) (cons :reserve reserve))
           (compile-programs definitions
                             '(clgrpc.loop::begin-coalescing clgrpc.loop::leave-flushing-p)
                             *gather-places* *gather-stubs* programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Stuck: ~S ~S" memory done))
             (let ((flushers (place-value memory :flushers)))
               (unless (= flushers (place-value memory :flusher))
                 (error "~D flush: ~S" flushers memory))
               (when (and (zerop flushers) (plusp (place-value memory :coalesced)))
                 (error "Nobody flushes: ~S" memory))))))

(defun gather-definitions ()
  (read-definitions "coalescing"))

(test nothing-coalesced-is-forgotten
  (dolist (reserve '(t nil))
    (let ((complaint (complaint-of
                      (lambda () (explore-coalescing reserve (list *gatherer* *flusher*))))))
      (is (null complaint) "~A" complaint)))
  (dolist (name '(clgrpc.loop::begin-coalescing clgrpc.loop::leave-flushing-p))
    (is-true (complaint-of
              (lambda ()
                (explore-coalescing t (list *gatherer* *flusher*)
                                    (without '(sb-thread:barrier (:memory)) name
                                      (gather-definitions)))))
             "the barrier of ~S is not missed" name)))
