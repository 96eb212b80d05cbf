;;;; See src/http/http2/header.lisp; malformed messages are in tests/support/dialogue/message.lisp.

(in-package #:clgrpc.tests.http2)

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

(test octets-of-names-and-values
  "Each octet, at the beginning, within and at the end of a name and of a value (8.2.1). Metadata
and messages may have blanks at the ends."
  (flet ((sound-p (name value)
           (/= h2::+kind-malformed+
               (h2:field-kind-of (hpack:make-field (coerce name 'octets)
                                                   (coerce value 'octets))))))
    (dotimes (octet 256)
      (let ((token (and (< 32 octet 127) (/= 58 octet) (not (<= 65 octet 90))))
            (text (not (member octet '(0 10 13))))
            (visible (not (member octet '(0 9 10 13 32))))
            (type (ascii-octets "content-type")))
        (dolist (name (list '(120) (ascii-octets "grpc-message")))
          (is (eq text (sound-p name (list octet 120))))
          (is (eq text (sound-p name (list 120 octet)))))
        (is (eq token (sound-p (list octet 120) '(120))) "~D begins a name" octet)
        (is (eq token (sound-p (list 120 octet 120) '(120))) "~D is in a name" octet)
        (is (eq token (sound-p (list 120 octet) '(120))) "~D ends a name" octet)
        (is (eq visible (sound-p type (list octet 120))) "~D begins a value" octet)
        (is (eq text (sound-p '(120) (list 120 octet 120))) "~D is in a value" octet)
        (is (eq visible (sound-p type (list 120 octet))) "~D ends a value" octet)))))

(test statuses-of-responses
  "Three digits from 100 to 999, but not 101 (8.6)."
  (dotimes (status 1100)
    (is (eq (and (<= 100 status 999) (/= 101 status))
            (/= h2::+kind-malformed+ (kind ":status" (princ-to-string status))))
        "~D" status))
  (dolist (text '("" "20" "2000" "20a" "a00" "2/0" "2:0" "20/" "20:" "/00" ":00" "+20"))
    (is (= h2::+kind-malformed+ (kind ":status" text)) "~A" text)))

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
