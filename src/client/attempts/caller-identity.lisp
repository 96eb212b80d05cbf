;;;; The caller's identity: the call credentials of a call (credentials/call-credentials.lisp) are
;;;; asked before each of its attempts, including the first and transparent retries, so that an
;;;; expired token is not sent again.
;;;;
;;;;   credentials that never wait     SUBMIT asks them on the loop. Mostly the credentials answer
;;;;                                   at once, and the attempt begins in the same turn; otherwise
;;;;                                   it begins when they have answered
;;;;   functions, which may wait       the stub asks them in its caller's thread for the first
;;;;                                   attempt, a thread of the reserve for each further one
;;;;
;;;; An attempt sends the newest metadata that the credentials have given for its call. If the
;;;; credentials fail, the attempt counts as one for which no server was found, and the policy of
;;;; its method decides the next step. A call whose attempt waits for credentials is in the table
;;;; ASKING of its core; the call ends at its deadline, or with its channel. Credentials that have
;;;; not answered by then forget the call. A function that has not returned holds an IDENTITY-WAIT,
;;;; which drops its reference to the call when the call ends; otherwise the requests of very many
;;;; ended calls would fill the heap. All functions but BEGIN-IDENTITY are called on the loop.

(in-package #:clgrpc.client)

(defun ask-of (call credentials deliver)
  "Ask CREDENTIALS for CALL: see ASK-CREDENTIALS. Functions that may wait run on the reserve."
  (let ((core (client-call-core call)))
    (credentials:ask-credentials credentials core (call-rpc-method call)
                                 (hpack:field-value-string (authority-field call))
                                 (lambda (function)
                                   (when-let ((reserve (client-reserve (core-loop core))))
                                     (loop:run-on-reserve reserve function :if-busy :insist)))
                                 deliver)))

(defun take-identity (call identity metadata)
  "Add METADATA, the answer of CALL's credentials, to the metadata that CALL's next attempt sends."
  (setf (caller-identity-awaited identity) nil
        (rpc:outgoing-metadata call)
        (append (caller-identity-metadata identity) metadata)))

(defun begin-identity (call channel credentials)
  "Give the attempts of CALL, a new call on CHANNEL, the metadata of CREDENTIALS. Signal
:unauthenticated if CREDENTIALS must not be sent on CHANNEL. If a function is among CREDENTIALS, ask
them now, in the caller's thread, and signal their error, or :deadline-exceeded."
  (let ((waiting (nth-value 1 (credentials:check-credentials credentials channel)))
        (core (client-call-core call))
        (identity (make-caller-identity credentials (rpc:outgoing-metadata call))))
    (when waiting
      (when (zerop (client-call-born-ns call)) ; so that the functions' time counts
        (setf (client-call-born-ns call) (loop:read-clock (core-loop core))))
      (when (core-methods core) (limit-time call))
      (take-identity call identity
                     (credentials-metadata
                      channel credentials (call-rpc-method call)
                      :authority (hpack:field-value-string (authority-field call))
                      :remaining (lambda () (rpc:time-remaining call))))
      (setf (caller-identity-asked identity) t))
    (setf (client-parts-identity (ensure-client-parts call)) identity)))

;;; Waiting for an answer

(defun await-identity (wait)
  "Note that the call of WAIT, an IDENTITY-WAIT, waits for its credentials."
  (let ((call (identity-wait-call wait)))
    (push wait (gethash call (core-asking (client-call-core call))))))

(defun go-on-later (wait)
  "Continue the attempt of WAIT, an IDENTITY-WAIT that is over, as ASK-IDENTITY does, if its call
still needs the attempt. The call does not need it if another attempt has been answered. The service
config may have arrived meanwhile, with a timeout."
  (let ((call (identity-wait-call wait)) (error (identity-wait-error wait)))
    (when call                          ; else the call has ended
      (let ((asking (core-asking (client-call-core call))))
        (or (setf (gethash call asking) (remove wait (gethash call asking)))
            (remhash call asking)))
      (when (wanted-p call)
        (guarding-call (call)
          (when (and (core-methods (client-call-core call)) (limit-time call))
            (wire:start-deadline call))
          (unless error
            (take-identity call (client-parts-identity (ensure-client-parts call))
                           (identity-wait-metadata wait)))
          (funcall (identity-wait-taker wait) call nil error))))))

(defun tell-identity (wait loop metadata error)
  "Note that the credentials that were asked for WAIT have answered with METADATA or ERROR. On any
thread; LOOP is the loop of WAIT's call."
  (setf (identity-wait-metadata wait) metadata
        (identity-wait-error wait) error)
  (unless (eq :asking (compare-and-swap (identity-wait-stage wait) :asking :answered))
    (when (identity-wait-call wait)
      (loop:post loop (lambda () (go-on-later wait))))))

(defun ask-identity (call identity request taker)
  "Ask the credentials of CALL, which has IDENTITY. When the credentials have answered, and CALL
still needs the attempt, call TAKER with CALL, its only REQUEST, and nil or the RPC-ERROR of the
credentials. REQUEST is nil for a stream, or if CALL already keeps it. Credentials may answer at
once, or later on any thread."
  (declare (type function taker))
  (let ((wait (make-identity-wait call taker))
        (loop (core-loop (client-call-core call))))
    (setf (caller-identity-awaited identity) t)
    (setf (identity-wait-leave wait)
          (ask-of call (caller-identity-credentials identity)
                  (lambda (metadata error) (tell-identity wait loop metadata error))))
    (cond ((call-status call)           ; the credentials have ended the call
           (await-identity wait)
           (leave-credentials call))
          ((eq :asking (identity-wait-stage wait))
           (when request
             (setf (client-call-request call) (wire:encode-message call request nil)))
           (await-identity wait)
           (unless (eq :asking (compare-and-swap (identity-wait-stage wait) :asking :waiting))
             (go-on-later wait)))
          (t (let ((error (identity-wait-error wait)))
               (unless error (take-identity call identity (identity-wait-metadata wait)))
               (funcall taker call request error)))))
  nil)
