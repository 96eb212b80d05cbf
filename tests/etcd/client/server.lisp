;;;; etcd beside the tests: one member on free ports of the loopback, with data of its own.

(in-package #:clgrpc.tests.etcd)

(defvar *etcd* nil "The client of the etcd that WITH-STORE has started.")

(defparameter +patience+ (support:patient-seconds 60)
  "The seconds after which what a test waits for is taken not to come; a new member of etcd has been
seen to take 20 to start on a busy machine.")

(defstruct (store (:copier nil))
  "An etcd that runs, or has run."
  (name "lab")
  (folder nil)
  (port 0)
  (peer-port 0)
  (cluster nil)                         ; what --initial-cluster says of others, or nil
  (arguments '())                       ; further ones of its program
  (program nil))

(defun need-etcd ()
  "The path of etcd; without it the test ends as skipped."
  (support:need-program "etcd"))

(defvar *ports* '() "The ports that FREE-PORT has returned.")

(defun free-port ()
  "A port of the loopback that is free and was not returned before. It is below those that the kernel
gives to clients, one of which might take it while an etcd is restarted."
  (loop with random = (make-random-state t)
        for port = (+ 10000 (random 22000 random))
        for socket = (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)
        when (unwind-protect
                  (handler-case (progn (sb-bsd-sockets:socket-bind socket #(127 0 0 1) port)
                                       (not (member port *ports*)))
                    (sb-bsd-sockets:socket-error () nil))
               (sb-bsd-sockets:socket-close socket))
          do (push port *ports*)
             (return port)))

(defun store-address (store)
  (format nil "127.0.0.1:~D" (store-port store)))

(defun peer-url (store)
  (format nil "http://127.0.0.1:~D" (store-peer-port store)))

(defun end-store (store)
  "End the program of STORE at once."
  (support:stop-program (store-program store)))

(defun begin-store (store)
  "Start the program of STORE, over the data that it has; the one before, if there is one, ends."
  (when (store-program store) (end-store store))
  (let ((client (format nil "http://~A" (store-address store))) (peer (peer-url store)))
    (setf (store-program store)
          (support:start-program
           (need-etcd)
           (list* "--name" (store-name store) "--data-dir" (store-folder store)
                  "--listen-client-urls" client "--advertise-client-urls" client
                  "--listen-peer-urls" peer "--initial-advertise-peer-urls" peer
                  "--initial-cluster" (or (store-cluster store)
                                          (format nil "~A=~A" (store-name store) peer))
                  ;; so that an election, and the shortest lease, do not take long
                  "--heartbeat-interval" "20" "--election-timeout" "100"
                  (store-arguments store))))))

(defun new-store (&rest arguments)
  "A store that has not begun, in a folder of its own."
  (apply #'make-store :folder (format nil "/tmp/clgrpc-etcd-~36R/"
                                      (random (expt 36 8) (make-random-state t)))
                      :port (free-port) :peer-port (free-port) arguments))

(defun call-with-stores (function stores)
  "Call FUNCTION while STORES run, with *ETCD* bound to a client of all of them."
  (mapc #'begin-store stores)
  (unwind-protect
       (etcd:with-etcd (etcd (mapcar #'store-address stores) :timeout +patience+
                        :backoff-initial-seconds 0.05 :backoff-maximum-seconds 0.2)
         (etcd:count-entries etcd :prefix "" :timeout +patience+)
         (let ((*etcd* etcd)) (funcall function)))
    (mapc #'end-store stores)
    (dolist (store stores)
      (uiop:delete-directory-tree (pathname (store-folder store))
                                  :validate t :if-does-not-exist :ignore))))

(defvar *store-function* nil
  "What WITH-STORE calls with its body, in place of starting an etcd: so tests that need nothing of
etcd's process are done with another store, whose client is *ETCD*; or nil.")

(defmacro with-store ((store &rest arguments) &body body)
  "Evaluate BODY with STORE an etcd of its own, which has further ARGUMENTS on its command line, and
*ETCD* its client."
  `(flet ((body (,store) (declare (ignorable ,store)) ,@body))
     (if *store-function*
         (funcall *store-function* (lambda () (body nil)))
         (let ((store (new-store :arguments (list ,@arguments))))
           (call-with-stores (lambda () (body store)) (list store))))))

;;; Tests of any store

(def-suite :store-tests :description "What holds of any store. RUN-STORE-TESTS runs it.")

(defvar *store-tests* '() "The names of its tests.")

(defmacro store-test (name &body body)
  "Define the test NAME, whose WITH-STORE needs nothing of etcd's process, only that there is
nothing in its store. It is done here with one etcd for all of these tests, and in suite memory with
the engine in memory."
  `(progn
     (pushnew ',name *store-tests*)
     (test (,name :suite :store-tests) ,@body)))

(defun run-store-tests (function)
  "Do the tests of STORE-TEST. FUNCTION is called with a function for each, which it calls with
*ETCD* bound to a client of a store with nothing in it."
  (let ((*store-function* function))
    (is (< 20 (length *store-tests*)))
    (dolist (name (reverse *store-tests*))
      (let ((failures (remove-if-not #'support:failed-check-p (run name :print-names nil))))
        (is (null failures) "~A:~{ ~A~}" name (mapcar #'support:check-reason failures))))))

(defun empty-store ()
  "Remove all that is in the store of *ETCD*."
  (etcd:remove-entries *etcd* :prefix "")
  (dolist (number (etcd:list-leases *etcd*))
    (etcd:revoke-lease (etcd:lease-by-number *etcd* number))))

(test tests-of-any-store
  (with-store (store)
    (run-store-tests (lambda (function)
                       (etcd:with-etcd (*etcd* (store-address store) :timeout +patience+)
                         (empty-store)
                         (funcall function))))))

(defmacro with-cluster ((stores) &body body)
  "Evaluate BODY with STORES a list of three etcds that are one cluster, and *ETCD* a client of
all."
  `(let ((,stores (new-cluster)))
     (call-with-stores (lambda () ,@body) ,stores)))

(defun new-cluster ()
  "Three stores that have not begun, of one cluster."
  (let* ((stores (loop for name in '("one" "two" "three")
                       collect (new-store :name name
                                          ;; on a busy machine they hear of each other late
                                          :arguments (list "--heartbeat-interval" "50"
                                                           "--election-timeout" "500"))))
         (cluster (format nil "~{~A=~A~^,~}"
                          (loop for store in stores
                                collect (store-name store) collect (peer-url store)))))
    (dolist (store stores stores)
      (setf (store-cluster store) cluster))))

(defun etcdctl-arguments (store arguments)
  (list* "ETCDCTL_API=3" (support:need-program "etcdctl") "--endpoints" (store-address store)
         arguments))

(defun etcdctl (store &rest arguments)
  "What etcdctl with ARGUMENTS says of STORE, and its exit code."
  (multiple-value-bind (output errors code)
      (uiop:run-program (cons "env" (etcdctl-arguments store arguments))
                        :output '(:string :stripped t) :error-output :output
                        :ignore-error-status t)
    (declare (ignore errors))
    (values output code)))
