;;;; Rankings: the owner with the most places is known, whatever comes and goes.

(in-package #:clgrpc.tests.server)

(test rankings-know-who-has-most
  "Compared with plain counts, while places are taken and released at random."
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (*random-state* (sb-ext:seed-random-state seed))
         (ranking (server::make-ranking))
         (owner-usages (loop for i below 12 collect (server::make-owner-usage i))))
    (format t "~&; rankings-know-who-has-most: seed ~D~%" seed)
    (is (null (server::largest-user ranking)))
    (dotimes (i 20000)
      (let ((owner-usage (elt owner-usages (random (1+ (random 12))))))
        (if (and (plusp (server::owner-usage-count owner-usage)) (< (random 100) 49))
            (server::change-owner-usage ranking owner-usage -1)
            (server::change-owner-usage ranking owner-usage 1)))
      (let ((counts (mapcar #'server::owner-usage-count owner-usages))
            (largest-user (server::largest-user ranking)))
        (unless (and (= (server::ranking-total ranking) (reduce #'+ counts))
                     (= (reduce #'max counts)
                        (if largest-user (server::owner-usage-count largest-user) 0)))
          (fail "step ~D: ~A ~S" i ranking counts)
          (return))))
    (dolist (owner-usage owner-usages)
      (loop while (plusp (server::owner-usage-count owner-usage)) do
            (server::change-owner-usage ranking owner-usage -1)))
    (is (null (server::largest-user ranking)))
    (is (zerop (server::ranking-total ranking)))))

(test rankings-keep-no-empty-rows
  "An owner with a thousand places does not leave a row for each number that it had."
  (let ((ranking (server::make-ranking)) (owner-usage (server::make-owner-usage 0)))
    (loop repeat 1000 do (server::change-owner-usage ranking owner-usage 1))
    (is (= 1 (count-if-not #'null (server::ranking-rows ranking))))
    (loop repeat 1000 do (server::change-owner-usage ranking owner-usage -1))
    (is (every #'null (server::ranking-rows ranking)))))
