;;;; Recognizes gRPC's requests in JSON, and ends their answers with gRPC's trailers.

(in-package #:clgrpc.grpc-json)

(defun finish (call)
  "The function FINISH of the protocol handler."
  (let* ((claim (web:call-web-claim call))
         (answer (shiftf (web:notes-answer (web:call-web-notes call)) nil)))
    (when (or (web:mark-headers call) answer) ; the head of a single answer is sent together with it
      (exchange:write-head (server:call-http-request call)
                           (web:heads-head (web:web-claim-heads claim)
                                           (wire:outgoing-encoding call))
                           (web:answer-headers call '()) nil))
    (when answer (web:write-encoded call answer 0 nil))
    (server:write-trailers-later call)))

(define-load-time-global **handler**
    (web:make-protocol-handler :name :grpc-json :receive #'web:receive-enveloped :whole #'identity
                               :part #'web:write-enveloped :finish #'finish))

(define-load-time-global **forms**
    (web:make-forms `(("application/grpc+json" ,web:**json** :plain "grpc-encoding")) '()))

(defun prepare (server table)
  "The function PREPARE of the protocol. Pages cannot use the protocol: they read no trailers."
  (declare (ignore server))
  (lambda (http-method target fields)
    (let ((form (web:find-form **forms** (web:header-value fields "content-type"))))
      (and form (string= "POST" http-method)
           (web:header fields ":method") ; HTTP/1.1 has no trailers that clients read
           (web:make-grpc-claim **handler** form (web:find-web-route table target) target fields
                                '())))))

(server:register-protocol (server:make-protocol :name :grpc-json :prepare #'prepare))
