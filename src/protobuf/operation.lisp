;;;; What users do with whole messages: write, read, compare, copy, print.

(in-package #:clgrpc.protobuf)

(defun make-message (type)
  "Return a fresh empty message of TYPE, a symbol, full name or message type."
  (let ((layout (message-type-layout (need-message-type type))))
    (unless layout (misuse "The message type ~A is not defined." type))
    (funcall (the function (layout-maker layout)))))

(defun serialized-size (message)
  "Return how many octets the serialized form of MESSAGE takes."
  (funcall (message-type-sizer (message-type-of message)) message))

(defun serialize (message)
  "Return the serialized form of MESSAGE as fresh octets. Fields come in the order of their numbers,
unknown fields last. MESSAGE must not change meanwhile."
  (declare (optimize (speed 1) (safety 1)))
  (let* ((type (truly-the message-type (message-type-of message)))
         (size (the index (funcall (message-type-sizer type) message)))
         (octets (make-array size :element-type 'octet)))
    (unless (= size (the index (funcall (message-type-writer type) message octets 0)))
      (fail-room))
    octets))

(defun parse-message (type octets &key (start 0) (end (length octets)))
  "Return the message of TYPE (a symbol such as HELLOWORLD:HELLO-REPLY, a full name or a message
type) whose serialized form is OCTETS from START to END. Signal PROTOBUF-ERROR if it is none."
  (let ((type (need-message-type type))
        (octets (if (typep octets 'octets) octets (coerce octets 'octets))))
    (handler-bind ((protobuf-error
                     (lambda (condition)
                       (unless (protobuf-error-type condition)
                         (reinitialize-error-type condition (message-type-name type))))))
      (funcall (message-type-parser type) octets start end))))

(defun reinitialize-error-type (condition name)
  (setf (slot-value condition 'type) name))

;;; Comparing

(defun message= (a b)
  "Return true if the messages A and B are of one type and all their fields are equal: the same ones
present, repeated fields element by element, maps as sets of entries, floats by their bits (so a NaN
equals itself, and -0 is not 0), loaded extensions like fields, unknown fields by their octets."
  (and (eq (message-type-of a) (message-type-of b))
       (let ((a (current a)) (b (current b)))
         (and (eq (message-layout a) (message-layout b))
              (equalp (unknown-fields a) (unknown-fields b))
              (let ((slots (present-slots a)))
                (and (equal slots (present-slots b))
                     (every (lambda (slot)
                              (value= (slot-user-value a slot) (slot-user-value b slot)))
                            slots)))))))

(defun value= (a b)
  (typecase a
    (message (and (message-p b) (message= a b)))
    (string (and (stringp b) (string= a b)))
    (vector (and (vectorp b) (= (length a) (length b)) (every #'value= a b)))
    (proto-map
     (and (proto-map-p b)
          (= (map-count a) (map-count b))
          (do-map ((key value) a t)
            (multiple-value-bind (other present) (map-value b key)
              (unless (and present (value= value other)) (return nil))))))
    (t (eql a b))))

;;; Copying

(defun copy-message (message)
  "Return a copy of MESSAGE that shares no message, vector or map with it, only strings and octets,
which are never changed in place."
  (let* ((message (current message))
         (copy (copy-structure message)))
    (loop for slot in (present-slots message)
          unless (and (eq :singular (slot-label slot)) (not (eq :message (slot-kind slot))))
            do (set-slot copy slot (copy-value (slot-user-value message slot) slot)))
    copy))

(defun copy-value (value slot)
  (ecase (slot-label slot)
    (:singular (copy-message value))
    (:repeated (if (eq :message (slot-kind slot)) (map 'simple-vector #'copy-message value)
                   (copy-seq value)))
    (:map (let ((copy (slot-fresh-map slot)))
            (do-map ((key value) value copy)
              (map-put copy key (if (message-p value) (copy-message value) value)))))))

;;; Printing

(defparameter *print-message-characters* 60
  "How much of a string or vector PRINT-OBJECT shows of a message's field.")

(defmethod print-object ((message message) stream)
  (print-unreadable-object (message stream)
    (let ((*print-pretty* nil)
          (current (ignore-errors (current message))))
      (prin1 (message-type-symbol (message-type-of message)) stream)
      (when current
        (loop for slot in (present-slots current)
              do (if (eq :extension (slot-presence slot))
                     (format stream " [~A] " (descriptor-full-name (slot-field slot)))
                     (format stream " :~(~A~) " (slot-name slot)))
                 (print-value (slot-user-value current slot) stream))))))

(defun print-value (value stream)
  (typecase value
    (string (print-start value stream))
    (octets (format stream "<~D octet~:P>" (length value)))
    (vector (if (<= (length value) 4)
                (format stream "(~{~A~^ ~})" (map 'list (lambda (item)
                                                         (with-output-to-string (out)
                                                           (print-value item out)))
                                                  value))
                (format stream "<~D elements>" (length value))))
    (proto-map (format stream "<~D entr~:@P>" (map-count value)))
    (t (prin1 value stream))))

(defun print-start (string stream)
  (let ((limit *print-message-characters*))
    (if (<= (length string) limit)
        (prin1 string stream)
        (format stream "~S…" (subseq string 0 limit)))))
