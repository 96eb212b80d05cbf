;;;; The operations of rpc/transport.lisp for handlers' calls, where they differ from the server's
;;;; own, and the protocol handlers of these calls.

(in-package #:clgrpc.web)

(defconstant +constant-octets+ 512
  "The octets of a header list that are reserved for fields other than metadata.")

(defun web-send-metadata (call metadata)
  "The operation SEND-METADATA. The head of a single answer is sent together with the answer."
  (server:post-metadata call metadata +constant-octets+
                        (lambda ()
                          (cond ((wire:marked-p call :headers) ; AWAIT-HEAD has sent the head
                                 (setf (notes-late (call-web-notes call)) metadata))
                                (t
                                 (setf (rpc:outgoing-metadata call) metadata)
                                 (unless (rpc:answers-once-p call)
                                   (wire:ensure-headers call)))))))

(defun write-web-head (call)
  "The operation WRITE-HEAD."
  (unless (rpc:answers-once-p call) (write-stream-head call)))

(define-hot web-traffic ((call server:server-call))
    (values (unsigned-byte 62) (unsigned-byte 62) nanoseconds)
  "The operation TRAFFIC."
  (let ((notes (call-web-notes call)))
    (values (notes-sent notes) (notes-received notes) (server:server-call-born-ns call))))

(rpc:define-transport-end **web-request-operations** (:server :like server:**request-operations**)
  :send #'web-send :send-metadata #'web-send-metadata
  :write-head #'write-web-head :room #'web-room :unsent-octets #'web-unsent-octets
  :crowded #'web-crowded :traffic #'web-traffic :decode #'web-decode
  :deliver #'deliver-web-request)

(rpc:define-transport-end **web-stream-operations** (:server :like **web-request-operations**)
  :deliver #'deliver-to-web-stream :half-close #'server:half-close-stream)

(setf (documentation '**web-request-operations** 'variable)
      "The operations of calls of methods that take one message."
      (documentation '**web-stream-operations** 'variable)
      "The operations of calls of methods that take a stream.")

(defun operations-for (method)
  "The operations of calls of METHOD; if METHOD is nil, of calls without a method."
  (if (and method (member (method:rpc-method-kind method) '(:client-streaming :bidi)))
      **web-stream-operations**
      **web-request-operations**))

(defun make-grpc-claim (handler form route target fields origins)
  "The claim of a POST to TARGET with FIELDS, which are as in gRPC, of the content type FORM, for
ROUTE, or nil. ORIGINS are as for START-SERVER."
  (let ((metadata (metadata-fields fields)))
    (multiple-value-bind (incoming unreadable) (head-encoding fields "grpc-encoding")
      (multiple-value-bind (timeout late) (grpc-timeout fields)
        (make-web-claim
         :handler handler :codec (form-codec form)
         :heads (form-heads form) :text (eq :text (form-kind form))
         :operations (operations-for (and route (server:route-method route)))
         :route route :fields metadata :timeout timeout :incoming incoming
         :accepted (head-accepted fields "grpc-accept-encoding" nil)
         :cors (origin-headers origins fields)
         :rejection (or (and (null route)
                             (multiple-value-list (rpc:verdict :unknown-method target)))
                        unreadable late (metadata-rejection metadata)))))))

(defun make-protocol-handler (&rest functions)
  "Make a WEB-PROTOCOL-HANDLER of FUNCTIONS: its name and the functions that protocols do not share,
a plist."
  (apply #'make-web-protocol-handler :reply #'web-reply :post-reply #'web-post-reply
                                     :writable #'web-writable functions))
