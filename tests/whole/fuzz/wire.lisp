;;;; Mutations of serialized messages that know the wire format: a message is read as a tree of
;;;; fields, a field of the tree is changed, moved, doubled, nested, and the tree written with
;;;; lengths that are right again. So a change deep inside reaches the decoder of that place.

(in-package #:clgrpc.tests.fuzz)

(defstruct (node (:copier copy-node))
  "A field. VALUE is an integer (:varint, :fixed32, :fixed64), octets (:octets) or a list of nodes
(:message, :group)."
  (number 1 :type (unsigned-byte 64))
  (kind :varint :type (member :varint :fixed32 :fixed64 :octets :message :group))
  (value 0))

(defconstant +tree-depth+ 8
  "How deep octets are tried as messages.")

;;; Reading

(defun read-varint (octets at end)
  "The varint at AT, if it is the shortest form of a number of 64 bits, and where it ends, or nil."
  (loop with value = 0
        for shift from 0 by 7
        for i from at below (min end (+ at 10))
        do (setf value (logior value (ash (logand #x7F (aref octets i)) shift)))
           (when (< (aref octets i) #x80)
             (return (and (typep value 'word)
                          (or (= i at) (plusp (aref octets i)))
                          (values value (1+ i)))))))

(defun read-little (octets at size)
  (loop for i below size sum (ash (aref octets (+ at i)) (* 8 i))))

(defun read-tree (octets start end depth &optional group)
  "The nodes of OCTETS from START to END and true, or nil; with GROUP, up to its end tag, whose end
is the third value."
  (let ((nodes '()) (at start))
    (flet ((refuse () (return-from read-tree (values '() nil))))
      (loop
        (when (= at end)
          (return (if group (values '() nil) (values (nreverse nodes) t))))
        (multiple-value-bind (tag next) (read-varint octets at end)
          (unless (and tag (plusp (ash tag -3))) (refuse))
          (let ((number (ash tag -3)))
            (setf at next)
            (flet ((add (kind value next)
                     (push (make-node :number number :kind kind :value value) nodes)
                     (setf at next)))
              (case (logand tag 7)
                (0 (multiple-value-bind (value next) (read-varint octets at end)
                     (unless value (refuse))
                     (add :varint value next)))
                (1 (unless (<= (+ at 8) end) (refuse))
                 (add :fixed64 (read-little octets at 8) (+ at 8)))
                (5 (unless (<= (+ at 4) end) (refuse))
                 (add :fixed32 (read-little octets at 4) (+ at 4)))
                (2 (multiple-value-bind (length next) (read-varint octets at end)
                     (unless (and length (<= (+ next length) end)) (refuse))
                     (multiple-value-bind (inside valid)
                         (if (and (plusp length) (plusp depth))
                             (read-tree octets next (+ next length) (1- depth))
                             (values '() nil))
                       (if valid
                           (add :message inside (+ next length))
                           (add :octets (subseq octets next (+ next length)) (+ next length))))))
                (3 (multiple-value-bind (inside valid next)
                       (if (plusp depth) (read-tree octets at end (1- depth) number) (refuse))
                     (unless valid (refuse))
                     (add :group inside next)))
                (4 (if (eql group number) (return (values (nreverse nodes) t at)) (refuse)))
                (t (refuse))))))))))

;;; Writing

(defun write-varint (value buffer)
  (loop while (>= value #x80)
        do (append-octet buffer (logior #x80 (logand #x7F value)))
           (setf value (ash value -7)))
  (append-octet buffer value))

(defun write-tree (nodes buffer)
  (dolist (node nodes)
    (let ((number (node-number node)) (value (node-value node)))
      (flet ((tag (type) (write-varint (ldb (byte 64 0) (logior (ash number 3) type)) buffer))
             (little (size) (dotimes (i size) (append-octet buffer (ldb (byte 8 (* 8 i)) value))))
             (counted (octets) (write-varint (length octets) buffer) (append-octets buffer octets)))
        (ecase (node-kind node)
          (:varint (tag 0) (write-varint value buffer))
          (:fixed64 (tag 1) (little 8))
          (:fixed32 (tag 5) (little 4))
          (:octets (tag 2) (counted value))
          (:message (tag 2) (counted (tree-octets value)))
          (:group (tag 3) (write-tree value buffer) (tag 4)))))))

(defun tree-octets (nodes)
  (let ((buffer (make-buffer :size 256)))
    (write-tree nodes buffer)
    (subseq (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

;;; Changing

(defparameter *interesting-integers*
  (coerce (loop for bits in '(0 1 6 7 8 14 28 29 31 32 35 53 61 62 63 64)
                append (list (ldb (byte 64 0) (1- (expt 2 bits))) (ldb (byte 64 0) (expt 2 bits))
                             (ldb (byte 64 0) (- (expt 2 bits)))))
          'simple-vector))

(defparameter *interesting-strings*
  (vector (octets-of) (octets-of #xC0 #x80) (octets-of #xED #xA0 #x80)
          (octets-of #xF4 #x90 #x80 #x80)
          (octets-of #xE2 #x82) (octets-of #xF0 #x9F #x98 #x80) (octets-of 0) (octets-of #x80)
          (string-octets "seventeen letters")
          (concatenate 'octets (string-octets "fifteen letters") (octets-of #xFF))))

(defun random-integer ()
  (one-of (pick *interesting-integers*) (random-word) (below 300)))

(defun random-number (nodes)
  "A field number: one of NODES', or another, good or bad."
  (one-of (node-number (pick (coerce nodes 'simple-vector)))
          (1+ (below 120))
          (pick #(1 15 16 2047 2048 18999 19000 536870911 536870912 0 2305843009213693951))))

(defun change-value (node others)
  (let ((node (copy-node node)))
    (setf (node-value node)
          (ecase (node-kind node)
            ((:varint :fixed32 :fixed64) (random-integer))
            (:octets (one-of (pick *interesting-strings*)
                             (mutate-octets (node-value node) (vector (node-value node)))
                             (random-octets (below 40))
                             (coerce (loop repeat (below 50) collect (below 128)) 'octets)))
            ((:message :group) (mutate-nodes (node-value node) others))))
    node))

(defun change-kind (node)
  (let* ((value (node-value node))
         (octets (etypecase value
                   (octets value)
                   (list (tree-octets value))
                   (integer (octets-of (logand value 255))))))
    (one-of (make-node :number (node-number node) :kind :octets :value octets)
            (make-node :number (node-number node) :kind :varint :value (random-integer))
            (make-node :number (node-number node) :kind :fixed32 :value (random-integer))
            (make-node :number (node-number node) :kind :fixed64 :value (random-integer))
            (make-node :number (node-number node) :kind :group
                       :value (if (listp value) value '())))))

(defun nest (node times)
  "NODE inside TIMES messages or groups of its number."
  (let ((kind (if (eq :group (node-kind node)) :group :message)))
    (dotimes (i times node)
      (setf node (make-node :number (node-number node) :kind kind :value (list node))))))

(defun replace-nth (nodes position &rest new)
  (append (subseq nodes 0 position) new (nthcdr (1+ position) nodes)))

(defun mutate-nodes (nodes others)
  "NODES with one change; OTHERS is a vector of nodes to put in."
  (if (null nodes)
      (list (pick others))
      (let* ((position (below (length nodes))) (node (nth position nodes)))
        (one-of
          (replace-nth nodes position (change-value node others))
          (replace-nth nodes position (change-value node others))
          (replace-nth nodes position (change-value node others))
          (replace-nth nodes position)
          (replace-nth nodes position (pick others))
          (replace-nth nodes position node (pick others))
          (replace-nth nodes position (change-kind node))
          (append nodes (make-list (1+ (below 20)) :initial-element node))
          (replace-nth nodes position
                       (let ((node (copy-node node)))
                         (setf (node-number node) (random-number nodes))
                         node))
          (let ((copy (coerce nodes 'simple-vector)))
            (rotatef (svref copy position) (svref copy (below (length copy))))
            (coerce copy 'list))
          (replace-nth nodes position (nest node (if (chance-p 8) (below 130) (below 4))))))))
