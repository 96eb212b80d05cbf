;;;; What the path and the query say of a request. The names of parameters are the paths of fields,
;;;; with the names of the .proto file or of JSON. What the path binds counts, whatever else says of
;;;; the same field.
;;;;
;;;; The cost is linear in the length of the query: parameters, the names in one, and the repeated
;;;; fields are limited. A peer repeats a long query by an octet or two, since HPACK has it in its
;;;; table; so a parameter with the name of the one before costs no look-up.

(in-package #:clgrpc.rest)

(defconstant +most-parameters+ 300
  "The parameters that a query may have, empty ones included.")

(defconstant +most-steps+ 32
  "The fields that may lead to the one of a parameter.")

(defconstant +most-repeated-fields+ 64
  "The repeated fields that a query may give values to.")

(define-hot same-text-p ((text characters) (start index) (end index) (other index)
                         (other-end index))
    boolean
  "True if TEXT has the same from START to END as from OTHER to OTHER-END."
  (and (= (- end start) (- other-end other))
       (loop for i of-type index from start below end
             for j of-type index from other
             always (char= (schar text i) (schar text j)))))

(defun map-parameters (function query)
  "Call FUNCTION with the name and the value of each parameter of QUERY, a string, decoded. The name
is nil if it is that of the parameter before."
  (declare (type function function))
  (let ((query (characters query)) (count 0) (before 0) (before-end 0))
    (declare (type characters query) (type index count before before-end))
    (loop for start of-type index = 0 then (1+ end)
          for end of-type index = (char-position #\& query start (length query))
          do (when (> (incf count) +most-parameters+)
               (refuse-request 400 :invalid-argument "the query has more than ~D parameters"
                               +most-parameters+))
             (when (< start end)
               (let ((equals (char-position #\= query start end)))
                 (funcall function
                          (if (and (< before before-end)
                                   (same-text-p query start equals before before-end))
                              nil
                              (decode-text query start equals :plus t))
                          (decode-text query (min end (1+ equals)) end :plus t))
                 (setf before start before-end equals)))
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

(defun query-parameters (route query)
  "What QUERY, a string or nil, gives to fields of a request of ROUTE: a list of lists of the
descriptors that lead to a field and of its texts."
  (let ((all '()) (repeated 0) (fields nil) (entry nil)) ; the last of each comes first
    (flet ((find-entry ()
             (let ((known (and (repeated-p (first (last fields)))
                               (find fields all :key #'first :test #'same-fields-p))))
               (cond (known)
                     ((and (repeated-p (first (last fields)))
                           (> (incf repeated) +most-repeated-fields+))
                      (refuse-request 400 :invalid-argument
                                      "the query has values for more than ~D repeated fields"
                                      +most-repeated-fields+))
                     (t (first (push (list fields) all)))))))
      (when query
        (map-parameters
         (lambda (name value)
           (when name
             (setf fields (and (not (system-parameter-p name)) (parameter-fields route name))
                   entry (and fields (find-entry))))
           (when entry (push value (rest entry))))
         query)))
    (loop for (fields . texts) in (nreverse all)
          collect (cons fields (reverse texts)))))

(defun bind-query (message parameters)
  "Give MESSAGE what PARAMETERS, of QUERY-PARAMETERS, say."
  (loop for (fields . texts) in parameters
        do (set-text message fields texts)))

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
