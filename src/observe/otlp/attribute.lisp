;;;; Attributes as messages, and the resource, the source of all telemetry of this process
;;;; (OpenTelemetry specification, "Resource SDK").

(in-package #:clgrpc.otlp)

(defun any-value (value)
  "The message for VALUE: a string, an integer, a real, T, NIL, or a vector of such values. An
integer of more than 64 bits becomes a string, as does any other object."
  (typecase value
    (string (common:make-any-value :string-value value))
    (boolean (common:make-any-value :bool-value value))
    ((signed-byte 64) (common:make-any-value :int-value value))
    (float (common:make-any-value :double-value (coerce value 'double-float)))
    (octets (common:make-any-value :bytes-value value))
    (vector (common:make-any-value
             :array-value (common:make-array-value :values (map 'list #'any-value value))))
    (t (common:make-any-value :string-value (princ-to-string value)))))

(defun key-values (attributes)
  "The messages for ATTRIBUTES, an alist from string to value."
  (loop for (key . value) in attributes
        collect (common:make-key-value :key key :value (any-value value))))

(defun library-scope ()
  "The message for the library that makes the telemetry."
  (common:make-instrumentation-scope :name "clgrpc" :version **version**))

(defun new-instance-id ()
  "A UUID of version 4, as required for service.instance.id."
  (let ((number (random (expt 2 128) (loop:new-random-state))))
    (setf (ldb (byte 4 76) number) 4
          (ldb (byte 2 62) number) 2)
    (format nil "~(~8,'0X-~4,'0X-~4,'0X-~4,'0X-~12,'0X~)" (ldb (byte 32 96) number)
            (ldb (byte 16 80) number) (ldb (byte 16 64) number) (ldb (byte 16 48) number)
            (ldb (byte 48 0) number))))

(defun resource-attributes (given get-variable)
  "The attributes of this process as the source of telemetry, an alist: first those of GIVEN, also
an alist, then those that the environment sets, then the defaults."
  (let* ((service (variable-value "OTEL_SERVICE_NAME" get-variable))
         (others (read-pairs "OTEL_RESOURCE_ATTRIBUTES"
                             (variable-value "OTEL_RESOURCE_ATTRIBUTES" get-variable)))
         (all (append given
                      (and service (list (cons "service.name" service)))
                      others
                      (list (cons "service.name" "unknown_service:clgrpc")
                            ;; the cumulative counts of one process must not be taken for another's
                            (cons "service.instance.id" (new-instance-id))
                            (cons "telemetry.sdk.name" "clgrpc")
                            (cons "telemetry.sdk.language" "commonlisp")
                            (cons "telemetry.sdk.version" **version**)))))
    (remove-duplicates all :key #'car :test #'string= :from-end t)))

(defun resource-message (attributes)
  (resource:make-resource :attributes (key-values attributes)))
