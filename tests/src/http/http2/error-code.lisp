;;;; See src/http/http2/error-code.lisp.

(in-package #:clgrpc.tests.http2)

(test error-names
  "Codes have the numbers and names of RFC 9113 section 7; unknown ones a description."
  (loop for (code name) in `((,h2:+no-error+ "NO_ERROR") (,h2:+protocol-error+ "PROTOCOL_ERROR")
                             (,h2:+cancel+ "CANCEL") (13 "HTTP_1_1_REQUIRED")
                             (11 "ENHANCE_YOUR_CALM") (77 "error code 77"))
        do (is (string= name (h2:error-code-name code)))))
