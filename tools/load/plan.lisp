;;;; What a run is to do: all that the command line says, looked up and made ready.

(in-package #:clgrpc.load)

(defstruct (plan (:copier nil))
  "What is to be called, and how. Generators read it and never change it."
  (name nil :type (or null string))     ; the user's, for reports
  (tags '() :type list)                 ; the user's, for reports
  (options '() :type list)              ; what was asked for, for reports; see RUN-OPTIONS
  (target "" :type string)              ; as the user wrote it
  (addresses '() :type list)            ; targets of one address each, where connections go in turn
  (method nil :type (or null method:rpc-method)) ; what is called
  (payload (make-payload) :type payload) ; what calls send
  (fields #() :type simple-vector)      ; all header fields of a request that are constant
  (metadata-maker nil :type (or null function)) ; (call-data) returns a vector of further fields
  (credentials nil)                     ; of TLS, or nil
  (server-name nil :type (or null string)) ; whose certificate TLS wants to see
  (timeout-ns 0 :type nanoseconds)      ; that a call may take; 0 for no limit
  (connect-timeout-ns 0 :type nanoseconds) ; that connecting may take
  (options-of-http2 nil :type (or null options)) ; what limits connections
  ;; how much at once
  (generators 1 :type (integer 1 1024)) ; event loops, each with a thread
  (connections 1 :type (integer 1 100000)) ; of all generators together
  (workers nil :type (or null schedule)) ; calls under way at once; nil for as many as are due
  ;; when calls begin
  (rate nil :type (or null schedule))   ; calls a second, of an open loop; nil for a closed one
  (arrival :constant :type (member :constant :poisson)) ; see PACER
  (group-ns 0 :type (unsigned-byte 40)) ; see PACER
  (group-above 0 :type (real 0))        ; see PACER
  ;; when the run ends
  (total nil :type (or null unsigned-byte)) ; how many calls count, of all generators together
  (duration-ns nil :type (or null nanoseconds)) ; for how long calls that count begin
  (stop :wait :type (member :wait :close :ignore)) ; what becomes of calls under way then
  ;; how many calls are told one by one, of each generator
  (samples 4096 :type (and index (integer 2)))
  ;; what does not count
  (warm-up-ns 0 :type nanoseconds)      ; calls that begin before this has passed
  (skip-first 0 :type quantity)    ; so many calls after that
  ;; streams of requests
  ;; per call; nil for those of the payload, once each
  (messages nil :type (or null (and quantity (integer 1))))
  (interval-ns 0 :type nanoseconds)     ; between two messages of a call
  (call-duration-ns 0 :type nanoseconds) ; for which a call sends or receives; 0 for no limit
  (fresh-messages nil :type boolean))   ; templates are expanded for each message, not each call

(declaim (sb-ext:freeze-type plan))

(defun plan-kind (plan)
  (method:rpc-method-kind (plan-method plan)))

(defun sends-stream-p (plan)
  (member (plan-kind plan) '(:client-streaming :bidi)))

(defun request-fields (path authority timeout-ns scheme metadata &key encoding)
  "The header fields of a request (gRPC over HTTP/2, \"Requests\") to PATH at AUTHORITY, with the
vector of fields METADATA behind them; messages are compressed by ENCODING, a text, or not."
  (flet ((field (name value) (hpack:string-field name value)))
    (concatenate 'simple-vector
                 (list (field ":method" "POST") (field ":scheme" scheme) (field ":path" path)
                       (field ":authority" authority))
                 (when (plusp timeout-ns)
                   (list (hpack:make-field (ascii-octets "grpc-timeout")
                                           (status:encode-timeout timeout-ns))))
                 (list (field "te" "trailers") (field "content-type" "application/grpc")
                       (field "user-agent" (format nil "grpc-lisp-clgrpc-load/~A" **version**)))
                 (when encoding (list (field "grpc-encoding" encoding)))
                 metadata)))
