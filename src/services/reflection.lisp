;;;; Server reflection (gRPC document "GRPC Server Reflection Protocol"), versions v1 and v1alpha,
;;;; which differ only in their packages. Answers are made from the descriptors of all loaded files;
;;;; the services listed are those of the server.
;;;;
;;;; A stream occupies no thread: each request is answered on the thread that receives it, and while
;;;; the client leaves answers unread no further requests are read.

(in-package #:clgrpc.services)

(defclass reflection-service ()
  (;; maps each server that serves the service to the names of that server's services
   (names :initform (make-hash-table :test 'eq :weakness :key :synchronized t)
          :reader service-names)
   ;; maps a file to its octets; to make the octets takes a thousand times as long as a request for
   ;; them
   (images :initform (make-hash-table :test 'eq :weakness :key :synchronized t)
           :reader service-images))
  (:documentation "The common part of the two versions of the reflection service."))

(defmethod server:note-server-started ((service reflection-service) server)
  (setf (gethash server (service-names service))
        (sort (server:server-service-names server) #'string<)))

(defun names-for (service call)
  "Return the names of the services of the server that has received CALL and serves SERVICE."
  (values (gethash (rpc:operate server call) (service-names service))))

;;; Answers: (:files octets…), (:numbers type number…), (:services name…) or (:error status text)

(defun file-image (service file)
  "The octets of FILE, a descriptor."
  (let ((images (service-images service)))
    (or (gethash file images)
        (setf (gethash file images) (protobuf:file-descriptor-octets file)))))

(defun files-answer (service file sent)
  "Return the answer of SERVICE with FILE, a descriptor, and the files that FILE imports, except for
files whose names are in the table SENT. Add the names of the included files to SENT."
  (let ((octets '()))
    (labels ((visit (file again)
               (let ((name (protobuf:descriptor-name file)))
                 (when (or again (not (gethash name sent)))
                   (setf (gethash name sent) t)
                   (push (file-image service file) octets)
                   (dolist (dependency (protobuf:file-descriptor-dependencies file))
                     (let ((file (protobuf:find-file-descriptor dependency)))
                       (when file (visit file nil))))))))
      (visit file t))
    (cons :files (nreverse octets))))

(defun answer-file (service file sent control &rest arguments)
  (if file
      (files-answer service file sent)
      (list :error :not-found (apply #'format nil control arguments))))

(defun answer-extension (service type number sent)
  (let ((extension (protobuf:find-extension-descriptor type number)))
    (answer-file service
                 (and extension
                      (protobuf:file-of-symbol (protobuf:descriptor-full-name extension)))
                 sent "there is no extension ~D of ~A" number type)))

(defun answer-numbers (type)
  (if (typep (protobuf:find-descriptor type) 'protobuf:message-descriptor)
      (list* :numbers type (mapcar #'protobuf:field-descriptor-number
                                   (protobuf:extension-descriptors type)))
      (list :error :not-found (format nil "there is no message ~A" type))))

;;; The versions

(defmacro define-reflection (class package methods documentation)
  "Define CLASS, the reflection service with messages in PACKAGE and its method in METHODS."
  (flet ((name (control &rest arguments)
           (let ((name (apply #'format nil control arguments)))
             (or (find-symbol name package) (error "~A has no symbol ~A." package name))))
         (method (name) (find-symbol name methods)))
    `(progn
       (defclass ,class (reflection-service ,(name "SERVER-REFLECTION")) ()
         (:documentation ,documentation))

       (defmethod ,(method "SERVER-REFLECTION-INFO") ((service ,class) stream &key call)
         (let ((sent (make-hash-table :test 'equal)))
           (flet ((answer (request)
                    (multiple-value-bind (value case)
                        (,(name "SERVER-REFLECTION-REQUEST-MESSAGE-REQUEST") request)
                      (case case
                        (:file-by-filename
                         (answer-file service (protobuf:find-file-descriptor value) sent
                                      "there is no file ~A" value))
                        (:file-containing-symbol
                         (answer-file service (protobuf:file-of-symbol value) sent
                                      "there is no symbol ~A" value))
                        (:file-containing-extension
                         (answer-extension service
                                           (,(name "EXTENSION-REQUEST-CONTAINING-TYPE") value)
                                           (,(name "EXTENSION-REQUEST-EXTENSION-NUMBER") value)
                                           sent))
                        (:all-extension-numbers-of-type (answer-numbers value))
                        (:list-services (cons :services (names-for service call)))
                        (t (list :error :invalid-argument "the request is empty")))))
                  (response (request kind values)
                    (flet ((answer (&rest field)
                             (apply #',(name "MAKE-SERVER-REFLECTION-RESPONSE")
                                    :valid-host (,(name "SERVER-REFLECTION-REQUEST-HOST") request)
                                    :original-request request
                                    field)))
                      (ecase kind
                        (:files
                         (answer :file-descriptor-response
                                 (,(name "MAKE-FILE-DESCRIPTOR-RESPONSE")
                                  :file-descriptor-proto values)))
                        (:numbers
                         (answer :all-extension-numbers-response
                                 (,(name "MAKE-EXTENSION-NUMBER-RESPONSE")
                                  :base-type-name (first values) :extension-number (rest values))))
                        (:services
                         (answer :list-services-response
                                 (,(name "MAKE-LIST-SERVICE-RESPONSE")
                                  :service (loop for name in values
                                                 collect (,(name "MAKE-SERVICE-RESPONSE")
                                                          :name name)))))
                        (:error
                         (answer :error-response
                                 (,(name "MAKE-ERROR-RESPONSE")
                                  :error-code (status:status-code (first values))
                                  :error-message (second values))))))))
             (rpc:on-message stream
                             (lambda (request)
                               (destructuring-bind (kind . values) (answer request)
                                 (rpc:send call (response request kind values)))))
             (rpc:on-half-close stream (lambda () (rpc:finish call)))
             call))))))

(define-reflection reflection-v1 "GRPC.REFLECTION.V1" "GRPC.REFLECTION.V1.SERVER-REFLECTION"
  "The service grpc.reflection.v1.ServerReflection; see REFLECTION-SERVICES.")

(define-reflection reflection-v1alpha "GRPC.REFLECTION.V1ALPHA"
    "GRPC.REFLECTION.V1ALPHA.SERVER-REFLECTION"
  "The service grpc.reflection.v1alpha.ServerReflection; see REFLECTION-SERVICES.")

(defun reflection-services ()
  "Return a list of two services: grpc.reflection.v1.ServerReflection, and its first version,
v1alpha, for older clients. If you give them to START-SERVER in addition to your services, tools
such as grpcurl can call your services without their .proto files. Any caller can then read the
declarations of all loaded files. From any thread."
  (list (make-instance 'reflection-v1) (make-instance 'reflection-v1alpha)))
