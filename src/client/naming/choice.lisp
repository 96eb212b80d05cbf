;;;; Which service config a client takes of those that the TXT records of a name offer (gRFC A2). A
;;;; record that begins with grpc_config= has a list of choices in JSON; its strings of up to 255
;;;; octets are put together first. The first choice whose criteria the client meets is taken:
;;;;
;;;;   clientLanguage   a list of names; "common-lisp" and "lisp" are ours, in any case of letters
;;;;   clientHostname   a list of names, of which one is this machine's, exactly
;;;;   percentage       of the clients that take it, 0 to 100. A client is one by a number from 0 to
;;;;                    99 that its channel keeps, so that a share that grows loses nobody
;;;;
;;;; A choice that is met on the way and is wrong, such as by another field, makes the whole wrong.

(in-package #:clgrpc.client)

(defparameter *languages* '("common-lisp" "lisp")
  "What a choice calls clients of this kind.")

(defun config-text (strings)
  "The text behind grpc_config= of the STRINGS, octets, of a TXT record; nil if it has another."
  (let* ((octets (apply #'concatenate 'octets strings))
         (prefix (string-octets "grpc_config="))
         (end (mismatch prefix octets)))
    (when (or (null end) (= end (length prefix)))
      (handler-case (octets-string (subseq octets (length prefix)))
        (invalid-utf8 () (config:config-error "grpc_config" "must be UTF-8"))))))

(defun read-choices (strings)
  "The choices that a TXT record of STRINGS has, a list; empty if it is no grpc_config."
  (let ((text (config-text strings)))
    (when text
      (let ((choices (handler-case (parse-json text)
                       ((or json-error limit-exceeded) (error)
                         (config:config-error "grpc_config" "must be JSON: ~A" error)))))
        (unless (simple-vector-p choices)
          (config:config-error "grpc_config" "must be a list of choices"))
        (coerce choices 'list)))))

(defun met-p (path key value number)
  "True if the criterion KEY, at PATH, of a choice, with VALUE, is met by a client that has NUMBER."
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
  "The member serviceConfig of CHOICE, what JSON has at PATH, if a client that has NUMBER meets it,
else nil."
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
  "The service config that the data of TXT records, TEXTS, offer to a client that has NUMBER, from 0
to 99; nil if they offer none. Signal SERVICE-CONFIG-ERROR if they are wrong."
  (loop for choice in (mapcan #'read-choices texts)
        for i from 0
        for config = (chosen-config (config:element-path "grpc_config" i) choice number)
        when config return (config:parse-service-config (write-json (cdr config)))))
