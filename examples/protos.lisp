;;;; The proto files of the examples, compiled from source. This comes before package.lisp, since it
;;;; makes the packages HELLOWORLD, HELLOWORLD.GREETER, ROUTEGUIDE, ROUTEGUIDE.ROUTE-GUIDE, CHAT and
;;;; CHAT.CHAT.

(in-package #:cl-user)

(clgrpc:define-proto "../proto/examples/helloworld.proto")
(clgrpc:define-proto "../proto/examples/route_guide.proto")
(clgrpc:define-proto "../proto/examples/chat.proto")
