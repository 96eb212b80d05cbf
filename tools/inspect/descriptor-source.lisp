;;;; The services for `list`, `describe` and `call`: descriptors from a server's reflection (gRPC
;;;; document "GRPC Server Reflection Protocol", v1, or v1alpha if the server lacks v1), or from a
;;;; .proto file. The descriptors become dynamic types: no text of a peer is interned, registered or
;;;; compiled. Each question is a call of its own; all questions share one deadline. The number and
;;;; the octets of the files that we request from a peer are limited.

(in-package #:clgrpc.tools)

(define-shared-options descriptor-source
  ((headers "-H") "'NAME: VALUE'" #'parse-header '()
                  "Metadata to send, also with questions to reflection; may be given several times.
      The value of a name that ends in -bin is in base64.")
  (timeout "DURATION" #'parse-seconds nil "The time after which the request is abandoned; by default
      the time is not limited.")
  (proto "FILE" #'identity nil
         "The .proto file that declares the service; by default the server's reflection is asked.")
  (import-path "DIR[:DIR…]" #'parse-directories nil
               "The directories where the imports of --proto are looked for first."))

(defun parse-header (string)
  "The entry (name . value) of metadata for STRING, \"name: value\"."
  (let ((colon (position #\: string :start (min 1 (length string)))))
    (unless colon (refuse "'name: value' is expected, not ~S" string))
    (flet ((trimmed (start end) (string-trim " " (subseq string start end))))
      (let ((name (string-downcase (trimmed 0 colon))) (value (trimmed (1+ colon) nil)))
        (cons name
              (if (uiop:string-suffix-p name "-bin")
                  (handler-case (decode-base64 value)
                    (clgrpc-error () (refuse "~A is not in base64: ~S" name value)))
                  value))))))

;;; Reflection

(defparameter *most-files* 2000 "The maximum number of files that we ask a server for.")
(defparameter *most-file-octets* (expt 2 24)
  "The maximum number of octets of all answers of a server together.")
(defparameter *reflection-seconds* 30
  "The maximum number of seconds that a question to reflection takes if no timeout is given.")

(defstruct (reflector (:copier nil))
  "A client of reflection."
  (channel nil :type grpc:channel)
  (metadata '() :type list)             ; the metadata of every question
  (end-ns nil :type (or null integer))  ; when all answers must have arrived, by MONOTONIC-NS
  (patient nil :type boolean)           ; questions wait until the channel is ready
  (octets-left *most-file-octets* :type integer)
  (version "v1" :type string))          ; the version of the service that is asked

(defun seconds-left (reflector)
  "The number of seconds that the next question may take: the rest of the timeout for all
questions."
  (if (reflector-end-ns reflector)
      (max 0 (ns-seconds (- (reflector-end-ns reflector) (monotonic-ns))))
      *reflection-seconds*))

(defun reflection-request (version field value)
  (let ((request (protobuf:make-message
                  (format nil "grpc.reflection.~A.ServerReflectionRequest" version))))
    (setf (protobuf:field-value request field) value)
    request))

(defun version-method (version)
  (if (string= version "v1")
      #'grpc.reflection.v1.server-reflection:server-reflection-info
      #'grpc.reflection.v1alpha.server-reflection:server-reflection-info))

(defun ask-version (reflector version field value)
  "The response to the question in FIELD of a request, from VERSION of the service."
  (grpc:with-call (call (apply (version-method version) (reflector-channel reflector) :open
                               :timeout (seconds-left reflector)
                               :metadata (reflector-metadata reflector)
                               (when (reflector-patient reflector) '(:wait-for-ready t))))
    (grpc:send call (reflection-request version field value))
    (grpc:close-send call)
    (or (grpc:receive call) (fail-command "the server's reflection does not answer"))))

(defun ask (reflector field value answer)
  "The message in the field ANSWER of the response to the question VALUE in FIELD. Signal a FAILURE
if the response lacks this field, with the text of the server's error if it has one."
  (let ((response
          (handler-case (ask-version reflector (reflector-version reflector) field value)
            (grpc:unimplemented (error)
              (when (string= "v1alpha" (reflector-version reflector)) (error error))
              (setf (reflector-version reflector) "v1alpha")
              (handler-case (ask-version reflector "v1alpha" field value)
                (grpc:unimplemented ()
                  (fail-command "the server has no reflection service; --proto names a file ~
                                 instead")))))))
    (when (protobuf:field-present-p response "error_response")
      (fail-command "reflection says: ~A"
                    (protobuf:field-value (protobuf:field-value response "error_response")
                                          "error_message")))
    (or (protobuf:field-value response answer)
        (fail-command "the server's reflection answers another question than ~A" field))))

(defun ask-files (reflector field value)
  "The google.protobuf.FileDescriptorProtos that answer VALUE in FIELD."
  (map 'list (lambda (octets)
               (when (minusp (decf (reflector-octets-left reflector) (length octets)))
                 (fail-command "the server's files have more than ~D octets" *most-file-octets*))
               (protobuf:parse-message "google.protobuf.FileDescriptorProto" octets))
       (protobuf:field-value (ask reflector field value "file_descriptor_response")
                             "file_descriptor_proto")))

(defun every-image-has-p (name)
  "True if NAME is a file that each image of clgrpc contains: one of Protocol Buffers itself or of
the annotations of REST. The types of such a file are not made again."
  (and (or (uiop:string-prefix-p "google/protobuf/" name)
           (uiop:string-prefix-p "google/api/" name))
       (protobuf:find-file-descriptor name)))

(defun ask-for-symbols (reflector symbols)
  "A pool of the files that declare SYMBOLS, full names, and of their imports."
  (let ((files (make-hash-table :test 'equal)) (wanted '()))
    (flet ((take (file)
             (let ((name (google.protobuf:file-descriptor-proto-name file)))
               (unless (or (gethash name files) (every-image-has-p name))
                 (when (= *most-files* (hash-table-count files))
                   (fail-command "the server has more than ~D files" *most-files*))
                 (setf (gethash name files) file)
                 (map nil (lambda (name) (push name wanted))
                      (google.protobuf:file-descriptor-proto-dependency file))))))
      (dolist (symbol symbols)
        (mapc #'take (ask-files reflector "file_containing_symbol" symbol)))
      (loop while wanted
            do (let ((name (pop wanted)))
                 (unless (or (gethash name files) (every-image-has-p name))
                   (mapc #'take (ask-files reflector "file_by_filename" name))
                   (unless (gethash name files)
                     (fail-command "the server's reflection does not have the file ~A" name))))))
    (protobuf:make-type-pool
     (protobuf:serialize
      (google.protobuf:make-file-descriptor-set
       :file (loop for file being the hash-values of files collect file))))))

(defparameter *most-names-told* 20 "The maximum number of names that an error lists.")

(defun names-text (names)
  "NAMES, strings, with commas between. If there are too many names, … replaces the rest."
  (format nil "~{~A~^, ~}~:[~;, …~]"
          (subseq names 0 (min (length names) *most-names-told*))
          (< *most-names-told* (length names))))

(defun ask-for-service (reflector service)
  "A pool of the files that declare SERVICE, a full name, and of their imports. If the server has no
SERVICE signal a FAILURE that lists its services."
  (handler-case (ask-for-symbols reflector (list service))
    (failure (failure)
      (let ((services (handler-case (ask-for-services reflector)
                        ((or failure grpc:rpc-error) () '()))))
        (if (and services (not (member service services :test #'string=)))
            (fail-command "the server has no service ~A; it has ~A" service (names-text services))
            (error failure))))))

(defun ask-for-services (reflector)
  (sort (map 'list (lambda (service) (protobuf:field-value service "name"))
             (protobuf:field-value (ask reflector "list_services" "*" "list_services_response")
                                   "service"))
        #'string<))

;;; Both

(defun proto-pool (file import-paths)
  (let ((here (uiop:getcwd)) (protobuf:*import-option* "--import-path"))
    (protobuf:make-type-pool
     (handler-case (protobuf:read-proto-files file :import-paths import-paths :directory here)
       (file-error (error) (refuse "~A" error))))))

(defun pool-services (pool)
  (sort (loop for file in (protobuf:type-pool-files pool)
              append (mapcar #'protobuf:descriptor-full-name
                             (protobuf:file-descriptor-services file)))
        #'string<))

(defun pool-index (pool)
  "A table from the full names of everything that the files of POOL declare to the descriptors."
  (let ((index (make-hash-table :test 'equal)))
    (labels ((enter-all (descriptors)
               (mapc #'enter descriptors))
             (enter (descriptor)
               (setf (gethash (protobuf:descriptor-full-name descriptor) index) descriptor)
               (typecase descriptor
                 (protobuf:service-descriptor
                  (enter-all (protobuf:service-descriptor-methods descriptor)))
                 (protobuf:enum-descriptor
                  (enter-all (protobuf:enum-descriptor-values descriptor)))
                 (protobuf:message-descriptor
                  (enter-all (protobuf:message-descriptor-fields descriptor))
                  (enter-all (protobuf:message-descriptor-oneofs descriptor))
                  (enter-all (protobuf:message-descriptor-messages descriptor))
                  (enter-all (protobuf:message-descriptor-enums descriptor))))))
      (dolist (file (protobuf:type-pool-files pool) index)
        (enter-all (protobuf:file-descriptor-services file))
        (enter-all (protobuf:file-descriptor-messages file))
        (enter-all (protobuf:file-descriptor-enums file))
        (enter-all (protobuf:file-descriptor-extensions file))))))

(defun need-symbol (index full-name)
  "The descriptor of FULL-NAME in INDEX, a POOL-INDEX. Signal a FAILURE if INDEX has no
symbol of this name."
  (or (gethash full-name index)
      ;; the files of every image
      (protobuf:find-descriptor full-name)
      (fail-command "nothing is called ~A" full-name)))

(defun need-descriptor (pool full-name type title)
  "The descriptor called FULL-NAME in POOL, which must be of TYPE. Otherwise signal a FAILURE that
names the kind of descriptor by TITLE."
  (let ((found (need-symbol (pool-index pool) full-name)))
    (unless (typep found type) (fail-command "~A is not a ~A" full-name title))
    found))

(defun call-with-reflector (function address arguments headers timeout &key patient)
  "Call FUNCTION with a reflector that uses a channel to ADDRESS; ARGUMENTS is a plist for
MAKE-CHANNEL."
  (let ((channel (apply #'grpc:make-channel address arguments)))
    (unwind-protect
         (funcall function
                  (make-reflector :channel channel :metadata headers :patient patient
                                  :end-ns (and timeout
                                               (+ (monotonic-ns) (seconds-ns timeout)))))
      (grpc:close-channel channel))))
