;;;; The services of the tests of REST. This comes before package.lisp, since it makes the package
;;;; CLGRPC.TESTS.LIBRARY.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "library.proto")
