;;;; What is said of a server, as text in the store.

(in-package #:clgrpc.tests.discovery)

(defun parsed (text)
  "What TEXT says of a server, a list, or why it says nothing."
  (multiple-value-bind (endpoint why) (clgrpc.discovery::parse-endpoint text)
    (if endpoint
        (list (discovery:endpoint-address endpoint) (discovery:endpoint-weight endpoint)
              (discovery:endpoint-zone endpoint) (discovery:endpoint-hash-key endpoint)
              (discovery:endpoint-state endpoint) (discovery:endpoint-metadata endpoint))
        why)))

(test what-go-writes
  "What etcd's package for Go and its forerunners write, and people by hand."
  (is (equal '("10.0.0.1:50051" nil nil nil :serving ())
             (parsed "{\"Op\":0,\"Addr\":\"10.0.0.1:50051\",\"Metadata\":null}")))
  (is (equal '("10.0.0.1:50051" nil nil nil :serving (("" . "blue")))
             (parsed "{\"Op\":0,\"Addr\":\"10.0.0.1:50051\",\"Metadata\":\"blue\"}")))
  (is (equal '("h:1" nil nil nil :serving ()) (parsed "{\"addr\":\"h:1\"}")))
  (is (equal '("h:1" 3 "a" "k" :draining (("version" . 7)))
             (parsed "{\"Addr\":\"h:1\",\"Metadata\":{\"Weight\":3,\"zone\":\"a\",\"hashKey\":\"k\",
                      \"state\":\"draining\",\"version\":7}}")))
  (is (equal '("h:1" nil nil nil :serving ())
             (parsed "{\"Addr\":\"h:1\",\"Metadata\":{\"weight\":0,\"zone\":1,\"state\":[]}}"))
      "what is wrong counts as not said")
  (let ((long (make-string 512 :initial-element #\z)))
    (is (equal `(,long 65535 ,long ,long :serving ())
               (parsed (format nil "{\"Addr\":\"~A\",\"Metadata\":{\"weight\":65535,~
                                    \"zone\":\"~:*~A\",\"hashKey\":\"~:*~A\"}}" long)))))
  (dolist (weight '("-1" "0" "65536" "99999999999999999999999999" "1.5" "\"3\""
                    "true" "null" "{}"))
    (is (equal '("h:1" nil nil nil :serving ())
               (parsed (format nil "{\"Addr\":\"h:1\",\"Metadata\":{\"weight\":~A}}" weight)))
        "a weight of ~A" weight))
  (let ((long (make-string 513 :initial-element #\z)))
    (is (equal '("h:1" nil nil nil :serving ())
               (parsed (format nil "{\"Addr\":\"h:1\",\"Metadata\":{\"zone\":\"~A\",~
                                    \"hashKey\":\"~:*~A\"}}" long))))))

(test what-says-nothing
  (dolist (text (list "" "10.0.0.1:50051" "[]" "{}" "{\"Addr\":\"\"}" "{\"Addr\":5}"
                      "{\"Addr\":\"a:1\""
                      "{\"Addr\":\"a:1\",\"Metadata\":{\"weight\":1e999}}"
                      (format nil "{\"Addr\":\"~A\"}" (make-string 513 :initial-element #\a))
                      (format nil "{\"Addr\":\"~A\"}" (make-string 70000 :initial-element #\a))
                      (format nil "{\"Addr\":\"a:1\",\"Metadata\":~A~A}"
                              (make-string 30 :initial-element #\[)
                              (make-string 30 :initial-element #\]))))
    (is (stringp (parsed text)) "~A" text))
  (is (stringp (parsed (clgrpc.base:octets-of 255 254)))))

(test text-and-back
  (let ((endpoint (clgrpc.discovery::make-endpoint
                   :address "[::1]:1" :weight 5 :zone "b" :hash-key "x" :state :draining
                   :metadata '(("build" . "2") ("tags" . #("a" "b"))))))
    (is (equal (concatenate 'string "{\"Op\":0,\"Addr\":\"[::1]:1\",\"Metadata\":{\"weight\":5,"
                            "\"zone\":\"b\",\"hashKey\":\"x\",\"state\":\"draining\","
                            "\"build\":\"2\",\"tags\":[\"a\",\"b\"]}}")
               (clgrpc.discovery::endpoint-json endpoint)))
    (is (equalp endpoint (clgrpc.discovery::parse-endpoint
                          (clgrpc.discovery::endpoint-json endpoint))))
    (is (equal '(:weight 5 :hash-key "x" :zone "b" :path ("b"))
               (clgrpc.discovery::endpoint-attributes endpoint)))))
