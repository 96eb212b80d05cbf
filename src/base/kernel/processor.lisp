;;;; What the processor has. Most kernels need instructions that not every x86-64 has, so their
;;;; callers ask AVX2-P, FAST-BITS-P or AVX512-P first. AVX2-P and AVX512-P tell what was found when
;;;; the process started, so a saved core may be carried to an older machine. Whether PEXT and PDEP
;;;; are fast is found when the code is loaded and stays in the core.

(in-package #:clgrpc.kernel)

(declaim (inline avx2-p))
(defun avx2-p ()
  "True if kernels may be called: this is an x86-64 with AVX2, and so with all that they use."
  #+x86-64 (/= 0 (sb-alien:extern-alien "avx2_supported" sb-alien:int))
  #-x86-64 nil)

(declaim (type boolean **fast-bits-p**))
(defglobal **fast-bits-p**
    #+x86-64 (multiple-value-bind (highest vendor) (sb-vm::%cpu-identification 0 0)
               (declare (ignore highest))
               (let ((version (sb-vm::%cpu-identification 1 0)))
                 (or (/= vendor #x68747541) ; of AMD's, whose name begins so, those from family 19h
                     (<= #x19 (+ (ldb (byte 4 8) version) (ldb (byte 8 20) version))))))
    #-x86-64 nil
  "True if PEXT and PDEP are fast where the processor has them. A core that is carried to another
processor keeps the value; if it is wrong there, only speed is lost.")

(declaim (inline fast-bits-p))
(defun fast-bits-p ()
  "True if kernels that use PEXT and PDEP should be called."
  (and **fast-bits-p** (avx2-p)))

(declaim (type boolean **avx512-p**))
(defglobal **avx512-p** nil
  "True if kernels of 512 bits may be called.")

(declaim (inline avx512-p))
(defun avx512-p ()
  "True if kernels of 512 bits may be called."
  **avx512-p**)

#+x86-64
(define-kernel %saved-state () (bits) (:shift which)
    "Which parts of the processor's state the kernel saves (XGETBV), as the lowest 32 bits of it."
  (inst push sb-vm::rax-tn)
  (inst push sb-vm::rdx-tn)
  (inst xor which which)
  (dolist (octet '(#x0F #x01 #xD0)) (inst byte octet))
  (inst mov :dword which sb-vm::rax-tn)
  (inst pop sb-vm::rdx-tn)
  (inst pop sb-vm::rax-tn)
  (inst mov bits which))

(defun find-avx512 ()
  "See whether kernels of 512 bits may be called."
  (setf **avx512-p**
        #+x86-64 (and (avx2-p)
                      (<= 7 (sb-vm::%cpu-identification 0 0))
                      (logbitp 27 (nth-value 2 (sb-vm::%cpu-identification 1 0))) ; has XGETBV
                      (= #xE6 (logand #xE6 (%saved-state)))
                      (multiple-value-bind (a b c) (sb-vm::%cpu-identification 7 0)
                        (declare (ignore a))
                        (and (every (lambda (bit) (logbitp bit b)) '(16 17 28 30 31))
                             (every (lambda (bit) (logbitp bit c)) '(1 6)))))
        #-x86-64 nil))

(defun forget-avx512 ()
  (setf **avx512-p** nil))

(find-avx512)
(pushnew 'find-avx512 sb-ext:*init-hooks*)
(pushnew 'forget-avx512 sb-ext:*save-hooks*)
