;;;; The OpenAPI document.

(in-package #:clgrpc.tests.rest)

(defun document (&rest options)
  (parse-json (octets-string (apply #'openapi-document (make-routes (library-methods)) options))))

(defun at (data &rest way)
  "The value in DATA, JSON, at the path WAY, of names and indices."
  (dolist (step way data)
    (setf data (if (integerp step)
                   (svref data step)
                   (cdr (assoc step data :test #'string=))))))

(defun references (data)
  "The values of all members called $ref in DATA."
  (cond ((simple-vector-p data) (loop for item across data append (references item)))
        ((consp data)
         (loop for (name . value) in data
               append (if (string= "$ref" name) (list value) (references value))))))

(test the-document-has-all-routes
  (let* ((document (document :title "Books" :version "2")) (paths (at document "paths")))
    (is (equal '("3.1.0" "Books" "2")
               (list (at document "openapi") (at document "info" "title")
                     (at document "info" "version"))))
    (is (equal '("/v1/shelves/{name.1}/books/{name.3}" "/v1/books/{name}"
                 "/v1/shelves/{shelf_name.1}/books" "/v1/books/{name}:scan"
                 "/v1/files/{name}:watch" "/v1/files/{name.1}" "/v1/uploads/{name}")
               (mapcar #'car paths)))
    (is (equal '("get" "put") (mapcar #'car (at paths "/v1/books/{name}"))))
    (is (equal "Gets a book." (at paths "/v1/books/{name}" "get" "summary")))))

(test the-document-is-sound
  "Operations have ids of their own, the parameters of a path occur in it, and each reference has
its schema."
  (let ((document (document :methods (library-methods))) (ids '()))
    (loop for (path . item) in (at document "paths")
          do (loop for (nil . operation) in item
                   do (push (at operation "operationId") ids)
                      (let ((names (loop for parameter across (or (at operation "parameters") #())
                                         when (string= "path" (at parameter "in"))
                                           collect (at parameter "name"))))
                        (is (every (lambda (name) (search (format nil "{~A}" name) path)) names))
                        (is (= (count #\{ path) (length names))))
                      (is (at operation "responses" "200" "description"))))
    (is (= (length ids) (length (remove-duplicates ids :test #'string=))))
    (is (find "Library_Silent" ids :test #'string=))
    (dolist (reference (references document))
      (is (at document "components" "schemas" (subseq reference (length "#/components/schemas/")))
          "~A" reference))))

(test bodies-are-json-or-whatever-they-are
  "A google.api.HttpBody has any type. A stream of answers has a type for each form."
  (let ((paths (at (document) "paths")))
    (flet ((types (path verb &rest way) (mapcar #'car (apply #'at paths path verb way))))
      (loop for (path verb . asked) in '(("/v1/books/{name}" "put" "application/json")
                                         ("/v1/shelves/{shelf_name.1}/books" "post"
                                          "application/json")
                                         ("/v1/books/{name}:scan" "post" "*/*"))
            do (is (equal asked (types path verb "requestBody" "content")) "~A" path))
      (loop for (path verb . answers) in '(("/v1/books/{name}" "get" "application/json")
                                           ("/v1/books/{name}:scan" "post" "*/*")
                                           ("/v1/files/{name}:watch" "get" "application/json"
                                            "application/x-ndjson" "text/event-stream"))
            do (is (equal answers (types path verb "responses" "200" "content")) "~A" path)))))

(defun judged-document (octets)
  "The output of openapi.py for the OpenAPI document OCTETS, and its exit code."
  (multiple-value-bind (output error-output code)
      (uiop:run-program (list "python3" (support:root-file "tests/src/web/rest/openapi.py")
                              (support:root-file "tests/vectors/openapi/schema-3.1.json"))
                        :input (make-string-input-stream (octets-string octets))
                        :output :string :error-output :string :ignore-error-status t)
    (values (concatenate 'string output error-output) code)))

(test the-public-schema-takes-the-document
  "OpenAPI 3.1's schema finds no error in the document, and JSON Schema's finds none in its schemas;
both find the errors in a wrong document."
  (unless (zerop (nth-value 2 (uiop:run-program "python3 -c 'import jsonschema'"
                                                :ignore-error-status t)))
    (support:skip-test "Python's jsonschema is not installed"))
  (let ((document (openapi-document (make-routes (library-methods)) :methods (library-methods))))
    (multiple-value-bind (said code) (judged-document document)
      (is (zerop code) "~A" said)
      (is (search "schemas" said))))
  (multiple-value-bind (said code)
      (judged-document (string-octets (write-json '(("openapi" . "3.1.0")
                                                    ("info" ("title" . "x"))
                                                    ("paths" ("/a" . :null))))))
    (is (= 1 code))
    (is (search "'version' is a required property" said))))

(test messages-are-schemas-of-their-json
  (let ((schemas (at (document) "components" "schemas")))
    (flet ((field (name) (at schemas "clgrpc.tests.library.Request" "properties" name)))
      (is (equal '(("type" . "string") ("format" . "int64")) (field "edition")))
      (is (equal '(("type" . "string") ("format" . "date-time")) (field "since")))
      (is (equalp '(("type" . #("string" "null"))) (field "motto")))
      (is (equal '(("$ref" . "#/components/schemas/clgrpc.tests.library.Book")) (field "book")))
      (is (equal '(("type" . "array") ("items" ("type" . "integer") ("format" . "int32")))
                 (field "years"))))
    (is (equal '(("type" . "object") ("additionalProperties" ("type" . "string")))
               (at schemas "clgrpc.tests.library.Book" "properties" "notes")))
    (is (equal "Who wrote it."
               (at schemas "clgrpc.tests.library.Book" "properties" "authors" "description")))
    (is (equalp #("UNBOUND" "PAPER" "CLOTH") (at schemas "clgrpc.tests.library.Binding" "enum")))))

(protobuf:define-proto "clgrpc_schemas.proto"
  :source "syntax = 'proto3'; package clgrpc.tests.schemas;
import 'google/protobuf/any.proto'; import 'google/protobuf/duration.proto';
import 'google/protobuf/field_mask.proto'; import 'google/protobuf/struct.proto';
import 'google/protobuf/timestamp.proto'; import 'google/protobuf/wrappers.proto';
message Types {
  int32 a1 = 1; sint32 a2 = 2; sfixed32 a3 = 3; uint32 b1 = 4; fixed32 b2 = 5;
  int64 c1 = 6; sint64 c2 = 7; sfixed64 c3 = 8; uint64 d1 = 9; fixed64 d2 = 10;
  float e1 = 11; double f1 = 12; bool g1 = 13; string h1 = 14; bytes i1 = 15;
  google.protobuf.NullValue j1 = 16;
  google.protobuf.Timestamp k1 = 17; google.protobuf.Duration l1 = 18;
  google.protobuf.FieldMask m1 = 19; google.protobuf.DoubleValue n1 = 20;
  google.protobuf.FloatValue o1 = 21; google.protobuf.Int64Value p1 = 22;
  google.protobuf.UInt64Value q1 = 23; google.protobuf.Int32Value r1 = 24;
  google.protobuf.UInt32Value s1 = 25; google.protobuf.BoolValue t1 = 26;
  google.protobuf.StringValue u1 = 27; google.protobuf.BytesValue v1 = 28;
  google.protobuf.Struct w1 = 29; google.protobuf.Value x1 = 30;
  google.protobuf.ListValue y1 = 31; google.protobuf.Any z1 = 32;
}")

(test each-type-has-its-schema
  "As in the JSON mapping of Protocol Buffers, 64 bits are text, and wrappers may be null."
  (flet ((schema (letter)
           (case letter
             (#\a "{'type':'integer','format':'int32'}")
             (#\b "{'type':'integer','format':'uint32','minimum':0}")
             (#\c "{'type':'string','format':'int64'}") (#\d "{'type':'string','format':'uint64'}")
             (#\e "{'type':'number','format':'float'}") (#\f "{'type':'number','format':'double'}")
             (#\g "{'type':'boolean'}") (#\h "{'type':'string'}")
             (#\i "{'type':'string','contentEncoding':'base64'}") (#\j "{'type':'null'}")
             (#\k "{'type':'string','format':'date-time'}")
             (#\l "{'type':'string','pattern':'^-?[0-9]+(\\\\.[0-9]{1,9})?s$'}")
             (#\m "{'type':'string'}") (#\n "{'type':['number','null'],'format':'double'}")
             (#\o "{'type':['number','null'],'format':'float'}")
             (#\p "{'type':['string','null'],'format':'int64'}")
             (#\q "{'type':['string','null'],'format':'uint64'}")
             (#\r "{'type':['integer','null'],'format':'int32'}")
             (#\s "{'type':['integer','null'],'format':'uint32'}")
             (#\t "{'type':['boolean','null']}") (#\u "{'type':['string','null']}")
             (#\v "{'type':['string','null'],'contentEncoding':'base64'}")
             (#\w "{'type':'object','additionalProperties':true}")
             (#\x "{'description':'Any value of JSON.'}")
             (#\y "{'type':'array','items':{'description':'Any value.'}}")
             (#\z "{'type':'object','properties':{'@type':{'type':'string'}},
                    'additionalProperties':true}"))))
    (loop for field in (protobuf:message-descriptor-fields
                        (protobuf:find-descriptor "clgrpc.tests.schemas.Types"))
          for name = (protobuf:descriptor-name field)
          do (is (equalp (parse-json (substitute #\" #\' (schema (char name 0))))
                         (parse-json (write-json (rest::value-schema (rest::make-document)
                                                                     field))))
                 "~A" name))))

(test parameters-are-what-the-query-may-have
  "Fields of the path or the body are no parameters; a message that contains itself ends."
  (let ((names (loop for parameter across (at (document) "paths" "/v1/books/{name}" "get" "parameters")
                     collect (at parameter "name"))))
    (is (equal "name" (first names)))
    (is (= 1 (count "name" names :test #'string=)))
    (is (subsetp '("shelfName" "book.authors" "since" "mask" "years") names :test #'string=))
    (is (not (find "extra" names :test #'string=)))
    (is (not (find "book.sequel.sequel.name" names :test #'string=)))))
