;;;; Functions that take options as keywords. SBCL itself answers (make-channel "localhost" 50051)
;;;; with "odd number of &KEY arguments"; these functions report which argument is wrong, and why.

(in-package #:clgrpc.option)

(defun check-keywords (function arguments hint)
  "Signal MISUSE unless ARGUMENTS of FUNCTION, a symbol, are keywords and values by turns. HINT, a
text, explains where a value given in place of a keyword belongs."
  (loop for (name . values) on arguments by #'cddr
        do (unless (keywordp name)
             (misuse "~A takes keywords and their values after its first argument, not ~S: ~A."
                     (symbol-name function) name hint))
           (when (null values)
             (misuse "The keyword ~S of ~A has no value." name (symbol-name function)))))

(defmacro define-keyword-function (name lambda-list hint documentation &body body)
  "Define the function NAME with LAMBDA-LIST, which consists of one required parameter, &rest with
another, and keywords. Before BODY the arguments are checked by CHECK-KEYWORDS with HINT. For
`describe' and editors the function has this LAMBDA-LIST."
  (destructuring-bind (required rest arguments key &rest keywords) lambda-list
    (declare (ignore keywords))
    (assert (and (eq '&rest rest) (eq '&key key)))
    `(progn
       (defun ,name (,required &rest ,arguments)
         ,documentation
         (check-keywords ',name ,arguments ,hint)
         (flet ((,name ,lambda-list ,@body))
           (apply #',name ,required ,arguments)))
       (setf (sb-kernel:%fun-lambda-list #',name) ',lambda-list))))
