;;;; The features of the processor. Not every x86-64 has the instructions that most kernels need, so
;;;; callers of kernels ask AVX2-P, FAST-BITS-P or AVX512-P first. The answers of AVX2-P and
;;;; AVX512-P are found when the process starts, so a saved core may be carried to an older machine.
;;;; Whether PEXT and PDEP are fast is found when the code is loaded and stays in the core.

(in-package #:clgrpc.kernel)

(declaim (type boolean **avx2-p**))
(defglobal **avx2-p** nil
  "True if kernels may be called.")

(declaim (inline avx2-p))
(defun avx2-p ()
  "True if kernels may be called, because this is an x86-64 with AVX2 and the other features that
kernels use."
  **avx2-p**)

(defun bits-p (features extended more)
  "True if a processor has the bit instructions that kernels use in addition to AVX2: FEATURES is
ECX of CPUID's leaf 1, EXTENDED is EBX of leaf 7, and MORE is ECX of leaf 80000001. A hypervisor may
offer AVX2 without these instructions. A processor without LZCNT executes the octets of LZCNT as
BSR, which returns another number."
  (and (logbitp 23 features)            ; POPCNT
       (logbitp 3 extended)             ; BMI1, with TZCNT
       (logbitp 8 extended)             ; BMI2
       (logbitp 5 more)))               ; LZCNT

#+x86-64
(defun processor-word (leaf register)
  "Return the value of CPUID at LEAF in the register with the number REGISTER, counted as EAX, EBX,
ECX, EDX. Return 0 if there is no such leaf."
  (if (<= leaf (sb-vm::%cpu-identification (logand leaf #x80000000) 0))
      (nth register (multiple-value-list (sb-vm::%cpu-identification leaf 0)))
      0))

(defun find-avx2 ()
  "Find out whether kernels may be called."
  (setf **avx2-p**
        #+x86-64 (and (/= 0 (sb-alien:extern-alien "avx2_supported" sb-alien:int))
                      (bits-p (processor-word 1 2) (processor-word 7 1)
                              (processor-word #x80000001 2)))
        #-x86-64 nil))

(declaim (type boolean **fast-bits-p**))
(defglobal **fast-bits-p**
    #+x86-64 (multiple-value-bind (highest vendor) (sb-vm::%cpu-identification 0 0)
               (declare (ignore highest))
               (let ((version (sb-vm::%cpu-identification 1 0)))
                 ;; AMD's vendor name begins with this number; AMD's processors are fast from family
                 ;; 19h on
                 (or (/= vendor #x68747541)
                     (<= #x19 (+ (ldb (byte 4 8) version) (ldb (byte 8 20) version))))))
    #-x86-64 nil
  "True if PEXT and PDEP are fast on this processor. A core that is started on another processor
keeps the value; if it is wrong there, only speed is lost.")

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
(eval-when (:compile-toplevel :load-toplevel :execute)
  (define-kernel %saved-state () (bits) (:shift which)
      "The parts of the processor's state that the operating system's kernel saves: the lowest 32
bits of XGETBV."
    (inst push sb-vm::rax-tn)
    (inst push sb-vm::rdx-tn)
    (inst xor which which)
    (dolist (octet '(#x0F #x01 #xD0)) (inst byte octet))
    (inst mov :dword which sb-vm::rax-tn)
    (inst pop sb-vm::rdx-tn)
    (inst pop sb-vm::rax-tn)
    (inst mov bits which)))

(defun find-avx512 ()
  "Find out whether kernels of 512 bits may be called."
  (setf **avx512-p**
        #+x86-64 (and (avx2-p)
                      (logbitp 27 (processor-word 1 2)) ; has XGETBV
                      (= #xE6 (logand #xE6 (%saved-state)))
                      (let ((b (processor-word 7 1)) (c (processor-word 7 2)))
                        (and (every (lambda (bit) (logbitp bit b)) '(16 17 28 30 31))
                             (every (lambda (bit) (logbitp bit c)) '(1 6)))))
        #-x86-64 nil))

(defun find-kernels ()
  "Find out which kernels may be called."
  (find-avx2)
  (find-avx512))

(defun forget-kernels ()
  (setf **avx2-p** nil
        **avx512-p** nil))

(find-kernels)
(pushnew 'find-kernels sb-ext:*init-hooks*)
(pushnew 'forget-kernels sb-ext:*save-hooks*)
