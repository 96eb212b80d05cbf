;;;; Attributes and the resource.

(in-package #:clgrpc.tests.otlp)

(defun passed-on (type message)
  "MESSAGE, of TYPE, as it arrives."
  (grpc:parse-message type (grpc:serialize message)))

(defun value-of (value)
  "Two values: the contents of ANY-VALUE's message for VALUE after its arrival, and their case."
  (common:any-value-value (passed-on 'common:any-value (otlp::any-value value))))

(test values-of-attributes-arrive
  (flet ((arrives (value case)
           (multiple-value-bind (read found) (value-of value)
             (is (eql case found) "~S came as ~S" value found)
             (is (equalp value read) "~S came as ~S" value read))))
    (arrives "" :string-value)
    (arrives "ä" :string-value)
    (arrives t :bool-value)
    (arrives nil :bool-value)
    (arrives 0 :int-value)
    (arrives (- (expt 2 63)) :int-value)
    (arrives 1.5d0 :double-value)
    (arrives (octets-of 1 2) :bytes-value))
  (is (equal '("18446744073709551616" :string-value)
             (multiple-value-list (value-of (expt 2 64)))))
  (is (equalp '("a" 2)
              (map 'list #'common:any-value-value
                   (common:array-value-values (value-of #("a" 2)))))))

(defun attribute (name attributes)
  (cdr (assoc name attributes :test #'string=)))

(test the-resource-says-whose-telemetry-it-is
  (let ((plain (otlp:resource-attributes '() (variables)))
        (named (otlp:resource-attributes
                '() (variables "OTEL_RESOURCE_ATTRIBUTES"
                               "service.name=a,deployment.environment.name=test%20bed")))
        (both (otlp:resource-attributes
               '() (variables "OTEL_RESOURCE_ATTRIBUTES" "service.name=a"
                              "OTEL_SERVICE_NAME" "b")))
        (given (otlp:resource-attributes
                '(("service.name" . "c") ("n" . 1)) (variables "OTEL_SERVICE_NAME" "b"))))
    (is (string= "unknown_service:clgrpc" (attribute "service.name" plain)))
    (is (string= "clgrpc" (attribute "telemetry.sdk.name" plain)))
    (is (string= "a" (attribute "service.name" named)))
    (is (string= "test bed" (attribute "deployment.environment.name" named)))
    (is (string= "b" (attribute "service.name" both)))
    (is (string= "c" (attribute "service.name" given)))
    (is (= 1 (attribute "n" given)))
    (is (= 1 (count "service.name" given :key #'car :test #'string=)))
    (with-log ()
      (is (string= "unknown_service:clgrpc"
                   (attribute "service.name"
                              (otlp:resource-attributes
                               '() (variables "OTEL_RESOURCE_ATTRIBUTES"
                                              "service.name=a,broken")))))
      (is (= 1 (length (events-of :otlp-variable-ignored)))))))

(test instances-are-told-apart
  (let ((ids (loop repeat 100 collect (otlp::new-instance-id))))
    (is (= 100 (length (remove-duplicates ids :test #'string=))))
    (dolist (id ids)
      (is (= 36 (length id)))
      (is (equal '(8 13 18 23) (loop for char across id
                                     for at from 0
                                     when (char= #\- char) collect at)))
      (is (char= #\4 (char id 14)))
      (is (find (char id 19) "89ab")))))
