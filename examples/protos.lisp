;;;; The proto files of the examples, compiled from source. This comes before package.lisp, since it
;;;; makes the packages HELLOWORLD, HELLOWORLD.GREETER, ROUTEGUIDE and ROUTEGUIDE.ROUTE-GUIDE.

(in-package #:cl-user)

(clgrpc:define-proto "../proto/examples/helloworld.proto")
(clgrpc:define-proto "../proto/examples/route_guide.proto")
