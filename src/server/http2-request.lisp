;;;; What is known of a request over HTTP/2 before it is a call: what its headers said.

(in-package #:clgrpc.server)

(defstruct (request (:copier nil))
  "The data of the headers of a request, on its way to a call."
  (table nil :type (or null route-table)) ; by whose routes
  (fields #() :type simple-vector)      ; the metadata, as WIRE:LIST-CUSTOM-FIELDS has it
  (charge 0 :type index)                ; octets that the call is charged with for them
  (route nil :type (or null server-route)) ; where the path leads; NIL without a path
  (codec nil :type (or null method:message-codec)) ; of the messages, if the content type names one
  (timeout nil :type (or null (unsigned-byte 62))) ; nanoseconds
  (incoming nil :type (or symbol wire:encoding)) ; as BEGIN-COMPRESSION has it
  (accepted '() :type list)             ; the encodings that the client can read
  ;; what of it is not gRPC's, if it is a plain one (plain.lisp)
  (plain nil :type (member nil :content-type :method))
  (claim nil)                           ; of a plain one, as CLAIM-REQUEST has it
  (rejection '() :type list))           ; why it cannot become a call: a status and a text

(declaim (sb-ext:freeze-type request))
