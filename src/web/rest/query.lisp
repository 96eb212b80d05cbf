;;;; The values of a request in its path and its query. The names of parameters are the paths of
;;;; fields, with the names of the .proto file or of JSON. The value in the path is used, even if
;;;; the query or the body has the same field.
;;;;
;;;; The cost is linear in the length of the query: parameters, and the names in them, are limited.
;;;; With HPACK a peer can repeat a long query with one or two octets; so a parameter with the same
;;;; name as the previous one costs no look-up, and an unused value is not decoded.

(in-package #:clgrpc.rest)

(defconstant +most-parameters+ 150
  "The maximum number of parameters of a query, empty ones included.")

(defconstant +most-steps+ 32
  "The maximum number of names in the path of a parameter.")

(defconstant +most-names+ 40
  "The maximum number of look-ups of names for a query: of parameters whose name differs from the
previous one, and of the fields in these names.")

(defconstant +longest-name+ 1024
  "The maximum number of characters of a parameter's name.")

(define-hot same-text-p ((text simple-string) (start index) (end index) (other index)
                         (other-end index))
    boolean
  "True if TEXT has the same characters from START to END as from OTHER to OTHER-END."
  (and (= (- end start) (- other-end other))
       (with-text-type (text)
         (loop for i of-type index from start below end
               for j of-type index from other
               always (char= (schar text i) (schar text j))))))

(defconstant +short-parameter+ 32
  "The number of characters of a parameter after which its end is searched for by CHAR-POSITION.")

(define-hot parameter-ends ((query simple-string) (start index)) (values index index)
  "Two values: the end of the name of the parameter that begins at START of QUERY, and the end of
that parameter."
  (let ((equals nil) (at start) (near (min (length query) (+ start +short-parameter+))))
    (declare (type (or null index) equals) (type index at near))
    (with-text-type (query)
      (loop until (or (= at near) (char= #\& (schar query at)))
            do (when (and (null equals) (char= #\= (schar query at))) (setf equals at))
               (incf at)))
    (when (= at near)
      (setf at (or (char-position #\& query :start near) (length query))
            equals (or equals (char-position #\= query :start near :end at))))
    (values (or equals at) at)))

(define-hot map-parameters ((function function) (query simple-string)) null
  "Call FUNCTION for each parameter of QUERY with four positions: the beginning and the end of its
name, or nil for both if the previous parameter has the same name; and those of its value."
  (let ((count 0) (start 0) (before 0) (before-end 0))
    (declare (type index count start before before-end))
    (loop
      (when (> (incf count) +most-parameters+)
        (refuse-request 400 :invalid-argument "the query has more than ~D parameters"
                        +most-parameters+))
      (multiple-value-bind (equals end) (parameter-ends query start)
        (declare (type index equals end))
        (when (< start end)
          (let ((value (min end (1+ equals))))
            (if (and (< before before-end) (same-text-p query start equals before before-end))
                (funcall function nil nil value end)
                (funcall function start equals value end)))
          (setf before start before-end equals))
        (when (= end (length query)) (return nil))
        (setf start (1+ end))))))

(defun set-text (message fields texts &optional replace)
  "Do what SET-FIELD-TEXT does, but signal its errors as a REQUEST-ERROR."
  (handler-case (protobuf:set-field-text message fields texts :replace replace)
    (protobuf:field-text-error (condition)
      (refuse-field (protobuf:field-text-error-path condition) "~A"
                    (protobuf:field-text-error-text condition)))))

(defun system-parameter-p (query start end)
  "True if QUERY from START to END is the name of a parameter such as $alt, which clients of Google
APIs send and which is not a field."
  (and (< start end)
       (or (char= #\$ (char query start))
           (and (<= (+ start 3) end) (string= "%24" query :start2 start :end2 (+ start 3))))))

(defun parameter-fields (route name)
  "The descriptors of the fields to which the parameter NAME leads; nil if the path binds that
field."
  (let ((type (route-request-type route)))
    (multiple-value-bind (fields stuck)
        (protobuf:find-field-path type name :max-steps +most-steps+)
      (let ((last (first (last fields))))
        (cond ((zerop (length name))
               (refuse-request 400 :invalid-argument "a parameter of the query has no name"))
              ((and stuck (<= +most-steps+ (count #\. name)))
               (refuse-field name "has more than ~D names" +most-steps+))
              (stuck
               (refuse-field name "~A has no such field" (protobuf:message-type-name type)))
              ((bound-p fields (route-bindings route)) nil)
              ((or (eq :all (route-body route)) (body-field-p (first fields) route))
               (refuse-field name "is given by the body, not by the query"))
              ((not (protobuf:text-field-p last))
               (refuse-field name "takes a message, which a parameter cannot represent"))
              (t fields))))))

(defun decoded-name (query start end)
  (when (< +longest-name+ (- end start))
    (refuse-request 400 :invalid-argument "the name of a parameter has more than ~D characters"
                    +longest-name+))
  (decode-text query start end :plus t))

(defun query-parameters (route query)
  "The values in QUERY, a string or nil, for fields of a request of ROUTE: a list of lists, each of
the descriptors that lead to a field and the texts for that field."
  (let ((all '()) (names 0) (entry nil)) ; the last of each comes first
    (labels ((look-up (name)
               (let ((fields (parameter-fields route name)))
                 (when (> (incf names (1+ (max 1 (length fields)))) +most-names+)
                   (refuse-request 400 :invalid-argument
                                   "the query has more than ~D parameters and names of fields"
                                   +most-names+))
                 (and fields
                      (or (find fields all :key #'first :test #'same-fields-p)
                          (first (push (list fields) all))))))
             (take (value)
               (when (and (rest entry) (not (repeated-p (first (last (first entry))))))
                 (refuse-field (format nil "~{~A~^.~}"
                                       (mapcar #'protobuf:descriptor-name (first entry)))
                               "takes one value only"))
               (push value (rest entry))))
      (when query
        (map-parameters
         (lambda (start end value value-end)
           (when start
             (setf entry (and (not (system-parameter-p query start end))
                              (look-up (decoded-name query start end)))))
           (when entry (take (decode-text query value value-end :plus t))))
         query)))
    (loop for (fields . texts) in (nreverse all)
          collect (cons fields (reverse texts)))))

(defun bind-query (message parameters)
  "Give MESSAGE the values in PARAMETERS, a value of QUERY-PARAMETERS."
  (loop for (fields . texts) in parameters
        do (set-text message fields texts)))

(defun bind-path (route match message)
  "Give MESSAGE, a request of ROUTE, the values of the variables in MATCH."
  (let ((starts (match-starts match))
        (segments (template-segments (route-template route))))
    (dolist (binding (route-bindings route))
      (let* ((start (binding-start binding))
             (end (if (eq :rest (svref segments (1- (binding-end binding))))
                      (match-count match)
                      (binding-end binding)))
             (text (if (< start end)
                       (decode-text (match-text match) (svref starts start)
                                    (segment-end match (1- end))
                                    :keep-slashes (binding-wide binding))
                       "")))
        (set-text message (binding-fields binding) (list text) t)))))
