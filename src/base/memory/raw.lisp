;;;; Long vectors of numbers that are not zeroed. SBCL 2.2.9 zeroes the pages that Lisp allocates
;;;; (gencgc.c, zeroize_pages_if_needed); for a vector of 100 KB that is filled at once, zeroing
;;;; takes half of the time. SBCL also has pages without pointers, which it does not zero, but Lisp
;;;; can get these only from gc_alloc_large, the C function that finds the pages of a large object.
;;;;
;;;; Invariants: the collector cannot run between the allocation and the writing of the header. An
;;;; allocation by gc_alloc_large does not trigger the collector; so when a collection is due, the
;;;; vector is allocated in the ordinary way, which triggers the collector. The C function ends the
;;;; process when it finds no pages. So the places where the C function surely finds free pages
;;;; (heap.lisp) must have enough of them for all threads that are in that function at the same
;;;; time, and for other allocations meanwhile. If there are not enough, the vector is an ordinary
;;;; one, whose allocation signals a condition. No other object uses the vector's pages, so short
;;;; vectors are ordinary, too; at most three eighths of the pages are unused. In other versions of
;;;; SBCL all vectors are ordinary.

(in-package #:clgrpc.base)

(defconstant +shortest-raw+ 40960
  "The minimum size in octets of a vector that is not zeroed.")

(defmacro allocate-pages (octets)
  "Allocate OCTETS octets of fresh pages without pointers, and return their address. The collector
must be off."
  (if (known-heap-p)
      `(sb-alien:alien-funcall
        (sb-alien:extern-alien "gc_alloc_large" (function sb-sys:system-area-pointer
                                                          sb-alien:long sb-alien:int))
        ,octets 1)                      ; PAGE_TYPE_UNBOXED
      `(error "There are no pages for ~D octets." ,octets)))

(defmacro collection-due-p (octets)
  "True if the collector is due once OCTETS more are allocated."
  (if (known-heap-p)
      `(flet ((word (value) (sb-ext:truly-the (unsigned-byte 60) value)))
         (declare (inline word))
         (>= (+ ,octets (word (sb-alien:extern-alien "bytes_allocated" sb-alien:unsigned-long)))
             (word (sb-alien:extern-alien "auto_gc_trigger" sb-alien:unsigned-long))))
      t))

(define-leaf %raw-pages ((widetag (unsigned-byte 8)) (length heap-octets) (size heap-octets)) t
  "Return a vector of LENGTH elements, with WIDETAG, which takes SIZE octets. The caller must have
made sure that the heap has pages for it, and must have switched the collector off."
  (let ((sap (allocate-pages size)))
    (setf (sb-sys:sap-ref-word sap (- size sb-vm:n-word-bytes)) 0 ; after the last element
          (sb-sys:sap-ref-word sap sb-vm:n-word-bytes) (ash length sb-vm:n-fixnum-tag-bits)
          (sb-sys:sap-ref-word sap 0) widetag)
    (sb-kernel:%make-lisp-obj (logior (sb-sys:sap-int sap) sb-vm:other-pointer-lowtag))))

(define-hot raw-vector ((widetag (unsigned-byte 8)) (length heap-octets) (octets heap-octets)
                        (make-ordinary function)) t
  "Return a vector of LENGTH elements, with WIDETAG; the elements are undefined and take OCTETS
octets. Or return an ordinary vector, which MAKE-ORDINARY makes. Signal HEAP-FULL if the allocation
might end the process."
  (let ((size (logandc2 (+ octets (* 2 sb-vm:n-word-bytes) 15) 15)))
    (flet ((make ()
             (or (and (not (collection-due-p size))
                      (< size (heap-margin))
                      (sb-sys:without-gcing
                        (and (hole-p (+ (the heap-octets (car **claimed**)) (heap-margin)))
                             (%raw-pages widetag length size))))
                 (funcall make-ordinary))))
      (declare (dynamic-extent #'make))
      (call-with-claim size #'make))))

(defmacro make-raw-vector (length type)
  "Return a fresh vector of LENGTH numbers of TYPE, a constant, with undefined contents. The caller
must set all elements before other code uses the vector."
  (let* ((row (find (upgraded-array-element-type type)
                    sb-vm:*specialized-array-element-type-properties*
                    :key #'sb-vm:saetp-specifier :test #'equal))
         (width (floor (sb-vm:saetp-n-bits row) 8))
         (vector `(simple-array ,type (*))))
    `(let ((length ,length))
       (declare (type heap-octets length))
       (flet ((make-ordinary () (make-array length :element-type ',type)))
         (declare (dynamic-extent #'make-ordinary))
         (sb-ext:truly-the ,vector
                    (if (<= ,(floor +shortest-raw+ width) length)
                        (raw-vector ,(sb-vm:saetp-typecode row) length (* ,width length)
                                    #'make-ordinary)
                        (make-ordinary)))))))
