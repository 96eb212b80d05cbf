;;;; Ways into a server besides its listeners.

(in-package #:clgrpc.tests.server)

(defclass door ()
  ((busy :initform nil :accessor door-busy)
   (told :initform '() :accessor door-told))
  (:documentation "An acceptor that notes what it is told."))

(defmethod serving:acceptor-state ((door door)) (values "door:1" (door-busy door) 7))
(defmethod serving:close-acceptor ((door door) &optional status text)
  (declare (ignore text))
  (push (or status :close) (door-told door))
  (when status (setf (door-busy door) nil)))

(defun door-of (server)
  (serving:ensure-acceptor server (lambda (acceptor) (typep acceptor 'door))
                          (lambda () (make-instance 'door))))

(test acceptors-are-made-once
  "Any number of threads may ask; from then on the acceptor is part of the server."
  (let* ((server (start-probe (list :ask #'double)))
         (doors (with-threads (i 4) (door-of server))))
    (is (= 1 (length (remove-duplicates doors))))
    (is (member "door:1" (grpc:server-addresses server) :test #'string=))
    (is (= 7 (getf (grpc:server-statistics server) :calls)))
    (is (eq t (grpc:stop-server server :drain 5)))
    (is (equal '(:close) (door-told (first doors))))))

(test acceptors-are-waited-for
  "The server waits until they report the end of the last call; then it abandons them."
  (with-log ()
    (let* ((server (start-probe (list :ask #'double)))
           (door (door-of server)))
      (setf (door-busy door) t)
      (let ((stopping (in-thread (grpc:stop-server server :drain 20))))
        (wait-until (lambda () (door-told door)))
        (setf (door-busy door) nil)
        (serving:note-emptied server)
        (is (eq t (sb-thread:join-thread stopping :timeout +patience+ :default nil)))))
    (let* ((server (start-probe (list :ask #'double)))
           (door (door-of server)))
      (setf (door-busy door) t)
      (is (null (grpc:stop-server server :drain 0.1)))
      (is (equal '(:unavailable :close) (door-told door))))))
