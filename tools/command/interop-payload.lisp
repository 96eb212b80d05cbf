;;;; Payloads of grpc.testing: as many zero octets as the peer asks for, within reason.

(in-package #:clgrpc.tools)

(defconstant +max-payload-octets+ (* 64 1024 1024)
  "The largest payload made for a peer; it costs a peer nothing to ask for 2 GB.")

(defun payload-of-size (type size)
  "Return a grpc.testing.Payload of SIZE octets of TYPE; fail the call if there can be none."
  (unless (eq type :compressable)
    (grpc:fail :invalid-argument (format nil "there is no payload type ~A" type)))
  (unless (<= 0 size +max-payload-octets+)
    (grpc:fail :invalid-argument (format nil "a payload has 0 to ~D octets, not ~D"
                                         +max-payload-octets+ size)))
  (testing:make-payload :type type :body (make-octets size)))
