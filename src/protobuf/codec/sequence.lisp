;;;; Vectors of repeated fields while they are read. The reader keeps a vector that may be too long
;;;; and a count in local variables; FIT-VECTOR cuts it at the end. Room for packed varints and for
;;;; runs of sub-messages or strings is found by looking ahead, so in the usual case nothing is
;;;; copied; otherwise vectors double, so the work stays linear in the input.

(in-package #:clgrpc.protobuf)

(define-hot resize-vector ((vector (simple-array * (*))) (count index) (room index))
    (simple-array * (*))
  "Return a vector of ROOM elements, of the type of VECTOR, whose first COUNT elements are those of
VECTOR; the caller must write the rest."
  (macrolet ((resize (&rest elements)
               `(etypecase vector
                  ,@(loop for element in elements
                          collect `((simple-array ,element (*))
                                    (let ((new ,(if (eq element t)
                                                    '(make-array room :initial-element 0)
                                                    `(make-raw-vector room ,element))))
                                      (replace new vector :end2 count)
                                      new))))))
    (resize t (signed-byte 32) (unsigned-byte 32) (signed-byte 64) (unsigned-byte 64)
            single-float double-float)))

(define-hot room-for ((count index) (more index)) index
  "The new length of a vector that holds COUNT elements and must take MORE."
  (if (zerop count) more (max (+ count more) (* 2 count) 4)))

(define-hot fit-vector ((vector (simple-array * (*))) (count index)) (simple-array * (*))
  "Return VECTOR, or a copy that is COUNT long if VECTOR is longer."
  (if (= count (length vector)) vector (resize-vector vector count count)))

(defmacro ensure-room (vector count more type)
  "Make sure that MORE elements fit into VECTOR, a variable of TYPE, after COUNT."
  `(when (> ,more (- (length ,vector) ,count))
     (setf ,vector (truly-the ,type (resize-vector ,vector ,count (room-for ,count ,more))))))

(defmacro ensure-packed-room (vector count more element)
  "Do what ENSURE-ROOM does, for a vector of ELEMENT, which is usually empty before."
  `(let ((more ,more))
     (declare (type index more))
     (if (and (zerop ,count) (zerop (length ,vector)))
         (setf ,vector (make-raw-vector more ,element))
         (ensure-room ,vector ,count more (simple-array ,element (*))))))

(defmacro append-element (vector count value type)
  "Put VALUE after the COUNT elements of VECTOR."
  `(let ((value ,value))
     (when (= ,count (length ,vector))
       (setf ,vector (truly-the ,type (resize-vector ,vector ,count (room-for ,count 4)))))
     (setf (aref ,vector ,count) value
           ,count (truly-the index (1+ ,count)))))

(define-leaf %count-varints ((octets octets) (start index) (end index)) index
  "Return the number of varints that end in the octets from START to END."
  (let ((count 0) (at start))
    (declare (type index count at))
    (when (and (<= 32 (- end start)) (avx2-p))
      (with-sap ((base octets))
        (multiple-value-bind (ends here)
            (if (and (<= 256 (- end start)) (avx512-p))
                (%count-ends-512 (sb-sys:sap+ base start) (logandc2 (- end start) 63))
                (%count-ends (sb-sys:sap+ base start) (logandc2 (- end start) 15)))
          (declare (type index ends here))
          (setf count ends
                at (+ start here)))))
    (loop while (<= (+ at 8) end)
          do (let ((ends (ash (logandc2 #x8080808080808080 (%u64-at octets at)) -7)))
               (declare (type (unsigned-byte 64) ends))
               (incf count (ash (ldb (byte 64 0) (* ends #x0101010101010101)) -56)))
             (incf at 8))
    (when (< at end)
      (if (<= 8 (- (length octets) at))
          (let ((ends (ldb (byte 64 0)  ; of octets before END, shifted up
                           (ash (logandc2 #x8080808080808080 (%u64-at octets at))
                                (the (integer 0 63) (- 64 (* 8 (- end at))))))))
            (incf count (ash (ldb (byte 64 0) (* (ash ends -7) #x0101010101010101)) -56)))
          (loop while (< at end)
                do (when (< (aref octets at) 128) (incf count))
                   (incf at))))
    count))

(defmacro %follows-p (tag)
  "True if the octets of TAG, one or two, are at AT before END."
  `(if (< ,tag 128)
       (and (< at end) (= ,tag (%octet-at octets at)))
       (and (< (1+ at) end)
            (= (logior 128 (ldb (byte 7 0) ,tag)) (%octet-at octets at))
            (= (ldb (byte 8 7) ,tag) (%octet-at octets (truly-the index (1+ at)))))))

(define-hot measure-run ((octets octets) (at index) (end index) (tag (unsigned-byte 32)))
    (values index index)
  "AT is the position after the first TAG of a series of length-delimited fields with TAG. Return
two values: the number of these fields, and the memory in octets that they need if they are ASCII
strings. The count ends at malformed octets and at a length or tag of more than two octets."
  (let ((size (if (< tag 128) 1 2)) (count 0) (memory 0))
    (declare (type index count memory))
    (cond ((or (>= tag 16384) (< (- end at) 3)) (values 1 0))
          (+kernels-p+
           (%count-fields octets at (- end 3)
                          (if (= size 1) tag (logior 128 (ldb (byte 7 0) tag) (ash (ash tag -7) 8)))
                          (if (= size 1) 255 65535)
                          size))
          (t
           (loop
             (incf count)
             (unless (< (1+ at) end) (return))
             (let ((length (%octet-at octets at)))
               (step-by 1)
               (when (>= length 128)
                 (let ((more (%octet-at octets at)))
                   (when (>= more 128) (return))
                   (step-by 1)
                   (setf length (logior (logand length 127) (ash more 7)))))
               (when (> length (- end at)) (return))
               (step-by length)
               (setf memory (truly-the index (+ memory (logandc2 (+ length 32) 15))))
               (unless (%follows-p tag) (return))
               (step-by size)))
           (values count memory)))))

(define-hot count-run ((octets octets) (at index) (end index) (tag (unsigned-byte 32))) index
  "The number of fields that MEASURE-RUN finds."
  (values (measure-run octets at end tag)))

;;; Runs of short ASCII strings. The octets of strings are the smaller part of their cost. So
;;; strings are read many at a time, into one piece of memory: an octet vector that no other code
;;; has seen. For the collector this vector turns at once into strings and a shorter vector.

(defconstant +piece+ 4096
  "The maximum number of octets of memory in which strings are made at once, while the collector
waits.")

(defconstant +carve-p+ (known-heap-p)
  "True if pieces of a vector may become objects. Not every version of SBCL allows this, because its
collector may have to know every object.")

(define-leaf %read-strings ((octets octets) (at index) (end index) (tag (unsigned-byte 14))
                            (vector simple-vector) (count index) (piece octets))
    (values index index index)
  "Read the strings of consecutive fields with TAG; AT is the position after the first TAG. Put the
strings after the COUNT elements of VECTOR. Return the new count, the position after the last
string, and the octets of PIECE that they took. The reading ends at a string that is not ASCII or
has more than 63 octets, near the end of OCTETS, and at the end of VECTOR or PIECE. The collector
must be off. Afterwards only the rest of PIECE is a vector."
  (let* ((header (* sb-vm:vector-data-offset sb-vm:n-word-bytes))
         (all (+ header (logandc2 (+ (length piece) 15) 15)))
         (size (if (< tag 128) 1 2))
         (start (- at size))
         (last (- (length octets) at 65))
         (limits (make-array 4 :element-type '(unsigned-byte 64)))
         (first count))
    (declare (dynamic-extent limits) (type index all start) (type fixnum last first))
    (when (minusp last) (return-from %read-strings (values count at 0)))
    (setf (aref limits 0) (- (length vector) count)
          (aref limits 1) last
          (aref limits 2) (- end start)
          (aref limits 3) (- all 112))
    (with-sap ((base octets) (data piece) (limits limits))
      (let ((from (sb-sys:sap+ base start))
            (to (sb-sys:sap+ data (- header)))
            (place (sb-sys:sap+ (sb-sys:int-sap (sb-kernel:get-lisp-obj-address vector))
                                (+ +octets-data+ (* sb-vm:n-word-bytes count)))))
        (multiple-value-bind (here used done)
            (if (= size 1)
                (%carve-1 from to place tag limits)
                (%carve-2 from to place (logior 128 (ldb (byte 7 0) tag) (ash (ash tag -7) 8))
                          limits))
          (declare (type index here used done))
          (setf count (truly-the index (+ count done))
                (sb-sys:sap-ref-word to used) sb-vm:simple-array-unsigned-byte-8-widetag
                (sb-sys:sap-ref-word to (+ used sb-vm:n-word-bytes))
                (ash (truly-the index (- all used header)) sb-vm:n-fixnum-tag-bits))
          (flet ((mark (i)              ; mark the card of the string for the collector
                   (setf (svref vector i) (svref vector i))))
            (declare (inline mark))
            (loop for i of-type fixnum from first below count
                    by (floor sb-vm:gencgc-card-bytes sb-vm:n-word-bytes)
                  do (mark i))
            (when (< first count) (mark (1- count))))
          (values count (if (zerop done) at (truly-the index (+ start here))) used))))))

(define-hot read-run ((octets octets) (at index) (end index) (tag (unsigned-byte 32))
                      (vector simple-vector) (count index))
    (values simple-vector index index)
  "Make room in VECTOR, after its COUNT elements, for the strings of consecutive fields with TAG,
and read some of these strings. AT is the position after the first TAG. Return the vector, the
count, and the position after the last string read, or AT."
  (multiple-value-bind (run memory) (measure-run octets at end tag)
    (declare (type index run memory))
    (ensure-room vector count run simple-vector)
    (let ((next at))
      (declare (type index next))
      (when (and +carve-p+ (<= 16 run) (< tag 16384) (avx2-p))
        (loop
          (let ((piece (make-array (min +piece+ (+ memory 112)) :element-type 'octet))
                (start at) (elements vector) (before count))
            (multiple-value-bind (after behind used)
                (sb-sys:without-gcing
                  (%read-strings octets start end tag elements before piece))
              (declare (type index after behind used))
              (when (zerop used) (return))
              (setf count after
                    next behind
                    at behind
                    memory (max 0 (- memory used))))
            (unless (and (< count (length vector)) (%follows-p tag)) (return))
            (step-by (if (< tag 128) 1 2)))))
      (values vector count next))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (define-kernel %copy-512 ((from :sap) (to :sap) (count :count)) ()
      (:integers (mask) :vectors-512 (octets) :masks (some))
      "Copy COUNT octets, 64 at most, from FROM to TO, and fill TO with zeros up to 64 octets."
    (inst mov mask -1)
    (instx :bzhi mask mask count)
    (instx :kmovq some mask)
    (inst512 :vpxorq octets octets octets)
    (inst512 :vmovdqu8 (masked some octets) (memory 0 from))
    (inst512 :vmovdqu64-to (memory 0 to) octets)))

(defconstant +string-slack+ 64
  "The number of octets after a string that may be written, because the next string overwrites
them.")

(define-leaf %put-strings ((vector simple-vector) (octets octets) (at index)
                           (tag (unsigned-byte 14)))
    (values index index)
  "Write the first strings of VECTOR as fields with TAG at AT. Stop before a string that is not a
short base string, or after which too little follows to overwrite the octets written after it.
Return the number of these strings, and the position after them."
  (let* ((i 0) (wide (avx512-p))
         (count (- (length vector) (floor +string-slack+ 2))) ; a string takes two octets at least
         (last (- (length octets) 131))
         (size (if (< tag 128) 1 2))
         (word (if (< tag 128) tag (logior 128 (ldb (byte 7 0) tag) (ash (ash tag -7) 8)))))
    (declare (type index i) (type fixnum count last) (type (unsigned-byte 16) word))
    (with-sap ((base octets))
      (loop while (and (< i count) (<= at last))
            do (let ((string (svref vector i)))
                 (unless (and (typep string 'simple-base-string) (< (length string) 128)) (return))
                 (let ((length (length string)))
                   (setf (sb-sys:sap-ref-16 base at) word)
                   (step-by size)
                   (setf (sb-sys:sap-ref-8 base at) length)
                   (step-by 1)
                   (with-sap ((from string))
                     (let ((to (sb-sys:sap+ base at)))
                       (if (and wide (<= length 64))
                           (%copy-512 from to length)
                           (%copy-plain from to length))))
                   (step-by length)))
               (setf i (truly-the index (1+ i)))))
    (values i at)))

;;; Loops over packed values. The callers of leaves have checked that ten octets are there, and that
;;; the last octet of the field ends a varint.

(define-leaf %copy-elements ((from (simple-array * (*))) (start index)
                             (to (simple-array * (*))) (at index) (size index))
    null
  "Copy SIZE octets of the data of the vector FROM, beginning at its octet START, to the data of TO,
beginning at the octet AT. The elements of both vectors are numbers."
  (with-sap ((source from) (target to))
    (%copy-memory (sb-sys:sap+ source start) (sb-sys:sap+ target at) size))
  nil)

(defmacro unpack-varint ()
  "Return the varint at the beginning of WORD, which was read at AT, and move AT after it. A branch
for each length is used, because the processor predicts branches: with a computed length, reading
the next varint would have to wait for it."
  `(macrolet ((found (size value)
                `(prog1 ,value (setf at (truly-the index (+ at ,size))))))
     (cond ((not (logtest #x80 word)) (found 1 (ldb (byte 7 0) word)))
           ((not (logtest #x8000 word))
            (found 2 (logior (ldb (byte 7 0) word) (logand #x3F80 (ash word -1)))))
           ((not (logtest #x800000 word))
            (found 3 (logior (ldb (byte 7 0) word) (logand #x3F80 (ash word -1))
                             (logand #x1FC000 (ash word -2)))))
           (t
            (let ((bit (%last-octet-bit word)))
              (declare (type (unsigned-byte 64) bit))
              (if (/= 0 bit)
                  (prog1 (%compact (logand word (1- bit)))
                    (setf at (truly-the index
                                        (cond ,@(loop for size from 4 to 7
                                                      collect `((< bit (ash 1 (* 8 ,size)))
                                                                (+ at ,size)))
                                              (t (+ at 8))))))
                  (multiple-value-bind (low high next) (read-varint64 octets at end)
                    (declare (type (unsigned-byte 32) low high))
                    (setf at next)
                    (logior low (ash high 32)))))))))

(defmacro pack-varint (value)
  "Write VALUE, of 64 bits, as a varint at AT of BASE and move AT after it. Up to ten octets may be
written."
  `(let ((value ,value))
     (declare (type (unsigned-byte 64) value))
     (flet ((septet (position)
              (ash (logand value (ash 127 (* 7 (the (mod 3) position)))) position)))
       (declare (inline septet))
       (cond ((< value #x80)
              (setf (sb-sys:sap-ref-8 base at) value)
              (incf at 1))
             ((< value #x4000)
              (setf (sb-sys:sap-ref-16 base at) (logior #x80 (septet 0) (septet 1)))
              (incf at 2))
             ((< value #x200000)
              (setf (sb-sys:sap-ref-32 base at) (logior #x8080 (septet 0) (septet 1) (septet 2)))
              (incf at 3))
             ,@(loop for size from 4 to 8
                     collect `((< value (ash 1 (* 7 ,size)))
                               (setf (sb-sys:sap-ref-64 base at)
                                     (logior (%spread value)
                                             (ldb (byte (* 8 (1- ,size)) 0) #x8080808080808080)))
                               (incf at ,size)))
             (t (setf at (write-varint64 (ldb (byte 32 0) value) (ash value -32) octets at)))))))

;;; One set of functions for each scalar kind: readers and writers of single values as objects (for
;;; maps), of one element of a repeated field, and of all elements packed. TYPE is the enum type, if
;;; there is one.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun kind-function (verb kind)
    "The symbol of the function of this file that performs VERB for KIND, such as
READ-PACKED-INT32."
    (intern (format nil "~A-~A" verb kind) '#:clgrpc.protobuf))

  (defun kind-vector (scalar)
    `(simple-array ,(scalar-element scalar) (*)))

  (defun element-in (scalar form type)
    "A form that converts FORM, a value in its form on the wire, to the element of a vector or map.
TYPE is a form for its enum type."
    (if (eq :enum (scalar-kind scalar)) `(enum-keyword-of (the enum-type ,type) ,form) form))

  (defun element-out (scalar form)
    (if (eq :enum (scalar-kind scalar))
        `(enum-number-of (the enum-type type) ,form)
        `(truly-the ,(scalar-lisp-type scalar) ,form)))

  (defun single-functions (scalar name)
    (let ((type (scalar-lisp-type scalar)))
      `(,@(unless (member (scalar-kind scalar) '(:string :unchecked-string :bytes))
            `((define-hot ,(funcall name "READ") ((octets octets) (at index) (end index))
                  ;; when a function that returns a double is called by FUNCALL, SBCL 2.6.4 returns
                  ;; only the position beside the double
                  (values ,(if (eq type 'double-float) t type) index)
                (let ((value ,(scalar-take scalar))) (values value at)))))
        (define-hot ,(funcall name "SIZE") ((value ,type)) index
          (progn value ,(scalar-size scalar)))
        (define-hot ,(funcall name "PUT") ((value ,type) (octets octets) (at index)) index
          ,(scalar-put scalar)
          at)
        (let ((scalar (scalar-of ,(scalar-kind scalar))))
          (setf (scalar-reader scalar) #',(funcall name "READ")
                (scalar-sizer scalar) #',(funcall name "SIZE")
                (scalar-putter scalar) #',(funcall name "PUT"))))))

  (defun kernel-function (verb scalar)
    "Return the kernel (varint-kernel.lisp) that performs VERB for the varints of SCALAR. The
kernels of int64 also serve uint64; of the kernels of int32 only the reader serves uint32."
    (let ((kind (scalar-kind scalar)))
      (kind-function verb (cond ((eq kind :uint64) :int64)
                                ((and (eq kind :uint32) (search "UNPACK" verb)) :int32)
                                (t kind)))))

  (defun element-functions (scalar name)
    (let ((vector (kind-vector scalar)))
      `((define-hot ,(funcall name "SIZE-ELEMENTS") ((vector ,vector) (type t)) index
          (let ((size 0) (i 0))
            (declare (type index size i))
            (progn type
                   ,@(when (varint-bits scalar)
                       `((with-sap ((from vector))
                           (cond ((and (<= 16 (length vector)) (avx512-p))
                                  (setf (values size i)
                                        (,(kernel-function "%SIZES-512" scalar) from
                                         (length vector))))
                                 ((avx2-p)
                                  (setf (values size i)
                                        (,(kernel-function "%SIZES" scalar) from
                                         (length vector))))))))
                   (loop while (< i (length vector))
                         do (let ((value ,(element-out scalar '(aref vector i))))
                              (declare (ignorable value))
                              (setf size (truly-the index (+ size ,(scalar-size scalar)))
                                    i (truly-the index (1+ i)))))
                   size)))
        (define-hot ,(funcall name "PUT-ELEMENTS")
            ((vector ,vector) (octets octets) (at index) (tag (unsigned-byte 32)) (type t)) index
          (let ((i 0))
            (declare (type index i))
            (progn type
                   ,@(when (member (scalar-kind scalar) '(:string :unchecked-string))
                       `((when (< tag 16384)
                           (setf (values i at) (%put-strings vector octets at tag)))))
                   (loop while (< i (length vector))
                         do (let ((value ,(element-out scalar '(aref vector i))))
                              (unless (zerop tag) (put-varint tag))
                              ,(scalar-put scalar)
                              (setf i (truly-the index (1+ i)))))
                   at))))))

  (defun scalar-width (scalar)
    "Return the number of octets that each value of SCALAR takes on the wire if it takes as many in
memory, else nil."
    (case (scalar-wire scalar) (1 8) (5 4)))

  (defun varint-bits (scalar)
    "Return 32 or 64, the number of bits of the integers that are varints."
    (case (scalar-kind scalar)
      ((:int32 :uint32 :sint32) 32)
      ((:int64 :uint64 :sint64) 64)))

  (defun fixed-functions (scalar name)
    "The reader and the writer of packed values that have the same form in octets as in memory."
    (let ((vector (kind-vector scalar)) (width (scalar-width scalar)))
      `((define-hot ,(funcall name "READ-PACKED")
            ((octets octets) (at index) (end index) (vector ,vector) (count index) (type t))
            (values ,vector index)
          (progn type
                 (multiple-value-bind (more rest) (truncate (- end at) ,width)
                   (unless (zerop rest) (fail-truncated end))
                   (ensure-packed-room vector count more ,(scalar-element scalar))
                   (%copy-elements octets at vector (* ,width count) (* ,width more))
                   (values vector (truly-the index (+ count more))))))
        (define-hot ,(funcall name "PUT-PACKED")
            ((vector ,vector) (octets octets) (at index) (size index) (type t)) index
          (progn type
                 (need-room size)
                 (unless (= size (* ,width (length vector))) (fail-room))
                 (%copy-elements vector 0 octets at size)
                 (truly-the index (+ at size)))))))

  (defun unpack-many (scalar width)
    "Forms that store all varints of WIDTH octets in WORD, which was read at AT and whose bits are
already packed together."
    (let ((count (floor 8 width)))
      `(,@(loop for i below count
                for field = `(ldb (byte ,(* 8 width) ,(* 8 width i)) word)
                collect `(macrolet ((take-varint32 () ',field)
                                    (take-varint64 () ',field))
                           (setf (aref vector (truly-the index (+ count ,i)))
                                 ,(scalar-take scalar))))
        (setf at (truly-the index (+ at 8))
              count (truly-the index (+ count ,count))))))

  (defun varint-functions (scalar name)
    "The reader and the writer of packed integers: each has a loop without checks, while the next
integer cannot reach the end, and one with checks for the rest."
    (let ((vector (kind-vector scalar))
          (unpack (intern (format nil "%UNPACK-~A" (scalar-kind scalar)) '#:clgrpc.protobuf))
          (pack (intern (format nil "%PACK-~A" (scalar-kind scalar)) '#:clgrpc.protobuf)))
      `((define-leaf ,unpack
            ((octets octets) (at index) (end index) (vector ,vector) (count index))
            (values index index)
          ;; on SIZE octets; the value is the number of octets that it took
          (macrolet ((run (kernel size &rest more)
                       `(with-sap ((from octets) (to vector))
                          (multiple-value-bind (done here)
                              (,kernel (sb-sys:sap+ from at) ,size
                                       (sb-sys:sap+ to (* ,',(floor (varint-bits scalar) 8) count))
                                       ,@more)
                            (declare (type index done here))
                            (setf count (truly-the index (+ count done))
                                  at (truly-the index (+ at here)))
                            here))))
            (when (and (<= 256 (- end at)) (avx512-p)) ; worth its preparation
              (let ((ends (make-array 17 :element-type '(unsigned-byte 64))))
                (declare (dynamic-extent ends))
                (with-sap ((scratch ends))
                  (loop do (run ,(kernel-function "%UNPACK-512" scalar) (- end at)
                                (- (length vector) count) scratch)
                        ;; that is, at a varint of more than eight octets
                        while (and (<= 256 (- end at))
                                   (plusp (run ,(kernel-function "%UNPACK-BITS" scalar) 256)))))))
            (when (and (< 80 (- end at)) (fast-bits-p))
              (run ,(kernel-function "%UNPACK-BITS" scalar) (- end at))))
          (sb-sys:with-pinned-objects (octets)
            (let ((last (min (1- end) (- (length octets) 10))) (base (sb-sys:vector-sap octets)))
              (declare (type fixnum last))
              (loop while (<= at last)
                    do (let* ((word (sb-sys:sap-ref-64 base at))
                              (high (logand #x8080808080808080 word)))
                         (declare (type (unsigned-byte 64) word high))
                         (cond ((and (zerop high) (<= (+ at 8) end))
                                ,@(unpack-many scalar 1))
                               ((and (= high #x0080008000800080) (<= (+ at 8) end))
                                (setf word (logior (logand word #x007F007F007F007F)
                                                   (logand (ash word -1) #x3F803F803F803F80)))
                                ,@(unpack-many scalar 2))
                               (t
                                (macrolet ((take-varint32 () '(ldb (byte 32 0) (unpack-varint)))
                                           (take-varint64 () '(unpack-varint)))
                                  (setf (aref vector count) ,(scalar-take scalar)
                                        count (truly-the index (1+ count))))))))))
          (values at count))
        (define-hot ,(funcall name "READ-PACKED")
            ((octets octets) (at index) (end index) (vector ,vector) (count index) (type t))
            (values ,vector index)
          (progn type
                 ;; each element ends with an octet that is counted, so there is room
                 (when (and (< at end) (<= 128 (%octet-at octets (1- end)))) (fail-truncated end))
                 (ensure-packed-room vector count (%count-varints octets at end)
                                     ,(scalar-element scalar))
                 (setf (values at count) (,unpack octets at end vector count))
                 (loop while (< at end)
                       do (setf (aref vector count) ,(scalar-take scalar)
                                count (truly-the index (1+ count))))
                 (values vector count)))
        (define-leaf ,pack
            ((vector ,vector) (octets octets) (at index) (end index))
            (values index index)
          (let ((i 0) (count (length vector)) (last (- end 10)))
            (declare (type index i count) (type fixnum last))
            ;; up to COUNT elements; the value is the number of elements that it took
            (macrolet ((run (kernel count end)
                         `(with-sap ((from vector) (to octets))
                            (multiple-value-bind (done here)
                                (,kernel (sb-sys:sap+ from (* ,',(floor (varint-bits scalar) 8) i))
                                         ,count (sb-sys:sap+ to at) (- ,end at))
                              (declare (type index done here))
                              (setf i (truly-the index (+ i done))
                                    at (truly-the index (+ at here)))
                              done))))
              (when (and (<= 64 (- end at)) (avx512-p))
                (loop do (run ,(kernel-function "%PACK-512" scalar) (- count i) end)
                      ;; at a varint of more than eight octets, or at the last
                      while (and (<= 64 (- end at))
                                 (<= 16 (- count i))
                                 (plusp (run ,(kernel-function "%PACK-BITS" scalar) 16 end)))))
              (when (fast-bits-p)
                (run ,(kernel-function "%PACK-BITS" scalar) (- count i) (length octets))))
            (sb-sys:with-pinned-objects (octets)
              (let ((base (sb-sys:vector-sap octets)))
                (macrolet ((put-varint (value) `(pack-varint (ldb (byte 64 0) ,value)))
                           (put-varint64 (value) `(pack-varint ,value)))
                  (loop while (and (< i count) (<= at last))
                        do (let ((value (aref vector i)))
                             ,(scalar-put scalar)
                             (incf i))))))
            (values i at)))
        (define-hot ,(funcall name "PUT-PACKED")
            ((vector ,vector) (octets octets) (at index) (size index) (type t)) index
          (progn type
                 (need-room size)
                 (multiple-value-bind (start next)
                     (,pack vector octets at (truly-the index (+ at size)))
                   (declare (type index start next))
                   (setf at next)
                   (loop for i of-type index from start below (length vector)
                         do (let ((value (aref vector i)))
                              (declare (inline write-varint write-varint64))
                              ,(scalar-put scalar)))
                   at))))))

  (defun packed-functions (scalar name)
    "The reader and the writer of packed bools and enums."
    (let ((vector (kind-vector scalar)))
      `((define-hot ,(funcall name "READ-PACKED")
            ((octets octets) (at index) (end index) (vector ,vector) (count index) (type t))
            (values ,vector index)
          (progn type
                 (ensure-room vector count (%count-varints octets at end) ,vector)
                 (loop while (< at end)
                       do (setf (aref vector count) ,(element-in scalar (scalar-take scalar) 'type)
                                count (truly-the index (1+ count))))
                 (values vector count)))
        (define-hot ,(funcall name "PUT-PACKED")
            ((vector ,vector) (octets octets) (at index) (size index) (type t)) index
          (progn size
                 (,(funcall name "PUT-ELEMENTS") vector octets at 0 type))))))

  (defun packed-reader-form (scalar name)
    "A form that gives the row of SCALAR its reader of packed values."
    `(setf (scalar-packed-reader (scalar-of ,(scalar-kind scalar)))
           (lambda (octets at end type)
             (,(funcall name "READ-PACKED")
              octets at end
              (load-time-value (make-array 0 :element-type ',(scalar-element scalar)) t) 0 type)))))

(macrolet ((define-kinds ()
             `(progn
                ,@(loop for scalar being the hash-values of *scalars*
                        append (flet ((name (verb)
                                        (intern (format nil "~A-~A" verb (scalar-kind scalar))
                                                '#:clgrpc.protobuf)))
                                 (append (single-functions scalar #'name)
                                         (element-functions scalar #'name)
                                         (unless (= 2 (scalar-wire scalar))
                                           `(,@(cond ((scalar-width scalar)
                                                      (fixed-functions scalar #'name))
                                                     ((varint-bits scalar)
                                                      (varint-functions scalar #'name))
                                                     (t (packed-functions scalar #'name)))
                                             ,(packed-reader-form scalar #'name)))))))))
  (define-kinds))

;;; Elements of closed enums: numbers without a name become unknown fields

(define-hot append-varint-field
    ((octets octets) (at index) (number (unsigned-byte 29)) (value fixnum))
    (values octets index)
  "Write the varint field NUMBER with VALUE at AT of OCTETS or, if it may not fit, of a longer copy.
Return that vector and the position after the field."
  (when (< (- (length octets) at) 15)
    (setf octets (replace (make-octets (+ 30 (* 2 at))) octets :end2 at)))
  (values octets
          (write-varint value octets (write-varint (ash number 3) octets at))))

(define-hot read-closed-elements
    ((octets octets) (at index) (end index) (vector simple-vector) (count index)
     (number (unsigned-byte 29)) (type enum-type) (ranges list))
    (values simple-vector index list)
  "Read the packed enum elements from AT to END. Return three values: the vector, the count, and
RANGES. The octets of unknown elements are added to RANGES as one vector, because a vector for each
element would take fifty times as many octets."
  (let ((unknown (load-time-value (make-octets 0) t)) (size 0))
    (declare (type octets unknown) (type index size))
    (loop while (< at end)
          do (let ((value (signed-32 (take-varint32))))
               (if (enum-known-p type value)
                   (append-element vector count (enum-keyword-of type value) simple-vector)
                   (setf (values unknown size)
                         (append-varint-field unknown size number value)))))
    (values vector count
            (if (zerop size) ranges (cons (subseq-octets unknown 0 size) ranges)))))
