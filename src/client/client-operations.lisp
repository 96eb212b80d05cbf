;;;; The operations of clients' calls over HTTP/2: the client's end of the contract of
;;;; rpc/transport.lisp.

(in-package #:clgrpc.client)

(rpc:define-transport-end **single-operations** (:client :like wire:**wire-operations**)
  :close-send #'client-close-send :change-encoding #'client-change-encoding
  :abort #'client-abort :deliver #'deliver-response :new-parts #'new-client-parts
  :new-outbound #'new-client-outbound :new-own-options #'new-client-own-options
  :stage #'client-stage :stages #'client-stages
  :drive #'client-drive :park #'client-park
  :observer #'client-observer :elapsed-ns #'client-elapsed-ns :repeats #'client-repeats
  :particulars #'client-particulars :last-error #'client-last-error
  :future-p #'unattended-p :reply-of-future #'reply-of-future
  :reserve-of-future #'reserve-of-future)

(rpc:define-transport-end **stream-operations** (:client :like **single-operations**)
  :deliver #'wire:deliver-streamed)
