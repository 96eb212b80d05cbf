;;;; The plan of a run: all settings of the command line, looked up and made ready.

(in-package #:clgrpc.load)

(defstruct (request (:constructor %make-request) (:copier nil))
  "The description of the calls of one method."
  (method nil :type (or null method:rpc-method)) ; the method
  (number 0 :type index)                ; the request's place in the plan
  (kind :unary :type keyword)           ; the method's
  (payload (make-payload) :type payload) ; the messages of calls
  (fields #() :type simple-vector)      ; all header fields of a request that are constant
  (metadata-maker nil :type (or null function)) ; (call-data) returns a vector of further fields
  (weight 1 :type (integer 1 1000)))    ; the request's share of the calls of a mix

(declaim (sb-ext:freeze-type request))

(defun make-request (method &rest arguments)
  "Return a request of METHOD; ARGUMENTS are :PAYLOAD, :FIELDS, :METADATA-MAKER and :WEIGHT."
  (apply #'%make-request :method method :kind (method:rpc-method-kind method) arguments))

(defun request-name (request)
  "The name of REQUEST's method in reports: package.Service/Method."
  (subseq (method:rpc-method-path (request-method request)) 1))

(defun mix-requests (requests)
  "A vector that contains each of REQUESTS, a list, as many times as its weight, spread as evenly as
possible. Calls take their requests from the mix in turn."
  (let* ((total (reduce #'+ requests :key #'request-weight))
         (credits (make-array (length requests) :initial-element 0)))
    ;; smooth weighted round robin: in every turn each request's credit grows by its weight; the
    ;; request with the most credit is chosen, and its credit falls by the sum of the weights
    (coerce (loop repeat total
                  collect (let ((best 0))
                            (loop for request in requests
                                  for i from 0
                                  do (incf (aref credits i) (request-weight request))
                                     (when (< (aref credits best) (aref credits i))
                                       (setf best i)))
                            (decf (aref credits best) total)
                            (nth best requests)))
            'simple-vector)))

(defstruct (plan (:constructor %make-plan) (:copier nil))
  "A description of the calls to make, and of the way to make them. Generators read the plan and
never change it."
  (name nil :type (or null string))     ; the user's, for reports
  (tags '() :type list)                 ; the user's, for reports
  (options '() :type list)              ; the user's options, for reports; see RUN-OPTIONS
  (target "" :type string)              ; the target as the user wrote it
  (addresses '() :type list)            ; targets of one address each, where connections go in turn
  (requests '() :type list)             ; REQUESTs: a single one, or the requests of a mix
  (turns #() :type simple-vector)       ; REQUESTs, which calls take in turn
  (credentials nil)                     ; the TLS credentials, or nil
  (server-name nil :type (or null string)) ; the name that the certificate must have
  (timeout-ns 0 :type nanoseconds)      ; the time that a call may take; 0 for no limit
  (connect-timeout-ns 0 :type nanoseconds) ; how long connecting may take
  (options-of-http2 nil :type (or null options)) ; the limits of connections
  ;; how much at once
  (generators 1 :type (integer 1 1024)) ; event loops, each with a thread
  (connections 1 :type (integer 1 100000)) ; the connections of all generators together
  (workers nil :type (or null schedule)) ; calls under way at once; nil: no limit
  ;; when calls begin
  (rate nil :type (or null schedule))   ; calls a second, of an open loop; nil for a closed loop
  (arrival :constant :type (member :constant :poisson)) ; see PACER
  (group-ns 0 :type (unsigned-byte 40)) ; see PACER
  (group-above 0 :type (real 0))        ; see PACER
  ;; when the run ends
  (total nil :type (or null unsigned-byte)) ; how many calls count, in the whole run
  (duration-ns nil :type (or null nanoseconds)) ; for how long calls that count begin
  ;; the treatment of calls that are under way at the end
  (stop :wait :type (member :wait :close :ignore))
  ;; how many calls of each generator are listed one by one
  (samples 4096 :type (and index (integer 2)))
  ;; the time at the beginning that does not count
  (warm-up-ns 0 :type nanoseconds)      ; calls that begin earlier do not count
  ;; how many calls after the warm-up do not count, either
  (skip-first 0 :type quantity)
  ;; streams of requests per call; nil for the requests of the payload, once each
  (messages nil :type (or null (and quantity (integer 1))))
  (interval-ns 0 :type nanoseconds)     ; the time between two messages of a call
  ;; the time for which a call sends or receives; 0 for no limit
  (call-duration-ns 0 :type nanoseconds)
  (fresh-messages nil :type boolean))   ; templates are expanded for each message, not each call

(declaim (sb-ext:freeze-type plan))

(defun make-plan (&rest arguments &key requests &allow-other-keys)
  "A plan of REQUESTS, which calls take in turn; the other ARGUMENTS are its slots."
  (loop for request in requests
        for number from 0
        do (setf (request-number request) number))
  (apply #'%make-plan :turns (mix-requests requests) arguments))

(defun sends-stream-p (request)
  (member (request-kind request) '(:client-streaming :bidi)))

(defun request-head (path authority timeout-ns scheme metadata &key encoding)
  "The header fields of a request (gRPC over HTTP/2, \"Requests\") to PATH at AUTHORITY, followed by
the vector of fields METADATA; ENCODING, a text or nil, names the compression of messages."
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
