;;;; The environment's settings of an exporter (OpenTelemetry specification, "OpenTelemetry Protocol
;;;; Exporter" and "Environment Variable Specification"). A variable of one signal, such as
;;;; OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, has priority over the variable of all signals,
;;;; OTEL_EXPORTER_OTLP_TIMEOUT. An empty variable counts as not set. A value that cannot be used is
;;;; logged and ignored, as the specification asks.

(in-package #:clgrpc.otlp)

(deftype signal-name ()
  "The signals to export."
  '(member :metrics :traces))

(defconstant +collector-port+ 4317
  "The port on which collectors listen for OTLP over gRPC.")

(defun variable-value (name get-variable)
  "The value of the variable NAME without white space around it, or nil if it has none."
  (when-let ((value (funcall (the function get-variable) name)))
    (let ((trimmed (string-trim '(#\Space #\Tab) value)))
      (unless (string= "" trimmed) trimmed))))

(defun signal-variable (signal suffix get-variable)
  "The value of the variable OTEL_EXPORTER_OTLP_…SUFFIX for SIGNAL, and the variable's name; nil if
it is not set."
  (loop for name in (list (format nil "OTEL_EXPORTER_OTLP_~A_~A" signal suffix)
                          (format nil "OTEL_EXPORTER_OTLP_~A" suffix))
        for value = (variable-value name get-variable)
        when value return (values value name)))

(defun ignore-variable (name value why)
  "Log that VALUE of the variable NAME is not used; WHY names the valid values. A VALUE that may be
an address with a password or a token is not shown."
  (log-event :warning :otlp-variable-ignored
             :name name :value (if (find-if (lambda (char) (find char "@?")) value)
                                   "not shown"
                                   value)
             :reason why)
  nil)

(defun read-number (name value scale)
  "The integer, 0 or more, that VALUE of the variable NAME represents, times SCALE. If VALUE is
invalid, log this and return nil."
  (if (and (<= 1 (length value) 12) (every #'digit-char-p value))
      (* scale (parse-integer value))
      (ignore-variable name value "must be an integer")))

(defun read-milliseconds (name get-variable)
  "The time that the variable NAME gives in milliseconds, in seconds; nil if it is not set or
wrong."
  (let ((value (variable-value name get-variable)))
    (and value (read-number name value 1/1000))))

(defun read-count (name get-variable)
  "The number in the variable NAME; nil if the variable is not set or is invalid."
  (let ((value (variable-value name get-variable)))
    (and value (read-number name value 1))))

;;; Lists of keys and values: headers, attributes of the resource

(defun parse-pairs (text)
  "The alist that TEXT represents, \"key=value,key=value\" with escapes as in URLs; :invalid if it
has another form."
  (loop with space = '(#\Space #\Tab)
        for item in (uiop:split-string text :separator ",")
        for trimmed = (string-trim space item)
        for equals = (position #\= trimmed)
        for key = (and equals (percent-decoded-text (string-trim space (subseq trimmed 0 equals))))
        for value = (and equals
                         (percent-decoded-text (string-trim space (subseq trimmed (1+ equals)))))
        unless (string= "" trimmed)
          if (and key value (string/= "" key))
            collect (cons key value)
          else
            do (return :invalid)))

(defun read-pairs (name value)
  "The alist in VALUE, of the variable NAME. If VALUE is invalid, log this and return nil."
  (let ((pairs (and value (parse-pairs value))))
    (if (eq :invalid pairs)
        (ignore-variable name "not shown" "must be key=value pairs, separated by commas")
        pairs)))

(defun read-headers (signal get-variable)
  "The metadata from the environment for each export of SIGNAL."
  (multiple-value-bind (value name) (signal-variable signal "HEADERS" get-variable)
    (loop for (key . text) in (read-pairs name value)
          collect (cons (string-downcase key) text))))

;;; The address of the collector

(defun split-scheme (endpoint)
  "The target in ENDPOINT, and :plaintext or :tls if its scheme is http or https, else nil."
  (flet ((behind (scheme)
           (let ((end (length scheme)))
             (and (< end (length endpoint))
                  (string-equal scheme (subseq endpoint 0 end))
                  ;; gRPC has no use for a path
                  (with-port (subseq endpoint end (position #\/ endpoint :start end)))))))
    (let ((plain (behind "http://"))
          (secure (behind "https://")))
      (cond (plain (values plain :plaintext))
            (secure (values secure :tls))
            (t (values endpoint nil))))))

(defun with-port (authority)
  "AUTHORITY, of a URL, with the port of collectors if it has none."
  (let ((colon (position #\: authority :from-end t))
        (bracket (position #\] authority)))
    (if (and colon (or (null bracket) (< bracket colon)))
        authority
        (format nil "~A:~D" authority +collector-port+))))

(defun read-insecure (signal get-variable)
  "True if, by the environment, an endpoint without a scheme is plaintext."
  (let ((value (signal-variable signal "INSECURE" get-variable)))
    (and value (string-equal "true" value))))

(defun read-credentials (signal get-variable)
  "The TLS credentials that the environment names for SIGNAL."
  (flet ((value (suffix) (signal-variable signal suffix get-variable)))
    (loop:tls-credentials :roots (or (value "CERTIFICATE") :system)
                          :certificate (value "CLIENT_CERTIFICATE")
                          :key (value "CLIENT_KEY"))))

(defun endpoint (signal target credentials get-variable)
  "The channel's target for SIGNAL, and its credentials, nil for plaintext. TARGET and CREDENTIALS
are the user's; without a TARGET both come from the environment."
  (let ((named (or target (signal-variable signal "ENDPOINT" get-variable)
                   (format nil "http://localhost:~D" +collector-port+))))
    (multiple-value-bind (address security) (split-scheme named)
      (values address
              (cond (credentials)
                    ((eq :plaintext security) nil)
                    ((or (eq :tls security)
                         (not (or target (read-insecure signal get-variable))))
                     (read-credentials signal get-variable)))))))

(defun read-compression (signal get-variable)
  "The compression of exports of SIGNAL from the environment, for a channel; nil if the environment
sets no valid one."
  (multiple-value-bind (value name) (signal-variable signal "COMPRESSION" get-variable)
    (cond ((null value) nil)
          ((string-equal "gzip" value) :gzip)
          ((string-equal "none" value) :identity)
          (t (ignore-variable name value "must be gzip or none")))))

(defun read-timeout (signal get-variable)
  "How long the environment lets an export of SIGNAL take, in seconds; nil if the environment sets
no valid time."
  (multiple-value-bind (value name) (signal-variable signal "TIMEOUT" get-variable)
    (and value (read-number name value 1/1000))))

(defun check-protocol (signal get-variable)
  "If the environment requests a protocol other than ours, log this."
  (multiple-value-bind (value name) (signal-variable signal "PROTOCOL" get-variable)
    (when (and value (string-not-equal "grpc" value))
      (ignore-variable name value "only grpc is supported"))))
