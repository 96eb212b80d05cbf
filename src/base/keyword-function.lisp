;;;; Functions that report a wrong keyword. SBCL itself answers (make-channel "localhost" 50051)
;;;; with "odd number of &KEY arguments", an unknown keyword without the function's name, and a
;;;; missing argument with "invalid number of arguments". The keyword functions here report which
;;;; argument of which function is wrong, and which arguments it takes. The check conses a list of
;;;; the given keywords, so functions that run for each call or message are defined without it.

(in-package #:clgrpc.base)

(defun check-keywords (function arguments required hint known)
  "Signal MISUSE unless ARGUMENTS are alternately keywords and values, and each keyword is in the
list KNOWN. ARGUMENTS are the arguments after the REQUIRED first arguments of the function named
FUNCTION. If KNOWN is :any, or :ALLOW-OTHER-KEYS is given, every keyword is valid. HINT, a text or
nil, explains the right place of a value that was given in place of a keyword."
  (loop for (name . values) on arguments by #'cddr
        do (cond ((not (keywordp name))
                  (misuse "~A takes keywords and their values~[~; after its first argument~:;~:* ~
                           after its first ~R arguments~], not ~S~@[: ~A~]."
                          (symbol-name function) required name hint))
                 ((null values)
                  (misuse "The keyword ~S of ~A has no value." name (symbol-name function)))
                 ((not (or (eq :any known) (member name known) (eq :allow-other-keys name)
                           (getf arguments :allow-other-keys)))
                  (let ((names (mapcar #'string-downcase known)))
                    (misuse "~A has no keyword ~S~@[ (is it :~A?)~]; it takes~{ :~A~^,~}."
                            (symbol-name function) name
                            (suggested-name (string-downcase name) names) names))))))

(defun refuse-missing (function required)
  "Signal MISUSE for a call of FUNCTION, a symbol, without all of its REQUIRED arguments."
  (misuse "~A needs ~R argument~:P before its keywords:~{ ~A~^,~}." (symbol-name function)
          (length required) (mapcar #'symbol-name required)))

(defun note-keywords (function required known)
  "Let the compiler check calls of FUNCTION, a symbol, as if its lambda list had REQUIRED
parameters, and &key with KNOWN. KNOWN is a list of keywords, or :any."
  (setf (sb-int:info :function :type function)
        (sb-kernel:specifier-type
         `(function (,@(make-list required :initial-element t) &key
                     ,@(if (eq :any known)
                           '(&allow-other-keys)
                           (loop for keyword in known collect (list keyword t))))
                    ,(third (sb-kernel:%simple-fun-type (fdefinition function)))))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun accepted-keywords (lambda-list)
    "The keywords that LAMBDA-LIST names."
    (loop for parameter in (rest (member '&key lambda-list))
          for name = (if (consp parameter) (first parameter) parameter)
          until (member parameter lambda-list-keywords)
          collect (if (consp name) (first name) (intern (string name) '#:keyword))))

  (defun split-at-keywords (lambda-list)
    "Return two values: the required parameters of LAMBDA-LIST, and its keywords, or :any if it has
&allow-other-keys."
    (assert (member '&key lambda-list))
    (assert (not (member '&optional lambda-list)))
    (values (ldiff lambda-list (or (member '&rest lambda-list) (member '&key lambda-list)))
            (if (member '&allow-other-keys lambda-list)
                :any
                (accepted-keywords lambda-list)))))

(defmacro define-keyword-function (name lambda-list documentation &body body)
  "Define the function NAME with LAMBDA-LIST, which has &key, and may have &rest before that. NAME
is a symbol, or (symbol :hint text). Before BODY, CHECK-KEYWORDS checks the arguments, with the text
as its HINT. With &allow-other-keys BODY must check which keywords are known. For `describe', for
editors and for the compiler's warnings the function has this LAMBDA-LIST."
  (destructuring-bind (name &key hint) (if (consp name) name (list name))
    (multiple-value-bind (required known) (split-at-keywords lambda-list)
      (let ((arguments (gensym "ARGUMENTS")) (given (gensym "GIVEN")))
        `(progn
           (defun ,name (,@(when required
                             `(&optional ,@(butlast required)
                                         (,(first (last required)) nil ,given)))
                         &rest ,arguments)
             ,documentation
             ,@(when required `((unless ,given (refuse-missing ',name ',required))))
             (when ,arguments
               (check-keywords ',name ,arguments ,(length required) ,hint ',known))
             (flet ((,name ,lambda-list ,@body))
               (apply #',name ,@required ,arguments)))
           (setf (sb-kernel:%fun-lambda-list #',name) ',lambda-list)
           (note-keywords ',name ,(length required) ',known))))))
