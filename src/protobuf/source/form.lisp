;;;; .proto files as Lisp forms, which `clgrpc gen` writes and DEFINE-FILE reads. A form is the
;;;; declaration, not the code made from it, so a generated file stays valid when clgrpc changes,
;;;; can be read and compared, and needs neither the .proto file nor its directory.
;;;;
;;;;   (clgrpc.protobuf:define-file "shop.proto" (:package "shop" :syntax :proto3)
;;;;     (:message "Item" (:comment "What can be bought.")
;;;;       (:field "name" 1 :string)
;;;;       (:field "tags" 2 :string :label :repeated)
;;;;       (:field "maker" 3 (:message "shop.Maker"))
;;;;       (:map "stock" 4 :string :int32))
;;;;     (:enum "Size" () (:value "SMALL" 0) (:value "LARGE" 1))
;;;;     (:service "Shop" () (:method "Find" "shop.Query" "shop.Item" :server-streaming t)))
;;;;
;;;; Names of types are full. Options are in text format, or octets if they have an extension that
;;;; the writing image did not know. Fields come in order. A message inside a message stands where
;;;; it was among the messages and maps of the source, since each map has a message type too.

(in-package #:clgrpc.protobuf)

;;; Options

(defun options-message-type (descriptor)
  (find-message-type (options-type descriptor)))

(defun options-form (descriptor)
  "The options of DESCRIPTOR as text, or as octets if they would not survive as that, or nil."
  (let ((octets (descriptor-option-octets descriptor)))
    (when (plusp (length octets))
      (let* ((type (options-message-type descriptor))
             (message (parse-message type octets :partial t))
             (text (message-text message :single-line t)))
        (if (message= message (parse-text-message type text :partial t))
            (string-trim " " text)
            (coerce octets 'simple-vector))))))

(defun set-options (descriptor options)
  (let ((octets (etypecase options
                  (null nil)
                  (string (serialize (parse-text-message (options-message-type descriptor) options
                                                         :partial t)
                                     :partial t))
                  (vector (coerce options 'octets)))))
    (setf (descriptor-option-octets descriptor) octets
          (descriptor-source-option-octets descriptor) octets)
    descriptor))

;;; Writing

(defun properties (descriptor &rest more)
  "The plist of MORE without nils, and the options and comment of DESCRIPTOR."
  (append (loop for (key value) on more by #'cddr
                when value append (list key value))
          (let ((options (options-form descriptor)))
            (and options (list :options options)))
          (and (descriptor-comment descriptor) (list :comment (descriptor-comment descriptor)))))

(defun type-form-of (field)
  (if (field-descriptor-type-name field)
      (list (field-descriptor-type field) (field-descriptor-type-name field))
      (field-descriptor-type field)))

(defun non-default-json-name (field)
  (let ((name (field-descriptor-json-name field)))
    (and (string/= name (json-name (descriptor-name field))) name)))

(defun default-form (text)
  (if (typep text 'octets)
      (handler-case (octets-string text)
        (invalid-utf8 () (coerce text 'simple-vector)))
      text))

(defun field-form (field)
  (list* :field (descriptor-name field) (field-descriptor-number field) (type-form-of field)
         (properties field
                     :extendee (field-descriptor-extendee field)
                     :label (let ((label (field-descriptor-label field)))
                              (and (not (eq :optional label)) label))
                     :optional (field-descriptor-proto3-optional-p field)
                     :oneof (field-descriptor-oneof field)
                     :default (default-form (field-descriptor-default-text field))
                     :json-name (non-default-json-name field))))

(defun map-form (field entry)
  (destructuring-bind (key value) (message-descriptor-fields entry)
    (list* :map (descriptor-name field) (field-descriptor-number field) (type-form-of key)
           (type-form-of value)
           (properties field :json-name (non-default-json-name field)))))

(defun plain-entry-p (entry)
  "True if the map entry ENTRY is as :MAP would make it."
  (and (null (descriptor-comment entry))
       (equalp (options-form entry) "map_entry: true")
       (every (lambda (field) (null (options-form field))) (message-descriptor-fields entry))))

(defun range-forms (ranges)
  (loop for (first . last) in ranges collect (list :reserved first last)))

(defun reserved-name-forms (names)
  (loop for name in names collect (list :reserved name)))

(defun field-forms (message)
  "The fields of MESSAGE and the messages inside it, in an order that keeps both orders."
  (let ((inside (message-descriptor-messages message)) (entries (map-entries message))
        (forms '()))
    (dolist (field (message-descriptor-fields message))
      (let ((entry (map-entry-of field entries)))
        (cond ((and entry (plain-entry-p entry))
               (loop until (eq entry (first inside))
                     do (push (message-form (pop inside)) forms))
               (pop inside)
               (push (map-form field entry) forms))
              (t (push (field-form field) forms)))))
    (append (nreverse forms) (mapcar #'message-form inside))))

(defun extension-range-form (range)
  (list* :extensions (extension-range-first range) (extension-range-last range)
         (properties range)))

(defun message-form (message)
  `(:message ,(descriptor-name message)
     ,(properties message :visibility (message-descriptor-visibility message)
                          :map-entry (message-descriptor-map-entry-p message))
     ,@(loop for oneof in (message-descriptor-oneofs message)
             collect (list* :oneof (descriptor-name oneof) (properties oneof)))
     ,@(field-forms message)
     ,@(mapcar #'enum-form (message-descriptor-enums message))
     ,@(mapcar #'field-form (message-descriptor-extensions message))
     ,@(mapcar #'extension-range-form (message-descriptor-extension-ranges message))
     ,@(range-forms (message-descriptor-reserved-ranges message))
     ,@(reserved-name-forms (message-descriptor-reserved-names message))))

(defun enum-form (enum)
  `(:enum ,(descriptor-name enum)
     ,(properties enum :visibility (enum-descriptor-visibility enum))
     ,@(loop for value in (enum-descriptor-values enum)
             collect (list* :value (descriptor-name value) (enum-value-descriptor-number value)
                            (properties value)))
     ,@(range-forms (enum-descriptor-reserved-ranges enum))
     ,@(reserved-name-forms (enum-descriptor-reserved-names enum))))

(defun service-form (service)
  `(:service ,(descriptor-name service) ,(properties service)
     ,@(loop for method in (service-descriptor-methods service)
             collect (list* :method (descriptor-name method) (method-descriptor-input method)
                            (method-descriptor-output method)
                            (properties method
                                        :client-streaming
                                        (method-descriptor-client-streaming-p method)
                                        :server-streaming
                                        (method-descriptor-server-streaming-p method))))))

(defun file-form (file)
  "The DEFINE-FILE form of FILE, a linked file descriptor."
  `(define-file ,(descriptor-name file)
       ,(properties file
                    :package (and (string/= "" (file-descriptor-package file))
                                  (file-descriptor-package file))
                    :syntax (file-descriptor-syntax file)
                    :edition (file-descriptor-edition file)
                    :imports (file-descriptor-dependencies file)
                    :public-imports (file-descriptor-public-dependencies file)
                    :weak-imports (file-descriptor-weak-dependencies file)
                    :option-imports (file-descriptor-option-dependencies file))
     ,@(mapcar #'message-form (file-descriptor-messages file))
     ,@(mapcar #'enum-form (file-descriptor-enums file))
     ,@(mapcar #'field-form (file-descriptor-extensions file))
     ,@(mapcar #'service-form (file-descriptor-services file))))

;;; Reading

(defun give-name (descriptor name scope options comment)
  "Fill in what every DESCRIPTOR has. Return it."
  (setf (descriptor-name descriptor) name
        (descriptor-full-name descriptor) (if (string= "" scope) name
                                              (format nil "~A.~A" scope name))
        (descriptor-comment descriptor) comment)
  (set-options descriptor options))

(defun absolute-name (name)
  (and name (format nil ".~A" name)))

(defun typed-field (field type)
  (setf (values (field-descriptor-type field) (field-descriptor-type-name field))
        (if (consp type)
            (values (first type) (absolute-name (second type)))
            type))
  field)

(defun read-field-form (scope name number type
                        &key extendee (label :optional) optional oneof default
                          (json-name (json-name name)) options comment)
  (let ((field (typed-field (make-field-descriptor
                             :number number :label label :labelled-p t
                             :extendee (absolute-name extendee) :oneof oneof
                             :proto3-optional-p optional :json-name json-name)
                            type)))
    (when default
      (setf (values (field-descriptor-default-text field) (field-descriptor-default field))
            (read-default (field-descriptor-type field)
                          (if (stringp default) (string-octets default)
                              (coerce default 'octets)))))
    (give-name field name scope options comment)))

(defun map-entry-form (scope name key value)
  "The entry message of the map field NAME of the message SCOPE."
  (read-message-form scope (map-entry-name name) '(:map-entry t :options "map_entry: true")
                     `((:field "key" 1 ,key) (:field "value" 2 ,value))))

(defun read-message-form (scope name properties items)
  (destructuring-bind (&key visibility map-entry options comment) properties
    (let* ((message (give-name (make-message-descriptor :visibility visibility
                                                        :map-entry-p map-entry)
                               name scope options comment))
           (inside (descriptor-full-name message)))
      (dolist (item items)
        (read-message-item message inside item))
      (setf (message-descriptor-message-set-p message) (option-flag-p message 1))
      (reverse-lists message)
      message)))

(defun read-message-item (message inside item)
  (destructuring-bind (kind name . rest) item
    (ecase kind
      (:field (let ((field (apply #'read-field-form inside (rest item))))
                (if (field-descriptor-extendee field)
                    (push field (message-descriptor-extensions message))
                    (push field (message-descriptor-fields message)))))
      (:map (destructuring-bind (number key value &rest properties) rest
              (let ((entry (map-entry-form inside name key value)))
                (push entry (message-descriptor-messages message))
                (push (apply #'read-field-form inside name number
                             (list :message (descriptor-full-name entry)) :label :repeated
                             properties)
                      (message-descriptor-fields message)))))
      (:message (push (read-message-form inside name (first rest) (rest rest))
                      (message-descriptor-messages message)))
      (:enum (push (read-enum-form inside name (first rest) (rest rest))
                   (message-descriptor-enums message)))
      (:oneof (destructuring-bind (&key options comment) rest
                (push (give-name (make-oneof-descriptor) name inside options comment)
                      (message-descriptor-oneofs message))))
      (:extensions (destructuring-bind (last &key options comment) rest
                     (push (give-name (make-extension-range :first name :last last) "" inside
                                      options comment)
                           (message-descriptor-extension-ranges message))))
      (:reserved (if (stringp name)
                     (push name (message-descriptor-reserved-names message))
                     (push (cons name (first rest))
                           (message-descriptor-reserved-ranges message)))))))

(defun reverse-lists (message)
  (reverse-places (message-descriptor-fields message) (message-descriptor-extensions message)
                  (message-descriptor-messages message) (message-descriptor-enums message)
                  (message-descriptor-oneofs message)
                  (message-descriptor-extension-ranges message)
                  (message-descriptor-reserved-names message)
                  (message-descriptor-reserved-ranges message)))

(defun read-enum-form (scope name properties items)
  (destructuring-bind (&key visibility options comment) properties
    (let ((enum (give-name (make-enum-descriptor :visibility visibility) name scope options
                           comment)))
      (loop for (kind name . rest) in items
            do (ecase kind
                 (:value (destructuring-bind (number &key options comment) rest
                           (push (give-name (make-enum-value-descriptor :number number) name scope
                                            options comment)
                                 (enum-descriptor-values enum))))
                 (:reserved (if (stringp name)
                                (push name (enum-descriptor-reserved-names enum))
                                (push (cons name (first rest))
                                      (enum-descriptor-reserved-ranges enum))))))
      (reverse-places (enum-descriptor-values enum) (enum-descriptor-reserved-names enum)
                      (enum-descriptor-reserved-ranges enum))
      enum)))

(defun read-service-form (scope name properties methods)
  (destructuring-bind (&key options comment) properties
    (let ((service (give-name (make-service-descriptor) name scope options comment)))
      (setf (service-descriptor-methods service)
            (loop for (nil name input output . rest) in methods
                  collect (destructuring-bind (&key client-streaming server-streaming options
                                                 comment)
                              rest
                            (give-name (make-method-descriptor
                                        :input (absolute-name input)
                                        :output (absolute-name output)
                                        :client-streaming-p client-streaming
                                        :server-streaming-p server-streaming)
                                       name (descriptor-full-name service) options comment))))
      service)))

(defun read-file-form (name properties items)
  "The file descriptor, not linked, of a DEFINE-FILE form."
  (destructuring-bind (&key (package "") (syntax :proto2) edition imports public-imports
                         weak-imports option-imports options comment)
      properties
    (let ((file (give-name (make-file-descriptor
                            :package package :syntax syntax :edition edition
                            :dependencies imports :public-dependencies public-imports
                            :weak-dependencies weak-imports
                            :option-dependencies option-imports)
                           name "" options comment)))
      (loop for (kind name . rest) in items
            do (ecase kind
                 (:message (push (read-message-form package name (first rest) (rest rest))
                                 (file-descriptor-messages file)))
                 (:enum (push (read-enum-form package name (first rest) (rest rest))
                              (file-descriptor-enums file)))
                 (:field (push (apply #'read-field-form package name rest)
                               (file-descriptor-extensions file)))
                 (:service (push (read-service-form package name (first rest) (rest rest))
                                 (file-descriptor-services file)))))
      (reverse-places (file-descriptor-messages file) (file-descriptor-enums file)
                      (file-descriptor-extensions file) (file-descriptor-services file))
      file)))

(defun form-fingerprint (form)
  (with-standard-io-syntax
    (hash-text (prin1-to-string form))))

(defun link-form (name properties items)
  "The linked file descriptor of a DEFINE-FILE form."
  (let ((file (read-file-form name properties items)))
    (link-read-file file #'find-file-descriptor)
    (setf (file-descriptor-fingerprint file) (form-fingerprint (list* name properties items)))
    (assign-symbols file)
    file))

;;; Defining

(defun generated-path (name)
  "The path of the generated file of the .proto file NAME. Signal MISUSE if that could lead out of
the directory for generated files."
  (unless (file-name-p name) (misuse "~A." (file-name-text name)))
  (concatenate 'string (subseq name 0 (- (length name) (if (proto-name-p name) 6 0))) ".lisp"))

(defun proto-name-p (name)
  (let ((start (- (length name) 6)))
    (and (plusp start) (string= ".proto" name :start2 start))))

(defun load-imports (name imports)
  "Load the generated files of those of IMPORTS that are not loaded; they are where generated files
are put that NAME's file, which is being loaded or compiled, was put with."
  (let ((source (or *compile-file-truename* *load-truename*)))
    (dolist (import imports)
      (unless (find-file-descriptor import)
        (let* ((up (count #\/ name))
               (root (and source (butlast (pathname-directory source) up)))
               (file (and root
                          (probe-file
                           (merge-pathnames (parse-native (generated-path import))
                                            (make-pathname :name nil :type nil :version nil
                                                           :directory root :defaults source))))))
          (unless file
            (misuse "~A imports ~A, which is not loaded~@[ nor beside it~]." name import source))
          (load file))))))

(defmacro define-file (name (&rest properties) &body items)
  "Define what ITEMS declare, as DEFINE-PROTO does for a .proto file; `clgrpc gen` writes such
forms. NAME is the file's name, under which others import it. PROPERTIES: :PACKAGE, a string;
:SYNTAX, :proto2, :proto3 or :editions; :EDITION, a string; :IMPORTS, :PUBLIC-IMPORTS,
:WEAK-IMPORTS, :OPTION-IMPORTS, lists of names; :OPTIONS, a string in text format; :COMMENT. ITEMS
are :MESSAGE, :ENUM, :FIELD (an extension, with :EXTENDEE) and :SERVICE, as the example in form.lisp
shows.

What is imported must be loaded, or in generated files beside this one. Signal PROTO-SYNTAX-ERROR.
The value is NAME."
  (let ((imports (append (getf properties :imports) (getf properties :option-imports))))
    `(progn
       ,@(when imports
           `((eval-when (:compile-toplevel :load-toplevel :execute)
               (load-imports ,name ',imports))))
       (define-linked-file ,name ,properties ,@items))))

(defmacro define-linked-file (name properties &body items)
  "DEFINE-FILE with everything that it imports loaded."
  (expand-files (list (link-form name properties items)) (and *compile-file-truename* t)))

;;; As text

(defparameter *form-columns* 98)

(defun print-form (form stream indentation)
  "Write FORM, a part of a DEFINE-FILE form, on lines that begin after INDENTATION spaces."
  (let ((text (one-line form)))
    (if (or (atom form)
            (and (<= (+ indentation (length text)) *form-columns*)
                 (not (member (first form) '(:message :enum :service)))))
        (write-string text stream)
        (print-parted form stream indentation))))

(defun one-line (form)
  (with-standard-io-syntax
    (let ((*print-case* :downcase) (*print-readably* nil) (*package* (find-package '#:common-lisp)))
      (prin1-to-string form))))

(defun fresh-line-at (column stream)
  (format stream "~%~V,0T" column))

(defun print-parted (form stream indentation)
  "Write the list FORM with its head on the first line and the parts below."
  (case (first form)
    ((:message :enum :service)
     (destructuring-bind (kind name properties . items) form
       (format stream "(~(~S~) ~S " kind name)
       (print-properties properties stream (+ indentation 4 (length (string kind)) (length name)))
       (dolist (item items)
         (fresh-line-at (+ 2 indentation) stream)
         (print-form item stream (+ 2 indentation)))
       (write-string ")" stream)))
    (t
     (let ((plain (position-if #'property-p form)))
       (format stream "(~{~A~^ ~}" (mapcar #'one-line (subseq form 0 plain)))
       (loop for (key value) on (nthcdr (or plain (length form)) form) by #'cddr
             do (fresh-line-at (+ 2 indentation) stream)
                (format stream "~(~S~) ~A" key (one-line value)))
       (write-string ")" stream)))))

(defun property-p (item)
  (member item '(:label :optional :oneof :default :json-name :options :comment :extendee
                 :client-streaming :server-streaming)))

(defun print-properties (properties stream column)
  (cond ((<= (+ column (length (one-line properties))) *form-columns*)
         (write-string (if properties (one-line properties) "()") stream))
        (t
         (write-string "(" stream)
         (loop for (key value . more) on properties by #'cddr
               do (format stream "~(~S~) ~A" key (one-line value))
                  (when more (fresh-line-at (1+ column) stream)))
         (write-string ")" stream))))

(defun file-exports (file)
  "The exports of FILE's packages, as an alist from the names of packages to sorted names."
  (let* ((plans (file-plans file))
         (extensions (extension-symbols file (mapcan #'public-functions plans))))
    (loop for (nil package names) in (package-forms file plans extensions)
          collect (cons package (remove-duplicates (mapcar #'string-downcase (second names))
                                                   :test #'string=)))))

(defun print-filled (words stream)
  "Write WORDS as comment lines."
  (let ((column *form-columns*))
    (dolist (word words)
      (when (> (+ column 1 (length word)) *form-columns*)
        (format stream "~%;;;;  ")
        (setf column 6))
      (format stream " ~A" word)
      (incf column (1+ (length word))))))

(defun write-generated-file (file stream)
  "Write to STREAM, a character stream, a Lisp source that defines what FILE, a linked file
descriptor, declares."
  (format stream ";;;; From ~A, by clgrpc. Do not edit: the next run writes it anew.~%;;;;~%~
                  ;;;; Load or compile it with clgrpc~:[/protobuf~;~] loaded."
          (descriptor-name file) (file-descriptor-services file))
  (loop for (package . names) in (file-exports file)
        do (format stream "~%;;;;~%;;;; Package ~A:" package)
           (print-filled names stream))
  (destructuring-bind (define name properties . items) (file-form file)
    (declare (ignore define))
    (format stream "~2%(clgrpc.protobuf:define-file ~S~%    " name)
    (print-properties properties stream 4)
    (dolist (item items)
      (format stream "~%  ")
      (print-form item stream 2))
    (format stream ")~%")))

(defun generated-files (files &optional (wanted files))
  "The generated sources of those of FILES, linked file descriptors, imports first, that are WANTED,
as an alist from paths to texts."
  (let ((*linked* (make-hash-table :test 'equal)))
    (dolist (file files) (note-linked file *linked*))
    (loop for file in wanted
          collect (cons (generated-path (descriptor-name file))
                        (with-output-to-string (stream) (write-generated-file file stream))))))

(defun generate-sources (path &key import-paths (directory (source-directory)))
  "Return what the .proto file PATH and the files it imports declare as Lisp sources, imports first:
an alist from paths, such as \"foo/bar.lisp\" for foo/bar.proto, to texts. Files that every image
has are not among them. PATH is found, and its imports, as DEFINE-PROTO does; relative paths are
meant from DIRECTORY. Signal PROTO-SYNTAX-ERROR, and MISUSE if there is no file PATH."
  (let ((fresh (mapc #'assign-symbols (read-protos path import-paths nil directory '()))))
    (generated-files (with-imports (first (last fresh)) fresh))))

(defun with-imports (file fresh)
  "FILE and all that it imports, directly or not, imports first; what every image has is left out.
FRESH are those that are not registered."
  (let ((files (index-by #'descriptor-name fresh :test 'equal)) (all '()))
    (flet ((file-of (name) (or (gethash name files) (find-file-descriptor name))))
      (walk-imports (list (descriptor-name file))
                    (lambda (name)
                      (remove t (all-imports (file-of name)) :key #'built-in))
                    (lambda (name) (push (file-of name) all))
                    (lambda (name open) (declare (ignore name open)))))
    (nreverse all)))
