;;;; The choice among the service configs in the TXT records of a name (gRFC A2). A record that
;;;; begins with grpc_config= has a list of choices in JSON; its strings of up to 255 octets are
;;;; concatenated first. The client takes the first choice whose criteria it meets:
;;;;
;;;;   clientLanguage   a list of names; "common-lisp" and "lisp" are ours, in any case of letters
;;;;   clientHostname   a list of names, of which one is this machine's, exactly
;;;;   percentage       0 to 100, the share of the clients that take the choice. Each channel draws
;;;;                    a number from 0 to 99 once, and meets a percentage above that number; so a
;;;;                    client that takes a choice still does so when its percentage grows
;;;;
;;;; An invalid choice before the chosen one, such as one with an unknown field, makes the whole
;;;; list invalid.

(in-package #:clgrpc.client)

(defparameter *languages* '("common-lisp" "lisp")
  "The names of this client's language in choices.")

(defun config-text (strings)
  "The text after grpc_config= in STRINGS, octets, of a TXT record; nil if the record does not begin
with these characters."
  (let* ((octets (apply #'concatenate 'octets strings))
         (prefix (string-octets "grpc_config="))
         (end (mismatch prefix octets)))
    (when (or (null end) (= end (length prefix)))
      (handler-case (octets-string (subseq octets (length prefix)))
        (invalid-utf8 () (config:config-error "grpc_config" "must be UTF-8"))))))

(defun read-choices (strings)
  "The list of choices in a TXT record of STRINGS; empty if the record is not a grpc_config."
  (when-let ((text (config-text strings)))
    (let ((choices (handler-case (parse-json text)
                     ((or json-error limit-exceeded) (error)
                       (config:config-error "grpc_config" "must be JSON: ~A" error)))))
      (unless (simple-vector-p choices)
        (config:config-error "grpc_config" "must be a list of choices"))
      (coerce choices 'list))))

(defun met-p (path key value number)
  "True if a client with NUMBER meets the criterion KEY, at PATH, of a choice, with VALUE."
  (flet ((names ()
           (unless (and (simple-vector-p value) (every #'stringp value))
             (config:config-error path "must be a list of strings"))
           (coerce value 'list)))
    (cond ((string= key "clientLanguage")
           (or (null (names)) (intersection (names) *languages* :test #'string-equal)))
          ((string= key "clientHostname")
           (or (null (names)) (member (machine-instance) (names) :test #'string=)))
          ((string= key "percentage")
           (unless (typep value '(integer 0 100))
             (config:config-error path "must be an integer from 0 to 100"))
           (< number value))
          (t (config:config-error path "is not a field of a choice")))))

(defun chosen-config (path choice number)
  "The member serviceConfig of CHOICE, JSON at PATH, if a client with NUMBER meets it, else nil."
  (let ((config (and (consp choice) (assoc "serviceConfig" choice :test #'string=)))
        (met t))
    (unless (and config (listp (cdr config)))
      (config:config-error path "must be an object with an object serviceConfig"))
    (loop for (key . value) in choice
          unless (or (string= key "serviceConfig")
                     (met-p (config:member-path path key) key value number))
            do (setf met nil))
    (and met config)))

(defun choose-config (texts number)
  "The service config for a client with NUMBER, from 0 to 99, in the data of TXT records, TEXTS; nil
if no choice matches. Signal SERVICE-CONFIG-ERROR if TEXTS are invalid."
  (loop for choice in (mapcan #'read-choices texts)
        for i from 0
        for config = (chosen-config (config:element-path "grpc_config" i) choice number)
        when config return (config:parse-service-config (write-json (cdr config)))))
