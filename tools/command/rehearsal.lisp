;;;; The rehearsal, which runs once before the command is saved. CLOS compiles discriminating
;;;; functions and similar ones when a generic function is first called. Without the rehearsal this
;;;; work takes 3 ms in the first call of a server, and 10 ms in the first call of a client. A core
;;;; that is saved after some calls contains these functions.

(in-package #:clgrpc.tools)

(defun rehearse ()
  "Start a server in this image, run commands that call it, without their output, and stop it.
Return true if all commands succeeded."
  (let ((server (grpc:start-server (append (list (make-instance 'grpc:health-service))
                                           (grpc:reflection-services)
                                           (offered-services
                                            (parse-services "greeter,route-guide")))
                                   :listen "127.0.0.1:0"))
        (*standard-output* (make-broadcast-stream))
        (*error-output* (make-broadcast-stream)))
    (unwind-protect
         (loop for (name . arguments)
                 in '(("list")
                      ("describe" "helloworld.Greeter")
                      ("call" "helloworld.Greeter/SayHello" "-d" "{\"name\": \"Ada\"}")
                      ("routeguide-client"))
               always (eql 0 (run-command (list* name (grpc:server-address server) arguments))))
      (grpc:stop-server server))))
