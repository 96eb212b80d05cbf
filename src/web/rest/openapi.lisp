;;;; The OpenAPI 3.1 document of routes, made from descriptors and their comments. Messages are
;;;; schemas of ProtoJSON, by their full names. A variable of several segments is a parameter for
;;;; each "*", since no parameter of OpenAPI has a slash. Methods of HTTP that OpenAPI does not know
;;;; are omitted, and so is an operation whose path and method the document already has, from an
;;;; earlier route.

(in-package #:clgrpc.rest)

(defparameter *openapi-verbs* '("GET" "PUT" "POST" "DELETE" "OPTIONS" "HEAD" "PATCH" "TRACE")
  "The methods of HTTP that a path of OpenAPI can have.")

(defconstant +deepest-parameter+ 3
  "The maximum number of names in the path of a parameter that the document shows.")

(defstruct (document (:copier nil))
  "A document that is being made."
  (schemas (make-hash-table :test 'equal) :type hash-table) ; from full name to schema, T while made
  (paths '() :type list)                ; from path to operations, latest first
  (shapes (make-hash-table :test 'equal) :type hash-table) ; maps a shape to the path that has it
  (ids (make-hash-table :test 'equal) :type hash-table)) ; the operationIds that are taken

(defun object (&rest members)
  "The JSON object of MEMBERS, alternately names and values; members whose value is nil are
omitted."
  (loop for (name value) on members by #'cddr
        when value collect (cons name value)))

(defun reference (full-name)
  (object "$ref" (format nil "#/components/schemas/~A" full-name)))

(defun comment-of (descriptor)
  "The comment of DESCRIPTOR without the spaces around it; nil if DESCRIPTOR has none."
  (when-let ((comment (protobuf:descriptor-comment descriptor)))
    (let ((text (string-trim '(#\Space #\Newline) comment)))
      (and (string/= "" text) text))))

(defun first-sentence (text)
  (and text
       (let ((end (or (search ". " text) (position #\Newline text))))
         (subseq text 0 (and end (if (char= #\. (char text end)) (1+ end) end))))))

;;; Schemas

(defun well-known-schema (full-name)
  "The schema of the message FULL-NAME if it has a special form in JSON; else nil."
  (flet ((texts (&rest rest) (apply #'object "type" "string" rest))
         (maybe (type &optional format) (object "type" (vector type "null") "format" format)))
    (let ((row (assoc full-name
                      `(("Timestamp" ,(texts "format" "date-time"))
                        ("Duration" ,(texts "pattern" "^-?[0-9]+(\\.[0-9]{1,9})?s$"))
                        ("FieldMask" ,(texts))
                        ("DoubleValue" ,(maybe "number" "double"))
                        ("FloatValue" ,(maybe "number" "float"))
                        ("Int64Value" ,(maybe "string" "int64"))
                        ("UInt64Value" ,(maybe "string" "uint64"))
                        ("Int32Value" ,(maybe "integer" "int32"))
                        ("UInt32Value" ,(maybe "integer" "uint32"))
                        ("BoolValue" ,(maybe "boolean")) ("StringValue" ,(maybe "string"))
                        ("BytesValue" ,(object "type" #("string" "null")
                                               "contentEncoding" "base64"))
                        ("Struct" ,(object "type" "object" "additionalProperties" :true))
                        ("Value" ,(object "description" "Any value of JSON."))
                        ("ListValue" ,(object "type" "array" "items" (object "description"
                                                                             "Any value.")))
                        ("Any" ,(object "type" "object"
                                        "properties" (object "@type" (texts))
                                        "additionalProperties" :true)))
                      :test (lambda (name key)
                              (string= name (format nil "google.protobuf.~A" key))))))
      (second row))))

(defun note-schema (document full-name)
  "Ensure that DOCUMENT has the schema of FULL-NAME, a message or enum, and return a reference to
it."
  (let ((schemas (document-schemas document)))
    (unless (gethash full-name schemas)
      (setf (gethash full-name schemas) t
            (gethash full-name schemas)
            (let ((descriptor (type-descriptor full-name)))
              (cond ((null descriptor) (object "type" "object"))
                    ((typep descriptor 'protobuf:enum-descriptor) (enum-schema descriptor))
                    (t (message-schema document descriptor))))))
    (reference full-name)))

(defvar *find-descriptor* #'protobuf:find-descriptor
  "A function from the full name of a type to its descriptor, or nil.")

(defun type-descriptor (full-name)
  (funcall *find-descriptor* full-name))

(defun enum-schema (enum)
  (object "type" "string" "description" (comment-of enum)
          "enum" (map 'vector #'protobuf:descriptor-name (protobuf:enum-descriptor-values enum))))

(defun message-schema (document message)
  "The schema in DOCUMENT of MESSAGE, a descriptor."
  (object "type" "object" "description" (comment-of message)
          "properties" (loop for field in (protobuf:message-descriptor-fields message)
                             collect (cons (protobuf:field-descriptor-json-name field)
                                           (described (field-schema document field) field)))))

(defun described (schema descriptor)
  "SCHEMA with the comment at DESCRIPTOR."
  (let ((comment (comment-of descriptor)))
    (if comment (append schema (object "description" comment)) schema)))

(defun value-schema (document field)
  (let ((name (protobuf:field-descriptor-type-name field)))
    (ecase (protobuf:field-descriptor-type field)
      ((:int32 :sint32 :sfixed32) (object "type" "integer" "format" "int32"))
      ((:uint32 :fixed32) (object "type" "integer" "format" "uint32" "minimum" 0))
      ((:int64 :sint64 :sfixed64) (object "type" "string" "format" "int64"))
      ((:uint64 :fixed64) (object "type" "string" "format" "uint64"))
      (:float (object "type" "number" "format" "float"))
      (:double (object "type" "number" "format" "double"))
      (:bool (object "type" "boolean"))
      (:string (object "type" "string"))
      (:bytes (object "type" "string" "contentEncoding" "base64"))
      (:enum (if (string= name "google.protobuf.NullValue")
                 (object "type" "null")
                 (note-schema document name)))
      ((:message :group) (or (well-known-schema name) (note-schema document name))))))

(defun map-entry (field)
  "The descriptor of the entries of FIELD, a map; else nil."
  (and (repeated-p field)
       (message-field-p field)
       (let ((entry (type-descriptor (protobuf:field-descriptor-type-name field))))
         (and entry (protobuf:message-descriptor-map-entry-p entry) entry))))

(defun field-schema (document field)
  (let ((entry (map-entry field)))
    (cond (entry
           (object "type" "object"
                   "additionalProperties"
                   (value-schema document (second (protobuf:message-descriptor-fields entry)))))
          ((repeated-p field)
           (object "type" "array" "items" (value-schema document field)))
          (t (value-schema document field)))))

(defun type-schema (document type)
  "The schema of messages of TYPE: a special schema, or a reference to the one in DOCUMENT."
  (let ((name (protobuf:message-type-name type)))
    (or (well-known-schema name) (note-schema document name))))

;;; Paths

(defun parameter-name (route index)
  "Two values: the name of the parameter for the segment at INDEX of ROUTE's template, and, if the
segment is a whole variable, its field."
  (if-let ((binding (find-if (lambda (binding)
                               (and (<= (binding-start binding) index)
                                    (< index (binding-end binding))))
                             (route-bindings route))))
    (let ((fields (binding-fields binding)))
      (if (= 1 (- (binding-end binding) (binding-start binding)))
          (values (format nil "~{~A~^.~}" (mapcar #'protobuf:descriptor-name fields))
                  (first (last fields)))
          (format nil "~{~A~^.~}.~D" (mapcar #'protobuf:descriptor-name fields)
                  (- index (binding-start binding)))))
    (format nil "segment.~D" index)))

(defun path-parameters (route)
  "The names of the parameters in ROUTE's path and the field or nil of each, in a list of lists."
  (loop for segment across (template-segments (route-template route))
        for index from 0
        when (symbolp segment) collect (multiple-value-list (parameter-name route index))))

(defun openapi-path (route names)
  (format nil "~{/~A~}~@[:~A~]"
          (loop for segment across (template-segments (route-template route))
                collect (if (symbolp segment) (format nil "{~A}" (pop names)) segment))
          (route-suffix route)))

(defun path-parameter (document name field rest)
  (object "name" name "in" "path" "required" :true
          "description" (or (and field (comment-of field))
                            (and rest "The rest of the path, which may have slashes."))
          "schema" (if field (field-schema document field) (object "type" "string"))))

(defun query-fields (route)
  "The lists of fields that lead to each parameter of ROUTE's queries."
  (let ((found '()))
    (labels ((visit (type-name way depth)
               (dolist (field (protobuf:message-descriptor-fields (type-descriptor type-name)))
                 (let ((fields (append way (list field))))
                   (cond ((or (and (null way) (body-field-p field route))
                              (bound-p fields (route-bindings route))))
                         ((protobuf:text-field-p field) (push fields found))
                         ((and (not (repeated-p field))
                               (< depth +deepest-parameter+)
                               (not (well-known-schema
                                     (protobuf:field-descriptor-type-name field)))
                               (not (member (protobuf:field-descriptor-type-name field) way
                                            :key #'protobuf:field-descriptor-type-name
                                            :test #'equal)))
                          (visit (protobuf:field-descriptor-type-name field) fields
                                 (1+ depth))))))))
      (unless (eq :all (route-body route))
        (visit (protobuf:message-type-name (route-request-type route)) '() 1)))
    (nreverse found)))

(defun query-parameter (document fields)
  "The parameter of a query for the field that FIELDS, from the outermost, lead to."
  (let ((field (first (last fields))))
    (object "name" (format nil "~{~A~^.~}" (mapcar #'protobuf:field-descriptor-json-name fields))
            "in" "query" "description" (comment-of field)
            "schema" (field-schema document field))))

;;; Operations

(defun json-content (schema)
  (object "application/json" (object "schema" schema)))

(defparameter *raw-content* '(("*/*" . (("schema" . (("type" . "string"))))))
  "The content of a google.api.HttpBody.")

(defun request-body (document route)
  (let ((body (route-body route)))
    (object "required" :true
            "content"
            (cond ((route-raw-body route) *raw-content*)
                  ((eq :all body) (json-content (type-schema document (route-request-type route))))
                  (t (json-content (field-schema document body)))))))

(defun answer-content (document route)
  (let* ((field (route-answer-field route))
         (schema (cond ((route-raw-answer route) nil)
                       (field (field-schema document field))
                       (t (type-schema document (route-response-type route))))))
    (cond ((null schema) *raw-content*)
          ((protobuf:method-descriptor-server-streaming-p (route-method route))
           (append (json-content (object "type" "array" "items" schema))
                   (object "application/x-ndjson" (object "schema" schema)
                           "text/event-stream" (object "schema" (object "type" "string")))))
          (t (json-content schema)))))

(defun responses (document content)
  (object "200" (object "description" "OK" "content" content)
          "default" (object "description" "An error."
                            "content" (json-content (note-schema document "google.rpc.Status")))))

(defun operation-id (document method)
  "An operationId for METHOD that DOCUMENT does not have yet."
  (let* ((full-name (protobuf:descriptor-full-name method))
         (dot (position #\. full-name :from-end t))
         (name (substitute #\_ #\. (subseq full-name
                                           (1+ (or (position #\. full-name :end dot :from-end t)
                                                   -1))))))
    (loop for id = name then (format nil "~A_~D" name number)
          for number from 2
          unless (gethash id (document-ids document))
            do (setf (gethash id (document-ids document)) t)
               (return id))))

(defun service-name (method)
  (let ((full-name (protobuf:descriptor-full-name method)))
    (subseq full-name 0 (position #\. full-name :from-end t))))

(defun operation (document method &rest members)
  "The operation of DOCUMENT for METHOD, with MEMBERS, names and values."
  (let ((comment (comment-of method)))
    (append (object "operationId" (operation-id document method)
                    "tags" (vector (service-name method))
                    "summary" (first-sentence comment) "description" comment)
            (apply #'object members))))

(defun add-operation (document path verb operation)
  "Add the value of OPERATION, a function, for PATH and VERB to DOCUMENT, unless DOCUMENT already
has an operation for these."
  (let* ((item (or (assoc path (document-paths document) :test #'string=)
                   (first (push (list path) (document-paths document)))))
         (key (string-downcase verb)))
    (unless (assoc key (rest item) :test #'string=)
      (setf (rest item) (append (rest item) (list (cons key (funcall operation))))))))

(defun route-names (document route parameters)
  "The names of ROUTE's PARAMETERS: those of the first route of DOCUMENT whose path has the same
shape."
  (let ((shape (openapi-path route (make-list (length parameters) :initial-element ""))))
    (alexandria:ensure-gethash shape (document-shapes document) (mapcar #'first parameters))))

(defun add-route (document route)
  (let* ((parameters (path-parameters route))
         (names (route-names document route parameters))
         (rest (eq :rest (let ((segments (template-segments (route-template route))))
                           (svref segments (1- (length segments)))))))
    (when (member (route-verb route) *openapi-verbs* :test #'string=)
      (add-operation
       document (openapi-path route names) (route-verb route)
       (lambda ()
         (operation
          document (route-method route)
          "parameters"
          (concatenate 'vector
                       (loop for (nil field) in parameters
                             for (name . more) on names
                             collect (path-parameter document name field (and rest (null more))))
                       (loop for fields in (query-fields route)
                             collect (query-parameter document fields)))
          "requestBody" (and (route-body route) (request-body document route))
          "responses" (responses document (answer-content document route))))))))

(defun add-connect-method (document method request-type response-type)
  "Add the path of METHOD, a unary one, in the Connect protocol."
  (add-operation
   document (protobuf:method-descriptor-path method) "POST"
   (lambda ()
     (operation document method
                "requestBody" (object "required" :true
                                      "content" (json-content (type-schema document request-type)))
                "responses" (responses document
                                       (json-content (type-schema document response-type)))))))

(defun sorted-schemas (document)
  (sort (loop for name being the hash-keys of (document-schemas document) using (hash-value schema)
              collect (cons name schema))
        #'string< :key #'car))

(defun openapi-document (routes &key (title "API") (version "1") methods
                                  (find-descriptor #'protobuf:find-descriptor))
  "Return the OpenAPI 3.1 document of ROUTES, and of METHODS, unary ones, in the form of the Connect
protocol, as octets in JSON. METHODS is a list of lists as MAKE-ROUTES takes it. TITLE and VERSION
are the document's; FIND-DESCRIPTOR maps the full name of a message or enum to its descriptor."
  (let ((document (make-document)) (*find-descriptor* find-descriptor))
    (dolist (route routes) (add-route document route))
    (loop for (method request-type response-type) in methods
          unless (or (protobuf:method-descriptor-client-streaming-p method)
                     (protobuf:method-descriptor-server-streaming-p method))
            do (add-connect-method document method request-type response-type))
    (string-octets
     (write-json
      (list (cons "openapi" "3.1.0")
            (cons "info" (object "title" title "version" version))
            (cons "paths" (reverse (document-paths document)))
            (cons "components" (object "schemas" (sorted-schemas document))))))))
