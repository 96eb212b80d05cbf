;;;; Ids differ, none is zero, and a loop's ids repeat with its random state.

(in-package #:clgrpc.tests.trace)

(test ids-differ-and-repeat-by-seed
  (flet ((some-ids (seed count)
           (let ((ids (trace::make-ids seed)))
             (loop repeat count collect (trace::next-id ids nil)))))
    (let ((ids (some-ids 5 10000)))
      (is (= 10000 (length (remove-duplicates ids))))
      (is (notany #'zerop ids))
      (is (equal ids (some-ids 5 10000)))
      (is (null (intersection ids (some-ids 6 10000))))
      ;; each bit is as often 1 as 0
      (is (loop for bit below 64
                always (< 4700 (count-if (lambda (id) (logbitp bit id)) ids) 5300))))))

(test threads-share-a-source-of-ids
  (let ((ids (trace::make-ids 1)) (lists (list '())))
    (call-with-threads 4 (fn (_number)
                           (let ((mine (loop repeat 5000 collect (trace::next-id ids t))))
                             (sb-ext:atomic-push mine (car lists)))))
    (is (= 20000 (length (remove-duplicates (reduce #'append (car lists))))))))
