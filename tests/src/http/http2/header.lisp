;;;; See src/http/http2/header.lisp; malformed messages are in tests/support/dialogue/message.lisp.

(in-package #:clgrpc.tests.http2)
(in-suite :clgrpc.http2)

(defun kind (name value)
  (h2:field-kind-of (hpack:string-field name value)))

(test kinds-of-fields
  "Each known name has its kind, every other one is +KIND-OTHER+."
  (loop for (name value kind)
          in `((":path" "/" ,h2:+kind-path+) (":status" "200" ,h2::+kind-status+)
               ("te" "trailers" ,h2::+kind-te+) ("content-type" "x" ,h2:+kind-content-type+)
               ("grpc-timeout" "1S" ,h2:+kind-grpc-timeout+)
               ("grpc-status" "0" ,h2::+kind-grpc-status+)
               ("grpc-message" "" ,h2::+kind-grpc-message+)
               ("user-agent" "x" ,h2:+kind-user-agent+) ("x-other" "x" ,h2:+kind-other+)
               ("grpc-statuz" "0" ,h2:+kind-other+) ("connection" "x" ,h2::+kind-malformed+)
               (":other" "x" ,h2::+kind-malformed+) ("" "x" ,h2::+kind-malformed+))
        do (is (= kind (kind name value)) "~A: ~A" name value)))

(test kinds-are-remembered
  "The kind is found once and stands in the field."
  (let ((field (hpack:string-field "te" "trailers")))
    (is (zerop (hpack:field-kind field)))
    (is (= h2::+kind-te+ (h2:field-kind-of field) (hpack:field-kind field)))))

(test content-lengths
  "Digits only, at most 18."
  (loop for (text value) in '(("0" 0) ("123" 123) ("007" 7)
                              ("999999999999999999" 999999999999999999)
                              ("" -2) ("+1" -2) ("1 " -2) ("1234567890123456789" -2))
        do (is (= value (h2::parse-content-length (ascii-octets text))))))
