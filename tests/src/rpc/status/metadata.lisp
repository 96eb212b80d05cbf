;;;; Metadata: what may be sent.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.status)

(test metadata-refused
  "What gRPC reserves, or HTTP/2 cannot carry, is the caller's error, named."
  (dolist (bad '((("Upper" . "x")) (("" . "x")) ((":path" . "/")) (("grpc-status" . "0"))
                 (("content-type" . "x")) (("te" . "trailers")) (("a b" . "x"))
                 (("x" . "é")) (("x" . 5)) (("x-bin" . "text")) ("x") "x: 1"))
    (signals misuse (status:check-metadata bad))))
