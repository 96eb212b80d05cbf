;;;; Kernels: inner loops in machine code, for x86-64. A kernel is defined by DEFINE-KERNEL as a
;;;; function of addresses (SAPs, whose vectors the caller holds in place) and counts. A kernel does
;;;; as much of the work as it can, never touches memory outside the counts, and returns how far it
;;;; came. A portable loop of the caller does the rest; on other processors it does all work.
;;;;
;;;; Only packages that define or call kernels use this one.

(defpackage #:clgrpc.kernel
  (:use #:cl)
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; instruction.lisp
   #:inst #:memory #:repeat-constant #:inst512 #:instx #:broadcast #:masked
   ;; kernel.lisp
   #:define-kernel #:with-kernel-parts #:+octets-data+ #:+kernels-p+ #:kernels
   ;; processor-feature.lisp
   #:avx2-p #:fast-bits-p #:avx512-p))
