;;;; Metadata: what may be sent.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.status)

(test metadata-refused
  "What gRPC reserves, or HTTP/2 cannot carry, is the caller's error, named."
  (dolist (bad '((("Upper" . "x")) (("" . "x")) ((":path" . "/")) (("grpc-status" . "0"))
                 (("content-type" . "x")) (("te" . "trailers")) (("a b" . "x"))
                 (("x" . "é")) (("x" . 5)) (("x-bin" . "text")) ("x")))
    (signals misuse (status:check-metadata bad))))

(test metadata-within-the-image
  "What the other end gets is as if it had been sent: no blanks at the ends, octets of its own."
  (let* ((octets (octets-of 1 2))
         (entries (status:metadata-entries `(("x" . " a b ") ("y-bin" . ,octets))))
         (seen (status::entries-metadata nil entries)))
    (is (equalp `(("x" . "a b") ("y-bin" . ,(octets-of 1 2))) seen))
    (setf (aref octets 0) 9
          (cdr (first seen)) "changed")
    (is (equalp `(("x" . "a b") ("y-bin" . ,(octets-of 1 2)))
                (status::entries-metadata nil entries)))))
