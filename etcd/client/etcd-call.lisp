;;;; Calls of etcd. Each call has a deadline, until which it also waits for a member. A call that
;;;; only reads, or may be done twice, is repeated until its deadline, at any member that can be
;;;; reached. A call that writes is repeated only if it was refused, since it might otherwise be
;;;; done twice.
;;;;
;;;; Calls ask for a member that has a leader, unless the data of any member suffice. So a member
;;;; that is cut off from the others refuses calls at once, instead of letting them wait.
;;;;
;;;; If the client has a user, calls have a token in their metadata. The token is fetched by
;;;; Authenticate when it is first needed, and kept. etcd forgets a token that was not used for five
;;;; minutes, and all tokens when it is restarted; tokens of the kind jwt expire. After a change of
;;;; users and roles, etcd refuses older tokens. A call that was refused because of its token is
;;;; made again with a new token. This is not a repetition, since the refused call was not done.
;;;;
;;;; The threads of watches, leases and mirrors end at once on request, even while they wait for an
;;;; answer: each has a CANCELLATION-TOKEN, which refers to the call that it waits for.

(in-package #:clgrpc.etcd)

(defparameter *require-leader* '(("hasleader" . "true"))
  "Metadata that make a member without a leader end a stream, so that another member can be asked.")

(defconstant +first-repetition-seconds+ 1/20 "How long to wait before a call is made again.")
(defconstant +longest-repetition-seconds+ 1/4 "The longest pause, in seconds; pauses double each
time.")

;;; Cancellation tokens

(defstruct (cancellation-token (:copier nil))
  "The call or pause that a thread waits for, so that another thread can end it."
  (call nil)                            ; the call that the thread waits for now, or nil
  (over nil :type boolean)              ; the thread must not wait any more
  ;; guards both slots
  (lock (sb-thread:make-mutex :name "clgrpc etcd cancellation token") :read-only t)
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc etcd cancellation token")
             :read-only t)) ; OVER is true

(declaim (sb-ext:freeze-type cancellation-token))

(defvar *cancellation-token* nil
        "The cancellation token of this thread while it makes calls of its own, else nil.")

(defun set-cancellation-token (call)
  "Note that this thread waits for CALL or, if CALL is nil, for no call. Cancel CALL if the thread
must stop waiting."
  (when (and *cancellation-token*
             (sb-thread:with-mutex ((cancellation-token-lock *cancellation-token*))
               (setf (cancellation-token-call *cancellation-token*) call)
               (cancellation-token-over *cancellation-token*))
             call)
    (rpc:cancel call)))

(defun end-cancellation-token (cancellation-token)
  "Cancel the present call of CANCELLATION-TOKEN's thread, and its later ones. From any thread."
  (let ((call (sb-thread:with-mutex ((cancellation-token-lock cancellation-token))
                (setf (cancellation-token-over cancellation-token) t)
                (sb-thread:condition-broadcast (cancellation-token-waitqueue cancellation-token))
                (cancellation-token-call cancellation-token))))
    (when call (rpc:cancel call))))

(defmacro with-cancellation-token ((cancellation-token) &body body)
  "Evaluate BODY, which calls no function of the user; END-CANCELLATION-TOKEN ends its waits."
  `(let ((*cancellation-token* ,cancellation-token)) ,@body))

(defun pause-cancellation-token (end-ns)
  "Wait until END-NS. Return false if this thread must stop waiting."
  (let ((cancellation-token (or *cancellation-token* (make-cancellation-token))))
    (not (loop:await-until (cancellation-token-waitqueue cancellation-token)
                           (cancellation-token-lock cancellation-token) end-ns
                           (lambda () (cancellation-token-over cancellation-token))))))

(defun call-again (end-ns twice function)
  "Call FUNCTION, which makes a call, and return its values. Until END-NS repeat the call while it
signals UNAVAILABLE. If TWICE is false, repeat it only if a member has refused it, since the call
must not be done twice."
  (declare (type function function))
  (let ((pauses nil))
    (loop
      (handler-case (return (funcall function))
        (unavailable (error)
          (unless pauses
            (setf pauses (loop:make-pauses +first-repetition-seconds+
                                           +longest-repetition-seconds+)))
          (let ((next (loop:notice-end (loop:next-pause pauses))))
            (unless (and (or twice (refused-p error))
                         (typep (etcd-error-cause error) 'status:rpc-error)
                         (< next end-ns)
                         (pause-cancellation-token next))
              (error error))))))))

(defun call-stub (etcd stub request seconds metadata)
  "The answer of STUB, of a unary method, to REQUEST within SECONDS."
  (declare (type function stub))
  (flet ((make-call (caller)
           (declare (type function caller))
           (funcall caller (etcd-channel etcd) request
                    :timeout seconds :metadata metadata :wait-for-ready t)))
    (if (null *cancellation-token*)
        (make-call stub)
        (let ((call (make-call (lambda (&rest arguments)
                                 (apply #'calling:call-async stub arguments)))))
          (set-cancellation-token call)
          (unwind-protect (loop:await call)
            (set-cancellation-token nil))))))

;;; Tokens

(defparameter *stale-token-texts*
  '("invalid auth token" "revision of auth store is old" "user name is empty")
  "Parts of etcd's messages about a call that was refused because of its token.")

(defun stale-token-p (condition)
  "True if CONDITION, an ETCD-ERROR, says that a new token may help."
  (some (lambda (text) (search text (etcd-error-text condition))) *stale-token-texts*))

(defun authenticate (etcd password end-ns)
  "Fetch a token of ETCD's user by PASSWORD, until END-NS. The token is empty if etcd does not
require one."
  (note etcd #'meter-tokens)
  (handler-case
      (call-again end-ns t
                  (lambda ()
                    (with-etcd-errors
                      (pb:authenticate-response-token
                       (call-stub etcd #'auth:authenticate
                                  (pb:make-authenticate-request :name (etcd-user etcd)
                                                                :password password)
                                  (loop:seconds-until end-ns) *require-leader*)))))
    (not-ready (error)
      (if (search "authentication is not enabled" (etcd-error-text error))
          (make-string 0)               ; a new string, not EQ to the previous one
          (error error)))))

(defun current-password (etcd)
  "The password of ETCD's user. Signal UNAVAILABLE if the function that returns it fails: the next
call may succeed."
  (let ((secret (etcd-password etcd)) (*cancellation-token* nil))
    (if (stringp secret)
        secret
        (handler-case (let ((password (funcall (the function secret))))
                        (check-type password string)
                        password)
          (error (condition)
            (error 'unavailable :cause condition
                                :text (format nil "cannot get the password of ~A: ~A"
                                              (etcd-user etcd) (bounded-text condition))))))))

(defun renew-token (etcd old end-ns)
  "Return a token of ETCD's user that is not OLD. The first thread that needs a token fetches it,
until END-NS; other threads wait for that thread."
  ;; the user's function for the password is called before the lock is taken
  (let ((password (current-password etcd)))
    (or (sb-thread:with-mutex ((etcd-token-lock etcd) :timeout (loop:seconds-until end-ns))
          (if (eq old (etcd-token etcd))
              (setf (etcd-token etcd) (authenticate etcd password end-ns))
              (etcd-token etcd)))
        (error 'unavailable :text "no token has arrived in time"))))

(defun current-token (etcd end-ns)
  "A token of ETCD's user, or nil if ETCD has no user; a new one is fetched until END-NS."
  (and (etcd-user etcd)
       (or (etcd-token etcd) (renew-token etcd nil end-ns))))

(defun token-metadata (token)
  (if (plusp (length token))
      (list (cons "token" token))
      '()))

;;; Calls

(defmacro while-open ((etcd) &body body)
  "Evaluate BODY, a call of ETCD, and signal an ETCD-ERROR for its errors; UNAVAILABLE if ETCD is
closed."
  `(handler-bind ((misuse (lambda (misuse)
                            (declare (ignore misuse))
                            (when (etcd-closed ,etcd)
                              (error 'unavailable :text "the client of etcd is closed")))))
     (with-etcd-errors ,@body)))

(defun call-etcd (etcd timeout function)
  "Call FUNCTION with two arguments: the seconds that it may take, which are TIMEOUT or, if that is
nil, the timeout of ETCD; and the metadata that authenticate ETCD's user. If etcd requires a new
token, call FUNCTION once more. Return the first value of FUNCTION. Signal an ETCD-ERROR."
  (declare (type function function))
  (let ((end (loop:notice-end (or timeout (etcd-timeout etcd)))))
    (flet ((attempt (token)
             (while-open (etcd)
               (values (funcall function (loop:seconds-until end) (token-metadata token))))))
      (if (null (etcd-user etcd))
          (attempt nil)
          (let ((token (while-open (etcd) (current-token etcd end))))
            (handler-case (attempt token)
              (etcd-error (error)
                (if (stale-token-p error)
                    (attempt (while-open (etcd) (renew-token etcd token end)))
                    (error error)))))))))

(defun ask (etcd stub request timeout &key twice (leader t))
  "The answer of STUB, of a unary method, to REQUEST; see CALL-ETCD. TWICE is as for CALL-AGAIN. If
LEADER is true, a member without a leader refuses the request."
  (let ((end (loop:notice-end (or timeout (etcd-timeout etcd)))))
    (call-again end twice
                (lambda ()
                  (call-etcd etcd (loop:seconds-until end)
                             (lambda (seconds metadata)
                               (call-stub etcd stub request seconds
                                          (if leader
                                              (append *require-leader* metadata)
                                              metadata))))))))

(define-keyword-function reach (etcd &key timeout)
  "Wait until a member of ETCD is connected, for at most TIMEOUT seconds or, if that is nil, the
timeout of ETCD. Signal UNAVAILABLE, with the reason, as soon as a first attempt to connect has
failed, although further attempts follow. From any thread."
  (with-etcd-errors
    (calling:ensure-connected (etcd-channel etcd) :timeout (or timeout (etcd-timeout etcd))))
  nil)
