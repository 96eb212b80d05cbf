;;;; The static table: ends and middle of RFC 7541 appendix A, and the search in it.

(in-package #:clgrpc.tests.hpack)

(test static-entries
  (loop for (index name value) in '((1 ":authority" "") (2 ":method" "GET") (3 ":method" "POST")
                                    (4 ":path" "/") (5 ":path" "/index.html") (6 ":scheme" "http")
                                    (8 ":status" "200") (14 ":status" "500")
                                    (16 "accept-encoding" "gzip, deflate") (23 "authorization" "")
                                    (28 "content-length" "") (31 "content-type" "")
                                    (38 "host" "") (54 "server" "") (58 "user-agent" "")
                                    (61 "www-authenticate" ""))
        do (is (equal (list (list name value)) (decoded (format nil "~2,'0X" (+ 128 index)))))))

(test static-search
  "Every entry is found at its own index, a name alone at the first index that has it."
  (loop for index from 1 to 61
        for entry = (svref hpack::**static-fields** index)
        for copy = (make-field (field-name entry) (field-value entry))
        do (is (= index (hpack::static-match copy) (hpack::static-match entry))))
  (flet ((name-index (name)
           (- (hpack::static-match (string-field name "no such value"))
              hpack::+static-name-only+)))
    (is (= 2 (name-index ":method")))
    (is (= 8 (name-index ":status")))
    (is (= 61 (name-index "www-authenticate")))
    (is (= 0 (name-index "grpc-status")))
    (is (= 0 (name-index "")))
    (is (= 0 (name-index (make-string 1000 :initial-element #\x))))))
