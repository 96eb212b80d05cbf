;;;; The library's routes, rules made for a test, and requests as one text each.

(in-package #:clgrpc.tests.rest)

(defun library-methods ()
  "The library's methods as MAKE-ROUTES takes them."
  (loop for method in (protobuf:service-descriptor-methods
                       (protobuf:find-descriptor "clgrpc.tests.library.Library"))
        collect (list method
                      (protobuf:find-message-type (protobuf:method-descriptor-input method))
                      (protobuf:find-message-type (protobuf:method-descriptor-output method))
                      :payload)))

(defun library-router ()
  (make-router (make-routes (library-methods))))

(defun method-named (name)
  "The method of the library with NAME, as MAKE-ROUTES takes it."
  (find name (library-methods) :test #'string=
        :key (lambda (entry) (protobuf:descriptor-name (first entry)))))

(defun rule-routes (&rest rules)
  "The routes of RULES: plists without selector, for the methods Silent, Any and Upload in turn."
  (let ((names (subseq '("Silent" "Any" "Upload") 0 (length rules))))
    (make-routes (mapcar #'method-named names)
                 :rules (read-rules
                         (loop for rule in rules
                               for name in names
                               collect (list* :selector
                                              (format nil "clgrpc.tests.library.Library.~A" name)
                                              rule))))))

(defun rule-router (&rest rules)
  (make-router (apply #'rule-routes rules)))

(defun rule-complaint (&rest rules)
  "The text of the error in RULES, or nil."
  (handler-case (progn (apply #'rule-router rules) nil)
    (rule-error (condition) (princ-to-string condition))))

(defun bound (route match query octets type)
  "The messages of the request."
  (let ((parameters (query-parameters route query)))
    (mapcar (lambda (part) (bind-message route match parameters part type))
            (loop for (start . end) in (body-parts route match query parameters octets
                                                   (length octets))
                  collect (subseq octets start end)))))

(defun requested (router verb target &key (body "") type)
  "The result of the request by ROUTER: the name of the method, and its messages in JSON; or the
HTTP status, and the field and the text of the error; or :NONE and the allowed methods of HTTP."
  (let ((query (position #\? target)))
    (handler-case
        (multiple-value-bind (route match) (find-route router verb (subseq target 0 query))
          (if route
              (cons (protobuf:descriptor-name (route-method route))
                    (mapcar #'protobuf:message-json
                            (bound route match (and query (subseq target (1+ query)))
                                   (if (stringp body) (string-octets body) body) type)))
              (list :none match)))
      (request-error (condition)
        (list (request-error-http-status condition) (request-error-field condition)
              (request-error-text condition))))))

(defmacro requests (router &body rows)
  "Check each of ROWS: a list of REQUESTED's arguments, and its values. Of an error only the status
and the field count."
  `(let ((router ,router))
     ,@(loop for (arguments expected) in rows
             collect `(let ((found (requested router ,@arguments)) (expected ',expected))
                        (is (equal expected
                                   (if (integerp (first expected)) (butlast found) found))
                            "~S gives ~S" ',arguments found)))))
