;;;; The end of the stack. When a stack runs out SBCL signals STORAGE-CONDITION in the reserve that
;;;; lies behind the guard page, and lifts that page's protection. It protects it again only when
;;;; the page before it, which returns from there have to pass, is touched: the next time that the
;;;; stack is as deep. If the thread has ended by then, SBCL 2.2.9 gives its stack to another with
;;;; the protection still lifted, and the next time this one runs out the process dies.
;;;;
;;;; From the lowest address up: the hard guard page, the guard page, the return guard page, each of
;;;; os_vm_page_size octets.

(in-package #:clgrpc.os)

(defun guard-page-octets ()
  "The size of a guard page, or nil if this SBCL does not say it."
  (let ((address (sb-sys:find-foreign-symbol-address "os_vm_page_size")))
    (and address (sb-sys:sap-ref-64 (int-sap address) 0))))

(defun protect-stack-end ()
  "Have the end of this thread's stack guarded again, if it has run out and was unwound. To be
called then, and at the end of a thread in which it may have."
  (let ((page (guard-page-octets)))
    (when page
      ;; an address that is shown as a fixnum
      (let ((touched (+ (sb-kernel:get-lisp-obj-address sb-vm:*control-stack-start*)
                        (* 2 page) 64)))
        ;; while this is far above it, whatever stands there is of no use to anybody
        (when (< (+ touched (* 2 page)) (sap-int (sb-kernel:current-sp)))
          (setf (sb-sys:sap-ref-8 (int-sap touched) 0) 0)))))
  nil)
