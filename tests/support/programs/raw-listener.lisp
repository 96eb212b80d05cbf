;;;; TCP on loopback by hand: listeners that accept nothing, and ones whose connections a test
;;;; serves on threads of its own.

(in-package #:clgrpc.tests.support)

(defun make-socket ()
  (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp))

(defun close-socket (socket)
  (ignore-errors (sb-bsd-sockets:socket-close socket :abort t)))

(defun connect-socket (address)
  "A socket that is connected to ADDRESS, 127.0.0.1:PORT."
  (let ((socket (make-socket)))
    (sb-bsd-sockets:socket-connect socket #(127 0 0 1)
                                   (parse-integer address :start (1+ (position #\: address))))
    socket))

(defun call-with-listener (function)
  "Call FUNCTION with a socket that listens, and its address. The kernel takes connections."
  (let ((listener (make-socket)))
    (unwind-protect
         (progn (sb-bsd-sockets:socket-bind listener #(127 0 0 1) 0)
                (sb-bsd-sockets:socket-listen listener 50)
                (funcall function listener
                         (format nil "127.0.0.1:~D"
                                 (nth-value 1 (sb-bsd-sockets:socket-name listener)))))
      (close-socket listener))))

(defmacro with-silent-listener ((address) &body body)
  "Evaluate BODY with ADDRESS bound to that of a listener whose connections are never read."
  (let ((listener (gensym "LISTENER")))
    `(call-with-listener (lambda (,listener ,address)
                           (declare (ignore ,listener))
                           ,@body))))

(defun serve-sockets (listener serve together)
  "Call SERVE with each connection of LISTENER, and close it, until LISTENER is shut down; TOGETHER
each on a thread of its own. Wait for these."
  (let ((threads '()))
    (flet ((serve-one (socket)
             (unwind-protect (funcall serve socket) (close-socket socket))))
      (loop
        (let ((socket (handler-case (sb-bsd-sockets:socket-accept listener)
                        (sb-bsd-sockets:socket-error () (return)))))
          (if together
              (push (sb-thread:make-thread #'serve-one :name "raw connection"
                                                       :arguments (list socket))
                    threads)
              (serve-one socket)))))
    (dolist (thread threads)
      (sb-thread:join-thread thread :timeout (patient-seconds 60) :default nil))))

(defun call-with-served-sockets (function serve &key together)
  "Call FUNCTION with the address of a listener, while another thread calls SERVE with the socket of
each connection to it, one after the other, or all TOGETHER."
  (call-with-listener
   (lambda (listener address)
     (let ((thread (sb-thread:make-thread #'serve-sockets
                                          :name "raw listener"
                                          :arguments (list listener serve together))))
       (unwind-protect (funcall function address)
         (sb-bsd-sockets:socket-shutdown listener :direction :io)
         (sb-thread:join-thread thread :timeout (patient-seconds 90) :default nil))))))

(defmacro with-served-sockets ((address socket &rest options) serve &body body)
  "Evaluate BODY with ADDRESS bound to that of a listener whose connections SERVE, a form, serves
with SOCKET bound to each; OPTIONS are those of CALL-WITH-SERVED-SOCKETS."
  `(call-with-served-sockets (lambda (,address) ,@body) (lambda (,socket) ,serve) ,@options))
