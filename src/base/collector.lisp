;;;; How often SBCL collects garbage, for processes that serve or call all day. A collection costs
;;;; what survives it and hardly depends on how much was consed before, so fewer are less work.
;;;;
;;;; Invariant: nothing here is done unless somebody asks; a library leaves its image as it is.

(in-package #:clgrpc.base)

(defconstant +nursery-octets+ (* 200 1024 1024))

(defun keep-free-memory ()
  "Have only full collections give the memory they free back to the system. SBCL's do from the
second generation on, for which a process that had a gigabyte stands still for 60 ms, and 7 ms for
each 16 MB that it then faults in again."
  (let ((limit (sb-sys:find-foreign-symbol-address "small_generation_limit"))) ; unsigned char
    (when limit
      (setf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) sb-vm:+highest-normal-generation+))))

(defun tune-collector ()
  "Have this process collect garbage more seldom, and keep the memory that it had once, until a full
collection: for servers, and for clients with much to do. Between two collections 200 MB are consed,
or a fifth of the heap if that is less; what is not old yet may grow by a quarter of the heap.
Collects once, so that this holds from now on. Not for a library to call. From any thread."
  (keep-free-memory)
  (setf (sb-ext:bytes-consed-between-gcs)
        (min +nursery-octets+ (floor (sb-ext:dynamic-space-size) 5))
        (sb-ext:generation-bytes-consed-between-gcs 1)
        (floor (sb-ext:dynamic-space-size) 4))
  (sb-ext:gc :gen 1)
  nil)
