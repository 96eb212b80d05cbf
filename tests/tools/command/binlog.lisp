;;;; `binlog` of a file, of none, of one that is cut.

(in-package #:clgrpc.tests.tools)

(test binlog-prints-entries-as-json
  (uiop:with-temporary-file (:pathname path)
    (let ((log (grpc:make-binary-log :filter "*" :file path))
          (server (grpc:start-server (make-instance 'helloworld:greeter))))
      (unwind-protect
           (grpc:with-channel (channel (grpc:server-address server) :observer log)
             (signals grpc:unimplemented
               (helloworld.greeter:say-hello channel
                                             (helloworld:make-hello-request :name "Ada")
                                             :timeout 20)))
        (grpc:stop-server server :drain 0)
        (grpc:close-binary-log log)))
    (multiple-value-bind (code output) (run-line "binlog" (namestring path))
      (is (eql 0 code))
      (let ((entries (mapcar #'base:parse-json
                             (remove "" (uiop:split-string output :separator '(#\Newline))
                                     :test #'string=))))
        (is (equal '("EVENT_TYPE_CLIENT_HEADER" "EVENT_TYPE_CLIENT_MESSAGE"
                     "EVENT_TYPE_CLIENT_HALF_CLOSE" "EVENT_TYPE_SERVER_TRAILER")
                   (loop for entry in entries
                         collect (cdr (assoc "type" entry :test #'string=)))))))
    (with-open-file (out path :direction :output :if-exists :supersede
                              :element-type '(unsigned-byte 8))
      (write-sequence '(0 0 1 0 7) out))
    (multiple-value-bind (code output error-output) (run-line "binlog" (namestring path))
      (declare (ignore output))
      (is (eql 1 code))
      (is (search "within an entry" error-output))))
  (fails-p 1 "clgrpc binlog: /: " "binlog" "/")
  (multiple-value-bind (code output error-output) (run-line "binlog" "/nowhere/at/all")
    (is (eql 1 code))
    (is (string= "" output))
    (is (equal (format nil "clgrpc binlog: /nowhere/at/all: No such file or directory~%")
               error-output))))
