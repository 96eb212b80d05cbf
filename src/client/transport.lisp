;;;; What HTTP/2 does for clients' calls: their end of the contract of rpc/transport.lisp.

(in-package #:clgrpc.client)

(rpc:define-transport-end **single-operations** (:client)
  :send #'rpc:wire-send :close-send #'client-close-send :after #'rpc:wire-after
  :change-encoding #'client-change-encoding
  :leave #'client-leave :await-metadata #'client-await-metadata
  :abort #'client-abort :post #'rpc:wire-post :schedule #'rpc:wire-schedule :room #'rpc:wire-room
  :write-head #'write-request-head :deliver #'deliver-response
  :decode #'rpc:wire-decode :taken #'rpc:wire-taken
  :drive #'client-drive :park #'client-park
  :now #'rpc:wire-now :peer #'rpc:wire-peer :security #'rpc:wire-security :stage #'rpc:wire-stage
  :stages #'rpc:wire-stages :trouble #'client-trouble :unsent-octets #'rpc:wire-unsent-octets
  :future-p #'wire-call-unattended :reply-of-future #'reply-of-future
  :reserve-of-future #'reserve-of-future)

(rpc:define-transport-end **stream-operations** (:client :like **single-operations**)
  :deliver #'rpc:deliver-streamed)
