;;;; What is counted of discovery.

(in-package #:clgrpc.tests.discovery)

(defun points (metrics name)
  "The points of the instrument NAME of METRICS: a list of (value attribute…), sorted by text."
  (let ((family (find name (metrics:collect metrics) :key #'metrics:family-name :test #'string=)))
    (sort (loop for point in (and family (metrics:family-points family))
                collect (cons (metrics:point-value point)
                              (mapcar #'cdr (metrics:point-attributes point))))
          #'string< :key #'prin1-to-string)))

(defmacro with-counted-memory ((engine metrics) &body body)
  "Evaluate BODY with ENGINE a store in memory, whose client *ETCD* has METRICS."
  `(with-memory (,engine)
     (let ((,metrics (metrics:make-metrics)))
       (etcd:with-etcd (*etcd* nil :channel (clgrpc.inproc:service-channel ,engine)
                                   :metrics ,metrics)
         ,@body))))

(test names-are-counted
  "How many servers a name has, what has changed, and what was none; and how long ago etcd was heard
of."
  (with-counted-memory (engine metrics)
    (with-servers (servers 2)
      (flet ((points-p (name &rest points)
               (wait-until (lambda () (equal points (points metrics name))))))
        (put-server (first servers))
        (etcd:put *etcd* "greeter/wrong" "nonsense")
        (with-name (channel :balance :round-robin)
          (is (= 0 (who channel)))
          (put-server (second servers) "{\"state\":\"draining\"}")
          (is-true (points-p "clgrpc.discovery.servers"
                             '(1 "greeter" "draining") '(1 "greeter" "serving")))
          (discovery:put-service-config "greeter" "{}")
          (remove-server (second servers))
          (is-true (points-p "clgrpc.discovery.changes"
                             '(1 "greeter" "fetch") '(1 "greeter" "put") '(1 "greeter" "removal")
                             '(1 "greeter" "service_config")))
          (is-true (points-p "clgrpc.discovery.servers"
                             '(0 "greeter" "draining") '(1 "greeter" "serving")))
          (is (equal '((1 "greeter")) (points metrics "clgrpc.discovery.ignored")))
          (let ((service-watcher (first clgrpc.discovery::**service-watchers**)))
            (flet ((age () (first (first (points metrics "clgrpc.discovery.age")))))
              (is (<= 0 (age) 60))
              (decf (clgrpc.discovery::service-watcher-heard-ns service-watcher)
                    (clgrpc.base:seconds-ns 100))
              (is (<= 100 (age) 160)))
            (clgrpc.discovery::note-lookup service-watcher nil "nobody knows it")
            (is (equal '((1 "greeter" "look_up")) (points metrics "clgrpc.discovery.failures")))))
        ;; nobody asks any more; the service watcher's thread ends by itself
        (eventually (null (points metrics "clgrpc.discovery.age")))))))

(test progress-is-a-sign-of-life
  "A service watcher that asks etcd how far its changes were told learns whether it is still there."
  (with-counted-memory (engine metrics)
    (with-servers (servers 1)
      (put-server (first servers))
      (with-name (channel)
        (is (= 0 (who channel)))
        (let ((service-watcher (first clgrpc.discovery::**service-watchers**)))
          (flet ((heard-p ()
                   (setf (clgrpc.discovery::service-watcher-heard-ns service-watcher) 1)
                   (clgrpc.discovery::ask-how-far service-watcher)
                   (< 1 (clgrpc.discovery::service-watcher-heard-ns service-watcher))))
            (is-true (wait-until #'heard-p))
            (etcd:cancel-mirror (clgrpc.discovery::service-watcher-servers service-watcher))
            (is-false (heard-p))))))))

(test registrations-are-counted
  (with-counted-memory (engine metrics)
    (let ((registration (register "127.0.0.1:5" :lease-seconds 86400)))
      (flet ((points-of (name) (points metrics (format nil "clgrpc.registration.~A" name)))
             (look () (clgrpc.discovery::write-registration registration)))
        (is (equal '((1 "greeter")) (points-of "registered")))
        (look)
        (etcd:remove-entry *etcd* "greeter/127.0.0.1:5")
        (look)
        (is (equal '((1 "greeter" "put") (1 "greeter" "renewed") (1 "greeter" "standing"))
                   (points-of "writes")))
        (is (equal '((1 "greeter")) (points-of "renewals")))
        (etcd:put *etcd* "greeter/127.0.0.1:5" "another's")
        (look)
        (is (equal '((0 "greeter")) (points-of "registered")) "it is left to somebody else")
        (etcd:remove-entry *etcd* "greeter/127.0.0.1:5")
        (look)
        (is (equal '((1 "greeter")) (points-of "registered")))
        (clgrpc.discovery::lose-lease registration
                                      (clgrpc.discovery::registration-leases registration)
                                      (make-condition 'etcd:lease-not-found :text "lost"))
        (is (equal '((1 "greeter")) (points-of "losses")))
        (is-true (discovery:await-registration registration :timeout +patience+))
        (is (equal '((1 "greeter")) (points-of "registered")))
        (discovery:withdraw registration)
        (is (equal '((0 "greeter")) (points-of "registered")))))))
