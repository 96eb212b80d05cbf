;;;; The engine itself: its clock, its thread, its end.

(in-package #:clgrpc.tests.memory)

(defun threads-named (name)
  (count name (sb-thread:list-all-threads) :key #'sb-thread:thread-name :test #'string=))

(test engines-say-that-they-are-not-durable
  (let* ((events '())
         (engine (let ((base:*log-function* (lambda (level event &rest plist)
                                              (push (list level event (getf plist :durable :?))
                                                    events))))
                   (memory:make-engine))))
    (is (equal '((:warning :memory-engine nil)) events))
    (is (search "not durable" (princ-to-string engine)))
    (memory:close-engine engine)
    (is (search "closed" (princ-to-string engine)))))

(test leases-end-by-the-clock-of-the-world
  "A lease ends when the clock of the engine's world says so, however far that jumps, though nobody
calls; its watchers are told. The thread that waits for that ends with the engine."
  (let* ((offset 0)
         (loop:*world* (loop:make-world :clock (lambda () (+ offset (base:monotonic-ns)))
                                        :make-random (lambda () (make-random-state t))
                                        :network (loop:make-network)))
         (told '()))
    (with-engine (engine)
      (let ((lease (etcd:grant-lease *etcd* 3600 :keep-alive nil))
            (watch (etcd:watch *etcd* (fn (changes _revision)
                                        (push (etcd:change-kind (first changes)) told))
                               :key "a")))
        (etcd:put *etcd* "a" "1" :lease lease)
        (eventually told)
        (is (<= 3570 (etcd:lease-seconds-left lease) 3600))
        (incf offset (base:seconds-ns 3000))
        (is (<= 570 (etcd:lease-seconds-left lease) 600))
        (incf offset (base:seconds-ns 601))
        (eventually (equal '(:removal :put) told))
        (is-false (etcd:lease-alive-p lease))
        (etcd:cancel-watch watch)
        (is (= 1 (threads-named "clgrpc memory")))))
    (is (zerop (threads-named "clgrpc memory")))))

(defun calls-counted (name function)
  "How often the function NAME is called while FUNCTION runs, from any thread."
  (let ((count (list 0)))
    (with-replaced ((name (lambda (counted &rest arguments)
                            (sb-ext:atomic-incf (car count))
                            (apply (the function counted) arguments))))
      (funcall function))
    (car count)))

(test other-leases-cost-a-grant-nothing
  "A lease is granted, and revoked, without a look at all others."
  (with-engine (engine)
    (flet ((grant () (etcd:grant-lease *etcd* 3600 :keep-alive nil)))
      (grant)
      ;; what the job does twice a second looks at none either, until the first is over
      (is (>= 5 (calls-counted 'memory::first-end-ns
                               (lambda () (loop repeat 50 do (etcd:revoke-lease (grant))))))))))

(test engines-that-are-closed
  "Whoever calls a closed engine is told so at once, and its watches end."
  (with-engine (engine)
    (etcd:put *etcd* "a" "1")
    (let ((call (watches:watch (etcd:etcd-channel *etcd*) :open)))
      (rpc:send call (pb:make-watch-request
                      :create-request (pb:make-watch-create-request :key (octets-of 97))))
      (is-true (pb:watch-response-created (rpc:receive call)))
      (memory:close-engine engine)
      (signals status:rpc-error (rpc:receive call))
      (is (eq :unavailable (rpc:call-status call))))
    (signals etcd:unavailable (etcd:fetch *etcd* "a"))
    (refused-with (:unavailable "etcdserver: server stopped")
      (rpc:receive (watches:watch (etcd:etcd-channel *etcd*) :open)))))

(test many-threads-use-an-engine
  "Transactions of many threads are done one after the other: none is lost, and a watch is told all
of them once, in order."
  (with-engine (engine)
    (etcd:put *etcd* "n" "0")
    (let* ((heard '())
           (watch (etcd:watch *etcd* (fn (_changes revision) (push revision heard))
                              :key "n"))
           (threads
             (loop repeat 4
                   collect (sb-thread:make-thread
                            (let ((etcd *etcd*))
                              (lambda ()
                                (loop with done = 0
                                      while (< done 100)
                                      do (let ((entry (etcd:fetch etcd "n")))
                                           (when (etcd:transact
                                                  etcd
                                                  :when `((:changed "n" = ,(etcd:entry-changed
                                                                            entry)))
                                                  :then `((:put "n" ,(princ-to-string
                                                                      (1+ (parse-integer
                                                                           (etcd:entry-text
                                                                            entry)))))))
                                             (incf done))))))))))
      (mapc #'sb-thread:join-thread threads)
      (is (string= "400" (etcd:entry-text (etcd:fetch *etcd* "n"))))
      (eventually (= 400 (length heard)))
      (is (equal (loop for i from 3 repeat 400 collect i) (reverse heard)))
      (etcd:cancel-watch watch))))
