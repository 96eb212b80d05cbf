;;;; Descriptors as one would write them in a .proto file: names, types and numbers, with comments
;;;; where there are some, without options.

(in-package #:clgrpc.tools)

(defun descriptor-kind (descriptor)
  "What DESCRIPTOR is called in a sentence."
  (etypecase descriptor
    (protobuf:service-descriptor "a service")
    (protobuf:method-descriptor "a method")
    (protobuf:message-descriptor "a message")
    (protobuf:enum-descriptor "an enum")
    (protobuf:enum-value-descriptor "an enum value")
    (protobuf:oneof-descriptor "a oneof")
    (protobuf:field-descriptor "a field")))

(defun write-comment (descriptor depth)
  (let ((comment (protobuf:descriptor-comment descriptor)))
    (when comment
      (with-input-from-string (lines comment)
        (loop for line = (read-line lines nil)
              while line
              do (write-declared depth "// ~A" (shown line)))))))

(defun write-declared (depth control &rest arguments)
  (format t "~V@T~?~%" (* 2 depth) control arguments))

(defgeneric write-declaration (descriptor depth message)
  (:documentation "Print DESCRIPTOR, which is in MESSAGE or nil, indented by DEPTH levels."))

(defmethod write-declaration :before (descriptor depth message)
  (declare (ignore message))
  (write-comment descriptor depth))

(defmacro with-block ((depth control &rest arguments) &body body)
  `(progn (write-declared ,depth ,(concatenate 'string control " {") ,@arguments)
          ,@body
          (write-declared ,depth "}")))

(defmethod write-declaration ((service protobuf:service-descriptor) depth message)
  (declare (ignore message))
  (with-block (depth "service ~A" (protobuf:descriptor-name service))
    (dolist (method (protobuf:service-descriptor-methods service))
      (write-declaration method (1+ depth) nil))))

(defmethod write-declaration ((method protobuf:method-descriptor) depth message)
  (declare (ignore message))
  (write-declared depth "rpc ~A ( ~:[~;stream ~].~A ) returns ( ~:[~;stream ~].~A );"
                  (protobuf:descriptor-name method)
                  (protobuf:method-descriptor-client-streaming-p method)
                  (protobuf:method-descriptor-input method)
                  (protobuf:method-descriptor-server-streaming-p method)
                  (protobuf:method-descriptor-output method)))

(defmethod write-declaration ((enum protobuf:enum-descriptor) depth message)
  (declare (ignore message))
  (with-block (depth "enum ~A" (protobuf:descriptor-name enum))
    (dolist (value (protobuf:enum-descriptor-values enum))
      (write-declaration value (1+ depth) nil))))

(defmethod write-declaration ((value protobuf:enum-value-descriptor) depth message)
  (declare (ignore message))
  (write-declared depth "~A = ~D;" (protobuf:descriptor-name value)
                  (protobuf:enum-value-descriptor-number value)))

(defmethod write-declaration ((oneof protobuf:oneof-descriptor) depth message)
  (with-block (depth "oneof ~A" (protobuf:descriptor-name oneof))
    (dolist (field (and message (protobuf:message-descriptor-fields message)))
      (when (in-oneof-p field oneof) (write-declaration field (1+ depth) message)))))

(defun in-oneof-p (field oneof)
  (equal (protobuf:field-descriptor-oneof field) (protobuf:descriptor-name oneof)))

(defun map-entry (field message)
  "The entry message, in MESSAGE, of FIELD if that is a map."
  (and message
       (find-if (lambda (inner)
                  (and (protobuf:message-descriptor-map-entry-p inner)
                       (equal (protobuf:descriptor-full-name inner)
                              (protobuf:field-descriptor-type-name field))))
                (protobuf:message-descriptor-messages message))))

(defun type-text (field)
  (if (protobuf:field-descriptor-type-name field)
      (format nil ".~A" (protobuf:field-descriptor-type-name field))
      (string-downcase (protobuf:field-descriptor-type field))))

(defun label-text (field)
  "The label to write before FIELD, with a space behind it, or \"\"."
  (cond ((protobuf:field-descriptor-oneof field) "")
        ((eq :optional (protobuf:field-descriptor-label field))
         (if (and (eq :explicit (protobuf:field-descriptor-presence field))
                  (not (member (protobuf:field-descriptor-type field) '(:message :group))))
             "optional "
             ""))
        (t (format nil "~(~A~) " (protobuf:field-descriptor-label field)))))

(defmethod write-declaration ((field protobuf:field-descriptor) depth message)
  (let ((entry (map-entry field message)))
    (write-declared depth "~A~A ~A = ~D;"
                    (if entry "" (label-text field))
                    (if entry
                        (format nil "map<~{~A~^, ~}>"
                                (mapcar #'type-text (protobuf:message-descriptor-fields entry)))
                        (type-text field))
                    (protobuf:descriptor-name field) (protobuf:field-descriptor-number field))))

(defmethod write-declaration ((message protobuf:message-descriptor) depth outer)
  (declare (ignore outer))
  (let ((open '()))
    (with-block (depth "message ~A" (protobuf:descriptor-name message))
      (dolist (field (protobuf:message-descriptor-fields message))
        (let ((oneof (find-if (lambda (oneof) (in-oneof-p field oneof))
                              (protobuf:message-descriptor-oneofs message))))
          (cond ((null oneof) (write-declaration field (1+ depth) message))
                ((not (member oneof open))
                 (push oneof open)
                 (write-declaration oneof (1+ depth) message)))))
      (dolist (enum (protobuf:message-descriptor-enums message))
        (write-declaration enum (1+ depth) message))
      (dolist (inner (protobuf:message-descriptor-messages message))
        (unless (protobuf:message-descriptor-map-entry-p inner)
          (write-declaration inner (1+ depth) message))))))
