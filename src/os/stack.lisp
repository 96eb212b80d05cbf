;;;; The stack and its end. When a stack overflows SBCL signals STORAGE-CONDITION in the reserve
;;;; after the guard page, and removes that page's protection. SBCL restores the protection only
;;;; when the page before the guard page is touched on the way back, and then only the next time
;;;; that the stack is as deep as that. If the thread ends before that, SBCL 2.2.9 gives its stack
;;;; to another thread without the protection, and the process dies when this stack overflows.
;;;;
;;;; The last three pages, each of os_vm_page_size octets, are the return guard page, the guard page
;;;; and the hard guard page. On x86-64 a stack grows downwards, on arm64 upwards.

(in-package #:clgrpc.os)

(defun guard-page-octets ()
  "Return the size of a guard page in octets, or nil if this SBCL does not provide it."
  (let ((address (sb-sys:without-interrupts ; the C library has released its lock
                   (sb-sys:find-foreign-symbol-address "os_vm_page_size"))))
    (and address (sb-sys:sap-ref-64 (int-sap address) 0))))

(defun return-guard-address (page)
  "Return an address in this thread's return guard page, which has PAGE octets, or nil if the stack
is near that page. The contents of a page far beyond the end of the stack are unused."
  (let ((sp (sap-int (sb-kernel:current-sp)))
        ;; the address, represented as a fixnum
        (end (sb-kernel:get-lisp-obj-address
              #+x86-64 sb-vm:*control-stack-start* #-x86-64 sb-vm:*control-stack-end*)))
    #+x86-64 (and (< (+ end (* 4 page) 64) sp) (+ end (* 2 page) 64))
    #-x86-64 (and (< sp (- end (* 5 page))) (+ (- end (* 3 page)) 64))))

(defun stack-half-used-p ()
  "True if this thread has used more than half of its control stack."
  (let ((sp (sap-int (sb-kernel:current-sp)))
        (middle (ash (+ (sb-kernel:get-lisp-obj-address sb-vm:*control-stack-start*)
                        (sb-kernel:get-lisp-obj-address sb-vm:*control-stack-end*))
                     -1)))
    #+x86-64 (< sp middle)
    #-x86-64 (< middle sp)))

(defun protect-stack-end ()
  "Guard the end of this thread's stack again, if the stack has overflowed and was unwound. Call
this after an overflow, and at the end of a thread in which one may have happened."
  (let* ((page (guard-page-octets))
         (touched (and page (return-guard-address page))))
    (when touched (setf (sb-sys:sap-ref-8 (int-sap touched) 0) 0)))
  nil)
