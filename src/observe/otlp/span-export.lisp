;;;; Spans as messages, for the collector's TraceService.

(in-package #:clgrpc.otlp)

(defun span-flags (context remote)
  "The field `flags` of a span or link: the flags of CONTEXT; the flag for knowing whether the
parent is in another process; and, if REMOTE is true, the flag for a parent in another process."
  (logior (ldb (byte 8 0) (trace:context-flags context)) #x100 (if remote #x200 0)))

(defun event-message (event)
  (spans:make-span.event :time-unix-nano (trace:event-ns event) :name (trace:event-name event)
                         :attributes (key-values (trace:event-attributes event))))

(defun link-message (link)
  (let ((context (trace:span-link-context link)))
    (spans:make-span.link :trace-id (trace:context-trace-id-octets context)
                          :span-id (trace:context-span-id-octets context)
                          :trace-state (trace:context-state context)
                          :attributes (key-values (trace:span-link-attributes link))
                          :flags (ldb (byte 8 0) (trace:context-flags context)))))

(defun status-message (span)
  "The message for the status of SPAN, nil while it is unset."
  (let ((status (trace:span-status span)))
    (unless (eq :unset status)
      (spans:make-status :code (ecase status
                                 (:ok :status-code-ok)
                                 (:error :status-code-error))
                         :message (or (trace:span-status-text span) "")))))

(defun span-message (span)
  (let ((context (trace:span-context span)))
    (spans:make-span
     :trace-id (trace:context-trace-id-octets context)
     :span-id (trace:context-span-id-octets context)
     :trace-state (trace:context-state context)
     :parent-span-id (or (trace:span-parent-octets span) (make-octets 0))
     :flags (span-flags context (trace:span-remote-parent-p span))
     :name (trace:span-name span)
     :kind (ecase (trace:span-kind span)
             (:internal :span-kind-internal)
             (:server :span-kind-server)
             (:client :span-kind-client)
             (:producer :span-kind-producer)
             (:consumer :span-kind-consumer))
     :start-time-unix-nano (trace:span-start-ns span)
     :end-time-unix-nano (trace:span-end-ns span)
     :attributes (key-values (trace:span-attributes span))
     :dropped-attributes-count (trace:span-dropped-attributes span)
     :events (map 'list #'event-message (trace:span-events span))
     :dropped-events-count (trace:span-dropped-events span)
     :links (map 'list #'link-message (trace:span-links span))
     :dropped-links-count (trace:span-dropped-links span)
     :status (status-message span))))

(defun encodable-p (span)
  "True if SPAN can be sent. It cannot be sent if the user has made an attribute, a vector, invalid
after it was given."
  (and (ignore-errors (protobuf:serialize (span-message span))) t))

(defun spans-request (spans resource)
  "The request that reports SPANS, a list, to a collector. RESOURCE is a message."
  (trace-collector:make-export-trace-service-request
   :resource-spans
   (list (spans:make-resource-spans
          :resource resource
          :scope-spans (list (spans:make-scope-spans
                              :scope (library-scope)
                              :spans (mapcar #'span-message spans)))))))
