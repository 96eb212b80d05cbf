;;;; Encodings of messages other than Protocol Buffers: compressions, and the codecs of other
;;;; formats. Users register both.

(defpackage #:clgrpc.encoding
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; encoding-registry.lisp
   #:check-compression #:compressed-octets #:encoding #:encoding-name #:encoding-of-name
   #:encoding-open-p #:encoding-text #:encodings #:expand-beginning #:expand-octets
   #:register-compressor #:register-zstd
   ;; message-codec.lisp
   #:codec-field #:codec-name #:codec-of-name #:find-codec #:message-codec #:register-codec
   #:type-in-codec))
