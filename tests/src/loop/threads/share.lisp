;;;; Shares: who comes last finds something free, what waits is served in turn, and the sums hold.

(in-package #:clgrpc.tests.loop)

(defun make-shares (count &key whole (weight 1))
  (loop repeat count collect (make-share :whole whole :weight weight)))

(defun fill-share (share total)
  "Run functions of SHARE, of a reserve of TOTAL threads, until it may have no more; return how many
it has then."
  (let ((root (loop for part = share then (clgrpc.loop::share-whole part)
                    unless (clgrpc.loop::share-whole part) return part)))
    (loop while (clgrpc.loop::may-have-p share #'share-running (- total (share-running root)))
          do (clgrpc.loop::note-running share 1)))
  (share-running share))

(test shares-leave-something-free
  (let ((root (make-share)))
    (is (= 121 (fill-share (make-share :whole root) 240)))
    (is (= 60 (fill-share (make-share :whole root) 240)))
    (is (equal '(30 15 8 4 2 0 0) (mapcar (lambda (share) (fill-share share 240))
                                          (make-shares 7 :whole root)))))
  (is (= 1 (fill-share (make-share :whole (make-share)) 1)) "a single thread is not kept")
  (is (= 1 (fill-share (make-share :whole (make-share) :weight 4 :kept 60) 20))
      "one is to be had though all are kept"))

(test shares-of-one-after-another
  "Each takes all it may and gives nothing back; whoever comes finds one thread, and a peer leaves
some to others however many connections it has."
  (let* ((root (make-share))
         (peer (make-share :whole root :weight 7 :kept 15))
         (other (make-share :whole root :weight 7 :kept 15)))
    (flet ((fill-one (whole) (fill-share (make-share :whole whole :weight 4 :kept 60) 240)))
      (is (= 110 (fill-one peer)))
      (loop repeat 60 do (is (<= 1 (fill-one peer) 23)))
      (loop repeat 1000 do (fill-one peer))
      (is (<= 195 (share-running peer) 200) "~D" (share-running peer))
      (is (<= 1 (fill-one other)))
      (loop repeat 10 do (is (= 1 (fill-one other)))))))

(defun serve-all (root free)
  "What of ROOT's is to run while so many threads are FREE, as they were queued, in its order."
  (loop for (function share) = (multiple-value-list (clgrpc.loop::dequeue-function root free))
        while function
        collect (funcall function)
        do (is-true share)))

(test shares-are-served-in-turn
  (let* ((root (make-share)) (peers (make-shares 2 :whole root))
         (one (make-share :whole (first peers))) (two (make-share :whole (first peers)))
         (three (make-share :whole (second peers))))
    (flet ((enqueue (share &rest names)
             (dolist (name names) (clgrpc.loop::enqueue-function share (constantly name)))))
      (enqueue one 1 2 3 4)
      (enqueue two 5)
      (enqueue three 6 7)
      (enqueue root 8)
      (is (equal '(1 6 8 5 7 2 3 4) (serve-all root 1)))
      (is (equal '(0 0 0) (mapcar #'clgrpc.loop::share-waiting (list root one three))))
      (enqueue one 1 2)
      (enqueue two 3)
      (enqueue root 4)
      (is (equal '(4) (serve-all root 0)) "shares get nothing where nothing is free")
      (clgrpc.loop::clear-share one)
      (enqueue one 9)
      (is (equal '(3 9) (sort (serve-all root 1) #'<)) "what was forgotten is not run"))))

(test functions-that-are-withdrawn-leave-their-places
  (let* ((root (make-share)) (one (make-share :whole root))
         (functions (loop for i below 3 collect (let ((i i)) (lambda () i)))))
    (flet ((waiting () (mapcar #'clgrpc.loop::share-waiting (list root one))))
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

(test shares-keep-their-sums
  "Whatever begins, waits, ends and leaves, in any order: nothing waits that may run, and parts make
their whole."
  (let ((seed (random (expt 2 32) (make-random-state t))))
    (format t "~&; shares-keep-their-sums: seed ~D~%" seed)
    (let* ((*random-state* (sb-ext:seed-random-state seed))
           (total 12) (root (make-share)) (running '())
           (peers (make-shares 4 :whole root :weight 3))
           (shares (loop for peer in peers append (make-shares 3 :whole peer))))
      (labels ((free () (- total (share-running root)))
               (begin (share) (clgrpc.loop::note-running share 1) (push share running))
               (serve ()
                 (loop for (function share) = (multiple-value-list
                                               (clgrpc.loop::dequeue-function root (free)))
                       while function
                       do (begin share)))
               (may-run-p (share)
                 (clgrpc.loop::may-have-p share #'share-running (free))))
        (dotimes (i 20000)
          (let ((share (elt shares (random (length shares)))))
            (ecase (random 3)
              (0 (if (may-run-p share)
                     (begin share)
                     (clgrpc.loop::enqueue-function share #'list)))
              (1 (when running
                   (let ((ended (elt running (random (length running)))))
                     (setf running (delete ended running :count 1))
                     (clgrpc.loop::note-running ended -1))
                   (serve)))
              (2 (when (zerop (random 20)) (clgrpc.loop::clear-share share)))))
          (unless (and (<= (share-running root) total)
                       (= (share-running root) (length running)
                          (reduce #'+ peers :key #'share-running))
                       (= (clgrpc.loop::share-waiting root)
                          (reduce #'+ shares :key #'clgrpc.loop::share-waiting))
                       (notany (lambda (share)
                                 (and (plusp (clgrpc.loop::share-waiting share))
                                      (may-run-p share)))
                               shares))
            (fail "step ~D: ~A ~S" i root shares)
            (return)))
        (is (<= (share-running root) total))))))
