;;;; The log of a server's refusals is short, however many there are.

(in-package #:clgrpc.tests.server)

(defun refusals-told ()
  (mapcar (lambda (event) (getf event :what)) (events-of :refused)))

(test refusals-are-told-once-a-second
  "The first is logged at once, the refusals of the next second together."
  (with-server-loop (server-loop) (:ask #'double)
    (flet ((refuse (option peer &optional (count 1))
             (memory:call-in-world memory:*world*
                                   (lambda ()
                                     (dotimes (i count)
                                              (server::complain server-loop option peer))))))
      (refuse :max-calls "a")
      (is (equal '("1 of a (max-calls)") (refusals-told)))
      (refuse :max-calls "a" 1000)
      (refuse :max-handshakes "b" 2)
      (is (= 1 (length (refusals-told))))
      (memory:passes 0.9)
      (is (= 1 (length (refusals-told))))
      (memory:passes 0.2)
      (is (equal "1000 of a (max-calls), 2 of b (max-handshakes)" (first (refusals-told))))
      (memory:passes 10)
      (is (= 2 (length (refusals-told))))
      (refuse :max-calls "c")
      (is (equal "1 of c (max-calls)" (first (refusals-told)))))))

(test refusals-of-many-peers
  "If there are more peers than a line has room for, the first stands for all."
  (let ((refusals (server::make-refusals)))
    (dotimes (i 100)
      (server::count-refusal refusals :max-calls (format nil "peer ~D" i)))
    (let ((counts (server::refusals-counts refusals)))
      (is (= server::+refusals-told+ (length counts)))
      (is (= 100 (reduce #'+ counts :key #'third)))
      (is (string= "several" (second (first counts)))))
    (is (search "several" (princ-to-string refusals)))))
