;;;; The OpenAPI document of services, as a server gives it on request.

(in-package #:clgrpc.rest)

(defun service-entries (services)
  "The methods of SERVICES, service objects, as MAKE-ROUTES takes them."
  (loop for service in services
        append (loop for method in (method:service-methods service)
                     for descriptor = (web:find-method-descriptor method)
                     when descriptor
                       collect (method-entry method descriptor))))

(defun services-document (services title version connect)
  (let ((methods (service-entries services)))
    ;; a router, since that finds shadows
    (openapi-document (router-routes (make-router (make-routes methods :rules (rules-for methods))))
                      :title title :version version :methods (and connect methods))))

(defun check-services (services)
  "Return SERVICES, a service object or a list of them, as a list. Signal MISUSE for other objects."
  (loop for service in (if (listp services) services (list services))
        do (unless (typep service 'method:service)
             (misuse "OPENAPI-HANDLER takes a path and service objects, as START-SERVER has them, ~
                      not ~S." service))
        collect service))

(defun openapi-handler (path services &key (title "API") (version "1") connect)
  "Return a handler for START-SERVER's :http that answers GET for PATH, such as \"/openapi.json\",
with the OpenAPI 3.1 document of the REST routes of SERVICES, a service object or a list of them,
and with CONNECT also of their unary methods by Connect. The handler makes the document for each
request, from their descriptors, with the comments of the .proto files. TITLE and VERSION are the
document's, strings. Signal RULE-ERROR if a rule is wrong, MISUSE for a wrong argument. From any
thread."
  (let ((services (check-services services)))
    (services-document services title version connect) ; so that errors in rules are found now
    (exchange:http-handler path
                           (lambda (request)
                             (declare (ignore request))
                             (values 200 '(("content-type" . "application/json"))
                                     (services-document services title version connect)))
                           :quiet t)))
