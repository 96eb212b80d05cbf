;;;; What a client counts.

(in-package #:clgrpc.tests.etcd)

(defun figure (metrics name)
  "The number that NAME has in METRICS; of a histogram how many were recorded."
  (let* ((family (find name (metrics:collect metrics) :key #'metrics:family-name :test #'string=))
         (point (and family (first (metrics:family-points family)))))
    (cond ((null point) 0)
          ((eq :histogram (metrics:family-kind family)) (metrics:point-count point))
          (t (metrics:point-value point)))))

(test clients-count
  (with-store (store)
    (let ((metrics (metrics:make-metrics)))
      (etcd:with-etcd (etcd (store-address store) :timeout +patience+ :metrics metrics)
        (etcd:with-etcd (other (store-address store) :timeout +patience+ :metrics metrics)
          (let ((heard 0))
            (etcd:watch etcd (fn (changes _revision) (incf heard (length changes)))
                        :prefix "a/")
            (etcd:transact other :then '((:put "a/1" "x") (:put "a/2" "x")))
            (eventually (= 2 heard))
            (etcd:with-lock (lock other "lock") nil)
            (let ((lease (etcd:grant-lease etcd 10)) (lost nil))
              (etcd:on-lease-loss lease (lambda (condition) (setf lost condition)))
              (clgrpc.etcd::lose-lease lease (make-condition 'etcd:lease-not-found :text "so"))
              (eventually lost))
            (is (= 1 (figure metrics "etcd.client.watch.streams")))
            (is (= 2 (figure metrics "etcd.client.watch.changes")))
            (is (= 1 (figure metrics "etcd.client.lease.losses")))
            (is (= 0 (figure metrics "etcd.client.tokens")))
            (is (= 1 (figure metrics "etcd.client.lock.wait")))
            (is (plusp (figure metrics "grpc.client.call.duration")))))))))
