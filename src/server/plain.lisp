;;;; Plain requests: requests of HTTP that are not gRPC calls (http/exchange). The handlers in the
;;;; :HTTP of START-SERVER, or its :FALLBACK, answer them. Without a handler, the answer is an error
;;;; as soon as the request is whole.
;;;;
;;;; A SERVER-CALL that has the HTTP-REQUEST runs a handler of HTTP. So handlers of HTTP run like
;;;; those of calls, under the same limits and until the same end of the server, but their requests
;;;; do not count as calls.

(in-package #:clgrpc.server)

(define-load-time-global **not-grpc**
    (exchange:text-answer
     415 "This is a gRPC server: requests are POSTs, content-type application/grpc."))
(define-load-time-global **not-post** (exchange:text-answer 405 "gRPC requests use POST"))

(define-hot (exchange-call :inline t) ((request exchange:http-request)) server-call
  "The call that runs REQUEST's handler."
  (exchange:http-request-context request))

(defun join-exchange (call request)
  "Make CALL the call that runs the handler of REQUEST."
  (setf (exchange:http-request-context request) call
        (deferred-start-http-request (ensure-deferred-start call)) request))

(defun begin-exchange (link request)
  "The sink's BEGUN: handle REQUEST, which was received on LINK, an HTTP/1.1 connection."
  (if (exchange:http-request-claimed request)
      (begin-claimed-exchange link request)
      (begin-plain-exchange link request)))

(defun begin-claimed-exchange (link request)
  "As BEGIN-EXCHANGE, for a call of a protocol other than gRPC."
  (let* ((server-loop (server-link-owner link))
         (claim (exchange:http-request-route request))
         (now (loop:event-loop-now (server-link-loop link)))
         (call (make-claimed-call claim link server-loop now)))
    (count-call link server-loop)
    (note-call-begun server-loop now)
    (begin-claimed call request claim)
    (let ((observer (server-loop-observer server-loop)))
      (rpc:observe call-begun observer call)
      (rpc:observe request-begun observer call
                   (exchange:http-request-header request "host"))
      (rpc:observe headers-received observer call))
    (cond ((rejected-at-once-p claim) (reject-claimed call claim) nil)
          ((refuse-call-p server-loop link call) nil)
          ((claim-rejection claim) t)   ; the rejection is sent once the body has come
          (t (start-claimed call claim) t))))

(defun begin-plain-exchange (link request)
  "As BEGIN-EXCHANGE, for a plain request."
  (let* ((server-loop (server-link-owner link))
         (route (exchange:http-request-route request))
         (call (make-server-call :rpc-method (and route (route-method route)) :endpoint server-loop
                                 :link link :route route :fields #()
                                 :born-ns (loop:event-loop-now (server-link-loop link))
                                 :operations **request-operations**)))
    (count-call link server-loop)
    (join-exchange call request)
    (rpc:observe call-begun (server-loop-observer server-loop) call)
    (rpc:observe headers-received (server-loop-observer server-loop) call)
    (not (refuse-call-p server-loop link call))))

(defun stop-exchange (request)
  "The sink's STOP."
  (multiple-value-call #'server-abort (exchange-call request) (rpc:verdict :server-stopping)
                                      :local))

(define-hot prompt-p ((link server-link)) boolean
  "The sink's PROMPT-P: true if no observer sees the requests on LINK, and its peer receives
answers."
  (and (null (server-loop-observer (the server-loop (server-link-owner link))))
       (not (tracing-p :call :server))
       (not (output-waits-p link))))

(defun measure-plain (link)
  "The sink's MEASURE, which is also called when the peer has taken output."
  (wire:measure-link link)
  (look-at-held-up link))

(defun retire-exchange (call)
  "The sink's DONE: the answer of CALL, over HTTP/1.1, has been written."
  (when (call-claim call) (count-end (server-link-owner (server-call-link call)) call))
  (retire-call call (server-call-link call)))

(define-load-time-global **exchange-sink**
    (flet ((of-call (function)
             (declare (type function function))
             (lambda (request &rest arguments)
               (apply function (exchange-call request) arguments))))
      (exchange:make-sink
       :begun #'begin-exchange :hold (of-call #'wire:hold) :whole (of-call #'end-of-request)
       :finish (of-call (lambda (call) (server-finish call :ok "" nil '())))
       :head-sent (of-call (lambda (call) (wire:mark-call call :headers)))
       :body (of-call #'receive-claimed)
       :writable (of-call (lambda (call)
                            (funcall (protocol-handler-writable (call-protocol-handler call))
                                     call)))
       :done (of-call #'retire-exchange)
       :lost (of-call #'lose-call) :over-p (of-call #'call-status)
       :stopping-p (of-call (lambda (call) (server-stopping-p (call-server call))))
       :stop #'stop-exchange
       :post (of-call #'wire:post-in-turn)
       :posted (of-call (lambda (call) (wire:posted-octets call)))
       :on-end (of-call #'rpc:on-end) :peer (of-call #'rpc:call-peer)
       :secure-p (of-call (lambda (call) (and (rpc:call-security call) t)))
       :prompt-p #'prompt-p :measure #'measure-plain
       :close #'wire:close-link
       :expel (lambda (link text) (wire:close-link link text :how :expel))
       :closed #'wire:end-link)))

(defun server-loop-router (server-loop)
  "The router for plain requests of SERVER-LOOP; nil if it serves none."
  (let ((http (server-loop-http server-loop))) (and http (exchange:http-loop-router http))))

(defun read-plain-request (server-loop stream list reason)
  "The plain request with the header LIST on STREAM, of a link of SERVER-LOOP. REASON is
:CONTENT-TYPE or :METHOD, the header that is not gRPC's."
  (exchange:read-http2-request list stream (server-loop-router server-loop) **exchange-sink**
                               (server-loop-options server-loop)
                               (cond ((server-loop-claimers server-loop) nil)
                                     ((eq :content-type reason) **not-grpc**)
                                     ((server-loop-http server-loop) nil)
                                     (t **not-post**))))

;;; Routes

(defun plain-method (name &optional quiet)
  "The method of the calls that run the handler of plain requests with NAME, a string; QUIET is as
for HTTP-HANDLER."
  (method:make-rpc-method :name name :path name :kind :unary :quiet quiet))

(define-load-time-global **fallback-method** (plain-method "the fallback"))

(defun plain-route (server method execution answer)
  "The route of the plain requests of SERVER with METHOD. ANSWER, a function of an HTTP-REQUEST,
returns the values of a handler."
  (declare (type function answer))
  (make-server-route
   :server server :method method :execution execution
   :binding (method:make-binding
             :class (class-of server)
             :function (lambda (server request call)
                         (declare (ignore server))
                         (let ((value (exchange:answer-of
                                       request (multiple-value-list (funcall answer request)))))
                           (cond ((eq value request)
                                  (exchange:end-if-stopping request)
                                  call)
                                 (t value)))))))

(defun fallback-route (server function execution)
  "The route of the plain requests of SERVER, which FUNCTION answers, run with EXECUTION."
  (plain-route server **fallback-method** execution
               (lambda (request)
                 (funcall function (exchange:http-request-method request)
                          (exchange:http-request-target request)
                          (exchange:http-request-headers request)
                          (exchange:http-request-body request)))))

(defun handler-route (server handler execution)
  "The route to HANDLER, an HTTP-HANDLER of SERVER, run with EXECUTION unless HANDLER has its own."
  (let ((function (exchange:http-handler-function handler)))
    (plain-route server
                 (plain-method (exchange:http-handler-path handler)
                               (exchange:http-handler-quiet handler))
                 (execution-of (or (exchange:http-handler-execution handler) execution) nil)
                 (lambda (request) (funcall function request)))))

(defun make-server-router (server handlers fallback execution)
  "The router of SERVER with HANDLERS, a list of HTTP-HANDLERs, and FALLBACK, a function or nil; nil
without handlers, fallback and protocols other than gRPC. EXECUTION is as for START-SERVER."
  (let ((router (exchange:make-router))
        (execution (execution-of (if (listp execution) :auto execution) nil)))
    (dolist (handler handlers)
      (unless (exchange:http-handler-p handler)
        (misuse "~S is not a handler of HTTP requests: give a value of HTTP-HANDLER; a function ~
                 that answers all requests is for :fallback." handler))
      (exchange:add-handler router handler (handler-route server handler execution)))
    (when fallback
      (setf (exchange:router-fallback router) (fallback-route server fallback execution)))
    (when (server-protocols server)
      (setf (exchange:router-claim router)
            (lambda (http-method target fields)
              (claim-request (server-claimers server) http-method target fields))))
    (and (or handlers fallback (server-protocols server)) router)))

(defun make-server-loop-http (server router)
  "The data of HTTP on one loop of SERVER, which answers by ROUTER; nil if ROUTER is nil."
  (and router
       (exchange:make-http-loop :router router :sink **exchange-sink**
                                :options (server-options server))))
