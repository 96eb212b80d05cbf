;;;; `openapi`: the OpenAPI document of services whose descriptors come from a server's reflection
;;;; or from a .proto file.

(in-package #:clgrpc.tools)

(defun pool-methods (pool names)
  "The methods of the services of POOL that are called NAMES, as REST:MAKE-ROUTES takes them."
  (flet ((type-of-name (name)
           (or (protobuf:find-pool-type pool name) (fail-command "no type is called ~A" name))))
    (loop for name in names
          append (loop for method in (protobuf:service-descriptor-methods
                                      (need-descriptor pool name 'protobuf:service-descriptor
                                                       "service"))
                       collect (list method
                                     (type-of-name (protobuf:method-descriptor-input method))
                                     (type-of-name (protobuf:method-descriptor-output method))
                                     nil)))))

(defun pool-document (pool names rules title version connect)
  "The OpenAPI document, as text, of the services of POOL that are called NAMES."
  (let ((methods (pool-methods pool names)) (index (pool-index pool)))
    (octets-string
     ;; making a router finds routes that hide others
     (rest:openapi-document (rest:router-routes
                             (rest:make-router (rest:make-routes methods :rules rules)))
                            :title title :version version :methods (and connect methods)
                            :find-descriptor (lambda (name)
                                               (or (gethash name index)
                                                   (protobuf:find-descriptor name)))))))

(define-command "openapi"
    (((address "[ADDRESS]" #'identity "Where the server listens; left out with --proto.")
      (service "[SERVICE]" #'identity "The full name of a service; all services without."))
     (descriptor-source
      client-tls
      (rules "FILE" #'identity nil
             "A service config in YAML, whose http.rules take the place of annotations.")
      (title "TEXT" #'identity "API" "The title of the document.")
      (api-version "TEXT" #'identity "1" "The version of the API.")
      (connect "[BOOLEAN]" #'parse-boolean nil
               "Include the unary methods in the form of the Connect protocol as well.")))
    "Print the OpenAPI 3.1 document of the REST interface of services, by the google.api.http
annotations of their methods. Asks the server's reflection, or reads --proto. Rules that are wrong
are errors."
  (call-with-descriptor-source
   (lambda (service list pool-of)
     (let* ((names (if service (list (string-left-trim "." service)) (funcall list)))
            (pool (funcall pool-of names)))
       (handler-case (format t "~A~%" (pool-document pool names (and rules
                                                          (rest:read-rules (read-text-file rules)))
                                                     title api-version connect))
         (grpc:rule-error (error) (fail-command "~A" error)))))
   address service proto import-path headers timeout
   (client-credentials tls-ca tls-cert tls-key tls-name))
  0)
