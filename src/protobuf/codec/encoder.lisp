;;;; The code that measures and writes a message: two functions per layout made from its plan. The
;;;; size pass leaves the size of every sub-message in the sub-message, and the size of every packed
;;;; varint field in the message; the write pass uses these, so each length is known where it must
;;;; be written.
;;;;
;;;; A writer may write up to nine octets after the message, if OCTETS are long enough: a varint is
;;;; stored by whole words, and the next field overwrites the rest of the last word.
;;;;
;;;; Sub-messages are measured and written by calls through their message type, which may have a
;;;; newer definition by now; only the code of small messages of the same definition is in line. A
;;;; message of another layout than this code knows, or one that has become a forwarder, is handed
;;;; to SIZE-OTHER and WRITE-MESSAGE-OTHER (message-reflection.lisp).

(in-package #:clgrpc.protobuf)

(defparameter *coder-policy*
  '(optimize (speed 1) (safety 1) (debug 0) (compilation-speed 2) (sb-ext:inhibit-warnings 3))
  "The policy of generated coders, which are checked; only the leaves that they call are not.")

(defun present-value-test (slot)
  "A form that is true if VALUE, the stored value of SLOT with implicit presence, must be written."
  (ecase (slot-kind slot)
    (:bool 'value)
    ((:string :bytes) '(plusp (length value)))
    (:float '(/= 0 (single-bits value)))
    (:double '(/= 0 (double-bits value)))
    ((:enum :int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
     '(/= 0 value))))

(defun value-type (slot)
  (if (eq :message (slot-kind slot)) 'message (scalar-lisp-type (slot-scalar slot))))

;;; The size of one VALUE without its tag, and the code that writes it with its tag

(defvar *plans-at-hand* (make-hash-table :test 'equal)
  "The plans of the messages that are compiled together, by full name.")

(defparameter *most-slots-in-line* 4
  "The maximum number of fields of a message whose code is inlined in the code of other messages.")

(defun plan-in-line (slot)
  "Return the plan of the message of SLOT if its code is to be inlined, else nil. It is inlined if
the message is compiled in the same definition and has only a few fields, all numbers, because such
code takes less time than a call. The inlined code serves messages of this definition that contain
nothing else, such as unknown fields, and are not forwarders. For all other messages a function is
called."
  (let ((plan (gethash (slot-type-name slot) *plans-at-hand*)))
    (and plan
         (<= (length (plan-slots plan)) *most-slots-in-line*)
         (every (lambda (slot)
                  (and (member (slot-presence slot) '(:implicit :bit))
                       (/= 2 (slot-wire slot))))
                (plan-slots plan))
         plan)))

(defun in-line-form (slot form call)
  "Return a form that evaluates FORM, with MESSAGE bound to VALUE, if VALUE has the plan that is
inlined for SLOT, and CALL if it has not."
  (let ((structure (plan-structure (plan-in-line slot))))
    `(if (and (typep value ',structure)
              (null (message-extra (truly-the message value))))
         (let ((message (truly-the ,structure value)))
           (declare (ignorable message))
           ,form)
         ,call)))

(defun message-size-form (slot)
  "A form that measures VALUE, a sub-message of SLOT, and keeps its size for the write pass."
  (let ((call `(truly-the index (funcall (message-type-sizer ,(type-form slot)) value)))
        (plan (plan-in-line slot)))
    (if plan
        (in-line-form slot
                      `(let ((size 0))
                         (declare (type index size))
                         ,@(all-slots-forms plan #'slot-size-form)
                         (setf (message-size message) size))
                      call)
        call)))

(defun message-put-form (slot)
  "A form that writes VALUE, a sub-message of SLOT, without tag and length."
  (let ((call `(setf at (truly-the index (funcall (message-type-writer ,(type-form slot))
                                                  value octets at))))
        (plan (plan-in-line slot)))
    (if plan
        (in-line-form slot `(progn ,@(all-slots-forms plan #'slot-put-form)) call)
        call)))

(defun value-size (slot)
  (if (eq :message (slot-kind slot))
      (let ((size (message-size-form slot)))
        (if (slot-delimited-p slot)
            `(+ ,size ,(constant-size (tag-of (slot-number slot) 4)))
            `(let ((length ,size)) (declare (type index length)) (+ length (varint-size length)))))
      (scalar-size (slot-scalar slot))))

(defun value-put (slot)
  (if (eq :message (slot-kind slot))
      (let ((put (message-put-form slot)))
        (if (slot-delimited-p slot)
            `(progn (put-tag ,(slot-tag slot)) ,put (put-tag ,(tag-of (slot-number slot) 4)))
            `(progn (put-word-field ,(slot-tag slot) (message-size value)) ,put)))
      (let ((put (scalar-put (slot-scalar slot))) (tag (slot-tag slot)))
        (cond ((eq :bool (slot-kind slot)) `(put-word-field ,tag (if value 1 0)))
              ((zerop (logand tag 7)) `(with-tagged-words-put ,tag ,put))
              (t `(progn (put-tag ,tag) ,put))))))

(defun do-messages-form (slot body)
  "A form that runs BODY with VALUE bound to each sub-message of the repeated SLOT."
  `(let ((vector (,(slot-place slot) message)))
     (dotimes (i (length vector))
       (let ((value (truly-the message (svref vector i))))
         ,body))))

(defun with-map-form (slot body)
  "A form that runs BODY with MAP bound to the map of SLOT, if there is one."
  `(let ((map (,(slot-place slot) message)))
     (when map ,body)))

(defun entry-functions (slot verbs)
  "Forms for the functions that perform VERBS on the key or value SLOT of a map."
  (loop for verb in verbs
        collect (if (eq :message (slot-kind slot)) nil `#',(slot-function verb slot))))

;;; Singular fields

(defun singular-form (slot body)
  "A form that evaluates BODY with VALUE bound if the singular SLOT must be written."
  (let ((place (slot-place slot)) (oneof (slot-oneof slot)))
    (ecase (slot-presence slot)
      (:implicit `(let ((value (,place message)))
                    (when ,(present-value-test slot) ,body)))
      (:bit `(when ,(present-form slot)
               (let ((value (,place message))) (declare (ignorable value)) ,body)))
      (:value `(let ((value (,place message))) (when value ,body)))
      (:oneof `(let ((value (truly-the ,(value-type slot) (,(oneof-slot-value oneof) message))))
                 (declare (ignorable value))
                 ,body)))))

(defun add-form (&rest forms)
  `(setf size (truly-the index (+ size ,@forms))))

(defconstant +few-strings+ 32
  "The maximum number of strings that are written one by one. More strings are written in another
way, which is faster then (sequence.lisp).")

(defun size-elements-form (slot)
  (let ((form `(,(slot-function "SIZE-ELEMENTS" slot) vector ,(type-form slot))))
    `(let ((vector (,(slot-place slot) message)))
       ,(if (and +kernels-p+ (varint-bits (slot-scalar slot)))
            `(if (<= (length vector) +few+)
                 (with-sap ((from vector))
                   (truly-the index (,(few-kernel "%SIZE-FEW" (slot-scalar slot))
                                     from (length vector))))
                 ,form)
            form))))

(defun packed-length-form (slot)
  "A form for the size of SLOT's packed elements; the size pass keeps it for the write pass."
  (let ((width (fixed-size (slot-kind slot))) (place (slot-place slot)))
    (if width
        `(* ,width (length (,place message)))
        `(setf (,(slot-size slot) message) ,(size-elements-form slot)))))

(defun repeated-size-form (slot)
  (let ((tag (constant-size (slot-tag slot))) (place (slot-place slot)))
    (cond ((eq :message (slot-kind slot)) (do-messages-form slot (add-form tag (value-size slot))))
          ((slot-packed-p slot)
           `(when (plusp (length (,place message)))
              (let ((length ,(packed-length-form slot)))
                (declare (type index length))
                ,(add-form (constant-size (tag-of (slot-number slot) 2)) 'length
                           '(varint-size length)))))
          (t
           `(when (plusp (length (,place message)))
              ,(add-form `(* ,tag (length (,place message)))
                         (size-elements-form slot)))))))

(defun put-packed-form (slot)
  (let ((form `(setf at (,(slot-function "PUT-PACKED" slot) (,(slot-place slot) message)
                         octets at size ,(type-form slot)))))
    (if (varint-bits (slot-scalar slot))
        `(let ((vector (,(slot-place slot) message)))
           (if (<= (length vector) +few-to-write+)
               (setf at (,(slot-function "PUT-FEW" slot) vector octets at))
               ,form))
        form)))

(defun repeated-put-form (slot)
  (let ((place (slot-place slot)) (kind (slot-kind slot)))
    (flet ((put-elements (tag)
             `(setf at (,(slot-function "PUT-ELEMENTS" slot) (,place message) octets at ,tag
                        ,(type-form slot)))))
      (cond ((eq :message kind)
             (do-messages-form slot (value-put slot)))
            ((slot-packed-p slot)
             `(when (plusp (length (,place message)))
                (let ((size ,(if (fixed-size kind)
                                 `(* ,(fixed-size kind) (length (,place message)))
                                 `(,(slot-size slot) message))))
                  (declare (type index size))
                  (put-word-field ,(tag-of (slot-number slot) 2) size)
                  ,(put-packed-form slot))))
            ((= 2 (slot-wire slot))
             `(let ((vector (,place message)))
                (if (<= (length vector) +few-strings+)
                    (dotimes (i (length vector))
                      (let ((value (truly-the ,(value-type slot) (svref vector i))))
                        ,(value-put slot)))
                    ,(put-elements (slot-tag slot)))))
            (t `(when (plusp (length (,place message)))
                  ,(put-elements (slot-tag slot))))))))

(defun slot-size-form (slot)
  "A form that adds the encoded length of SLOT's field to SIZE."
  (let ((tag (constant-size (slot-tag slot))))
    (ecase (slot-label slot)
      (:singular (singular-form slot (add-form tag (value-size slot))))
      (:repeated (repeated-size-form slot))
      (:map
       (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
         (with-map-form slot (add-form `(size-map map ,(constant-size (tag-of (slot-number slot) 2))
                                                  ,@(entry-functions key '("SIZE"))
                                                  ,@(entry-functions value '("SIZE"))
                                                  ,(type-form value)))))))))

(defun slot-put-form (slot)
  "A form that writes the field of SLOT."
  (ecase (slot-label slot)
    (:singular (singular-form slot (value-put slot)))
    (:repeated (repeated-put-form slot))
    (:map
     (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
       (with-map-form slot `(setf at (put-map map octets at ,(tag-of (slot-number slot) 2)
                                              ,(slot-tag key)
                                              ,@(entry-functions key '("SIZE" "PUT"))
                                              ,(slot-tag value)
                                              ,@(entry-functions value '("SIZE" "PUT"))
                                              ,(type-form value))))))))

(defun all-slots-forms (plan function)
  "Return the forms that FUNCTION returns for the slots of PLAN, in field order. The members of a
oneof are in one CASE, at the position of the member with the lowest number."
  (let ((seen '()))
    (loop for slot in (sort (copy-list (plan-slots plan)) #'< :key #'slot-number)
          for oneof = (slot-oneof slot)
          unless (member oneof seen)
            collect (if oneof
                        `(case (,(oneof-slot-case oneof) message)
                           ,@(loop for member in (oneof-slot-slots oneof)
                                   collect `(,(slot-number member) ,(funcall function member))))
                        (funcall function slot))
          when oneof do (push oneof seen))))

(defun sizer-form (plan)
  `(sb-int:named-lambda ,(format nil "size of ~A" (plan-full-name plan)) (message)
     (declare ,*coder-policy*)
     (let ((extra (if (typep message ',(plan-structure plan))
                      (message-extra message)
                      (the message message)))) ; or another object, of a user
       (if (message-p extra)
           (size-other message ,(plan-full-name plan))
           (let ((message (truly-the ,(plan-structure plan) message))
                 (size (if extra (extra-size extra) 0)))
             (declare (type index size) (ignorable message))
             ,@(all-slots-forms plan #'slot-size-form)
             (setf (message-size message) size))))))

(defun writer-form (plan)
  `(sb-int:named-lambda ,(format nil "write ~A" (plan-full-name plan)) (message octets at)
     (declare ,*coder-policy* (type octets octets) (type index at))
     (let ((extra (if (typep message ',(plan-structure plan)) (message-extra message) message)))
       (if (message-p extra)
           (write-message-other message octets at ,(plan-full-name plan))
           (let ((message (truly-the ,(plan-structure plan) message)))
             (declare (ignorable message))
             (with-words-put
               ,@(all-slots-forms plan #'slot-put-form))
             (if extra (put-extra extra octets at) at))))))
