;;;; The page of workflows and its requests. Requests, and the service's answers to them, are in the
;;;; JSON of Protocol Buffers. Every viewer of the console may read the answers; they contain no
;;;; inputs and results.

(in-package #:clgrpc.workflow-console)

(define-load-time-global **workflow-page-parts**
  (console:page-parts "page/workflows.html" "base" "../console/page/console.css"
                      "style" "page/workflows.css" "common" "../console/page/common.js"
                      "script" "page/workflows.js"))

(defconstant +call-seconds+ 10
  "The maximum number of seconds that the service may take for an answer.")

(defun http-status-of (condition)
  "The HTTP status that corresponds to CONDITION, an RPC-ERROR."
  (case (status:rpc-error-status condition)
    (:not-found 404)
    (:invalid-argument 400)
    (t 503)))

(defun asked-for (request type)
  "The message of TYPE in the parameter `request` of REQUEST."
  (protobuf:parse-json-message type (or (exchange:http-request-parameter request "request") "{}")))

(defun call-service (service request what)
  "The answer, a message, of SERVICE to REQUEST for the part WHAT of the page, or nil if the page
has no such part."
  (flet ((ask (stub message) (values (funcall stub service message :timeout +call-seconds+))))
    (alexandria:switch (what :test #'string=)
      ("list" (ask #'methods:list (asked-for request 'pb:list-request)))
      ("show" (let ((message (asked-for request 'pb:get-workflow-state-request)))
                (ask #'methods:get-workflow-state
                     (pb:make-get-workflow-state-request
                      :id (pb:get-workflow-state-request-id message) :history t))))
      ("schedules" (ask #'methods:list-schedules
                        (asked-for request 'pb:list-schedules-request))))))

(defun answer (service request what)
  "Answer REQUEST for WHAT, a path below the page of SERVICE."
  (if (string= what "")
      (console:send-page **workflow-page-parts**)
      (handler-case
          (let ((message (call-service service request what)))
            (if message
                (console:send-json (protobuf:message-json message))
                (console:refuse 404 "The page of workflows has no such part.")))
        (protobuf:protobuf-error () (console:refuse 400 "The request is not a message in JSON."))
        (status:rpc-error (condition)
          (console:refuse (http-status-of condition) (status:rpc-error-message condition))))))

(defun show-workflows (console service)
  "Add a page with the workflows and schedules of SERVICE, which MAKE-WORKFLOW-SERVICE returned, to
CONSOLE, which MAKE-CONSOLE returned. The page of CONSOLE links to it. Every viewer of the console
may read all workflows and schedules, but not their inputs and results. From any thread."
  (console:add-page console "workflows" "Workflows"
                    (lambda (request what) (answer service request what))))
