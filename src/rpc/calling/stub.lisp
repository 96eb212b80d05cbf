;;;; What the stubs of all channels share: the options of a call, its requests, and its error, with
;;;; the restart that makes the call again.
;;;;
;;;; A stream of requests is sent by the thread that has called the stub (SEND-REQUESTS), or by the
;;;; loop as the peer takes it, while that thread receives (PUMP-REQUESTS).

(in-package #:clgrpc.calling)

(define-hot check-call-options ((options list)) null
  "Signal MISUSE if the plist OPTIONS has a keyword that stubs do not take."
  (let ((known '(:timeout :deadline :metadata :wait-for-ready :call-credentials :compression
                 :authority :max-send-octets :max-receive-octets :values)))
    (loop for name in options by #'cddr
          unless (or (member name known)
                     (eq name :async))  ; of CALL-ASYNC
            do (misuse "A stub takes no ~S, but~{ ~(~S~)~^,~}." name known)))
  nil)

(defun begin-values (call plist)
  "Give CALL, a new one, the values of PLIST, which its stub has got by :values."
  (unless (and (listp plist) (evenp (length plist)))
    (misuse ":values is a list of symbols and values by turns, not ~S." plist))
  ;; of a key that is there twice the first counts
  (loop for (value key) on (reverse plist) by #'cddr
        do (setf (call-value call key) value)))

(defun check-authority (authority)
  "Return AUTHORITY, which is to be the :authority of calls. Signal MISUSE if it has characters that
it cannot have (RFC 3986)."
  (unless (and (stringp authority)
               (plusp (length authority))
               (every (lambda (character) (char< #\Space character #\Rubout)) authority))
    (misuse "~S cannot be the :authority of calls, which is ASCII without spaces; a name in ~
             another alphabet has a form in it, xn--…" authority))
  authority)

(defun authority-host (authority)
  "The host that AUTHORITY, a text HOST, HOST:PORT or [ADDRESS]:PORT, names (RFC 3986 section
3.2)."
  (let ((bracket (position #\] authority)))
    (if (and bracket (char= #\[ (char authority 0)))
        (subseq authority 1 bracket)
        (subseq authority 0 (position #\: authority)))))

(defun begin-intent (call authority max-send-octets max-receive-octets)
  "Note what the stub of CALL, a new one, was told: the :authority of its requests, and how many
octets a request and a response may have, each nil for what the channel says."
  (flet ((limit (name value)
           (unless (typep value '(integer 0 2147483647))
             (misuse "~S is a number of octets up to 2147483647, not ~S." name value))
           value))
    (let ((intent (ensure-intent call)))
      (when authority (setf (intent-authority intent) (check-authority authority)))
      (when max-send-octets
        (setf (intent-send-limit intent) (limit :max-send-octets max-send-octets)))
      (when max-receive-octets
        (setf (intent-receive-limit intent)
              (limit :max-receive-octets max-receive-octets))))))

(defconstant +least-deadline-ns+ (* 10 +ns-per-second+)
  "A smaller number, less than ten seconds after the machine's start, is not a deadline: it is a
time in seconds, since 1900 or 1970, given by mistake.")

(defun absolute-deadline (timeout deadline now)
  "The deadline of a new call: the earliest of TIMEOUT, seconds from NOW or nil, of DEADLINE,
absolute nanoseconds or nil, and of the current call's. NOW matters only if one of these is given."
  (unless (typep timeout '(or null (real 0))) (misuse "TIMEOUT is seconds, not ~S." timeout))
  (unless (typep deadline '(or null deadline))
    (misuse "DEADLINE is nanoseconds of the monotonic clock, not ~S." deadline))
  (when (and deadline (< 0 deadline +least-deadline-ns+ now))
    (misuse "DEADLINE is nanoseconds of the monotonic clock, such as CALL-DEADLINE returns; ~D ~
             looks like seconds of a calendar, and :timeout takes how many from now." deadline))
  (earlier-deadline (earlier-deadline (or deadline 0)
                                      (if timeout
                                          (deadline-in (max 1 (seconds-ns timeout)) now)
                                          0))
                    (if *call* (call-deadline *call*) 0)))

(define-hot (only-request :inline t) ((method rpc-method) request) t
  "REQUEST, if METHOD takes it."
  (check-message method (rpc-method-request-type method) request))

(defun fail-or-retry (call channel method request options)
  "Signal the RPC-ERROR of CALL, which was made with these arguments of INVOKE. If the restart
RETRY-CALL is chosen, make another call with them and return what that returns."
  (restart-case (error (call-condition call))
    (retry-call ()
      :report "Make the call again."
      (apply #'invoke channel method request options))))

;;; Streams of requests

(defun request-generator (request)
  "A function that returns the messages of REQUEST one by one, then nil."
  (typecase request
    (function request)
    (list (lambda () (pop request)))
    (vector (let ((at 0))
              (lambda () (when (< at (length request))
                           (prog1 (aref request at) (incf at))))))
    (t (misuse "A stream of requests is a sequence, a generator function or :open, not ~S."
               request))))

(defun send-requests (call generator)
  "Send the messages that GENERATOR gives from this thread, which waits while the peer does not take
them; then close our side. Stops if CALL ends. An error in GENERATOR cancels CALL."
  (declare (type function generator))
  (let ((done nil))
    (with-undoing (nil (unless done (operate leave call)))
      (handler-case
          (loop for message = (funcall generator)
                while (and message (send call message))
                finally (setf done t))
        ;; the stub signals how the call ended
        (rpc-error (error) (if (call-status call) (setf done t) (error error))))))
  (close-send call))

(defun pump-requests (call generator)
  "Have the loop send the messages that GENERATOR gives, as the peer takes them, and then close our
side."
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
