;;;; The head of the answer to a call: the constant part that its claim has, its metadata, and what
;;;; pages of other origins are told.

(in-package #:clgrpc.web)

(defun outgoing-encoding (call)
  "How messages that CALL sends may be compressed: an encoding or nil."
  (let ((compression (wire:compression-of call)))
    (and compression (wire:compression-outgoing compression))))

(defun answer-headers (call more)
  "The headers of CALL's answer beside those that are constant: its metadata and MORE, and what
pages of another origin are told."
  (let* ((cors (web-claim-cors (call-web-claim call)))
         (headers (append (metadata-headers (rpc:outgoing-metadata call)) more)))
    (if cors
        (append (exposing cors (union '("grpc-status" "grpc-message" "grpc-status-details-bin")
                                      (mapcar #'car headers) :test #'string=))
                headers)
        headers)))

(defun write-stream-head (call)
  "The operation WRITE-HEAD of calls whose answer is a stream."
  (let ((claim (call-web-claim call)))
    (exchange:write-head (server:call-http-request call)
                         (heads-head (web-claim-heads claim) (outgoing-encoding call))
                         (answer-headers call '()) nil)))
