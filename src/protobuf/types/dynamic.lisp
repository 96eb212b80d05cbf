;;;; Messages of types that are known from descriptors alone, such as those from a peer's reflection
;;;; or a descriptor set on disk. Nothing is interned or compiled for these types. A TYPE-POOL
;;;; contains such dynamic types. A message of a dynamic type is a DYNAMIC-MESSAGE with a layout
;;;; like any other: the places of its slots are elements of a vector, and its coders are those of
;;;; generic-coder.lisp. So all code that works on slots and message types (FIELD-VALUE, SERIALIZE,
;;;; PARSE-MESSAGE, JSON, text, copying) serves them unchanged. Values of enums of such types are
;;;; strings, the names, or numbers.

(in-package #:clgrpc.protobuf)

(defstruct (type-pool (:constructor %make-type-pool ()) (:copier nil))
  "A set of message and enum types, by full name, from descriptors for which no code was made."
  (files '() :type list)                ; the file descriptors
  (messages (make-hash-table :test 'equal) :type hash-table) ; full name to message type
  (enums (make-hash-table :test 'equal) :type hash-table)) ; full name to enum type

(document-functions
  type-pool-files "The descriptors of the files from which POOL was made.")

(define-printer (pool type-pool)
  "~D message type~:P" (hash-table-count (type-pool-messages pool)))

(defun find-pool-type (pool full-name)
  "Return the message type FULL-NAME of POOL or, if POOL has none, of the image. Return nil if the
image has none either. A function that calls this with POOL can be the :FINDER of readers and
writers of JSON and text format. From any thread."
  (or (gethash full-name (type-pool-messages pool))
      (find-message-type full-name)))

(defun pool-type-object (pool slot)
  "The type of the values of SLOT: a type of POOL, or of the image."
  (let ((name (slot-type-name slot)))
    (flet ((found (types find)
             (or (gethash name types)
                 (funcall find name)
                 (misuse "The type ~A of ~A is neither in the pool nor loaded." name
                         (descriptor-full-name (slot-field slot))))))
      (case (slot-kind slot)
        (:message (found (type-pool-messages pool) #'find-message-type))
        (:enum (found (type-pool-enums pool) #'find-enum-type))))))

;;; Layouts

(defun settle-types (pool slots)
  (dolist (slot slots)
    (setf (slot-type slot) (pool-type-object pool slot))
    (when (slot-entry-value slot)
      (settle-types pool (list (slot-entry-key slot) (slot-entry-value slot))))))

(defun fresh-contents (plan count)
  "The contents of a fresh message of PLAN with COUNT places."
  (let ((contents (make-array count :initial-element nil)))
    (dolist (slot (plan-slots plan))
      (unless (eq :oneof (slot-presence slot))
        (setf (svref contents (slot-place slot))
              (case (slot-label slot)
                (:singular (slot-default slot))
                (:repeated (make-array 0 :element-type (element-type (slot-kind slot))))))))
    (dolist (oneof (plan-oneofs plan))
      (setf (svref contents (oneof-slot-case oneof)) 0))
    (dolist (bits (plan-bits plan) contents)
      (setf (svref contents bits) 0))))

(defun install-dynamic (pool type)
  "Set the layout of the message TYPE of POOL."
  (let* ((count 0)
         (plan (add-fields (make-plan :message (message-type-descriptor type))
                           (lambda (name)
                             (declare (ignore name))
                             (prog1 count (incf count)))))
         (contents (fresh-contents plan count))
         (layout (make-layout :type type :slots (coerce (plan-slots plan) 'simple-vector))))
    (settle-types pool (plan-slots plan))
    (setf (layout-maker layout) (lambda () (make-dynamic-message layout (copy-seq contents)))
          (layout-copier layout) (dynamic-copier (layout-slots layout)))
    (add-generic-coders layout)
    (adopt-layout type layout)))

;;; Pools

(defun add-pool-extension (pool field)
  "Add the extension FIELD to the type of POOL that it extends, if POOL has that type."
  (when-let ((type (gethash (field-descriptor-extendee field) (type-pool-messages pool))))
    (let ((slot (extension-field-slot field)))
      (settle-types pool (list slot))
      (setf (slot-item-p slot) (message-type-message-set-p type))
      (setf (gethash (slot-number slot)
                     (or (message-type-extensions type)
                         (setf (message-type-extensions type) (make-hash-table))))
            slot))))

(defun make-type-pool (source)
  "Return a pool of dynamic types, one for each message and enum that SOURCE declares. SOURCE is a
list of file descriptors or octets, a serialized google.protobuf.FileDescriptorSet. Imports that
SOURCE lacks must be loaded. Nothing is interned or compiled, and the types of the image do not
change. FIND-POOL-TYPE finds the types of the pool, and MAKE-MESSAGE, PARSE-MESSAGE,
PARSE-JSON-MESSAGE and PARSE-TEXT-MESSAGE accept these types. Values of enums of the pool are
strings, such as \"STATUS_OK\", or numbers. Signal PROTOBUF-ERROR if octets are not a descriptor
set, PROTO-SYNTAX-ERROR if the files contradict each other, MISUSE if a type is missing. From any
thread."
  (let ((pool (%make-type-pool))
        (files (if (typep source 'octets) (link-set (set-files source)) source)))
    (setf (type-pool-files pool) files)
    (dolist (file files)
      (map-messages (lambda (message)
                      (let ((type (fresh-message-type (descriptor-full-name message))))
                        (setf (message-type-descriptor type) message
                              (message-type-message-set-p type)
                              (message-descriptor-message-set-p message)
                              (gethash (message-type-name type) (type-pool-messages pool)) type)))
                    file)
      (map-enums (lambda (enum)
                   (let ((name (descriptor-full-name enum)))
                     (setf (gethash name (type-pool-enums pool))
                           (fill-enum (%make-enum-type name) enum
                                      (mapcar #'descriptor-name (enum-descriptor-values enum))
                                      'equal))))
                 file))
    (loop for type being the hash-values of (type-pool-messages pool)
          do (install-dynamic pool type))
    (dolist (file files pool)
      (map-extensions (lambda (field) (add-pool-extension pool field)) file))))
