;;;; The consequences of a failed export.

(in-package #:clgrpc.tests.otlp)

(defun retry-info (seconds)
  "A list of the detail with the delay."
  (list (if seconds
            (google.rpc:make-retry-info
             :retry-delay (clgrpc.protobuf:seconds-duration seconds))
            (google.rpc:make-retry-info))))

(defun failure (status &optional details)
  (grpc:make-rpc-error status :message "no" :details details))

(test statuses-that-may-pass
  (dolist (row '((:cancelled t) (:deadline-exceeded t) (:aborted t) (:out-of-range t)
                 (:unavailable t) (:data-loss t) (:unknown nil) (:invalid-argument nil)
                 (:not-found nil) (:already-exists nil) (:permission-denied nil)
                 (:unauthenticated nil) (:failed-precondition nil) (:unimplemented nil)
                 (:internal nil) (:resource-exhausted nil)))
    (destructuring-bind (status retryable) row
      (is (eq retryable (otlp::retryable-p (failure status))) "~S" status)))
  (is-true (otlp::retryable-p (failure :resource-exhausted (retry-info 1))))
  (is-true (otlp::retryable-p (failure :resource-exhausted (retry-info nil))))
  (is-false (otlp::retryable-p (failure :internal (retry-info 1)))))

(test delays-grow-or-are-told
  (let ((random (sb-ext:seed-random-state 1)))
    (flet ((delay (details failures)
             (otlp::delay-after (failure :unavailable details) failures random)))
      (is (= 7 (delay (retry-info 7) 1)))
      (is (= 1/2 (delay (retry-info 1/2) 9)))
      (is (= 1/10 (delay (retry-info 1/10) 1)))
      (is (= 1/10 (delay (retry-info 1/1000000000) 1)) "a collector cannot prevent a pause")
      (is (= 300 (delay (retry-info 1000000) 1)) "a collector cannot silence us for long")
      (loop for (failures longest) in '((1 1) (2 2) (3 4) (5 16) (6 30) (100000 30))
            do (dolist (details (list nil (retry-info nil) (retry-info 0)))
                 (let ((delay (delay details failures)))
                   (is (<= (/ longest 2) delay longest) "~D failures: ~F s" failures delay)))))))
