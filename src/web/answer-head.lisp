;;;; The head of the answer to a call: the constant part of its claim, its metadata, and the headers
;;;; for pages of other origins.

(in-package #:clgrpc.web)

(defun answer-headers (call more)
  "The headers of CALL's answer that are not constant: its metadata and MORE, and those for pages of
another origin."
  (let* ((cors (web-claim-cors (call-web-claim call)))
         (headers (append (metadata-headers (rpc:outgoing-metadata call)) more)))
    (if cors
        (append (exposing cors (union '("grpc-status" "grpc-message" "grpc-status-details-bin")
                                      (mapcar #'car headers) :test #'string=))
                headers)
        headers)))

;;; A handler that sends nothing for a long time

(defun head-wait-ns (call)
  "For how many nanoseconds more the handler of CALL, which has sent nothing, may send nothing; the
full time if the handler has not begun."
  (let ((began (server:handler-began-ns call)))
    (- (seconds-ns (options-stream-head-seconds (wire:wire-call-options call)))
       (if began (max 0 (- (operate now call) began)) 0))))

(defun head-due (call)
  "If the handler of CALL has been silent for too long, send the head of its answer; else check
again later."
  (unless (or (call-status call) (wire:marked-p call :headers))
    (if (plusp (head-wait-ns call))
        (await-head call)
        (wire:ensure-headers call))))

(defun await-head (call)
  "The function BEGUN of protocol handlers: if the handler of CALL, which answers with a stream,
sends nothing for long, send the head of the answer. Pages and proxies wait for the head."
  (unless (rpc:answers-once-p call)
    (operate after call (ns-seconds (head-wait-ns call)) (lambda () (head-due call)))))

(defun end-after-head (call)
  "If the request of CALL is a HEAD, end CALL soon: its client gets only the head of the stream of
answers, which has just been written, and the handler might send for ever."
  (when (string= "HEAD" (exchange:http-request-method (server:call-http-request call)))
    (loop:defer (wire:wire-call-loop call)
                (lambda (call) (operate abort call :cancelled "a HEAD gets the head alone" :local))
                call)))

(defun write-stream-head (call)
  "The operation WRITE-HEAD of calls whose answer is a stream."
  (let ((claim (call-web-claim call)))
    (exchange:write-head (server:call-http-request call)
                         (heads-head (web-claim-heads claim) (wire:outgoing-encoding call))
                         (answer-headers call '()) nil)
    (end-after-head call)))
