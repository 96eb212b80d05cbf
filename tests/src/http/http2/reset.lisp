;;;; See src/http/http2/reset.lisp.

(in-package #:clgrpc.tests.http2)

(test resets-that-are-forgotten
  "The memory of resets is bounded; below the newest forgotten one everything counts as reset."
  (let ((connection (end-connection (connect-end :server))))
    (setf (h2::connection-highest-id connection) 100001)
    (loop for id from 1 to 9999 by 2 do (h2::remember-reset connection id))
    (is (= 1024 (length (h2::connection-resets connection))))
    (is (= h2::+reset+ (h2::absent-state connection 1)))
    (is (= h2::+reset+ (h2::absent-state connection 9999)))
    (is (= h2::+closed+ (h2::absent-state connection 10001)))
    (is (= h2::+idle+ (h2::absent-state connection 100003)))
    (is (= h2::+idle+ (h2::absent-state connection 2)))))

(test a-stream-reset-before-its-headers-leaves-no-gap
  "The peer does not know it, so the next stream has its identifier, and nothing is sent."
  (let* ((end (connect-end :client)) (connection (end-connection end)))
    (take-output end)
    (let ((stream (h2:open-stream connection)))
      (is (= 1 (h2:stream-id stream)))
      (h2:reset-stream stream h2:+cancel+)
      (is (= 0 (length (take-output end))))
      (is (= h2::+idle+ (h2::absent-state connection 1))))
    (let ((stream (h2:open-stream connection)))
      (is (= 1 (h2:stream-id stream)))
      (send-headers stream *request-fields* t)
      (is (= 3 (h2:stream-id (h2:open-stream connection)))))))

(test resets-are-known-in-any-order
  (with-random (resets-are-known-in-any-order)
    (let ((connection (end-connection (connect-end :server))) (known '()))
      (setf (h2::connection-highest-id connection) 100001)
      (loop repeat 3000
            for id = (1+ (* 2 (random 20000)))
            do (h2::remember-reset connection id)
               (push id known))
      (let ((forgotten (h2::connection-reset-forgotten connection)))
        (is (plusp forgotten))
        (is (= 1024 (count-if (lambda (id) (> id forgotten)) (remove-duplicates known))))
        (is (loop for id from 1 to 40001 by 2
                  always (eq (or (<= id forgotten) (and (member id known) t))
                             (= h2::+reset+ (h2::absent-state connection id)))))))))
