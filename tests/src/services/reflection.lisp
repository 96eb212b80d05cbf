;;;; Reflection: the answers of both versions about the server's services and their files.

(in-package #:clgrpc.tests.services)

(defun call-with-reflection (function)
  "Call FUNCTION with a channel to a server of a probe with reflection."
  (with-started (server (grpc:start-server (cons (make-probe) (grpc:reflection-services))))
    (grpc:with-channel (channel (grpc:server-address server)) (funcall function channel))))

(defun reflect (channel &rest requests)
  "Send REQUESTS, plists of one field, to version v1 on one stream; return the answers as a list of
(case value)."
  (let ((call (v1-methods:server-reflection-info
               channel (loop for request in requests
                             collect (apply #'v1:make-server-reflection-request
                                            :host "here" request))
               :timeout +patience+))
        (answers '()))
    (grpc:do-messages (response call (nreverse answers))
      (is (string= "here" (v1:server-reflection-response-valid-host response)))
      (multiple-value-bind (value case) (v1:server-reflection-response-message-response response)
        (push (list case value) answers)))))

(defun file-names (answer)
  (map 'list (lambda (octets)
               (google.protobuf:file-descriptor-proto-name
                (grpc:parse-message 'google.protobuf:file-descriptor-proto octets)))
       (v1:file-descriptor-response-file-descriptor-proto (second answer))))

(defun error-code (answer)
  (and (eq :error-response (first answer))
       (v1:error-response-error-code (second answer))))

(test services-are-listed
  (call-with-reflection
   (lambda (channel)
     (is (equal '("grpc.reflection.v1.ServerReflection" "grpc.reflection.v1alpha.ServerReflection"
                  "lab.Bench")
                (map 'list #'v1:service-response-name
                     (v1:list-service-response-service
                      (second (first (reflect channel '(:list-services "")))))))))))

(test services-of-the-server-are-listed
  "A server lists its own services even if another server has the same reflection services or has
stopped."
  (let* ((services (grpc:reflection-services))
         (first (grpc:start-server (cons (make-probe) services)))
         (second (grpc:start-server services)))
    (flet ((listed (channel)
             (map 'list #'v1:service-response-name
                  (v1:list-service-response-service
                   (second (first (reflect channel '(:list-services ""))))))))
      (unwind-protect
           (let ((within (grpc:server-channel first)))
             (unwind-protect
                  (grpc:with-channel (channel (grpc:server-address first))
                    (grpc:with-channel (other (grpc:server-address second))
                      (is (= 3 (length (listed channel)) (length (listed within))))
                      (is (equal (remove "lab.Bench" (listed channel) :test #'string=)
                                 (listed other))))
                    (grpc:stop-server second)
                    (is (= 3 (length (listed channel)))))
               (grpc:close-channel within)))
        (grpc:stop-server first)
        (grpc:stop-server second)))))

(test files-are-found
  (call-with-reflection
   (lambda (channel)
     (dolist (symbol '("lab.Bench" "lab.Bench.Ask" "lab.Note" "lab.Note.number"))
       (is (equal '("bench.proto")
                  (file-names (first (reflect channel (list :file-containing-symbol symbol)))))
           "~A" symbol))
     (let ((name "google/rpc/status.proto"))
       (is (equal (list name "google/protobuf/any.proto")
                  (file-names (first (reflect channel (list :file-by-filename name)))))))
     (is (equal '(("google/rpc/status.proto" "google/protobuf/any.proto")
                  ("google/rpc/status.proto")
                  ("google/protobuf/any.proto"))
                (mapcar #'file-names
                        (reflect channel '(:file-by-filename "google/rpc/status.proto")
                                 '(:file-containing-symbol "google.rpc.Status")
                                 '(:file-by-filename "google/protobuf/any.proto"))))
         "an import is sent once, a requested file each time"))))

(test files-are-serialized-once
  "A request of a few octets must not cost a thousand times as many each time."
  (let ((service (first (grpc:reflection-services)))
        (file (protobuf:find-file-descriptor "google/protobuf/descriptor.proto")))
    (flet ((answer ()
             (services::files-answer service file (make-hash-table :test 'equal))))
      (let ((first (second (answer))))
        (is (equalp (protobuf:file-descriptor-octets file) first))
        (is (eq first (second (answer))))))))

(grpc:define-proto "reflected.proto"
  :source "syntax = \"proto2\"; package reflected;
           message Base { extensions 100 to 199; }
           extend Base { optional string tag = 126; optional int32 rank = 101; }")

(test extensions-are-found
  (call-with-reflection
   (lambda (channel)
     (let ((numbers (second (first (reflect channel '(:all-extension-numbers-of-type
                                                      "reflected.Base"))))))
       (is (string= "reflected.Base" (v1:extension-number-response-base-type-name numbers)))
       (is (equalp #(101 126) (coerce (v1:extension-number-response-extension-number numbers)
                                      'simple-vector))))
     (flet ((extension (number)
              (first (reflect channel (list :file-containing-extension
                                            (v1:make-extension-request
                                             :containing-type "reflected.Base"
                                             :extension-number number))))))
       (is (equal '("reflected.proto") (file-names (extension 126))))
       (is (= 5 (error-code (extension 127))))))))

(test what-is-not-there
  (call-with-reflection
   (lambda (channel)
     (is (equal '(5 5 5 3)
                (mapcar #'error-code
                        (reflect channel '(:file-by-filename "no.proto")
                                 '(:file-containing-symbol "no.Such")
                                 '(:all-extension-numbers-of-type "no.Such")
                                 '())))))))

(test the-first-version-answers-as-well
  (call-with-reflection
   (lambda (channel)
     (let ((call (v1alpha-methods:server-reflection-info
                  channel (list (v1alpha:make-server-reflection-request :list-services "x"))
                  :timeout +patience+)))
       (is (= 3 (length (v1alpha:list-service-response-service
                         (v1alpha:server-reflection-response-list-services-response
                          (grpc:receive call))))))
       (is (null (grpc:receive call)))))))
