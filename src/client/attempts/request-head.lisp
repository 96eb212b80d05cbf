;;;; The header block of a request (gRPC over HTTP/2, "Requests").

(in-package #:clgrpc.client)

(hpack:define-field **post** ":method" "POST")
(hpack:define-field **http** ":scheme" "http")
(hpack:define-field **https** ":scheme" "https")
(hpack:define-field **te-trailers** "te" "trailers")
(hpack:define-field **user-agent** "user-agent"
  (format nil "grpc-lisp-clgrpc/~A" **version**))

(defun user-agent-field (prefix)
  "The field user-agent of a channel with PREFIX, a string of its user."
  (hpack:string-field "user-agent"
                      (format nil "~A ~A" prefix (hpack:field-value-string **user-agent**))))

(define-hot (content-type-field :inline t) ((call client-call)) hpack:field
  (wire:codec-content-type (method:rpc-method-codec (call-rpc-method call))))

(define-hot (authority-field :inline t) ((call client-call)) hpack:field
  "The field :authority of the requests of CALL."
  (if-let ((own (own-authority call)))
    (hpack:string-field ":authority" own)
    (core-authority (client-call-core call))))

(defglobal **grpc-timeout** (ascii-octets "grpc-timeout"))

(hpack:define-field **first-retry** "grpc-previous-rpc-attempts" "1")

(defun attempts-field (number)
  "The field for the number of previous attempts, NUMBER (gRFC A6)."
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
  "Write the header block of an attempt of CALL on STREAM, with METADATA, an alist. NUMBER attempts
came before this one."
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (hpack:encode-field encoder buffer **post** :index)
    (hpack:encode-field encoder buffer
                        (if (core-credentials (client-call-core call))
                            **https**
                            **http**)
                        :index)
    (hpack:encode-field encoder buffer (method-path-field (call-rpc-method call)) :index)
    (hpack:encode-field encoder buffer (authority-field call) :index)
    (when (plusp (call-deadline call))
      (hpack:encode-literal encoder buffer **grpc-timeout**
                            (status:encode-timeout (- (call-deadline call) (operate now call)))
                            :plain))
    (hpack:encode-field encoder buffer **te-trailers** :index)
    (hpack:encode-field encoder buffer (content-type-field call) :index)
    (hpack:encode-field encoder buffer
                        (or (core-user-agent (client-call-core call)) **user-agent**)
                        :index)
    (wire:encode-encodings call encoder buffer
                           (and (wire:outgoing-encoding call) (not (plain-only-p call stream))))
    (when (plusp number)
      (hpack:encode-field encoder buffer (attempts-field number) :index))
    (when metadata (wire:encode-metadata metadata encoder buffer))
    (http2:end-headers stream nil)))

(defun request-list-octets (call number metadata)
  "The maximum number of octets of the header list of an attempt of CALL with METADATA, counted as
in RFC 9113 section 6.5.2. NUMBER attempts came before this one."
  (+ (loop for field in (list **post** **https** **te-trailers** (content-type-field call)
                              (or (core-user-agent (client-call-core call)) **user-agent**)
                              (method-path-field (call-rpc-method call))
                              (authority-field call))
           sum (hpack:field-size field))
     (if (plusp (call-deadline call)) 53 0) ; grpc-timeout
     (if (plusp number) (hpack:field-size (attempts-field number)) 0)
     (wire:metadata-octets metadata call)))

(defconstant +constant-octets+ 16384
  "The size that no header list without metadata exceeds: a server with a higher limit accepts all
such lists.")

(defun large-headers (call link number metadata)
  "The failure of an attempt of CALL on LINK with METADATA, if its header list is larger than LINK's
server accepts; else nil. NUMBER attempts came before this one."
  (let ((limit (http2:connection-peer-max-header-list (client-link-http2 link)))
        (size (request-list-octets call number metadata)))
    (when (> size limit)
      (make-client-failure :resource-exhausted
                    (format nil "the request's header list has ~D octets, the server accepts ~D"
                            size limit)
                    :how '(:ended-by :local :sent nil)))))

(defun authority-host (authority)
  "The host that AUTHORITY, a text HOST, HOST:PORT or [ADDRESS]:PORT, names (RFC 3986 section
3.2)."
  (let ((bracket (position #\] authority)))
    (if (and bracket (char= #\[ (char authority 0)))
        (subseq authority 1 bracket)
        (subseq authority 0 (position #\: authority)))))

(defconstant +remembered-authorities+ 16
  "The maximum number of names that a link remembers as proved by its server; further names are
checked each time.")

(defun proves-p (link authority)
  "True if the certificate of LINK's server is valid for the host that AUTHORITY names."
  (or (find authority (client-link-authorities link) :test #'string=)
      (let ((security (loop:connection-security (client-link-socket link))))
        (when (os:certificate-for-p (loop:security-peer-certificate security)
                                    (authority-host authority))
          (when (< (length (client-link-authorities link)) +remembered-authorities+)
            (push authority (client-link-authorities link)))
          t))))

(defun false-authority (call link)
  "The failure of an attempt of CALL on LINK if CALL has an :authority of its own, and the verified
certificate of LINK's server is not for it; else nil."
  (let* ((authority (own-authority call))
         (credentials (core-credentials (client-call-core call))))
    (unless (or (null authority)
                (null credentials)
                (not (loop:tls-credentials-verify credentials))
                (proves-p link authority))
      (make-client-failure :unavailable
                           (format nil "the certificate of ~A is not for ~A, the call's :authority"
                                   (client-link-peer link) authority)
                           :how '(:ended-by :local :sent nil)))))

(define-hot (identity-failure :inline t) ((call client-call)) (or null client-failure)
  "The failure of the attempt of CALL that begins, if its credentials have failed; else nil."
  (let* ((parts (call-client-parts call))
         (identity (and parts (client-parts-identity parts))))
    (and identity (shiftf (caller-identity-failure identity) nil))))

(define-hot unfit-headers ((call client-call) (link link) (number index) (metadata list))
    (or null client-failure)
  "The failure of an attempt of CALL on LINK with METADATA, if its headers cannot be sent; else nil.
NUMBER attempts came before this one."
  (or (identity-failure call)
      (and (own-authority call) (false-authority call link))
      (and (or (< (http2:connection-peer-max-header-list (client-link-http2 link))
                  +constant-octets+)
               metadata
               (own-authority call))
           (large-headers call link number metadata))))

(defun metadata-fields (metadata)
  "METADATA, an alist that CHECK-METADATA has passed, as header fields like a peer's."
  (flet ((field (entry)
           (destructuring-bind (name . value) entry
             (hpack:string-field name (if (stringp value)
                                          (string-trim " " value)
                                          (encode-base64 (coerce value 'octets)))))))
    (map 'simple-vector #'field metadata)))
