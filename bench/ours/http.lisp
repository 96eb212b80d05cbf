;;;; The server of bench/parts/http_get.py: /healthz of a server with a health service. Loaded after
;;;; scripts/load.lisp; prints `listening on HOST:PORT`.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc")

(let* ((health (make-instance 'clgrpc:health-service))
       (server (clgrpc:start-server health :http (list (clgrpc:health-handler health))
                                           :max-http1-requests 1000000000)))
  (format t "listening on ~A~%" (clgrpc:server-address server))
  (finish-output)
  (loop (sleep 3600)))
