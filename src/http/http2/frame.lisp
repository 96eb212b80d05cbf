;;;; Frame layouts (RFC 9113 sections 4.1 and 6), each declared once and compiled into its reader
;;;; and its writer; a frame never exists as an object. A layout is a row of big-endian fields of 8,
;;;; 16, 24, 32 or 64 bits; a field of 31 bits is a word whose top bit is reserved: it is written as
;;;; 0 and ignored when read.
;;;;
;;;; Accessors take the octets and the position where the layout begins; the caller has checked that
;;;; the whole frame is there. Writers take the octets, the position, and the fields in order; they
;;;; return the position after their output. FRAME-HEADER-ERROR checks a frame's header alone.

(in-package #:clgrpc.http2)

(deftype stream-id ()
  "The identifier of a stream; 0 means the connection."
  '(unsigned-byte 31))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun field-octets (bits)
    (ceiling bits 8))

  (defun layout-octets (fields)
    (loop for (nil bits) in fields sum (field-octets bits)))

  (defun field-place (bits octets at)
    (ecase bits
      (8 `(aref ,octets ,at))
      (16 `(u16be ,octets ,at))
      (24 `(u24be ,octets ,at))
      ((31 32) `(u32be ,octets ,at))
      (64 `(u64be ,octets ,at))))

  (defun layout-accessors (layout field bits offset)
    (let ((name (intern (format nil "~A-~A" layout field)))
          (place (field-place bits 'octets `(+ at ,offset))))
      `((define-hot (,name :inline t) ((octets octets) (at index)) (unsigned-byte ,bits)
          (logand ,(1- (ash 1 bits)) ,place))
        (declaim (inline (setf ,name)))
        (defun (setf ,name) (value octets at)
          (declare (type (unsigned-byte ,bits) value) (type octets octets) (type index at))
          (setf ,place value)))))

  (defun layout-stores (fields)
    "Return forms that store the variables that have the names of FIELDS into OCTETS, beginning at
AT."
    (loop with offset = 0
          for (field bits) in fields
          collect `(setf ,(field-place bits 'octets `(+ at ,offset)) ,field)
          do (incf offset (field-octets bits)))))

(defmacro define-layout (name &body fields)
  "Define +NAME-OCTETS+ and, for each of FIELDS, of the form (name bits), an accessor NAME-FIELD
that can be used with SETF."
  `(progn
     (defconstant ,(intern (format nil "+~A-OCTETS+" name)) ,(layout-octets fields))
     ,@(loop with offset = 0
             for (field bits) in fields
             append (layout-accessors name field bits offset)
             do (incf offset (field-octets bits)))))

(define-layout frame-header
  (length 24) (type 8) (flags 8) (stream-id 31))

;;; Every frame has this header, so it is read and written as a whole with one check of the bounds.

(define-leaf (%read-frame-header :inline t) ((octets octets) (at index))
    (values (unsigned-byte 24) octet octet stream-id)
  (flet ((part (offset shift) (ash (aref octets (+ at offset)) shift)))
    (declare (inline part))
    (values (logior (part 0 16) (part 1 8) (part 2 0))
            (part 3 0)
            (part 4 0)
            (logior (ash (logand #x7F (part 5 0)) 24) (part 6 16) (part 7 8) (part 8 0)))))

(define-leaf (%write-frame-header :inline t)
    ((octets octets) (at index) (length (unsigned-byte 24)) (type octet) (flags octet)
     (stream-id stream-id))
    null
  (setf (aref octets at) (ash length -16)
        (aref octets (+ at 1)) (logand #xFF (ash length -8))
        (aref octets (+ at 2)) (logand #xFF length)
        (aref octets (+ at 3)) type
        (aref octets (+ at 4)) flags
        (aref octets (+ at 5)) (ash stream-id -24)
        (aref octets (+ at 6)) (logand #xFF (ash stream-id -16))
        (aref octets (+ at 7)) (logand #xFF (ash stream-id -8))
        (aref octets (+ at 8)) (logand #xFF stream-id))
  nil)

(define-hot (read-frame-header :inline t) ((octets octets) (at index))
    (values (unsigned-byte 24) octet octet stream-id)
  "Return length, type, flags and stream identifier of the frame header at AT."
  (assert (<= (+ at +frame-header-octets+) (length octets)))
  (%read-frame-header octets at))

(define-hot (write-frame-header :inline t)
    ((octets octets) (at index) (length (unsigned-byte 24)) (type octet) (flags octet)
     (stream-id stream-id))
    index
  "Write a frame header; return the position of the payload."
  (assert (<= (+ at +frame-header-octets+) (length octets)))
  (%write-frame-header octets at length type flags stream-id)
  (+ at +frame-header-octets+))

(defmacro define-frame-writer (name fields)
  `(define-hot ,(intern (format nil "WRITE-~A" name))
       ((octets octets) (at index) (flags octet) (stream-id stream-id)
        ,@(loop for (field bits) in fields collect `(,field (unsigned-byte ,bits))))
       index
     (let ((at (write-frame-header octets at ,(layout-octets fields)
                                   ,(constant-name (format nil "FRAME-~A" name)) flags stream-id)))
       ,@(layout-stores fields)
       (+ at ,(layout-octets fields)))))

(defmacro define-frames (&body rows)
  "Define from ROWS of the form (name type scope size . fields): the constant +FRAME-NAME+, the
layout of FIELDS with its readers and WRITE-NAME, and FRAME-HEADER-ERROR. SCOPE, :STREAM,
:CONNECTION or :ANY, gives the allowed stream identifiers. SIZE, the allowed lengths, is T (any), (=
n), (>= n) or (multiple n)."
  `(progn
     ,@(loop for (name type nil nil . fields) in rows
             collect `(defconstant ,(constant-name (format nil "FRAME-~A" name)) ,type)
             when fields
               collect `(define-layout ,name ,@fields)
               and collect `(define-frame-writer ,name ,fields))
     (sb-ext:defglobal **frame-names** (vector ,@(mapcar (lambda (row) (string (first row))) rows)))
     (define-hot (frame-header-error :inline t)
         ((type octet) (length (unsigned-byte 24)) (stream-id stream-id)) error-code
       "The code of the connection error that a frame header alone causes, or 0."
       (case type
         ,@(loop for (nil type scope size) in rows
                 collect `(,type (cond ,@(ecase scope
                                           (:stream '(((zerop stream-id) +protocol-error+)))
                                           (:connection '(((plusp stream-id) +protocol-error+)))
                                           (:any '()))
                                       ,@(unless (eq size t)
                                           (destructuring-bind (kind n) size
                                             `((,(ecase kind
                                                   (= `(/= length ,n))
                                                   (>= `(< length ,n))
                                                   (multiple `(plusp (mod length ,n))))
                                                +frame-size-error+))))
                                       (t 0))))
         (t 0)))))

;;; A PRIORITY of the wrong size is only a stream error (6.3), so its row allows any size.
(define-frames
  (data          0 :stream     t)
  (headers       1 :stream     t)
  (priority      2 :stream     t            (dependency 31) (weight 8))
  (rst-stream    3 :stream     (= 4)        (error-code 32))
  (settings      4 :connection (multiple 6))
  (push-promise  5 :stream     t)
  (ping          6 :connection (= 8)        (payload 64))
  (goaway        7 :connection (>= 8)       (last-stream-id 31) (error-code 32))
  (window-update 8 :any        (= 4)        (increment 31))
  (continuation  9 :stream     t))

(define-layout setting
  (name 16) (value 32))

(defconstant +flag-end-stream+ #x1)
(defconstant +flag-ack+ #x1)
(defconstant +flag-end-headers+ #x4)
(defconstant +flag-padded+ #x8)
(defconstant +flag-priority+ #x20)

(defun frame-name (type)
  "The name of frame TYPE as the RFC spells it, for texts."
  (if (< type (length **frame-names**))
      (aref **frame-names** type)
      (format nil "frame of type ~D" type)))
