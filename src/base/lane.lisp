;;;; Lanes: the inner loops of copying, and of UTF-8 (RFC 3629), on many octets or characters at a
;;;; time, for x86-64. This file and the octet accessors are the only ones of base that know the
;;;; processor.
;;;;
;;;; A kernel is a loop in machine code, defined by DEFINE-KERNEL as a function of addresses (SAPs,
;;;; whose vectors the caller holds in place) and counts. It does as much of the work as it can,
;;;; never touches what lies outside the counts, and returns how far it came; a portable loop of
;;;; utf8.lisp does the rest, which on other processors is everything. Most need instructions
;;;; that x86-64 did not have at first: their callers ask LANES-P, which reads what SBCL's runtime
;;;; finds out at each start, so a core may be carried to an older machine.

(in-package #:clgrpc.base)

(declaim (inline lanes-p))
(defun lanes-p ()
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
  "True if PEXT and PDEP are fast where they are. A core that is carried to another processor keeps
it, which costs speed only.")

(declaim (inline bit-lanes-p))
(defun bit-lanes-p ()
  "True if kernels that use PEXT and PDEP should be called."
  (and **fast-bits-p** (lanes-p)))

(defconstant +octets-data+ (- (* sb-vm:vector-data-offset sb-vm:n-word-bytes)
                              sb-vm:other-pointer-lowtag)
  "From the pointer to a vector to its data.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +kernels-p+ (if (member :x86-64 *features*) t nil)
    "True if kernels do something."))

(defmacro inst (mnemonic &rest operands)
  "In DEFINE-KERNEL: the instruction MNEMONIC."
  `(sb-assem:inst ,mnemonic ,@operands))

(defmacro memory (displacement &optional base index (scale 1))
  "In DEFINE-KERNEL: the operand at DISPLACEMENT behind the register BASE and SCALE times INDEX."
  (list #+x86-64 'sb-vm::ea #-x86-64 'list displacement base index scale))

(defmacro lanes (bits value)
  "In DEFINE-KERNEL: a constant of sixteen octets with VALUE in each lane of so many BITS."
  `(sb-c:register-inline-constant
    :oword (loop for shift from 0 below 128 by ,bits
                 sum (ash (ldb (byte ,bits 0) ,value) shift))))

(defmacro with-kernel-parts (&body definitions)
  "Evaluate DEFINITIONS, of what the bodies of kernels use, already when the file is compiled; do
nothing where kernels are nothing, and have no assembler that knows their instructions."
  (when +kernels-p+
    `(eval-when (:compile-toplevel :load-toplevel :execute) ,@definitions)))

#+x86-64
(defmacro define-kernel (name arguments results (&key integers vectors wide-vectors shift
                                                      widest masks)
                         documentation &body body)
  "Define NAME as a function of ARGUMENTS, each a name and one of :SAP, :COUNT, :WORD (64 bits) and
:OCTETS (a vector, whose data begin +OCTETS-DATA+ behind what is in the register), that returns
RESULTS, a list of names of unsigned words or (name bits). BODY is assembler for it, whose symbols
are labels, and sees all of these as registers, and besides INTEGERS, VECTORS (of 16 octets),
WIDE-VECTORS (of 32), WIDEST (of 64; wide.lisp) with MASKS, and SHIFT, the one that shifts count by;
it leaves ARGUMENTS as they are. NAME counts as a leaf."
  (flet ((argument-type (kind)
           (ecase kind
             (:sap 'sb-sys:system-area-pointer)
             (:count '(unsigned-byte 62))
             (:word '(unsigned-byte 64))
             (:octets '(simple-array (unsigned-byte 8) (*)))))
         (register (kind)
           (ecase kind
             (:sap 'sb-vm::sap-reg)
             ((:count :word) 'sb-vm::unsigned-reg)
             (:octets 'sb-vm::descriptor-reg)))
         (primitive (kind)
           (ecase kind
             (:sap 'sb-sys:system-area-pointer)
             ((:count :word) 'sb-vm::unsigned-num)
             (:octets 'sb-vm::simple-array-unsigned-byte-8))))
    `(progn
       (eval-when (:compile-toplevel :load-toplevel :execute)
         (sb-c:defknown ,name ,(loop for (nil kind) in arguments collect (argument-type kind))
             (values ,@(loop for result in results
                             collect `(unsigned-byte ,(if (listp result) (second result) 62))))
             () :overwrite-fndb-silently t)
         (sb-c:define-vop (,name)
           (:translate ,name)
           (:policy :fast-safe)
           (:args ,@(loop for (argument kind) in arguments
                          collect `(,argument :scs (,(register kind)) :to (:result 99))))
           (:arg-types ,@(loop for (nil kind) in arguments collect (primitive kind)))
           (:results ,@(loop for result in results
                             collect `(,(if (listp result) (first result) result)
                                       :scs (sb-vm::unsigned-reg) :from :load)))
           (:result-types ,@(mapcar (constantly 'sb-vm::unsigned-num) results))
           ,@(when shift `((:temporary (:sc sb-vm::unsigned-reg :offset sb-vm::rcx-offset) ,shift)))
           ,@(when integers `((:temporary (:sc sb-vm::unsigned-reg) ,@integers)))
           ,@(when vectors `((:temporary (:sc sb-vm::int-sse-reg) ,@vectors)))
           ,@(when wide-vectors `((:temporary (:sc sb-vm::int-avx2-reg) ,@wide-vectors)))
           (:generator 50
             (let (,@(loop for register in widest
                           for i from 0 collect `(,register (wide-register ,i)))
                   ,@(loop for register in masks
                           for i from 0 collect `(,register (mask-register ,i))))
               (sb-assem:assemble () ,@body)))))
       (note-leaf ',name)
       (setf (documentation ',name 'function) ,documentation))))

#-x86-64
(defmacro define-kernel (name arguments results options documentation &body body)
  "Define NAME as a function that does nothing."
  (declare (ignore options body))
  `(progn (declaim (inline ,name))
          (defun ,name ,(mapcar #'first arguments)
            ,documentation
            (declare (ignore ,@(mapcar #'first arguments)))
            (values ,@(mapcar (constantly 0) results)))))

(define-kernel %prefetch ((address :word)) () ()
    "Have the cache line at ADDRESS, whatever that is, fetched meanwhile."
  (inst prefetch :t0 (memory 0 address)))

(define-kernel %copy-lanes ((from :sap) (to :sap) (count :count)) (here)
    (:integers (limit) :wide-vectors (some others))
    "Copy COUNT octets, 64 at least, from FROM to TO, which do not overlap. Stores are aligned,
which makes this faster than memmove where the two are not, as is usual."
  (inst vmovdqu some (memory 0 from))
  (inst vmovdqu (memory 0 to) some)
  (inst mov here to)
  (inst and :dword here 31)
  (inst neg here)
  (inst add here 32)
  (inst lea limit (memory -64 count))
  LOOP
  (inst cmp here limit)
  (inst jmp :nbe LAST)
  (inst vmovdqu some (memory 0 from here))
  (inst vmovdqu others (memory 32 from here))
  (inst vmovdqu (memory 0 to here) some)
  (inst vmovdqu (memory 32 to here) others)
  (inst add here 64)
  (inst jmp LOOP)
  LAST                                  ; the last 64 may have been copied in part
  (inst vmovdqu some (memory 0 from limit))
  (inst vmovdqu others (memory 32 from limit))
  (inst vmovdqu (memory 0 to limit) some)
  (inst vmovdqu (memory 32 to limit) others)
  (inst vzeroupper))

(define-kernel %copy-sixteens ((from :sap) (to :sap) (count :count)) (mask)
    (:integers (here limit) :vectors (octets seen))
    "Copy COUNT octets, 16 at least, from FROM to TO, which do not overlap; return zero if all are
ASCII."
  (inst pxor seen seen)
  (inst xor here here)
  (inst lea limit (memory -16 count))
  LOOP
  (inst cmp here limit)
  (inst jmp :nb LAST)
  (inst movdqu octets (memory 0 from here))
  (inst movdqu (memory 0 to here) octets)
  (inst por seen octets)
  (inst add here 16)
  (inst jmp LOOP)
  LAST
  (inst movdqu octets (memory 0 from limit))
  (inst movdqu (memory 0 to limit) octets)
  (inst por seen octets)
  (inst pmovmskb mask seen))

(define-kernel %narrow-sixteens ((from :sap) (to :sap) (count :count)) (wide)
    (:integers (here limit) :vectors (some others more both))
    "Put COUNT 32-bit characters, 16 at least, from FROM to TO as octets, if all are ASCII; return
whether one is not, as 0 or 1."
  (inst mov wide 1)
  (inst xor here here)
  (inst lea limit (memory -16 count))
  LOOP
  (inst cmp here limit)
  (inst cmov :nbe here limit)           ; some of the last sixteen may have been put already
  (inst movdqu some (memory 0 from here 4))
  (inst movdqu others (memory 16 from here 4))
  (inst movdqu more (memory 32 from here 4))
  (inst movdqu both (memory 48 from here 4))
  (inst packusdw some others)           ; what is above FFFF becomes FFFF
  (inst packusdw more both)
  (inst movdqa both some)
  (inst por both more)
  (inst ptest both (lanes 16 #xFF80))
  (inst jmp :nz OUT)
  (inst packuswb some more)
  (inst movdqu (memory 0 to here) some)
  (inst add here 16)
  (inst cmp here count)
  (inst jmp :b LOOP)
  (inst xor wide wide)
  OUT)

(define-kernel %wide-among ((from :sap) (count :count)) (wide)
    (:integers (here limit) :vectors (some others))
    "Whether one of COUNT 32-bit characters at FROM, 16 at least, is not ASCII, as 0 or 1."
  (inst mov wide 1)
  (inst xor here here)
  (inst lea limit (memory -16 count))
  LOOP
  (inst cmp here limit)
  (inst cmov :nbe here limit)
  (inst movdqu some (memory 0 from here 4))
  (dolist (displacement '(16 32 48))
    (inst movdqu others (memory displacement from here 4))
    (inst por some others))
  (inst ptest some (lanes 32 #xFFFFFF80))
  (inst jmp :nz OUT)
  (inst add here 16)
  (inst cmp here count)
  (inst jmp :b LOOP)
  (inst xor wide wide)
  OUT)

(define-kernel %wide-extra ((from :sap) (count :count)) (extra here)
    (:integers (next) :vectors (some others more sums))
    "How many octets the first of the COUNT 32-bit characters at FROM take more than one each, and
how many these are: all but seven at most."
  (inst xor here here)
  (inst pxor sums sums)
  LOOP
  (inst lea next (memory 8 here))
  (inst cmp next count)
  (inst jmp :nbe LAST)
  (inst movdqu some (memory 0 from here 4))
  (inst movdqu others (memory 16 from here 4))
  (inst mov here next)
  (inst movdqa more some)
  (inst por more others)
  (inst ptest more (lanes 32 #xFFFFFF80))
  (inst jmp :z LOOP)
  (dolist (limit '(#x7F #x7FF #xFFFF))
    (dolist (chars (list some others))
      (inst movdqa more chars)
      (inst pcmpgtd more (lanes 32 limit))
      (inst psubd sums more)))
  (inst jmp LOOP)
  LAST                                  ; the last eight, if they are ASCII and so add nothing
  (inst test here here)
  (inst jmp :z OUT)
  (inst movdqu some (memory -32 from count 4))
  (inst movdqu others (memory -16 from count 4))
  (inst por some others)
  (inst ptest some (lanes 32 #xFFFFFF80))
  (inst jmp :nz OUT)
  (inst mov here count)
  OUT
  (inst pshufd more sums #b01001110)
  (inst paddd sums more)
  (inst pshufd more sums #b10110001)
  (inst paddd sums more)
  (inst movd extra sums))

(define-kernel %narrow-lanes
    ((from :sap) (count :count) (to :sap) (room :count) (layouts :sap))
    (done here)
    (:integers (mask next) :vectors (chars more both plain))
    "Write the UTF-8 of the COUNT characters at FROM to TO, where ROOM octets may be written, eight
at a time while they are below U+0800. Return how many characters and how many octets that were."
  (inst xor done done)
  (inst xor here here)
  LOOP
  (inst lea next (memory 8 done))
  (inst cmp next count)
  (inst jmp :nbe FEW)
  (inst lea mask (memory 16 here))
  (inst cmp mask room)
  (inst jmp :nbe OUT)
  (inst movdqu chars (memory 0 from done 4))
  (inst movdqu more (memory 16 from done 4))
  (inst movdqa both chars)
  (inst por both more)
  (inst ptest both (lanes 32 #xFFFFFF80))
  (inst jmp :z ASCII)
  (inst ptest both (lanes 32 #xFFFFF800))
  (inst jmp :nz OUT)
  (inst packusdw chars more)
  (inst movdqa both chars)            ; of two octets: 110xxxxx and above it 10xxxxxx
  (inst psrlw-imm both 6)
  (inst movdqa more chars)
  (inst pand more (lanes 16 #x3F))
  (inst psllw-imm more 8)
  (inst por both more)
  (inst por both (lanes 16 #x80C0))
  (inst movdqa more (lanes 16 #x80))
  (inst pcmpgtw more chars)           ; where a character takes one octet
  (inst pand chars more)
  (inst movdqa plain more)
  (inst pandn more both)
  (inst por chars more)
  (inst packsswb plain plain)
  (inst pmovmskb mask plain)
  (inst and :dword mask 255)
  (inst mov done next)
  (inst popcnt next mask)
  (inst shl :dword mask 4)
  (inst movdqu more (memory 0 layouts mask))
  (inst pshufb chars more)
  (inst lea mask (memory 8 done))
  (inst cmp mask count)
  (inst jmp :nbe LAST)
  (inst movdqu (memory 0 to here) chars)
  (inst add here 16)
  (inst sub here next)
  (inst jmp LOOP)
  LAST                                ; nothing behind them may be written
  (inst neg next)
  (inst add next 8)
  (inst movq (memory 0 to here) chars)
  (inst psrldq chars 8)
  (inst movq mask chars)
  (inst add here 8)
  (inst test :byte next 8)
  (inst jmp :z FOUR)
  (inst mov (memory 0 to here) mask)
  (inst add here 8)
  FOUR
  (inst test :byte next 4)
  (inst jmp :z TWO)
  (inst mov :dword (memory 0 to here) mask)
  (inst shr mask 32)
  (inst add here 4)
  TWO
  (inst test :byte next 2)
  (inst jmp :z ONE)
  (inst mov :word (memory 0 to here) mask)
  (inst shr mask 16)
  (inst add here 2)
  ONE
  (inst test :byte next 1)
  (inst jmp :z LOOP)
  (inst mov :byte (memory 0 to here) mask)
  (inst add here 1)
  (inst jmp LOOP)
  ASCII
  (inst packusdw chars more)
  (inst packuswb chars chars)
  (inst movq (memory 0 to here) chars)
  (inst add here 8)
  (inst mov done next)
  (inst jmp LOOP)
  FEW                                   ; the last eight, if there are eight and all are ASCII
  (inst test done done)
  (inst jmp :z OUT)
  (inst cmp done here)
  (inst jmp :ne OUT)
  (inst movdqu chars (memory -32 from count 4))
  (inst movdqu more (memory -16 from count 4))
  (inst packusdw chars more)            ; what is above FFFF becomes FFFF
  (inst ptest chars (lanes 16 #xFF80))
  (inst jmp :nz OUT)
  (inst packuswb chars chars)
  (inst movq (memory -8 to count) chars)
  (inst mov done count)
  (inst mov here count)
  OUT)

(define-kernel %count-lanes ((from :sap) (count :count)) (starts here)
    (:integers (mask) :vectors (octets))
    "How many of the COUNT, a multiple of sixteen, octets at FROM begin a character, and COUNT."
  (inst xor here here)
  (inst xor starts starts)
  LOOP
  (inst cmp here count)
  (inst jmp :nb OUT)
  (inst movdqu octets (memory 0 from here))
  (inst pcmpgtb octets (lanes 8 #xBF)) ; as signed numbers
  (inst pmovmskb mask octets)
  (inst popcnt mask mask)
  (inst add starts mask)
  (inst add here 16)
  (inst jmp LOOP)
  OUT)

(define-kernel %widen-lanes
    ((from :sap) (count :count) (to :sap) (room :count) (layouts :sap))
    (done here)
    (:integers (mask leads next) :vectors (octets more limit))
    "Write the characters whose UTF-8 is the COUNT octets at FROM to TO, where ROOM characters may
be written, eight octets at a time while they are whole characters below U+0800. Return how many
characters and how many octets that were."
  (inst xor done done)
  (inst xor here here)
  LOOP
  (inst lea next (memory 8 here))
  (inst cmp next count)
  (inst jmp :nbe OUT)
  (inst lea mask (memory 8 done))
  (inst cmp mask room)
  (inst jmp :nbe OUT)
  (inst movq octets (memory 0 from here))
  (inst pmovmskb mask octets)
  (inst test :dword mask mask)
  (inst jmp :z ASCII)
  (inst movdqa more octets)
  (inst paddb more (lanes 8 #x3E))    ; C2 to DF become 0 to 1D
  (inst movdqa limit (lanes 8 #x1D))
  (inst pminub limit more)
  (inst pcmpeqb limit more)
  (inst pmovmskb leads limit)
  (inst movdqa more (lanes 8 #xC0))
  (inst pcmpgtb more octets)          ; as signed numbers: 80 to BF
  (inst mov next leads)
  (inst pmovmskb leads more)
  (inst xor mask next)
  (inst cmp mask leads)               ; no others
  (inst jmp :ne OUT)
  (inst lea mask (memory 0 next next))
  (inst and :dword mask 255)
  (inst cmp mask leads)               ; each where it must be
  (inst jmp :ne OUT)
  (inst popcnt leads next)
  (inst mov mask next)
  (inst and :dword mask 127)
  (inst shl :dword mask 4)
  (inst movdqu more (memory 0 layouts mask))
  (inst pshufb octets more)
  (inst movdqa more octets)
  (inst pand octets (lanes 16 #x7F))
  (inst pand more (lanes 16 #x1F00))
  (inst psrlw-imm more 2)
  (inst por octets more)
  (inst pmovzxwd more octets)
  (inst movdqu (memory 0 to done 4) more)
  (inst psrldq octets 8)
  (inst pmovzxwd more octets)
  (inst movdqu (memory 16 to done 4) more)
  (inst add done 8)
  (inst sub done leads)
  (inst shr :dword next 7)            ; a lead at the end is left for next time
  (inst add here 8)
  (inst sub here next)
  (inst jmp LOOP)
  ASCII
  (inst pmovzxbd more octets)
  (inst movdqu (memory 0 to done 4) more)
  (inst psrldq octets 4)
  (inst pmovzxbd more octets)
  (inst movdqu (memory 16 to done 4) more)
  (inst add done 8)
  (inst mov here next)
  (inst jmp LOOP)
  OUT)
