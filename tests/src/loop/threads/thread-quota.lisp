;;;; Quotas: the last owner finds a free thread, functions wait in turn, and the sums are right.

(in-package #:clgrpc.tests.loop)

(defun make-quotas (count &key parent (weight 1))
  (loop repeat count collect (make-quota :parent parent :weight weight)))

(defun fill-quota (quota total)
  "Run functions of QUOTA, of a reserve of TOTAL threads, until it may have no more; return their
number."
  (let ((root (loop for part = quota then (clgrpc.loop::quota-parent part)
                    unless (clgrpc.loop::quota-parent part) return part)))
    (loop while (clgrpc.loop::may-have-p quota #'quota-running (- total (quota-running root)))
          do (clgrpc.loop::note-running quota 1)))
  (quota-running quota))

(test quotas-leave-something-free
  (let ((root (make-quota)))
    (is (= 121 (fill-quota (make-quota :parent root) 240)))
    (is (= 60 (fill-quota (make-quota :parent root) 240)))
    (is (equal '(30 15 8 4 2 0 0) (mapcar (lambda (quota) (fill-quota quota 240))
                                          (make-quotas 7 :parent root)))))
  (is (= 1 (fill-quota (make-quota :parent (make-quota)) 1)) "a single thread is not kept")
  (is (= 1 (fill-quota (make-quota :parent (make-quota) :weight 4 :kept 60) 20))
      "a thread is available though all are kept"))

(test quotas-of-one-after-another
  "Each quota takes all that it may and releases nothing; each new quota finds one thread, and a
peer leaves some to others however many connections it has."
  (let* ((root (make-quota))
         (peer (make-quota :parent root :weight 7 :kept 15))
         (other (make-quota :parent root :weight 7 :kept 15)))
    (flet ((fill-one (parent) (fill-quota (make-quota :parent parent :weight 4 :kept 60) 240)))
      (is (= 110 (fill-one peer)))
      (loop repeat 60 do (is (<= 1 (fill-one peer) 23)))
      (loop repeat 1000 do (fill-one peer))
      (is (<= 195 (quota-running peer) 200) "~D" (quota-running peer))
      (is (<= 1 (fill-one other)))
      (loop repeat 10 do (is (= 1 (fill-one other)))))))

(defun serve-all (root free)
  "The functions of ROOT that run while FREE threads are free, in the order of its queue."
  (loop for (function quota) = (multiple-value-list (clgrpc.loop::dequeue-function root free))
        while function
        collect (funcall function)
        do (is-true quota)))

(test quotas-are-served-in-turn
  (let* ((root (make-quota)) (peers (make-quotas 2 :parent root))
         (one (make-quota :parent (first peers))) (two (make-quota :parent (first peers)))
         (three (make-quota :parent (second peers))))
    (flet ((enqueue (quota &rest names)
             (dolist (name names) (clgrpc.loop::enqueue-function quota (constantly name)))))
      (enqueue one 1 2 3 4)
      (enqueue two 5)
      (enqueue three 6 7)
      (enqueue root 8)
      (is (equal '(1 6 8 5 7 2 3 4) (serve-all root 1)))
      (is (equal '(0 0 0) (mapcar #'clgrpc.loop::quota-waiting (list root one three))))
      (enqueue one 1 2)
      (enqueue two 3)
      (enqueue root 4)
      (is (equal '(4) (serve-all root 0)) "quotas get no thread when none is free")
      (clgrpc.loop::clear-quota one)
      (enqueue one 9)
      (is (equal '(3 9) (sort (serve-all root 1) #'<)) "forgotten functions are not run"))))

(test functions-that-are-withdrawn-leave-their-places
  (let* ((root (make-quota)) (one (make-quota :parent root))
         (functions (loop for i below 3 collect (let ((i i)) (lambda () i)))))
    (flet ((waiting () (mapcar #'clgrpc.loop::quota-waiting (list root one))))
      (dolist (function functions) (clgrpc.loop::enqueue-function one function))
      (clgrpc.loop::withdraw-function one (second functions))
      (clgrpc.loop::withdraw-function one (second functions))
      (is (equal '(2 2) (waiting)))
      (is (eq (first functions) (clgrpc.loop::dequeue-function root 1)))
      (clgrpc.loop::withdraw-function one (first functions))
      (is (equal '(1 1) (waiting)))
      (clgrpc.loop::withdraw-function one (third functions))
      (is (equal '(0 0) (waiting)))
      (is (null (clgrpc.loop::dequeue-function root 1)))
      (clgrpc.loop::enqueue-function one (first functions))
      (is (eq (first functions) (clgrpc.loop::dequeue-function root 1))))))

(test quotas-keep-their-sums
  "Functions begin, wait, end and leave in any order: none waits that may run, and the parts' sum is
the whole."
  (let ((seed (random (expt 2 32) (make-random-state t))))
    (format t "~&; quotas-keep-their-sums: seed ~D~%" seed)
    (let* ((*random-state* (sb-ext:seed-random-state seed))
           (total 12) (root (make-quota)) (running '())
           (peers (make-quotas 4 :parent root :weight 3))
           (quotas (loop for peer in peers append (make-quotas 3 :parent peer))))
      (labels ((free () (- total (quota-running root)))
               (begin (quota) (clgrpc.loop::note-running quota 1) (push quota running))
               (serve ()
                 (loop for (function quota) = (multiple-value-list
                                               (clgrpc.loop::dequeue-function root (free)))
                       while function
                       do (begin quota)))
               (may-run-p (quota)
                 (clgrpc.loop::may-have-p quota #'quota-running (free))))
        (dotimes (i 20000)
          (let ((quota (elt quotas (random (length quotas)))))
            (ecase (random 3)
              (0 (if (may-run-p quota)
                     (begin quota)
                     (clgrpc.loop::enqueue-function quota #'list)))
              (1 (when running
                   (let ((ended (elt running (random (length running)))))
                     (setf running (delete ended running :count 1))
                     (clgrpc.loop::note-running ended -1))
                   (serve)))
              (2 (when (zerop (random 20)) (clgrpc.loop::clear-quota quota)))))
          (unless (and (<= (quota-running root) total)
                       (= (quota-running root) (length running)
                          (reduce #'+ peers :key #'quota-running))
                       (= (clgrpc.loop::quota-waiting root)
                          (reduce #'+ quotas :key #'clgrpc.loop::quota-waiting))
                       (notany (lambda (quota)
                                 (and (plusp (clgrpc.loop::quota-waiting quota))
                                      (may-run-p quota)))
                               quotas))
            (fail "step ~D: ~A ~S" i root quotas)
            (return)))
        (is (<= (quota-running root) total))))))
