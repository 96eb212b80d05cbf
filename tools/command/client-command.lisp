;;;; The commands that demonstrate a client: `routeguide-client` calls any RouteGuide server; `demo`
;;;; starts one of its own and calls it.

(in-package #:clgrpc.tools)

(define-command "routeguide-client"
    (((address "ADDRESS" (address-parser 1) "Where a RouteGuide server listens."))
     (client-tls))
    "Call the four methods of a RouteGuide server and print its answers. Exits with 1 if a call
fails."
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (examples:run-route-guide-client channel))
  0)

(define-command "demo" (() ())
    "Start a RouteGuide server on a free port, call its four methods and stop it. The source of both
ends is in examples/."
  (let ((server (grpc:start-server (make-instance 'examples:route-guide)
                                   :listen "127.0.0.1:0")))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (format t "A RouteGuide server listens on ~A.~2%" (grpc:server-address server))
           (examples:run-route-guide-client channel)
           (format t "~%All four kinds of call work. The server stops.~%"))
      (grpc:stop-server server :drain 5)))
  0)

(define-command "help" (((command "[COMMAND]" #'identity "The command to explain."))
                        ((roff "[BOOLEAN]" #'command:parse-boolean nil
                          "Print a page for man instead.")))
    "Explain a command, or list all. The same as --help."
  (let ((found (and command (find-command command))))
    (cond ((not roff) (run-command (if command (list command "--help") '("--help"))))
          ((null command) (write-main-page *standard-output*) 0)
          (found (write-command-page found *standard-output*) 0)
          (t (run-command (list command "--help"))))))
