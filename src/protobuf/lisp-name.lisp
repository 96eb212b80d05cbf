;;;; From proto names to Lisp names. One rule each:
;;;;
;;;;   package  grpc.health_check.v1   → package GRPC.HEALTH-CHECK.V1; none → the file's name
;;;;   type     HelloReply, HTTPRoute  → hello-reply, http-route; nested Outer.Inner → outer.inner
;;;;   field    page_size, pageSize    → page-size; its accessor hello-reply-page-size
;;;;   enum     STATUS_OK              → :status-ok
;;;;   service  Greeter                → class greeter, package HELLOWORLD.GREETER with its methods
;;;;   method   SayHello               → helloworld.greeter:say-hello
;;;;
;;;; Generated packages use no other package, so no name collides with Lisp's. If an accessor's name
;;;; is taken in its package, the accessor gets the suffix -field or, if that name is taken too, the
;;;; field's number. If the name of a type, service or method is taken, as FooBar's is for Foo_Bar,
;;;; the suffix -2, or the next free number, is added; to an enum value its number is added.

(in-package #:clgrpc.protobuf)

(defun lisp-name (name)
  "Return NAME in upper case with hyphens. A hyphen replaces each underscore; others are inserted
before a capital that follows a small letter or digit, and before the last of several capitals when
a small letter follows."
  (with-output-to-string (out)
    (loop for i from 0 below (length name)
          for char = (char name i)
          for before = (and (plusp i) (char name (1- i)))
          for after = (and (< (1+ i) (length name)) (char name (1+ i)))
          do (when (and (upper-case-p char) before
                        (or (lower-case-p before) (digit-char-p before)
                            (and (upper-case-p before) after (lower-case-p after))))
               (write-char #\- out))
             (write-char (if (char= char #\_) #\- (char-upcase char)) out))))

(defun dotted-lisp-name (name)
  "LISP-NAME of each part of NAME, joined by dots."
  (format nil "~{~A~^.~}"
          (loop for start = 0 then (1+ end)
                for end = (position #\. name :start start)
                collect (lisp-name (subseq name start end))
                while end)))

(defun file-lisp-package (file)
  "The name of the Lisp package of the declarations of FILE."
  (let ((package (file-descriptor-package file)))
    (dotted-lisp-name (if (string= "" package) (bare-name (descriptor-name file)) package))))

(defun bare-name (name)
  "The name of the file NAME without directories and without the part after its last point."
  (let* ((start (1+ (or (position #\/ name :from-end t) -1)))
         (point (position #\. name :from-end t)))
    (subseq name start (and point (< start point) point))))

(defun local-lisp-name (descriptor file)
  "The Lisp name of DESCRIPTOR within the package of FILE."
  (let ((package (file-descriptor-package file))
        (full (descriptor-full-name descriptor)))
    (dotted-lisp-name (if (string= "" package) full (subseq full (1+ (length package)))))))

(defun enum-value-keyword (name)
  (intern (lisp-name name) :keyword))

(defun enum-value-keywords (enum)
  "The keywords of the values of ENUM, in order; values with different numbers get different
keywords."
  (let ((numbers (make-hash-table :test 'eq)))
    (loop for value in (enum-descriptor-values enum)
          for number = (enum-value-descriptor-number value)
          collect (loop for keyword = (enum-value-keyword (descriptor-name value))
                          then (intern (format nil "~A-~D" keyword number) :keyword)
                        when (eql number (gethash keyword numbers number))
                          do (setf (gethash keyword numbers) number)
                             (return keyword)))))

(defun service-package-name (service file)
  "The name of the package with the methods of FILE's SERVICE, whose symbol is assigned."
  (format nil "~A.~A" (file-lisp-package file) (symbol-name (service-descriptor-symbol service))))

(defun shows-others-p (package)
  "True if PACKAGE exports symbols of other packages, like the public package of a system."
  (do-external-symbols (symbol package nil)
    (unless (eq package (symbol-package symbol)) (return t))))

(defun ensure-package (name &optional (exports '()))
  "Make sure that the package NAME exists and exports the symbols named EXPORTS, and return the
package. Signal MISUSE if a package of that name exists but must not export these symbols."
  (let ((package (or (find-package name) (make-package name :use '()))))
    (when (or (package-use-list package)
              (sb-ext:package-locked-p package)
              (eq package (find-package '#:keyword))
              (shows-others-p package))
      (misuse "The .proto package ~A would be the Lisp package ~A, which exists for another ~
               purpose: give it another name." (string-downcase name) (package-name package)))
    (dolist (export exports package)
      (export (intern export package) package))))

(defun names-another-p (symbol descriptor file)
  "True if SYMBOL names a declaration of a loaded file other than FILE, which declares DESCRIPTOR."
  (let* ((owner (get symbol 'declared-as))
         (home (and owner (file-of-symbol owner))))
    (and home
         (string/= owner (descriptor-full-name descriptor))
         (string/= (descriptor-name home) (descriptor-name file)))))

(defun distinct-symbol (name package descriptor file taken)
  "Return a symbol in PACKAGE for DESCRIPTOR of FILE, called NAME, or NAME followed by a number. The
symbol names nothing else. It is not in TAKEN, a table, and is added to TAKEN."
  (loop for i from 1
        for symbol = (intern (if (= i 1) name (format nil "~A-~D" name i)) package)
        unless (or (gethash symbol taken) (names-another-p symbol descriptor file))
          do (setf (gethash symbol taken) t)
             (return symbol)))

(defun assign-symbols (files)
  "Assign a symbol to every type, service and method of FILES. Make the packages of these symbols.
Return FILES."
  (let ((taken (make-hash-table :test 'eq)))
    (dolist (file files files)
      (let ((package (ensure-package (file-lisp-package file))))
        (flet ((type-symbol (descriptor)
                 (distinct-symbol (local-lisp-name descriptor file) package descriptor file taken)))
          (map-messages (lambda (message)
                          (setf (message-descriptor-symbol message) (type-symbol message)))
                        file)
          (map-enums (lambda (enum) (setf (enum-descriptor-symbol enum) (type-symbol enum))) file)
          (dolist (service (file-descriptor-services file))
            (setf (service-descriptor-symbol service) (type-symbol service))
            (assign-methods service file)))))))

(defun assign-methods (service file)
  "Assign a symbol to every method of SERVICE, which FILE declares."
  (let ((package (ensure-package (service-package-name service file)))
        (taken (make-hash-table :test 'eq)))
    (dolist (method (service-descriptor-methods service))
      (setf (method-descriptor-symbol method)
            (distinct-symbol (lisp-name (descriptor-name method)) package method file taken)))))

(defun public-name (control symbol &rest arguments)
  "Return the symbol in the package of SYMBOL whose name is made by formatting CONTROL with SYMBOL
and ARGUMENTS."
  (intern (apply #'format nil control symbol arguments) (symbol-package symbol)))
