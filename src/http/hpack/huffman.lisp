;;;; The Huffman code of RFC 7541 section 5.2 and appendix B.
;;;;
;;;; The code is canonical: codes of one length are consecutive numbers in the order of their
;;;; symbols, and the first code of a length follows from the shorter codes. So only the lengths are
;;;; declared; the codes, the encoder's table and the decoder's steps are computed from them at
;;;; compile time.
;;;;
;;;; The decoder works in steps of 8 bits, with step tables of 256 entries. If a code ends in the
;;;; next 8 bits, their entry has its symbol and the number of the bits that belong to it; if the
;;;; code is longer, the entry names the table for the 8 bits that follow. Most text needs one step
;;;; per symbol; all tables together take a few kilobytes. A string is padded with fewer than 8
;;;; bits, all ones, as EOS begins; EOS itself is an error.

(in-package #:clgrpc.hpack)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +eos+ 256 "The symbol after the 256 octets, which means the end of the string and is
sent only as padding.")

  (defun code-lengths ()
    "The length in bits of the code of each symbol, 0 to 256 (appendix B)."
    #(13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28
      28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
       6 10 10 12 13  6  8 11 10 10  8 11  8  6  6  6
       5  5  5  6  6  6  6  6  6  6  7  8 15  6 12 10
      13  6  7  7  7  7  7  7  7  7  7  7  7  7  7  7
       7  7  7  7  7  7  7  7  8  7  8 13 19 13 14  6
      15  5  6  5  6  5  6  6  6  5  7  7  6  6  6  5
       6  7  6  5  5  6  7  7  7  7  7 15 11 14 13 28
      20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23
      24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
      22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23
      21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
      26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25
      19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
      20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23
      26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
      30))

  (defun canonical-codes (lengths)
    "Return the vector of the canonical codes of the symbols whose codes have LENGTHS."
    (let ((codes (make-array (length lengths)))
          (code 0))
      (loop for bits from 1 to (reduce #'max lengths)
            do (setf code (ash code 1))
               (loop for symbol from 0 below (length lengths)
                     when (= bits (aref lengths symbol))
                       do (setf (aref codes symbol) code)
                          (incf code)))
      codes))

  (defun step-entry (symbol bits)
    (logior (ash symbol 4) bits))

  (defun build-steps (lengths codes)
    "Return the step tables for a complete code of at least 256 symbols. The first table is at 0."
    (let ((tables (list (make-array 256 :initial-element nil)))
          (numbers (make-hash-table :test 'equal)))
      (flet ((table-after (prefix-bits prefix)
               ;; the number of the table for codes that begin with these bits
               (let ((key (cons prefix-bits prefix)))
                 (or (gethash key numbers)
                     (setf tables (append tables (list (make-array 256 :initial-element nil)))
                           (gethash key numbers) (1- (length tables)))))))
        (loop for symbol from 0 below (length lengths)
              for bits = (aref lengths symbol)
              for code = (aref codes symbol)
              do (loop with number = 0
                       for seen from 8 below bits by 8
                       for next = (table-after seen (ash code (- seen bits)))
                       do (setf (aref (nth number tables) (ldb (byte 8 (- bits seen)) code))
                                (logior #x8000 next)
                                number next)
                       finally
                          (let* ((rest (- bits (- seen 8)))
                                 (first (ash (ldb (byte rest 0) code) (- 8 rest))))
                            (fill (nth number tables) (step-entry symbol rest)
                                  :start first :end (+ first (ash 1 (- 8 rest))))))))
      (coerce (apply #'concatenate 'vector tables) '(simple-array (unsigned-byte 16) (*))))))

(deftype huffman-steps () '(simple-array (unsigned-byte 16) (*)))
(deftype huffman-codes () '(simple-array (unsigned-byte 64) (257)))

(macrolet ((steps () (build-steps (code-lengths) (canonical-codes (code-lengths))))
           (codes ()
             (map 'huffman-codes (lambda (code bits) (logior (ash code 8) bits))
                  (canonical-codes (code-lengths)) (code-lengths))))
  (declaim (type huffman-steps **huffman-steps**)
           (type huffman-codes **huffman-codes**))
  (define-load-time-global **huffman-steps** (steps)
    "The step tables. An entry is #x8000 + the number of the next table, or symbol * 16 + the number
of bits of this step that belong to the symbol's code.")
  (define-load-time-global **huffman-codes** (codes)
    "A vector with, for each symbol, its code * 256 + the length of the code in bits."))

;;; Decoding

(define-hot decode-huffman-into ((octets octets) (start index) (end index) (to octets)) index
  "Decode the Huffman string from START to END of OCTETS into TO, which must have room for 8/5 as
many octets. Return the number of decoded octets."
  (let ((steps **huffman-steps**) (table 0) (window 0) (bits 0) (at start) (count 0))
    (declare (type (unsigned-byte 16) table) (type (unsigned-byte 40) window)
             (type (integer 0 39) bits) (type index at count))
    ;; WINDOW's low BITS bits are not decoded yet; the bits before those lead to TABLE, the step
    ;; table. A refill takes four octets, so that its branch is predictable.
    (flet ((step-at (next-bits)
             (aref steps (logior table (logand #xFF next-bits))))
           (end-code (step)
             (when (= (ash step -4) +eos+) (bad-block (1- at) "EOS in a Huffman string"))
             (setf (aref to count) (logand #xFF (ash step -4))
                   table 0)
             (incf count)
             (decf bits (logand step #xF))))
      (declare (inline step-at end-code))
      (loop
        (when (< bits 8)
          (cond ((<= (+ at 4) end)
                 (setf window (logior (ash (logand window #xFF) 32) (u32be octets at)))
                 (incf at 4)
                 (incf bits 32))
                ((< at end)
                 (setf window (logior (ash (logand window #xFF) 8) (aref octets at)))
                 (incf at)
                 (incf bits 8))
                (t
                 (return))))
        (let ((step (step-at (ash window (- (logand 31 (- bits 8)))))))
          (cond ((logtest step #x8000)
                 (setf table (ash (logand step #x7F) 8))
                 (decf bits 8))
                (t (end-code step)))))
      ;; Fewer than 8 bits are left, here filled up with ones: codes may end in them; the rest is
      ;; padding.
      (loop while (plusp bits)
            do (let ((step (step-at (logior (ash window (- 8 bits)) (1- (ash 1 (- 8 bits)))))))
                 (when (or (logtest step #x8000) (< bits (logand step #xF))) (return))
                 (end-code step)))
      (unless (and (zerop table) (= (ldb (byte bits 0) window) (1- (ash 1 bits))))
        (bad-block (1- at) "a Huffman string whose padding is not at most 7 bits, all ones"))
      count)))

(define-hot decode-huffman ((octets octets) (start index) (end index)) octets
  "Return the octets encoded by the Huffman string in START to END of OCTETS."
  (flet ((decode (scratch)
           (subseq-octets scratch 0 (decode-huffman-into octets start end scratch))))
    (declare (inline decode))
    ;; The shortest code has 5 bits. To decode a short string allocates only the result.
    (if (<= (- end start) 160)
        (let ((scratch (make-array 256 :element-type 'octet)))
          (declare (dynamic-extent scratch))
          (decode scratch))
        (decode (make-array (ceiling (* 8 (- end start)) 5) :element-type 'octet)))))

;;; Encoding

(define-hot huffman-octets ((octets octets)) index
  "Return the number of octets that OCTETS would take as a Huffman string."
  (let ((codes **huffman-codes**) (bits 0))
    (declare (type index bits))
    (loop for octet across octets
          do (incf bits (logand #xFF (aref codes octet))))
    (ash (+ bits 7) -3)))

(define-hot encode-huffman ((octets octets) (to octets) (start index)) index
  "Write OCTETS as a Huffman string into TO, beginning at START, where TO must have room for
(HUFFMAN-OCTETS OCTETS) octets. Return the position after the string."
  (let ((codes **huffman-codes**) (window 0) (bits 0) (at start))
    (declare (type (unsigned-byte 62) window) (type (integer 0 61) bits) (type index at))
    ;; WINDOW's low BITS bits are not yet written; between two symbols fewer than 32 bits are left.
    (loop for octet across octets
          for code of-type (unsigned-byte 62) = (aref codes octet)
          for length = (logand #x1F code)
          do (setf window (logior (ash (logand window #x7FFFFFFF) length) (ldb (byte 30 8) code)))
             (incf bits length)
             (when (<= 32 bits)
               (decf bits 32)
               (setf (u32be to at) (ldb (byte 32 0) (ash window (- bits))))
               (incf at 4)))
    (loop while (<= 8 bits)
          do (decf bits 8)
             (setf (aref to at) (ldb (byte 8 0) (ash window (- bits))))
             (incf at))
    (when (plusp bits)
      (setf (aref to at) (logand #xFF (logior (ash window (- 8 bits)) (ash #xFF (- bits)))))
      (incf at))
    at))
