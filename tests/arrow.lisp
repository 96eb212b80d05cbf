;;;; Arrows between the files of one folder, and how wide the arrows between folders are. A file
;;;; has an arrow to another of its folder if it refers to a function, a macro, a special variable
;;;; or a constant that the other defines. Files that reach each other by arrows form a cycle.
;;;;
;;;; Where a name is defined is asked of the running image, so that what a macro defines counts as
;;;; well. What a file refers to is read from its forms: the operator of a form, #'name, 'name that
;;;; is called, *name* and +name+ anywhere. Names that are bound, and data, are left out.
;;;;
;;;; A generic function that only its folder knows and that has one method is a function that is
;;;; defined where the method is: to call it is an arrow there, though the file that declares it may
;;;; come first.

(in-package #:clgrpc.tests.architecture)

(defparameter *export-limits*
  '(("rpc" 106) ("calling" 21) ("wire" 69) ("serving" 21) ("status" 43) ("method" 40)
    ("attempt" 34) ("encoding" 19) ("credentials" 12)
    ("server" 52) ("http2" 86) ("base" 248))
  "How many symbols the package of a folder may export. The goal for the first six together is 300.
LATE-VALUE saves a traced server the records of calls that it does not record. Wire has six for
calls that come over HTTP by another protocol than gRPC's: they take and make the same octets.
Structures that include those of the six read inherited slots by accessors of their own. Attempt,
encoding and credentials are subjects that few layers name: 20 of their names are users'. Server has
a row since what those protocols want to know of a server's call they ask it, not wire.")

(defparameter *declarative-macros* '("DEFINE-FRAMES" "DEFINE-STATE-TABLE" "DEFINE-OPERATIONS")
  "Macros whose operands are rows of names, not forms.")

;;; Reading forms

(defun source-forms (file)
  "The forms of FILE, read in the packages that its IN-PACKAGE forms name."
  (with-open-file (stream file :external-format :utf-8)
    (let ((*package* (find-package '#:cl-user)))
      (loop for form = (read stream nil stream)
            until (eq form stream)
            when (and (consp form) (eq 'in-package (first form)))
              do (setf *package* (find-package (second form)))
            collect form))))

(defun lambda-list-forms (lambda-list)
  "The default values in LAMBDA-LIST, one of DEFUN or of DEFINE-HOT."
  (when (listp lambda-list)
    (loop for parameter in lambda-list
          when (consp parameter) collect (first (last parameter)))))

(defun slot-forms (slots)
  "The values of :INITFORM in SLOTS, as DEFCLASS has them."
  (loop for slot in slots
        when (consp slot) collect (getf (rest slot) :initform)))

(defun operands (form)
  "The forms in FORM, an operator and its operands, without what the operator binds or takes as
data."
  (destructuring-bind (operator &rest rest) form
    (flet ((bindings (function)
             (append (when (listp (first rest))
                       (loop for binding in (first rest)
                             when (consp binding) append (funcall function binding)))
                     (rest rest)))
           (clauses (clauses)
             (loop for clause in clauses
                   append (if (consp clause) (rest clause) (list clause)))))
      (cond
        ((member (symbol-name operator) *declarative-macros* :test #'string=) '())
        (t
         (case operator
           ((let let* symbol-macrolet prog prog* do do*) (bindings #'rest))
           ((dolist dotimes print-unreadable-object)
            (append (when (consp (first rest)) (rest (first rest))) (rest rest)))
           ((flet labels macrolet)
            (bindings (lambda (binding)
                        (append (lambda-list-forms (second binding)) (cddr binding)))))
           ((lambda) (append (lambda-list-forms (first rest)) (rest rest)))
           ((multiple-value-bind destructuring-bind with-slots with-accessors) (rest rest))
           ((defun defmacro defgeneric clgrpc.base:define-keyword-function)
            (append (lambda-list-forms (second rest)) (cddr rest)))
           ((clgrpc.base:define-hot clgrpc.base:define-leaf)
            (append (lambda-list-forms (second rest)) (cdddr rest)))
           ((clgrpc.base:define-printer) (rest rest))
           ((defmethod) (list* (list (first rest)) (rest (member-if #'listp (rest rest)))))
           ((defstruct)
            (append (loop for option in (when (consp (first rest)) (rest (first rest)))
                          when (and (consp option) (eq :include (first option)))
                            collect `(:structure ,(second option)))
                    (loop for slot in (rest rest) when (consp slot) collect (second slot))))
           ((defclass define-condition) (append (slot-forms (third rest)) (cdddr rest)))
           ((case ecase ccase typecase etypecase handler-case)
            (cons (first rest) (clauses (rest rest))))
           ((cond) (loop for clause in rest append (if (consp clause) clause (list clause))))
           ((handler-bind) (bindings #'rest))
           ((declare declaim deftype) '())
           (t rest)))))))

(defun special-name-p (name)
  "True if NAME is *written* or +written+ as special variables and constants are."
  (let ((last (1- (length name))))
    (and (plusp last)
         (find (char name 0) "*+")
         (char= (char name 0) (char name last)))))

(defun references (form)
  "The symbols that FORM refers to as a function, a macro, a special variable or a constant, and
(:structure symbol) for a structure that it includes."
  (let ((symbols '()))
    (labels ((note (name) (when (symbolp name) (pushnew name symbols)))
             (visit (form)
               (typecase form
                 (sb-impl::comma (visit (sb-impl::comma-expr form)))
                 (symbol (when (special-name-p (symbol-name form)) (note form)))
                 (cons (visit-list form))))
             (visit-list (form)
               (let ((operator (first form)))
                 (cond ((cdr (last form)) nil)                ; a dotted list is data
                       ((eq operator 'sb-int:quasiquote) (visit (second form)))
                       ((and (eq operator 'function) (symbolp (second form)))
                        (note (second form)))
                       ((eq operator 'quote) nil)
                       ((eq operator :structure) (push form symbols))
                       ((and (member operator '(funcall apply)) (consp (second form))
                             (eq 'quote (first (second form))))
                        (note (second (second form)))
                        (mapc #'visit (cddr form)))
                       ((and operator (symbolp operator))
                        (note operator)
                        (mapc #'visit (operands form)))
                       (t (mapc #'visit form))))))
      (visit form))
    symbols))

(defun all-symbols (form)
  "The symbols in FORM, wherever they stand."
  (let ((symbols '()))
    (labels ((visit (form)
               (typecase form
                 (sb-impl::comma (visit (sb-impl::comma-expr form)))
                 (symbol (pushnew form symbols))
                 (cons (loop for rest = form then (cdr rest)
                             while (consp rest)
                             do (visit (car rest))
                             finally (visit rest))))))
      (visit form))
    symbols))

;;; Where names are defined

(defun defined-by-form (form)
  "What FORM, one at top level, defines that the image does not tell: a kernel, the readers of a
class, (:structure name)."
  (when (and (consp form) (symbolp (first form)) (consp (rest form)))
    (let ((name (if (consp (second form)) (first (second form)) (second form))))
      (case (first form)
        (clgrpc.kernel:define-kernel (list name))
        (defstruct `((:structure ,name)))
        ((defclass define-condition)
         (loop for slot in (fourth form)
               when (consp slot)
                 append (loop for (key value) on (rest slot) by #'cddr
                              when (member key '(:reader :accessor :writer))
                                collect value)))))))

(defun defined-in-image (symbol)
  "The names of the files that define SYMBOL as a function, macro, variable or constant."
  (loop for kind in '(:function :generic-function :macro :variable :constant :setf-expander)
        append (loop for source in (sb-introspect:find-definition-sources-by-name symbol kind)
                     for path = (sb-introspect:definition-source-pathname source)
                     when path collect (pathname-name path))))

(defun only-method-file (symbol)
  "The name of the file of the only method of the generic function that SYMBOL names; nil if it
names none, or one that has several, or that others are told to give methods for."
  (let ((function (and (fboundp symbol) (fdefinition symbol))))
    (when (and (typep function 'standard-generic-function)
               (= 1 (length (sb-mop:generic-function-methods function)))
               (not (eq :external (nth-value 1 (find-symbol (symbol-name symbol)
                                                            (symbol-package symbol))))))
      (let ((path (sb-introspect:definition-source-pathname
                   (sb-introspect:find-definition-source
                    (first (sb-mop:generic-function-methods function))))))
        (and path (pathname-name path))))))

(defun folder-package (folder)
  (find-package (format nil "CLGRPC.~:@(~A~)" folder)))

(defun folder-forms (folder)
  "A list of (file . forms) for the sources of FOLDER that are not its package definition."
  (loop for path in (folder-files folder)
        unless (string= "package" (pathname-name path))
          collect (cons (pathname-name path) (source-forms path))))

(defun definitions (sources package)
  "A table from each symbol of PACKAGE, and (:structure symbol), that SOURCES, as FOLDER-FORMS
returns them, define to the names of the files that do."
  (let ((table (make-hash-table :test #'equal)))
    (flet ((note (defined file)
             (pushnew file (gethash defined table) :test #'string=)))
      (do-symbols (symbol package)
        (when (eq package (symbol-package symbol))
          (dolist (file (cons (only-method-file symbol) (defined-in-image symbol)))
            (when (assoc file sources :test #'equal) (note symbol file)))))
      (loop for (file . forms) in sources
            do (dolist (form forms)
                 (dolist (defined (defined-by-form form))
                   (note defined file)))))
    table))

(defun file-arrows (sources definitions)
  "The arrows between SOURCES as a list of (from to . symbols)."
  (let ((arrows '()))
    (loop for (from . forms) in sources
          do (dolist (symbol (reduce (lambda (some others) (union some others :test #'equal))
                                   (mapcar #'references forms)))
               (let ((files (gethash symbol definitions)))
                 (unless (member from files :test #'string=)
                   (dolist (to files)
                     (let ((arrow (find-if (lambda (arrow) (and (string= from (first arrow))
                                                                (string= to (second arrow))))
                                           arrows)))
                       (if arrow
                           (push symbol (cddr arrow))
                           (push (list from to symbol) arrows))))))))
    arrows))

;;; Cycles

(defun reached (from arrows)
  "The files that FROM reaches by ARROWS."
  (let ((reached '()))
    (labels ((visit (file)
               (loop for (source target) in arrows
                     when (and (string= source file)
                               (not (member target reached :test #'string=)))
                       do (push target reached)
                          (visit target))))
      (visit from))
    reached))

(defun cycles (arrows)
  "The sets of files that reach each other by ARROWS, each sorted by name, the largest first."
  (let* ((files (remove-duplicates (mapcar #'first arrows) :test #'string=))
         (table (loop for file in files collect (cons file (reached file arrows)))))
    (flet ((reaches-p (from to) (member to (rest (assoc from table :test #'string=))
                                        :test #'string=)))
      (sort (remove-duplicates
             (loop for file in files
                   when (reaches-p file file)
                     collect (sort (remove-if-not (lambda (other)
                                                    (and (reaches-p file other)
                                                         (reaches-p other file)))
                                                  files)
                                   #'string<))
             :test #'equal)
            #'> :key #'length))))

(defun folder-arrows (folder)
  (let ((sources (folder-forms folder)))
    (file-arrows sources (definitions sources (folder-package folder)))))

(defun describe-cycle (cycle arrows)
  "A text that lists the ARROWS within CYCLE, those with few symbols first."
  (format nil "~:{~%  ~A -> ~A:~{ ~(~A~)~}~}"
          (sort (loop for (from to . symbols) in arrows
                      when (and (member from cycle :test #'string=)
                                (member to cycle :test #'string=))
                        collect (list from to symbols))
                #'< :key (lambda (row) (length (third row))))))

(test no-cycle-of-files
  (dolist (folder (folders))
    (let ((arrows (folder-arrows folder)))
      (dolist (cycle (cycles arrows))
        (is (null cycle) "~D files of ~A reach each other:~A"
            (length cycle) folder (describe-cycle cycle arrows))))))

;;; Width

(defparameter *widths*
  '(("base" "kernel" 12)
    ("option" "base" 3)
    ("async" "option" 4) ("balance" "option" 2) ("calling" "option" 4) ("client" "option" 36)
    ("command" "option" 10) ("console" "option" 9) ("exchange" "option" 14)
    ("http2" "option" 23) ("inproc" "option" 15) ("loop" "option" 14) ("program" "option" 4)
    ("protobuf" "option" 2) ("rest" "option" 3) ("rpc" "option" 3) ("server" "option" 27)
    ("serving" "option" 2) ("status" "option" 1) ("trace" "option" 10) ("web" "option" 7)
    ("wire" "option" 22)
    ("os" "base" 19)
    ("loop" "base" 70) ("loop" "os" 136)
    ("async" "base" 27) ("async" "os" 11) ("async" "loop" 76)
    ("dns" "base" 23) ("dns" "os" 4) ("dns" "loop" 21)
    ("hpack" "base" 20)
    ("http1" "base" 18) ("http1" "hpack" 9)
    ("http2" "base" 26) ("http2" "hpack" 29)
    ("exchange" "base" 20) ("exchange" "loop" 20) ("exchange" "hpack" 11) ("exchange" "http1" 30)
    ("exchange" "http2" 16)
    ("protobuf" "kernel" 15) ("protobuf" "base" 93)
    ("rest" "base" 23) ("rest" "protobuf" 49) ("rest" "http1" 4) ("rest" "exchange" 6)
    ("rest" "method" 6)
    ("rest" "rpc" 8) ("rest" "serving" 3) ("rest" "server" 9) ("rest" "status" 6)
    ("rest" "web" 48) ("rest" "wire" 9)
    ("gateway" "base" 2) ("gateway" "loop" 6) ("gateway" "rpc" 17) ("gateway" "method" 5)
    ("gateway" "status" 9) ("gateway" "serving" 3) ("gateway" "calling" 1)
    ("encoding" "base" 8) ("encoding" "os" 8) ("encoding" "protobuf" 5) ("wire" "encoding" 11)
    ("server" "encoding" 8) ("web" "encoding" 4) ("client" "encoding" 7) ("method" "encoding" 3)
    ("rpc" "encoding" 2) ("inproc" "encoding" 2) ("logs" "encoding" 2)
    ("credentials" "base" 2) ("credentials" "loop" 7) ("credentials" "method" 4)
    ("credentials" "status" 7) ("calling" "credentials" 2) ("client" "credentials" 5)
    ("inproc" "credentials" 3) ("token" "credentials" 4)
    ("attempt" "base" 4) ("attempt" "option" 4) ("attempt" "loop" 2) ("attempt" "method" 3)
    ("attempt" "status" 3) ("attempt" "rpc" 11) ("attempt" "config" 11) ("client" "attempt" 23)
    ("inproc" "attempt" 20) ("trace" "attempt" 11)
    ("workflow" "client" 2) ("etcd" "method" 2)
    ("status" "base" 8) ("status" "protobuf" 12)
    ("method" "base" 4) ("method" "protobuf" 26) ("method" "status" 4)
    ("rpc" "base" 24) ("rpc" "os" 6) ("rpc" "loop" 11) ("rpc" "protobuf" 9) ("rpc" "status" 16)
    ("rpc" "method" 10)
    ("trace" "base" 26) ("trace" "loop" 11) ("trace" "hpack" 7) ("trace" "rpc" 17)
    ("trace" "method" 6) ("trace" "status" 1) ("trace" "client" 3)
    ("calling" "base" 8) ("calling" "os" 3) ("calling" "loop" 24) ("calling" "status" 6)
    ("calling" "method" 10) ("calling" "rpc" 16)
    ("serving" "base" 6) ("serving" "loop" 4) ("serving" "protobuf" 3) ("serving" "status" 8)
    ("serving" "method" 10) ("serving" "rpc" 10)
    ("wire" "base" 49) ("wire" "os" 3) ("wire" "loop" 47) ("wire" "hpack" 15) ("wire" "http2" 48)
    ("wire" "protobuf" 10) ("wire" "status" 5) ("wire" "method" 4) ("wire" "rpc" 37)
    ("topic" "base" 13) ("topic" "loop" 8) ("topic" "rpc" 13) ("topic" "status" 5)
    ("token" "base" 27) ("token" "os" 5) ("token" "loop" 28) ("token" "http1" 15)
    ("token" "calling" 4) ("token" "status" 5) ("token" "client" 1) ("token" "option" 2)
    ("proxy" "base" 13) ("proxy" "os" 5) ("proxy" "loop" 25) ("client" "proxy" 4)
    ("client" "base" 66) ("client" "dns" 8) ("client" "os" 6) ("client" "loop" 61)
    ("client" "hpack" 13)
    ("client" "http2" 38) ("client" "protobuf" 6) ("client" "status" 16) ("client" "method" 14)
    ("client" "rpc" 42) ("client" "calling" 22) ("client" "wire" 46) ("client" "config" 29)
    ("config" "base" 12) ("config" "status" 3)
    ("balance" "base" 26) ("balance" "loop" 10) ("balance" "hpack" 4) ("balance" "protobuf" 5)
    ("balance" "method" 3) ("balance" "rpc" 4) ("balance" "config" 19)
    ("balance" "client" 60)
    ("server" "base" 63) ("server" "os" 9) ("server" "loop" 64) ("server" "hpack" 20)
    ("server" "exchange" 50)
    ("server" "http2" 37) ("server" "protobuf" 5) ("server" "status" 9) ("server" "method" 18)
    ("server" "rpc" 34) ("server" "serving" 21) ("server" "wire" 51)
    ("web" "base" 19) ("web" "loop" 3) ("web" "hpack" 7)
    ("web" "exchange" 10) ("web" "protobuf" 24) ("web" "rpc" 16) ("web" "status" 5)
    ("web" "method" 7) ("web" "serving" 4) ("web" "wire" 30) ("web" "server" 24)
    ("grpc-web" "base" 7) ("grpc-web" "exchange" 3) ("grpc-web" "rpc" 3)
    ("grpc-web" "status" 3) ("grpc-web" "server" 5)
    ("grpc-web" "web" 23)
    ("grpc-json" "exchange" 3)
    ("grpc-json" "wire" 3) ("grpc-json" "server" 6) ("grpc-json" "web" 21)
    ("connect" "base" 9) ("connect" "hpack" 3) ("connect" "exchange" 5) ("connect" "rpc" 4)
    ("connect" "protobuf" 3) ("connect" "method" 3) ("connect" "wire" 4)
    ("connect" "server" 10) ("connect" "web" 43)
    ("inproc" "base" 22) ("inproc" "os" 3) ("inproc" "loop" 26) ("inproc" "protobuf" 5)
    ("inproc" "status" 13) ("inproc" "method" 19) ("inproc" "rpc" 66) ("inproc" "calling" 20)
    ("inproc" "serving" 20) ("inproc" "config" 10)
    ("metrics" "base" 13) ("metrics" "http1" 3) ("metrics" "os" 10) ("metrics" "loop" 10)
    ("metrics" "rpc" 8)
    ("metrics" "method" 5) ("metrics" "status" 3)
    ("etcd" "base" 30) ("etcd" "loop" 25) ("etcd" "protobuf" 3)
    ("etcd" "status" 8) ("etcd" "rpc" 9) ("etcd" "calling" 5) ("etcd" "client" 18)
    ("etcd" "metrics" 7)
    ("discovery" "base" 17) ("discovery" "os" 3) ("discovery" "loop" 25) ("discovery" "config" 3)
    ("discovery" "client" 10) ("discovery" "server" 4) ("discovery" "etcd" 33)
    ("discovery" "metrics" 8) ("discovery" "command" 8)
    ("command" "base" 3) ("command" "loop" 3)
    ("program" "base" 13) ("program" "os" 15) ("program" "loop" 14) ("program" "command" 24)
    ("program" "server" 5) ("program" "services" 5) ("program" "metrics" 4)
    ("program" "trace" 5) ("program" "otlp" 5) ("program" "logs" 5)
    ("program" "channelz" 3)
    ("memory" "base" 15) ("memory" "loop" 9) ("memory" "protobuf" 4) ("memory" "status" 4)
    ("memory" "method" 3) ("memory" "rpc" 9) ("memory" "inproc" 3) ("memory" "etcd" 3)
    ("raft" "base" 21) ("raft" "loop" 10) ("raft" "status" 8) ("raft" "rpc" 15)
    ("raft" "method" 3) ("raft" "calling" 6) ("raft" "client" 3) ("raft" "metrics" 8)
    ("raft" "protobuf" 3) ("raft" "server" 4)
    ("authority" "base" 3) ("authority" "os" 4) ("authority" "loop" 5) ("authority" "rpc" 4)
    ("workflow" "authority" 5) ("cluster" "authority" 5) ("raft" "authority" 5)
    ("workflow" "base" 35) ("workflow" "loop" 26) ("workflow" "status" 8) ("workflow" "rpc" 15)
    ("workflow" "protobuf" 9) ("workflow" "calling" 4) ("workflow" "balance" 3)
    ("workflow" "server" 5) ("workflow" "method" 3) ("workflow" "services" 3)
    ("workflow" "metrics" 5)
    ("workflow" "trace" 6) ("workflow" "etcd" 36)
    ("cluster" "base" 14) ("cluster" "loop" 18) ("cluster" "protobuf" 6)
    ("cluster" "status" 8) ("cluster" "rpc" 13) ("cluster" "server" 8) ("cluster" "services" 4)
    ("cluster" "metrics" 7) ("cluster" "etcd" 40) ("cluster" "method" 3) ("cluster" "memory" 5)
    ("cluster" "discovery" 9)
    ("otlp" "base" 11) ("otlp" "protobuf" 4) ("otlp" "loop" 10) ("otlp" "status" 6)
    ("otlp" "calling" 5) ("otlp" "client" 3) ("otlp" "metrics" 20) ("otlp" "trace" 31)
    ("services" "base" 14) ("services" "protobuf" 14) ("services" "status" 5)
    ("services" "method" 3) ("services" "rpc" 10) ("services" "server" 5)
    ("services" "exchange" 7)
    ("services" "os" 4) ("services" "loop" 4) ("services" "metrics" 6)
    ("logs" "base" 32) ("logs" "loop" 7) ("logs" "rpc" 20) ("logs" "method" 5)
    ("logs" "os" 14) ("logs" "protobuf" 5) ("logs" "status" 6)
    ("console" "base" 28) ("console" "loop" 10) ("console" "rpc" 7) ("console" "serving" 3)
    ("console" "server" 9) ("console" "exchange" 15) ("console" "metrics" 14) ("console" "logs" 3)
    ("console" "program" 3) ("console" "command" 7)
    ("workflow-console" "console" 7) ("workflow-console" "workflow" 10)
    ("workflow-console" "exchange" 3) ("workflow-console" "protobuf" 5)
    ("workflow-console" "status" 5)
    ("channelz" "base" 15) ("channelz" "os" 15) ("channelz" "loop" 13) ("channelz" "http2" 9)
    ("channelz" "protobuf" 5) ("channelz" "status" 4) ("channelz" "wire" 1)
    ("channelz" "client" 22) ("channelz" "server" 10)
    ("sim" "base" 18) ("sim" "os" 15) ("sim" "loop" 30) ("sim" "calling" 3) ("sim" "server" 4))
  "For a folder and another that it uses: how many symbols of the other's package it may name. There
is room for one or two more than it names; lower a number when it can be, raise it with a reason.
Client and inproc name much of attempt, which decides on retries. Client, server and rpc name checks
of options. Workflow names much of loop, which has its jobs, and of etcd, whose errors it tells
apart. Loop names, of os, revocation lists, bundles and a key log. Client and server have each what
only that end needs: the client the statuses of responses, the server the time for compressed
messages.")

(defparameter *definers*
  '(clgrpc.base:define-hot clgrpc.base:define-leaf clgrpc.base:document-functions
    clgrpc.base:define-printer)
  "Macros in which definitions of all folders are written, as in Lisp's own. They do not count.")

(defun names-used (folder)
  "A table from each folder that FOLDER uses to the symbols of its package that FOLDER names, other
than *DEFINERS*."
  (let ((table (make-hash-table :test #'equal)))
    (dolist (symbol (reduce #'union (mapcar (lambda (source) (all-symbols (rest source)))
                                            (folder-forms folder))))
      (let ((used (our-folder (string-downcase (or (and (symbol-package symbol)
                                                        (package-name (symbol-package symbol)))
                                                   "")))))
        (when (and used (string/= used folder) (not (member symbol *definers*)))
          (push symbol (gethash used table)))))
    table))

(defun graph-rows ()
  "For doc/architecture.md: each folder, how many files it has, and the folders that it uses."
  (loop for folder in (folders)
        collect (list (format nil "`~A`" (string-right-trim "/" (file-text (layer-home folder))))
                      (length (folder-files folder))
                      (format nil "~{`~A`~^, ~}"
                              (sort (loop for used being the hash-keys of (names-used folder)
                                          collect used)
                                    #'string<)))))

(test arrows-between-folders-are-narrow
  (dolist (folder (folders))
    (loop for used being the hash-keys of (names-used folder) using (hash-value symbols)
          for limit = (third (find-if (lambda (row) (and (string= folder (first row))
                                                         (string= used (second row))))
                                      *widths*))
          do (is-true (and limit (<= (length symbols) limit))
                 "~A names ~D symbols of ~A; ~:[*WIDTHS* has no row for these two~;~:*~D ~
                  are allowed~]" folder (length symbols) used limit))))

(test few-exports
  (loop for (folder limit) in *export-limits*
        do (let ((count 0))
             (do-external-symbols (symbol (folder-package folder)) (incf count))
             (is (<= count limit)
                 "The package of ~A exports ~D symbols; ~D are allowed" folder count limit))))

;;; Names for people

(defun nameless-p (form)
  "True if FORM makes a thread, a mutex or a loop without a name of ours, or offers a restart without
a text."
  (let ((operator (and (consp form) (symbolp (first form)) (null (cdr (last form)))
                       (string (first form)))))
    (cond ((member operator '("MAKE-THREAD" "MAKE-MUTEX" "MAKE-EVENT-LOOP") :test #'string=)
           (let ((name (second (member :name form))))
             (or (null name) (and (stringp name) (not (uiop:string-prefix-p "clgrpc" name))))))
          ((equal "RESTART-CASE" operator)
           (notevery (lambda (clause) (member :report clause)) (cddr form))))))

(test what-people-see-of-us-has-names
  "Threads, mutexes and loops in a debugger, and restarts."
  (let ((nameless '()))
    (labels ((look (form)
               (when (nameless-p form) (push form nameless))
               (loop for rest = form then (cdr rest)
                     while (consp rest) do (look (car rest)))))
      (dolist (folder (folders))
        (dolist (file (folder-files folder))
          (look (source-forms file)))))
    (is (null nameless) "~S" nameless))
  (is (nameless-p '(make-mutex)))
  (is (nameless-p '(make-thread f :name "x")))
  (is (nameless-p '(restart-case f (continue () :report "x") (abort () nil)))))

(defgeneric with-one-method (object)
  (:method ((object null)) object))

(test the-checks-of-arrows-see
  (is (equal "arrow" (only-method-file 'with-one-method)))
  (is (null (only-method-file 'print-object)))
  (is (null (only-method-file 'only-method-file)))
  (flet ((same (expected symbols)
           (is (null (set-exclusive-or expected symbols)) "~S is not ~S" symbols expected)))
    (same '(defun declare f g *h* +i+ j k)
          (references '(defun l (m &key (n (f))) (declare (o)) (g *h* +i+ #'j (funcall 'k) 'r m))))
    (same '(let f case g) (references '(let ((h (f i))) (case h (j (g))))))
    (same '(f g) (references '`(f ,(g h))))
    (same '() (references 'x)))
  (is (equal '(("a" "b" "c"))
             (cycles '(("a" "b") ("b" "c") ("c" "a") ("c" "d") ("d" "e")))))
  (is (equal '() (cycles '(("a" "b") ("a" "c") ("b" "c")))))
  (let ((table (make-hash-table :test #'equal)))
    (setf (gethash 'f table) '("one") (gethash 'g table) '("two"))
    (is (equal '(("two" "one" f))
               (file-arrows '(("one" (f) (h)) ("two" (g) (f))) table)))))
