;;;; gRPC over HTTP/2 with messages in JSON: an answer, and requests refused before a handler runs.

(in-package #:clgrpc.tests.web)

(defun in-envelope (text)
  "TEXT as a message of gRPC that is not compressed."
  (format nil "~{~C~}~A" (mapcar #'code-char (list 0 0 0 0 (length text))) text))

(test grpc-in-json
  "An answer is JSON in an envelope, and its status is in trailers. A path without a method, a wrong
time-out and a time-out that is over reach no handler."
  (let ((calls 0))
    (with-probe (channel :server server :options '(:protocols (:grpc-json)))
        (:ask (lambda (request call)
                (incf calls)
                (double request call)))
      (flet ((answer (path &rest fields)
               (let ((forms (frames-answered
                             server
                             `((:headers 1 ,(apply #'head-fields
                                                   (list nil (format nil "POST ~A" path)
                                                         "application/grpc+json")
                                                   fields))
                               (:data 1 ,(in-envelope "{\"number\":21}") :end-stream)))))
                 (is (eql 200 (answer-status forms 1)))
                 (prin1-to-string forms))))
        (let ((text (answer "/lab.Bench/Ask" '("grpc-timeout" "20S"))))
          (dolist (part '("application/grpc+json" "number" "42" "(\"grpc-status\" \"0\")"))
            (is (search part text) "~A in ~A" part text)))
        (is (= 1 calls))
        (is (search "(\"grpc-status\" \"12\")" (answer "/lab.Bench/Nothing")))
        (is (search "(\"grpc-status\" \"13\")" (answer "/lab.Bench/Ask" '("grpc-timeout" "1x"))))
        (is (search "(\"grpc-status\" \"4\")" (answer "/lab.Bench/Ask" '("grpc-timeout" "0S"))))
        (is (= 1 calls))))))
