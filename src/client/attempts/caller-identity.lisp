;;;; The caller's identity: the call credentials of a call (credentials/call-credentials.lisp) are
;;;; asked before each of its attempts, including the first, retries, hedges and transparent
;;;; retries, so that an expired token is not sent again.
;;;;
;;;;   credentials that never wait     SUBMIT asks them on the loop. Mostly they answer at once, and
;;;;                                   the attempt begins in the same turn; otherwise it begins when
;;;;                                   they have answered
;;;;   functions, which may wait       the stub asks them in its caller's thread for the first
;;;;                                   attempt, a thread of the reserve for each further one
;;;;
;;;; An attempt sends the newest metadata that the credentials have given for its call. If they
;;;; fail, the attempt counts as one for which no server was found, and the policy of its method
;;;; decides the next step. A call whose attempt waits for credentials is in the table ASKING of its
;;;; core; it ends by its deadline, or with its channel. All but BEGIN-IDENTITY is on the loop.

(in-package #:clgrpc.client)

(defun ask-of (call credentials deliver)
  "Ask CREDENTIALS for CALL: see ASK-CREDENTIALS. Functions that may wait run on the reserve."
  (let ((core (client-call-core call)))
    (credentials:ask-credentials credentials core (call-rpc-method call)
                                 (hpack:field-value-string (authority-field call))
                                 (lambda (function)
                                   (let ((reserve (client-reserve (core-loop core))))
                                     (and reserve
                                          (loop:run-on-reserve reserve function :if-busy :insist))))
                                 deliver)))

(defun take-identity (call identity metadata)
  "Store METADATA, the last answer of CALL's credentials."
  (setf (caller-identity-awaited identity) nil
        (rpc:outgoing-metadata call)
        (append (caller-identity-metadata identity) metadata)))

(defun begin-identity (call channel credentials)
  "Give the attempts of CALL, a new call on CHANNEL, the metadata of CREDENTIALS. Signal
:unauthenticated if credentials must not be sent on CHANNEL, or the error of a function among
CREDENTIALS. In the caller's thread."
  (let ((waiting (nth-value 1 (credentials:check-credentials credentials channel)))
        (identity (make-caller-identity credentials (rpc:outgoing-metadata call))))
    (when waiting
      (take-identity call identity
                     (credentials-metadata channel credentials (call-rpc-method call)
                                           (hpack:field-value-string (authority-field call))))
      (setf (caller-identity-asked identity) t))
    (setf (client-parts-identity (ensure-client-parts call)) identity)))

;;; Waiting for an answer

(defun count-asking (call change)
  "Change the number of attempts of CALL that wait for its credentials by CHANGE."
  (let* ((asking (core-asking (client-call-core call)))
         (count (+ change (gethash call asking 0))))
    (if (plusp count)
        (setf (gethash call asking) count)
        (remhash call asking))))

(defun go-on-later (call identity metadata error taker)
  "Continue an attempt of CALL that has waited, as ASK-IDENTITY does, if CALL still needs one:
another attempt may have been answered. The service config may have arrived meanwhile."
  (declare (type function taker))
  (count-asking call -1)
  (when (wanted-p call)
    (guarding-call (call)
      (when (and (core-methods (client-call-core call)) (limit-time call))
        (wire:start-deadline call))
      (unless error (take-identity call identity metadata))
      (funcall taker call nil error))))

(defun ask-identity (call identity request taker)
  "Ask the credentials of CALL, which has IDENTITY. When they have answered, and CALL still needs
the attempt, call TAKER with CALL, its only REQUEST, and nil or the RPC-ERROR of the credentials.
REQUEST is nil for a stream, or if CALL keeps it by then. Credentials may answer at once, or later
on any thread."
  (declare (type function taker))
  (let ((stage (list :asking)) (answered-metadata '()) (answered-error nil)
        (core (client-call-core call)))
    (setf (caller-identity-awaited identity) t)
    (flet ((answer (metadata error)
             (setf answered-metadata metadata
                   answered-error error)
             (unless (eq :asking (compare-and-swap (car stage) :asking :answered))
               (loop:post (core-loop core)
                          (lambda () (go-on-later call identity metadata error taker))))))
      (ask-of call (caller-identity-credentials identity) #'answer))
    (cond ((eq :asking (car stage))
           (when request
             (setf (client-call-request call) (wire:encode-message call request nil)))
           (count-asking call 1)
           (unless (eq :asking (compare-and-swap (car stage) :asking :waiting))
             (go-on-later call identity answered-metadata answered-error taker)))
          (t (unless answered-error (take-identity call identity answered-metadata))
             (funcall taker call request answered-error))))
  nil)
