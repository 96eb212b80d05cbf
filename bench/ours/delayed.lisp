;;;; The plain TCP server of bench/parts/connections.py: `clgrpc-async` as its users use it. Each
;;;; line is answered by a line CLGRPC_DELAY seconds later, on the same connection, which stays
;;;; open. Loaded after scripts/load.lisp; listens at CLGRPC_LISTEN, HOST:PORT, sharing the port,
;;;; prints `listening on HOST:PORT`, and for each line on standard input collects its garbage as
;;;; `clgrpc serve --collect` does.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")
(load-strictly "clgrpc-async")

(defpackage #:clgrpc.delayed
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async) (#:tools #:clgrpc.tools)))

(in-package #:clgrpc.delayed)

(defparameter *answer* (map '(vector (unsigned-byte 8)) #'char-code (format nil "later~%")))

(defun serve (host port delay-seconds)
  (as:with-event-loop ()
    (let ((server (as:tcp-server host port
                                 (lambda (socket octets)
                                   (declare (ignore octets))
                                   (as:delay (lambda () (as:write-socket-data socket *answer*))
                                             :time delay-seconds))
                                 :backlog 4096 :max-connections 20000 :reuse-port t)))
      (format t "listening on ~A~%" (as:server-address server))
      (finish-output))))

(clgrpc:tune-collector)
(sb-thread:make-thread #'tools::collect-at-each-line :name "collect")
(let* ((address (uiop:getenv "CLGRPC_LISTEN"))
       (colon (position #\: address :from-end t)))
  (serve (subseq address 0 colon) (parse-integer address :start (1+ colon))
         (parse-integer (uiop:getenv "CLGRPC_DELAY"))))
