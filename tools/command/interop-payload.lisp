;;;; Payloads of grpc.testing: as many zero octets as the peer asks for, within reason.

(in-package #:clgrpc.tools)

(defconstant +max-payload-octets+ (* 64 1024 1024)
  "The maximum octets of a payload that a peer may ask for. Without this limit a small request could
make this process allocate 2 GB.")

(defun payload-of-size (type size)
  "Return a grpc.testing.Payload of SIZE octets of TYPE. Fail the call if TYPE is unknown or SIZE
too large."
  (unless (eq type :compressable)
    (grpc:fail :invalid-argument (format nil "~A is not a type of payload" type)))
  (unless (<= 0 size +max-payload-octets+)
    (grpc:fail :invalid-argument (format nil "a payload has 0 to ~D octets, not ~D"
                                         +max-payload-octets+ size)))
  (testing:make-payload :type type :body (make-octets size)))
