;;;; Every symbol that the packages for users and for those who build on a layer export means
;;;; something, and everything it means (function, macro, type, variable) has a docstring.

(defpackage #:clgrpc.tests.documentation
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.documentation)

(def-suite :clgrpc.documentation :description "Docstrings of exported symbols.")

(defparameter *packages*
  '(#:clgrpc #:clgrpc.kernel #:clgrpc.base #:clgrpc.option #:clgrpc.loop #:clgrpc.async
    #:clgrpc.http2
    #:clgrpc.hpack #:clgrpc.http1 #:clgrpc.protobuf #:clgrpc.sim #:clgrpc.etcd #:clgrpc.workflow
    #:clgrpc.discovery #:clgrpc.memory #:clgrpc.raft
    #:clgrpc.cluster #:clgrpc.authority)
  "The packages for users and those who build on a layer, all of whose exports must be documented.")

(defparameter *inner-packages*
  '(#:clgrpc.os #:clgrpc.dns #:clgrpc.proxy #:clgrpc.token #:clgrpc.topic #:clgrpc.status
    #:clgrpc.method #:clgrpc.rpc
    #:clgrpc.encoding #:clgrpc.credentials #:clgrpc.attempt #:clgrpc.calling
    #:clgrpc.serving #:clgrpc.wire #:clgrpc.config #:clgrpc.client #:clgrpc.balance
    #:clgrpc.rest #:clgrpc.gateway #:clgrpc.exchange #:clgrpc.server #:clgrpc.web
    #:clgrpc.grpc-web #:clgrpc.connect #:clgrpc.grpc-json
    #:clgrpc.inproc #:clgrpc.services
    #:clgrpc.logs
    #:clgrpc.metrics #:clgrpc.channelz #:clgrpc.trace #:clgrpc.otlp #:clgrpc.console
    #:clgrpc.workflow-console
    #:clgrpc.command #:clgrpc.program)
  "The other packages of src/, whose structures document what is exported of them.")

(defun documented-structure-p (name package)
  "True if NAME, a string, names in PACKAGE a type that has documentation."
  (let ((symbol (find-symbol name package)))
    (and symbol (plusp (length (documentation symbol 'type))))))

(defun of-documented-structure-p (symbol)
  "True if SYMBOL names an accessor, the constructor or the predicate of a documented structure."
  (let* ((name (symbol-name symbol))
         (package (symbol-package symbol))
         (accessed (sb-kernel:structure-instance-accessor-p symbol)))
    (cond (accessed (documented-structure-p (symbol-name (sb-kernel:dd-name (first accessed)))
                                            (symbol-package (sb-kernel:dd-name (first accessed)))))
          ((uiop:string-prefix-p "MAKE-" name) (documented-structure-p (subseq name 5) package))
          ((uiop:string-suffix-p name "-P")
           (documented-structure-p (subseq name 0 (- (length name) 2)) package)))))

(defun meanings (symbol)
  "What SYMBOL names, as the second arguments of DOCUMENTATION."
  (append (when (fboundp symbol) '(function))
          (when (sb-ext:valid-type-specifier-p symbol) '(type))
          (when (boundp symbol) '(variable))))

(defun exports (package)
  (let ((symbols '()))
    (do-external-symbols (symbol package) (push symbol symbols))
    (sort symbols #'string<)))

(defun defects (symbol &optional (excused-p (constantly nil)))
  "What SYMBOL, which is exported, lacks, as a list of texts. EXCUSED-P tells which functions may do
without."
  (or (loop for meaning in (meanings symbol)
            unless (or (plusp (length (documentation symbol meaning)))
                       (and (eq 'function meaning) (funcall excused-p symbol)))
              collect (format nil "~S has no documentation as a ~(~A~)" symbol meaning))
      (unless (or (meanings symbol)
                  (fboundp `(setf ,symbol))
                  (sb-int:info :function :info symbol)) ; a kernel, known to the compiler alone
        (list (format nil "~S is exported and names nothing" symbol)))))

(test exports-are-documented
  (dolist (package *packages*)
    (let ((defects (mapcan #'defects (exports package))))
      (is (null defects) "~{~A~^; ~}" defects))))

(test exports-of-inner-packages-are-documented
  (dolist (package *inner-packages*)
    (let ((defects (mapcan (lambda (symbol) (defects symbol #'of-documented-structure-p))
                           (exports package))))
      (is (null defects) "~{~A~^; ~}" defects))))

(test every-package-is-looked-at
  (dolist (folder (uiop:symbol-call '#:clgrpc.tests.architecture '#:folders))
    (let ((package (format nil "CLGRPC.~:@(~A~)" folder)))
      (is (member package (append *packages* *inner-packages*) :test #'string=)
          "Nobody looks at the exports of ~A" package))))
