;;;; The header block of a request (gRPC over HTTP/2, "Requests").

(in-package #:clgrpc.client)

(defmacro define-field (name field-name value)
  `(defglobal ,name (hpack:string-field ,field-name ,value)))

(define-field **post** ":method" "POST")
(define-field **http** ":scheme" "http")
(define-field **https** ":scheme" "https")
(define-field **te-trailers** "te" "trailers")
(define-field **content-type** "content-type" "application/grpc")
(define-field **user-agent** "user-agent"
  (format nil "grpc-lisp-clgrpc/~A" **version**))

(defglobal **grpc-timeout** (ascii-octets "grpc-timeout"))

(define-field **first-retry** "grpc-previous-rpc-attempts" "1")

(defun attempts-field (number)
  "The field that says that NUMBER attempts came before this one (gRFC A6)."
  (if (= 1 number)
      **first-retry**
      (hpack:string-field "grpc-previous-rpc-attempts" (princ-to-string number))))

(declaim (inline method-path-field))
(defun method-path-field (method)
  "The header field :path of METHOD, an RPC-METHOD."
  (or (method:rpc-method-path-field method)
      (setf (method:rpc-method-path-field method)
            (hpack:string-field ":path" (method:rpc-method-path method)))))

(defun write-head (call stream number metadata)
  "Write the header block on STREAM of the attempt of CALL that NUMBER others came before, with
METADATA, an alist."
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (hpack:encode-field encoder buffer **post** :index)
    (hpack:encode-field encoder buffer
                        (if (core-credentials (client-call-core call))
                            **https**
                            **http**)
                        :index)
    (hpack:encode-field encoder buffer (method-path-field (call-rpc-method call)) :index)
    (hpack:encode-field encoder buffer
                        (core-authority (client-call-core call)) :index)
    (when (plusp (call-deadline call))
      (hpack:encode-literal encoder buffer **grpc-timeout**
                            (status:encode-timeout (- (call-deadline call) (operate now call)))
                            :plain))
    (hpack:encode-field encoder buffer **te-trailers** :index)
    (hpack:encode-field encoder buffer **content-type** :index)
    (hpack:encode-field encoder buffer **user-agent** :index)
    (wire:encode-encodings call encoder buffer
                           (and (wire:outgoing-encoding call) (reads-compressed-p stream call)))
    (when (plusp number)
      (hpack:encode-field encoder buffer (attempts-field number) :index))
    (when metadata (wire:encode-metadata metadata encoder buffer))
    (http2:end-headers stream nil)))

(defun request-list-octets (call number metadata)
  "How large the header list of the attempt of CALL that NUMBER others came before, with METADATA,
is at most, as RFC 9113 section 6.5.2 counts."
  (+ (loop for field in (list **post** **https** **te-trailers** **content-type** **user-agent**
                              (method-path-field (call-rpc-method call))
                              (core-authority (client-call-core call)))
           sum (hpack:field-size field))
     (wire:encodings-octets call)
     (if (plusp (call-deadline call)) 53 0) ; grpc-timeout
     (if (plusp number) (hpack:field-size (attempts-field number)) 0)
     (wire:metadata-octets metadata)))

(defconstant +constant-octets+ 16384
  "A server that takes longer header lists takes all that has no metadata.")

(defun large-headers (call link number metadata)
  "How the attempt of CALL on LINK that NUMBER others came before, with METADATA, fails, if LINK's
server does not take as large a header list; else nil."
  (let ((limit (http2:connection-peer-max-header-list (client-link-http2 link)))
        (size (request-list-octets call number metadata)))
    (when (> size limit)
      (make-client-failure :resource-exhausted
                    (format nil "the request's header list has ~D octets, the server takes ~D"
                            size limit)
                    :how '(:ended-by :local :sent nil)))))

(define-hot unfit-headers ((call client-call) (link link) (number index) (metadata list))
    (or null client-failure)
  "How the attempt of CALL on LINK that NUMBER others came before, with METADATA, fails, if it
cannot have its headers; else nil."
  (and (or (< (http2:connection-peer-max-header-list (client-link-http2 link)) +constant-octets+)
           metadata)
       (large-headers call link number metadata)))

(defun metadata-fields (metadata)
  "METADATA, an alist that CHECK-METADATA has passed, as fields that might have come from a peer."
  (flet ((field (entry)
           (destructuring-bind (name . value) entry
             (hpack:string-field name (if (stringp value)
                                          (string-trim " " value)
                                          (encode-base64 (coerce value 'octets) :padding nil))))))
    (map 'simple-vector #'field metadata)))
