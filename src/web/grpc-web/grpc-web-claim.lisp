;;;; Recognizes gRPC-Web's requests: those with one of its content types.

(in-package #:clgrpc.grpc-web)

(defun content-types ()
  "Rows for WEB:PREPARER; the kind :text is in base64."
  (loop for (type codec kind) in `(("application/grpc-web" ,web:**proto** :plain)
                                   ("application/grpc-web+proto" ,web:**proto** :plain)
                                   ("application/grpc-web+json" ,web:**json** :plain)
                                   ("application/grpc-web-text" ,web:**proto** :text)
                                   ("application/grpc-web-text+proto" ,web:**proto** :text))
        collect (list type codec kind "grpc-encoding")))

(defun handler-of (form)
  "The protocol handler of requests of the content type FORM."
  (if (eq :text (web:form-kind form)) **text** **binary**))

(defun claim-of (forms table origins http-method target fields)
  "The claim of a request to a server with the routes of TABLE, an answer to it, or nil."
  (let* ((type (web:header-value fields "content-type"))
         (form (web:find-form forms type))
         (route (web:find-web-route table target)))
    (cond ((and form (string= "POST" http-method))
           (or (and route (web:http2-refusal route fields))
               (web:make-grpc-claim (handler-of form) form route target fields origins)))
          (form (exchange:text-answer 405 "gRPC-Web requests use POST"))
          ((and route (string= "OPTIONS" http-method))
           (web:preflight origins fields '("POST"))))))

(server:register-protocol
 (server:make-protocol :name :grpc-web :prepare (web:preparer (content-types) #'claim-of)))
