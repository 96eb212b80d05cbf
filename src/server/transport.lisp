;;;; What HTTP/2 does for handlers' calls: the server's end of the contract of rpc/transport.lisp.

(in-package #:clgrpc.server)

(rpc:define-transport-end **request-operations** (:server)
  :send #'rpc:wire-send :close-send #'server-close-send :send-metadata #'server-send-metadata
  :reply #'server-reply :finish #'finish-from-anywhere :after #'rpc:wire-after
  :change-encoding #'server-change-encoding
  :abort #'server-abort :post #'rpc:wire-post :schedule #'rpc:wire-schedule
  :callback-returned #'server-callback-returned :room #'rpc:wire-room
  :write-head #'write-answer-head :deliver #'deliver-request :half-close #'half-close-request
  :decode #'rpc:wire-decode :taken #'rpc:wire-taken :note-long-message #'server-note-long-message
  :drive #'server-drive
  :now #'rpc:wire-now :peer #'rpc:wire-peer :security #'rpc:wire-security :stage #'rpc:wire-stage
  :stages #'rpc:wire-stages :unsent-octets #'rpc:wire-unsent-octets)

(rpc:define-transport-end **stream-operations** (:server :like **request-operations**)
  :deliver #'deliver-to-stream :half-close #'half-close-stream)
