;;;; What HTTP/2 does for handlers' calls: the server's end of the contract of rpc/transport.lisp.

(in-package #:clgrpc.server)

(rpc:define-transport-end **request-operations** (:server)
  :send #'wire:wire-send :send-metadata #'server-send-metadata
  :reply #'server-reply :finish #'finish-from-anywhere :after #'wire:wire-after
  :change-encoding #'server-change-encoding
  :abort #'server-abort :post #'wire:wire-post :schedule #'wire:wire-schedule
  :callback-returned #'server-callback-returned :room #'wire:wire-room
  :write-head #'write-answer-head :deliver #'deliver-request :half-close #'half-close-request
  :decode #'wire:wire-decode :taken #'wire:wire-taken :note-long-message #'server-note-long-message
  :drive #'server-drive
  :observer #'wire:call-observer :particulars #'server-particulars
  :new-parts #'wire:new-wire-parts :new-inlet #'wire:new-wire-inlet
  :new-outlet #'wire:new-wire-outlet
  :metadata #'wire:wire-metadata :compression #'wire:wire-compression
  :received-compressed #'wire:wire-received-compressed :crowded #'wire:wire-crowded
  :now #'wire:wire-now :peer #'wire:wire-peer :security #'wire:wire-security
  :stage #'wire:wire-stage
  :stages #'wire:wire-stages :unsent-octets #'wire:wire-unsent-octets)

(rpc:define-transport-end **stream-operations** (:server :like **request-operations**)
  :deliver #'deliver-to-stream :half-close #'half-close-stream)
