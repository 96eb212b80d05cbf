;;;; Recognizes gRPC-Web's requests: those with one of its content types.

(in-package #:clgrpc.grpc-web)

(defun content-types ()
  "Rows for WEB:MAKE-FORMS; the kind :text is in base64."
  (loop for (type codec kind) in `(("application/grpc-web" ,web:**proto** :plain)
                                   ("application/grpc-web+proto" ,web:**proto** :plain)
                                   ("application/grpc-web+json" ,web:**json** :plain)
                                   ("application/grpc-web-text" ,web:**proto** :text)
                                   ("application/grpc-web-text+proto" ,web:**proto** :text))
        collect (list type codec kind "grpc-encoding")))

(defun text-p (form)
  (eq :text (web:form-kind form)))

(defun make-claim (form route target fields origins)
  "The claim of a POST to TARGET with FIELDS, of the content type FORM, for ROUTE, or nil."
  (let ((style (if (text-p form) **text** **binary**))
        (metadata (web:metadata-fields fields)))
    (multiple-value-bind (incoming unreadable) (web:head-encoding fields "grpc-encoding")
      (multiple-value-bind (timeout late) (web:grpc-timeout fields)
        (web:make-web-claim
         :manner (web:style-manner style) :style style :codec (web:form-codec form)
         :heads (web:form-heads form) :text (text-p form)
         :operations (web:operations-for (and route (server:route-method route)))
         :route route :fields metadata :timeout timeout
         :incoming incoming
         :accepted (web:head-accepted fields "grpc-accept-encoding" nil)
         :cors (web:origin-headers origins fields)
         :rejection (or (and (null route)
                             (multiple-value-list (rpc:verdict :unknown-method target)))
                        unreadable late (web:metadata-rejection metadata)))))))

(defun claim-of (forms table origins http-method target fields)
  "The result for the request, at a server with the routes of TABLE: a claim, an answer, or nil."
  (let* ((type (web:header-value fields "content-type"))
         (form (web:find-form forms type))
         (route (web:find-web-route table target)))
    (cond ((and form (string= "POST" http-method))
           (if (and route
                    (eq :bidi (method:rpc-method-kind (server:route-method route)))
                    (null (web:header fields ":method")))
               (exchange:text-answer 505 "streams in both directions need HTTP/2")
               (make-claim form route target fields origins)))
          (form (exchange:text-answer 405 "gRPC-Web requests use POST"))
          ((and route (string= "OPTIONS" http-method))
           (web:preflight origins fields '("POST"))))))

(defun prepare (server table)
  "The PREPARE of the protocol."
  (let* ((origins (server:server-origins server))
         (forms (web:make-forms (content-types) origins)))
    (lambda (http-method target fields)
      (claim-of forms table origins http-method target fields))))

(server:register-protocol (server:make-protocol :name :grpc-web :prepare #'prepare))
