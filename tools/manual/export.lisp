;;;; Entries of the reference: the definitions of public names, with signature, keywords and
;;;; docstring.

(in-package #:clgrpc.manual)

(defstruct (keyword-row (:copier nil))
  "A keyword or an argument of a function, with its description."
  (name "" :type string)                ; the name as it is written in a call, such as :timeout
  (default "" :type string)             ; the default as it prints, empty if none is known
  (unit "" :type string)                ; the unit or the range of an option's value
  (text "" :type string))               ; the keyword's description

(defstruct (meaning (:copier nil))
  "One of the things that a symbol names, such as a function or a class."
  (kind "" :type string)                ; "function", "macro", "condition" and so on
  (signature "" :type string)           ; how the function is called, or empty
  (parameters '() :type list)           ; the names of its parameters, in capitals
  (docstring (make-docstring) :type docstring)
  (keywords '() :type list)             ; KEYWORD-ROWs
  ;; KEYWORD-ROWs of the options that a function takes in addition
  (options '() :type list))

(defstruct (entry (:copier nil))
  "The manual's entry for a public name."
  (symbol nil :type symbol)
  (name "" :type string)                ; the symbol's name in lower case
  (package "" :type string)             ; the prefix that users write, such as grpc
  (subject nil :type (or null subject))
  (meanings '() :type list))

(define-printer (entry entry)
  "~A" (entry-name entry))

(defun entry-url (entry)
  "The URL of ENTRY in the site."
  (format nil "reference/~A.html#~A" (subject-file (entry-subject entry)) (entry-anchor entry)))

(defun entry-anchor (entry)
  "The id of ENTRY in its page."
  (substitute #\_ #\* (entry-name entry)))

;;; Signatures

(defun printed-form (form)
  "FORM as users would write it: in lower case, without the packages of its symbols."
  (typecase form
    (keyword (format nil "~(~S~)" form))
    (symbol (string-downcase (symbol-name form)))
    (cons (if (and (eq 'quote (first form)) (consp (rest form)) (null (cddr form)))
              (format nil "'~A" (printed-form (second form)))
              (format nil "(~{~A~^ ~}~@[ . ~A~])"
                      (mapcar #'printed-form (loop for rest = form then (cdr rest)
                                                   while (consp rest) collect (car rest)))
                      (let ((end (cdr (last form)))) (and end (printed-form end))))))
    (t (let ((*print-pretty* nil) (*print-length* 8)) (prin1-to-string form)))))

(defun shown-lambda-list (lambda-list)
  "LAMBDA-LIST in the form of a signature: keywords by their names, without defaults."
  (let ((keywords-p nil))
    (loop for item in lambda-list
          until (eq '&aux item)
          do (when (eq '&key item) (setf keywords-p t))
          unless (eq '&allow-other-keys item)
            collect (cond ((member item lambda-list-keywords) (printed-form item))
                          (keywords-p (format nil "~(~A~)" (parameter-keyword item)))
                          ((consp item) (printed-form (first item)))
                          (t (printed-form item))))))

(defun parameter-keyword (item)
  "The name, with its colon, of the keyword that ITEM of a lambda list declares."
  (let ((variable (if (consp item) (first item) item)))
    (format nil ":~A" (symbol-name (if (consp variable) (first variable) variable)))))

(defun keyword-parameters (lambda-list)
  "The items of LAMBDA-LIST that declare keywords."
  (loop for item in (rest (member '&key lambda-list))
        until (member item '(&allow-other-keys &aux))
        collect item))

(defun parameter-names (lambda-list)
  "The names of those variables of LAMBDA-LIST that docstrings mention."
  (loop for item in lambda-list
        for name = (loop for name = item then (first name) while (consp name) finally (return name))
        unless (member name lambda-list-keywords) collect (symbol-name name)))

(defun call-signature (prefix name lambda-list)
  (format nil "(~A~A~{ ~A~})" prefix name (shown-lambda-list lambda-list)))

;;; Keywords

(defun row-texts (docstring)
  "The rows of DOCSTRING, conses (name . text)."
  (loop for (kind . rows) in (docstring-blocks docstring)
        when (eq :rows kind) append rows))

(defun described-keywords (lambda-list docstring)
  "A KEYWORD-ROW for each keyword that LAMBDA-LIST has, with the text of its row in DOCSTRING, and
for each other argument that has a row."
  (let* ((rows (row-texts docstring))
         (items (keyword-parameters lambda-list))
         (names (mapcar (lambda (item) (subseq (parameter-keyword item) 1)) items)))
    (append
     (loop for (name . text) in rows
           unless (member (string-left-trim ":" name) names :test #'string=)
             collect (make-keyword-row :name (string-downcase name) :text text))
     (loop for item in items
           for name in names
           for default = (and (consp item) (second item))
           for row = (find name rows :key (lambda (row) (string-left-trim ":" (car row)))
                                     :test #'string=)
           collect (make-keyword-row :name (format nil ":~(~A~)" name)
                                     :default (if default (printed-form default) "nil")
                                     :text (if row (cdr row) ""))))))

(defun option-keywords (taker)
  "A KEYWORD-ROW for each row of the options table that TAKER takes."
  (loop for row in (option-table)
        when (takes-option-p taker row)
          collect (make-keyword-row
                   :name (format nil "~(~S~)" (option-row-name row))
                   :default (printed-form (option-row-default row))
                   :unit (format nil "~@[~A to ~]~@[~A ~]~A" (option-row-minimum row)
                                 (option-row-maximum row) (option-row-unit row))
                   :text (option-row-reason row))))

;;; Meanings

(defun function-kind (symbol)
  (let ((function (fdefinition symbol)))
    (cond ((macro-function symbol) "macro")
          ((typep function 'generic-function)
           (if (every (lambda (method) (typep method '(or sb-mop:standard-reader-method
                                                       sb-mop:standard-writer-method)))
                      (sb-mop:generic-function-methods function))
               "reader"
               "generic function"))
          ((sb-kernel:structure-instance-accessor-p symbol) "accessor")
          (t "function"))))

(defun function-meaning (symbol prefix)
  (let* ((lambda-list (sb-introspect:function-lambda-list symbol))
         (docstring (parse-docstring (documentation symbol 'function)))
         (taker (cdr (assoc (symbol-name symbol) *takers* :test #'string=))))
    (make-meaning :kind (function-kind symbol)
                  :signature (call-signature prefix (string-downcase symbol) lambda-list)
                  :parameters (parameter-names lambda-list)
                  :docstring docstring
                  :keywords (described-keywords lambda-list docstring)
                  :options (and taker (option-keywords taker)))))

(defun type-kind (symbol)
  (let ((class (find-class symbol nil)))
    (cond ((null class) "type")
          ((subtypep class 'condition) "condition")
          ((typep class 'structure-class) "structure")
          (t "class"))))

(defun type-signature (symbol)
  "SYMBOL, and the direct superclasses of its class, as text."
  (if-let ((class (find-class symbol nil)))
    (format nil "~(~A~)~@[ : ~{~A~^, ~}~]" symbol
            (loop for super in (sb-mop:class-direct-superclasses class)
                  for name = (class-name super)
                  unless (member (package-name (symbol-package name))
                                 '("SB-PCL" "SB-KERNEL" "SB-MOP") :test #'string=)
                    collect (string-downcase name)))
    (string-downcase symbol)))

(defun symbol-meanings (symbol prefix)
  "The MEANINGs of SYMBOL, which users write with PREFIX."
  (append
   (when (fboundp symbol) (list (function-meaning symbol prefix)))
   (when (sb-ext:valid-type-specifier-p symbol)
     (list (make-meaning :kind (type-kind symbol) :signature (type-signature symbol)
                         :docstring (parse-docstring (documentation symbol 'type)))))
   (when (boundp symbol)
     (list (make-meaning :kind (if (constantp symbol) "constant" "variable")
                         :signature (format nil "~A~(~A~)" prefix symbol)
                         :docstring (parse-docstring (documentation symbol 'variable)))))
   (when (and (fboundp `(setf ,symbol)) (not (fboundp symbol)))
     (list (make-meaning :kind "setf function"
                         :signature (format nil "(setf (~A~(~A~) …) value)" prefix symbol)
                         :docstring (parse-docstring (documentation `(setf ,symbol)
                                                                    'function)))))))

;;; All of them

(defun package-entries (package)
  "The symbols that PACKAGE exports, by name."
  (let ((symbols '()))
    (do-external-symbols (symbol package) (push symbol symbols))
    (sort symbols #'string< :key #'symbol-name)))

(defun package-prefix (package)
  "The prefix that users write before a name of PACKAGE."
  (if (string= "CLGRPC" package)
      "grpc:"
      (format nil "~(~A~):" package)))

(defun symbol-subject (symbol package)
  "The subject to whose page SYMBOL, an export of PACKAGE, belongs, or nil if no page has it."
  (flet ((subject-of (package)
           (find-if (lambda (subject)
                      (member package (subject-packages subject) :test #'string=))
                    *subjects*)))
    (if (string= "CLGRPC" package)
        (subject-of (package-name (symbol-package symbol)))
        (subject-of package))))

(defun collect-entries ()
  "An ENTRY for each public name, by package and name."
  (let ((seen (make-hash-table :test 'eq)))
    (loop for package in *packages*
          append (loop for symbol in (package-entries package)
                       for prefix = (package-prefix package)
                       unless (gethash symbol seen)
                         collect (setf (gethash symbol seen)
                                       (make-entry :symbol symbol
                                                   :name (string-downcase symbol)
                                                   :package prefix
                                                   :subject (symbol-subject symbol package)
                                                   :meanings (symbol-meanings symbol prefix)))))))
