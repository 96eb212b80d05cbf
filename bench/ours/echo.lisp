;;;; The servers of bench/parts/echo.py: that of examples/async, or if CLGRPC_ECHO is `copy` one
;;;; whose callback gets a fresh vector, as cl-async's does. Loaded after scripts/load.lisp; prints
;;;; `listening on HOST:PORT`.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-async/examples")

(defpackage #:clgrpc.bench.echo
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async) (#:echo-server #:clgrpc.examples.echo-server)))

(in-package #:clgrpc.bench.echo)

(defun say (server)
  (format t "listening on ~A~%" (as:server-address server))
  (finish-output))

(if (equal "copy" (uiop:getenvp "CLGRPC_ECHO"))
    (as:with-event-loop () (say (as:tcp-server "127.0.0.1" 0 #'as:write-socket-data)))
    (echo-server:run :port 0 :on-start #'say))
