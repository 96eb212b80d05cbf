;;;; HPACK, the header compression of HTTP/2 (RFC 7541), which can be used alone: the package works
;;;; on octets and does not depend on frames, streams or gRPC.
;;;;
;;;; The files in their order: error; leaf (octets by the word); huffman (section 5.2, appendix B);
;;;; field and list, the data that the others pass around; static (appendix A); table (sections 2.3
;;;; and 4); cache (of octets that a peer repeats); decoder and encoder (sections 3 to 6).

(defpackage #:clgrpc.hpack
  (:use #:cl #:clgrpc.base)
  (:import-from #:sb-ext #:define-load-time-global #:freeze-type)
  (:export
   ;; hpack-error.lisp
   #:hpack-error #:hpack-error-text #:hpack-error-position
   ;; header-field.lisp
   #:field #:make-field #:string-field #:define-field #:field-name #:field-value #:field-size
   #:field-sensitive-p #:field-kind #:field-memo #:field-name-string #:field-value-string
   #:+field-overhead-octets+
   ;; list.lisp
   #:field-list #:make-field-list #:clear-field-list #:field-list-fields #:field-list-count
   #:field-list-octets #:field-list-overflow-p #:field-list-memo #:field-list-repeated-p #:do-fields
   #:find-field #:+field-octets+ #:fields-octets
   ;; block-decoder.lisp
   #:decoder #:make-decoder #:make-common-fields #:decode-block #:set-decoder-limit
   #:forget-repeats #:decoder-memory
   ;; block-encoder.lisp
   #:encoder #:make-encoder #:set-encoder-limit #:begin-block #:encode-field #:encode-literal
   #:encode-fields #:forget-encoded #:encoder-memory))
