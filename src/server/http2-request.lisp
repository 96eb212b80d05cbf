;;;; The data of a request over HTTP/2 before it is a call, from its headers.

(in-package #:clgrpc.server)

(defstruct (request (:copier nil))
  "The data of the headers of a request, on its way to a call."
  (table nil :type (or null route-table)) ; the table from which ROUTE comes
  (fields #() :type simple-vector)      ; the metadata, a value of WIRE:LIST-CUSTOM-FIELDS
  (charge 0 :type index)                ; octets that the call is charged with for FIELDS
  (route nil :type (or null server-route)) ; the route to which the path leads; NIL without a path
  ;; the codec of the messages, if the content type names one
  (codec nil :type (or null encoding:message-codec))
  (passing nil :type boolean)           ; the request names a codec that is not registered yet
  (timeout nil :type (or null (unsigned-byte 62))) ; the time-out in nanoseconds
  (incoming nil :type (or symbol encoding:encoding)) ; as for BEGIN-COMPRESSION
  (accepted '() :type list)             ; the encodings that the client can read
  ;; the header that is not gRPC's, if the request is plain (plain.lisp)
  (plain nil :type (member nil :content-type :method))
  (expects nil :type boolean)           ; of a plain request: the client waits for the status 100
  (claim nil)                           ; the claim of a plain request, a result of CLAIM-REQUEST
  (rejection '() :type list))           ; a status and a text if the request cannot become a call

(declaim (sb-ext:freeze-type request))
