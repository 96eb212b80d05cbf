;;;; etcd beside the tests: one member on free ports of the loopback, with data of its own.

(in-package #:clgrpc.tests.etcd)
(in-suite :clgrpc.etcd)

(defvar *etcd* nil "The client of the etcd that WITH-STORE has started.")

(defparameter +patience+ (support:patient-seconds 20))

(defstruct (store (:copier nil))
  "An etcd that runs, or has run."
  (folder nil)
  (port 0)
  (peer-port 0)
  (program nil))

(defun etcd-program ()
  "The path of etcd, or nil if it is not installed."
  (let ((path (uiop:run-program "command -v etcd" :output '(:string :stripped t)
                                                  :ignore-error-status t)))
    (and (plusp (length path)) path)))

(defun free-port ()
  (let ((socket (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)))
    (unwind-protect
         (progn (sb-bsd-sockets:socket-bind socket #(127 0 0 1) 0)
                (nth-value 1 (sb-bsd-sockets:socket-name socket)))
      (sb-bsd-sockets:socket-close socket))))

(defun store-address (store)
  (format nil "127.0.0.1:~D" (store-port store)))

(defun begin-store (store)
  "Start the program of STORE, over the data that it has; the one before, if there is one, ends."
  (when (store-program store) (support:stop-program (store-program store)))
  (flet ((url (port) (format nil "http://127.0.0.1:~D" port)))
    (let ((client (url (store-port store))) (peer (url (store-peer-port store))))
      (setf (store-program store)
            (support:start-program
             (etcd-program)
             (list "--name" "lab" "--data-dir" (store-folder store)
                   "--listen-client-urls" client "--advertise-client-urls" client
                   "--listen-peer-urls" peer "--initial-advertise-peer-urls" peer
                   "--initial-cluster" (format nil "lab=~A" peer)))))))

(defun call-with-store (function)
  (let* ((folder (format nil "/tmp/clgrpc-etcd-~36R/" (random (expt 36 8)
                                                              (make-random-state t))))
         (store (make-store :folder folder :port (free-port) :peer-port (free-port))))
    (begin-store store)
    (unwind-protect
         (etcd:with-etcd (etcd (store-address store) :backoff-maximum-seconds 0.5)
           (etcd:count-entries etcd :prefix "" :timeout +patience+)
           (let ((*etcd* etcd)) (funcall function store)))
      (support:stop-program (store-program store))
      (uiop:delete-directory-tree (pathname folder) :validate t :if-does-not-exist :ignore))))

(defmacro with-store ((store) &body body)
  "Evaluate BODY with STORE an etcd of its own, and *ETCD* its client; skip the test without etcd."
  `(if (etcd-program)
       (call-with-store (lambda (,store) (declare (ignorable ,store)) ,@body))
       (skip "etcd is not installed")))

(defun wait-until (predicate &key (seconds +patience+))
  "Wait until PREDICATE is true; return its value."
  (loop with end = (+ (base:monotonic-ns) (base:seconds-ns seconds))
        for value = (funcall predicate)
        until (or value (> (base:monotonic-ns) end))
        do (sleep 0.01)
        finally (return value)))
