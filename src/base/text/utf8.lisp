;;;; UTF-8 (RFC 3629) between strings and octets, validating, with a fast path for ASCII: most text
;;;; in gRPC is ASCII, and SBCL's own coders cost ten times as much. Decoded ASCII is a
;;;; simple-base-string, anything else a (simple-array character).
;;;;
;;;; The fast paths work on eight octets at a time, or in kernels (utf8-kernel.lisp) on more: the
;;;; characters of a base string are octets in memory, those of a character string are 32-bit codes.
;;;; Callers of leaves have checked that all octets and characters exist that the leaves touch.

(in-package #:clgrpc.base)

(define-condition invalid-utf8 (clgrpc-error)
  ((position :initarg :position :reader invalid-utf8-position)) ; of the first wrong octet
  (:report (lambda (condition stream)
             (format stream "Invalid UTF-8 at octet ~D." (invalid-utf8-position condition))))
  (:documentation "Octets that must be UTF-8 are not UTF-8. POSITION is the offset of the first
wrong octet."))

(document-functions
  invalid-utf8-position "The offset of the first octet that is not UTF-8.")

(deftype wide-string ()
  "A string of 32-bit characters, without a fill pointer or displacement."
  '(simple-array character (*)))

;;; Layouts: for each set of lanes, a row of sixteen octets, which PSHUFB takes. Each octet of a row
;;; is the index of the octet to put into its place, or #x80 for zero.

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
  "Index: the set of lanes that have a character of one octet. Value: the layout that keeps the low
octets of the characters.")
(defglobal **widen-layouts**
    (lane-layouts 128 (lambda (leads)
                        (loop with octet = 0
                              while (< octet 8)
                              append (if (logbitp octet leads)
                                         (list (min (1+ octet) 7) octet)
                                         (list octet #x80))
                              do (incf octet (if (logbitp octet leads) 2 1)))))
  "Index: the set of octets that begin a character of two octets. Value: the layout with the last
octet of each character below its first.")

(defconstant +high-bits+ #x8080808080808080
  "The bits that are zero if all of eight octets are ASCII.")

(defconstant +wide-bits+ #xFFFFFF80FFFFFF80
  "The bits that are zero if both of two 32-bit characters are ASCII.")

;;; From strings to octets

(defmacro pair-of (value)
  "Return a word of 64 bits with VALUE in both halves, like two equal adjacent characters in
memory."
  `(* ,value #x100000001))

(define-leaf %wide-utf8-length ((string wide-string)) index
  "The number of octets that the characters of STRING take. Two characters are counted at a time: a
constant is added to each code, and carries into the top bit if the character takes one octet more."
  (let ((count (length string)) (more 0))
    (declare (type index count) (type (unsigned-byte 64) more))
    (with-sap ((from string))
      (when (and (<= 16 count) (avx2-p) (zerop (%wide-among from count)))
        (return-from %wide-utf8-length count))
      (multiple-value-bind (extra at)
          (if (avx2-p) (%wide-extra from count) (values 0 0))
        (declare (type index extra at))
        (macrolet ((reach (pair limit)
                     `(logand (pair-of 1)
                              (ash (ldb (byte 64 0) (+ ,pair (pair-of ,(- (expt 2 31) limit))))
                                   -31)))
                   (add (pair)
                     `(let ((pair ,pair))
                        (declare (type (unsigned-byte 64) pair))
                        (setf more (ldb (byte 64 0)
                                        (+ more (reach pair #x80) (reach pair #x800)
                                           (reach pair #x10000)))))))
          (loop while (<= (+ at 2) count)
                do (add (sb-sys:sap-ref-64 from (* 4 at)))
                   (incf at 2))
          (when (< at count) (add (sb-sys:sap-ref-32 from (* 4 at)))))
        (+ count extra (ldb (byte 32 0) more) (ash more -32))))))

(define-hot utf8-length ((string string)) index
  "The number of octets of STRING in UTF-8."
  (typecase string
    (simple-base-string (length string))
    (wide-string (%wide-utf8-length string))
    (t (utf8-length (coerce string 'wide-string)))))

(define-leaf (%copy-plain :inline t)
    ((from sb-sys:system-area-pointer) (to sb-sys:system-area-pointer) (count index))
    boolean
  "Copy COUNT octets from FROM to TO, which do not overlap; return true if all are ASCII. The last
few octets may be copied together with some octets before them."
  (let ((seen 0))
    (declare (type (unsigned-byte 64) seen))
    (macrolet ((copy (bits at)
                 (let ((ref (ecase bits (64 'sb-sys:sap-ref-64) (32 'sb-sys:sap-ref-32)
                              (8 'sb-sys:sap-ref-8))))
                   `(let ((at ,at))
                      (declare (type index at))
                      (let ((word (,ref from at)))
                        (setf seen (logior seen word)
                              (,ref to at) word))))))
      (cond ((and +kernels-p+ (>= count 16))
             (return-from %copy-plain (zerop (%copy-sixteens from to count))))
            ((>= count 8)
             (let ((last (- count 8)) (here 0))
               (declare (type index last here))
               (loop while (< here last)
                     do (copy 64 here)
                        (incf here 8))
               (copy 64 last)))
            ((>= count 4)
             (copy 32 0)
             (copy 32 (- count 4)))
            (t (dotimes (here count) (copy 8 here)))))
    (not (logtest +high-bits+ seen))))

(define-leaf (%copy-base-string :inline t) ((string simple-base-string) (octets octets)
                                            (start index))
    index
  "Put the characters of STRING into OCTETS, beginning at START; return the position after them."
  (with-sap ((from string) (base octets))
    (%copy-plain from (sb-sys:sap+ base start) (length string)))
  (+ start (length string)))

(defmacro put-utf8 (code put)
  "Call PUT, a macro or function of one octet, for each octet of the UTF-8 of CODE, a variable; a
surrogate counts as U+FFFD."
  `(flet ((tail (shift) (logior #x80 (ldb (byte 6 shift) ,code))))
     (declare (inline tail))
     (when (<= #xD800 ,code #xDFFF) (setf ,code #xFFFD))
     (cond ((< ,code #x80) (,put ,code))
           ((< ,code #x800)
            (,put (logior #xC0 (ash ,code -6)))
            (,put (tail 0)))
           ((< ,code #x10000)
            (,put (logior #xE0 (ash ,code -12)))
            (,put (tail 6))
            (,put (tail 0)))
           (t
            (,put (logior #xF0 (ash ,code -18)))
            (,put (tail 12))
            (,put (tail 6))
            (,put (tail 0))))))

(define-leaf (%narrow-string :inline t)
    ((string wide-string) (octets octets) (start index))
    boolean
  "If all characters of STRING are ASCII, put them into OCTETS, beginning at START, where there must
be room for one octet each, and return true."
  (let ((count (length string)))
    (with-sap ((from string) (base octets))
      (if (and (<= 16 count) (avx2-p))
          (zerop (%narrow-sixteens from (sb-sys:sap+ base start) count))
          (dotimes (i count t)
            (let ((code (char-code (schar string i))))
              (unless (< code 128) (return nil))
              (setf (sb-sys:sap-ref-8 base (+ start i)) code)))))))

(defconstant +no-pair+ (pair-of #x10000)
  "The value that represents a pair beyond the end of a string. It is a pair of characters that are
not encoded together.")

(define-leaf (%encode-run :inline t)
    ((string wide-string) (from index) (octets octets) (start index))
    (values index index)
  "Put characters of STRING from FROM into OCTETS from START until %ENCODE-EIGHTS stops; return the
positions reached in STRING and OCTETS."
  (with-sap ((chars string) (base octets) (layouts **narrow-layouts**))
    (multiple-value-bind (done here)
        (if (avx2-p)
            (%encode-eights (sb-sys:sap+ chars (* 4 from)) (- (length string) from)
                            (sb-sys:sap+ base start) (- (length octets) start) layouts)
            (values 0 0))
      (declare (type index done here))
      (values (+ from done) (+ start here)))))

(define-leaf %encode-wide ((string wide-string) (from index) (end index) (octets octets)
                           (start index))
    (values index index)
  "Put the characters of STRING from FROM to END into OCTETS from START while OCTETS has four octets
left; return the positions reached in STRING and OCTETS. Two characters are put at once if both are
ASCII or both take two octets."
  (let ((at start) (i from) (last (1- end)) (limit (- (length octets) 4)))
    (declare (type index at i) (type fixnum last limit))
    (with-sap ((chars string) (base octets))
      (macrolet ((put (octet)
                   `(setf (sb-sys:sap-ref-8 base at) ,octet
                          at (+ at 1)))
                 (joined (pair bits)    ; the low BITS of the two halves, side by side
                   `(ldb (byte ,(* 2 bits) 0) (logior ,pair (ash ,pair ,(- bits 32))))))
        (loop while (and (<= i last) (<= at limit))
              do (let ((pair (if (< i last) (sb-sys:sap-ref-64 chars (* 4 i)) +no-pair+)))
                   (declare (type (unsigned-byte 64) pair))
                   (cond ((not (logtest +wide-bits+ pair))
                          (setf (sb-sys:sap-ref-16 base at) (joined pair 8))
                          (incf at 2)
                          (incf i 2))
                         ((and (not (logtest (pair-of #xFFFFF800) pair))
                               (= (pair-of #x80000000) ; both codes are #x80 at least
                                  (logand (pair-of #x80000000)
                                          (ldb (byte 64 0) (+ pair (pair-of #x7FFFFF80))))))
                          (setf (sb-sys:sap-ref-32 base at)
                                (let ((both (logior (logand (ash pair -6) (pair-of #x1F))
                                                    (ash (logand pair (pair-of #x3F)) 8)
                                                    (pair-of #x80C0))))
                                  (declare (type (unsigned-byte 64) both))
                                  (joined both 16)))
                          (incf at 4)
                          (incf i 2))
                         (t
                          (let ((code (char-code (schar string i))))
                            (declare (type (unsigned-byte 21) code))
                            (put-utf8 code put)
                            (incf i))))))))
    (values i at)))

(define-hot encode-wide-utf8 ((string wide-string) (octets octets) (start index)) index
  "Do what ENCODE-UTF8 does, where OCTETS must have room for one octet for each character of
STRING."
  (let ((count (length string)) (i 0) (at start))
    (declare (type index count i at))
    (loop
      (multiple-value-setq (i at) (%encode-run string i octets at))
      (when (= i count) (return))
      (let ((end (if (avx2-p) (min count (+ i 16)) count))) ; then kernels may continue
        (multiple-value-setq (i at) (%encode-wide string i end octets at))
        (when (or (= i count) (< i end)) (return))))
    (flet ((put (octet)
             (setf (aref octets at) octet)
             (incf at)))
      (loop while (< i count)
            do (let ((code (char-code (schar string i))))
                 (declare (type (unsigned-byte 21) code))
                 (put-utf8 code put)
                 (incf i))))
    at))

(define-hot encode-utf8 ((string string) (octets octets) (start index)) index
  "Write STRING as UTF-8 into OCTETS beginning at START; return the position after the last octet. A
lone surrogate is written as the replacement character U+FFFD. Signal an error if OCTETS have no
room for it."
  (typecase string
    ((or simple-base-string wide-string)
     (unless (<= (+ start (length string)) (length octets))
       (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; at worst a bignum
         (fail-bounds octets start (+ start (length string)))))
     (if (typep string 'simple-base-string)
         (%copy-base-string string octets start)
         (encode-wide-utf8 string octets start)))
    (t (encode-utf8 (coerce string 'wide-string) octets start))))

;;; From octets to strings

(define-leaf (%wide-soon-p :inline t) ((octets octets) (start index) (end index)) boolean
  "True if OCTETS have sixteen octets from START to END, and not all of these are ASCII."
  (and (<= (+ start 16) end)
       (with-sap ((base octets))
         (logtest +high-bits+ (logior (sb-sys:sap-ref-64 base start)
                                      (sb-sys:sap-ref-64 base (+ start 8)))))))

(define-leaf (%ascii-string :inline t) ((octets octets) (start index) (end index))
    (or null simple-base-string)
  "Return the octets START to END as a fresh string, or nil if any of them is not ASCII."
  (if (%wide-soon-p octets start end)
      nil
      (let ((string (make-string (- end start) :element-type 'base-char)))
        (with-sap ((base octets) (to string))
          (if (%copy-plain (sb-sys:sap+ base start) to (- end start)) string nil)))))

(define-hot ascii-string ((octets octets) (start index) (end index)) (or null simple-base-string)
  "Return the octets START to END as a fresh base string, or nil if any of them is not ASCII."
  (unless (<= start end (length octets)) (fail-bounds octets start end))
  (%ascii-string octets start end))

(define-hot decode-utf8 ((octets octets) (start index) (end index)) simple-string
  "Return the string whose UTF-8 is the octets START to END. Signal INVALID-UTF8 for overlong forms,
surrogates, values above U+10FFFF and truncated sequences."
  (or (ascii-string octets start end)
      (decode-wide-utf8 octets start end)))

(define-leaf %count-characters ((octets octets) (start index) (end index)) index
  "The number of octets from START to END that begin a character: those without the form 10xxxxxx."
  (let ((count 0) (at start))
    (declare (type index count at))
    (with-sap ((base octets))
      (when (avx2-p)
        (multiple-value-bind (starts here)
            (%count-starts (sb-sys:sap+ base start) (logandc2 (- end start) 15))
          (declare (type index starts here))
          (setf count starts
                at (+ start here))))
      (loop while (<= (+ at 8) end)
            do (let ((word (sb-sys:sap-ref-64 base at)))
                 (incf count (- 8 (logcount (logand (ash word -7) (lognot (ash word -6))
                                                    #x0101010101010101))))
                 (incf at 8))))
    (loop while (< at end)
          do (unless (= #x80 (logand #xC0 (aref octets at))) (incf count))
             (incf at))
    count))

(define-leaf %decode-wide ((octets octets) (start index) (end index) (string wide-string))
    (or null index)
  "Decode the octets START to END into STRING, which has the length given by %COUNT-CHARACTERS.
Return nil, or the position of the first octet that is not UTF-8. Each round either stores a
character for each octet that begins a character, or ends the decoding."
  (let ((at start) (to 0) (again start)) ; AGAIN: where to try lanes next
    (declare (type index at to again))
    (with-sap ((base octets) (chars string) (layouts **widen-layouts**))
      (macrolet ((tail (offset)
                   ;; the low bits of a continuation octet
                   `(let ((octet (if (< (+ at ,offset) end) (aref octets (+ at ,offset)) 0)))
                      (unless (= #x80 (logand #xC0 octet)) (return at))
                      (logand #x3F octet)))
                 (put (code length)
                   `(setf (schar string to) (code-char ,code)
                          to (+ to 1)
                          at (+ at ,length)))
                 (put-pair (offset pair)
                   `(setf (sb-sys:sap-ref-64 chars (* 4 (+ to ,offset))) ,pair))
                 (take-eight ()           ; true if the next eight octets are ASCII
                   `(let ((word (sb-sys:sap-ref-64 base at)))
                      (unless (logtest +high-bits+ word)
                        ,@(loop for i from 0 below 8 by 2
                                collect `(put-pair ,i (logior (ldb (byte 8 ,(* 8 i)) word)
                                                              (ash (ldb (byte 8 ,(* 8 (1+ i))) word)
                                                                   32))))
                        (setf to (+ to 8)
                              at (+ at 8))
                        t)))
                 (take-two ()             ; true if the next four octets are two characters
                   `(let ((word (sb-sys:sap-ref-32 base at)))
                      (when (and (= #x80C080C0 (logand word #xC0E0C0E0))
                                 (logtest #x1E0000 word))
                        (put-pair 0 (logior (ash (ldb (byte 5 0) word) 6)
                                            (ldb (byte 6 8) word)
                                            (ash (ldb (byte 5 16) word) 38)
                                            (ash (ldb (byte 6 24) word) 32)))
                        (setf to (+ to 2)
                              at (+ at 4))
                        t))))
        (loop
          (when (and (<= again at) (avx2-p))
            (multiple-value-bind (done here)
                (%decode-eights (sb-sys:sap+ base at) (- end at) (sb-sys:sap+ chars (* 4 to))
                                (- (length string) to) layouts)
              (declare (type index done here))
              (setf at (+ at here)
                    to (+ to done)
                    again (+ at (if (zerop here) 64 8)))))
          (unless (< at end) (return nil))
          (let ((lead (aref octets at)))
            (cond ((< lead #x80)
                   (unless (and (<= (+ at 8) end) (take-eight)) (put lead 1)))
                  ((< lead #xC2) (return at))
                  ((and (< lead #xE0) (<= (+ at 4) end) (take-two)))
                  ((< lead #xE0) (put (logior (ash (logand lead #x1F) 6) (tail 1)) 2))
                  ((< lead #xF0)
                   (let ((code (logior (ash (logand lead #x0F) 12) (ash (tail 1) 6) (tail 2))))
                     (when (or (< code #x800) (<= #xD800 code #xDFFF)) (return at))
                     (put code 3)))
                  ((< lead #xF5)
                   (let ((code (logior (ash (logand lead #x07) 18) (ash (tail 1) 12)
                                       (ash (tail 2) 6) (tail 3))))
                     (unless (<= #x10000 code #x10FFFF) (return at))
                     (put code 4)))
                  (t (return at)))))))))

(define-hot decode-wide-utf8 ((octets octets) (start index) (end index)) wide-string
  "Do what DECODE-UTF8 does, for octets that are not all ASCII. The value is always a string of
32-bit characters."
  (unless (<= start end (length octets)) (fail-bounds octets start end))
  (let* ((string (make-string (%count-characters octets start end)))
         (wrong (%decode-wide octets start end string)))
    (when wrong (error 'invalid-utf8 :position (- wrong start)))
    string))

(defun string-octets (string)
  "Return the UTF-8 of STRING as a fresh octet vector."
  (let ((octets (make-octets (utf8-length string))))
    (encode-utf8 string octets 0)
    octets))

(defun octets-string (octets &key (start 0) (end (length octets)))
  "Return the string whose UTF-8 is OCTETS from START to END; see DECODE-UTF8."
  (decode-utf8 octets start end))

(define-hot octets-ascii ((octets octets) (start index) (end index)) simple-base-string
  "Return the octets START to END, which must all be ASCII, as a fresh base string."
  (or (ascii-string octets start end)
      (misuse "The octets ~D to ~D are not all ASCII." start end)))

(define-hot latin-octets ((string simple-string)) octets
  "As ASCII-OCTETS."
  (let ((octets (make-octets (length string))))
    (with-text-type (string)
      (dotimes (i (length string)) (setf (aref octets i) (char-code (schar string i)))))
    octets))

(defun ascii-octets (string)
  "Return the octets of STRING. The codes of all its characters must be below 256 (ISO 8859-1)."
  (latin-octets (coerce string 'simple-string)))
