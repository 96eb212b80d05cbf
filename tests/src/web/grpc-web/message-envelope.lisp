;;;; gRPC-Web: messages and trailers in the body.

(in-package #:clgrpc.tests.web)

(test grpc-web-answers-with-trailers-in-the-body
  "In binary and text mode, for a unary call and a stream of messages."
  (with-web-probe (server) (:ask #'double :watch #'count-up)
    (dolist (version *versions*)
      (is (string= "AAAAAAIIAg==gAAAABBncnBjLXN0YXR1czogMA0K"
                   (post server "/lab.Bench/Ask" "application/grpc-web-text" "AAAAAAIIAQ=="
                         version)))
      (is (string= "AAAAAAA=AAAAAAIIAQ==gAAAABBncnBjLXN0YXR1czogMA0K"
                   (post server "/lab.Bench/Watch" "application/grpc-web-text" "AAAAAAIIAg=="
                         version))))))

(test grpc-web-says-how-a-call-failed
  "If a call has no handler, or its handler has failed, the status is in the body as well."
  (with-web-probe (server) (:ask #'refuse)
    (flet ((trailers (path)
             (let ((text (post server path "application/grpc-web-text" "AAAAAAIIAQ==")))
               (octets-string (decode-base64 text) :start 5))))
      (is (search "grpc-status: 5" (trailers "/lab.Bench/Ask")))
      (is (search "grpc-message: no such note" (trailers "/lab.Bench/Ask")))
      (is (search "grpc-status: 12" (trailers "/lab.Bench/None"))))))

(test numbers-of-statuses-that-have-no-keyword
  "A handler's number above 16 is sent unchanged, here and by gRPC."
  (with-probe (channel :server server :options (list :protocols '(:grpc :grpc-web)))
      (:ask (handling ()
              (grpc:fail 99 "odd" :details (list (lab:make-note :number 7)))))
    (let ((error (handler-case (lab.bench:ask channel (note 1))
                   (grpc:rpc-error (error) error))))
      (is (eq :unknown (grpc:rpc-error-status error)))
      (is (= 99 (google.rpc:status-code
                 (grpc:parse-message 'google.rpc:status (grpc:rpc-error-details-octets error)))))
      (is (= 7 (number-of (grpc:rpc-error-detail error 'lab:note)))))
    (is (search "grpc-status: 99" (octets-string
                                   (decode-base64
                                    (post server "/lab.Bench/Ask" "application/grpc-web-text"
                                          "AAAAAAIIAQ=="))
                                   :start 5)))))

(test text-that-is-no-base64
  "A malformed request in text mode ends with a status, not with the connection; so does a request
with padding within a group."
  (with-web-probe (server) (:ask #'double)
    (dolist (version *versions*)
      (dolist (digits '("AAAA*AIIAQ==" "AAAAAAIIAQ=" "AAAAAAIIA=" "AAAAAAIIAQ==="))
        (let ((text (post server "/lab.Bench/Ask" "application/grpc-web-text" digits version)))
          (is (search "grpc-status: 13" (octets-string (decode-base64 text) :start 5))
              "~S: ~S" digits text))))))

(test text-in-pieces
  "The digits come in groups, each of which may be padded; the last need not be."
  (with-web-probe (server) (:ask #'double)
    (dolist (version *versions*)
      (dolist (digits '("AAAAAAIIAQ==" "AAAAAAIIAQ" "AA==AA==AA==AA==Ag==CA==AQ==" "AAA=AAACCAE="
                        "AAA=AAACCAE"))
        (is (string= "AAAAAAIIAg==gAAAABBncnBjLXN0YXR1czogMA0K"
                     (post server "/lab.Bench/Ask" "application/grpc-web-text" digits version))
            "~S" digits)))))
