;;;; Unary calls of Connect: the body of the request is the message; the body of the response is the
;;;; answer, or the error as JSON with the HTTP status of its code. Trailers are headers.

(in-package #:clgrpc.connect)

(defun write-error (call status text details headers)
  (web:write-bare-error call (server:status-http-status status)
                        (web:json-octets (web:error-json status text details)) headers))

(defun finish-unary (call)
  "The function FINISH of the protocol for unary calls."
  (web:finish-bare call #'web:write-bare-answer #'write-error))

(define-load-time-global **unary**
    (web:make-protocol-handler :name :connect :receive #'web:receive-bare :whole #'web:body-whole
                               :part #'web:write-enveloped :finish #'finish-unary))

;;; GET, for methods declared NO_SIDE_EFFECTS: the message is in the query

(defstruct (get-claim (:include web:web-claim) (:copier nil))
  "The parameters of a GET."
  (message "" :type string :read-only t) ; the request in the form of the query
  (base64 nil :type boolean :read-only t)) ; MESSAGE is octets in base64

(defun ignore-body (call octets start end last)
  "The function RECEIVE of the protocol handler of GETs."
  (declare (ignore call octets start end last)))

(defconstant +free-query-characters+ 128
  "The maximum number of characters of an uncompressed message in a query that is not counted.")

(defconstant +inflated-times+ 32
  "The maximum factor by which decompression may lengthen a message in a query.")

(defun may-decode-p (call octets)
  "Return true if a message of OCTETS in CALL's query may be decoded; else end CALL."
  (or (server:take-query-octets call octets)
      (progn (rpc:operate abort call :resource-exhausted
                          "too many long messages in the queries of one connection" :local)
             nil)))

(defun query-octets (claim)
  "The message of CLAIM, octets; nil if it is base64 and broken."
  (let ((text (get-claim-message claim)))
    (if (get-claim-base64 claim)
        (handler-case (decode-base64 (string-right-trim "=" text) :any-alphabet t)
          (invalid-base64 () nil))
        (string-octets text))))

(defun deliver-compressed (call message encoding)
  "Deliver MESSAGE, octets of CALL that ENCODING has compressed."
  (if (server:over-http1-p call)
      (wire:deliver-alone call t message 0 (length message))
      (multiple-value-bind (octets end text) ; or nil, a status and a text
          (wire:inflate-message call encoding message
                                (min (rpc:operate receive-limit call)
                                     (* +inflated-times+ (length message))))
        (cond ((null octets) (rpc:operate abort call end text :local))
              (t (when (may-decode-p call end)
                   (wire:deliver-alone call nil octets 0 end))
                 (give-octets-back octets))))))

(defun deliver-query (call)
  "Deliver the message in the query of CALL, a GET. This is the function WHOLE of the protocol
handler of GETs."
  (let* ((claim (web:call-web-claim call))
         (length (length (get-claim-message claim)))
         (encoding (server:claim-incoming claim)))
    (when (or (and (null encoding) (<= length +free-query-characters+))
              (may-decode-p call length))
      (let ((message (query-octets claim)))
        (cond ((null message)
               (rpc:operate abort call :invalid-argument
                            "the message in the query is not base64" :local))
              ((and encoding (plusp (length message)))
               (deliver-compressed call message encoding))
              (t (wire:deliver-alone call nil message 0 (length message))))))))

(define-load-time-global **get**
    (web:make-protocol-handler :name :connect :receive #'ignore-body :whole #'deliver-query
                               :part #'web:write-enveloped :finish #'finish-unary))
