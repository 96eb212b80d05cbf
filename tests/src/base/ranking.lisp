;;;; Rankings: whoever has most is known, whatever comes and goes.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(test rings
  (let ((head (make-ring)) (a (make-ring)) (b (make-ring)))
    (is (null (ring-first head)))
    (enter-ring a head)
    (enter-ring b head)
    (is (eq a (ring-first head)))
    (is (eq b (ring-last head)))
    (quit-ring a)
    (quit-ring a)
    (is (eq b (ring-first head)))
    (quit-ring b)
    (is (null (ring-last head)))))

(test rankings-know-who-has-most
  "Against counts of all, with places that come and go at random."
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (*random-state* (sb-ext:seed-random-state seed))
         (ranking (make-ranking))
         (owner-usages (loop for i below 12 collect (make-owner-usage i))))
    (format t "~&; rankings-know-who-has-most: seed ~D~%" seed)
    (is (null (largest-user ranking)))
    (dotimes (i 20000)
      (let ((owner-usage (elt owner-usages (random (1+ (random 12))))))
        (if (and (plusp (owner-usage-count owner-usage)) (< (random 100) 49))
            (change-owner-usage ranking owner-usage -1)
            (change-owner-usage ranking owner-usage 1)))
      (let ((counts (mapcar #'owner-usage-count owner-usages))
            (largest-user (largest-user ranking)))
        (unless (and (= (ranking-total ranking) (reduce #'+ counts))
                     (= (reduce #'max counts) (if largest-user (owner-usage-count largest-user) 0)))
          (fail "step ~D: ~A ~S" i ranking counts)
          (return))))
    (dolist (owner-usage owner-usages)
      (loop while (plusp (owner-usage-count owner-usage)) do
            (change-owner-usage ranking owner-usage -1)))
    (is (null (largest-user ranking)))
    (is (zerop (ranking-total ranking)))))
