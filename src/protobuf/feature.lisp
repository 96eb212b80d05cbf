;;;; What differs between proto2, proto3 and editions, as features (protobuf.dev, "Feature settings
;;;; for editions"): the three older syntaxes are rows of defaults, an edition's file may override
;;;; them at any level, and what stands inside inherits. Behind this file nobody asks for the syntax
;;;; again.
;;;;
;;;; A feature set is a plist from keyword to keyword, kept in DESCRIPTOR-FEATURES.

(in-package #:clgrpc.protobuf)

(defparameter *feature-defaults*
  '((:proto2 :field-presence :explicit :enum-type :closed :repeated-field-encoding :expanded
     :utf8-validation :none :message-encoding :length-prefixed :json-format :legacy-best-effort)
    (:proto3 :field-presence :implicit :enum-type :open :repeated-field-encoding :packed
     :utf8-validation :verify :message-encoding :length-prefixed :json-format :allow)
    ("2023" :field-presence :explicit :enum-type :open :repeated-field-encoding :packed
     :utf8-validation :verify :message-encoding :length-prefixed :json-format :allow)
    ("2024" :field-presence :explicit :enum-type :open :repeated-field-encoding :packed
     :utf8-validation :verify :message-encoding :length-prefixed :json-format :allow))
  "The features a file starts with, by syntax or edition.")

(defparameter *feature-values*
  '((:field-presence :explicit :implicit :legacy-required)
    (:enum-type :open :closed)
    (:repeated-field-encoding :packed :expanded)
    (:utf8-validation :verify :none)
    (:message-encoding :length-prefixed :delimited)
    (:json-format :allow :legacy-best-effort)
    (:enforce-naming-style :style2024 :style-legacy)
    (:default-symbol-visibility :export-all :export-top-level :local-all :strict))
  "Every feature with the values it can have.")

(defun feature-keyword (name)
  (intern (substitute #\- #\_ (string-upcase name)) :keyword))

(defun note-feature (features name value option complain)
  "Return FEATURES with NAME set to VALUE; call COMPLAIN with OPTION and a text if there is no
such."
  (let* ((feature (assoc (feature-keyword name) *feature-values*))
         (value (and (consp value)
                     (eq :identifier (first value))
                     (feature-keyword (second value)))))
    (cond ((null feature)
           (funcall complain option (format nil "unknown feature \"~A\"" name))
           features)
          ((not (member value (rest feature)))
           (funcall complain option (format nil "no value of the feature \"~A\"" name))
           features)
          (t (list* (first feature) value features)))))

(defun own-features (descriptor inherited complain)
  "Return INHERITED with what the options of DESCRIPTOR say about features."
  (let ((features inherited))
    (dolist (option (descriptor-options descriptor) features)
      (destructuring-bind (first &optional second . rest) (option-name option)
        (when (equal first "features")
          (flet ((note (name value)
                   (setf features (note-feature features name value option complain))))
            (cond ((and (stringp second) (null rest))
                   (note second (option-value option)))
                  ((and (null second) (consp (option-value option)))
                   (loop for (name . value) in (rest (option-value option))
                         when (stringp name) do (note name value))))))))))

(defun file-features (file complain)
  "Return the features FILE starts with."
  (let* ((key (or (file-descriptor-edition file) (file-descriptor-syntax file)))
         (row (assoc key *feature-defaults* :test #'equal)))
    (unless row
      (funcall complain file (format nil "unknown edition \"~A\"" key)))
    (own-features file (rest (or row (first *feature-defaults*))) complain)))

(defun resolve-features (file complain)
  "Give every descriptor of FILE its features. COMPLAIN is called with a place and a text."
  (labels ((resolve (descriptor inherited)
             (setf (descriptor-features descriptor) (own-features descriptor inherited complain)))
           (resolve-fields (fields oneofs inherited)
             (dolist (field fields)
               (let ((oneof (find (field-descriptor-oneof field) oneofs
                                  :key #'descriptor-name :test #'equal)))
                 (resolve field (if oneof (descriptor-features oneof) inherited)))))
           (resolve-enum (enum inherited)
             (resolve enum inherited)
             (setf (enum-descriptor-closed-p enum)
                   (eq :closed (getf (descriptor-features enum) :enum-type))))
           (resolve-message (message inherited)
             (let ((features (resolve message inherited)))
               (when (message-descriptor-map-entry-p message) ; whose values are never delimited
                 (setf features (list* :message-encoding :length-prefixed features)))
               (dolist (oneof (message-descriptor-oneofs message)) (resolve oneof features))
               (resolve-fields (message-descriptor-fields message)
                               (message-descriptor-oneofs message) features)
               (resolve-fields (message-descriptor-extensions message) '() features)
               (dolist (enum (message-descriptor-enums message)) (resolve-enum enum features))
               (dolist (inner (message-descriptor-messages message))
                 (resolve-message inner features)))))
    (let ((features (file-features file complain)))
      (setf (descriptor-features file) features)
      (dolist (message (file-descriptor-messages file)) (resolve-message message features))
      (dolist (enum (file-descriptor-enums file)) (resolve-enum enum features))
      (resolve-fields (file-descriptor-extensions file) '() features))))
