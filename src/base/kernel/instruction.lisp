;;;; Instructions for the bodies of kernels: SBCL's assembler under shorter names, and an encoder
;;;; for the instructions that it does not know: AVX-512 as Intel has it since Ice Lake and AMD
;;;; since Zen 4 (F, BW, DQ, VL, CD, VBMI and VBMI2), and some for general registers (Intel's
;;;; Software Developer's Manual, volume 2, 2.3 and 2.7).
;;;;
;;;; Invariants: kernels use the vector registers from 16 and the mask registers from 1 on. SBCL
;;;; never uses these, so kernels save no register and need no VZEROUPPER. A kernel that uses
;;;; COMPRESS clears the destination first: otherwise the processor waits for the old contents of
;;;; that register, though it does not need them.

(in-package #:clgrpc.kernel)

(defmacro inst (mnemonic &rest operands)
  "In DEFINE-KERNEL, emit the instruction MNEMONIC with OPERANDS."
  `(sb-assem:inst ,mnemonic ,@operands))

(defmacro memory (displacement &optional base index (scale 1))
  "In DEFINE-KERNEL, the operand in memory at the address BASE + DISPLACEMENT + SCALE × INDEX, where
BASE and INDEX are registers."
  (list #+x86-64 'sb-vm::ea #-x86-64 'list displacement base index scale))

(defmacro repeat-constant (bits value)
  "In DEFINE-KERNEL, a constant of sixteen octets with VALUE in each lane of BITS bits."
  `(sb-c:register-inline-constant
    :oword (loop for shift from 0 below 128 by ,bits
                 sum (ash (ldb (byte ,bits 0) ,value) shift))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +first-512+ 16
    "The first vector register that SBCL does not use.")

  (defun register-512 (position)
    (cons :vector (+ +first-512+ position)))

  (defun mask-register (position)
    (cons :mask (1+ position)))

  (defun masked (mask operand)
    "Return OPERAND, restricted to the elements in MASK. The other elements of a register become
zero."
    (list :masked mask operand)))

#+x86-64
(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *instructions-512*
    ;; The operands of :rm are a register R and M, a register or memory; of :mr, M and R; of :rvm,
    ;; R, a register V and M; of :vm, V and M, with the row's digit encoded in place of R.
    '((:vmovdqu64 :rm 1 #xF3 1 #x6F) (:vmovdqu64-to :mr 1 #xF3 1 #x7F)
      (:vmovdqu8 :rm 1 #xF2 0 #x6F) (:vmovdqu8-to :mr 1 #xF2 0 #x7F)
      (:vpbroadcastq :rm 2 #x66 1 #x7C)
      (:vpmovsxdq :rm 2 #x66 0 #x25) (:vpmovzxdq :rm 2 #x66 0 #x35) (:vpmovzxbq :rm 2 #x66 0 #x32)
      (:vpmovqd-to :mr 2 #xF3 0 #x35)
      (:vpaddb :rvm 1 #x66 0 #xFC) (:vpaddq :rvm 1 #x66 1 #xD4)
      (:vpsubb :rvm 1 #x66 0 #xF8) (:vpsubq :rvm 1 #x66 1 #xFB)
      (:vpmullq :rvm 2 #x66 1 #x40)
      (:vpandq :rvm 1 #x66 1 #xDB) (:vporq :rvm 1 #x66 1 #xEB) (:vpxorq :rvm 1 #x66 1 #xEF)
      (:vpternlogq :rvm 3 #x66 1 #x25)
      (:vpsraq :vm 1 #x66 1 #x72 4) (:vpsrld :vm 1 #x66 0 #x72 2)
      (:vpsrlq :vm 1 #x66 1 #x73 2) (:vpsllq :vm 1 #x66 1 #x73 6)
      (:vpsrlvq :rvm 2 #x66 1 #x45) (:vplzcntq :rm 2 #x66 1 #x44)
      (:vpmultishiftqb :rvm 2 #x66 1 #x83)
      (:vpmaddubsw :rvm 2 #x66 0 #x04) (:vpmaddwd :rvm 1 #x66 0 #xF5)
      (:vpermb :rvm 2 #x66 0 #x8D) (:vpcompressb :mr 2 #x66 0 #x63)
      (:vshufi64x2 :rvm 3 #x66 1 #x43) (:vpshufd :rm 1 #x66 0 #x70)
      (:vmovq-to :mr 1 #x66 1 #x7E 128)
      (:vptestmq :rvm 2 #x66 1 #x27) (:vpmovb2m :rm 2 #xF3 0 #x29)
      (:vpcmpub :rvm 3 #x66 0 #x3E) (:vpcmpb :rvm 3 #x66 0 #x3F))
    "The AVX-512 instructions. A row is a list of name, operands, map, prefix, W, operation, and a
digit or length.")

  (defparameter *instructions-x*
    '((:bzhi :rmv 2 nil 1 #xF5)
      (:pdep :rvm 2 #xF2 1 #xF5) (:pext :rvm 2 #xF3 1 #xF5) (:shrx :rmv 2 #xF2 1 #xF7)
      (:kmovq-to :rm 1 #xF2 1 #x93) (:kmovq :rm 1 #xF2 1 #x92) (:kortestq :rm 1 nil 1 #x98))
    "Instructions for general and mask registers; rows as in *INSTRUCTIONS-512*.")

  (defun register-number (operand)
    (if (consp operand) (cdr operand) (sb-c:tn-offset operand)))

  (defun complement-bit (position number)
    "Return the complement of the bit of NUMBER at POSITION, that is, 0 or 1."
    (if (logbitp position number) 0 1))

  (defun prefix-code (prefix)
    (ecase prefix ((nil) 0) (#x66 1) (#xF3 2) (#xF2 3)))

  (defun emit-octets (&rest octets)
    (dolist (octet octets) (sb-assem:inst byte octet)))

  (defun emit-place (register place)
    "Emit the octets that encode two operands: the register whose number is REGISTER, and PLACE, a
register or memory."
    (if (typep place 'sb-x86-64-asm::ea)
        (let ((index (sb-x86-64-asm::ea-index place)))
          (emit-octets (logior #b10000100 (ash (ldb (byte 3 0) register) 3))
                       (logior (ash (1- (integer-length (sb-x86-64-asm::ea-scale place))) 6)
                               (if index (ash (ldb (byte 3 0) (register-number index)) 3) #b100000)
                               (ldb (byte 3 0) (register-number (sb-x86-64-asm::ea-base place)))))
          (let ((displacement (sb-x86-64-asm::ea-disp place)))
            (loop for shift from 0 below 32 by 8
                  do (emit-octets (ldb (byte 8 shift) displacement)))))
        (emit-octets (logior #b11000000 (ash (ldb (byte 3 0) register) 3)
                             (ldb (byte 3 0) (register-number place))))))

  (defun place-bits (place)
    "Return two bits of the prefix for PLACE. They are complements: of the top bits of its index and
its base if PLACE is memory, otherwise of the top bits of its number."
    (if (typep place 'sb-x86-64-asm::ea)
        (values (complement-bit 3 (let ((index (sb-x86-64-asm::ea-index place)))
                                    (if index (register-number index) 0)))
                (complement-bit 3 (register-number (sb-x86-64-asm::ea-base place))))
        (values (complement-bit 4 (register-number place))
                (complement-bit 3 (register-number place)))))

  (defun arranged (form operands digit)
    "Return four values for OPERANDS in the form FORM: the register's number, the place, the middle
register's number, and the list of the octets that follow."
    (destructuring-bind (a b &optional c &rest more) operands
      (ecase form
        (:rm (values (register-number a) b 0 (and c (cons c more))))
        (:mr (values (register-number b) a 0 (and c (cons c more))))
        (:rvm (values (register-number a) c (register-number b) more))
        (:rmv (values (register-number a) b (register-number c) more))
        (:vm (values digit b (register-number a) (cons c more))))))

  (defun emit-x (name &rest operands)
    "Emit the instruction NAME of *INSTRUCTIONS-X* for registers."
    (destructuring-bind (form map prefix w operation)
        (rest (assoc name *instructions-x*))
      (multiple-value-bind (register place between) (arranged form operands nil)
        (multiple-value-bind (index base) (place-bits place)
          (declare (ignore index))
          (emit-octets #xC4
                       (logior (ash (complement-bit 3 register) 7) (ash 1 6) (ash base 5) map)
                       (logior (ash w 7) (ash (logxor 15 between) 3) (prefix-code prefix))
                       operation)
          (emit-place register place)))))

  (defun emit-512 (name &rest operands)
    "Emit the instruction NAME of *INSTRUCTIONS-512*; an octet may follow its operands."
    (let* ((masked (find-if (lambda (operand) (and (consp operand) (eq :masked (first operand))))
                            operands))
           (operands (substitute (third masked) masked operands)))
      (destructuring-bind (form map prefix w operation &optional digit)
          (rest (assoc name *instructions-512*))
        (multiple-value-bind (register place between octets) (arranged form operands digit)
          (multiple-value-bind (index base) (place-bits place)
            (emit-octets #x62
                         (logior (ash (complement-bit 3 register) 7) (ash index 6) (ash base 5)
                                 (ash (complement-bit 4 register) 4) map)
                         (logior (ash w 7) (ash (logxor 15 (logand 15 between)) 3) 4
                                 (prefix-code prefix))
                         (logior (if (and masked (not (typep (third masked) 'sb-x86-64-asm::ea)))
                                     128
                                     0)
                                 (if (eql digit 128) 0 #b01000000)
                                 (ash (complement-bit 4 between) 3)
                                 (if masked (register-number (second masked)) 0))
                         operation)
            (emit-place register place)
            (apply #'emit-octets octets)))))))

(defmacro inst512 (name &rest operands)
  "In DEFINE-KERNEL, emit the AVX-512 instruction NAME with OPERANDS."
  (declare (ignorable name operands))
  #+x86-64 `(emit-512 ,name ,@operands))

(defmacro instx (name &rest operands)
  "In DEFINE-KERNEL, emit the instruction NAME with OPERANDS, which are general or mask registers."
  (declare (ignorable name operands))
  #+x86-64 `(emit-x ,name ,@operands))

(defmacro broadcast (lanes spare value)
  "In DEFINE-KERNEL, put VALUE, of 64 bits, into each lane of LANES. SPARE is overwritten."
  `(progn (inst mov ,spare ,value)
          (inst512 :vpbroadcastq ,lanes ,spare)))
