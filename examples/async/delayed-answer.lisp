;;;; A server that answers each request after a while, on the same connection: the benchmark that
;;;; cl-async ships, written with the same calls. Change the nickname AS to cl-async, and it runs
;;;; there.

(defpackage #:clgrpc.examples.delayed-answer
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async))
  (:export #:run))

(in-package #:clgrpc.examples.delayed-answer)

(defparameter *response*
  (map '(vector (unsigned-byte 8)) #'char-code
       (format nil "HTTP/1.1 200 OK~C~C~:*~:*Content-Type: text/plain~C~C~:*~:*~
                    Content-Length: 5~C~C~:*~:*~C~Clater"
               #\Return #\Newline)))

(defun run (&key (address "127.0.0.1") (port 9009) (request-delay 5) (requests 40000) (report 2)
              (on-start (constantly nil)))
  "Serve REQUESTS requests on PORT, each REQUEST-DELAY seconds after it has come, and print, each
REPORT seconds, how many were answered. ON-START is called with the server."
  (as:with-event-loop (:catch-app-errors t)
    (let ((server nil) (finished 0) (before 0))
      (labels ((answer (socket)
                 (unless (as:socket-closed-p socket)
                   (as:write-socket-data socket *response* :write-cb #'answered)))
               (answered (socket)
                 (as:close-socket socket)
                 (incf finished)
                 (when (>= finished requests)
                   (as:close-tcp-server server)
                   (as:free-signal-handler as:+sigint+)))
               (show-stats ()
                 (format t "~&connections: ~D, answered: ~D of ~D, ~,1F/s~%"
                         (getf (as:stats) :incoming-tcp-connections) finished requests
                         (/ (- finished (shiftf before finished)) report))
                 (unless (>= finished requests)
                   (as:delay #'show-stats :time report))))
        (setf server (as:tcp-server address port
                                    (lambda (socket octets)
                                      (declare (ignore octets))
                                      (if (plusp request-delay)
                                          (as:delay (lambda () (answer socket))
                                                    :time request-delay)
                                          (answer socket)))
                                    :event-cb (lambda (event)
                                                (unless (typep event 'as:socket-eof)
                                                  (format t "~&~A~%" event)))))
        (as:signal-handler as:+sigint+ (lambda (signal)
                                         (declare (ignore signal))
                                         (as:exit-event-loop)))
        (funcall on-start server)
        (show-stats)))))
