;;;; Packed varints in machine code, for x86-64 (clgrpc.kernel explains kernels). The ends of the
;;;; varints in 64 octets are found at once, so that reading a varint need not wait for the length
;;;; of the previous one. PEXT and PDEP gather or spread the bits of one varint, AVX-512 the bits of
;;;; eight varints at a time.
;;;;
;;;; Each kind of kernel leaves to the next kind the varints that it cannot handle, such as those of
;;;; more than eight octets, and the last octets. The loops of sequence.lisp do the rest, and on
;;;; other processors all of the work.
;;;;
;;;; An ELEMENT is :int32, :uint32, :int64 (also without sign), :sint32 or :sint64.

(in-package #:clgrpc.protobuf)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun element-width (element)
    (ecase element ((:int32 :uint32 :sint32) 4) ((:int64 :sint64) 8))))

(with-kernel-parts
  (defconstant +septets+ #x7F7F7F7F7F7F7F7F)

  (defun compact-varint (value spare mask)
    "Emit instructions that put the low seven bits of each octet of VALUE side by side, in steps."
    (loop for (low high shift) in '((#x007F007F007F007F #x7F007F007F007F00 1)
                                    (#x00003FFF00003FFF #x3FFF00003FFF0000 2)
                                    (#x000000000FFFFFFF #x0FFFFFFF00000000 4))
          do (sb-assem:inst mov spare high)
             (sb-assem:inst and spare value)
             (sb-assem:inst mov mask low)
             (sb-assem:inst and value mask)
             (sb-assem:inst shr spare shift)
             (sb-assem:inst or value spare)))

  (defun load-element (element to place spare)
    "Emit instructions that load the element at PLACE as the 64 bits of its varint."
    (ecase element
      ((:int32 :sint32) (sb-assem:inst movsx '(:dword :qword) to place))
      (:uint32 (sb-assem:inst mov :dword to place))
      ((:int64 :sint64) (sb-assem:inst mov to place)))
    (when (member element '(:sint32 :sint64))
      (sb-assem:inst mov spare to)
      (sb-assem:inst sar spare 63)
      (sb-assem:inst add to to)
      (sb-assem:inst xor to spare)))

  (defun store-element (element place from spare)
    "Emit instructions that store the varint whose bits are in FROM as the element at PLACE."
    (when (member element '(:sint32 :sint64))
      (when (eq element :sint32) (sb-assem:inst mov :dword from from)) ; the rest does not count
      (sb-assem:inst mov spare from)
      (sb-assem:inst shr from 1)
      (sb-assem:inst and :dword spare 1)
      (sb-assem:inst neg spare)
      (sb-assem:inst xor from spare))
    (if (= 4 (element-width element))
        (sb-assem:inst mov :dword place from)
        (sb-assem:inst mov place from)))

  (defun load-elements (element to place spare)
    "Emit instructions that load the eight elements at PLACE as the 64 bits of their varints."
    (inst512 (ecase element
            ((:int32 :sint32) :vpmovsxdq)
            (:uint32 :vpmovzxdq)
            ((:int64 :sint64) :vmovdqu64))
          to place)
    (when (member element '(:sint32 :sint64))
      (inst512 :vpsraq spare to 63)
      (inst512 :vpaddq to to to)
      (inst512 :vpxorq to to spare)))

  (defun store-elements (element place from spare one)
    "Emit instructions that store the eight varints whose bits are in FROM as elements at PLACE."
    (when (member element '(:sint32 :sint64))
      (inst512 :vpandq spare from one)
      (inst512 (if (eq element :sint32) :vpsrld :vpsrlq) from from 1)
      (inst512 :vpsubq spare one spare)    ; 0 becomes 1, and 1 becomes 0
      (inst512 :vpsubq spare spare one)
      (inst512 :vpxorq from from spare))
    (inst512 (if (= 4 (element-width element)) :vpmovqd-to :vmovdqu64-to) place from)))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun decode-eight (element width)
    "Instructions that read varints at HERE into the eight elements at DONE: those whose ends have a
bit in ENDS, up to LAST, one of these bits. They move HERE and DONE after them."
    `((inst lea next (memory 1 ends ends)) ; where they begin
      (instx :kmovq some ends)
      (instx :kmovq others next)
      (inst rep)
      (inst bsf last last)              ; TZCNT
      (inst512 :vmovdqu64 octets (memory 0 from here))
      (inst512 :vpxorq lasts lasts lasts)
      (inst512 :vpcompressb (masked some lasts) positions)
      (inst512 :vpxorq firsts firsts firsts)
      (inst512 :vpcompressb (masked others firsts) positions)
      (inst512 :vpermb lasts eighths lasts)
      (inst512 :vpermb firsts eighths firsts)
      (inst512 :vpsubb spare lasts firsts)
      (inst512 :vpcmpb some spare seven 6) ; more than eight octets
      (instx :kortestq some some)
      (inst jmp :nz OUT)
      (inst lea here (memory 1 here last))
      (inst512 :vpaddb firsts firsts places)
      (inst512 :vpcmpub some firsts lasts 2)
      (inst512 :vpermb (masked some values) firsts octets) ; each varint in eight octets
      (inst512 :vpandq values values septets)
      (inst512 :vpmaddubsw values pairs values)
      (inst512 :vpmaddwd values values quads)
      (inst512 :vpsrlq spare values 4)
      (inst512 :vpternlogq spare low values #b10111000) ; the low 28 bits of VALUES, else SPARE
      (store-elements ,element (memory 0 to done ,width) spare values one))))

(define-kernel %count-ends ((from :sap) (count :count)) (ends here)
    (:integers (mask) :vectors (octets))
    "Return two numbers: the number of octets that end a varint, among the COUNT octets at FROM,
where COUNT is a multiple of sixteen; and COUNT."
  (inst xor here here)
  (inst mov ends count)
  LOOP
  (inst cmp here count)
  (inst jmp :nb OUT)
  (inst movdqu octets (memory 0 from here))
  (inst pmovmskb mask octets)
  (inst popcnt mask mask)
  (inst sub ends mask)
  (inst add here 16)
  (inst jmp LOOP)
  OUT)

(define-kernel %count-ends-512 ((from :sap) (count :count)) (ends here)
    (:integers (more) :vectors-512 (octets) :masks (some))
    "Do what %COUNT-ENDS does, for a COUNT that is a multiple of 64."
  (inst xor here here)
  (inst mov ends count)
  LOOP
  (inst cmp here count)
  (inst jmp :nb OUT)
  (inst512 :vmovdqu64 octets (memory 0 from here))
  (inst512 :vpmovb2m some octets)
  (instx :kmovq-to more some)
  (inst popcnt more more)
  (inst sub ends more)
  (inst add here 64)
  (inst jmp LOOP)
  OUT)

(defmacro define-512-kernels (element sizes pack unpack)
  "Define the three kernels of ELEMENT for eight varints at a time, of at most eight octets each."
  (let ((width (element-width element)))
    `(progn
       ,@(when sizes
           `((define-kernel ,sizes ((from :sap) (count :count)) (total done)
                 (:integers (next) :vectors-512 (sums values spare one most))
                 "Return two numbers: the number of octets that the varints of the first elements at
FROM take, and the number of these elements, which is COUNT or up to seven less."
               (broadcast one next 1)
               (broadcast most next 640)
               (inst512 :vpxorq sums sums sums)
               (inst xor done done)
               LOOP
               (inst lea next (memory 8 done))
               (inst cmp next count)
               (inst jmp :nbe OUT)
               (load-elements ,element values (memory 0 from done ,width) spare)
               (inst512 :vporq values values one)
               (inst512 :vplzcntq values values)
               (inst512 :vpsllq spare values 3)
               (inst512 :vpaddq values values spare)
               (inst512 :vpsubq values most values) ; 64, and 9 for each bit
               (inst512 :vpsrlq values values 6)
               (inst512 :vpaddq sums sums values)
               (inst mov done next)
               (inst jmp LOOP)
               OUT
               (inst512 :vshufi64x2 spare sums sums #b01001110)
               (inst512 :vpaddq sums sums spare)
               (inst512 :vshufi64x2 spare sums sums #b10110001)
               (inst512 :vpaddq sums sums spare)
               (inst512 :vpshufd spare sums #b01001110)
               (inst512 :vpaddq sums sums spare)
               (inst512 :vmovq-to total sums))))
       ,@(when pack
           `((define-kernel ,pack ((from :sap) (count :count) (to :sap) (room :count)) (done here)
                 (:integers (next)
                  :vectors-512 (values spread spare packed shifts septets one octets long tops
                                rests)
                  :masks (some))
                 "Write the varints of the COUNT elements at FROM to TO, eight at a time, while
eight elements are left and 64 octets of ROOM are free. Return the numbers of elements and of octets
written."
               (inst xor done done)
               (inst xor here here)
               (broadcast shifts next #x312A231C150E0700)
               (broadcast septets next +septets+)
               (broadcast one next 1)
               (broadcast octets next 56)
               (broadcast long next #xFF00000000000000)
               (broadcast tops next #x8080808080808080)
               (inst512 :vpsrlq rests tops 8)
               LOOP
               (inst lea next (memory 8 done))
               (inst cmp next count)
               (inst jmp :nbe OUT)
               (inst lea next (memory 64 here))
               (inst cmp next room)
               (inst jmp :nbe OUT)
               (load-elements ,element values (memory 0 from done ,width) spare)
               ,@(unless (member element '(:uint32 :sint32))
                   `((inst512 :vptestmq some values long)
                     (instx :kortestq some some)
                     (inst jmp :nz OUT)))
               (inst512 :vpmultishiftqb spread shifts values)
               (inst512 :vpandq spread spread septets)
               (inst512 :vporq spare spread one)
               (inst512 :vplzcntq spare spare)
               (inst512 :vpandq spare spare octets) ; the bits of unused octets
               (inst512 :vpsrlvq values tops spare) ; the octets that are used
               ;; the octets that another octet of the varint follows
               (inst512 :vpsrlvq spare rests spare)
               (inst512 :vporq spread spread spare)
               (inst512 :vpmovb2m some values)
               (inst512 :vpxorq packed packed packed)
               (inst512 :vpcompressb (masked some packed) spread)
               (inst512 :vmovdqu64-to (memory 0 to here) packed)
               (instx :kmovq-to next some)
               (inst popcnt next next)
               (inst add here next)
               (inst add done 8)
               (inst jmp LOOP)
               OUT)))
       ,@(when unpack
           `((define-kernel ,unpack
                 ((from :sap) (count :count) (to :sap) (room :count) (scratch :sap)) (done here)
                 (:integers (base ends last next)
                  :vectors-512 (octets positions eighths places lasts firsts values spare
                           septets one seven low pairs quads)
                  :masks (some others))
                 "Read varints of the COUNT octets at FROM into the elements at TO, of which there
are ROOM, while eight of these are free and 64 octets are left. Return the numbers of elements and
of octets read. The octets are processed 1,024 at a time: first the ends of all varints become the
bits of SCRATCH, seventeen words, so that the position to continue at is known early."
               (inst xor done done)
               (inst xor here here)
               (broadcast places next #x0706050403020100) ; of octets in eight
               (inst512 :vpmovzxbq eighths places)
               (broadcast spare next #x0101010101010101)
               (inst512 :vpmullq eighths eighths spare) ; which eight each octet is in
               (inst512 :vpsllq positions eighths 3)
               (inst512 :vpaddb positions positions places)
               (broadcast septets next +septets+)
               (broadcast one next 1)
               (broadcast seven next #x0707070707070707)
               (broadcast low next #x0FFFFFFF)
               (broadcast pairs next #x8001800180018001)
               (broadcast quads next #x4000000140000001)
               CHUNK
               (inst mov base count)
               (inst sub base here)
               (inst shr base 6)
               (inst jmp :z OUT)
               (inst lea next (memory 8 done))
               (inst cmp next room)
               (inst jmp :nbe OUT)
               (inst cmp base 16)
               (inst jmp :be FEWER)
               (inst mov base 16)
               FEWER
               (inst xor next next)
               (inst lea last (memory 0 from here))
               BLOCK
               (inst512 :vmovdqu64 octets (memory 0 last))
               (inst512 :vpmovb2m some octets)
               (instx :kmovq-to ends some)
               (inst not ends)
               (inst mov (memory 0 scratch next 8) ends)
               (inst add last 64)
               (inst add next 1)
               (inst cmp next base)
               (inst jmp :b BLOCK)
               (inst shl base 6)
               (inst lea next (memory -64 base here))
               (inst mov (memory 128 scratch) next) ; the last place with 64 octets and their bits
               (inst mov base here)
               EIGHT
               (inst mov ends here)
               (inst sub ends base)
               (inst mov next ends)
               (inst and :dword next 7)
               (inst shr ends 3)
               (inst mov ends (memory 0 scratch ends))
               (instx :shrx ends ends next) ; of the next 57 octets
               (inst mov :dword next 128)
               (instx :pdep last next ends) ; the eighth end
               (inst test last last)
               (inst jmp :z FEW)
               ,@(decode-eight element width)
               (inst add done 8)
               (inst cmp here (memory 128 scratch))
               (inst jmp :nbe CHUNK)
               (inst lea next (memory 8 done))
               (inst cmp next room)
               (inst jmp :be EIGHT)
               (inst jmp OUT)
               FEW
               (inst bsr last ends)
               (inst jmp :z OUT)
               (inst xor next next)
               (inst bts next last)
               (inst mov last next)
               ,@(decode-eight element width)
               (inst popcnt next ends)
               (inst add done next)
               (inst cmp here (memory 128 scratch))
               (inst jmp :nbe CHUNK)
               (inst lea next (memory 8 done))
               (inst cmp next room)
               (inst jmp :be EIGHT)
               OUT))))))

(define-512-kernels :int32 %sizes-512-int32 %pack-512-int32 %unpack-512-int32)
(define-512-kernels :uint32 %sizes-512-uint32 %pack-512-uint32 nil)
(define-512-kernels :int64 %sizes-512-int64 %pack-512-int64 %unpack-512-int64)
(define-512-kernels :sint32 %sizes-512-sint32 %pack-512-sint32 %unpack-512-sint32)
(define-512-kernels :sint64 %sizes-512-sint64 %pack-512-sint64 %unpack-512-sint64)

(defmacro define-varint-kernels (element sizes pack unpack)
  "Define the three kernels of ELEMENT."
  (let ((width (element-width element)))
    `(progn
       ,@(when sizes
           `((define-kernel ,sizes ((from :sap) (count :count)) (total done)
                 (:integers (value size))
                 "Return the number of octets that the varints of the COUNT elements at FROM take,
and COUNT."
               (inst xor done done)
               (inst xor total total)
               LOOP
               (inst cmp done count)
               (inst jmp :nb OUT)
               (load-element ,element value (memory 0 from done ,width) size)
               (inst or value 1)
               (inst rep)
               (inst bsr size value)    ; LZCNT
               (inst xor :dword size 63) ; the position of the highest bit
               (inst lea size (memory 73 size size 8))
               (inst shr size 6)
               (inst add total size)
               (inst add done 1)
               (inst jmp LOOP)
               OUT)))
       ,@(when pack
           `((define-kernel ,pack ((from :sap) (count :count) (to :sap) (room :count)) (done here)
                 (:integers (value size spread septets) :shift shift)
                 "Write the varints of the COUNT elements at FROM to TO, while eight octets of ROOM
are left, or ten for a varint that takes ten. Return the numbers of elements and of octets written."
               (inst xor done done)
               (inst xor here here)
               (inst mov septets +septets+)
               LOOP
               (inst cmp done count)
               (inst jmp :nb OUT)
               (inst lea size (memory 8 here))
               (inst cmp size room)
               (inst jmp :nbe OUT)
               (load-element ,element value (memory 0 from done ,width) size)
               ,@(unless (member element '(:uint32 :sint32))
                   `((inst mov size value)
                     (inst shr size 56)
                     (inst jmp :nz LONG)))
               (instx :pdep spread value septets)
               (inst mov size spread)
               (inst or size 1)
               (inst rep)
               (inst bsr shift size)    ; LZCNT
               (inst and :dword shift 56) ; the bits of unused octets
               (inst mov value #x80808080808080) ; seven octets that are followed by another
               (inst shr value :cl)
               (inst or spread value)
               (inst mov (memory 0 to here) spread)
               (inst shr :dword shift 3)
               (inst sub here shift)
               (inst add here 8)
               (inst add done 1)
               (inst jmp LOOP)
               LONG
               (inst lea shift (memory 10 here))
               (inst cmp shift room)
               (inst jmp :nbe OUT)
               (instx :pdep spread value septets)
               (inst mov shift septets)
               (inst not shift)
               (inst or spread shift)
               (inst mov (memory 0 to here) spread)
               (inst mov :byte (memory 8 to here) size)
               (inst mov :byte (memory 9 to here) 1)
               (inst shr :dword size 7) ; whether there is a tenth
               (inst lea here (memory 9 here size))
               (inst add done 1)
               (inst jmp LOOP)
               OUT)))
       ,@(when unpack
           `((define-kernel ,unpack ((from :sap) (count :count) (to :sap)) (done here)
                 (:integers (block ends stop value septets)
                  :vectors (octets) :shift shift)
                 "Read the varints of the COUNT octets at FROM into the elements at TO, where there
must be room for all. Return the numbers of elements and of octets read."
               (inst xor done done)
               (inst xor here here)
               (inst xor block block)
               (inst mov septets +septets+)
               LOOP
               (inst lea stop (memory 72 block))
               (inst cmp stop count)
               (inst jmp :nbe OUT)
               (inst xor :dword ends ends)
               (dotimes (i 4)
                 (inst movdqu octets (memory (- 48 (* 16 i)) from block))
                 (inst pmovmskb stop octets)
                 (inst shl ends 16)
                 (inst or ends stop))
               (inst not ends)
               NEXT
               (inst test ends ends)
               (inst jmp :z FURTHER)
               (inst rep)
               (inst bsf stop ends)     ; TZCNT
               (inst lea value (memory -1 ends))
               (inst and ends value)
               (inst lea stop (memory 1 stop block))
               (inst mov shift here)
               (inst mov value (memory 0 from here))
               (inst sub shift stop)    ; minus the length
               (inst mov here stop)
               (inst cmp shift -8)
               (inst jmp :l LONG)
               (inst shl :dword shift 3)
               (inst shl value :cl)     ; drop the octets after the varint
               (inst shr value :cl)
               (instx :pext value value septets)
               STORE
               (store-element ,element (memory 0 to done ,width) value stop)
               (inst add done 1)
               (inst jmp NEXT)
               LONG
               (inst cmp shift -10)
               (inst jmp :l LONGER)
               (instx :pext value value septets)
               (inst add shift here)    ; the varint's start; 10 octets can be read from there
               (inst movzx '(:byte :dword) stop (memory 8 from shift))
               (inst shl stop 57)
               (inst shr stop 1)
               (inst or value stop)
               (inst lea stop (memory 9 shift))
               (inst cmp stop here)
               (inst jmp :e STORE)
               (inst movzx '(:byte :dword) stop (memory 9 from shift))
               (inst shl stop 63)
               (inst or value stop)
               (inst jmp STORE)
               LONGER
               (inst lea here (memory 0 here shift))
               (inst jmp OUT)
               FURTHER
               (inst add block 64)
               (inst jmp LOOP)
               OUT))))))

(define-varint-kernels :int32 %sizes-int32 %pack-bits-int32 %unpack-bits-int32)
(define-varint-kernels :uint32 %sizes-uint32 %pack-bits-uint32 nil)
(define-varint-kernels :int64 %sizes-int64 %pack-bits-int64 %unpack-bits-int64)
(define-varint-kernels :sint32 %sizes-sint32 %pack-bits-sint32 %unpack-bits-sint32)
(define-varint-kernels :sint64 %sizes-sint64 %pack-bits-sint64 %unpack-bits-sint64)

(define-kernel %count-fields
    ((octets :octets) (at :count) (last :count) (tag :count) (mask :count) (size :count))
    (count memory)
    (:integers (here length next))
    "AT is the position after the first TAG of a series of length-delimited fields with TAG, which
has SIZE octets and is compared under MASK. Return two numbers: the number of these fields, and the
memory in octets that their strings take. The series ends at a field that reaches beyond the octets
or whose length takes more than two octets. The function reads nothing beyond the second octet from
LAST."
  (inst mov here at)
  (inst xor count count)
  (inst xor memory memory)
  LOOP
  (inst add count 1)
  (inst cmp here last)
  (inst jmp :nbe OUT)
  (inst movzx '(:byte :dword) length (memory +octets-data+ octets here))
  (inst add here 1)
  (inst test :dword length 128)
  (inst jmp :z SHORT)
  (inst movzx '(:byte :dword) next (memory +octets-data+ octets here))
  (inst test :dword next 128)
  (inst jmp :nz OUT)
  (inst add here 1)
  (inst and :dword length 127)
  (inst shl :dword next 7)
  (inst or :dword length next)
  SHORT
  (inst add here length)
  (inst lea length (memory 32 length)) ; a header, and a zero at the end
  (inst and :dword length -16)
  (inst add memory length)
  (inst cmp here last)
  (inst jmp :nbe OUT)
  (inst movzx '(:word :dword) next (memory +octets-data+ octets here))
  (inst and :dword next mask)
  (inst cmp next tag)
  (inst jmp :ne OUT)
  (inst add here size)
  (inst jmp LOOP)
  OUT)

(defmacro define-carver (name size width)
  "Define the kernel NAME for tags of SIZE octets, compared as WIDTH."
  `(define-kernel ,name ((from :sap) (to :sap) (place :sap) (tag :count) (limits :sap))
       (here used done)
       (:integers (length seen next) :vectors-256 (some others zero))
       "Make strings of the consecutive fields with TAG that begin at FROM. Make them in memory, one
after the other, beginning at TO, and store references to them at PLACE. LIMITS are four numbers:
the number of strings, the last place with 65 octets after its tag, the end of the fields, and the
last place in memory with room for any string. Return the numbers of octets read, of octets written,
and of strings."
     (inst xor here here)
     (inst xor used used)
     (inst xor done done)
     (inst vpxor zero zero zero)
     LOOP
     (inst cmp done (memory 0 limits))
     (inst jmp :nb OUT)
     (inst cmp here (memory 8 limits))
     (inst jmp :nbe OUT)
     (inst cmp used (memory 24 limits))
     (inst jmp :nbe OUT)
     (inst cmp ,width (memory 0 from here) tag)
     (inst jmp :ne OUT)
     (inst movzx '(:byte :dword) length (memory ,size from here))
     (inst cmp length 63)
     (inst jmp :nbe OUT)
     (inst vmovdqu some (memory ,(+ size 1) from here))
     (inst vmovdqu others (memory ,(+ size 33) from here))
     (inst lea next (memory ,(+ size 1) here length))
     (inst cmp next (memory 16 limits))
     (inst jmp :nbe OUT)
     (inst mov here next)
     (inst vpmovmskb seen others)
     (inst vpmovmskb next some)
     (inst shl seen 32)
     (inst or seen next)
     (instx :bzhi seen seen length)
     (inst test seen seen)
     (inst jmp :nz WIDE)
     (inst lea next (memory 0 to used))
     (inst vmovdqu (memory 16 next) some)
     (inst vmovdqu (memory 48 next) others)
     (inst vmovdqu (memory 16 next length) zero)
     (inst lea seen (memory 0 length length))
     (inst mov (memory 8 next) seen)
     (inst mov :qword (memory 0 next) sb-vm:simple-base-string-widetag)
     (inst add next sb-vm:other-pointer-lowtag)
     (inst mov (memory 0 place done 8) next)
     (inst add done 1)
     (inst add length 32)               ; a header, and a zero at the end
     (inst and length -16)
     (inst add used length)
     (inst jmp LOOP)
     WIDE
     (inst sub here length)
     (inst sub here ,(+ size 1))
     OUT
     (inst vzeroupper)))

(define-carver %carve-1 1 :byte)
(define-carver %carve-2 2 :word)
