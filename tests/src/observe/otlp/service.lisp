;;;; Three services: ours calls one of grpc-go with its OpenTelemetry plugin, which calls another of
;;;; ours. Each sends its spans to the same collector; parents lead from the last to the first.

(in-package #:clgrpc.tests.otlp)

(defclass greeter (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((greeter greeter) request &key)
  (let ((name (helloworld:hello-request-name request)))
    (when (string= "nobody" name) (grpc:fail :not-found "nobody is there"))
    (grpc:with-span ("greet")
      (helloworld:make-hello-reply :message (format nil "Hello, ~A!" name)))))

(defun all-spans (collector)
  "The spans that COLLECTOR has received, as lists of the service and the message."
  (loop for request in (sb-thread:with-mutex ((collector-lock collector))
                         (copy-list (collector-taken collector)))
        append (loop for resource
                       across (trace-collector:export-trace-service-request-resource-spans request)
                     for service = (cdr (assoc "service.name"
                                               (attributes-of
                                                (resource:resource-attributes
                                                 (spans:resource-spans-resource resource)))
                                               :test #'string=))
                     append (loop for scope across (spans:resource-spans-scope-spans resource)
                                  append (loop for span across (spans:scope-spans-spans scope)
                                               collect (list service span))))))

(defun chain (spans)
  "SPANS, a value of ALL-SPANS, of one trace, each followed by its child: service, name and kind of
each. The test fails if they are not such a chain."
  (loop with octets = #()
        repeat (length spans)
        for found = (remove octets spans :test-not #'equalp
                                         :key (lambda (entry)
                                                (spans:span-parent-span-id (second entry))))
        for (service span) = (first found)
        do (is (= 1 (length found)) "~D spans under one" (length found))
        while span
        collect (list service (spans:span-name span) (spans:span-kind span))
        do (setf octets (spans:span-span-id span))))

(defun call-with-three-services (peer form function)
  "Call FUNCTION with a collector, a channel to a relay of grpc-go in front of a greeter of ours,
the TRACING of that channel, and a function that makes all export. All pass contexts in FORM, a
propagator; PEER is the path of the Go program."
  (with-collector (collector address)
    (let ((front (grpc:make-tracing :sampler :always-on :propagators (list form)))
          (back (grpc:make-tracing :propagators (list form))))
      (flet ((exporter (tracing name)
               (grpc:make-otlp-exporter address :tracing tracing
                                                :resource `(("service.name" . ,name)))))
        (let ((server (grpc:start-server (make-instance 'greeter) :listen "127.0.0.1:0"
                                                                  :observer back))
              (exporters (list (exporter front "front") (exporter back "back"))))
          (unwind-protect
               (support:with-server-program (program relay peer "traced-relay" "-otlp" address
                                                     "-propagator" (string-downcase form)
                                                     (grpc:server-address server))
                 (grpc:with-channel (channel relay :observer front)
                   (funcall function collector channel front
                            (lambda ()
                              (dolist (exporter exporters)
                                (is-true (grpc:flush-exporter exporter :timeout +patience+)))))))
            (grpc:stop-server server :drain 0)
            (dolist (exporter exporters) (grpc:stop-exporter exporter :timeout 0))))))))

(defun say-hello (channel name)
  (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name name)
                                :timeout +patience+))

(test parents-lead-through-three-services
  (let ((peer (support:need-peer)))
    (dolist (form '(:tracecontext :grpc-trace-bin))
      (call-with-three-services
       peer form
       (lambda (collector channel tracing flush)
         (let ((trace-id ""))
           (grpc:with-span ("outside" :tracing tracing)
             (setf trace-id (grpc:trace-id (grpc:current-trace)))
             (say-hello channel "Ada"))
           (funcall flush)
           (eventually (<= 8 (length (all-spans collector))))
           (let ((all (all-spans collector)))
             (is (= 8 (length all)))
             (dolist (entry all)
               (is (equalp (otlp::hex-octets trace-id 16)
                           (spans:span-trace-id (second entry)))))
             (is (equal '(("front" "outside" :span-kind-internal)
                          ("front" "Sent.helloworld.Greeter.SayHello" :span-kind-client)
                          ("front" "Attempt.helloworld.Greeter.SayHello" :span-kind-internal)
                          ("relay" "Recv.helloworld.Greeter.SayHello" :span-kind-server)
                          ("relay" "Sent.helloworld.Greeter.SayHello" :span-kind-client)
                          ("relay" "Attempt.helloworld.Greeter.SayHello" :span-kind-internal)
                          ("back" "Recv.helloworld.Greeter.SayHello" :span-kind-server)
                          ("back" "greet" :span-kind-internal))
                        (chain all))))))))))
