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
  #.(format nil "grpc-lisp-clgrpc/~A" (asdf:component-version (asdf:find-system "clgrpc"))))

(defglobal **grpc-timeout** (ascii-octets "grpc-timeout"))

(defun write-head (call stream)
  "Write the header block of CALL's request on STREAM."
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (hpack:encode-field encoder buffer **post** :index)
    (hpack:encode-field encoder buffer
                        (if (core-credentials (client-call-core call))
                            **https**
                            **http**)
                        :index)
    (hpack:encode-field encoder buffer (wire:method-path-field (call-rpc-method call)) :index)
    (hpack:encode-field encoder buffer
                        (core-authority (client-call-core call)) :index)
    (hpack:encode-field encoder buffer **te-trailers** :index)
    (hpack:encode-field encoder buffer **content-type** :index)
    (hpack:encode-field encoder buffer **user-agent** :index)
    (wire:encode-accepted-encodings encoder buffer)
    (wire:encode-encodings call encoder buffer)
    (when (plusp (call-deadline call))
      (hpack:encode-literal encoder buffer **grpc-timeout**
                            (status:encode-timeout (- (call-deadline call) (wire:wire-now call)))
                            :plain))
    (wire:encode-metadata (rpc:outgoing-metadata call) encoder buffer)
    (http2:end-headers stream nil)))

(defun write-request-head (call)
  "The operation WRITE-HEAD."
  (write-head call (wire-call-stream call)))

(defconstant +constant-octets+ 16384
  "A server that takes longer header lists takes all that has no metadata.")

(defun request-list-octets (call)
  "How large the header list of CALL's request is at most, as RFC 9113 section 6.5.2 counts."
  (+ (loop for field in (list **post** **https** **te-trailers** **content-type** **user-agent**
                              (wire:method-path-field (call-rpc-method call))
                              (core-authority (client-call-core call))
                              (wire:accepted-encodings-field))
           sum (hpack:field-size field))
     ;; grpc-encoding and grpc-timeout
     (if (wire:compression-of call) 52 0)
     (if (plusp (call-deadline call)) 53 0)
     (wire:metadata-octets (rpc:outgoing-metadata call))))
