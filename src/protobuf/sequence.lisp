;;;; Vectors of repeated fields while they are read. The reader keeps a vector that may be too long
;;;; and a count in local variables; FIT-VECTOR cuts it at the end. Room for packed varints and for
;;;; runs of sub-messages or strings is found by looking ahead, so in the usual case nothing is
;;;; copied; otherwise vectors double, so the work stays linear in the input.

(in-package #:clgrpc.protobuf)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun zero-of (element)
    (case element (single-float 0f0) (double-float 0d0) (t 0))))

(define-hot resize-vector ((vector (simple-array * (*))) (count index) (room index))
    (simple-array * (*))
  "Return a vector of ROOM elements, of the type of VECTOR, whose first COUNT are VECTOR's."
  (macrolet ((resize (&rest elements)
               `(etypecase vector
                  ,@(loop for element in elements
                          collect `((simple-array ,element (*))
                                    (let ((new (make-array room :element-type ',element
                                                                :initial-element
                                                                ,(zero-of element))))
                                      (replace new vector :end2 count)
                                      new))))))
    (resize t (signed-byte 32) (unsigned-byte 32) (signed-byte 64) (unsigned-byte 64)
            single-float double-float)))

(define-hot room-for ((count index) (more index)) index
  "How long a vector that holds COUNT elements and is to take MORE should be."
  (if (zerop count) more (max (+ count more) (* 2 count) 4)))

(define-hot fit-vector ((vector (simple-array * (*))) (count index)) (simple-array * (*))
  "Return VECTOR, or a copy that is COUNT long if VECTOR is longer."
  (if (= count (length vector)) vector (resize-vector vector count count)))

(defmacro ensure-room (vector count more type)
  "Make sure that MORE elements fit into VECTOR, a variable of TYPE, after COUNT."
  `(when (> ,more (- (length ,vector) ,count))
     (setf ,vector (truly-the ,type (resize-vector ,vector ,count (room-for ,count ,more))))))

(defmacro append-element (vector count value type)
  "Put VALUE after the COUNT elements of VECTOR."
  `(let ((value ,value))
     (when (= ,count (length ,vector))
       (setf ,vector (truly-the ,type (resize-vector ,vector ,count (room-for ,count 4)))))
     (setf (aref ,vector ,count) value
           ,count (truly-the index (1+ ,count)))))

(define-leaf %count-varints ((octets octets) (start index) (end index)) index
  (let ((count 0) (at start))
    (declare (type index count at))
    (loop while (<= (+ at 8) end)
          do (incf count (- 8 (logcount (logand #x8080808080808080 (%u64-at octets at)))))
             (incf at 8))
    (loop while (< at end)
          do (when (< (aref octets at) 128) (incf count))
             (incf at))
    count))

(define-hot count-run ((octets octets) (at index) (end index) (tag (unsigned-byte 32))) index
  "How many length-delimited fields with TAG follow each other from AT, which is behind the first
TAG. Malformed octets end the run, as do lengths and tags of more than two octets."
  (let ((count 0))
    (declare (type index count))
    (flet ((small ()
             (let ((first (if (< at end) (%octet-at octets at) 255))
                   (second (if (< (1+ at) end) (%octet-at octets (1+ at)) 255)))
               (cond ((< first 128) (step-by 1) first)
                     ((< second 128) (step-by 2) (+ (logand first 127) (ash second 7)))
                     (t (return-from count-run count))))))
      (loop
        (incf count)
        (let ((length (small)))
          (unless (<= length (- end at)) (return count))
          (step-by length)
          (unless (= tag (small)) (return count)))))))

;;; One set of functions for each scalar kind: readers and writers of single values as objects (for
;;; maps), of one element of a repeated field, and of all elements packed. TYPE is the enum type, if
;;; there is one.

(defun kind-function (verb kind)
  "The symbol of the function of this file that does VERB for KIND, such as READ-PACKED-INT32."
  (intern (format nil "~A-~A" verb kind) '#:clgrpc.protobuf))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun kind-vector (scalar)
    `(simple-array ,(scalar-element scalar) (*)))

  (defun element-in (scalar form)
    "What a vector or map holds for FORM, a value as the wire has it."
    (if (eq :enum (scalar-kind scalar)) `(enum-keyword-of (the enum-type type) ,form) form))

  (defun element-out (scalar form)
    (if (eq :enum (scalar-kind scalar))
        `(enum-number-of (the enum-type type) ,form)
        `(truly-the ,(scalar-lisp-type scalar) ,form)))

  (defun single-functions (scalar name)
    (let ((type (scalar-lisp-type scalar)))
      `(,@(unless (member (scalar-kind scalar) '(:string :unchecked-string :bytes))
            `((define-hot ,(funcall name "READ") ((octets octets) (at index) (end index))
                  (values ,type index)
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

  (defun element-functions (scalar name)
    (let ((vector (kind-vector scalar)))
      `((define-hot ,(funcall name "READ-ELEMENT")
            ((octets octets) (at index) (end index) (vector ,vector) (count index)
             (tag (unsigned-byte 32)) (type t))
            (values ,vector index)
          (progn tag type
                 (when (= count (length vector))
                   (ensure-room vector count
                                ,(if (= 2 (scalar-wire scalar)) '(count-run octets at end tag) 4)
                                ,vector))
                 (setf (aref vector count) ,(element-in scalar (scalar-take scalar)))
                 (values vector at)))
        (define-hot ,(funcall name "SIZE-ELEMENTS") ((vector ,vector) (type t)) index
          (let ((size 0))
            (declare (type index size))
            (progn type
                   (dotimes (i (length vector) size)
                     (let ((value ,(element-out scalar '(aref vector i))))
                       (declare (ignorable value))
                       (setf size (truly-the index (+ size ,(scalar-size scalar)))))))))
        (define-hot ,(funcall name "PUT-ELEMENTS")
            ((vector ,vector) (octets octets) (at index) (tag (unsigned-byte 32)) (type t)) index
          (progn type
                 (dotimes (i (length vector) at)
                   (declare (inline write-varint write-varint64))
                   (let ((value ,(element-out scalar '(aref vector i))))
                     (unless (zerop tag) (put-varint tag))
                     ,(scalar-put scalar))))))))

  (defun packed-function (scalar name)
    (let* ((vector (kind-vector scalar))
           (width (case (scalar-wire scalar) (1 8) (5 4))))
      `((define-hot ,(funcall name "READ-PACKED")
            ((octets octets) (at index) (end index) (vector ,vector) (count index) (type t))
            (values ,vector index)
          (progn type
                 (ensure-room vector count
                              ,(if width
                                   `(truncate (- end at) ,width)
                                   '(%count-varints octets at end))
                              ,vector)
                 ;; each element takes an octet that was counted, so there is room
                 (loop while (< at end)
                       do (locally (declare (inline read-varint32 read-varint64))
                            (setf (aref vector count) ,(element-in scalar (scalar-take scalar))
                                  count (truly-the index (1+ count)))))
                 (values vector count)))))))

(macrolet ((define-kinds ()
             `(progn
                ,@(loop for scalar being the hash-values of *scalars*
                        append (flet ((name (verb)
                                        (intern (format nil "~A-~A" verb (scalar-kind scalar))
                                                '#:clgrpc.protobuf)))
                                 (append (single-functions scalar #'name)
                                         (element-functions scalar #'name)
                                         (unless (= 2 (scalar-wire scalar))
                                           (packed-function scalar #'name))))))))
  (define-kinds))

;;; Elements of closed enums: numbers without a name become unknown fields

(defun field-octets (number value)
  "The octets of the varint field NUMBER with VALUE."
  (coerce (append (tag-octets (tag-of number 0)) (tag-octets (ldb (byte 64 0) value))) 'octets))

(define-hot read-closed-elements
    ((octets octets) (at index) (end index) (vector simple-vector) (count index) (number fixnum)
     (type enum-type) (ranges list))
    (values simple-vector index list)
  "Read the enum elements from AT to END, or one if END is not where one ends and the caller has
given the end of all. Return the vector, the count, and RANGES with the octets of unknown ones."
  (loop while (< at end)
        do (let ((value (signed-32 (take-varint32))))
             (if (enum-known-p type value)
                 (append-element vector count (enum-keyword-of type value) simple-vector)
                 (push (field-octets number value) ranges))))
  (values vector count ranges))
