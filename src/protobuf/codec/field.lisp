;;;; Reading and writing one field of a message, for the code that is made for each message: the tag
;;;; and the value after it at once, in machine code on x86-64 (clgrpc.kernel explains kernels), and
;;;; short packed fields.
;;;;
;;;; The kernels run only where the vector, within this message or after it, has enough octets left,
;;;; so that they need not check for the end of the vector. The last octets of a vector, and on
;;;; other processors all octets, go through READ-FIELD and the functions of wire.lisp, which check
;;;; each octet.

(in-package #:clgrpc.protobuf)

;;; Reading

(defconstant +far+ (ash 1 60)
  "A position that is after every valid position.")

(with-kernel-parts
  (defun long-varint (value next octets spare mask)
    "Emit instructions for the varint of two octets or more that begins at NEXT of OCTETS, which
have ten octets there: load it into VALUE and move NEXT after it. If the varint has more than ten
octets, set NEXT to +FAR+."
    (macrolet ((at (displacement base index)
                 `(memory (+ ,displacement +octets-data+) ,base ,index)))
      (sb-assem:assemble ()
        (inst mov value (at 0 octets next))
        (inst test :dword value #x8000)
        (inst jmp :nz LONGER)
        (inst movzx '(:byte :dword) spare value)
        (inst and :dword spare 127)
        (inst shr :dword value 1)
        (inst and :dword value #x3F80)
        (inst or value spare)
        (inst add next 2)
        (inst jmp OUT)
        LONGER
        (inst mov spare value)
        (inst not spare)
        (inst mov mask #x8080808080808080)
        (inst and spare mask)
        (inst jmp :z LONG)
        (inst bsf spare spare)          ; the last bit of the last octet
        (inst mov mask 63)
        (inst sub :dword mask spare)
        (inst shl value :cl)            ; drop the octets after the varint
        (inst shr value :cl)
        (inst shr :dword spare 3)
        (inst lea next (memory 1 next spare))
        (compact-varint value spare mask)
        (inst jmp OUT)
        LONG
        (compact-varint value spare mask)
        (inst movzx '(:byte :dword) spare (at 8 octets next))
        (inst mov mask spare)
        (inst shl mask 57)
        (inst shr mask 1)
        (inst or value mask)
        (inst test :dword spare 128)
        (inst jmp :nz TENTH)
        (inst add next 9)
        (inst jmp OUT)
        TENTH
        (inst movzx '(:byte :dword) spare (at 9 octets next))
        (inst mov mask spare)
        (inst shl mask 63)
        (inst or value mask)
        (inst add next 10)
        (inst test :dword spare 128)
        (inst jmp :z OUT)
        (inst mov next +far+)
        OUT))))

(macrolet ((define-field-kernel (name long-tags documentation)
             `(define-kernel ,name ((octets :octets) (at :count)) ((tag 32) (word 64) next)
                  (:integers (spare) :shift shift)
                  ,documentation
                (inst mov word (memory +octets-data+ octets at))
                (inst movzx '(:byte :dword) tag word)
                (inst lea next (memory 1 at))
                (inst shr word 8)
                (inst test :dword tag 128)
                (inst jmp :nz LONG-TAG)
                VALUE
                (inst test :dword tag 1)
                (inst jmp :nz OUT)
                (inst test :dword word 128)
                (inst jmp :nz LONG)
                (inst and :dword word 127)
                (inst add next 1)
                (inst jmp OUT)
                LONG-TAG
                ,@(if long-tags
                      '((inst movzx '(:byte :dword) spare word)
                        (inst test :dword spare 128)
                        (inst jmp :nz UNKNOWN)
                        (inst and :dword tag 127)
                        (inst shl :dword spare 7)
                        (inst or tag spare)
                        (inst add next 1)
                        (inst shr word 8)
                        (inst jmp VALUE)
                        UNKNOWN))
                (inst mov next +far+)
                (inst jmp OUT)
                LONG
                (long-varint word next octets spare shift)
                OUT)))
  (define-field-kernel %field-at nil
    "OCTETS must have eleven octets at AT. Return three values: the tag of one octet at AT; the
varint after it, if it is of wire type 0 or 2; and the position after the octets read. If the tag
has more than one octet, or the varint more than ten, the position is +FAR+, which is beyond every
valid position.")
  (define-field-kernel %wide-field-at t
    "Do what %FIELD-AT does, for tags of one or two octets; OCTETS must have twelve octets at AT."))

(define-hot read-field ((octets octets) (at index) (end index))
    (values (unsigned-byte 32) (unsigned-byte 32) (unsigned-byte 32) index)
  "Read a tag, and the varint or length after it, if any. Return the tag, the low and the high half
of WORD, and NEXT."
  (let ((tag (take-any-tag)))
    (declare (type (unsigned-byte 32) tag))
    (case (logand tag 7)
      (0 (multiple-value-bind (low high next) (read-varint64 octets at end)
           (values tag low high next)))
      (2 (let ((length (take-length)))
           (declare (type index length))
           (values tag (ldb (byte 32 0) length) (ash length -32) at)))
      (t (values tag 0 0 at)))))


;;; Writing

(define-hot write-field ((tag (unsigned-byte 32)) (low (unsigned-byte 32)) (high (unsigned-byte 32))
                         (octets octets) (at index))
    index
  "Write TAG, if it is not zero, and the varint of the 64 bits HIGH and LOW at AT; return the
position after them."
  (unless (zerop tag) (put-varint tag))
  (write-varint64 low high octets at))

(with-kernel-parts
  (defun spread-varint (spread mask shift)
    "Emit instructions that put the low 56 bits of SPREAD seven to an octet."
    (sb-assem:assemble ()
      (loop for (low high shift-by) in '((#x000000000FFFFFFF #x00FFFFFFF0000000 4)
                                         (#x00003FFF00003FFF #x0FFFC0000FFFC000 2)
                                         (#x007F007F007F007F #x3F803F803F803F80 1))
            do (inst mov mask high)
               (inst and mask spread)
               (inst mov shift low)
               (inst and spread shift)
               (inst shl mask shift-by)
               (inst or spread mask)))))

(macrolet ((define-put (name tag-octets documentation)
             (flet ((place (displacement &optional (index 'at))
                      `(memory (+ ,(+ tag-octets displacement) +octets-data+) octets ,index)))
               `(define-kernel ,name
                    ((octets :octets) (at :count) ,@(when (plusp tag-octets) '((tag :word)))
                     (value :word))
                    (next)
                    (:integers (spread mask) :shift shift)
                    ,documentation
                  (inst mov mask (memory (- (* sb-vm:vector-length-slot sb-vm:n-word-bytes)
                                            sb-vm:other-pointer-lowtag)
                                         octets))
                  (inst shr mask sb-vm:n-fixnum-tag-bits)
                  (inst sub mask at)    ; so many octets there are
                  (inst mov spread value)
                  (inst cmp value #x7F)
                  (inst jmp :nbe TWO)
                  (inst cmp mask ,(1+ tag-octets))
                  (inst jmp :l NO-ROOM)
                  (inst lea next (memory ,(1+ tag-octets) at))
                  ,@(ecase tag-octets
                      (0 '((inst mov :byte (memory +octets-data+ octets at) spread)))
                      (1 '((inst shl :dword spread 8)
                           (inst or :dword spread tag)
                           (inst mov :word (memory +octets-data+ octets at) spread)))
                      (2 `((inst mov :word (memory +octets-data+ octets at) tag)
                           (inst mov :byte ,(place 0) spread))))
                  (inst jmp OUT)
                  TWO
                  (inst cmp value #x3FFF)
                  (inst jmp :nbe LONGER)
                  (inst cmp mask ,(+ 2 tag-octets))
                  (inst jmp :l NO-ROOM)
                  (inst lea next (memory ,(+ 2 tag-octets) at))
                  (inst add :dword spread spread)
                  (inst and :dword spread #x7F00)
                  (inst mov mask value)
                  (inst and :dword mask #x7F)
                  (inst or :dword spread mask)
                  (inst or :dword spread #x80)
                  ,@(ecase tag-octets
                      (0 '())
                      (1 '((inst mov :byte (memory +octets-data+ octets at) tag)))
                      (2 '((inst mov :word (memory +octets-data+ octets at) tag))))
                  (inst mov :word ,(place 0) spread)
                  (inst jmp OUT)
                  LONGER
                  (inst cmp mask ,(+ 10 tag-octets))
                  (inst jmp :l NO-ROOM)
                  ,@(ecase tag-octets
                      (0 '())
                      (1 '((inst mov :byte (memory +octets-data+ octets at) tag)))
                      (2 '((inst mov :word (memory +octets-data+ octets at) tag))))
                  (spread-varint spread mask shift)
                  (inst mov next value)
                  (inst shr next 56)
                  (inst jmp :nz LONG)
                  (inst bsr next spread)
                  (inst shr :dword next 3) ; how many octets come before the last
                  (inst lea mask (memory 0 nil next 8))
                  (inst mov shift 56)
                  (inst sub :dword shift mask)
                  (inst mov mask #x80808080808080) ; seven octets that are followed by another
                  (inst shr mask :cl)
                  (inst or spread mask)
                  (inst mov ,(place 0) spread)
                  (inst lea next (memory ,(1+ tag-octets) at next))
                  (inst jmp OUT)
                  LONG
                  (inst mov mask #x8080808080808080)
                  (inst or spread mask)
                  (inst mov ,(place 0) spread)
                  (inst mov :byte ,(place 8) next)
                  (inst mov :byte ,(place 9) 1)
                  (inst shr :dword next 7) ; whether there is a tenth octet
                  (inst lea next (memory ,(+ 9 tag-octets) at next))
                  (inst jmp OUT)
                  NO-ROOM
                  (inst mov next +far+)
                  OUT))))
  (eval-when (:compile-toplevel :load-toplevel :execute)
    (define-put %put-varint-at 0
      "Write the varint of VALUE at AT of OCTETS, where up to ten octets may be written: the next
write overwrites those after the varint. Return the position after it, or +FAR+ if OCTETS may have
no room for it.")
    (define-put %put-field-at 1
      "Do what %PUT-VARINT-AT does, but write the octet TAG before the varint.")
    (define-put %put-wide-field-at 2
      "Do what %PUT-VARINT-AT does, but write the two octets of TAG before the varint, the lower
octet first.")))

(defmacro put-word-field (tag value)
  "Write the constant TAG, unless it is zero, and VALUE, of 64 bits, as a varint. This may also
write some octets after the varint, which the next write overwrites."
  (let ((octets (if (zerop tag) '() (tag-octets tag))))
    (if (> (length octets) 2)
        `(progn (put-tag ,tag) (put-word ,value))
        `(let* ((value ,value)
                (next ,(cond ((not +kernels-p+) '+far+)
                             ((null octets) '(%put-varint-at octets at value))
                             ((null (rest octets)) `(%put-field-at octets at ,tag value))
                             (t `(%put-wide-field-at
                                  octets at ,(logior (first octets) (ash (second octets) 8))
                                  value)))))
           (declare (type (unsigned-byte 64) value) (type (unsigned-byte 62) next))
           (setf at (if (= next +far+)
                        (write-field ,tag (ldb (byte 32 0) value) (ash value -32) octets at)
                        (truly-the index next)))))))

(defmacro put-word (value)
  "Write VALUE, of 64 bits, as a varint."
  `(put-word-field 0 ,value))

(defmacro with-words-put (&body body)
  "Run BODY, in which PUT-VARINT and PUT-VARINT64 have the meaning of PUT-WORD."
  `(macrolet ((put-varint (value) `(put-word (ldb (byte 64 0) (the fixnum ,value))))
              (put-varint64 (value) `(put-word ,value)))
     ,@body))

(defmacro with-tagged-words-put (tag &body body)
  "Run BODY, in which PUT-VARINT and PUT-VARINT64 have the meaning of PUT-WORD-FIELD with TAG."
  `(macrolet ((put-varint (value) `(put-word-field ,',tag (ldb (byte 64 0) (the fixnum ,value))))
              (put-varint64 (value) `(put-word-field ,',tag ,value)))
     ,@body))

;;; Packed fields with a few integers

(defconstant +few-octets+ 16
  "The maximum length in octets of a packed field that %READ-FEW reads.")
(defconstant +few+ 8
  "The maximum number of elements of a packed field whose size is computed without a call.")
(defconstant +few-to-write+ 48
  "The maximum number of elements of a packed field that PUT-FEW writes. For more elements the
kernels of varint-kernel.lisp are faster, although starting a kernel takes time.")

(define-leaf (%count-ends-of-word :inline t) ((word (unsigned-byte 64)) (count (integer 1 8)))
    (integer 0 8)
  "Return the number of the first COUNT octets of WORD that end a varint."
  (let ((ends (ldb (byte 64 0) (ash (logandc2 #x8080808080808080 word)
                                    (the (integer 0 56) (- 64 (* 8 count)))))))
    (declare (type (unsigned-byte 64) ends))
    (truly-the (integer 0 8)
               (ash (ldb (byte 64 0) (* (ash ends -7) #x0101010101010101)) -56))))

(defmacro define-few-kernels (element size put)
  "Define the two kernels of ELEMENT, named as in varint-kernel.lisp, for a few elements."
  (let ((width (element-width element)))
    `(progn
       (define-kernel ,size ((from :sap) (count :count)) (total)
           (:integers (value bits done))
           "Return the number of octets that the varints of the COUNT elements at FROM take."
         (inst xor done done)
         (inst xor total total)
         (inst jmp NEXT)
         LOOP
         (load-element ,element value (memory 0 from done ,width) bits)
         (inst or value 1)
         (inst bsr bits value)
         (inst lea bits (memory 73 bits bits 8))
         (inst shr :dword bits 6)
         (inst add total bits)
         (inst add done 1)
         NEXT
         (inst cmp done count)
         (inst jmp :b LOOP))
       (define-kernel ,put ((from :sap) (count :count) (octets :octets) (at :count)) (here)
           (:integers (value spread mask done) :shift shift)
           "Write the varints of the COUNT elements at FROM to OCTETS, beginning at AT, where OCTETS
have ten octets for each element. Return the position after them."
         (inst xor done done)
         (inst mov here at)
         (inst jmp NEXT)
         LOOP
         (load-element ,element value (memory 0 from done ,width) spread)
         (inst add done 1)
         (inst cmp value #x7F)
         (inst jmp :nbe TWO)
         (inst mov :byte (memory +octets-data+ octets here) value)
         (inst add here 1)
         NEXT
         (inst cmp done count)
         (inst jmp :b LOOP)
         (inst jmp OUT)
         TWO
         (inst mov spread value)
         (inst cmp value #x3FFF)
         (inst jmp :nbe LONGER)
         (inst add :dword spread spread)
         (inst and :dword spread #x7F00)
         (inst and :dword value #x7F)
         (inst or :dword spread value)
         (inst or :dword spread #x80)
         (inst mov :word (memory +octets-data+ octets here) spread)
         (inst add here 2)
         (inst jmp NEXT)
         LONGER
         (spread-varint spread mask shift)
         (inst shr value 56)
         (inst jmp :nz LONG)
         (inst bsr value spread)
         (inst shr :dword value 3)      ; how many octets come before the last
         (inst lea mask (memory 0 nil value 8))
         (inst mov shift 56)
         (inst sub :dword shift mask)
         (inst mov mask #x80808080808080) ; seven octets that are followed by another
         (inst shr mask :cl)
         (inst or spread mask)
         (inst mov (memory +octets-data+ octets here) spread)
         (inst lea here (memory 1 here value))
         (inst jmp NEXT)
         LONG
         (inst mov mask #x8080808080808080)
         (inst or spread mask)
         (inst mov (memory +octets-data+ octets here) spread)
         (inst mov :byte (memory (+ 8 +octets-data+) octets here) value)
         (inst mov :byte (memory (+ 9 +octets-data+) octets here) 1)
         (inst shr :dword value 7)      ; whether there is a tenth
         (inst lea here (memory 9 here value))
         (inst jmp NEXT)
         OUT))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (define-few-kernels :int32 %size-few-int32 %put-few-int32)
  (define-few-kernels :uint32 %size-few-uint32 %put-few-uint32)
  (define-few-kernels :int64 %size-few-int64 %put-few-int64)
  (define-few-kernels :sint32 %size-few-sint32 %put-few-sint32)
  (define-few-kernels :sint64 %size-few-sint64 %put-few-sint64))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun few-kernel (verb scalar)
    "Return the name of the kernel that performs VERB for a few elements of SCALAR."
    (kind-function verb (if (eq :uint64 (scalar-kind scalar)) :int64 (scalar-kind scalar)))))

(macrolet ((define-few (kind)
             (let* ((scalar (scalar-of kind)) (vector (kind-vector scalar)))
               `(progn
                  (define-leaf ,(kind-function "%READ-FEW" kind)
                      ((octets octets) (at index) (end index))
                      ,vector
                    "A vector of the varints AT to END, at least one octet and at most +FEW-OCTETS+,
with eight octets after them."
                    (when (<= 128 (%octet-at octets (1- end))) (fail-truncated end))
                    (let* ((length (truly-the (integer 1 ,+few-octets+) (- end at)))
                           (count (if (<= length 8)
                                      (%count-ends-of-word (%u64-at octets at) length)
                                      (+ (%count-ends-of-word (%u64-at octets at) 8)
                                         (%count-ends-of-word (%u64-at octets (+ at 8))
                                                              (- length 8)))))
                           (vector (make-array count :element-type ',(scalar-element scalar)))
                           (i 0))
                      (declare (type index i))
                      (loop
                        (let ((word (%u64-at octets at)))
                          (declare (type (unsigned-byte 64) word))
                          (macrolet ((take-varint32 () '(ldb (byte 32 0) (unpack-varint)))
                                     (take-varint64 () '(unpack-varint)))
                            (setf (aref vector i) ,(scalar-take scalar))))
                        (setf i (truly-the index (1+ i)))
                        (when (= i count) (return vector)))))
                  (define-hot ,(kind-function "PUT-FEW" kind)
                      ((vector ,vector) (octets octets) (at index))
                      index
                    "Write the elements of VECTOR, which are few, as varints."
                    (if (and +kernels-p+
                             (<= (* 10 (length vector)) (- (length octets) at)))
                        (with-sap ((from vector))
                          (truly-the index
                                     (,(few-kernel "%PUT-FEW" scalar) from (length vector)
                                      octets at)))
                        (with-words-put
                          (dotimes (i (length vector) at)
                            (let ((value (aref vector i)))
                              ,(scalar-put scalar))))))))))
  (define-few :int32)
  (define-few :int64)
  (define-few :uint32)
  (define-few :uint64)
  (define-few :sint32)
  (define-few :sint64))
