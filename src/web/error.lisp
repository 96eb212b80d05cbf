;;;; How a call has ended; codes by name, and errors as the JSON that Connect has.

(in-package #:clgrpc.web)

(defun code-name (status)
  "Connect's name of STATUS, a keyword: \"not_found\"."
  (if (eq :cancelled status)
      "canceled"
      (substitute #\_ #\- (string-downcase status))))

(defun call-end (call)
  "Four values about the end of CALL: its status; a text; details, octets of a google.rpc.Status or
nil; and trailers, an alist."
  (multiple-value-bind (status text details trailers) (rpc:final-status call)
    (values status text details (append (notes-late (call-web-notes call)) trailers))))

(defun call-end-in-head (call)
  "Return the values of CALL-END for a call whose trailers are sent in the head of its answer. The
trailers are returned as headers; they are omitted if they would exceed the limit for CALL's header
lists. In these protocols a body with another compression than its head announces is the client's
mistake."
  (multiple-value-bind (status text details trailers) (call-end call)
    (let ((size (+ (wire:metadata-octets (rpc:outgoing-metadata call))
                   (wire:metadata-octets trailers)
                   (* (length *trailer-prefix*) (length trailers)))))
      (when (> (+ size +constant-octets+) (server:header-list-limit call))
        (setf trailers '())
        (when (eq :ok status)
          (setf status :resource-exhausted
                text "the call's trailers are larger than its client accepts"
                details nil))))
    (values (if (and (eq :internal status)
                     (member (wire:inflation-failure call) '(:corrupt :truncated)))
                :invalid-argument
                status)
            text details (metadata-headers trailers *trailer-prefix*))))

(defun details-json (details)
  "DETAILS, octets of a google.rpc.Status, in the form of Connect: a list for WRITE-JSON."
  (handler-case
      (map 'list (lambda (any)
                   (list (cons "type" (protobuf:any-type-name any))
                         (cons "value" (encode-base64 (coerce (google.protobuf:any-value any)
                                                              'octets)))))
           (google.rpc:status-details (protobuf:parse-message 'google.rpc:status details)))
    (protobuf:protobuf-error () '())))

(defun error-json (status text details)
  "The error of Connect for STATUS, TEXT and DETAILS, for WRITE-JSON."
  (let ((details (and details (details-json details))))
    `(("code" . ,(code-name status))
      ,@(and (plusp (length text)) `(("message" . ,text)))
      ,@(and details `(("details" . ,(coerce details 'vector)))))))

(defun json-octets (value)
  "VALUE, of the shapes that WRITE-JSON takes, in JSON, as octets."
  (string-octets (write-json value)))
