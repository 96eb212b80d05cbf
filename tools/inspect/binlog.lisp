;;;; `binlog`: a binary log (gRFC A16), ours or another gRPC library's, as JSON, an entry a line.

(in-package #:clgrpc.tools)

(define-command "binlog"
    (((file "FILE" #'identity "A binary log: entries, each after its length in four octets."))
     ())
    "Print a binary log (gRFC A16) as JSON, a line for each entry."
  (handler-case
      (with-open-file (stream (sb-ext:parse-native-namestring file)
                              :element-type '(unsigned-byte 8))
        (loop for entry = (handler-case (grpc:read-binary-log stream)
                            ;; not an error of the standard output
                            (stream-error (error)
                              (fail-command "~A: ~A" file (report:error-reason error))))
              while entry do (format t "~A~%" (grpc:message-json entry))))
    (file-error (error) (fail-command "~A: ~A" file (report:error-reason error)))
    ((or misuse grpc:protobuf-error) (error) (fail-command "~A: ~A" file error)))
  0)
