;;;; The common code of the stubs of all channels: the options of a call, its requests, and its
;;;; error, with the restart that makes the call again.
;;;;
;;;; The thread that has called the stub sends a stream of requests; or the loop sends them as the
;;;; peer accepts them, while that thread receives.

(in-package #:clgrpc.calling)

(defun refuse-method (object)
  "Signal MISUSE, since INVOKE was given OBJECT, which is not a method."
  (misuse "INVOKE takes a method, such as the value of GENERIC-METHOD, not ~S.~@[ ~A~]" object
          (typecase object
            (null "POOL-METHOD returns nil where the pool has no such method.")
            (string (if (find #\/ object) "GENERIC-METHOD makes a method of a name." nil))
            ((or symbol function) (if (stub-method object) "Call the stub itself." nil)))))

(define-hot check-call-options ((method t) (options list)) null
  "Signal MISUSE if METHOD is no RPC-METHOD, or if the plist OPTIONS has a keyword that stubs do not
accept, or invalid call credentials."
  (unless (typep method 'rpc-method) (refuse-method method))
  (let ((known '(:timeout :deadline :metadata :wait-for-ready :call-credentials :compression
                 :authority :max-send-octets :max-receive-octets :values)))
    (loop for (name value) on options by #'cddr
          when (and (eq name :call-credentials) value)
            do (check-credentials value)
          unless (or (member name known)
                     (eq name :async))  ; of CALL-ASYNC
            do (misuse "A stub takes no ~S~@[ (is it :~A?)~], but~{ ~(~S~)~^,~}." name
                       (and (symbolp name)
                            (suggested-name (string-downcase name)
                                            (mapcar #'string-downcase known)))
                       known)))
  nil)

(defconstant +least-deadline-ns+ (* 10 +ns-per-second+)
  "The earliest valid deadline, in nanoseconds: ten seconds after the machine's start. A smaller
number is probably a time in seconds since 1900 or 1970, given by mistake.")

(define-hot (earlier-deadline :inline t) ((a deadline) (b deadline)) deadline
  "The earlier of two deadlines, each of which may be 0 for no deadline."
  (cond ((zerop a) b) ((zerop b) a) (t (min a b))))

(defun absolute-deadline (timeout deadline now)
  "The deadline of a new call: the earliest of TIMEOUT, seconds from NOW or nil, of DEADLINE,
absolute nanoseconds or nil, and of the current call's deadline. NOW is used only with TIMEOUT."
  (unless (typep timeout '(or null (real 0))) (misuse "TIMEOUT is seconds, not ~S." timeout))
  (unless (typep deadline '(or null deadline))
    (misuse "DEADLINE is nanoseconds of the monotonic clock, not ~S." deadline))
  (when (and deadline (< 0 deadline +least-deadline-ns+ now))
    (misuse "DEADLINE is nanoseconds of the monotonic clock, such as CALL-DEADLINE returns; ~D ~
             looks like seconds of a calendar. For seconds from now use :timeout." deadline))
  (earlier-deadline (earlier-deadline (or deadline 0)
                                      (if timeout
                                          (deadline-in (max 1 (seconds-ns timeout)) now)
                                          0))
                    (if *call* (call-deadline *call*) 0)))

(defun fail-or-retry (call channel method request options)
  "Signal the RPC-ERROR of CALL, which was made by INVOKE with these arguments. If the restart
RETRY-CALL is chosen, make another call with the same arguments and return its values."
  (restart-case (error (call-condition call))
    (retry-call ()
      :report "Make the call again."
      (apply #'invoke channel method request options))))

;;; Streams of requests

(defun check-requests (requests)
  "Signal MISUSE if REQUESTS, a sequence, has the element nil, which would end the stream."
  (when (if (listp requests)
            (and (list-length requests) ; a circular list has no length
                 (member nil requests :test #'eq)) ; quicker than POSITION
            (position nil requests))
    (misuse "A stream of requests is a sequence of messages; its element ~D is nil."
            (position nil requests))))

(defun request-generator (request)
  "A function that returns the messages of REQUEST one by one, then nil. Signal MISUSE if REQUEST
gives no messages."
  (when (typep request 'sequence) (check-requests request))
  (typecase request
    (function request)
    (list (lambda () (pop request)))
    (vector (let ((at 0))
              (lambda () (when (< at (length request))
                           (prog1 (aref request at) (incf at))))))
    (t (misuse "A stream of requests is a sequence, a generator function or :open, not ~S."
               request))))

(defun send-from-here (call generator)
  "See SEND-REQUESTS: this thread sends the messages, and waits while the peer does not accept
them."
  (declare (type function generator))
  (let ((done nil))
    (with-undoing (nil (unless done (operate leave call)))
      (handler-case
          (loop for message = (funcall generator)
                while (and message (send call message))
                finally (setf done t))
        ;; the stub signals the error of the call
        (rpc-error (error) (if (call-status call) (setf done t) (error error))))))
  (close-send call))

(defun send-from-loop (call generator)
  "See SEND-REQUESTS: CALL's loop sends the messages as the peer accepts them."
  (declare (type function generator))
  (let ((next nil))
    (labels ((pump ()
               (loop
                 (when (call-status call) (return))
                 (setf next (or next (funcall generator)))
                 (cond ((null next) (return (close-send call)))
                       ((try-send call next) (setf next nil))
                       (t (return))))))
      (on-writable call #'pump))))

(defun send-requests (call generator &key on-loop)
  "Send the messages of GENERATOR; then close this side of CALL. Stop if CALL ends. This thread
sends the messages, and waits while the peer does not accept them; an error in GENERATOR cancels
CALL. If ON-LOOP is true, CALL's loop sends the messages as the peer accepts them, and this function
returns at once."
  (if on-loop
      (send-from-loop call generator)
      (send-from-here call generator)))
