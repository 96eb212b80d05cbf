;;;; The way from a Lisp name to the line of the .proto file for which it was defined. Editors
;;;; request this line: M-. in SLIME and Sly calls SB-INTROSPECT, whose answers are corrected here.
;;;;
;;;; SBCL keeps the source of a function with its code, and accessors share their code. For a class
;;;; or a generic function SBCL keeps the number of a Lisp form, and a .proto file has no such
;;;; forms. So the position is looked up in the descriptors when an editor asks for it, and a
;;;; definition has no cost.

(in-package #:clgrpc.protobuf)

;;; Which descriptor a name was made for

(defun made-from-p (symbol base &rest affixes)
  "True if the name of SYMBOL consists of a prefix, the name of BASE, a symbol of the same package,
and a suffix. AFFIXES are conses of a prefix and a suffix."
  (and base
       (eq (symbol-package symbol) (symbol-package base))
       (loop for (before . after) in affixes
               thereis (string= (symbol-name symbol)
                                (concatenate 'string before (symbol-name base) after)))))

(defun field-function-p (symbol reader)
  "True if SYMBOL is READER, a field's accessor, or names another function of the field."
  (made-from-p symbol reader '("" . "") '("HAS-" . "") '("CLEAR-" . "")))

(defun part-of-function (message symbol)
  "Return the descriptor for which the function SYMBOL was made, MESSAGE itself or a descriptor in
it, or nil if it was made for another."
  (let* ((type (find-message-type (descriptor-full-name message)))
         (layout (and type (message-type-layout type))))
    (flet ((same (descriptor candidates)
             ;; the current descriptor, since the layout of an unchanged message has the previous
             ;; one
             (find (descriptor-name descriptor) candidates :key #'descriptor-name
                                                           :test #'string=)))
      (cond ((null layout) nil)
            ((made-from-p symbol (message-type-symbol type) '("MAKE-" . "") '("" . "-P")) message)
            (t (loop for slot across (layout-slots layout)
                     for oneof = (slot-oneof slot)
                     when (field-function-p symbol (slot-reader slot))
                       return (same (slot-field slot) (message-descriptor-fields message))
                     when (and oneof
                               (made-from-p symbol (oneof-slot-reader oneof) '("" . "")
                                            '("" . "-CASE") '("CLEAR-" . "")))
                       return (same (oneof-slot-descriptor oneof)
                                    (message-descriptor-oneofs message))))))))

(defun part-named (descriptor symbol kind)
  "Return the descriptor for which the definition named SYMBOL was made, if it is DESCRIPTOR or, for
a message, a declaration inside DESCRIPTOR; else nil. KIND is :FUNCTION, :GENERIC-FUNCTION,
:STRUCTURE, :CLASS or :TYPE."
  (flet ((named-p (wanted name) (and (eq kind wanted) (eq symbol name) descriptor)))
    (etypecase descriptor
      (message-descriptor
       (if (eq kind :function)
           (part-of-function descriptor symbol)
           (named-p :structure (message-descriptor-symbol descriptor))))
      (field-descriptor
       (let ((extension (and (eq kind :function)
                             (field-descriptor-extendee descriptor)
                             (gethash (descriptor-full-name descriptor) **extensions**))))
         (and extension (field-function-p symbol (extension-symbol extension)) descriptor)))
      (enum-descriptor (named-p :type (enum-descriptor-symbol descriptor)))
      (service-descriptor (named-p :class (service-descriptor-symbol descriptor)))
      (method-descriptor (named-p :generic-function (method-descriptor-symbol descriptor)))
      (descriptor nil))))

(defun find-definition (name kind)
  "Return two values: the descriptor for which NAME, a symbol or (SETF symbol), was defined as a
KIND, and the descriptor's file. Return nil if NAME was not defined for a descriptor."
  (let ((symbol (if (consp name) (second name) name)))
    (when (and (symbolp symbol) (symbol-package symbol))
      (dolist (file (sb-ext:with-locked-hash-table (**files**)
                      (loop for file being the hash-values of **files** collect file)))
        (map-names (lambda (descriptor owner)
                     (declare (ignore owner))
                     (let ((part (part-named descriptor symbol kind)))
                       (when part (return-from find-definition (values part file)))))
                   file)))))

;;; Its place

(defun character-offset (text line column)
  "The number of characters of TEXT before LINE and COLUMN, as counted by the lexer."
  (let ((lexer (make-lexer :text (coerce text '(simple-array character (*))))))
    (loop while (and (or (< (lexer-line lexer) line)
                         (and (= (lexer-line lexer) line) (< (lexer-column lexer) column)))
                     (advance lexer)))
    (lexer-at lexer)))

(defun correct-source (source name kind)
  "Change SOURCE, SBCL's definition source of NAME as a KIND, so that it refers to the .proto file
that defined NAME, if that file was read from disk. Return SOURCE."
  (multiple-value-bind (descriptor file) (find-definition name kind)
    (let* ((path (and descriptor (file-descriptor-source file)))
           (pathname (and path (parse-native path)))
           (there (and path (probe-file pathname))))
      (when path
        (setf (sb-introspect:definition-source-pathname source) pathname
              (sb-introspect:definition-source-file-write-date source)
              (and there (file-write-date there))
              (sb-introspect:definition-source-plist source) '()
              (sb-introspect:definition-source-form-path source) '()
              (sb-introspect:definition-source-form-number source) nil
              (sb-introspect:definition-source-character-offset source)
              (and there (character-offset (read-source there) (descriptor-line descriptor)
                                           (descriptor-column descriptor)))))
      source)))

;;; The answers of SB-INTROSPECT

(defgeneric defined-as (object)
  (:documentation "Return two values: the name under which a .proto file may have defined OBJECT, a
class, generic function or method, and the kind for FIND-DEFINITION. Return nil for other objects.")
  (:method (object)
    (declare (ignore object))
    nil)
  (:method ((object class)) (values (class-name object) :class))
  (:method ((object structure-class)) (values (class-name object) :structure))
  (:method ((object generic-function))
    (values (sb-mop:generic-function-name object) :generic-function)))

(defun object-source (function object)
  "Call FUNCTION, which is FIND-DEFINITION-SOURCE, with OBJECT, correct the source that it returns,
and return that source."
  (let ((source (funcall function object)))
    (multiple-value-bind (name kind) (defined-as object)
      (if (and source name) (correct-source source name kind) source))))

(defun named-sources (function name kind)
  "Call FUNCTION, which is FIND-DEFINITION-SOURCES-BY-NAME, with NAME and KIND, and return the
sources corrected. FUNCTION looks up classes, generic functions and methods with
FIND-DEFINITION-SOURCE, which corrects their sources."
  (let ((sources (funcall function name kind)))
    (if (member kind '(:function :type))
        (mapcar (lambda (source) (correct-source source name kind)) sources)
        sources)))

(sb-int:encapsulate 'sb-introspect:find-definition-source 'define-proto #'object-source)
(sb-int:encapsulate 'sb-introspect:find-definition-sources-by-name 'define-proto #'named-sources)
