;;;; What a request's headers are on the wire.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(test request-on-the-wire
  "The fields of a request, in gRPC's order, and its message."
  (let ((seen nil))
    (with-answer (channel) (lambda (exchange)
                             (setf seen exchange)
                             (ok-response exchange (note-octets 2)))
      (is (= 2 (number-of (lab.bench:ask channel (note 1)
                                         :metadata `(("x-a" . "1") ("x-b-bin" . ,(octets-of 1)))))))
      (is (equal `((":method" . "POST") (":scheme" . "http") (":path" . "/lab.Bench/Ask")
                   (":authority" . ,(grpc:channel-target channel)) ("te" . "trailers")
                   ("content-type" . "application/grpc"))
                 (subseq (exchange-headers seen) 0 6)))
      (is (uiop:string-prefix-p "grpc-lisp-clgrpc/"
                                (field-of "user-agent" (exchange-headers seen))))
      (is (null (field-of "grpc-timeout" (exchange-headers seen))))
      (is (equal '(("x-a" . "1") ("x-b-bin" . "AQ")) (last (exchange-headers seen) 2)))
      (is (equalp (note-octets 1) (exchange-data-octets seen)))
      (lab.bench:ask channel (note 1) :timeout 2)
      (let ((timeout (status:parse-timeout (ascii-octets (field-of "grpc-timeout"
                                                                (exchange-headers seen))))))
        (is (< 1900000000 timeout 2000100000)))
      ;; right after the reserved headers
      (is (equal "grpc-timeout" (car (nth 4 (exchange-headers seen))))))))
