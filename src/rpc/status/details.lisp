;;;; Details of a status: grpc-status-details-bin is a serialized google.rpc.Status, whose details
;;;; are messages of any types, each in an Any (gRPC over HTTP/2, "Responses"; gRPC guide on
;;;; errors).
;;;;
;;;; In an RPC-ERROR the details are messages, or the octets as they were received. The functions
;;;; that read details signal no errors for any octets of a peer.

(in-package #:clgrpc.status)

(defun details-octets (details status message)
  "The octets to send for DETAILS: a list of messages, which are sent with STATUS and MESSAGE;
octets, which are sent unchanged; or nil. Signal MISUSE for other DETAILS."
  (typecase details
    (null nil)
    (octets details)
    (list
     (unless (every (lambda (detail) (typep detail 'protobuf:message)) details)
       (misuse "Details are a list of messages, or octets, not ~S." details))
     (protobuf:serialize
      (google.rpc:make-status :code (status-code status) :message message
                              :details (mapcar #'detail-any details))))
    (t (misuse "Details are a list of messages, or octets, not ~S." details))))

(defun coded-details (code message details)
  "As DETAILS-OCTETS, for a status with CODE, a number without a keyword."
  (if (typep details 'octets)
      details
      (protobuf:serialize
       (google.rpc:make-status :code code :message (or message "")
                               :details (mapcar #'detail-any details)))))

(defun sent-code (status details)
  "The number that is sent for STATUS, a keyword. If STATUS is :unknown, the value is the number in
DETAILS, the octets of a google.rpc.Status or nil, provided that gRPC has no keyword for that
number."
  (let ((code (and details (eq :unknown status)
                   (handler-case
                       (google.rpc:status-code
                        (protobuf:parse-message 'google.rpc:status details))
                     (protobuf:protobuf-error () nil)))))
    (if (typep code 'unnamed-code) code (status-code status))))

(defun detail-any (message)
  (if (typep message 'google.protobuf:any) message (protobuf:any-pack message)))

(defun unpacked-detail (any allowance)
  "The message in ANY, which may occupy ALLOWANCE octets of memory; ANY itself if its type is not
loaded, or if the message is damaged or too large."
  (let ((type (protobuf:find-message-type (protobuf:any-type-name any))))
    (if (and type (protobuf:message-type-defined-p type))
        (handler-case (protobuf:parse-message type (google.protobuf:any-value any)
                                              :max-decoded-octets allowance)
          (protobuf:protobuf-error () any))
        any)))

(defun octets-details (octets)
  "The messages in OCTETS, a serialized google.rpc.Status, as RPC-ERROR-DETAILS returns them; nil if
OCTETS are not a google.rpc.Status. Together the details may use the memory allowed for one
message."
  (handler-case
      (let* ((anys (google.rpc:status-details (protobuf:parse-message 'google.rpc:status octets)))
             (share (floor (option-default :max-decoded-octets) (max 1 (length anys)))))
        (map 'list (lambda (any) (unpacked-detail any share)) anys))
    (protobuf:protobuf-error () '())))

(defun rpc-error-details (error)
  "The details of ERROR, a list of messages, such as GOOGLE.RPC:BAD-REQUEST; nil without details, or
if they cannot be read. A detail is a GOOGLE.PROTOBUF:ANY if its type is not loaded, if it is
damaged, or if it uses more than its share of the memory allowed for one message. From any thread."
  (let ((details (rpc-error-raw-details error)))
    (if (listp details) details (octets-details details))))

(defun rpc-error-details-octets (error)
  "The octets of grpc-status-details-bin of ERROR, as they were received or will be sent; or nil.
From any thread."
  (details-octets (rpc-error-raw-details error) (rpc-error-status error) (rpc-error-message error)))

(defun rpc-error-detail (error type)
  "The first of the details of ERROR that is a message of TYPE, a symbol such as
GOOGLE.RPC:RETRY-INFO; nil if ERROR has no such detail. From any thread."
  (find-if (lambda (message) (typep message type)) (rpc-error-details error)))

;;; Failing with details

(define-keyword-function fail (status message &key details trailers)
  "End the running handler's call with STATUS and MESSAGE, a string for developers or nil. STATUS is
a keyword other than :ok, or a number above 16, which most clients report as :unknown. DETAILS is a
list of messages with more data, such as those of the package GOOGLE.RPC, or octets for
grpc-status-details-bin. TRAILERS is an alist added to the trailing metadata. Signal MISUSE for
other arguments. From the handler's thread."
  (when (eq :ok status)
    (misuse "A handler that succeeds returns; it does not fail with :ok."))
  (unless (typep message '(or null string))
    (misuse "The message of a status is a string, not ~S." message))
  (unless (or (typep details 'octets)
              (and (listp details) (every (lambda (detail) (typep detail 'protobuf:message))
                                          details)))
    (misuse "The details of a status are a list of messages, not ~S." details))
  (multiple-value-bind (status details)
      (if (typep status 'unnamed-code)
          (values :unknown (coded-details status message details))
          (values status details))
    (error (make-rpc-error status :message message :details details :trailers trailers
                           :ended-by :local))))
