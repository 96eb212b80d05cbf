;;;; Which requests are gRPC's in JSON, and how their answers end: with gRPC's trailers.

(in-package #:clgrpc.grpc-json)

(defun finish (call)
  "The FINISH of the style."
  (let* ((claim (web:call-web-claim call))
         (answer (shiftf (web:notes-answer (web:call-web-notes call)) nil)))
    (when (or (web:mark-headers call) answer) ; the head of an only answer goes out with that
      (exchange:write-head (server:call-http-request call)
                           (web:heads-head (web:web-claim-heads claim)
                                           (wire:outgoing-encoding call))
                           (web:answer-headers call '()) nil))
    (when answer (web:write-encoded call answer 0 nil))
    (server:write-trailers-later call)))

(define-load-time-global **style**
    (web:complete-style
     (web:make-style :name :grpc-json :receive #'web:receive-enveloped :whole #'identity
                     :part #'web:write-enveloped :finish #'finish)))

(define-load-time-global **heads**
    (web:make-heads "application/grpc+json" "grpc-encoding" '()))

(defun make-claim (route target fields)
  "The claim of a request for TARGET with FIELDS, which leads to ROUTE, or nil."
  (let ((metadata (web:metadata-fields fields)))
    (multiple-value-bind (incoming unreadable) (web:head-encoding fields "grpc-encoding")
      (multiple-value-bind (timeout late) (web:grpc-timeout fields)
        (web:make-web-claim
         :manner (web:style-manner **style**) :style **style** :codec web:**json**
         :heads **heads**
         :operations (web:operations-for (and route (server:route-method route)))
         :route route :fields metadata :timeout timeout :incoming incoming
         :accepted (web:head-accepted fields "grpc-accept-encoding" nil)
         :rejection (or (and (null route)
                             (multiple-value-list (rpc:verdict :unknown-method target)))
                        unreadable late (web:metadata-rejection metadata)))))))

(defun prepare (server table)
  "The PREPARE of the protocol."
  (declare (ignore server))
  (lambda (http-method target fields)
    (let ((type (web:header-value fields "content-type")))
      (and type (string= "POST" http-method)
           (string= "application/grpc+json" (web:media-type type))
           (web:header fields ":method") ; HTTP/1.1 has no trailers that clients read
           (make-claim (web:find-web-route table target) target fields)))))

(server:register-protocol (server:make-protocol :name :grpc-json :prepare #'prepare))
