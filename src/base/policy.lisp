;;;; The one optimisation policy. Hot functions are defined with DEFINE-HOT, which declares argument
;;;; and result types to the compiler and compiles at (safety 1): types and bounds are still
;;;; checked. DEFINE-LEAF is for the few small functions at (safety 0): their names begin with %,
;;;; their callers have checked every bound, and (LEAVES) lists them all for the fuzz tests.
;;;;
;;;; DOCUMENT-FUNCTIONS and DEFINE-PRINTER are here because every folder uses them, too.

(in-package #:clgrpc.base)

(defglobal **leaves** '())

(defun leaves ()
  "Return the list of the names of all functions that check nothing: the functions of DEFINE-LEAF,
which are compiled at (safety 0), and all kernels."
  (append (clgrpc.kernel:kernels) **leaves**))

(defun note-leaf (name)
  (pushnew name **leaves**))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun parse-typed-lambda-list (lambda-list)
    "Split a LAMBDA-LIST of name, (name type) and, after &optional or &key, (name type default)
parameters. Return the plain lambda list, the type declarations and the argument part of an ftype."
    (let ((plain '()) (declarations '()) (types '()) (mode :required))
      (dolist (item lambda-list)
        (cond ((member item '(&optional &key))
               (setf mode item)
               (push item plain)
               (push item types))
              (t
               (destructuring-bind (name &optional (type t) default)
                   (if (listp item) item (list item))
                 (push (if (eq mode :required) name `(,name ,default)) plain)
                 (push (if (eq mode '&key) (list (intern (string name) :keyword) type) type) types)
                 (push `(type ,type ,name) declarations)))))
      (values (nreverse plain) (nreverse declarations) (nreverse types))))

  (defun expand-definition (name lambda-list result body quality extra)
    (destructuring-bind (name &key inline) (if (consp name) name (list name))
      (multiple-value-bind (plain declarations types) (parse-typed-lambda-list lambda-list)
        (let ((documentation (when (and (stringp (first body)) (rest body)) (list (pop body)))))
          `(progn
             (declaim (ftype (function ,types (values ,@(if (and (consp result)
                                                                 (eq (first result) 'values))
                                                            (rest result)
                                                            (list result))
                                                      &optional))
                             ,name)
                      ,@(when inline `((inline ,name))))
             ,@extra
             (defun ,name ,plain
               ,@documentation
               (declare ,@declarations (optimize ,@quality))
               ,@body)))))))

(defmacro define-hot (name lambda-list result &body body)
  "Define a function of the hot path. NAME is a symbol or (symbol :inline t). LAMBDA-LIST has name
or (name type) for required parameters, and (name type default) for &optional and &key parameters.
RESULT is a type or (values type…). Compiled at speed 1, safety 1, debug 0: types and bounds are
checked."
  (expand-definition name lambda-list result body '((speed 1) (safety 1) (debug 0)) '()))

(defmacro define-leaf (name lambda-list result &body body)
  "Define NAME, a small function at safety 0 whose callers have checked every bound. NAME must begin
with %. Otherwise the macro is like DEFINE-HOT."
  (let ((symbol (if (consp name) (first name) name)))
    (assert (char= #\% (char (string symbol) 0)) () "A leaf's name begins with %: ~S" symbol)
    (expand-definition name lambda-list result body '((speed 1) (safety 0) (debug 0))
                       `((note-leaf ',symbol)))))

(defmacro document-functions (&rest names-and-texts)
  "Set the documentation of functions that DEFSTRUCT or DEFINE-CONDITION has made. NAMES-AND-TEXTS
are alternately names and texts."
  `(setf ,@(loop for (name text) on names-and-texts by #'cddr
                 collect `(documentation ',name 'function)
                 collect text)))

(defun install-printer (type function)
  "Let PRINT-OBJECT write an object of TYPE, a class name, between #< and > by calling FUNCTION with
the object and the stream."
  (add-method #'print-object
              (make-instance 'standard-method
                             :lambda-list '(object stream)
                             :specializers (list (find-class type) (find-class t))
                             :function (lambda (arguments next-methods)
                                         (declare (ignore next-methods))
                                         (destructuring-bind (object stream) arguments
                                           (print-unreadable-object (object stream :type t)
                                             (funcall function object stream)))))))

(defmacro define-printer ((object type) &body control-and-arguments)
  "Let PRINT-OBJECT write an OBJECT of TYPE between #< and >: its type, and the text that FORMAT
makes of CONTROL-AND-ARGUMENTS, forms that may refer to OBJECT."
  (let ((stream (gensym "STREAM")))
    `(install-printer ',type
                      (lambda (,object ,stream)
                        (declare (type ,type ,object) (ignorable ,object))
                        (format ,stream ,@control-and-arguments)))))
