;;;; The cases of gRPC's document "Interop Test Case Descriptions", as a client plays them. A case
;;;; is a function of a channel that returns when the server has done what the document asks of it,
;;;; and signals an error when it has not. Those of compression are here so far.

(in-package #:clgrpc.tools)

(defvar *interop-cases* '() "An alist from the name of a case to its function.")

(define-condition interop-failure (clgrpc-error)
  ((text :initarg :text :reader interop-failure-text))
  (:report (lambda (condition stream) (write-string (interop-failure-text condition) stream)))
  (:documentation "A server has not done what a case asks of it."))

(defmacro define-interop-case (name (channel) documentation &body body)
  "Define the case NAME, a string."
  `(setf *interop-cases*
         (append (remove ,name *interop-cases* :key #'car :test #'string=)
                 (list (cons ,name (lambda (,channel) ,documentation ,@body))))))

(defun run-interop-case (name channel)
  "Play the case NAME to the server of CHANNEL. Signal an INTEROP-FAILURE or the RPC-ERROR of a call
if it does not pass."
  (funcall (the function (or (cdr (assoc name *interop-cases* :test #'string=))
                             (refuse "there is no case ~S; there are ~{~A~^, ~}" name
                                     (mapcar #'car *interop-cases*))))
           channel)
  nil)

(defun expect-that (true control &rest arguments)
  "Fail the case with the text that CONTROL and ARGUMENTS format unless TRUE."
  (unless true (error 'interop-failure :text (format nil "~?" control arguments))))

(defun expect-status (status function)
  "Fail the case unless FUNCTION, which calls, signals the RPC-ERROR of STATUS."
  (let ((found (handler-case (progn (funcall function) :ok)
                 (grpc:rpc-error (error) (grpc:rpc-error-status error)))))
    (expect-that (eq status found) "the call ended with ~(~A~), not ~(~A~)" found status)))

(defparameter *interop-timeout* 30 "The seconds that a call of a case may take.")

(defun bool-value (value)
  (testing:make-bool-value :value value))

(defun zeros (size)
  (testing:make-payload :body (make-octets size)))

(defun expect-payload (payload size)
  (let ((found (and payload (length (testing:payload-body payload)))))
    (expect-that (eql size found) "a payload of ~D octets came, not of ~D" found size)))

(defun expect-compressed (call expected)
  (expect-that (eq expected (grpc:received-compressed-p call))
               "a message came ~:[~;un~]compressed" expected))

;;; Compression

(define-interop-case "client_compressed_unary" (channel)
    "The server must notice whether a request is compressed: first one that lies about it."
  (flet ((ask (expected compression)
           (testing:simple-response-payload
            (grpc.testing.test-service:unary-call
             channel (testing:make-simple-request :expect-compressed (bool-value expected)
                                                  :response-size 314159 :payload (zeros 271828))
             :compression compression :timeout *interop-timeout*))))
    (expect-status :invalid-argument (lambda () (ask t :identity)))
    (expect-payload (ask t :gzip) 314159)
    (expect-payload (ask nil :identity) 314159)))

(define-interop-case "server_compressed_unary" (channel)
    "The server must compress an answer if it is asked to, and not if not."
  (dolist (wanted '(t nil))
    (multiple-value-bind (reply call)
        (grpc.testing.test-service:unary-call
         channel (testing:make-simple-request :response-compressed (bool-value wanted)
                                              :response-size 314159 :payload (zeros 271828))
         :timeout *interop-timeout*)
      (expect-payload (testing:simple-response-payload reply) 314159)
      (expect-compressed call wanted))))

(define-interop-case "client_compressed_streaming" (channel)
    "As client_compressed_unary, for each message of a stream."
  (flet ((input (expected size)
           (testing:make-streaming-input-call-request :expect-compressed (bool-value expected)
                                                      :payload (zeros size))))
    (expect-status :invalid-argument
                   (lambda ()
                     (grpc.testing.test-service:streaming-input-call
                      channel (list (input t 27182)) :timeout *interop-timeout*)))
    (grpc:with-call (call (grpc.testing.test-service:streaming-input-call
                           channel :open :compression :gzip :timeout *interop-timeout*))
      (grpc:send call (input t 27182) :compress t)
      (grpc:send call (input nil 45904) :compress nil)
      (grpc:close-send call)
      (let ((size (testing:streaming-input-call-response-aggregated-payload-size
                   (grpc:receive call))))
        (expect-that (= 73086 size) "the server counted ~D octets, not 73086" size)))))

(define-interop-case "server_compressed_streaming" (channel)
    "As server_compressed_unary, for each message of a stream."
  (let ((expected '((t 31415) (nil 92653))))
    (grpc:with-call (call (grpc.testing.test-service:streaming-output-call
                           channel
                           (testing:make-streaming-output-call-request
                            :response-parameters
                            (loop for (compressed size) in expected
                                  collect (testing:make-response-parameters
                                           :size size :compressed (bool-value compressed))))
                           :timeout *interop-timeout*))
      (grpc:do-messages (response call)
        (destructuring-bind (compressed size) (or (pop expected) '(nil 0))
          (expect-payload (testing:streaming-output-call-response-payload response) size)
          (expect-compressed call compressed))))
    (expect-that (null expected) "~D messages did not come" (length expected))))
