;;;; What is known of a request before it is a call: what its headers said. A request that no
;;;; dialect takes is a plain one (plain.lisp).

(in-package #:clgrpc.server)

(defstruct (plain-answer (:constructor make-plain-answer (http-status headers body)) (:copier nil))
  "The answer to a plain request."
  (http-status 200 :type (integer 200 599)) ; as in RFC 9110
  (headers '() :type list)              ; an alist, checked, without content-length
  (body (make-octets 0) :type octets))  ; empty for none

(defstruct (plain-request (:copier nil))
  "A request that is no call. It is what the fallback's route gives its function as REQUEST."
  (http-method "" :type string)         ; "GET"
  (path "" :type string)                ; with the query, as it came
  (headers '() :type list)              ; an alist, in lower case; :authority is "host"
  (body (make-octets 0) :type octets)   ; what has come of it, up to FILL
  (fill 0 :type index)                  ; how much of it that is
  (refusal nil :type (or null plain-answer)) ; the answer if there is no fallback
  (answer nil :type (or null plain-answer))) ; the fallback's

(declaim (sb-ext:freeze-type plain-answer plain-request))

(defstruct (request (:copier nil))
  "What the headers of a request said, on its way to a call."
  (table nil :type (or null route-table)) ; by whose routes
  (fields #() :type simple-vector)      ; the metadata, as WIRE:LIST-CUSTOM-FIELDS has it
  (route nil :type (or null server-route)) ; where the path leads; NIL without a path
  (timeout nil :type (or null (unsigned-byte 62))) ; nanoseconds
  (incoming nil :type (or symbol wire:encoding)) ; as BEGIN-COMPRESSION has it
  (accepted '() :type list)             ; the encodings that the client can read
  (dialect nil :type (or null wire:dialect)) ; that the content type is of; NIL is gRPC
  (refusal nil :type (or null plain-answer)) ; for a plain request: the answer without a fallback
  (rejection '() :type list))           ; why it cannot become a call: a status and a text

(declaim (sb-ext:freeze-type request))
