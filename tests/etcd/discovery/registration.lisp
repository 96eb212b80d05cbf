;;;; Registrations, while etcd and the lease are there and when they are not.

(in-package #:clgrpc.tests.discovery)

(defun listed (name)
  "What is registered as NAME: a list of (address state)."
  (mapcar (lambda (endpoint)
            (list (discovery:endpoint-address endpoint) (discovery:endpoint-state endpoint)))
          (discovery:list-endpoints name :etcd *etcd*)))

(defun register (address &rest options)
  (let ((registration (apply #'discovery:register nil "greeter" :etcd *etcd* :address address
                             options)))
    (is-true (discovery:await-registration registration :timeout +patience+))
    registration))

(test registering-and-withdrawing
  (with-store (store)
    (let ((registration (register "127.0.0.1:5" :weight 3 :zone "a")))
      (is (string= "greeter/127.0.0.1:5" (discovery:registration-key registration)))
      (is (eq :serving (discovery:registration-state registration)))
      (let ((entry (etcd:fetch *etcd* "greeter/127.0.0.1:5")))
        (is (plusp (etcd:entry-lease entry)))
        (is (string= (said "127.0.0.1:5" "{\"weight\":3,\"zone\":\"a\",\"state\":\"serving\"}")
                     (etcd:entry-text entry))))
      (discovery:change-registration registration :weight 4 :zone nil)
      (is-true (discovery:await-registration registration :timeout +patience+))
      (is (string= (said "127.0.0.1:5" "{\"weight\":4,\"state\":\"serving\"}")
                   (etcd:entry-text (etcd:fetch *etcd* "greeter/127.0.0.1:5"))))
      (signals misuse (discovery:change-registration registration :weight 0))
      (discovery:drain-registration registration)
      (is-true (discovery:await-registration registration :timeout +patience+))
      (is (equal '(("127.0.0.1:5" :draining)) (listed "greeter")))
      (is (eq :draining (discovery:registration-state registration)))
      (discovery:withdraw registration)
      (is (eq :withdrawn (discovery:registration-state registration)))
      (is (null (listed "greeter"))))))

(test registrations-of-unwound-threads-end
  "A registration that was not returned ends; one that is being withdrawn is gone, or can be
withdrawn again, and its lease is not kept alive."
  (with-stand-in (store other)
    (let ((registrations '()) (registration nil) (etcd *etcd*)
          (places '(#:clgrpc.discovery etcd:add-job etcd:add-ending etcd:remove-ending
                    etcd:revoke-lease)))
      (flet ((begin ()
               (setf registration (discovery:register nil "shop" :etcd etcd :address "127.0.0.1:5"))
               (is-true (discovery:await-registration registration :timeout +patience+))))
        ;; the client has what keeps leases alive from here on
        (etcd:revoke-lease (etcd:grant-lease etcd 60))
        (unwind-within store
                       (lambda ()
                         (push (discovery:register nil "shop" :etcd etcd :address "127.0.0.1:5")
                               registrations))
                       :places places
                       :after (lambda () (mapc #'discovery:withdraw (shiftf registrations '()))))
        (begin)
        (unwind-within store
                       (lambda () (discovery:withdraw registration))
                       :places places
                       :after (lambda ()
                                (discovery:withdraw registration)
                                (begin)))
        (discovery:withdraw registration)))))

(test wrong-registrations
  (etcd:with-etcd (etcd "127.0.0.1:1")
    (flet ((wrong (&rest arguments)
             (signals misuse (apply #'discovery:register nil arguments))))
      (wrong "greeter" :etcd etcd)
      (wrong "" :etcd etcd :address "127.0.0.1:1")
      (wrong "greeter" :etcd etcd :address "127.0.0.1")
      (wrong "greeter" :etcd etcd :address "0.0.0.0:1")
      (wrong "greeter" :etcd etcd :address "[::]:1")
      (wrong "greeter" :etcd etcd :address "127.0.0.1:1" :weight 65536)
      (wrong "greeter" :etcd etcd :address "127.0.0.1:1" :zone :a)
      (wrong "greeter" :etcd etcd :address "127.0.0.1:1"
                       :metadata `(("a" . ,(make-string 70000 :initial-element #\a)))))))

(test weights-are-from-1-to-65535
  (loop for (weight right) in '((nil t) (0 nil) (1 t) (65535 t) (65536 nil) (1.0 nil) ("1" nil))
        do (is (eq right (handler-case
                             (eql weight (discovery:endpoint-weight
                                          (discovery::checked-endpoint :address "127.0.0.1:1"
                                                                       :weight weight)))
                           (misuse () nil)))
               "~S" weight)))

(test registrations-are-made-anew
  "When the lease was revoked, when the key was removed, when etcd was away for longer than the
lease, and when it comes back without its data."
  (with-store (store)
    (let ((registration (register "127.0.0.1:5" :lease-seconds 1)))
      (flet ((lease () (let ((entry (etcd:fetch *etcd* "greeter/127.0.0.1:5")))
                         (if entry (etcd:entry-lease entry) 0)))
             (other-lease-p (before)
               (let ((entry (ignore-errors (etcd:fetch *etcd* "greeter/127.0.0.1:5"))))
                 (and entry (/= before (etcd:entry-lease entry))))))
        (let ((before (lease)))
          (clgrpc.etcd::ask *etcd* #'etcdserverpb.lease:lease-revoke
                            (etcdserverpb:make-lease-revoke-request :id before) nil)
          (is-true (wait-until (lambda () (other-lease-p before))) "the lease was revoked"))
        (etcd:remove-entry *etcd* "greeter/127.0.0.1:5")
        (is-true (wait-until (lambda () (plusp (lease)))) "the key was removed")
        (let ((before (lease)))
          (support:signal-program (store-program store) sb-unix:sigstop)
          (unwind-protect
               (eventually (eq :registering (discovery:registration-state registration)))
            (support:signal-program (store-program store) sb-unix:sigcont))
          (is-true (wait-until (lambda () (other-lease-p before))) "etcd was away")
          (is-true (discovery:await-registration registration :timeout +patience+))
          (sleep 1)                     ; the former lease's end takes nothing away
          (is-true (other-lease-p before)))
        (support:kill-program (store-program store))
        (uiop:delete-directory-tree (pathname (clgrpc.tests.etcd:store-folder store))
                                    :validate t)
        (begin-store store)
        (is-true (wait-until (lambda () (other-lease-p 0))) "it has no data")
        (discovery:withdraw registration)))))

(test a-key-that-another-has
  "A server that was started at the same address keeps its registration when the former one goes."
  (with-store (store)
    (let* ((old (register "127.0.0.1:5"))
           (new (register "127.0.0.1:5" :weight 2)))
      (with-logged (events :server-registered :server-registered-by-another)
        (discovery:drain-registration old)
        (is-true (discovery:await-registration old :timeout +patience+))
        (flet ((of-old ()               ; that of the new one may come late
                 (remove :serving (events) :key (lambda (event) (getf (cddr event) :state)))))
          (is-true (wait-until #'of-old))
          (is (equal '((:info :server-registered-by-another :key "greeter/127.0.0.1:5"
                        :state :draining))
                     (of-old)))))
      (is (equal '(("127.0.0.1:5" :serving)) (listed "greeter")))
      (discovery:withdraw old)
      (is (equal '(("127.0.0.1:5" :serving)) (listed "greeter")))
      (discovery:withdraw new)
      (is (null (listed "greeter"))))))

(test a-lost-lease-takes-no-key-back
  "A registration whose lease is lost leaves its key to a successor that has put it meanwhile, and
has it again when that goes."
  (with-memory (engine)
    (let* ((old (register "127.0.0.1:5" :lease-seconds 2))
           (before (etcd:entry-lease (etcd:fetch *etcd* "greeter/127.0.0.1:5")))
           (new (register "127.0.0.1:5" :weight 2)))
      (flet ((weight ()
               (let ((endpoints (discovery:list-endpoints "greeter" :etcd *etcd*)))
                 (and endpoints (list (discovery:endpoint-weight (first endpoints)))))))
        (etcd:revoke-lease (etcd:lease-by-number *etcd* before))
        (eventually (< 1 (clgrpc.discovery::registration-leases old)))
        (is-true (discovery:await-registration old :timeout +patience+))
        (is (equal '(2) (weight)))
        (discovery:withdraw new)
        ;; as its thread does once in the time of the lease
        (clgrpc.discovery::write-registration old)
        (is (equal '(nil) (weight)))
        (discovery:withdraw old)
        (is (null (weight)))))))

(test what-stands-is-not-written-again
  "What is to be looked at once in a while is only read while it is as it should be."
  (with-memory (engine)
    (let ((registration (register "127.0.0.1:5" :lease-seconds 86400)))
      (flet ((look ()
               (clgrpc.discovery::write-registration registration)
               (memory:engine-revision engine)))
        (let ((revision (memory:engine-revision engine)))
          (is (= revision (look)))
          (is (= revision (look)))
          (etcd:remove-entry *etcd* "greeter/127.0.0.1:5")
          (is (= (+ revision 2) (look)) "it is put again, under the same lease")
          (is (= (etcd:lease-id (clgrpc.discovery::registration-lease registration))
                 (etcd:entry-lease (etcd:fetch *etcd* "greeter/127.0.0.1:5"))))
          (let ((lease (etcd:entry-lease (etcd:fetch *etcd* "greeter/127.0.0.1:5"))))
            (etcd:put *etcd* "greeter/127.0.0.1:5" "nonsense" :lease lease)
            (is (= (+ revision 4) (look)) "it says something else")
            (is (= (+ revision 4) (look))))))
      (discovery:withdraw registration))))

(defclass slow-engine (memory:engine)
  ((delay :initform (lambda ()) :accessor engine-delay :allocation :class))
  (:documentation "An engine whose leases are granted when DELAY, a function, has returned."))

(defmethod etcdserverpb.lease:lease-grant :after ((engine slow-engine) request &key)
  (declare (ignore request))
  (funcall (engine-delay engine)))

(test leases-that-come-too-late
  "A lease whose time is over when the answer comes is given back; else it would be renewed for
ever."
  (let* ((offset 0)
         (loop:*world* (loop:make-world :clock (lambda () (+ offset (clgrpc.base:monotonic-ns)))
                                        :make-random (lambda () (make-random-state t))
                                        :network (loop:make-network))))
    (with-memory (engine :class 'slow-engine)
      (let ((registration (clgrpc.discovery::%make-registration
                           :etcd *etcd* :key "greeter/1" :seconds 10
                           :endpoint (clgrpc.discovery::make-endpoint :address "h:1"))))
        (setf (engine-delay engine) (lambda () (incf offset (clgrpc.base:seconds-ns 11))))
        (signals etcd:unavailable (clgrpc.discovery::ensure-lease registration))
        (is (null (etcd:list-leases *etcd*)))
        (setf (engine-delay engine) (lambda ()))
        (is-true (etcd:lease-alive-p (clgrpc.discovery::ensure-lease registration)))
        (is (= 1 (length (etcd:list-leases *etcd*))))))))

(test what-is-withdrawn-writes-nothing-more
  "WITHDRAW does not wait for a job whose request gets no answer; what that brings, a lease, is
given back, and nothing is put any more."
  (with-memory (engine)
    (let* ((gate (sb-thread:make-semaphore)) (entered (sb-thread:make-semaphore)) (returned nil)
           (job (etcd:add-job *etcd* (lambda ()
                                       (sb-thread:signal-semaphore entered)
                                       (sb-thread:wait-on-semaphore gate :timeout +patience+)
                                       (setf returned t)
                                       nil)))
           (registration (clgrpc.discovery::%make-registration
                          :etcd *etcd* :name "greeter" :key "greeter/1" :job job
                          :endpoint (clgrpc.discovery::make-endpoint :address "h:1")))
           (lease (etcd:grant-lease *etcd* 60 :keep-alive nil)))
      (loop:wake-job job)
      (is-true (sb-thread:wait-on-semaphore entered :timeout +patience+))
      (unwind-protect (progn (discovery:withdraw registration)
                             (is-false returned))
        (sb-thread:signal-semaphore gate))
      (signals etcd:unavailable (clgrpc.discovery::ensure-lease registration))
      (is (equal (list (etcd:lease-id lease)) (etcd:list-leases *etcd*)))
      (is (null (clgrpc.discovery::put-text registration "text" lease nil)))
      (is (null (etcd:fetch *etcd* "greeter/1"))))))

(test registrations-share-the-thread-of-their-client
  "However many there are, their client has one thread that waits; they, and their leases, are jobs
of it."
  (with-memory (engine)
    (flet ((threads (name)
             (count name (sb-thread:list-all-threads) :key #'sb-thread:thread-name :test #'equal)))
      (let ((registrations (loop for i below 100
                                 collect (discovery:register nil "greeter" :etcd *etcd*
                                                             :address (format nil "127.0.0.1:~D"
                                                                              (1+ i))))))
        (is-true (every (lambda (registration)
                          (discovery:await-registration registration :timeout +patience+))
                        registrations))
        (is (= 1 (threads "clgrpc etcd")))
        (is (= 0 (threads "clgrpc registration")))
        (is (= 100 (length (listed "greeter"))))
        (mapc #'discovery:withdraw registrations)
        (is (null (listed "greeter")))))))

(test a-client-has-two-threads-at-most
  "100 leases, 100 watches, 100 registrations, with a lease each, and 20 names that channels follow
have one thread that waits; threads of the reserve end once there is nothing to do."
  (with-memory (engine)
    (let ((watches (loop for i below 100
                         collect (etcd:watch *etcd* (constantly nil) :key (format nil "~D" i))))
          (leases (loop repeat 100 collect (etcd:grant-lease *etcd* 60)))
          (registrations (loop for i below 100
                               collect (discovery:register nil "greeter" :etcd *etcd*
                                                           :address (format nil "127.0.0.1:~D"
                                                                            (1+ i)))))
          (service-watchers (loop for i below 20
                                  collect (clgrpc.discovery::start-service-watcher
                                           *etcd* (format nil "shop-~D" i)))))
      (is-true (every (lambda (registration)
                        (discovery:await-registration registration :timeout +patience+))
                      registrations))
      (eventually (every (lambda (service-watcher)
                  (etcd:mirror-watch
                   (clgrpc.discovery::service-watcher-servers service-watcher)))
                service-watchers))
      (is-true (every #'etcd:watch-open-p watches))
      (is-true (every #'etcd:lease-alive-p leases))
      (let ((names (mapcar #'sb-thread:thread-name (sb-thread:list-all-threads))))
        (is (= 1 (count "clgrpc etcd" names :test #'equal)))
        (is (null (remove-if (lambda (name)
                               (member name '("clgrpc etcd" "clgrpc reserve" "clgrpc memory"
                                              "clgrpc watchdog" "clgrpc client" "main thread"
                                              "test time limit")
                                       :test #'equal))
                             names))))
      (mapc #'etcd:cancel-watch watches)
      (mapc #'etcd:revoke-lease leases)
      (mapc #'clgrpc.discovery::end-service-watcher service-watchers)
      (mapc #'discovery:withdraw registrations))))

(test servers-take-their-leave
  "A server that is stopped says that it drains while it still takes calls, and is gone afterwards."
  (with-store (store)
    (let* ((server (grpc:start-server '() :listen "127.0.0.1:0"))
           (seen '())
           (watch (etcd:watch *etcd* (fn (changes _revision)
                                       (dolist (change changes)
                                         (push (list (etcd:change-kind change)
                                                     (and (search "draining"
                                                                  (etcd:entry-text
                                                                   (etcd:change-entry change)))
                                                          t)
                                                     (grpc:server-running-p server))
                                               seen)))
                              :prefix "greeter/"))
           (registration (discovery:register server "greeter" :etcd *etcd* :notice-seconds 1/5)))
      (is-true (discovery:await-registration registration :timeout +patience+))
      (is-true (grpc:stop-server server))
      (eventually (= 3 (length seen)))
      (is (equal '((:put nil t) (:put t t) (:removal nil nil)) (reverse seen)))
      (etcd:cancel-watch watch)
      (signals misuse (discovery:register server "greeter" :etcd *etcd* :address "127.0.0.1:9")))
    ;; one that has no time, and one whose etcd is away
    (let ((server (grpc:start-server '() :listen "127.0.0.1:0")))
      (is-true (discovery:await-registration (discovery:register server "greeter" :etcd *etcd*)
                                             :timeout +patience+))
      (grpc:stop-server server :drain 0)
      (is (null (listed "greeter"))))
    (let ((server (grpc:start-server '() :listen "127.0.0.1:0")) (begin (get-internal-real-time)))
      (is-true (discovery:await-registration (discovery:register server "greeter" :etcd *etcd*)
                                             :timeout +patience+))
      (support:kill-program (store-program store))
      (with-logged (events :server-not-withdrawn :server-withdrawn)
        (grpc:stop-server server :drain 1/2)
        (is (equal '((:warning :server-not-withdrawn) (:info :server-withdrawn))
                   (mapcar (lambda (event) (subseq event 0 2)) (events)))))
      (is (> 10 (/ (- (get-internal-real-time) begin) internal-time-units-per-second))))))

(test etcd-that-is-closed
  "Who closes the client ends what is registered with it."
  (with-store (store)
    (let ((registration nil))
      (etcd:with-etcd (other (store-address store) :timeout +patience+)
        (setf registration (discovery:register nil "greeter" :etcd other :address "127.0.0.1:5"))
        (is-true (discovery:await-registration registration :timeout +patience+)))
      (is (eq :withdrawn (discovery:registration-state registration))))))

(test servers-are-registered-after-an-error-of-the-channel
  "An interceptor fails as a lease is asked for; then it is asked for again."
  (with-stand-in (store other)
    (call-with-failing-client
     (lambda (etcd)
       (with-logged (events :server-not-registered :server-registered-again)
         (let ((registration (discovery:register nil "greeter" :etcd etcd
                                                               :address "127.0.0.1:5")))
           (is-true (discovery:await-registration registration :timeout +patience+))
           (is-true (wait-until (lambda () (rest (events)))))
           (is (equal '((:warning :server-not-registered) (:info :server-registered-again))
                      (mapcar (lambda (event) (subseq event 0 2)) (events))))
           (discovery:withdraw registration))))
     store "Grant")))
