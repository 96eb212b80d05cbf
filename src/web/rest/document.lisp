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

(defun openapi-handler (path services &key (title "API") (version "1") connect)
  "Return a handler for START-SERVER's :http that answers GET for PATH, such as \"/openapi.json\",
with the OpenAPI 3.1 document of the REST routes of SERVICES, a list of service objects, and with
CONNECT also of their unary methods by Connect. The handler makes the document for each request,
from their descriptors, with the comments of the .proto files. TITLE and VERSION are the document's,
strings. Signal RULE-ERROR if a rule is wrong. From any thread."
  (services-document services title version connect) ; which finds what is wrong
  (exchange:http-handler path
                         (lambda (request)
                           (declare (ignore request))
                           (values 200 '(("content-type" . "application/json"))
                                   (services-document services title version connect)))
                         :quiet t))
