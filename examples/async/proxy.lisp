;;;; A proxy: each connection is passed on to another server, both ways. When one side takes its
;;;; octets too slowly, the other is not read until it has caught up, so that the proxy holds little
;;;; of either.

(defpackage #:clgrpc.examples.proxy
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async))
  (:export #:run))

(in-package #:clgrpc.examples.proxy)

(defun other (socket)
  "The socket at the other end of SOCKET's pair."
  (as:socket-data socket))

(defun pass-on (socket octets start end)
  "Give what SOCKET has sent to the other; if that has too much already, read no more."
  (unless (as:write-socket-data (other socket) octets :start start :end end)
    (as:disable-socket socket :read t)))

(defun go-on (socket)
  "SOCKET has taken its output: read the other again."
  (as:enable-socket (other socket) :read t))

(defun close-other (event)
  "A socket has closed, or could not be connected: so does the other, when its output is sent."
  (let ((socket (as:socket event)))
    (unless (typep event 'as:socket-eof) (format *error-output* "~&~A~%" event))
    (when (and socket (other socket)) (as:close-socket (other socket)))))

(defparameter *manner*
  (list :in-place t :event-cb #'close-other :drain-cb #'go-on :high-water 262144))

(defun run (host to-port &key (address "127.0.0.1") (port 8888) (on-start (constantly nil)))
  "Pass connections to PORT on to TO-PORT of HOST until the process gets SIGINT. ON-START is called
with the server."
  (flet ((pair (near)
           (let ((far (apply #'as:tcp-connect host to-port #'pass-on *manner*)))
             (setf (as:socket-data near) far
                   (as:socket-data far) near))))
    (as:with-event-loop (:name "proxy" :catch-app-errors t)
      (funcall on-start (apply #'as:tcp-server address port #'pass-on :connect-cb #'pair *manner*))
      (as:signal-handler as:+sigint+ (lambda (signal)
                                       (declare (ignore signal))
                                       (as:exit-event-loop))))))
