;;;; The operations of rpc/transport.lisp over HTTP/2 that are the same at both ends. Each end adds
;;;; operations of its own (client/client-operations.lisp, server/server-operations.lisp).

(in-package #:clgrpc.wire)

(define-transport-end **wire-operations** (nil)
  :send #'wire-send :after #'wire-after :post #'wire-post :schedule #'wire-schedule
  :room #'wire-room :decode #'wire-decode :taken #'wire-taken
  :new-parts #'new-wire-parts :new-inbound #'new-wire-inbound :new-outbound #'new-wire-outbound
  :new-callbacks #'new-wire-callbacks
  :metadata #'wire-metadata :compression #'wire-compression
  :received-compressed #'wire-received-compressed :told-size #'wire-told-size
  :receive-limit #'receive-limit
  :crowded #'wire-crowded
  :now #'wire-now :peer #'wire-peer :security #'wire-security :observer #'call-observer
  :traffic #'wire-traffic
  :unsent-octets #'wire-unsent-octets)

(setf (documentation '**wire-operations** 'variable)
      "The operations over HTTP/2 that are the same at both ends; each end names them in :LIKE.")
