;;;; Long vectors of numbers that nobody zeroes. SBCL 2.2.9 zeroes the pages that Lisp allocates on
;;;; (gencgc.c, zeroize_pages_if_needed), which for a vector of 100 KB that is written at once takes
;;;; half of all. Its collector also knows pages without pointers, which it does not zero, but Lisp
;;;; has no way to them but the C function that gets a large object's pages, gc_alloc_large.
;;;;
;;;; Invariants: the collector cannot run between the allocation and the header's being written.
;;;; Allocating so does not make the collector run, so when it is due the vector is an ordinary one,
;;;; whose allocation does. The pages are the vector's alone, so short vectors are ordinary, too: at
;;;; most three eighths of the pages are unused. In another SBCL all vectors are ordinary.

(in-package #:clgrpc.base)

(defconstant +shortest-raw+ 40960
  "How many octets of memory a vector takes at least that is not zeroed.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun known-heap-p ()
    "True if this SBCL is the one whose heap we know from inside."
    (and (eql 0 (search "2.2.9" (lisp-implementation-version)))
         (member :x86-64 *features*)
         (every #'sb-sys:find-foreign-symbol-address
                '("gc_alloc_large" "bytes_allocated" "auto_gc_trigger")))))

(defmacro allocate-pages (octets)
  "The address of OCTETS octets of fresh pages without pointers. The collector must be off."
  (if (known-heap-p)
      `(sb-alien:alien-funcall
        (sb-alien:extern-alien "gc_alloc_large" (function sb-sys:system-area-pointer
                                                          sb-alien:long sb-alien:int))
        ,octets 1)                      ; PAGE_TYPE_UNBOXED
      `(error "There are no pages for ~D octets." ,octets)))

(defmacro pages-allowed-p (octets)
  "True if OCTETS may be had without the collector's being due."
  (if (known-heap-p)
      `(flet ((word (value) (sb-ext:truly-the (unsigned-byte 60) value)))
         (declare (inline word))
         (< (+ ,octets (word (sb-alien:extern-alien "bytes_allocated" sb-alien:unsigned-long)))
            (word (sb-alien:extern-alien "auto_gc_trigger" sb-alien:unsigned-long))))
      nil))

(define-leaf %raw-vector
    ((widetag (unsigned-byte 8)) (length (unsigned-byte 48)) (octets (unsigned-byte 48)))
    t
  "A vector with WIDETAG of LENGTH elements, which are undefined and take so many OCTETS; NIL if it
should be an ordinary one."
  (let ((size (logandc2 (+ octets (* 2 sb-vm:n-word-bytes) 15) 15)))
    (when (pages-allowed-p size)
      (sb-sys:without-gcing
        (let ((sap (allocate-pages size)))
          (setf (sb-sys:sap-ref-word sap (- size sb-vm:n-word-bytes)) 0 ; behind the last element
                (sb-sys:sap-ref-word sap sb-vm:n-word-bytes) (ash length sb-vm:n-fixnum-tag-bits)
                (sb-sys:sap-ref-word sap 0) widetag)
          (sb-kernel:%make-lisp-obj (logior (sb-sys:sap-int sap) sb-vm:other-pointer-lowtag)))))))

(defmacro make-raw-vector (length type)
  "Return a fresh vector of LENGTH numbers of TYPE, a constant, that may hold anything: the caller
writes them all before anybody else sees it."
  (let* ((row (find (upgraded-array-element-type type)
                    sb-vm:*specialized-array-element-type-properties*
                    :key #'sb-vm:saetp-specifier :test #'equal))
         (width (floor (sb-vm:saetp-n-bits row) 8))
         (vector `(simple-array ,type (*))))
    `(let ((length ,length))
       (declare (type (unsigned-byte 48) length))
       (sb-ext:truly-the ,vector
                  (or (and (<= ,(floor +shortest-raw+ width) length)
                           (%raw-vector ,(sb-vm:saetp-typecode row) length (* ,width length)))
                      (make-array length :element-type ',type))))))
