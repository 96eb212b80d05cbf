;;;; Contexts in the metadata of calls: traceparent, tracestate, grpc-trace-bin and baggage. On the
;;;; wire received metadata are header fields, within the image pairs of strings.

(in-package #:clgrpc.trace)

(defglobal **traceparent** (ascii-octets "traceparent"))
(defglobal **tracestate** (ascii-octets "tracestate"))
(defglobal **trace-bin** (ascii-octets "grpc-trace-bin"))
(defglobal **baggage** (ascii-octets "baggage"))
(declaim (type octets **traceparent** **tracestate** **trace-bin** **baggage**))

(define-hot (same-octets-p :inline t) ((a octets) (b octets)) boolean
  "True if A and B have the same octets; the comparison begins at the last octet."
  (and (= (length a) (length b))
       (loop for i of-type fixnum from (1- (length a)) downto 0
             always (= (aref a i) (aref b i)))))

(define-hot header-named-p (field (name octets)) boolean
  "True if FIELD, of received metadata, has NAME."
  (etypecase field
    (hpack:field (same-octets-p (hpack:field-name field) name))
    (cons (same-octets-p (ascii-octets (the string (car field))) name))))

(defun field-octets (field)
  "The value of FIELD as it came on the wire."
  (etypecase field
    (hpack:field (hpack:field-value field))
    (cons (if (stringp (cdr field)) (ascii-octets (cdr field)) (coerce (cdr field) 'octets)))))

(defun field-text (field)
  (etypecase field
    (hpack:field (hpack:field-value-string field))
    (cons (if (stringp (cdr field))
              (coerce (cdr field) 'simple-string)
              (map 'simple-string #'code-char (cdr field))))))

(define-hot field-of ((fields simple-vector) (name octets)) t
  "The field of FIELDS that has NAME; nil if none or several have it."
  (let ((found nil))
    (loop for field across fields
          when (header-named-p field name)
            do (when found (return-from field-of nil))
               (setf found field))
    found))

(defun field-state (field)
  "The tracestate in FIELD, the only field of its name. A tracestate that a
peer repeats in each request is parsed once."
  (etypecase field
    (hpack:field (or (hpack:field-memo field)
                     (setf (hpack:field-memo field) (read-tracestate (list (field-text field))))))
    (cons (read-tracestate (list (field-text field))))))

(defun state-of (fields)
  (let ((states (loop for field across (the simple-vector fields)
                      when (header-named-p field **tracestate**) collect field)))
    (cond ((null states) "")
          ((rest states) (read-tracestate (mapcar #'field-text states)))
          (t (field-state (first states))))))

(defconstant +longest-bin-octets+ 64
  "The maximum number of octets of a grpc-trace-bin in base64; a longer field is not decoded.")

(defun bin-octets (field)
  "The octets of FIELD, a grpc-trace-bin; nil if they are malformed or too long."
  (etypecase field
    (hpack:field (and (<= (length (hpack:field-value field)) +longest-bin-octets+)
                      (handler-case (decode-base64 (hpack:field-value-string field))
                        (invalid-base64 () nil))))
    (cons (coerce (cdr field) 'octets))))

(define-hot extract ((propagators list) (fields (or null simple-vector)))
    (or null trace-context)
  "The trace context in FIELDS, the metadata of a call; nil without one. The context is read in the
first form of PROPAGATORS that FIELDS have; if :baggage is one of PROPAGATORS, the context also has
the baggage in FIELDS."
  (when (and fields (plusp (length fields)))
    (let ((context (extract-place propagators fields)))
      (if (member :baggage propagators)
          (with-extracted-baggage context fields)
          context))))

(defun field-baggage (field)
  "The baggage in FIELD alone. A baggage that a peer repeats in each request is parsed once."
  (flet ((baggage () (coerce (read-baggage (list (field-text field))) 'simple-base-string)))
    (etypecase field
      (hpack:field (or (hpack:field-memo field) (setf (hpack:field-memo field) (baggage))))
      (cons (baggage)))))

(define-hot kept-part ((text simple-base-string) (room index) (members index)) (values index index)
  "Two values: the end of the longest beginning of TEXT, a baggage, that has at most MEMBERS members
and ROOM characters; and the number of its members."
  (let ((end 0) (count 0))
    (declare (type index end count))
    (loop while (and (< count members) (< end (length text)))
          do (let ((comma (or (char-position #\, text :start (if (zerop count) 0 (1+ end)))
                              (length text))))
               (when (< room comma) (return))
               (setf end comma)
               (incf count)))
    (values end count)))

(define-hot joined-baggage ((texts list)) simple-base-string
  "TEXTS, values of FIELD-BAGGAGE, as one baggage, without the members beyond its limits. A peer may
send many such headers in each request, so the joined text is not parsed again."
  (let ((joined (make-string +most-joined-octets+ :element-type 'base-char)) (at 0) (members 0))
    (declare (type index at members) (dynamic-extent joined))
    (dolist (text (remove "" texts :test #'string=))
      (declare (type simple-base-string text))
      (let ((start (if (zerop at) 0 (1+ at))))
        (multiple-value-bind (end count)
            (kept-part text (max 0 (- +most-joined-octets+ start))
                       (- +most-baggage-members+ members))
          (when (plusp count)
            (unless (zerop at) (setf (schar joined at) #\,))
            (replace joined text :start1 start :end2 end)
            (setf at (+ start end))
            (incf members count))
          (when (< end (length text)) (return)))))
    (subseq joined 0 at)))

(defun with-extracted-baggage (context fields)
  "CONTEXT, or nil, with the baggage in FIELDS; if there is only baggage, a context with nothing
else."
  (let* ((said (loop for field across (the simple-vector fields)
                     when (header-named-p field **baggage**) collect (field-baggage field)))
         (baggage (if (rest said) (joined-baggage said) (first said))))
    (if (or (null baggage) (string= "" baggage))
        context
        (with-other-baggage context baggage))))

(define-hot extract-place ((propagators list) (fields simple-vector)) (or null trace-context)
  "As EXTRACT, without baggage."
  (dolist (propagator propagators nil)
    (let ((context
            (ecase propagator
              (:baggage nil)
              (:tracecontext
               (let ((field (field-of fields **traceparent**)))
                 (and field (read-traceparent (field-octets field) (state-of fields)))))
              (:grpc-trace-bin
               (let* ((field (field-of fields **trace-bin**))
                      (octets (and field (bin-octets field))))
                 (and octets (read-trace-bin octets)))))))
      (when context (return context)))))

(defun ours-p (entry)
  "True if ENTRY, of an alist of metadata, carries a trace context."
  (member (car entry) '("traceparent" "tracestate" "grpc-trace-bin") :test #'string=))

(define-hot inject ((propagators list) (metadata list) (high id) (low id) (span id)
                    (sampled boolean) (state simple-string) (baggage simple-string))
    list
  "METADATA, an alist, with the context of SPAN in the forms PROPAGATORS, which replace its own
headers of these forms. A user's own header baggage stays if BAGGAGE is empty."
  (let ((metadata (if (and metadata (some #'ours-p metadata))
                      (remove-if #'ours-p metadata)
                      metadata)))
    (dolist (propagator propagators metadata)
      (ecase propagator
        (:baggage
         (unless (string= "" baggage)
           (setf metadata (acons "baggage" baggage
                                 (remove "baggage" metadata :key #'car :test #'string=)))))
        (:tracecontext
         (unless (string= "" state) (push (cons "tracestate" state) metadata))
         (push (cons "traceparent" (write-traceparent high low span sampled)) metadata))
        (:grpc-trace-bin
         (push (cons "grpc-trace-bin" (write-trace-bin high low span sampled)) metadata))))))
