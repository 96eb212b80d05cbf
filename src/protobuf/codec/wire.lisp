;;;; The wire format (protobuf.dev, "Encoding"): reading and writing of varints, fixed-width values
;;;; and lengths, and skipping. Sequential code reads with the TAKE- macros and writes with the PUT-
;;;; macros; both work on the variables OCTETS and AT of the code around them, reading also on END.
;;;;
;;;; Invariants: reading code has checked END <= (length octets) once at its entry (PARSE-OCTETS),
;;;; and every TAKE- checks AT against END, so the leaves it uses may be at safety 0. Writing is
;;;; bounds-checked by Lisp: a message that another thread changes between size pass and write pass
;;;; gives an error, never a stray store.

(in-package #:clgrpc.protobuf)

(declaim (type fixnum **max-message-depth** **max-decoded-octets** **max-receive-octets**))
(defglobal **max-receive-octets** (option-default :max-receive-octets))
(defglobal **max-message-depth** (option-default :max-message-depth))
(defglobal **max-decoded-octets** (option-default :max-decoded-octets))

;;; Failures

(defun fail-read (position control &rest arguments)
  "Signal PROTOBUF-ERROR at POSITION."
  (error 'protobuf-error :position position :text (format nil "~?" control arguments)))

(declaim (ftype (function (t) nil) fail-truncated fail-varint fail-tag fail-recursion fail-allowance
                               fail-length))
(defun fail-truncated (position) (fail-read position "the octets end within a field"))
(defun fail-varint (position) (fail-read position "a varint has more than ten octets"))
(defun fail-tag (position) (fail-read position "this is not a field tag"))
(defun fail-length (position) (fail-read position "a length reaches past the end"))
(defun fail-recursion (position)
  (fail-read position "messages nest deeper than :max-message-depth allows"))
(defun fail-allowance (position)
  (error 'memory-limit-exceeded
         :position position
         :text "its messages take more memory than :max-decoded-octets allows"))

;;; Leaves

(defmacro %octet-at (octets at)
  "Return the octet AT of OCTETS, which must exist. This is a macro, because generated readers use
it very often and inline functions take long to compile."
  `(truly-the octet (sb-kernel:data-vector-ref (truly-the octets ,octets) (truly-the index ,at))))

(define-leaf (%u32-at :inline t) ((octets octets) (at index)) (unsigned-byte 32)
  (sb-sys:with-pinned-objects (octets)
    (sb-sys:sap-ref-32 (sb-sys:vector-sap octets) at)))

(define-leaf (%u64-at :inline t) ((octets octets) (at index)) (unsigned-byte 64)
  (sb-sys:with-pinned-objects (octets)
    (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) at)))

(define-leaf (%set-u32-at :inline t) ((octets octets) (at index) (value (unsigned-byte 32))) t
  (sb-sys:with-pinned-objects (octets)
    (setf (sb-sys:sap-ref-32 (sb-sys:vector-sap octets) at) value)))

(define-leaf (%set-u64-at :inline t) ((octets octets) (at index) (value (unsigned-byte 64))) t
  (sb-sys:with-pinned-objects (octets)
    (setf (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) at) value)))

;;; Sizes and conversions

(defmacro define-conversion (name (variable type) &body body)
  "Define NAME as a function of VARIABLE, of TYPE, whose BODY is copied to each call. In code that
is compiled fast, an inline function that is called twice would become one shared copy that is
called."
  `(progn
     (defun ,name (,variable)
       (declare (type ,type ,variable))
       ,@body)
     (define-compiler-macro ,name (,variable)
       `(let ((,',variable ,,variable))
          (declare (type ,',type ,',variable))
          ,@',(if (stringp (first body)) (rest body) body)))))

(define-conversion varint-size (value (unsigned-byte 64))
  "Return the number of octets of the varint of VALUE."
  (if (zerop (logandc2 value 127))
      1
      (ash (+ 64 (* 9 (integer-length value))) -6)))

(define-conversion signed-32 (value (unsigned-byte 32))
  (the (signed-byte 32) (- (logxor value #x80000000) #x80000000)))

(define-conversion signed-64 (value (unsigned-byte 64))
  (truly-the (signed-byte 64) (sb-c::mask-signed-field 64 value)))

(define-conversion zigzag (value (signed-byte 64))
  (ldb (byte 64 0) (logxor (ldb (byte 64 0) (ash (ldb (byte 64 0) value) 1))
                           (ldb (byte 64 0) (ash value -63)))))

(define-conversion unzigzag (value (unsigned-byte 64))
  (signed-64 (logxor (ash value -1) (ldb (byte 64 0) (- (logand value 1))))))

(define-conversion zigzag-32 (value (signed-byte 32))
  (logxor (ldb (byte 32 0) (ash value 1)) (ldb (byte 32 0) (ash value -31))))

(define-conversion unzigzag-32 (value (unsigned-byte 32))
  (signed-32 (logxor (ash value -1) (if (logtest value 1) #xFFFFFFFF 0))))

(define-conversion unsigned-64 (value (signed-byte 64))
  (ldb (byte 64 0) value))

(define-conversion single-bits (value single-float)
  (ldb (byte 32 0) (sb-kernel:single-float-bits value)))

(define-conversion double-bits (value double-float)
  (ldb (byte 64 0) (sb-kernel:double-float-bits value)))

(define-conversion bits-single (bits (unsigned-byte 32))
  (sb-kernel:make-single-float (signed-32 bits)))

(define-conversion bits-double (bits (unsigned-byte 64))
  (sb-kernel:make-double-float (signed-32 (ash bits -32)) (ldb (byte 32 0) bits)))

;;; Reading. A READ- function takes octets, position and end and returns value and position after
;;; it; a TAKE- macro does the usual case of one octet in line and leaves everything else to such a
;;; function.

(defmacro step-by (count)
  "Move AT by COUNT, which the caller knows to stay within END."
  `(let ((count ,count))
     (setf at (truly-the index (+ at count)))))

(define-leaf (%compact :inline t) ((word (unsigned-byte 64))) (unsigned-byte 56)
  "Return the low seven bits of each octet of WORD, side by side."
  (let* ((a (logior (logand word #x007F007F007F007F)
                    (ash (logand word #x7F007F007F007F00) -1)))
         (b (logior (logand a #x00003FFF00003FFF) (ash (logand a #x3FFF00003FFF0000) -2))))
    (logior (logand b #x0FFFFFFF) (ash (logand b #x0FFFFFFF00000000) -4))))

(define-leaf (%last-octet-bit :inline t) ((word (unsigned-byte 64))) (unsigned-byte 64)
  "The high bit of the first octet of WORD that ends a varint, or 0 if none of its eight octets
does."
  (let ((ends (logandc2 #x8080808080808080 word)))
    (logand ends (ldb (byte 64 0) (- ends)))))

(defmacro read-long-varint (found)
  "Read the varint at AT, where ten octets can be read. Call the local function FOUND with the
varint's value and the position after it. Eight octets are examined at once."
  `(let* ((word (%u64-at octets at))
          (bit (%last-octet-bit word)))
     (declare (type (unsigned-byte 64) word bit))
     (if (/= 0 bit)
         (,found (%compact (logand word (1- bit)))
                 (truly-the index (+ at (ash (integer-length bit) -3))))
         (let* ((ninth (%octet-at octets (truly-the index (+ at 8))))
                (tenth (%octet-at octets (truly-the index (+ at 9))))
                (low (logior (%compact word) (ash (logand 127 ninth) 56))))
           (declare (type (unsigned-byte 64) low))
           (cond ((< ninth 128) (,found low (truly-the index (+ at 9))))
                 ((< tenth 128) (,found (logior low (ash (logand 1 tenth) 63))
                                        (truly-the index (+ at 10))))
                 (t (fail-varint at)))))))

(defmacro read-short-varint (found else)
  "Do what READ-LONG-VARINT does if the varint has two or three octets; otherwise evaluate ELSE."
  `(let ((first (%octet-at octets at))
         (second (%octet-at octets (truly-the index (+ at 1))))
         (third (%octet-at octets (truly-the index (+ at 2)))))
     (if (and (<= 128 first) (< (min second third) 128))
         (if (< second 128)
             (,found (logior (logand first 127) (ash second 7)) (truly-the index (+ at 2)))
             (,found (logior (logand first 127) (ash (logand second 127) 7) (ash third 14))
                     (truly-the index (+ at 3))))
         ,else)))

(defmacro read-last-varint (found)
  "Do what READ-LONG-VARINT does, for a varint that may have fewer than ten octets before END."
  `(let ((value 0) (shift 0) (here at))
     (declare (type (unsigned-byte 64) value) (type (integer 0 70) shift) (type index here))
     (loop
       (when (= shift 70) (fail-varint at))
       (unless (< here end) (fail-truncated here))
       (let ((octet (%octet-at octets here)))
         (setf here (truly-the index (1+ here))
               value (logior value (ldb (byte 64 0)
                                        (ash (logand octet 127) (truly-the (integer 0 63) shift)))))
         (when (< octet 128) (return (,found value here)))
         (setf shift (truly-the (integer 0 70) (+ shift 7)))))))

(defmacro define-varint-reader (name result documentation &body body)
  "Define NAME as a READ- function for varints. BODY computes its values, of the types RESULT,
from VALUE, the 64 bits of the varint, and NEXT, the position after the varint."
  `(progn
     (define-hot ,name ((octets octets) (at index) (end index)) ,result
       ,documentation
       (flet ((found (value next)
                (declare (type (unsigned-byte 64) value) (type index next))
                (when (> next end) (fail-truncated end))
                ,@body))
         (if (<= 10 (- (length octets) at)) ; END may be nearer
             (read-short-varint found (read-long-varint found))
             (read-last-varint found))))))

(define-varint-reader read-varint32 (values (unsigned-byte 32) index)
    "Read a varint; return its low 32 bits."
  (values (ldb (byte 32 0) value) next))

(define-varint-reader read-varint64 (values (unsigned-byte 32) (unsigned-byte 32) index)
    "Read a varint; return its low and its high 32 bits, because a single value of 64 bits would be
boxed."
  (values (ldb (byte 32 0) value) (ash value -32) next))

(define-varint-reader read-boolean (values boolean index)
    "Read a varint; return true if any of its bits is set."
  (values (/= 0 value) next))

(define-varint-reader read-tag (values (unsigned-byte 32) index)
    "Read the tag of a field."
  (if (< value (ash 1 32)) (values value next) (fail-tag at)))

(define-varint-reader read-length (values index index)
    "Read a length that stays within END."
  (if (<= value (- end next)) (values (truly-the index value) next) (fail-length next)))

(defmacro take-long (reader)
  `(multiple-value-bind (value next) (,reader octets at end)
     (setf at next)
     value))

(defmacro rest-length ()
  `(truly-the fixnum (- end at)))
(defmacro more-p ()
  `(plusp (rest-length)))

(defmacro take-short (reader &optional (function 'progn))
  "Read the varint at AT: if it is a single octet, return FUNCTION of the octet, else the
value of READER."
  `(if (and (more-p) (< (%octet-at octets at) 128))
       (let ((value (%octet-at octets at)))
         (step-by 1)
         (,function value))
       (take-long ,reader)))

(defmacro take-varint32 () `(take-short read-varint32))
(defmacro take-boolean () `(take-short read-boolean plusp))
(defmacro take-tag () `(take-short read-tag))
(defmacro take-text () `(take-long read-string))
(defmacro take-unchecked-text () `(take-long read-unchecked-string))
(defmacro take-octets () `(take-long read-bytes))

(defmacro take-varint64 ()
  `(if (and (more-p) (< (%octet-at octets at) 128))
       (let ((value (%octet-at octets at)))
         (step-by 1)
         value)
       (multiple-value-bind (low high next) (read-varint64 octets at end)
         (setf at next)
         (truly-the (unsigned-byte 64) (logior low (ash high 32))))))

(defmacro take-any-tag ()
  "Do what TAKE-TAG does, but also read tags of two octets in line."
  `(let ((first (%octet-at octets at))
         (second (if (< (1+ at) end) (%octet-at octets (1+ at)) 255)))
     (cond ((< first 128) (step-by 1) first)
           ((< second 128) (step-by 2) (logior (logand first 127) (ash second 7)))
           (t (take-long read-tag)))))

(defmacro take-u32 ()
  `(if (<= 4 (rest-length))
       (prog1 (%u32-at octets at) (step-by 4))
       (fail-truncated at)))

(defmacro take-u64 ()
  `(if (<= 8 (rest-length))
       (prog1 (%u64-at octets at) (step-by 8))
       (fail-truncated at)))

(defmacro take-length ()
  "The length at AT, checked to stay within END."
  `(let ((octet (if (more-p) (%octet-at octets at) 255)))
     (cond ((and (< octet 128) (< octet (rest-length)))
            (step-by 1)
            octet)
           (t (take-long read-length)))))

(defmacro with-delimited ((start stop) &body body)
  "Run BODY with START and STOP bound to the bounds of the length-delimited value at AT; move AT
past it."
  `(let* ((length (take-length))
          (,start at)
          (,stop (truly-the index (+ at length))))
     (declare (type index length ,start ,stop) (ignorable ,start))
     (multiple-value-prog1 (progn ,@body)
       (setf at ,stop))))

(define-hot decode-text ((octets octets) (start index) (stop index)) simple-string
  "The string whose UTF-8 is the octets START to STOP, which have been checked to exist."
  (or (%ascii-string octets start stop)
      (handler-case (decode-wide-utf8 octets start stop)
        (invalid-utf8 (condition)
          (fail-read (+ start (the index (invalid-utf8-position condition)))
                     "a string is not UTF-8")))))

(define-hot read-string ((octets octets) (at index) (end index)) (values simple-string index)
  "Read a length and that many octets of UTF-8."
  (with-delimited (start stop) (values (decode-text octets start stop) stop)))

;;; Strings that need not be UTF-8 (feature utf8_validation = NONE). An octet that is not part of
;;; UTF-8 becomes a character from U+DC80 to U+DCFF, which no UTF-8 has, and is written back as it
;;; came.

(defconstant +escape+ #xDC00
  "The difference between an octet that is not UTF-8 and the code of the character that represents
it.")

(declaim (inline escape-p))
(defun escape-p (char)
  (<= (+ +escape+ 128) (char-code char) (+ +escape+ 255)))

(define-hot utf8-character ((octets octets) (at index) (end index))
    (values (unsigned-byte 21) index)
  "Return two values: the code of the character whose UTF-8 begins at AT, and the position after it.
For an octet that is not UTF-8, the code is that of its escape."
  (let* ((lead (aref octets at))
         (count (cond ((< lead #x80) 1) ((< lead #xC2) 0) ((< lead #xE0) 2) ((< lead #xF0) 3)
                      ((< lead #xF5) 4) (t 0)))
         (code (if (< count 2) lead (logand lead (ash #x7F (- count))))))
    (declare (type (unsigned-byte 32) code))
    (loop for i from 1 below count
          for octet = (if (< (+ at i) end) (aref octets (+ at i)) 0)
          do (if (= #x80 (logand #xC0 octet))
                 (setf code (logior (ldb (byte 32 0) (ash code 6)) (logand #x3F octet)))
                 (setf count 0)))
    (if (or (zerop count)
            (and (= count 3) (or (< code #x800) (<= #xD800 code #xDFFF)))
            (and (= count 4) (not (<= #x10000 code #x10FFFF))))
        (values (+ +escape+ lead) (1+ at))
        (values (ldb (byte 21 0) code) (+ at count)))))

(defun decode-escaped (octets start end)
  "The string whose UTF-8 is the octets START to END, with escapes for octets that are not UTF-8."
  (declare (type octets octets) (type index start end))
  (let ((string (make-string (- end start))) (count 0) (at start))
    (declare (type index count at))
    (loop while (< at end)
          do (multiple-value-bind (code next) (utf8-character octets at end)
               (setf (schar string count) (code-char code)
                     count (1+ count)
                     at next)))
    (subseq string 0 count)))

(define-hot decode-unchecked-text ((octets octets) (start index) (stop index)) simple-string
  "Do what DECODE-TEXT does, for octets that may not be UTF-8."
  (or (%ascii-string octets start stop)
      (handler-case (decode-wide-utf8 octets start stop)
        (invalid-utf8 () (decode-escaped octets start stop)))))

(define-hot read-unchecked-string ((octets octets) (at index) (end index))
    (values simple-string index)
  "Read a length and that many octets, UTF-8 or not."
  (with-delimited (start stop) (values (decode-unchecked-text octets start stop) stop)))

(define-hot unchecked-length ((string simple-string)) index
  "The number of octets that WRITE-UNCHECKED-TEXT writes for STRING after the length."
  (if (typep string 'simple-base-string)
      (length string)
      (- (utf8-length string)
         (* 2 (count-if #'escape-p (truly-the wide-string string)))))) ; counted as three

(define-hot read-bytes ((octets octets) (at index) (end index)) (values octets index)
  "Read a length and that many octets."
  (with-delimited (start stop)
    (values (subseq-octets octets start stop) stop)))

;;; Skipping

(define-hot skip-field ((octets octets) (at index) (end index) (tag (unsigned-byte 32)))
    index
  "Return the position after the field whose TAG ends before AT."
  (when (zerop (ash tag -3)) (fail-tag at))
  (let ((open '()) (depth 0))
    (declare (type list open) (type fixnum depth))
    (loop
      (case (logand tag 7)
        (0 (take-short read-boolean))
        (1 (if (<= 8 (- end at)) (step-by 8) (fail-truncated at)))
        (2 (step-by (take-length)))
        (3 (push (ash tag -3) open)
         (when (> (incf depth) **max-message-depth**) (fail-recursion at)))
        (4 (unless (eql (pop open) (ash tag -3)) (fail-read at "a group ends that did not begin"))
         (decf depth))
        (5 (if (<= 4 (- end at)) (step-by 4) (fail-truncated at)))
        (t (fail-tag at)))
      (when (null open) (return at))
      (setf tag (take-tag))
      (when (zerop (ash tag -3)) (fail-tag at)))))

(define-hot skip-any-field ((octets octets) (at index) (end index)) index
  "Return the position after the field at AT."
  (let ((tag (take-tag)))
    (skip-field octets at end tag)))

(define-hot group-end ((octets octets) (at index) (end index) (number (unsigned-byte 29)))
    (values index index)
  "Return two positions for the group NUMBER, whose content begins at AT: the end of its content,
and the end of its end tag."
  (loop
    (let* ((here at)
           (tag (take-tag)))
      (when (= tag (logior 4 (ash number 3))) (return (values here at)))
      (setf at (skip-field octets at end tag)))))

(define-hot content-end ((octets octets) (at index) (end index) (number (unsigned-byte 29))) index
  "The end of the content of the group NUMBER, which begins at AT and whose end tag ends at END."
  (if (zerop (aref octets (1- end)))    ; the varint of the tag is longer than needed
      (values (group-end octets at end number))
      (truly-the index (- end (varint-size (logior 4 (ash number 3)))))))

;;; Writing

(defmacro put-octet (value)
  `(progn (setf (aref octets at) ,value)
          (setf at (truly-the index (1+ at)))))

(defun tag-of (number wire-type)
  (logior (ash number 3) wire-type))

(defun tag-octets (tag)
  "The octets of the varint of TAG."
  (loop collect (logior (ldb (byte 7 0) tag) (if (< tag 128) 0 128))
        do (setf tag (ash tag -7))
        until (zerop tag)))

(defmacro put-tag (tag)
  "Write the constant TAG."
  `(progn ,@(loop for octet in (tag-octets tag) collect `(put-octet ,octet))))

(defmacro need-room (count)
  `(unless (<= ,count (- (length octets) at)) (fail-room)))

(defun fail-room ()
  (misuse "A message does not fit: it changed between its size pass and its write pass."))

(define-leaf (%spread :inline t) ((value (unsigned-byte 56))) (unsigned-byte 64)
  "Return VALUE with its bits spread, seven to an octet."
  (let* ((a (logior (logand value #x0FFFFFFF) (ash (logand value #xFFFFFFF0000000) 4)))
         (b (logior (logand a #x00003FFF00003FFF) (ash (logand a #x0FFFC0000FFFC000) 2))))
    (logior (logand b #x007F007F007F007F) (ash (logand b #x3F803F803F803F80) 1))))

(define-leaf (%put-varint :inline t)
    ((value (unsigned-byte 64)) (size (integer 1 10)) (octets octets) (at index))
    index
  "Write VALUE, whose varint takes SIZE octets, at AT, where there must be room for them; return the
position after it. If the size allows, the octets are written by two stores that overlap."
  (let* ((all (logior #x8080808080808080 (%spread (ldb (byte 56 0) value))))
         (word (if (<= size 8)
                   (logandc2 all (ldb (byte 64 0) (ash 1 (- (* 8 (the (integer 1 8) size)) 1))))
                   all)))
    (declare (type (unsigned-byte 64) all word))
    (cond ((> size 8)
           (%set-u64-at octets at word)
           (setf (aref octets (+ at 8)) (logior (ldb (byte 7 56) value) (if (= size 9) 0 128)))
           (when (= size 10) (setf (aref octets (+ at 9)) 1)))
          ((>= size 4)
           (%set-u32-at octets at (ldb (byte 32 0) word))
           (%set-u32-at octets (+ at (- size 4))
                        (ldb (byte 32 0) (ash word (- (* 8 (- (the (integer 4 8) size) 4)))))))
          (t
           (setf (aref octets at) (ldb (byte 8 0) word))
           (when (= size 3) (setf (aref octets (+ at 1)) (ldb (byte 8 8) word)))
           (setf (aref octets (+ at (- size 1)))
                 (ldb (byte 8 0) (ash word (- (* 8 (- (the (integer 1 3) size) 1))))))))
    (+ at size)))

(define-leaf (%put-short-varint :inline t)
    ((value (unsigned-byte 21)) (octets octets) (at index))
    index
  "Do what %PUT-VARINT does, for a value of at most three octets; there must be room for three
octets."
  (cond ((< value #x80)
         (setf (aref octets at) value)
         (+ at 1))
        ((< value #x4000)
         (setf (aref octets at) (logior 128 (ldb (byte 7 0) value))
               (aref octets (+ at 1)) (ash value -7))
         (+ at 2))
        (t
         (setf (aref octets at) (logior 128 (ldb (byte 7 0) value))
               (aref octets (+ at 1)) (logior 128 (ldb (byte 7 7) value))
               (aref octets (+ at 2)) (ash value -14))
         (+ at 3))))

(declaim (sb-ext:maybe-inline write-varint write-varint64))

(define-hot write-varint ((value fixnum) (octets octets) (at index)) index
  "Write the 64 bits of VALUE as a varint at AT; return the position after it."
  (if (and (<= 0 value #x1FFFFF) (<= 3 (- (length octets) at)))
      (%put-short-varint value octets at)
      (let* ((value (ldb (byte 64 0) value))
             (size (varint-size value)))
        (need-room size)
        (%put-varint value size octets at))))

(define-hot write-varint64
    ((low (unsigned-byte 32)) (high (unsigned-byte 32)) (octets octets) (at index))
    index
  "Write the 64 bits HIGH and LOW as a varint at AT; return the position after it."
  (let* ((value (logior low (ash high 32)))
         (size (varint-size value)))
    (need-room size)
    (%put-varint value size octets at)))

(defmacro put-varint (value)
  "Write VALUE, a fixnum, as a varint: a negative one in ten octets."
  `(let ((value ,value))
     (declare (type fixnum value))
     (if (zerop (logandc2 value 127))
         (put-octet (logand value 127))
         (setf at (write-varint value octets at)))))

(defmacro put-varint64 (value)
  "Write VALUE, of 64 bits, as a varint."
  `(let ((value ,value))
     (declare (type (unsigned-byte 64) value))
     (if (zerop (logandc2 value 127))
         (put-octet (logand value 127))
         (setf at (write-varint64 (ldb (byte 32 0) value) (ash value -32) octets at)))))

(defmacro put-u32 (value)
  `(progn (need-room 4)
          (%set-u32-at octets at ,value)
          (step-by 4)))

(defmacro put-u64 (value)
  `(progn (need-room 8)
          (%set-u64-at octets at ,value)
          (step-by 8)))

(define-hot write-text ((string simple-string) (octets octets) (at index)) index
  "Write the length of STRING in UTF-8 and STRING itself at AT; return the position after it."
  (let ((count (length string)) (before at))
    (declare (type index before))
    (put-varint count)
    (need-room count)
    (cond ((typep string 'simple-base-string) (%copy-base-string string octets at))
          ((%narrow-string (truly-the wide-string string) octets at) (truly-the index (+ at count)))
          (t
           ;; the length mostly takes as many octets as it would for ASCII
           (let* ((end (encode-wide-utf8 (truly-the wide-string string) octets at))
                  (size (- end at))
                  (shift (- (varint-size size) (- at before))))
             (declare (type index end size) (type fixnum shift))
             (unless (zerop shift) (copy-octets octets at end octets (+ at shift)))
             (setf at before)
             (put-varint size)
             (+ at size))))))

(define-hot write-unchecked-text ((string simple-string) (octets octets) (at index)) index
  "Do what WRITE-TEXT does, but write escapes as the octets that they represent."
  (if (or (typep string 'simple-base-string)
          (not (find-if #'escape-p (truly-the wide-string string))))
      (write-text string octets at)
      (loop initially (put-varint (unchecked-length string))
            with start of-type index = 0
            for escape = (position-if #'escape-p string :start start)
            do (setf at (encode-utf8 (subseq string start escape) octets at))
               (unless escape (return at))
               (put-octet (- (char-code (char string escape)) +escape+))
               (setf start (1+ escape)))))

(define-hot write-octets ((value octets) (octets octets) (at index)) index
  "Write the length of VALUE and VALUE itself at AT; return the position after it."
  (put-varint (length value))
  (copy-octets value 0 (length value) octets at))
