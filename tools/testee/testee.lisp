;;;; `testee`: the other end of a public conformance suite that starts the program it judges and
;;;; talks to it on standard input and output. For `protobuf` the suite is the conformance runner of
;;;; Protocol Buffers: each request holds a message in one format, each response the same message in
;;;; another, both with their length in four octets, little-endian, before them. The other testees
;;;; are in connect.lisp, policy-client.lisp and metrics.lisp.

(in-package #:clgrpc.testee)

(defun read-framed (stream reader)
  "Read a length, which READER decodes from four octets, and as many octets from STREAM. Return nil
at the end of STREAM."
  (let ((head (make-octets 4)))
    (when (= 4 (read-sequence head stream))
      (let* ((length (funcall reader head 0))
             (octets (make-octets length)))
        (unless (= length (read-sequence octets stream))
          (misuse "The input ends within a request of ~D octets." length))
        octets))))

(defun write-framed (octets stream writer)
  "Write OCTETS to STREAM after their length, which WRITER puts into four octets."
  (let ((head (make-octets 4)))
    (funcall writer (length octets) head 0)
    (write-sequence head stream)
    (write-sequence octets stream)
    (finish-output stream)))

(defun read-payload (request type)
  "The message of TYPE that REQUEST holds, or nil if the message is in a format that we do not
support."
  (multiple-value-bind (payload format) (conformance:conformance-request-payload request)
    (case format
      (:protobuf-payload (protobuf:parse-message type payload))
      (:json-payload
       (protobuf:parse-json-message
        type payload
        :ignore-unknown (eq :json-ignore-unknown-parsing-test
                            (conformance:conformance-request-test-category request))))
      (:text-payload (protobuf:parse-text-message type payload)))))

(defun write-payload (request message)
  "The response with MESSAGE in the format that REQUEST asks for."
  (case (conformance:conformance-request-requested-output-format request)
    (:protobuf
     (conformance:make-conformance-response :protobuf-payload (protobuf:serialize message)))
    (:json
     (conformance:make-conformance-response :json-payload (protobuf:message-json message)))
    (:text-format
     (conformance:make-conformance-response
      :text-payload
      (protobuf:message-text
       message :unknown (conformance:conformance-request-print-unknown-fields request))))
    (t (conformance:make-conformance-response :skipped "no such format here"))))

(defun answer-conformance (request)
  (let* ((name (conformance:conformance-request-message-type request))
         (type (protobuf:find-message-type name))
         (message nil))
    (handler-case
        (cond ((null type)
               (conformance:make-conformance-response
                :runtime-error (format nil "There is no message type ~A." name)))
              ((setf message (read-payload request type)) (write-payload request message))
              (t (conformance:make-conformance-response :skipped "no such format here")))
      (protobuf:protobuf-error (error)
        (if message
            (conformance:make-conformance-response :serialize-error (princ-to-string error))
            (conformance:make-conformance-response :parse-error (princ-to-string error))))
      (error (error)
        (conformance:make-conformance-response :runtime-error (princ-to-string error))))))

(defun serve-conformance (input output)
  "Answer the requests that come from the stream INPUT on the stream OUTPUT until INPUT ends."
  (loop for octets = (read-framed input #'u32le)
        while octets
        do (write-framed (protobuf:serialize
                          (answer-conformance
                           (protobuf:parse-message 'conformance:conformance-request octets)))
                         output #'(setf u32le)))
  0)

(defparameter *testees*
  '(("protobuf" . serve-conformance)
    ("connect-server" . serve-connect-suite)
    ("connect-gateway" . forward-for-connect-suite)
    ("connect-client" . call-for-connect-suite)
    ("policy" . be-driven)
    ("metrics" . be-measured)
    ("transcode" . serve-lab))
  "The testees by their names: functions of the streams that lead to the runner.")

(define-command "testee"
    (((role "SUITE"
            (lambda (name)
              (or (cdr (assoc name *testees* :test #'string=))
                  (refuse "there is no ~S, only ~{~A~^, ~}" name (mapcar #'car *testees*))))
            "The role to play: protobuf, connect-server, connect-gateway, connect-client, policy,
      metrics or transcode."))
     ())
    "Be judged by a public conformance suite on standard input and output. `make conformance`
fetches and runs the suites."
  (funcall role (octet-input) (make-standard-output)))
