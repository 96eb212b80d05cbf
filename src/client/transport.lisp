;;;; What HTTP/2 does for clients' calls: their end of the contract of rpc/transport.lisp.

(in-package #:clgrpc.client)

(rpc:define-transport-end **single-operations** (:client)
  :send #'wire:wire-send :close-send #'client-close-send :after #'wire:wire-after
  :change-encoding #'client-change-encoding
  :abort #'client-abort :post #'wire:wire-post :schedule #'wire:wire-schedule :room #'wire:wire-room
  :write-head #'write-request-head :deliver #'deliver-response
  :decode #'wire:wire-decode :taken #'wire:wire-taken
  :drive #'client-drive :park #'client-park
  :observer #'wire:call-observer :particulars #'client-particulars
  :new-parts #'wire:new-wire-parts :new-inlet #'wire:new-wire-inlet
  :new-outlet #'wire:new-wire-outlet
  :metadata #'wire:wire-metadata :compression #'wire:wire-compression
  :received-compressed #'wire:wire-received-compressed :crowded #'wire:wire-crowded
  :now #'wire:wire-now :peer #'wire:wire-peer :security #'wire:wire-security
  :stage #'wire:wire-stage
  :stages #'wire:wire-stages :trouble #'client-trouble :unsent-octets #'wire:wire-unsent-octets
  :future-p #'wire-call-unattended :reply-of-future #'reply-of-future
  :reserve-of-future #'reserve-of-future)

(rpc:define-transport-end **stream-operations** (:client :like **single-operations**)
  :deliver #'wire:deliver-streamed)
