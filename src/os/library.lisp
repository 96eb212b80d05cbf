;;;; Libraries that are opened when they are first needed, and never otherwise. DEFINE-LIBRARY
;;;; declares a library's functions; OPEN-LIBRARY finds them. A library's functions may be called
;;;; only after OPEN-LIBRARY has returned true. A saved core has no library open. A process that
;;;; starts from the core opens libraries again when it needs them; its machine may have other
;;;; versions. DEFINE-CALLABLE defines a Lisp function that a library calls.

(in-package #:clgrpc.os)

(define-constants
  (+rtld-now+ "RTLD_NOW" 2))

(defstruct (library (:copier nil))
  "A foreign library, with those of its functions that are called."
  (files '() :type list)                ; the names to try, in order
  (functions '() :type list)            ; the C names of the functions
  ;; the addresses of FUNCTIONS, once the library is open
  (addresses nil :type (or null (simple-array sb-ext:word (*))))
  (failure nil :type (or null string))  ; the reason for which it cannot be opened
  (on-forget nil :type symbol))         ; a function to call before a core is saved

(declaim (sb-ext:freeze-type library))

(define-printer (library library)
  "~A ~:[not ~;~]open" (first (library-files library)) (library-addresses library))

(defglobal **libraries** '())

(defun forget-libraries ()
  "Forget the addresses of all libraries, because no library is open when a saved core starts."
  (dolist (library **libraries**)
    (when (library-addresses library)
      (when (library-on-forget library) (funcall (library-on-forget library)))
      (setf (library-addresses library) nil))
    (setf (library-failure library) nil)))

(pushnew 'forget-libraries sb-ext:*save-hooks*)

(defun find-function-address (handle names)
  "Return the address of the function NAMES, a name or a list of names, in the library HANDLE, or 0
if it has no such function."
  (loop for name in (uiop:ensure-list names)
        for address = (alien-funcall (extern-alien "dlsym" (function (unsigned 64) (unsigned 64)
                                                                     c-string))
                                     handle name)
        unless (zerop address) return address
        finally (return 0)))

(defun find-function-addresses (handle names)
  "Return a vector of the addresses of the functions NAMES in the library HANDLE, or nil and the
name of a missing function."
  (loop with addresses = (make-array (length names) :element-type 'sb-ext:word)
        for name in names
        for i from 0
        for address = (find-function-address handle name)
        do (when (zerop address) (return (values nil name)))
           (setf (aref addresses i) address)
        finally (return (values addresses nil))))

(defun library-handle (library)
  "Return the handle that dlopen returns for the first of LIBRARY's files that exists, or nil if
none exists."
  (loop for file in (library-files library)
        for handle = (alien-funcall (extern-alien "dlopen" (function (unsigned 64) c-string int))
                                    file +rtld-now+)
        unless (zerop handle) return handle))

(defun find-library (library)
  "Return the addresses of LIBRARY's functions, or nil and the reason of the failure."
  (let ((handle (library-handle library))
        (name (first (library-files library))))
    (if (null handle)
        (values nil (format nil "~A cannot be opened" name))
        (multiple-value-bind (addresses missing)
            (find-function-addresses handle (library-functions library))
          (values addresses
                  (and missing (format nil "~A has no function ~A" name missing)))))))

(defun open-library (library)
  "Open LIBRARY unless it is open. Return true if its functions may be called, else nil and the
reason as text. A process tries only once to open LIBRARY. From any thread."
  (cond ((library-addresses library) (values t nil))
        ((library-failure library) (values nil (library-failure library)))
        (t (setf (values (library-addresses library) (library-failure library))
                 (find-library library))
           (values (and (library-addresses library) t) (library-failure library)))))

(defmacro define-library (name (&rest files) (&key on-forget) &body functions)
  "Define the global NAME as the library in the first of FILES that can be opened, and a Lisp
function for each of FUNCTIONS, rows of the form (name \"c_name\" result (variable type)…). Call
these functions only while NAME is open. If a function's name differs between versions of the
library, use a list of names in place of \"c_name\"."
  `(progn
     (declaim (type library ,name))
     (defglobal ,name (make-library :files ',files :functions ',(mapcar #'second functions)
                                    :on-forget ,on-forget))
     (pushnew ,name **libraries**)
     ,@(loop for (function c-name result . parameters) in functions
             for i from 0
             collect `(declaim (inline ,function))
             collect `(defun ,function ,(mapcar #'first parameters)
                        ,(format nil "Call ~{~A~^ or ~}." (uiop:ensure-list c-name))
                        (alien-funcall
                         (sb-alien:sap-alien
                          (int-sap (aref (the (simple-array sb-ext:word (*))
                                              (library-addresses ,name))
                                         ,i))
                          (function ,result ,@(mapcar #'second parameters)))
                         ,@(mapcar #'first parameters))))))

;;; Functions that a library calls

(defmacro define-callable (name result parameters &body body)
  "Define NAME as a function that C can call, with a result of the type RESULT. PARAMETERS are rows
of the form (variable type); VARIABLE is nil if BODY does not use it."
  ;; versions of SBCL differ in how one declares such a variable as ignored
  (let ((variables (loop for (variable) in parameters collect (or variable (gensym "UNUSED")))))
    `(sb-alien:define-alien-callable ,name ,result
         ,(loop for variable in variables
                for (nil type) in parameters collect (list variable type))
       ,@(remove-if #'symbol-package variables)
       ,@body)))

(defun callable-address (name)
  (sap-int (sb-alien:alien-sap (sb-alien:alien-callable-function name))))
