;;;; Lanes: the inner loops of UTF-8 (RFC 3629) on eight or sixteen characters at a time, for x86-64.
;;;; This file and the octet accessors are the only ones of base that know the processor.
;;;;
;;;; A kernel is a loop in machine code, defined by DEFINE-KERNEL as a function of addresses (SAPs,
;;;; whose vectors the caller holds in place) and counts. It does as much of the work as it can,
;;;; never touches what lies outside the counts, and returns how far it came; a portable loop of
;;;; utf8.lisp does the rest, which on other processors is everything. Kernels need instructions that
;;;; x86-64 did not have at first: their callers ask LANES-P, which reads what SBCL's runtime finds
;;;; out at each start, so a core may be carried to an older machine.

(in-package #:clgrpc.base)

(defmacro define-kernel (name arguments results (&key integers vectors) documentation &body body)
  "Define NAME as a function of ARGUMENTS, (name :sap) or (name :count), that returns RESULTS, a list
of names of unsigned words. BODY is assembler for it, whose symbols are labels, and sees all of
these as registers, and INTEGERS and VECTORS besides; it leaves ARGUMENTS as they are."
  (flet ((argument-type (kind)
           (ecase kind (:sap 'sb-sys:system-area-pointer) (:count '(unsigned-byte 62))))
         (register (kind)
           (ecase kind (:sap 'sb-vm::sap-reg) (:count 'sb-vm::unsigned-reg)))
         (primitive (kind)
           (ecase kind (:sap 'sb-sys:system-area-pointer) (:count 'sb-vm::unsigned-num))))
    (let ((words (mapcar (constantly '(unsigned-byte 62)) results)))
      `(progn
         (eval-when (:compile-toplevel :load-toplevel :execute)
           (sb-c:defknown ,name ,(mapcar (lambda (argument) (argument-type (second argument)))
                                         arguments)
               (values ,@words) () :overwrite-fndb-silently t)
           (sb-c:define-vop (,name)
             (:translate ,name)
             (:policy :fast-safe)
             (:args ,@(loop for (argument kind) in arguments
                            collect `(,argument :scs (,(register kind)) :to (:result 99))))
             (:arg-types ,@(loop for (nil kind) in arguments collect (primitive kind)))
             (:results ,@(loop for result in results
                               collect `(,result :scs (sb-vm::unsigned-reg) :from :load)))
             (:result-types ,@(mapcar (constantly 'sb-vm::unsigned-num) results))
             ,@(when integers `((:temporary (:sc sb-vm::unsigned-reg) ,@integers)))
             ,@(when vectors `((:temporary (:sc sb-vm::int-sse-reg) ,@vectors)))
             (:generator 50 ,@body)))
         (setf (documentation ',name 'function) ,documentation)))))

#+x86-64
(macrolet ((inst (&rest operands) `(sb-assem:inst ,@operands))
           (at (&rest operands) `(sb-vm::ea ,@operands))
           (lanes (bits value)
             "A constant of 128 bits with VALUE in each of its lanes of so many BITS."
             `(sb-c:register-inline-constant
               :oword (loop for shift from 0 below 128 by ,bits
                            sum (ash (ldb (byte ,bits 0) ,value) shift)))))

  (define-kernel %wide-extra ((from :sap) (count :count)) (extra here)
      (:vectors (some others more sums))
      "How many octets the COUNT, a multiple of eight, 32-bit characters at FROM take more than one
each, and COUNT."
    (inst xor here here)
    (inst pxor sums sums)
    LOOP
    (inst cmp here count)
    (inst jmp :nb OUT)
    (inst movdqu some (at 0 from here 4))
    (inst movdqu others (at 16 from here 4))
    (inst add here 8)
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
    (inst lea next (at 8 done))
    (inst cmp next count)
    (inst jmp :nbe OUT)
    (inst lea mask (at 16 here))
    (inst cmp mask room)
    (inst jmp :nbe OUT)
    (inst movdqu chars (at 0 from done 4))
    (inst movdqu more (at 16 from done 4))
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
    (inst movdqu more (at 0 layouts mask))
    (inst pshufb chars more)
    (inst lea mask (at 8 done))
    (inst cmp mask count)
    (inst jmp :nbe LAST)
    (inst movdqu (at 0 to here) chars)
    (inst add here 16)
    (inst sub here next)
    (inst jmp LOOP)
    LAST                                ; nothing behind them may be written
    (inst neg next)
    (inst add next 8)
    (inst movq (at 0 to here) chars)
    (inst psrldq chars 8)
    (inst movq mask chars)
    (inst add here 8)
    (inst test :byte next 8)
    (inst jmp :z FOUR)
    (inst mov (at 0 to here) mask)
    (inst add here 8)
    FOUR
    (inst test :byte next 4)
    (inst jmp :z TWO)
    (inst mov :dword (at 0 to here) mask)
    (inst shr mask 32)
    (inst add here 4)
    TWO
    (inst test :byte next 2)
    (inst jmp :z ONE)
    (inst mov :word (at 0 to here) mask)
    (inst shr mask 16)
    (inst add here 2)
    ONE
    (inst test :byte next 1)
    (inst jmp :z LOOP)
    (inst mov :byte (at 0 to here) mask)
    (inst add here 1)
    (inst jmp LOOP)
    ASCII
    (inst packusdw chars more)
    (inst packuswb chars chars)
    (inst movq (at 0 to here) chars)
    (inst add here 8)
    (inst mov done next)
    (inst jmp LOOP)
    OUT)

  (define-kernel %count-lanes ((from :sap) (count :count)) (starts here)
      (:integers (mask) :vectors (octets))
      "How many of the COUNT, a multiple of sixteen, octets at FROM begin a character, and COUNT."
    (inst xor here here)
    (inst xor starts starts)
    LOOP
    (inst cmp here count)
    (inst jmp :nb OUT)
    (inst movdqu octets (at 0 from here))
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
    (inst lea next (at 8 here))
    (inst cmp next count)
    (inst jmp :nbe OUT)
    (inst lea mask (at 8 done))
    (inst cmp mask room)
    (inst jmp :nbe OUT)
    (inst movq octets (at 0 from here))
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
    (inst lea mask (at 0 next next))
    (inst and :dword mask 255)
    (inst cmp mask leads)               ; each where it must be
    (inst jmp :ne OUT)
    (inst popcnt leads next)
    (inst mov mask next)
    (inst and :dword mask 127)
    (inst shl :dword mask 4)
    (inst movdqu more (at 0 layouts mask))
    (inst pshufb octets more)
    (inst movdqa more octets)
    (inst pand octets (lanes 16 #x7F))
    (inst pand more (lanes 16 #x1F00))
    (inst psrlw-imm more 2)
    (inst por octets more)
    (inst pmovzxwd more octets)
    (inst movdqu (at 0 to done 4) more)
    (inst psrldq octets 8)
    (inst pmovzxwd more octets)
    (inst movdqu (at 16 to done 4) more)
    (inst add done 8)
    (inst sub done leads)
    (inst shr :dword next 7)            ; a lead at the end is left for next time
    (inst add here 8)
    (inst sub here next)
    (inst jmp LOOP)
    ASCII
    (inst pmovzxbd more octets)
    (inst movdqu (at 0 to done 4) more)
    (inst psrldq octets 4)
    (inst pmovzxbd more octets)
    (inst movdqu (at 16 to done 4) more)
    (inst add done 8)
    (inst mov here next)
    (inst jmp LOOP)
    OUT))

#+x86-64
(declaim (inline lanes-p))
#+x86-64
(defun lanes-p ()
  "True if this processor has AVX2, and so all that kernels use."
  (/= 0 (sb-alien:extern-alien "avx2_supported" sb-alien:int)))

#-x86-64
(macrolet ((define-stubs (&rest names)
             `(progn (declaim (inline lanes-p ,@names))
                     (defun lanes-p () nil)
                     ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (values 0 0))))))
  (define-stubs %wide-extra %narrow-lanes %count-lanes %widen-lanes))

;;; Where the octets of each lane go. A row of sixteen octets for each set of lanes: what PSHUFB
;;; takes from where, #x80 for nothing.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun lane-layouts (rows row)
    (let ((layouts (make-array (* 16 rows) :element-type 'octet :initial-element #x80)))
      (dotimes (i rows layouts)
        (replace layouts (funcall row i) :start1 (* 16 i))))))

(declaim (type octets **narrow-layouts** **widen-layouts**))
(defglobal **narrow-layouts**
    (lane-layouts 256 (lambda (plain)
                        (loop for lane below 8
                              collect (* 2 lane)
                              unless (logbitp lane plain) collect (1+ (* 2 lane)))))
  "By the set of lanes with a character of one octet: its low one.")
(defglobal **widen-layouts**
    (lane-layouts 128 (lambda (leads)
                        (loop with octet = 0
                              while (< octet 8)
                              append (if (logbitp octet leads)
                                         (list (min (1+ octet) 7) octet)
                                         (list octet #x80))
                              do (incf octet (if (logbitp octet leads) 2 1)))))
  "By the set of octets that begin a character of two: for each character its last octet, below its
first.")
