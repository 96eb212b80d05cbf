;;;; Octets: the one representation of bytes, big- and little-endian accessors with one meaning
;;;; each, and BUFFER, a growable run of octets that is filled at the end and consumed at the start.
;;;;
;;;; Invariant of a buffer: 0 <= start <= end <= (length octets). Code that has asked for room must
;;;; read the octet vector from BUFFER-OCTETS again, since growing replaces it.

(in-package #:clgrpc.base)

(deftype octet ()
  "An integer from 0 to 255."
  '(unsigned-byte 8))

(deftype octets ()
  "A vector of octets. Bytes are always represented in this way."
  '(simple-array (unsigned-byte 8) (*)))

(deftype index ()
  "A position in octets, small enough that the sum of a few positions is a fixnum."
  '(unsigned-byte 48))

(declaim (inline make-octets))
(defun make-octets (length)
  "Return a fresh octet vector of LENGTH octets, all zero."
  (make-array length :element-type 'octet :initial-element 0))

(defun octets-of (&rest octets)
  "Return an octet vector of the arguments, each 0 to 255."
  (coerce octets 'octets))

(defmacro with-sap (((sap vector) &rest more) &body body)
  "Run BODY with SAP bound to the address of VECTOR's data, and likewise for the pairs in MORE,
while all these vectors are pinned."
  (let ((bindings (cons (list sap vector) more)))
    `(sb-sys:with-pinned-objects ,(mapcar #'second bindings)
       (let ,(loop for (sap vector) in bindings collect `(,sap (sb-sys:vector-sap ,vector)))
         ,@body))))

(define-hot (prefetch-behind :inline t) (object (count index)) null
  "Prefetch the cache line COUNT octets after the beginning of OBJECT, without waiting for it. That
place may be beyond the end of OBJECT, in any memory."
  (%prefetch (+ (sb-kernel:get-lisp-obj-address object) count))
  nil)

(defmacro %move-memory (from to count)
  "Copy COUNT octets from the address FROM to the address TO; they may overlap."
  ;; not SB-KERNEL:%BYTE-BLT, which on arm64 is a function, for which addresses become objects
  `(sb-alien:alien-funcall
    (sb-alien:extern-alien "memmove" (function sb-alien:void sb-sys:system-area-pointer
                                               sb-sys:system-area-pointer sb-alien:unsigned-long))
    ,to ,from ,count))

(defmacro %copy-memory (from to count)
  "Copy COUNT octets from the address FROM to the address TO; they do not overlap."
  `(let ((from ,from) (to ,to) (count ,count))
     (declare (type index count))
     (if (and (<= 64 count) (avx2-p))
         (%copy-256 from to count)
         (%move-memory from to count))))

(defconstant +few-octets+ 64 "If fewer octets than this are copied, they are copied by words.")

(define-leaf (%copy-few :inline t) ((from octets) (start index) (to octets) (at index)
                                    (count index))
    null
  "Do what %COPY-OCTETS does, for few octets, which are copied by words. The last two words may
overlap."
  (if (< count 8)
      (loop for i of-type index below count
            do (setf (aref to (+ at i)) (aref from (+ start i))))
      (with-sap ((source from) (target to))
        (let ((source (sb-sys:sap+ source start))
              (target (sb-sys:sap+ target at))
              (last (- count 8)))
          (declare (type index last))
          (loop for i of-type index below last by 8
                do (setf (sb-sys:sap-ref-64 target i) (sb-sys:sap-ref-64 source i)))
          (setf (sb-sys:sap-ref-64 target last) (sb-sys:sap-ref-64 source last)))))
  nil)

(define-leaf %copy-octets ((from octets) (start index) (end index) (to octets) (at index)) index
  "Do what COPY-OCTETS does, which has checked the ranges. REPLACE would take four times as long as
memmove takes for many octets, and as a copy by words takes for few octets."
  (let ((count (- end start)))
    (declare (type index count))
    (cond ((eq from to)
           (with-sap ((base from))
             (%move-memory (sb-sys:sap+ base start) (sb-sys:sap+ base at) count)))
          ((< count +few-octets+) (%copy-few from start to at count))
          (t
           (with-sap ((source from) (target to))
             (%copy-memory (sb-sys:sap+ source start) (sb-sys:sap+ target at) count))))
    (+ at count)))

(define-hot copy-octets ((from octets) (start index) (end index) (to octets) (at index)) index
  "Copy the octets START to END of FROM into TO beginning at AT; return the position after them.
Signal an error if either range is out of bounds."
  (unless (and (<= start end (length from)) (<= (- end start) (- (length to) at)))
    (error 'simple-type-error :datum (list start end at) :expected-type '(list index index index)
                              :format-control "Octets ~D to ~D of ~D do not fit at ~D of ~D."
                              :format-arguments (list start end (length from) at (length to))))
  (%copy-octets from start end to at))

(defun fail-bounds (octets start end)
  (error 'simple-type-error :datum start :expected-type `(integer 0 ,(length octets))
                            :format-control "The range from ~D to ~D is not within the ~D octets ~
                                             of the vector."
                            :format-arguments (list start end (length octets))))

(define-hot subseq-octets ((octets octets) (start index) (end index)) octets
  "Return a fresh vector of the octets START to END."
  (unless (<= start end (length octets)) (fail-bounds octets start end))
  (let ((count (- end start)))
    (if (< count +few-octets+)
        (let ((copy (make-array count :element-type 'octet)))
          (%copy-few octets start copy 0 count)
          copy)
        (let ((copy (make-raw-vector count octet)))
          (%copy-octets octets start end copy 0)
          copy))))

(define-hot shorten-octets ((octets octets) (start index) (end index)) octets
  "Shorten OCTETS to the part from START to END. The program must have no other reference to
OCTETS."
  (copy-octets octets start end octets 0)
  (sb-kernel:%shrink-vector octets (- end start)))

(define-leaf %octets-equal ((a octets) (b octets) (start index)) boolean
  "True if A equals the part of B of the same length that begins at START. The octets are compared
by words; the last two words may overlap."
  (let ((count (length a)))
    (if (< count 8)
        (loop for i of-type index below count
              always (= (aref a i) (aref b (+ start i))))
        (with-sap ((one a) (other b))
          (let ((other (sb-sys:sap+ other start))
                (last (- count 8)))
            (declare (type index last))
            (and (loop for i of-type index below last by 8
                       always (= (sb-sys:sap-ref-64 one i) (sb-sys:sap-ref-64 other i)))
                 (= (sb-sys:sap-ref-64 one last) (sb-sys:sap-ref-64 other last))))))))

(define-hot octets-equal ((a octets) (b octets)
                          &key (start index 0) (end (or null index) nil))
    boolean
  "True if A equals the octets START to END (default: all) of B."
  (let ((end (or end (length b))))
    (and (= (length a) (- end start))
         (<= end (length b))
         (%octets-equal a b start))))

(macrolet
    ((define-accessor (name octet-count order)
       (let ((leaf (intern (format nil "%~A" name)))
             (set-leaf (intern (format nil "%SET-~A" name)))
             (bits (* 8 octet-count)))
         (flet ((shift (i) (* 8 (if (eq order :big) (- octet-count 1 i) i))))
           `(progn
              (define-leaf (,leaf :inline t) ((octets octets) (index index)) (unsigned-byte ,bits)
                (logior ,@(loop for i below octet-count
                                collect `(ash (aref octets (+ index ,i)) ,(shift i)))))
              (define-leaf (,set-leaf :inline t)
                  ((value (unsigned-byte ,bits)) (octets octets) (index index))
                  (unsigned-byte ,bits)
                ,@(loop for i below octet-count
                        collect `(setf (aref octets (+ index ,i)) (ldb (byte 8 ,(shift i)) value)))
                value)
              (declaim (inline ,name (setf ,name)))
              (defun ,name (octets index)
                ,(format nil "The ~D-bit unsigned integer at INDEX of OCTETS, ~(~A~)-endian. ~
                              SETFable."
                         bits order)
                (declare (type octets octets) (type index index))
                (assert-room octets index ,octet-count)
                (,leaf octets index))
              (defun (setf ,name) (value octets index)
                (declare (type octets octets) (type index index) (type (unsigned-byte ,bits) value))
                (assert-room octets index ,octet-count)
                (,set-leaf value octets index)))))))
  (declaim (inline assert-room))
  (defun assert-room (octets index count)
    (declare (type octets octets) (type index index count))
    (unless (<= (+ index count) (length octets))
      (error 'simple-type-error :datum index :expected-type `(integer 0 ,(- (length octets) count))
                                :format-control "~D octets at index ~D exceed a vector of ~D."
                                :format-arguments (list count index (length octets)))))
  (define-accessor u16be 2 :big)
  (define-accessor u24be 3 :big)
  (define-accessor u32be 4 :big)
  (define-accessor u64be 8 :big)
  (define-accessor u32le 4 :little)
  (define-accessor u64le 8 :little))

;;; Buffers

(declaim (inline %make-buffer buffer-octets buffer-start buffer-end))
(defstruct (buffer (:constructor %make-buffer (octets)) (:copier nil))
  "A sequence of octets that is filled at the end and consumed at the start."
  (octets (make-octets 0) :type octets) ; the vector that holds the run
  (start 0 :type index)                 ; where it begins
  (end 0 :type index))                  ; where it ends
(declaim (sb-ext:freeze-type buffer))

(document-functions
  buffer-octets "The vector of BUFFER's octets, until BUFFER grows. SETF replaces it."
  buffer-start "The start of BUFFER's octets in its vector. SETF changes it."
  buffer-end "The end of BUFFER's octets in its vector. SETF changes it.")

(defun make-buffer (&key (size 4096))
  "Return an empty buffer with room for SIZE octets before it grows."
  (%make-buffer (make-array size :element-type 'octet)))

(define-hot (buffer-fill :inline t) ((buffer buffer)) index
  "The number of octets in BUFFER."
  (- (buffer-end buffer) (buffer-start buffer)))

(defmethod print-object ((buffer buffer) stream)
  (print-unreadable-object (buffer stream :type t :identity t)
    (format stream "~D of ~D octets" (buffer-fill buffer) (length (buffer-octets buffer)))))

(define-hot (buffer-room :inline t) ((buffer buffer)) index
  "The number of octets that fit after the end of BUFFER before it must grow."
  (- (length (buffer-octets buffer)) (buffer-end buffer)))

(define-hot grown-length ((length index) (count index)) index
  "Return the new length for a buffer's vector of LENGTH octets that must hold COUNT octets. It is
at least twice LENGTH."
  (let ((need (max (* 2 length) count)))
    (if (< need 1048576)
        ;; then the vectors of many buffers have the same length
        (ash 1 (integer-length (1- need)))
        need)))

(define-hot grow-buffer ((buffer buffer) (count index)) octets
  (let* ((fill (buffer-fill buffer))
         (old (buffer-octets buffer))
         (new (if (<= (+ fill count) (ash (length old) -1))
                  old                   ; room enough once the octets are moved to the front
                  (make-array (grown-length (length old) (+ fill count)) :element-type 'octet))))
    (copy-octets old (buffer-start buffer) (buffer-end buffer) new 0)
    (setf (buffer-octets buffer) new
          (buffer-start buffer) 0
          (buffer-end buffer) fill)
    new))

(define-hot (ensure-buffer-room :inline t) ((buffer buffer) (count index)) octets
  "Make room for COUNT octets after the end of BUFFER, moving or growing it if necessary. Return
BUFFER's octet vector, in which BUFFER-END is the position at which to write."
  (if (<= count (buffer-room buffer))
      (buffer-octets buffer)
      (grow-buffer buffer count)))

(define-hot append-octets ((buffer buffer) (octets octets) &key (start index 0)
                           (end (or null index) nil))
    null
  "Append the octets START to END (default: all) to BUFFER."
  (let* ((end (or end (length octets)))
         (to (ensure-buffer-room buffer (- end start))))
    (setf (buffer-end buffer) (copy-octets octets start end to (buffer-end buffer)))
    nil))

(define-hot append-octet ((buffer buffer) (octet octet)) null
  "Append one OCTET to BUFFER."
  (setf (aref (ensure-buffer-room buffer 1) (buffer-end buffer)) octet)
  (incf (buffer-end buffer))
  nil)

(define-hot (clear-buffer :inline t) ((buffer buffer)) null
  "Empty BUFFER, which keeps its vector."
  (setf (buffer-start buffer) 0
        (buffer-end buffer) 0)
  nil)
