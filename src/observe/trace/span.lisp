;;;; Spans, as OpenTelemetry defines them: a name, a time, attributes, events, links, a status. Only
;;;; recorded work has a span; other work has a context alone.
;;;;
;;;; A span's loop adds events, and the user may add some from any thread; so lists are changed by
;;;; compare-and-swap, which is seldom contended. Items over the limits are counted. A span that has
;;;; ended is the exporter's and does not change.

(in-package #:clgrpc.trace)

(defstruct (event (:constructor make-event (name ns attributes)) (:copier nil))
  "An event at a moment of a span."
  (name "" :type string :read-only t)   ; the event
  (ns 0 :type nanoseconds :read-only t) ; when the event happened, in nanoseconds since 1970
  (attributes '() :type list :read-only t)) ; an alist, in their order

(defstruct (span-link (:constructor make-span-link (context attributes)) (:copier nil))
  "A reference from a span to a related span that is not its parent."
  (context nil :type trace-context :read-only t) ; the context of the linked span
  (attributes '() :type list :read-only t)) ; an alist, in their order

(defstruct (span (:copier nil))
  "A piece of work, and the time that it took."
  (name "" :type string :read-only t)   ; the name of the work
  ;; the span's part in a call, in OpenTelemetry's words
  (kind :internal :type (member :internal :server :client :producer :consumer) :read-only t)
  (context nil :type trace-context :read-only t) ; the span's place in its trace
  (parent nil :type (or null trace-context) :read-only t) ; the parent's context; nil for a root
  (limits nil :type tracing-options :read-only t) ; the limits of its attributes, events and links
  (clock nil :type function :read-only t) ; gives the time since 1970 in nanoseconds
  (start-ns 0 :type nanoseconds :read-only t) ; when the span began, in ns since 1970
  (end-ns 0 :type nanoseconds)          ; when the span ended; 0 before that
  (attribute-list '() :type list)       ; an alist, newest first
  (event-list '() :type list)           ; EVENTs, newest first
  (link-list '() :type list)            ; LINKs, newest first
  (event-count 0 :type sb-ext:word)     ; the number of events, including omitted ones; atomic
  (lost-attributes 0 :type sb-ext:word) ; how many attributes were omitted; atomic
  (lost-links 0 :type sb-ext:word)      ; links that were omitted
  (sent 0 :type index)                  ; messages that the span's call has sent
  (received 0 :type index)              ; likewise
  (status :unset :type (member :unset :ok :error)) ; how the work ended
  (status-text "" :type string))        ; the error

(declaim (sb-ext:freeze-type event span-link span))

(document-functions
  event-name "The name of EVENT, of a span."
  event-ns "The time of EVENT, of a span, in nanoseconds since 1970."
  event-attributes "The alist of EVENT's attributes."
  span-link-context "The context of the span that LINK leads to."
  span-link-attributes "The alist of LINK's attributes."
  span-name "The name of SPAN, as text."
  span-kind "The part that SPAN has in a call: :internal, :server, :client, :producer or :consumer."
  span-context "The TRACE-CONTEXT of SPAN."
  span-start-ns "When SPAN began, in nanoseconds since 1970."
  span-end-ns "When SPAN ended, in nanoseconds since 1970; 0 if it has not ended."
  span-status "How the work of SPAN ended: :unset, :ok or :error."
  span-status-text "The error of SPAN, empty without one.")

(defmethod print-object ((event event) stream)
  (print-unreadable-object (event stream :type t)
    (write-printable (event-name event) stream :limit 200)))

(define-printer (link span-link)
  "~A" (span-link-context link))

(defmethod print-object ((span span) stream)
  (print-unreadable-object (span stream :type t)
    (write-printable (span-name span) stream :limit 200)
    (format stream " ~A ~(~A~)" (span-id (span-context span)) (span-status span))))

(defun span-attributes (span)
  "The attributes of SPAN, an alist from name to a string, a number, T, NIL or a vector of these."
  (reverse (span-attribute-list span)))

(defun span-events (span)
  "The EVENTs of SPAN, the oldest first."
  (reverse (span-event-list span)))

(defun span-links (span)
  "The LINKs of SPAN in their order."
  (reverse (span-link-list span)))

(defun span-parent-octets (span)
  "The id of SPAN's parent, 8 octets, or nil if it is a root."
  (and (span-parent span) (context-span-id-octets (span-parent span))))

(defun span-remote-parent-p (span)
  "True if SPAN's parent is in another process."
  (and (span-parent span) (context-remote (span-parent span))))

(defun span-dropped-attributes (span)
  "How many attributes of SPAN were dropped because of the limit."
  (span-lost-attributes span))

(defun span-dropped-events (span)
  "How many events of SPAN were dropped because of the limit."
  (max 0 (- (span-event-count span) (options-max-span-events (span-limits span)))))

(defun span-dropped-links (span)
  "How many links of SPAN were dropped because of the limit."
  (span-lost-links span))

(defun span-over-p (span)
  (plusp (span-end-ns span)))

(defun span-now (span)
  "The time now, in nanoseconds since 1970, by SPAN's clock."
  (funcall (span-clock span)))

;;; Attributes

(defun short-text (text limits)
  "A private copy of TEXT, cut to max-attribute-characters of LIMITS."
  (let ((limit (options-max-attribute-characters limits)))
    (if (> (length text) limit) (subseq text 0 limit) (copy-seq text))))

(defun attribute-value (value limits)
  "VALUE as a span keeps it. Signal MISUSE if no attribute may have this value."
  (typecase value
    (string (short-text value limits))
    ((or (signed-byte 64) double-float boolean) value)
    ((or float ratio) (coerce value 'double-float))
    (vector (map 'vector (lambda (item) (attribute-value item limits)) value))
    (t (misuse "The value of an attribute is a string, a number, T, NIL or a vector of such, ~
                not ~S."
               value))))

(defun check-attribute-name (name)
  (unless (and (stringp name) (plusp (length name)))
    (misuse "The name of an attribute is a string, not ~S." name))
  name)

(defun attribute-alist (plist limits)
  "Two values: the attributes of PLIST, alternately names and values, as LIMITS allow; and how many
are omitted."
  (unless (and (listp plist) (evenp (length plist)))
    (misuse "Attributes are names and values by turns, not ~S." plist))
  (let* ((most (options-max-span-attributes limits))
         (all (loop for (name value) on plist by #'cddr
                    collect (cons (check-attribute-name name) (attribute-value value limits))))
         (excess (max 0 (- (length all) most))))
    (values (butlast all excess) excess)))

(defun put-attribute (span name value)
  "Give SPAN the attribute NAME, a string, with VALUE, unless it has ended."
  (check-attribute-name name)
  (let* ((limits (span-limits span))
         (value (attribute-value value limits))
         (lost nil))
    (unless (span-over-p span)
      (sb-ext:atomic-update
       (span-attribute-list span)
       (lambda (old)
         (setf lost nil)
         (cond ((assoc name old :test #'string=)
                (substitute-if (cons name value)
                               (lambda (entry) (string= name (car entry))) old))
               ((< (length old) (options-max-span-attributes limits)) (acons name value old))
               (t (setf lost t) old))))
      (when lost (sb-ext:atomic-incf (span-lost-attributes span))))
    value))

;;; Events and links

(defun add-event (span name attributes)
  "Add an event NAME to SPAN, which has not ended, with ATTRIBUTES, a valid alist."
  (unless (span-over-p span)
    (when (< (sb-ext:atomic-incf (span-event-count span))
             (options-max-span-events (span-limits span)))
      (sb-ext:atomic-push (make-event name (span-now span) attributes)
                          (span-event-list span))))
  nil)

(defun add-link (span context attributes)
  "Add a link to CONTEXT to SPAN, with ATTRIBUTES, a valid alist."
  (cond ((< (length (span-link-list span)) (options-max-span-links (span-limits span)))
         (sb-ext:atomic-push (make-span-link context attributes) (span-link-list span)))
        (t (sb-ext:atomic-incf (span-lost-links span))))
  nil)

(defun put-status (span status &optional (text ""))
  "Set the status of SPAN: how its work ended. The status :ok, once set, remains (OpenTelemetry, Set
Status)."
  (unless (or (span-over-p span) (eq :ok (span-status span)))
    (setf (span-status-text span) (if (eq :error status) (short-text text (span-limits span)) "")
          (span-status span) status))
  nil)
