;;;; What a stub does: INVOKE on a channel, by the kind of its method.
;;;;
;;;;   unary             returns the reply and the call
;;;;   server streaming  returns the call, to RECEIVE from
;;;;   client streaming  REQUEST is a sequence, a generator function (nil when done) or :open;
;;;; returns the
;;;;                     reply and the call, or for :open the call, whose reply RECEIVE gives after
;;;;                     CLOSE-SEND
;;;;   bidi              the same kinds of REQUEST; returns the call. A sequence or generator is
;;;; sent by
;;;;                     the loop as the peer takes it, while the caller receives.

(in-package #:clgrpc.client)

(defmethod rpc:invoke ((channel wire-channel) method request &rest options
                       &key timeout deadline metadata wait-for-ready async call-credentials
                         (compression nil compression-p))
  (declare (dynamic-extent options))
  (let ((generator (and (member (rpc-method-kind method) '(:client-streaming :bidi))
                        (not (eq request :open))
                        (request-generator request)))
        (call (make-call channel method
                         :deadline (absolute-deadline timeout deadline)
                         :metadata (append (rpc:check-metadata metadata)
                                           (when call-credentials
                                             (credentials-metadata channel call-credentials
                                                                   method)))
                         :wait-for-ready (and wait-for-ready t)
                         :unattended (and async t)))
        (encoding (if compression-p
                      (rpc:find-encoding compression)
                      (subchannel-encoding (channel-subchannel channel)))))
    (when encoding (begin-compression call encoding))
    (when async (setf (rpc:extra-on-end (ensure-extra call)) async))
    (ecase (rpc-method-kind method)
      (:unary
       (add-request call request t)
       (cond (async (submit-call call) call)
             (t (submit-and-wait call nil)
                (if (eq :ok (call-status call))
                    (reply-of call)
                    (fail-or-retry call channel method request options)))))
      (:server-streaming
       (add-request call request t)
       (submit-call call)
       call)
      (:client-streaming
       (cond ((null generator) (submit-call call) call)
             (async (submit-call call)
                    (pump-requests call generator)
                    call)
             (t (submit-and-wait call generator)
                (cond ((eq :ok (call-status call)) (reply-of call))
                      ((functionp request) (error (rpc:call-condition call)))
                      (t (fail-or-retry call channel method request options))))))
      (:bidi
       (submit-call call)
       (when generator (pump-requests call generator))
       call))))

(defun absolute-deadline (timeout deadline)
  "The deadline that TIMEOUT, seconds or nil, DEADLINE, absolute ns or nil, and the current call
give."
  (unless (typep timeout '(or null (real 0))) (misuse "TIMEOUT is seconds, not ~S." timeout))
  (unless (typep deadline '(or null rpc:deadline))
    (misuse "DEADLINE is nanoseconds of the monotonic clock, not ~S." deadline))
  (rpc:earlier-deadline (rpc:earlier-deadline (or deadline 0)
                                              (if timeout
                                                  (rpc:deadline-in (max 1 (seconds-ns timeout))
                                                                   (monotonic-ns))
                                                  0))
                        (if rpc:*call* (call-deadline rpc:*call*) 0)))

(defun make-call (channel method &key deadline metadata wait-for-ready unattended)
  (unless (channel-open-p channel) (misuse "~A is closed." channel))
  (let ((subchannel (channel-subchannel channel)))
    (make-client-call :rpc-method method :subchannel subchannel
                      :loop (subchannel-loop subchannel) :options (subchannel-options subchannel)
                      :deadline deadline :metadata metadata :wait-for-ready wait-for-ready
                      :unattended unattended
                      :operations (if (member (rpc-method-kind method) '(:unary :client-streaming))
                                      **single-operations**
                                      **stream-operations**))))

(defun add-request (call request last)
  "Put REQUEST, encoded by this thread, into CALL's outbox before it is submitted."
  (rpc:put-into-outbox call (rpc:encode-message call request :auto))
  (setf (wire-call-send-closed call) last))

(defun submit-call (call)
  "Hand CALL to its loop; if that has just stopped, since the channel was closed, end CALL."
  (loop:enter-call (wire-call-loop call) (client-call-unattended call))
  (unless (rpc:wire-post call (lambda ()
                                (rpc:start-deadline call)
                                (submit (client-call-subchannel call) call)))
    (end-client-call call :cancelled "the channel was closed" :ended-by :local :sent nil)))

(defun submit-and-wait (call generator)
  "Submit CALL, send what GENERATOR gives if there is one, and wait for the end of CALL. If this is left
otherwise, at whatever moment, cancel CALL."
  (sb-sys:without-interrupts
    (submit-call call)
    (unwind-protect
         (sb-sys:with-local-interrupts
           (when generator (send-requests call generator))
           (rpc:wait-for-call call #'never))
      (client-leave call))))

(defun fail-or-retry (call channel method request options)
  "Signal the RPC-ERROR of CALL, which these arguments of INVOKE have led to; with the restart
RETRY-CALL return what another call returns."
  (restart-case (error (rpc:call-condition call))
    (rpc:retry-call ()
      :report "Make the call again."
      (apply #'rpc:invoke channel method request options))))

(defun reply-of (call)
  "Return the reply of CALL, which answers once and has ended, and CALL, or signal its RPC-ERROR."
  (unless (eq :ok (call-status call)) (error (rpc:call-condition call)))
  (values (let ((reply (shiftf (client-call-reply call) nil)))
            (if reply (rpc:wire-decode call reply 0 0) (rpc:pop-incoming call)))
          call))

(defun never (call)
  "What a waiter waits for who waits for the end of CALL."
  (declare (ignore call))
  nil)

;;; Streams of requests

(defun request-generator (request)
  "A function that returns the messages of REQUEST one by one, then nil."
  (typecase request
    (function request)
    (list (lambda () (pop request)))
    (vector (let ((at 0))
              (lambda () (when (< at (length request))
                           (prog1 (aref request at) (incf at))))))
    (t (misuse "A stream of requests is a sequence, a generator function or :open, not ~S." request))))

(defun send-requests (call generator)
  "Send what GENERATOR gives, as this thread and the peer can, then close. Stops if CALL ends; an
error in GENERATOR cancels CALL."
  (declare (type function generator))
  (let ((done nil))
    (unwind-protect
         (handler-case
             (loop for message = (funcall generator)
                   while (and message (rpc:send call message))
                   finally (setf done t))
           ;; how the call ended is for REPLY-OF to say
           (rpc:rpc-error (error) (if (call-status call) (setf done t) (error error))))
      (unless done (client-leave call))))
  (rpc:close-send call))

(defun pump-requests (call generator)
  "Have the loop send what GENERATOR gives as the peer takes it, then close."
  (declare (type function generator))
  (let ((next nil))
    (labels ((pump ()
               (loop
                 (when (call-status call) (return))
                 (setf next (or next (funcall generator)))
                 (cond ((null next) (return (rpc:close-send call)))
                       ((rpc:try-send call next) (setf next nil))
                       (t (return))))))
      (rpc:on-writable call #'pump))))
