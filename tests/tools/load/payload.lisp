(in-package #:clgrpc.tests.load)

(defun frames-of (payload &optional (number 0))
  (let ((maker (load::payload-maker payload)))
    (map 'list (lambda (frame) (coerce frame 'list))
         (if maker
             (funcall maker (load::make-call-data :number number))
             (load::payload-frames payload)))))

(defun json-frames-of (text &key (method (base-method)) (number 0))
  (frames-of (load:json-payload text method (constantly nil)) number))

(test json-data
  "One message, or an array of them, as frames; field 1 of HealthCheckRequest is the service."
  (is (equal '((0 0 0 0 3 10 1 97)) (json-frames-of "{\"service\":\"a\"}")))
  (is (equal '((0 0 0 0 3 10 1 97) (0 0 0 0 0) (0 0 0 0 3 10 1 93))
             (json-frames-of " [ {\"service\":\"a\"} , {}, {\"service\":\"]\"}] ")))
  (is (equal '((0 0 0 0 0)) (json-frames-of "[]")) "a unary call always has a request"))

(test templates-in-data
  (is (equal '((0 0 0 0 4 10 2 52 50)) (json-frames-of "{\"service\":\"{{.RequestNumber}}\"}"
                                                       :number 42))))

(test compressed-data
  (let ((frame (first (frames-of (load:compress-payload
                                  (load:json-payload "{\"service\":\"{{.RequestNumber}}\"}"
                                                     (base-method) (constantly nil)))
                                 42))))
    (is (= 1 (first frame)) "compressed")
    (is (equal '(31 139) (subseq frame 5 7)) "gzip (RFC 1952)")
    (is (= (- (length frame) 5) (fifth frame)))))

(test data-without-templates
  (is (equal '((0 0 0 0 7 10 5 123 123 120 125 125))
             (frames-of (load:json-payload "{\"service\":\"{{x}}\"}" (base-method)
                                           (constantly nil) :templates nil)))))

(test wrong-data
  (signals protobuf:protobuf-error (json-frames-of "{\"nothing\":1}"))
  (signals error (json-frames-of "[{},{]")))

(test binary-data
  (is (equal '((0 0 0 0 3 10 1 97))
             (frames-of (load:binary-payload (base:octets-of 10 1 97) (base-method)))))
  (let ((stream (method:stub-method 'routeguide.route-guide:record-route)))
    (is (equal '((0 0 0 0 2 8 1) (0 0 0 0 0))
               (frames-of (load:binary-payload (base:octets-of 2 8 1 0) stream))))
    (is (null (json-frames-of "[]" :method stream)))
    (signals load:template-error (load:binary-payload (base:octets-of 3 8 1) stream))
    (signals load:template-error
      (load:binary-payload (base:octets-of 255 255 255 255 255 255 255) stream))))

(test metadata
  (let ((fields (load:compile-metadata `(("a" . "b") ("x-bin" . ,(base:octets-of 1 2))))))
    (is (equal '("a" "b" "x-bin" "AQI")
               (loop for field across fields
                     collect (hpack:field-name-string field)
                     collect (hpack:field-value-string field)))))
  (multiple-value-bind (fields maker) (load:compile-metadata '(("a" . "n{{.RequestNumber}}")))
    (is (null fields))
    (is (string= "n5" (hpack:field-value-string
                       (aref (funcall maker (load::make-call-data :number 5)) 0))))))
