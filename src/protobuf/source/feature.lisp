;;;; The differences between proto2, proto3 and editions, as features (protobuf.dev, "Feature
;;;; settings for editions"). The three older syntaxes are rows of defaults; a file with an edition
;;;; may override features at any level, and inner declarations inherit them. Code in later files
;;;; tests features and not the syntax, except where the grammar itself forbids something.
;;;;
;;;; A feature set is a plist from keyword to keyword, kept in DESCRIPTOR-FEATURES. Features that
;;;; extensions add for other languages stay in the options and have no effect here.

(in-package #:clgrpc.protobuf)

(defparameter *feature-defaults*
  (flet ((row (key &rest features)
           (list* key :message-encoding :length-prefixed features)))
    (list (row :proto2 :field-presence :explicit :enum-type :closed
               :repeated-field-encoding :expanded :utf8-validation :none
               :json-format :legacy-best-effort :enforce-naming-style :style-legacy
               :default-symbol-visibility :export-all)
          (row :proto3 :field-presence :implicit :enum-type :open
               :repeated-field-encoding :packed :utf8-validation :verify :json-format :allow
               :enforce-naming-style :style-legacy :default-symbol-visibility :export-all)
          (row "2023" :field-presence :explicit :enum-type :open
               :repeated-field-encoding :packed :utf8-validation :verify :json-format :allow
               :enforce-naming-style :style-legacy :default-symbol-visibility :export-all)
          (row "2024" :field-presence :explicit :enum-type :open
               :repeated-field-encoding :packed :utf8-validation :verify :json-format :allow
               :enforce-naming-style :style2024
               :default-symbol-visibility :export-top-level)))
  "The features of a file that sets none itself, by syntax or edition.")

(defun feature-keyword (name)
  "Return the keyword for NAME, which is the name of a feature or of a feature's value. Return a
string if no such keyword exists. None is made, because files of peers may declare any features, and
keywords are never freed."
  (let ((name (substitute #\- #\_ (string-upcase name))))
    (or (find-symbol name '#:keyword) name)))

(defun feature-of (descriptor feature)
  (getf (descriptor-features descriptor) feature))

(defun written-features (descriptor)
  "Return the features that the options of DESCRIPTOR set, as one record, or nil if they set none."
  (let ((records (record-values (options-record descriptor) "features")))
    (and records (merge-records records))))

(defun written-feature (descriptor name)
  "Return the value of the feature NAME that DESCRIPTOR itself sets, as a keyword, or nil if it does
not set it."
  (getf (own-features descriptor) (feature-keyword name)))

(defun feature-value-keyword (field number)
  "The keyword of the value NUMBER of the feature FIELD; nil for the unknown value."
  (let ((value (enum-value-numbered (find-thing (field-descriptor-type-name field)) number)))
    (and value (plusp number) (feature-keyword (descriptor-name value)))))

(defun own-features (descriptor)
  "Return a plist of the features that the options of DESCRIPTOR set, with each feature once."
  (when-let ((record (written-features descriptor)))
    (loop for (field . values) in (group-entries record)
          unless (field-descriptor-extendee field)
            append (list (feature-keyword (descriptor-name field))
                         (feature-value-keyword field (first (last values)))))))

(defun resolve-own-features (descriptor inherited)
  "Set the features of DESCRIPTOR to the features INHERITED, as changed by its own features."
  (let ((own (own-features descriptor))
        (kind (if (file-descriptor-p descriptor) :edition :name)))
    (when (and (written-features descriptor) (not (file-descriptor-edition (linked-file))))
      (complain descriptor kind "features exist in editions only"))
    (loop for (feature value) on own by #'cddr
          unless value
            do (complain descriptor kind "the feature ~(~A~) has a value that means nothing"
                         feature))
    (setf (descriptor-features descriptor)
          (append (loop for (feature value) on own by #'cddr
                        when value append (list feature value))
                  inherited))))

(defun map-inheriting (function file)
  "Call FUNCTION with two arguments, a descriptor of FILE and the descriptor whose features it
inherits, for every descriptor, outermost first and in protoc's order."
  (labels ((visit-enum (enum around)
             (funcall function enum around)
             (dolist (value (enum-descriptor-values enum)) (funcall function value enum)))
           (visit-fields (message)
             (let ((oneofs (index-by #'descriptor-name (message-descriptor-oneofs message)
                                     :test 'equal)))
               (dolist (field (message-descriptor-fields message))
                 (funcall function field
                          (gethash (field-descriptor-oneof field) oneofs message)))))
           (visit-message (message around)
             (funcall function message around)
             (dolist (enum (message-descriptor-enums message)) (visit-enum enum message))
             (dolist (oneof (message-descriptor-oneofs message)) (funcall function oneof message))
             (visit-fields message)
             (dolist (inner (message-descriptor-messages message)) (visit-message inner message))
             (dolist (field (message-descriptor-extensions message))
               (funcall function field message))
             (dolist (range (message-descriptor-extension-ranges message))
               (funcall function range message))))
    (funcall function file nil)
    (dolist (message (file-descriptor-messages file)) (visit-message message file))
    (dolist (enum (file-descriptor-enums file)) (visit-enum enum file))
    (dolist (field (file-descriptor-extensions file)) (funcall function field file))
    (dolist (service (file-descriptor-services file))
      (funcall function service file)
      (dolist (method (service-descriptor-methods service))
        (funcall function method service)))))

(defun resolve-features (file)
  "Set the features of every descriptor of FILE."
  (let ((defaults (rest (assoc (or (file-descriptor-edition file) (file-descriptor-syntax file))
                               *feature-defaults* :test #'equal))))
    (map-inheriting (lambda (descriptor around)
                      (resolve-own-features descriptor (if around
                                                           (descriptor-features around)
                                                           defaults))
                      (when (enum-descriptor-p descriptor)
                        (setf (enum-descriptor-closed-p descriptor)
                              (eq :closed (feature-of descriptor :enum-type)))))
                    file)))

;;; Features by edition

(defun edition-number (file)
  "The number that descriptor.proto gives the edition of FILE."
  (cond ((equal "2023" (file-descriptor-edition file)) 1000)
        ((equal "2024" (file-descriptor-edition file)) 1001)
        ((eq :proto3 (file-descriptor-syntax file)) 999)
        (t 998)))

(defun check-feature-support (descriptor thing)
  "Check that THING, a feature or a feature's value that DESCRIPTOR uses, exists in the edition of
the file."
  (dolist (support (any-option-of thing "feature_support"))
    (let ((edition (edition-number (linked-file))))
      (when (< edition (record-value support "edition_introduced" 0))
        (complain descriptor :name "the feature ~A comes with a later edition"
                  (descriptor-full-name thing)))
      (when (>= edition (record-value support "edition_removed" most-positive-fixnum))
        (complain descriptor :name "the feature ~A was removed in this edition"
                  (descriptor-full-name thing))))))

(defun check-feature-lifetimes (file)
  "Check that the edition of FILE has the features that FILE sets."
  (labels ((check (descriptor record)
             (loop for (field . values) in (group-entries record)
                   for value = (first (last values))
                   do (cond ((and (field-descriptor-extendee field) (record-p value))
                             (check descriptor value))
                            (t
                             (when (eq :enum (field-descriptor-type field))
                               (check-feature-value descriptor field value))
                             (check-feature-support descriptor field)))))
           (check-feature-value (descriptor field number)
             (let ((value (enum-value-numbered
                           (find-thing (field-descriptor-type-name field)) number)))
               (when value (check-feature-support descriptor value)))))
    (map-inheriting (lambda (descriptor around)
                      (declare (ignore around))
                      (let ((record (written-features descriptor)))
                        (when record (check descriptor record))))
                    file)))
