;;;; Checks whether a function that a user gives accepts the arguments with which it will be called.
;;;; A function with too few parameters is rejected where it is given, not at the first call.

(in-package #:clgrpc.base)

(defun known-lambda-list (function)
  "Return the lambda list of FUNCTION, a function or a symbol, or :unknown if it is not recorded or
the symbol does not name a function yet."
  (cond ((symbolp function)
         (if (and (fboundp function) (not (macro-function function)))
             (known-lambda-list (fdefinition function))
             :unknown))
        ((typep function 'generic-function) (sb-mop:generic-function-lambda-list function))
        (t (sb-kernel:%fun-lambda-list function))))

(defun takes-positional-p (lambda-list count)
  "True if a function with LAMBDA-LIST can be called with COUNT positional arguments."
  (let ((least 0) (most 0) (optional nil))
    (dolist (parameter lambda-list (<= least count most))
      (case parameter
        ((&rest sb-int:&more) (return (<= least count)))
        (&optional (setf optional t))
        ((&key &aux) (return (<= least count most)))
        (t (incf most)
           (unless optional (incf least)))))))

(defun check-arity (function arguments text)
  "Signal MISUSE if FUNCTION, a function or a symbol, is known not to accept ARGUMENTS, a list of
their names. TEXT names the function's role, as the subject of a sentence. Return FUNCTION."
  (let ((lambda-list (known-lambda-list function)))
    (unless (or (not (listp lambda-list))
                (takes-positional-p lambda-list (length arguments)))
      (misuse "~A is called with ~R argument~:P, ~(~:A~), but ~S takes ~(~:A~)."
              text (length arguments) arguments function lambda-list)))
  function)

(defun check-arities (interceptors arguments)
  "Apply CHECK-ARITY to each function in INTERCEPTORS, whose elements are functions and lists (WHERE
. FUNCTIONS). Return INTERCEPTORS."
  (dolist (item interceptors interceptors)
    (dolist (function (if (consp item) (rest item) (list item)))
      (check-arity function arguments "An interceptor"))))
