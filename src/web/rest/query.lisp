;;;; What the path and the query say of a request. The names of parameters are the paths of fields,
;;;; with the names of the .proto file or of JSON. What the path binds counts, whatever else says of
;;;; the same field.
;;;;
;;;; The cost is linear in the length of the query: parameters, the names in one, and the repeated
;;;; fields are limited.

(in-package #:clgrpc.rest)

(defconstant +most-parameters+ 1000
  "The parameters that a query may have.")

(defconstant +most-steps+ 32
  "The fields that may lead to the one of a parameter.")

(defconstant +most-repeated-fields+ 64
  "The repeated fields that a query may give values to.")

(defmacro do-parameters ((name value query) &body body)
  "Run BODY with NAME and VALUE bound to each parameter of QUERY, a string, decoded."
  `(call-with-parameters (lambda (,name ,value) ,@body) ,query))

(defun call-with-parameters (function query)
  (declare (type function function))
  (let ((query (coerce query 'simple-string)) (count 0))
    (declare (type index count))
    (loop for start = 0 then (1+ end)
          for end = (or (position #\& query :start start) (length query))
          do (when (< start end)
               (when (> (incf count) +most-parameters+)
                 (refuse-request 400 :invalid-argument "the query has more than ~D parameters"
                                 +most-parameters+))
               (let ((equals (or (position #\= query :start start :end end) end)))
                 (funcall function
                          (decode-text query start equals :plus t)
                          (decode-text query (min end (1+ equals)) end :plus t))))
          while (< end (length query)))))

(defun set-text (message fields texts &optional replace)
  "As SET-FIELD-TEXT, with a REQUEST-ERROR."
  (handler-case (protobuf:set-field-text message fields texts :replace replace)
    (protobuf:field-text-error (condition)
      (refuse-field (protobuf:field-text-error-path condition) "~A"
                    (protobuf:field-text-error-text condition)))))

(defun system-parameter-p (name)
  "True if NAME is a parameter such as $alt, which clients of Google APIs send and no field has."
  (and (plusp (length name)) (char= #\$ (char name 0))))

(defun parameter-fields (route name)
  "The descriptors of the fields that the parameter NAME leads to; nil if the path binds that one."
  (let ((type (route-request-type route)))
    (multiple-value-bind (fields stuck)
        (protobuf:find-field-path type name :max-steps +most-steps+)
      (let ((last (first (last fields))))
        (cond ((string= "" name)
               (refuse-request 400 :invalid-argument "a parameter of the query has no name"))
              (stuck
               (refuse-field name "~A has no such field" (protobuf:message-type-name type)))
              ((bound-p fields (route-bindings route)) nil)
              ((or (eq :all (route-body route)) (body-field-p (first fields) route))
               (refuse-field name "is given by the body, not by the query"))
              ((not (protobuf:text-field-p last))
               (refuse-field name "takes a message, which no parameter can be"))
              (t fields))))))

(defun bind-query (route message query)
  "Give MESSAGE, a request of ROUTE, what QUERY says, a string or nil."
  (when query
    (let ((repeated '()) (count 0))     ; lists of fields and texts, the latest first
      (do-parameters (name value query)
        (let ((fields (and (not (system-parameter-p name)) (parameter-fields route name))))
          (cond ((null fields))
                ((repeated-p (first (last fields)))
                 (let ((entry (assoc fields repeated :test #'same-fields-p)))
                   (cond (entry (push value (rest entry)))
                         ((> (incf count) +most-repeated-fields+)
                          (refuse-request 400 :invalid-argument
                                          "the query has values for more than ~D repeated fields"
                                          +most-repeated-fields+))
                         (t (push (list fields value) repeated)))))
                (t (set-text message fields (list value))))))
      (loop for (fields . texts) in (reverse repeated)
            do (set-text message fields (reverse texts))))))

(defun bind-path (route match message)
  "Give MESSAGE, a request of ROUTE, what MATCH says of the variables."
  (let ((starts (match-starts match)) (ends (match-ends match))
        (segments (template-segments (route-template route))))
    (dolist (binding (route-bindings route))
      (let* ((start (binding-start binding))
             (end (if (eq :rest (svref segments (1- (binding-end binding))))
                      (length starts)
                      (binding-end binding)))
             (text (if (< start end)
                       (decode-text (match-text match) (svref starts start) (svref ends (1- end))
                                    :keep-slashes (binding-wide binding))
                       "")))
        (set-text message (binding-fields binding) (list text) t)))))
