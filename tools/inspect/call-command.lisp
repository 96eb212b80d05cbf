;;;; `list`, `describe` and `call`, in grpcurl's manner: any service of any server, with JSON in and
;;;; out. Requests are read as JSON values one after another, each sent when it is complete, so that
;;;; a dialogue can be held on a terminal; responses are printed as they come.
;;;;
;;;; A server's text may contain control sequences of terminals: all of it goes through SHOWN,
;;;; except JSON, whose writer escapes control characters.

(in-package #:clgrpc.tools)

(define-command "list"
    (((address "[ADDRESS]" #'identity "Where the server listens; left out with --proto.")
      (service "[SERVICE]" #'identity "The full name of a service."))
     (descriptor-source client-tls))
    "List the services of a server, or the methods of one, by their full names. Asks the server's
reflection, or reads --proto."
  (call-with-descriptor-source
   (lambda (symbol list pool-of)
     (format t "~{~A~%~}"
             (mapcar #'shown
                     (if symbol
                         (mapcar #'protobuf:descriptor-full-name
                                 (protobuf:service-descriptor-methods
                                  (need-descriptor (funcall pool-of (list symbol)) symbol
                                                   'protobuf:service-descriptor "service")))
                         (funcall list)))))
   address service proto import-path headers timeout
   (client-credentials tls-ca tls-cert tls-key tls-name))
  0)

(define-command "describe"
    (((address "[ADDRESS]" #'identity "Where the server listens; left out with --proto.")
      (symbol "[SYMBOL]" #'identity
              "The full name of a service, method, message, enum or field; all services without."))
     (descriptor-source client-tls))
    "Show the declaration of a symbol in the form of a .proto file. Asks the server's reflection, or
reads --proto."
  (call-with-descriptor-source
   (lambda (symbol list pool-of)
     (let* ((symbols (if symbol
                         ;; a method may also be written in the form that `call` takes
                         (list (string-left-trim "." (substitute #\. #\/ symbol)))
                         (funcall list)))
            (index (pool-index (funcall pool-of symbols))))
       (dolist (symbol symbols)
         (let ((descriptor (need-symbol index symbol)))
           (format t "~A is ~A:~%" (shown symbol) (descriptor-kind descriptor))
           (write-declaration descriptor 0 (make-scope (owner-of index symbol)))))))
   address symbol proto import-path headers timeout
   (client-credentials tls-ca tls-cert tls-key tls-name))
  0)

(defun owner-of (index full-name)
  "The message of INDEX, a POOL-INDEX, in which FULL-NAME is declared, or nil if no message declares
it."
  (let* ((dot (position #\. full-name :from-end t))
         (owner (and dot (gethash (subseq full-name 0 dot) index))))
    (and (typep owner 'protobuf:message-descriptor) owner)))

(defun call-with-descriptor-source
       (function address symbol proto import-paths headers timeout credentials)
  "Call FUNCTION with three arguments: SYMBOL; a function that lists the names of the services; and
a function that returns a pool with the symbols of a list. If PROTO is given, the command has no
address, and its first argument is SYMBOL."
  (cond (proto
         (when symbol (refuse "with --proto, leave out ADDRESS"))
         (let ((pool (proto-pool proto import-paths)))
           (funcall function address (lambda () (pool-services pool)) (constantly pool))))
        ((null address) (refuse "ADDRESS is missing"))
        (t (call-with-reflector
            (lambda (reflector)
              (funcall function symbol
                       (lambda () (ask-for-services reflector))
                       (lambda (symbols) (ask-for-symbols reflector symbols))))
            (parse-channel-target address) (list :credentials credentials) headers
            timeout))))

;;; Reading JSON values one after another

(defparameter *longest-request* (expt 2 26)
  "The maximum number of characters of a request in JSON.")

(defun white-p (char)
  (member char '(#\Space #\Tab #\Newline #\Return)))

(defun read-json-text (stream)
  "The text of the next JSON value in STREAM, or nil if none follows. READ-JSON-TEXT reads nothing
beyond the end of the value, except the character after a number or word. The value is not validated
here."
  (let ((first (loop for char = (read-char stream nil)
                     while (and char (white-p char))
                     finally (return char)))
        (depth 0) (count 0) (quoted nil) (escaped nil))
    (when first
      (with-output-to-string (text)
        (loop for char = first then (read-char stream nil)
              do (when (or (null char)
                           (and (zerop depth) (not quoted) (white-p char)))
                   (return))
                 (when (< *longest-request* (incf count))
                   (fail-command "a request is longer than ~D characters" *longest-request*))
                 (write-char char text)
                 (cond (escaped (setf escaped nil))
                       (quoted (case char (#\\ (setf escaped t)) (#\" (setf quoted nil))))
                       (t (case char
                            (#\" (setf quoted t))
                            ((#\{ #\[) (incf depth))
                            ((#\} #\]) (decf depth)))))
                 (when (and (<= depth 0) (not quoted) (find char "}]\""))
                   (return)))))))

(defun next-request (stream type pool)
  "The next message of TYPE that STREAM contains in JSON, or nil at the end of STREAM."
  (when-let ((text (read-json-text stream)))
    (protobuf:parse-json-message type text :finder (pool-finder pool))))

(defun pool-finder (pool)
  (lambda (name) (protobuf:find-pool-type pool name)))

(defun only-message (stream type pool)
  "The only message in STREAM; an empty message if STREAM is empty."
  (let ((message (next-request stream type pool)))
    (when (and message (read-json-text stream))
      (fail-command "the method takes one request, and there are more"))
    (or message (protobuf:make-message type))))

;;; The call

(defstruct (caller (:copier nil))
  "An object that makes a call and prints its responses."
  (method nil :type method:rpc-method)
  (pool nil :type protobuf:type-pool)
  (options '() :type list)
  (requests nil :type stream)
  (defaults nil)
  (error nil))                        ; the error in a request of a stream

(defun print-response (caller message)
  (format t "~A~%" (protobuf:message-json message :indent 2 :defaults (caller-defaults caller)
                                          :finder (pool-finder (caller-pool caller))))
  (finish-output))

(defun feed-requests (caller call)
  "Send the requests in CALLER's stream until the stream or CALL ends."
  (handler-case
      (loop for message = (next-request (caller-requests caller)
                                        (method:rpc-method-request-type (caller-method caller))
                                        (caller-pool caller))
            while message
            do (grpc:send call message)
            finally (grpc:close-send call))
    ;; the receiver sees the status of the call
    (grpc:rpc-error ())
    ((or clgrpc-error stream-error) (error)
      (setf (caller-error caller) error)
      (grpc:cancel call))))

(defun print-stream (caller call)
  (grpc:do-messages (message call)
    (print-response caller message)))

(defun perform-call (caller channel)
  "Call the method of CALLER on CHANNEL and print its responses."
  (let ((method (caller-method caller)) (pool (caller-pool caller)))
    (flet ((invoke (request)
             (apply #'method:invoke channel method request (caller-options caller)))
           (only ()
             (only-message (caller-requests caller) (method:rpc-method-request-type method) pool)))
      (ecase (method:rpc-method-kind method)
        (:unary (print-response caller (invoke (only))))
        (:server-streaming
         (grpc:with-call (call (invoke (only)))
           (print-stream caller call)))
        ((:client-streaming :bidi)
         (grpc:with-call (call (invoke :open))
           ;; when the call is over this thread may still be reading from a terminal; it ends with
           ;; the process
           (sb-thread:make-thread (lambda () (feed-requests caller call)) :name "clgrpc call")
           (handler-case (print-stream caller call)
             (grpc:rpc-error (error) (error (or (caller-error caller) error))))))))))

(defun detail-text (detail)
  "The text of DETAIL, a message: JSON or, if JSON cannot represent DETAIL (for example an Any whose
type is not known here), the text that Lisp prints."
  (handler-case (protobuf:message-json detail)
    (protobuf:protobuf-error () (princ-to-string detail))))

(defun print-status (error)
  "Print ERROR, an RPC-ERROR, as grpcurl does; return the exit code for ERROR."
  (let ((status (grpc:rpc-error-status error)))
    (format *error-output* "ERROR:~%  Code: ~A~%  Message: ~A~%"
            (remove #\- (string-capitalize status)) (shown (grpc:rpc-error-message error)))
    (when-let ((details (grpc:rpc-error-details error)))
      (format *error-output* "  Details:~%")
      (dolist (detail details)
        (when (typep detail 'protobuf:message)
          (format *error-output* "    ~A ~A~%"
                  (protobuf:message-type-name (protobuf:message-type-of detail))
                  (detail-text detail)))))
    (finish-output *error-output*)
    (+ 64 (grpc:status-code status))))

(defun split-method (name)
  "The full name, with dots, of the method NAME: \"package.Service/Method\", or the same with a dot
in place of the slash."
  (let ((dotted (substitute #\. #\/ (string-left-trim "/." name))))
    (unless (find #\. dotted) (refuse "package.Service/Method is expected, not ~S" name))
    dotted))

(defun service-of-method (name)
  "The full name of the service to which the method NAME, with dots, belongs."
  (subseq name 0 (position #\. name :from-end t)))

(defun need-method (pool name)
  "The descriptor of the method NAME, with dots, in POOL. If the service has no such method, signal
a FAILURE that lists the methods of the service."
  (let* ((index (pool-index pool))
         (method (gethash name index))
         (service (gethash (service-of-method name) index)))
    (cond ((typep method 'protobuf:method-descriptor) method)
          ((typep service 'protobuf:service-descriptor)
           (fail-command "~A has no method ~A; it has ~A" (service-of-method name)
                         (subseq name (1+ (position #\. name :from-end t)))
                         (names-text (map 'list #'protobuf:descriptor-name
                                          (protobuf:service-descriptor-methods service)))))
          (t (fail-command "no service is called ~A~@[; the services are ~A~]"
                           (service-of-method name)
                           (and (pool-services pool) (names-text (pool-services pool))))))))

(defun find-method-in (pool name)
  "The RPC-METHOD for the method NAME, with dots, made of the types in POOL."
  (need-method pool name)
  (grpc:pool-method pool (substitute #\/ #\. name :from-end t :count 1)))

(define-command "call"
    (((address "ADDRESS" #'parse-channel-target "Where the server listens.")
      (method "METHOD" #'split-method "The method to call: package.Service/Method."))
     (((data nil "-d") "JSON" #'identity nil
      "The request, or all requests of a stream, one after another; @ reads them from the
      standard input. Without it one empty request is sent, or none on a stream.")
      (emit-defaults "[BOOLEAN]" #'parse-boolean nil
                     "Print fields also if they are zero or empty.")
      (wait-for-ready "[BOOLEAN]" #'parse-boolean nil
                      "Wait until the server can be reached, instead of failing when it cannot.")
      balancing-options descriptor-source client-tls))
    "Call any method of any server with requests in JSON, and print its responses in JSON. Types
come from the server's reflection or from --proto. Exits with 0 if the call ends with OK, and with
64 plus the code of its status if it ends with another status (69 is NOT_FOUND). Exits with 1 if the
call could not be made, for instance because the method does not exist or a request is not of its
type. Exits with 2 if the arguments are wrong."
  (when (and data (< 1 (length data)) (char= #\@ (char data 0)))
    (refuse "--data: @ alone reads the standard input, so write -d @ <~A" (subseq data 1)))
  (let ((credentials (client-credentials tls-ca tls-cert tls-key tls-name)))
    (handler-case
        (call-with-reflector
         (lambda (reflector)
           (let ((pool (if proto
                           (proto-pool proto import-path)
                           (ask-for-service reflector (service-of-method method)))))
             (perform-call
              (make-caller :method (find-method-in pool method) :pool pool :defaults emit-defaults
                           :options (append (when timeout (list :timeout timeout))
                                            (when wait-for-ready (list :wait-for-ready t))
                                            (when headers (list :metadata headers)))
                           :requests (if (equal data "@")
                                         *standard-input*
                                         (make-string-input-stream (or data ""))))
              (reflector-channel reflector))))
         address (list* :credentials credentials (balancing-arguments service-config balance))
         headers timeout :patient wait-for-ready)
      (grpc:rpc-error (error) (print-status error))
      (:no-error (&rest values) (declare (ignore values)) 0))))
