;;;; Sleeping until a word of memory changes: futex(2), called by the C library's function syscall,
;;;; since the library has no function for futex. A futex is a vector of one word, which must not
;;;; move while the kernel examines it. The kernel looks only at the lower half of the word; Lisp
;;;; can increment the whole word atomically, so that no change is lost when two threads change it
;;;; at once.

(in-package #:clgrpc.os)

(deftype futex ()
  "A word on whose change threads may wait. It is a vector of one word, which is pinned while a
thread waits."
  '(simple-array sb-ext:word (1)))

(define-constants
  (+futex-wait-private+ "FUTEX_WAIT_PRIVATE" 128)
  (+futex-wake-private+ "FUTEX_WAKE_PRIVATE" 129)
  (+sys-futex+ "SYS_futex" #+x86-64 202 #+arm64 98))

(defun make-futex ()
  "Return a futex with the value 0."
  (make-array 1 :element-type 'sb-ext:word :initial-element 0))

(declaim (inline wait-for-word wake-at-word))

(defun wait-for-word (sap value)
  "Sleep until WAKE-AT-WORD is called for the four octets at SAP. Return at once if their value is
no longer VALUE. The function may also return earlier, so check the octets again after any result."
  (syscall ("syscall" (signed 64)) ((signed 64) +sys-futex+) (system-area-pointer sap)
           (int +futex-wait-private+) ((unsigned 32) value)
           (system-area-pointer (int-sap 0)) (system-area-pointer (int-sap 0)) (int 0)))

(defun wake-at-word (sap)
  "Wake every thread that sleeps in WAIT-FOR-WORD for the octets at SAP. The caller must have
changed these octets before."
  (syscall ("syscall" (signed 64)) ((signed 64) +sys-futex+) (system-area-pointer sap)
           (int +futex-wake-private+) (int #x7FFFFFFF)
           (system-area-pointer (int-sap 0)) (system-area-pointer (int-sap 0)) (int 0)))

(declaim (ftype (function (futex sb-ext:word) (values result &optional)) wait-for-futex)
         (ftype (function (futex) (values result &optional)) wake-futex))

(defun wait-for-futex (futex value)
  "Sleep until WAKE-FUTEX is called for FUTEX. Return at once if its value is no longer VALUE. The
function may also return earlier, so check the value again after any result."
  (with-pinned-objects (futex)
    (wait-for-word (vector-sap futex) (ldb (byte 32 0) value))))

(defun wake-futex (futex)
  "Wake every thread that sleeps in WAIT-FOR-FUTEX for FUTEX. The caller must have changed its value
before."
  (with-pinned-objects (futex)
    (wake-at-word (vector-sap futex))))
