;;;; Protocol Buffers for SBCL: .proto source → descriptors → native code specialised per message.
;;;; The package uses only clgrpc.base and clgrpc.kernel. Users need the first group of exports; the
;;;; other groups serve the layers above (rpc, reflection) and the code that DEFINE-PROTO generates.

(defpackage #:clgrpc.protobuf
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:import-from #:clgrpc.kernel #:define-kernel #:with-kernel-parts #:inst #:memory #:inst512
                #:instx #:broadcast #:masked #:+octets-data+ #:+kernels-p+
                #:avx2-p #:fast-bits-p #:avx512-p)
  (:import-from #:sb-ext #:defglobal #:truly-the)
  (:export
   ;; define.lisp
   #:define-proto #:add-service-expander #:remove-service-expander #:*import-roots*
   ;; import.lisp
   #:read-proto-files
   ;; source.lisp
   #:defined-as
   ;; form.lisp, plugin.lisp
   #:define-file #:generate-sources #:answer-request #:*import-option*
   ;; protobuf-condition.lisp
   #:field-type-error #:field-type-error-field
   #:protobuf-error #:protobuf-error-position #:protobuf-error-type #:protobuf-error-text
   #:required-field-missing #:required-field-missing-path
   #:message-text-error #:message-text-error-format #:message-text-error-line
   #:message-text-error-column #:message-text-error-path
   #:message-print-error #:message-print-error-format
   #:proto-syntax-error #:proto-syntax-error-file #:proto-syntax-error-line
   #:proto-syntax-error-column #:proto-syntax-error-expected #:proto-syntax-error-text
   #:proto-syntax-error-others
   ;; message.lisp
   #:message #:message-p #:message-of-type-p #:message-type #:message-type-name
   #:message-type-symbol #:message-type-descriptor
   #:message-type-sizer #:message-type-writer #:message-type-defined-p
   #:find-message-type #:intern-message-type #:message-type-of #:make-message
   #:unknown-fields
   #:enum-type #:enum-type-name #:enum-type-descriptor #:find-enum-type #:enum-number #:enum-keyword
   ;; message-operation.lisp
   #:serialize #:serialized-size #:parse-message #:parse-octets #:parse-received #:measure
   #:write-delimited #:read-delimited
   ;; requirement.lisp
   #:check-required
   #:message= #:copy-message #:merge-message #:clear-message
   ;; json-writer.lisp, json-reader.lisp
   #:message-json #:parse-json-message
   ;; field-text.lisp
   #:find-field #:find-field-path #:text-field-p #:set-field-text #:parse-json-field #:field-json
   #:field-text-error #:field-text-error-path #:field-text-error-text
   ;; well-known-text.lisp
   #:timestamp-text #:parse-timestamp-text
   ;; text-writer.lisp, text-reader.lisp
   #:message-text #:parse-text-message
   ;; dynamic.lisp
   #:type-pool #:make-type-pool #:find-pool-type #:type-pool-files
   ;; raw-message.lisp
   #:raw-type #:raw-type-p #:raw-type-decoded #:raw-type-finder #:coded-type-p
   #:make-coded-type #:code-message #:decode-coded #:make-raw-type #:**raw-type**
   #:make-raw-message #:raw-message #:raw-message-p #:raw-message-octets #:decoded-room
   ;; message-reflection.lisp
   #:field-value #:field-present-p #:clear-field
   #:present-fields #:do-fields #:ensure-field #:append-to-field #:oneof-field
   ;; extension.lisp
   #:find-extension #:find-extension-number #:extension-fields
   ;; well-known.lisp
   #:unix-time-timestamp #:timestamp-unix-time #:universal-time-timestamp
   #:timestamp-universal-time #:seconds-duration #:duration-in-seconds
   #:any-pack #:any-unpack #:any-type-name
   #:data-value #:value-data #:alist-struct #:struct-alist #:vector-list-value #:list-value-vector
   ;; map.lisp
   #:proto-map #:map-value #:map-count #:map-remove #:do-map #:map-alist
   ;; descriptor.lisp
   #:find-file-descriptor #:find-descriptor #:file-of-symbol
   #:find-extension-descriptor #:extension-descriptors
   #:descriptor #:descriptor-name #:descriptor-full-name #:descriptor-comment #:descriptor-options
   #:descriptor-option-octets #:descriptor-source-option-octets
   #:descriptor-line #:descriptor-column
   ;; image.lisp
   #:file-descriptor-octets #:descriptor-set-octets
   ;; source/descriptor-set.lisp
   #:load-descriptor-set #:define-descriptor-set
   #:option #:option-name #:option-value #:find-option
   #:file-descriptor #:file-descriptor-package #:file-descriptor-syntax
   #:file-descriptor-dependencies #:file-descriptor-public-dependencies
   #:file-descriptor-messages #:file-descriptor-enums #:file-descriptor-services
   #:file-descriptor-extensions
   #:message-descriptor #:message-descriptor-fields #:message-descriptor-oneofs
   #:message-descriptor-messages #:message-descriptor-enums #:message-descriptor-map-entry-p
   #:field-descriptor #:field-descriptor-number #:field-descriptor-label #:field-descriptor-type
   #:field-descriptor-type-name #:field-descriptor-default #:field-descriptor-json-name
   #:field-descriptor-presence #:field-descriptor-packed-p #:field-descriptor-oneof
   #:oneof-descriptor
   #:enum-descriptor #:enum-descriptor-values #:enum-value-descriptor #:enum-value-descriptor-number
   #:service-descriptor #:service-descriptor-symbol #:service-descriptor-methods
   #:method-descriptor #:method-descriptor-symbol #:method-descriptor-path
   #:method-descriptor-input #:method-descriptor-output
   #:method-descriptor-client-streaming-p #:method-descriptor-server-streaming-p))
