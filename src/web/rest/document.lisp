;;;; The OpenAPI document of services, as a server gives it on request.

(in-package #:clgrpc.rest)

(defun service-entries (services)
  "The methods of SERVICES, service objects, in the form for MAKE-ROUTES."
  (loop for service in services
        append (loop for method in (method:service-methods service)
                     for descriptor = (web:find-method-descriptor method)
                     when descriptor
                       collect (method-entry method descriptor))))

(defun services-document (services title version connect)
  "The OpenAPI document for SERVICES; if CONNECT is true, it also has their methods in the Connect
protocol."
  (let ((methods (service-entries services)))
    ;; make a router too, since this finds routes that hide others
    (openapi-document (router-routes (make-router (make-routes methods :rules (rules-for methods))))
                      :title title :version version :methods (and connect methods))))

;;; Making a document takes milliseconds, while a request for it has only some octets

(defconstant +document-time+ internal-time-units-per-second
  "The age above which a document is made again: a second.")

(defun kept-document (function &optional (clock #'get-internal-real-time))
  "A function that returns the document that FUNCTION returns; FUNCTION is called now, and later at
most once in +DOCUMENT-TIME+ by CLOCK. From any thread."
  (declare (type function function clock))
  ;; a cons, never changed, of when the document was made, and the document
  (let ((kept (list (cons (funcall clock) (funcall function)))))
    (lambda ()
      (let* ((old (car kept))
             (now (funcall clock))
             (next (cons now (cdr old))))
        ;; in a saved image that time may lie in the future. Of the threads that find the document
        ;; too old, one makes a new document; the others return the old one
        (if (and (not (<= (car old) now (+ (car old) +document-time+ -1)))
                 (eq old (sb-ext:compare-and-swap (car kept) old next)))
            (let ((document (funcall function)))
              (sb-ext:compare-and-swap (car kept) next (cons now document))
              document)
            (cdr old))))))

(defun check-services (services)
  "Return SERVICES, a service object or a list of them, as a list. Signal MISUSE for other objects."
  (loop for service in (if (listp services) services (list services))
        do (unless (typep service 'method:service)
             (misuse "OPENAPI-HANDLER needs a path and service objects like those for ~
                      START-SERVER, not ~S." service))
        collect service))

(defun openapi-handler (path services &key (title "API") (version "1") connect)
  "Return a handler for START-SERVER's :http that answers GET for PATH, such as \"/openapi.json\".
The answer is the OpenAPI 3.1 document of the REST routes of SERVICES, a service object or a list of
them. If CONNECT is true, the document also has their unary methods by the Connect protocol. The
handler makes the document from their descriptors, with the comments of the .proto files, and makes
it again after a second, at the next request. TITLE and VERSION are the document's, strings. Signal
RULE-ERROR if a rule is wrong, MISUSE for a wrong argument. From any thread."
  (let* ((services (check-services services))
         (document (kept-document (lambda ()
                                    (services-document services title version connect)))))
    (exchange:http-handler path
                           (lambda (request)
                             (declare (ignore request))
                             (values 200 '(("content-type" . "application/json"))
                                     (funcall document)))
                           :quiet t)))
