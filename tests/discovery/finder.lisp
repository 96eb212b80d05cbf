;;;; Finders, when what they watch has been compacted.

(in-package #:clgrpc.tests.discovery)
(in-suite :clgrpc.discovery)

(test compaction-breaks-a-watch
  (with-store (store)
    (let ((finder (clgrpc.discovery::%make-finder
                   :place *etcd* :etcd *etcd* :name "greeter"
                   :roster (clgrpc.discovery::make-roster "greeter")))
          (begin (etcd:put *etcd* "greeter/1" (said "h:1"))))
      (etcd:compact *etcd* (progn (etcd:remove-entry *etcd* "greeter/1")
                                  (etcd:put *etcd* "greeter/2" (said "h:2"))))
      (is-true (handler-case
                   (let ((watches (clgrpc.discovery::watch-name finder (1- begin))))
                     (prog1 (wait-until (lambda () (clgrpc.discovery::finder-broken finder)))
                       (mapc #'etcd:cancel-watch watches)))
                 (etcd:compacted () t)))
      (clgrpc.discovery::fetch-roster finder)
      (is-false (clgrpc.discovery::finder-broken finder))
      (is (equal '("h:2") (serving (clgrpc.discovery::finder-roster finder)))))))

(test what-breaks-is-fetched-anew
  "A finder whose watch has ended fetches everything, and watches from there."
  (with-store (store)
    (with-servers (servers 2)
      (put-server (first servers))
      (grpc:with-channel (channel (target store) :balance :round-robin)
        (is (= 0 (who channel)))
        (let* ((finder (first clgrpc.discovery::**finders**))
               (before (clgrpc.discovery::finder-roster finder)))
          (clgrpc.discovery::with-finder (finder)
            (setf (clgrpc.discovery::finder-broken finder) t))
          (is-true (wait-until (lambda ()
                                 (not (eq before (clgrpc.discovery::finder-roster finder))))))
          (put-server (second servers))
          (is-true (answers-p channel '(0 1))))))))
