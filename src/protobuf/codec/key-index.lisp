;;;; A hash index from the keys of a map to their positions, for maps of more than a few entries: an
;;;; open-addressed table of positions, probed linearly, at most half full. Keys come from peers, so
;;;; the hash is keyed by the seed of the process. Keys are strings (text), integers or booleans,
;;;; and are compared by value.
;;;;
;;;; A table entry is a position plus one; 0 if it was never used; +REMOVED+ if its key was removed.
;;;; The index contains the seed with which it was made, so it remains valid in a saved image.

(in-package #:clgrpc.protobuf)

(deftype index-table () '(simple-array (unsigned-byte 32) (*)))

(defconstant +removed+ #xFFFFFFFF
  "The element of an index table that marks a place from which a key was removed.")

(defstruct (key-index (:constructor make-key-index (table seed)) (:copier nil))
  "A hash table from the keys of a map to their positions; see above."
  (table (make-array 0 :element-type '(unsigned-byte 32)) :type index-table) ; the table of entries
  (seed 0 :type (unsigned-byte 62))     ; the seed of the hash
  (used 0 :type index))                 ; entries that are not 0

(declaim (inline mix))
(defun mix (hash value seed)
  (declare (type (unsigned-byte 64) hash value) (type (unsigned-byte 62) seed))
  (ldb (byte 64 0) (* (logxor hash value) (logior 1 (ash seed 1)))))

(define-hot hash-key ((key t) (seed (unsigned-byte 62))) (unsigned-byte 32)
  "The hash of KEY under SEED."
  (let ((hash seed))
    (declare (type (unsigned-byte 64) hash))
    (flet ((add-string (string)
             (loop for char across string do (setf hash (mix hash (char-code char) seed)))))
      (declare (inline add-string))
      (typecase key                     ; other keys are in no map
        (simple-base-string (add-string key))
        (wide-string (add-string key))
        (fixnum (setf hash (mix hash (ldb (byte 64 0) key) seed)))
        (integer
         ;; computes with full words of 64 bits
         (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
           (setf hash (mix hash (ldb (byte 64 0) key) seed))))
        (boolean (setf hash (mix hash (if key 1 0) seed)))))
    (let ((folded (mix hash (ash hash -29) seed)))
      (ash folded -32))))

(define-hot text= ((a text) (b text)) boolean
  "True if the strings A and B have the same characters."
  (macrolet ((compare (type-a type-b)
               `(let ((a (truly-the ,type-a a)) (b (truly-the ,type-b b)))
                  (loop for i of-type index from 0 below (length a)
                        always (char= (schar a i) (schar b i))))))
    (and (= (length a) (length b))
         (if (typep a 'simple-base-string)
             (if (typep b 'simple-base-string)
                 (compare simple-base-string simple-base-string)
                 (compare simple-base-string wide-string))
             (if (typep b 'simple-base-string)
                 (compare wide-string simple-base-string)
                 (compare wide-string wide-string))))))

(define-hot key= ((a t) (b t)) boolean
  "True if the keys A and B, of one map, are equal."
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; 64 bits exceed a fixnum
  (if (typep a 'text)
      (and (typep b 'text) (text= a b))
      (eql a b)))

(define-hot index-place ((index key-index) (keys simple-vector) (key t)) (or null index)
  "Return the place in the table of INDEX that has the position of KEY in KEYS, or nil if KEY is not
in KEYS."
  (let* ((table (key-index-table index))
         (mask (1- (length table)))
         (place (logand mask (hash-key key (key-index-seed index)))))
    (declare (type (unsigned-byte 32) mask place))
    (loop
      (let ((entry (aref table place)))
        (cond ((zerop entry) (return nil))
              ((= entry +removed+))
              ((key= key (svref keys (1- entry))) (return place))))
      (setf place (logand mask (1+ place))))))

(define-hot index-position ((index key-index) (keys simple-vector) (key t)) (or null index)
  "Return the position of KEY in KEYS, or nil if KEY is not among them."
  (let ((place (index-place index keys key)))
    (and place (1- (aref (key-index-table index) place)))))

(define-hot enter-key ((index key-index) (key t) (position index)) t
  "Note that KEY, which is not in INDEX, is at POSITION. INDEX must have room for another key."
  (let* ((table (key-index-table index))
         (mask (1- (length table)))
         (place (logand mask (hash-key key (key-index-seed index)))))
    (declare (type (unsigned-byte 32) mask place))
    (loop until (zerop (aref table place))
          do (setf place (logand mask (1+ place))))
    (setf (aref table place) (1+ position))
    (incf (key-index-used index))))

(defun build-index (keys count)
  "Return a fresh index of the first COUNT elements of KEYS, with room for COUNT further keys."
  (let* ((size (ash 4 (integer-length count)))
         (index (make-key-index (make-array size :element-type '(unsigned-byte 32)
                                            :initial-element 0)
                                (hash-seed))))
    (dotimes (i count index)
      (enter-key index (svref keys i) i))))

(defun index-full-p (index)
  "True if another key would fill more than half of INDEX."
  (>= (* 2 (1+ (key-index-used index))) (length (key-index-table index))))

(defun move-key (index keys key position)
  "Note that KEY, which is in INDEX, has moved to POSITION or, if POSITION is nil, was removed."
  (setf (aref (key-index-table index) (index-place index keys key))
        (if position (1+ position) +removed+)))
