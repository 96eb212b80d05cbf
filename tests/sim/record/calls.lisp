;;;; The courses of calls of each kind, and of each way to end.

(in-package #:clgrpc.tests.record)

(defun answer-note (note call)
  "What the number of NOTE says comes of CALL."
  (case (number-of note)
    (404 (grpc:fail :not-found "no such note" :trailers '(("x-why" . "gone"))))
    (408 (grpc:on-cancel call (lambda () (sim:note "~(~A~)" (grpc:call-status call))))
     call)
    (500 (error "a fault"))
    (t (grpc:send-metadata call '(("x-begin" . "1")))
       (setf (grpc:call-trailers call) `(("x-end-bin" . ,(octets-of 0 1 255))))
       (note (1+ (number-of note)) :body (length (lab:note-body note))))))

(defun serve-notes (observers &rest options)
  "Serve notes at the host \"server\"."
  (apply #'start-probe
         (list :ask #'answer-note
               :watch (lambda (note call)
                        (dotimes (i (number-of note))
                          (grpc:send call (note i :body (length (lab:note-body note))))))
               :collect (handling (stream)
                          (let ((sum 0))
                            (grpc:do-messages (note stream (note sum))
                              (incf sum (number-of note)))))
               :chat (lambda (stream call)
                       (grpc:do-messages (note stream nil) (grpc:send call note))))
         (append options (list :listen "server:50051" :observer observers))))

(defun outcome (function)
  "Note what comes of FUNCTION, a call."
  (handler-case (sim:note "~A" (funcall function))
    (status:rpc-error (error) (sim:note "~A ~S ~S" error (grpc:rpc-error-trailers error)
                                        (grpc:rpc-error-ended-by error)))))

(defmacro ending (&body body)
  `(outcome (lambda () ,@body)))

(defun numbers-of (call)
  (let ((numbers '()))
    (grpc:do-messages (note call (nreverse numbers)) (push (number-of note) numbers))))

(defun call-unary (channel)
  "Note what comes of a call on CHANNEL for each way to end."
  (flet ((ask (number &rest options)
           (ending (number-of (apply #'lab.bench:ask channel
                                     (note number :body (getf options :body 0))
                                     (alexandria:remove-from-plist options :body))))))
    (ask 1)
    (ask 2 :metadata `(("x-text" . "a b") ("x-octets-bin" . ,(octets-of 0 200))) :timeout 2)
    (ask 404)
    (ask 408 :timeout 0.25)
    (ask 500)
    (ask 3 :body 40000)
    (ask 4 :compression :gzip :body 1000))
  (ending (lab.bench:peek channel (note 1)))
  (ending (let ((call (grpc:call-async #'lab.bench:ask channel (note 408))))
            (sim:wait-for 1/10)
            (grpc:cancel call)
            (grpc:await call))))

(defun call-streams (channel)
  "Note what comes of streams of each kind on CHANNEL, with windows that are full, and of
cancellation."
  (ending (numbers-of (lab.bench:watch channel (note 3))))
  (ending (numbers-of (lab.bench:watch channel (note 4 :body 30000))))
  (ending (number-of (lab.bench:collect channel (list (note 1) (note 2) (note 3)))))
  (ending (numbers-of (lab.bench:chat channel (list (note 7) (note 8)))))
  (ending (let ((call (lab.bench:watch channel (note 100 :body 10000))))
            (grpc:receive call)
            (grpc:cancel call)
            (grpc:receive call)))
  (ending (numbers-of (lab.bench:chat channel :open :timeout 0.1))))

(define-record unary-calls (server client)
    "A connection begins; a call for each way to end; the server drains."
  (let ((host (sim:add-host "server" (lambda () (serve-notes server)))))
    (sim:on-host ((sim:add-host "client"))
      (grpc:with-channel (channel "server:50051" :observer client)
        (call-unary channel)
        (sim:restart-host host :drain 1 :down 1/2)
        (sim:wait-for 1/10)
        (ending (number-of (lab.bench:ask channel (note 5) :wait-for-ready t)))))))

(define-record streams (server client :tracers "flowctl")
    "Streams of each kind, and the frames of their windows."
  (sim:add-host "server" (lambda () (serve-notes server :stream-window-octets 65535)))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "server:50051" :observer client :stream-window-octets 65535)
      (call-streams channel))))

(define-record calls-inside (server client :observed nil)
    "The same calls without a wire."
  (grpc:with-channel (channel "inproc:nobody" :observer client)
    (ending (lab.bench:ask channel (note 1))))
  (let ((own (serve-notes server :listen "inproc:notes")))
    (grpc:with-channel (channel "inproc:notes" :observer client)
      (call-unary channel)
      (call-streams channel))
    (grpc:stop-server own :drain 1)))
