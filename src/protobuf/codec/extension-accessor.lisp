;;;; Definitions of extensions: the slot that a definition makes of its field, the functions of an
;;;; extension that users call, and the names of these in the expansion of DEFINE-PROTO.

(in-package #:clgrpc.protobuf)

(defun extension-field-slot (field)
  (let ((slot (field-slot field (constantly nil)))
        (extendee (find-descriptor (field-descriptor-extendee field))))
    (setf (slot-presence slot) :extension
          (slot-item-p slot) (and extendee (message-descriptor-message-set-p extendee)))
    slot))

(defun replace-extension (type old new)
  "Make NEW an extension slot of TYPE, replacing OLD; NEW or OLD may be nil."
  (let ((table (make-hash-table)))
    (when (message-type-extensions type)
      (maphash (lambda (number slot)
                 (unless (eq slot old) (setf (gethash number table) slot)))
               (message-type-extensions type)))
    (when new (setf (gethash (slot-number new) table) new))
    (setf (message-type-extensions type) table)))

(defun same-extension-p (a b)
  "True if the extension slots A and B are equal in all properties that coders depend on."
  (flet ((facts (slot)
           (let ((field (slot-field slot)))
             (list* (field-descriptor-extendee field) (slot-item-p slot)
                    (field-facts field nil)))))
    (and a b (equalp (facts a) (facts b)))))

(defun install-extension (full-name symbol)
  "Make the registered definition of the extension FULL-NAME the current one; SYMBOL is its
accessor."
  (let* ((field (find-descriptor full-name))
         (extension (intern-extension full-name))
         (old (extension-slot extension))
         (slot (extension-field-slot field)))
    (cond ((same-extension-p old slot) (setf (slot-field old) field))
          (t
           (when old (replace-extension (extension-extendee extension) old nil))
           (setf (extension-slot extension) slot)
           (replace-extension (extension-extendee extension) nil slot)
           (note-definition)))
    (setf (extension-symbol extension) symbol
          (slot-reader (extension-slot extension)) symbol
          (get symbol 'owner) full-name)
    (install-extension-functions extension symbol)
    extension))

(defun extended-message (message extension)
  "The current message for MESSAGE; EXTENSION must extend it."
  (let ((type (extension-extendee extension)))
    (unless (and (message-p message) (eq type (message-type-of message)))
      (error 'type-error :datum message :expected-type (message-type-symbol type)))
    (current message)))

(defun install-extension-functions (extension symbol)
  "Define the accessor SYMBOL of EXTENSION, and the functions that test for it and clear it."
  (let ((name (extension-name extension)))
    (install-function
     symbol
     (lambda (message)
       (slot-user-value (extended-message message extension) (extension-slot extension)))
     (field-documentation (extension-slot extension)))
    (install-function
     `(setf ,symbol)
     (lambda (value message)
       (let ((slot (extension-slot extension)))
         (set-slot (extended-message message extension) slot (to-stored slot value))
         value)))
    (install-function
     (public-name "HAS-~A" symbol)
     (lambda (message)
       (and (slot-present-p (extended-message message extension) (extension-slot extension)) t))
     (format nil "Return true if the extension ~A is present." name))
    (install-function
     (public-name "CLEAR-~A" symbol)
     (lambda (message)
       (clear-slot (extended-message message extension) (extension-slot extension))
       message)
     (format nil "Make the extension ~A absent; return MESSAGE." name))))

;;; Names

(defun extension-symbols (file taken)
  "Return an alist from the full name of each extension that FILE declares to its accessor. TAKEN
are the symbols of other functions of the package."
  (let ((pairs '()))
    (flet ((free-p (symbol full-name)
             (let ((names (list symbol (public-name "HAS-~A" symbol)
                                (public-name "CLEAR-~A" symbol))))
               (and (null (intersection names taken))
                    (equal full-name (get symbol 'owner full-name))
                    (setf taken (append names taken))))))
      (map-extensions
       (lambda (field)
         (let* ((full-name (descriptor-full-name field))
                (symbol (intern (local-lisp-name field file)
                                (find-package (file-lisp-package file)))))
           (push (cons full-name
                       (find-if (lambda (symbol) (free-p symbol full-name))
                                (list symbol (public-name "~A-EXTENSION" symbol)
                                      (public-name "~A-~D" symbol
                                                   (field-descriptor-number field)))))
                 pairs)))
       file))
    (nreverse pairs)))

(defun extension-names (symbols)
  "Return the symbols of the functions for SYMBOLS, an alist that EXTENSION-SYMBOLS returned."
  (loop for (nil . symbol) in symbols
        append (list symbol (public-name "HAS-~A" symbol) (public-name "CLEAR-~A" symbol))))
