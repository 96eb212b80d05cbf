;;;; The code that reads a message: one function of octets, start, end and a READING (message.lisp)
;;;; per layout, made from its plan. The decoder returns the message, or nil for "read again,
;;;; deferred".
;;;;
;;;; A singular sub-message may come in several pieces, which count as one concatenation. Merging
;;;; piece by piece would copy repeated fields once per piece, so a hostile peer could make the work
;;;; quadratic. Therefore a message is first read the plain way: each sub-message is read where it
;;;; occurs. If a sub-message occurs twice, the result is dropped and the message is read again the
;;;; deferred way: every sub-message is read once, from all its pieces, after its parent.
;;;;
;;;; The work is linear in the input times the depth. The READING bounds the depth and the memory of
;;;; messages, which may occupy much more memory than octets on the wire; other values occupy at
;;;; most some sixteen times as much.
;;;;
;;;; Unknown fields are noted as ranges and gathered into one octet vector at the end
;;;; (octet-range.lisp).

(in-package #:clgrpc.protobuf)

(defmacro read-sub-message (type start stop)
  "Return a form that reads the sub-message of TYPE from START to STOP. If the reader of the
sub-message gives up, the form gives up as well."
  `(truly-the message
              (or (funcall (message-type-reader ,type) octets ,start ,stop reading)
                  (return-from read nil))))

(defun instance-octets (structure)
  "The memory in octets of an instance of STRUCTURE and of the vector element that refers to it."
  (* 8 (+ 2 (sb-kernel:dd-length (sb-kernel:find-defstruct-description structure)))))

(defmacro descend (structure)
  "Go down a level to read a message with the hidden STRUCTURE."
  `(let ((depth (truly-the fixnum (1- (reading-depth reading))))
         (allowance (truly-the fixnum
                               (- (reading-allowance reading)
                                  (truly-the index (load-time-value (instance-octets ',structure)
                                                                    t))))))
     (when (minusp depth) (fail-recursion at))
     (when (minusp allowance) (fail-allowance at))
     (setf (reading-depth reading) depth
           (reading-allowance reading) allowance)))

;;; Fields. TAG and the varint after it on the wire are read together: WORD is the value of a varint
;;; or of a length, and NEXT the position after that, or after the tag with another wire type. An
;;; arm moves AT past its field. In the last octets of the vector, and where anything is unusual or
;;; wrong, READ-FIELD reads and signals errors; WORD is in halves there, since a whole word would be
;;; boxed.

(defmacro skip-unknown ()
  "Move AT past the unknown field there, and keep its range."
  `(setf at (skip-any-field octets at end)
         ranges (note-range ranges field-start at)))

(defmacro take-field (kernel)
  "Return the tag, the word and the next position of the field at AT; use KERNEL if possible."
  `(multiple-value-bind (tag word next)
       (if (<= at safe) (,kernel octets at) (values 0 0 +far+))
     (declare (type (unsigned-byte 32) tag) (type (unsigned-byte 64) word)
              (type (unsigned-byte 62) next))
     (if (minusp (truly-the fixnum (- end next)))
         (multiple-value-bind (tag low high next) (read-field octets at end)
           (values tag (logior low (ash high 32)) next))
         (values tag word (truly-the index next)))))

(defmacro with-word-read (&body body)
  "Run BODY, in which the TAKE- macros return the value that was read last."
  `(macrolet ((take-varint32 () '(ldb (byte 32 0) word))
              (take-varint64 () 'word)
              (take-boolean () '(/= 0 word))
              (take-text () '(decode-text octets start stop))
              (take-unchecked-text () '(decode-unchecked-text octets start stop))
              (take-octets () '(bytes-at octets start stop reading)))
     ,@body))

(defun with-content (wire body)
  "A form that moves AT to NEXT or, if the wire type WIRE is 2, past the value, whose bounds are
START and STOP; then the form runs BODY."
  (if (= 2 wire)
      `(progn
         (when (> word (truly-the index (- end next))) (fail-length next))
         (let* ((start (truly-the index next))
                (stop (truly-the index (+ start (truly-the index word)))))
           (declare (ignorable start))
           (setf at stop)
           ,body))
      `(progn (setf at (truly-the index next))
              ,body)))

(defun with-sub-message (slot body)
  "Return a form that runs BODY with START and STOP bound to the bounds of the sub-message of SLOT."
  (if (slot-delimited-p slot)
      `(multiple-value-bind (stop after) (group-end octets at end ,(slot-number slot))
         (let ((start at))
           (declare (ignorable start))
           (setf at after)
           ,body))
      body))

(defun take-form (slot)
  (scalar-take (slot-scalar slot)))

(defun pending-name (thing)
  "The variable that collects pieces for THING, a slot or oneof."
  (make-symbol (format nil "PENDING-~A"
                       (if (slot-p thing) (slot-name thing) (oneof-slot-name thing)))))

(defstruct (variables (:copier nil))
  "The local variables of a reader. A repeated slot has a vector and a count; a sub-message has its
pieces. A oneof has a list with a number and pieces for each message in it, the latest first."
  (vectors '() :type list)              ; (slot vector count)
  (pendings '() :type list))            ; (slot-or-oneof . name)

(defun reader-variables (plan)
  (let ((variables (make-variables)))
    (dolist (slot (plan-slots plan) variables)
      (case (slot-label slot)
        (:repeated (push (list slot (make-symbol (slot-name slot))
                               (make-symbol (format nil "~A-COUNT" (slot-name slot))))
                         (variables-vectors variables)))
        (:singular
         (when (eq :message (slot-kind slot))
           (let ((thing (or (slot-oneof slot) slot)))
             (unless (assoc thing (variables-pendings variables))
               (push (cons thing (pending-name thing)) (variables-pendings variables))))))))))

;;; One arm per field

(defun pending-of (variables slot)
  (cdr (assoc (or (slot-oneof slot) slot) (variables-pendings variables))))

(defun singular-message-arm (slot variables)
  (let ((pending (pending-of variables slot)) (oneof (slot-oneof slot)))
    (with-sub-message
      slot
      (if oneof
          `(cond (deferred
                  (unless (= ,(slot-number slot) (,(oneof-slot-case oneof) message))
                    (setf (,(oneof-slot-case oneof) message) ,(slot-number slot))
                    (push (list ,(slot-number slot)) ,pending))
                  (push (cons start stop) (cdr (first ,pending))))
                 ((= ,(slot-number slot) (,(oneof-slot-case oneof) message))
                  (return-from read nil))
                 (t
                  (setf (,(oneof-slot-value oneof) message)
                        (read-sub-message ,(type-form slot) start stop)
                        (,(oneof-slot-case oneof) message) ,(slot-number slot))))
          `(cond (deferred (push (cons start stop) ,pending))
                 ((,(slot-place slot) message) (return-from read nil))
                 (t (setf (,(slot-place slot) message)
                          (read-sub-message ,(type-form slot) start stop))))))))

(defun store-form (slot)
  "Return a form that stores VALUE, which was read last, in the singular SLOT."
  (let ((oneof (slot-oneof slot)))
    (ecase (slot-presence slot)
      (:implicit `(setf (,(slot-place slot) message) value))
      (:bit `(progn (setf (,(slot-place slot) message) value) ,(set-bit-form slot)))
      (:oneof `(setf (,(oneof-slot-value oneof) message) value
                     (,(oneof-slot-case oneof) message) ,(slot-number slot))))))

(defun singular-arm (slot)
  `(let ((value ,(take-form slot)))
     ,(if (slot-closed-p slot)
          `(if (enum-known-p ,(type-form slot) value)
               ,(store-form slot)
               (setf ranges (note-range ranges field-start at)))
          (store-form slot))))

(defun repeated-message-arm (slot vector count)
  `(progn
     ,(if (slot-delimited-p slot)
          `(ensure-room ,vector ,count 1 simple-vector)
          `(when (= ,count (length ,vector))
             (ensure-room ,vector ,count
                          (count-run octets ,(content-form slot) end ,(slot-tag slot))
                          simple-vector)))
     ,(with-sub-message slot `(setf (svref ,vector ,count)
                                (read-sub-message ,(type-form slot) start stop)
                                ,count (truly-the index (1+ ,count))))))

(defun content-form (slot)
  "Return a form for the position of the length of a field of SLOT, provided that its tag has the
minimal length. Code that looks ahead from that position must not trust the octets there."
  `(truly-the index (+ field-start ,(constant-size (slot-tag slot)))))

(defun room-form (slot vector count)
  "A form that makes room in VECTOR for one element of SLOT and for those that directly follow it.
If the elements are strings, the form may already read some of them."
  (case (scalar-kind (slot-scalar slot))
    ((:string :unchecked-string)
     `(let ((content ,(content-form slot)))
        (multiple-value-bind (elements after next)
            (read-run octets content end ,(slot-tag slot) ,vector ,count)
          (setf ,vector elements
                ,count after)
          (when (< content next)
            (setf at next)
            (return-from known)))))
    (t `(ensure-room ,vector ,count
                     ,(if (= 2 (slot-wire slot))
                          `(count-run octets ,(content-form slot) end ,(slot-tag slot))
                          4)
                     ,(vector-type slot)))))

(defun one-element-arm (slot vector count)
  `(progn
     (when (= ,count (length ,vector)) ,(room-form slot vector count))
     (setf (aref ,vector ,count) ,(element-in (slot-scalar slot) (take-form slot) (type-form slot))
           ,count (truly-the index (1+ ,count)))))

(defun read-packed-form (slot vector count)
  (let ((form `(multiple-value-setq (,vector ,count)
                 (,(slot-function "READ-PACKED" slot) octets start stop ,vector ,count
                  ,(type-form slot)))))
    (if (varint-bits (slot-scalar slot))
        `(if (and (zerop ,count) (<= stop safe) (< 0 (- stop start) ,(1+ +few-octets+)))
             (setf ,vector (,(slot-function "%READ-FEW" slot) octets start stop)
                   ,count (length ,vector))
             ,form)
        form)))

(defun repeated-arms (slot variables)
  "Return the clauses, by tag, of a repeated SLOT: a clause for a single value and, if the values
are numbers, another for many packed values."
  (destructuring-bind (vector count) (rest (assoc slot (variables-vectors variables)))
    (let ((tag (slot-tag slot)) (kind (slot-kind slot)) (packed-tag (tag-of (slot-number slot) 2)))
      (cond ((eq :message kind) `((,tag ,(repeated-message-arm slot vector count))))
            ((slot-closed-p slot)
             `((,packed-tag
                (multiple-value-setq (,vector ,count ranges)
                  (read-closed-elements octets start stop ,vector ,count ,(slot-number slot)
                                        ,(type-form slot) ranges)))
               (,tag
                (if (enum-known-p ,(type-form slot) ,(take-form slot))
                    ,(one-element-arm slot vector count)
                    (setf ranges (note-range ranges field-start at))))))
            (t
             `(,@(unless (= 2 (slot-wire slot))
                   `((,packed-tag ,(read-packed-form slot vector count))))
               (,tag ,(one-element-arm slot vector count))))))))

(defun map-arm (slot)
  "Read one entry of the map SLOT."
  (let* ((key (slot-entry-key slot)) (value (slot-entry-value slot)) (map (slot-place slot))
         (message (eq :message (slot-kind value)))
         (put `(map-put (or (,map message) (setf (,map message) ,(fresh-map-form slot)))
                        key
                        ,(cond (message
                                `(or (read-pieces ,(type-form value) octets
                                                  (or stored (list (cons stop stop))) reading)
                                     (return-from read nil)))
                               ((eq :enum (slot-kind value))
                                `(enum-keyword-of ,(type-form value)
                                                  (truly-the (signed-byte 32) stored)))
                               (t 'stored)))))
    `(multiple-value-bind (key stored)
         (read-entry octets start stop
                     ,(slot-tag key) #',(slot-function "READ" key)
                     ,(literal (slot-default key)) ,(slot-tag value)
                     ,(if message nil `#',(slot-function "READ" value))
                     ,(if message nil (literal (slot-default value))))
       ,(if (slot-closed-p value)
            `(if (enum-known-p ,(type-form value) stored)
                 ,put
                 (setf ranges (note-range ranges field-start stop)))
            put))))

(defun slot-arms (slot variables)
  (ecase (slot-label slot)
    (:map `((,(tag-of (slot-number slot) 2) ,(map-arm slot))))
    (:repeated (repeated-arms slot variables))
    (:singular `((,(slot-tag slot)
                  ,(if (eq :message (slot-kind slot))
                       (singular-message-arm slot variables)
                       (singular-arm slot)))))))

;;; The whole

(defun finish-forms (plan variables)
  "The forms that follow the reading of the last field."
  `(,@(loop for (slot vector count) in (reverse (variables-vectors variables))
            collect `(unless (zerop ,count)
                       (setf (,(slot-place slot) message)
                             (if (= ,count (length ,vector))
                                 ,vector
                                 (truly-the ,(vector-type slot) (fit-vector ,vector ,count))))))
    ,@(when (variables-pendings variables)
        `((when deferred
            ,@(loop for (thing . pending) in (reverse (variables-pendings variables))
                    collect (if (slot-p thing)
                                `(when ,pending
                                   (setf (,(slot-place thing) message)
                                         ,(pieces-form thing pending)))
                                (finish-oneof-form thing pending))))))
    (when ranges
      (setf (message-extra message)
            ,(if (message-descriptor-extension-ranges (plan-message plan))
                 `(or (gather-extra (the-message-type ,(plan-full-name plan)) octets ranges reading)
                      (return-from read nil))
                 '(gather-ranges octets ranges))))
    (setf (reading-depth reading) (truly-the fixnum (1+ (reading-depth reading))))
    (truly-the ,(plan-structure plan) message)))

(defun pieces-form (slot pending)
  `(truly-the message (or (read-pieces ,(type-form slot) octets ,pending reading)
                          (return-from read nil))))

(defun finish-oneof-form (oneof pending)
  "Return a form that reads every message in PENDING. It also reads messages that another member of
the oneof has replaced, because their octets must be valid too."
  `(loop for (number . pieces) in ,pending
         for latest = (= number (,(oneof-slot-case oneof) message)) then nil
         do (let ((value (ecase number
                           ,@(loop for slot in (oneof-slot-slots oneof)
                                   when (eq :message (slot-kind slot))
                                     collect `(,(slot-number slot) ,(pieces-form slot 'pieces))))))
              (when latest (setf (,(oneof-slot-value oneof) message) value)))))

(defun tag-arms (plan variables)
  "For each tag of the fields of PLAN, in order, a list of the tag and forms that read the field and
leave the block KNOWN."
  (sort (loop for slot in (plan-slots plan)
              append (loop for (tag . forms) in (slot-arms slot variables)
                           collect `(,tag
                                     ,(with-content (logand tag 7) `(progn ,@forms))
                                     (return-from known))))
        #'< :key #'first))

(defun dispatch-form (arms)
  "A form that evaluates the element of ARMS, in order, that belongs to TAG. The form compares by
halving and does not use a jump table. Because tags come in order, the processor predicts the
comparisons better than a jump."
  (if (<= (length arms) 4)
      `(cond ,@(loop for (tag . forms) in arms collect `((= tag ,tag) ,@forms)))
      (let ((middle (floor (length arms) 2)))
        `(if (minusp (truly-the fixnum (- tag ,(first (nth middle arms)))))
             ,(dispatch-form (subseq arms 0 middle))
             ,(dispatch-form (nthcdr middle arms))))))

(defun wide-tags-p (plan)
  "True if the tag of a field of PLAN takes more than one octet."
  (some (lambda (slot) (> (slot-number slot) 15)) (plan-slots plan)))

(defun reader-body (plan variables)
  `((loop while (more-p)
          do (multiple-value-bind (tag word next)
                 (take-field ,(if (wide-tags-p plan) '%wide-field-at '%field-at))
               (declare (type (unsigned-byte 32) tag) (type (unsigned-byte 64) word)
                        (type index next))
               (let ((field-start at))
                 (declare (ignorable field-start))
                 (block known
                   (with-word-read
                     ,(dispatch-form (tag-arms plan variables)))
                   ;; a known number with another wire type is an unknown field, too
                   (skip-unknown)))))
    ,@(finish-forms plan variables)))

(defun reader-form (plan)
  (let* ((variables (reader-variables plan))
         (body (reader-body plan variables)))
    `(sb-int:named-lambda ,(format nil "read ~A" (plan-full-name plan)) (octets at end reading)
       (declare ,*coder-policy* (type octets octets) (type index at end)
                (type reading reading))
       (descend ,(plan-structure plan))
       (let ((message (,(plan-maker plan)))
             (deferred (reading-deferred-p reading))
             (safe (if +kernels-p+ (- (length octets) ,(if (wide-tags-p plan) 12 11)) -1))
             (ranges '())
             ,@(loop for (slot vector count) in (variables-vectors variables)
                     collect `(,vector (load-time-value
                                        (make-array 0 :element-type
                                                    ',(element-type (slot-kind slot)))
                                        t))
                     collect `(,count 0))
             ,@(loop for (nil . pending) in (variables-pendings variables)
                     collect `(,pending '())))
         (declare (ignorable deferred safe) (type list ranges) (type fixnum safe)
                  ,@(loop for (slot vector count) in (variables-vectors variables)
                          collect `(type ,(vector-type slot) ,vector)
                          collect `(type index ,count)))
         (block read ,@body)))))
