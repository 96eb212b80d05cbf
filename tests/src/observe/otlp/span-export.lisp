;;;; Spans as messages.

(in-package #:clgrpc.tests.otlp)

(defun sent-spans (tracing)
  "The spans of TRACING as they arrive, a list."
  (let* ((request (passed-on 'trace-collector:export-trace-service-request
                             (otlp::spans-request (trace:drain tracing)
                                                  (otlp::resource-message
                                                   '(("service.name" . "s"))))))
         (resource (elt (trace-collector:export-trace-service-request-resource-spans request) 0))
         (scope (elt (spans:resource-spans-scope-spans resource) 0)))
    (is (equal '(("service.name" . "s"))
               (attributes-of (resource:resource-attributes
                               (spans:resource-spans-resource resource)))))
    (is (string= "clgrpc" (common:instrumentation-scope-name (spans:scope-spans-scope scope))))
    (coerce (spans:scope-spans-spans scope) 'list)))

(defparameter *remote-parent* "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

(test spans-arrive
  (let* ((tracing (grpc:make-tracing :sampler :always-on :max-span-events 1))
         (parent (grpc:parse-traceparent *remote-parent*)))
    (grpc:with-span ("outer" :tracing tracing :kind :server :parent parent
                             :attributes '("n" 1 "yes" t) :links (list parent))
      (grpc:add-span-event "first" "k" "v")
      (grpc:add-span-event "second")
      (handler-case (grpc:with-span ("inner" :tracing tracing) (error "it broke"))
        (error () nil)))
    (let* ((sent (sent-spans tracing))
           (inner (find "inner" sent :key #'spans:span-name :test #'string=))
           (outer (find "outer" sent :key #'spans:span-name :test #'string=))
           (event (elt (spans:span-events outer) 0))
           (link (elt (spans:span-links outer) 0)))
      (is (= 2 (length sent)))
      (is (equalp (otlp::hex-octets "0af7651916cd43dd8448eb211c80319c" 16)
                  (spans:span-trace-id outer)))
      (is (equalp (otlp::hex-octets "b7ad6b7169203331" 8) (spans:span-parent-span-id outer)))
      (is (= 8 (length (spans:span-span-id outer))))
      (is (= #x301 (spans:span-flags outer)) "the span is sampled, and its parent is remote")
      (is (eq :span-kind-server (spans:span-kind outer)))
      (is (< 1000000000000000000 (spans:span-start-time-unix-nano outer)
             (spans:span-end-time-unix-nano outer)))
      (is (equal '(("n" . 1) ("yes" . t)) (attributes-of (spans:span-attributes outer))))
      (is (= 1 (length (spans:span-events outer)) (spans:span-dropped-events-count outer)))
      (is (string= "first" (spans:span.event-name event)))
      (is (equal '(("k" . "v")) (attributes-of (spans:span.event-attributes event))))
      (is (<= (spans:span-start-time-unix-nano outer) (spans:span.event-time-unix-nano event)
              (spans:span-end-time-unix-nano outer)))
      (is (equalp (spans:span-parent-span-id outer) (spans:span.link-span-id link)))
      (is (null (spans:span-status outer)))
      (is (equalp (spans:span-span-id outer) (spans:span-parent-span-id inner)))
      (is (= #x101 (spans:span-flags inner)))
      (is (eq :span-kind-internal (spans:span-kind inner)))
      (is (eq :status-code-error (spans:status-code (spans:span-status inner))))
      (is (search "it broke" (spans:status-message (spans:span-status inner)))))))

(test each-kind-of-span-is-told
  (let ((tracing (grpc:make-tracing :sampler :always-on)))
    (loop for (kind sent) in '((:internal :span-kind-internal) (:server :span-kind-server)
                               (:client :span-kind-client) (:producer :span-kind-producer)
                               (:consumer :span-kind-consumer))
          do (grpc:with-span ("x" :tracing tracing :kind kind))
             (is (eq sent (spans:span-kind (first (sent-spans tracing))))))))

(test a-root-has-no-parent
  (let ((tracing (grpc:make-tracing :sampler :always-on)))
    (grpc:with-span ("root" :tracing tracing :parent nil))
    (is (equalp #() (spans:span-parent-span-id (first (sent-spans tracing)))))))
