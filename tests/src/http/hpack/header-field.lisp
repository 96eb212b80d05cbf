;;;; Fields: their parts, their strings, how they print.

(in-package #:clgrpc.tests.hpack)

(test field-parts
  (let ((field (string-field "grpc-status" "0")))
    (is (equalp (ascii-octets "grpc-status") (field-name field)))
    (is (equalp (ascii-octets "0") (field-value field)))
    (is (= (+ 32 11 1) (field-size field)))
    (is (not (field-sensitive-p field)))
    (is (eql 0 (field-kind field)))
    (is (null (field-memo field)))
    (setf (field-kind field) 7
          (field-memo field) :route)
    (is (eql 7 (field-kind field)))
    (is (eq :route (field-memo field)))))

(test field-strings
  "Strings are made once; ASCII gives base strings, anything else ISO 8859-1."
  (let ((field (make-field (ascii-octets "x") (octets-of 97 233 255))))
    (is (typep (field-name-string field) 'simple-base-string))
    (is (eq (field-value-string field) (field-value-string field)))
    (is (equal (map 'string #'code-char '(97 233 255)) (field-value-string field)))))

(test secrets-are-not-printed
  (flet ((printed (&rest arguments) (princ-to-string (apply #'string-field arguments))))
    (is (search "application/grpc" (printed "content-type" "application/grpc")))
    (is (null (search "hunter2" (printed "x-key" "hunter2" :sensitive t))))
    (is (null (search "hunter2" (printed "authorization" "hunter2"))))
    (is (null (search "hunter2" (printed ":path" "/a?token=hunter2"))))))
