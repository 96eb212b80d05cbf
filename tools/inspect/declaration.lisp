;;;; Descriptors in the form of a .proto file: names, types and numbers, with their comments,
;;;; without options.

(in-package #:clgrpc.tools)

(defun descriptor-kind (descriptor)
  "The kind and name of DESCRIPTOR, as words of a sentence."
  (etypecase descriptor
    (protobuf:service-descriptor "a service")
    (protobuf:method-descriptor "a method")
    (protobuf:message-descriptor "a message")
    (protobuf:enum-descriptor "an enum")
    (protobuf:enum-value-descriptor "an enum value")
    (protobuf:oneof-descriptor "a oneof")
    (protobuf:field-descriptor "a field")))

(defun write-comment (descriptor depth)
  (when-let ((comment (protobuf:descriptor-comment descriptor)))
    (with-input-from-string (lines comment)
      (loop for line = (read-line lines nil)
            while line
            do (write-declared depth "// ~A" (shown line))))))

(defun write-declared (depth control &rest arguments)
  (format t "~V@T~?~%" (* 2 depth) control arguments))

;;; A server's declarations may be as long as reflection accepts, so no function here searches a
;;; list of fields or messages.

(defstruct (scope (:constructor %make-scope) (:copier nil))
  "The declarations within a message to which its fields refer."
  (oneofs (make-hash-table :test 'equal) :read-only t) ; name to (descriptor field…)
  ;; the entry types of maps, by their full names
  (entries (make-hash-table :test 'equal) :read-only t))

(defun make-scope (message)
  "The scope of MESSAGE's fields; an empty one if MESSAGE is nil."
  (let* ((scope (%make-scope)) (oneofs (scope-oneofs scope)))
    (when message
      (dolist (oneof (protobuf:message-descriptor-oneofs message))
        (setf (gethash (protobuf:descriptor-name oneof) oneofs) (list oneof)))
      (dolist (field (reverse (protobuf:message-descriptor-fields message)))
        (let ((row (row-of-oneof field scope)))
          (when row (push field (rest row)))))
      (dolist (inner (protobuf:message-descriptor-messages message))
        (when (protobuf:message-descriptor-map-entry-p inner)
          (setf (gethash (protobuf:descriptor-full-name inner) (scope-entries scope)) inner))))
    scope))

(defun row-of-oneof (field scope)
  "The row of SCOPE for the oneof of FIELD, or nil if FIELD is in no oneof."
  (values (gethash (protobuf:field-descriptor-oneof field) (scope-oneofs scope))))

(defgeneric write-declaration (descriptor depth scope)
  (:documentation "Print DESCRIPTOR, which is in the message of SCOPE, indented by DEPTH levels."))

(defmethod write-declaration :before (descriptor depth scope)
  (declare (ignore scope))
  (write-comment descriptor depth))

(defmacro with-block ((depth control &rest arguments) &body body)
  `(progn (write-declared ,depth ,(concatenate 'string control " {") ,@arguments)
          ,@body
          (write-declared ,depth "}")))

(defmethod write-declaration ((service protobuf:service-descriptor) depth scope)
  (with-block (depth "service ~A" (protobuf:descriptor-name service))
    (dolist (method (protobuf:service-descriptor-methods service))
      (write-declaration method (1+ depth) scope))))

(defmethod write-declaration ((method protobuf:method-descriptor) depth scope)
  (declare (ignore scope))
  (write-declared depth "rpc ~A ( ~:[~;stream ~].~A ) returns ( ~:[~;stream ~].~A );"
                  (protobuf:descriptor-name method)
                  (protobuf:method-descriptor-client-streaming-p method)
                  (protobuf:method-descriptor-input method)
                  (protobuf:method-descriptor-server-streaming-p method)
                  (protobuf:method-descriptor-output method)))

(defmethod write-declaration ((enum protobuf:enum-descriptor) depth scope)
  (with-block (depth "enum ~A" (protobuf:descriptor-name enum))
    (dolist (value (protobuf:enum-descriptor-values enum))
      (write-declaration value (1+ depth) scope))))

(defmethod write-declaration ((value protobuf:enum-value-descriptor) depth scope)
  (declare (ignore scope))
  (write-declared depth "~A = ~D;" (protobuf:descriptor-name value)
                  (protobuf:enum-value-descriptor-number value)))

(defmethod write-declaration ((oneof protobuf:oneof-descriptor) depth scope)
  (let ((name (protobuf:descriptor-name oneof)))
    (with-block (depth "oneof ~A" name)
      (dolist (field (rest (gethash name (scope-oneofs scope))))
        (write-declaration field (1+ depth) scope)))))

(defun type-text (field)
  (if (protobuf:field-descriptor-type-name field)
      (format nil ".~A" (protobuf:field-descriptor-type-name field))
      (string-downcase (protobuf:field-descriptor-type field))))

(defun label-text (field)
  "The label to write before FIELD, with a space after it, or \"\" if FIELD needs no label."
  (cond ((protobuf:field-descriptor-oneof field) "")
        ((eq :optional (protobuf:field-descriptor-label field))
         (if (and (eq :explicit (protobuf:field-descriptor-presence field))
                  (not (member (protobuf:field-descriptor-type field) '(:message :group))))
             "optional "
             ""))
        (t (format nil "~(~A~) " (protobuf:field-descriptor-label field)))))

(defmethod write-declaration ((field protobuf:field-descriptor) depth scope)
  (let ((entry (gethash (protobuf:field-descriptor-type-name field) (scope-entries scope))))
    (write-declared depth "~A~A ~A = ~D;"
                    (if entry "" (label-text field))
                    (if entry
                        (format nil "map<~{~A~^, ~}>"
                                (mapcar #'type-text (protobuf:message-descriptor-fields entry)))
                        (type-text field))
                    (protobuf:descriptor-name field) (protobuf:field-descriptor-number field))))

(defmethod write-declaration ((message protobuf:message-descriptor) depth outer)
  (declare (ignore outer))
  (let ((scope (make-scope message)))
    (with-block (depth "message ~A" (protobuf:descriptor-name message))
      (dolist (field (protobuf:message-descriptor-fields message))
        (let ((row (row-of-oneof field scope)))
          (cond ((null row) (write-declaration field (1+ depth) scope))
                ((eq field (second row)) (write-declaration (first row) (1+ depth) scope)))))
      (dolist (enum (protobuf:message-descriptor-enums message))
        (write-declaration enum (1+ depth) scope))
      (dolist (inner (protobuf:message-descriptor-messages message))
        (unless (protobuf:message-descriptor-map-entry-p inner)
          (write-declaration inner (1+ depth) scope))))))
