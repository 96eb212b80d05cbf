;;;; The operations of handlers' calls over HTTP/2: the server's end of the contract of
;;;; rpc/transport.lisp.

(in-package #:clgrpc.server)

(rpc:define-transport-end **request-operations** (:server :like wire:**wire-operations**)
  :send-metadata #'server-send-metadata :reply #'server-reply :finish #'finish-from-anywhere
  :change-encoding #'server-change-encoding :note-long-message #'server-note-long-message
  :abort #'server-abort :callback-returned #'server-callback-returned
  :write-head #'write-answer-head :deliver #'deliver-request :half-close #'half-close-request
  :stage #'server-stage :stages #'server-stages
  :drive #'server-drive :particulars #'server-particulars :protocol #'call-protocol
  :server #'call-server :elapsed-ns #'server-elapsed-ns)

(setf (documentation '**request-operations** 'variable)
      "The operations of HTTP/2 for calls of gRPC's methods that take one message.")

(rpc:define-transport-end **stream-operations** (:server :like **request-operations**)
  :deliver #'deliver-to-stream :half-close #'half-close-stream)
