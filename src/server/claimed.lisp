;;;; Calls of protocols other than gRPC (protocol.lisp), from the claim of the request to its
;;;; handler.

(in-package #:clgrpc.server)

(defun begin-claimed (call request claim)
  "Make CALL the call of REQUEST, which CLAIM describes."
  (let ((deferred-start (ensure-deferred-start call)))
    (setf (exchange:http-request-context request) call
          (deferred-start-http-request deferred-start) request
          (deferred-start-claim deferred-start) claim))
  (let ((encoding (server-loop-encoding (server-call-endpoint call))))
    (when (or encoding (claim-incoming claim))
      (begin-compression call (claim-incoming claim) encoding))))

(define-hot make-claimed-call
            ((claim claim) (link server-link) (server-loop server-loop) (now nanoseconds))
    server-call
  "A new call, made from CLAIM, which begins at NOW on LINK of SERVER-LOOP."
  (let ((route (claim-route claim)) (timeout (claim-timeout claim)))
    (make-server-call :rpc-method (and route (route-method route)) :endpoint server-loop :link link
                      :route route :born-ns now :operations (claim-operations claim)
                      :deadline (if timeout (status:deadline-in timeout now) 0)
                      :fields (claim-fields claim) :accepted (claim-accepted claim))))

(defun rejected-at-once-p (claim)
  "True if a call that CLAIM rejects ends before the end of its request's body, because a client may
stream the body for as long as it likes. Other calls are rejected at the end of the body, as their
clients expect."
  (and (claim-rejection claim)
       (claim-route claim)
       (member (rpc-method-kind (route-method (claim-route claim))) '(:client-streaming :bidi))))

(defun reject-claimed (call claim)
  (destructuring-bind (status text) (claim-rejection claim)
    (server-finish call status text nil '())))

(define-hot start-claimed ((call server-call) (claim claim)) null
  "Begin CALL. The handler of a bidi method starts at the headers, since it may send first."
  (wire:start-deadline call)
  (let ((begun (protocol-handler-begun (claim-handler claim))))
    (when begun (funcall begun call)))
  (when (eq :bidi (rpc-method-kind (the rpc-method (route-method (claim-route claim)))))
    (start-call call))
  nil)

(defun receive-claimed (call octets start end last)
  "Pass further octets of the body of CALL, which has a claim, to its protocol handler; see
PROTOCOL-HANDLER."
  (flet ((receive (call octets start end)
           (unless (or (call-status call) (claim-rejection (call-claim call)))
             (funcall (protocol-handler-receive (call-protocol-handler call))
                      call octets start end last))))
    (declare (dynamic-extent #'receive))
    (wire:receive-data call octets start end #'receive)))

(defun end-claimed-request (call)
  "Note that the body of CALL, which has a claim, is whole. The half-close follows."
  (let ((claim (call-claim call)))
    (if (claim-rejection claim)
        (reject-claimed call claim)
        (funcall (protocol-handler-whole (claim-handler claim)) call))))

;;; A message in a query

(defconstant +query-burst-octets+ 65536
  "The maximum number of octets of messages in queries that a connection may have decoded at once.")

(defconstant +query-octet-ns+ 4000
  "The time, in nanoseconds, after which one more octet of a query may be decoded: 250 KB a
second.")

(defun take-query-octets (call octets)
  "True if the limit of CALL's connection allows this thread to decode a message of OCTETS from
CALL's query. If the limit allows these octets, count them. The limit applies over HTTP/2, where the
client may send a long path as one or two octets, an index of HPACK's table. Over HTTP/1.1 the
client has sent all octets, so there is no limit."
  (or (null (server-call-stream call))
      (let* ((link (server-call-link call))
             (now (loop:event-loop-now (server-link-loop link)))
             (due (+ (max now (server-link-queries-due link)) (* octets +query-octet-ns+))))
        (when (<= (- due now) (* +query-burst-octets+ +query-octet-ns+))
          (setf (server-link-queries-due link) due)
          t))))
