;;;; Attempts. The call object of a client is its first attempt. An attempt that follows a failed
;;;; one uses that object again, since nothing of the failed attempt is needed any more. An attempt
;;;; that runs beside another is an object of its own. It has nothing but a stream, on which no
;;;; answer has begun: the first attempt whose answer begins commits the call, which takes over that
;;;; stream (client/attempt.lisp); the streams of all other attempts are reset.
;;;;
;;;; The user of a stream is its call, or the attempt that the stream is of. An attempt that has
;;;; failed keeps its stream's place until that is closed.
;;;;
;;;; What is known of a call that is tried more than once is in its RETRIES, which it gets when that
;;;; is first likely; other calls have none.

(in-package #:clgrpc.wire)

(defstruct (attempt (:constructor make-attempt (call link stream number)) (:copier nil))
  "One try of a call beside another, until the call is committed; or one that is over."
  (call nil :type wire-call :read-only t) ; that it is one try of
  (link nil :type link :read-only t)    ; that its stream is on
  (stream nil :type http2:stream :read-only t) ; whose user it is
  (number 0 :type index :read-only t)   ; how many attempts came before it
  (status :cancelled :type symbol)      ; that it ended with, once it has
  (trailers #() :type simple-vector)    ; metadata that came with that
  (view nil)                            ; what interceptors know of it, see client/interceptor.lisp
  (began-ns 0 :type nanoseconds))       ; when it did, noted of calls that are observed

(declaim (sb-ext:freeze-type attempt))

(defmethod print-object ((attempt attempt) stream)
  (print-unreadable-object (attempt stream :type t)
    (format stream "~D of ~A on ~A" (1+ (attempt-number attempt))
            (call-path (attempt-call attempt)) (link-peer (attempt-link attempt)))))

(defstruct (retries (:copier nil))
  "What is known of a call that is tried more than once, or may be. On its loop."
  (policy nil)                          ; the retry or hedging policy of its method, or nil
  (limit 1 :type index)                 ; how many attempts that allows
  (issued 1 :type index)                ; attempts so far that count, those to come included
  (pending '() :type list)              ; the numbers of those that have been issued and wait
  (number 0 :type index)                ; that of the call's own attempt
  (others '() :type list)               ; attempts under way beside that, newest first
  (resent-ns nil :type (or null nanoseconds)) ; when a server had first not seen the call, and it
                                        ; was tried anew,
  (resent 0 :type index)                ; and how often that was
  (waits 0 :type index)                 ; back-offs since a server said how long to wait
  (timer nil :type (or null timer))     ; of the next attempt
  (over nil :type boolean)              ; no further attempt is to begin
  (last nil)                            ; how the last attempt that failed did so
  (kept-octets 0 :type index)           ; of the only request, charged to the channel's ledger
  (since-ns 0 :type nanoseconds)        ; when the call went on after its last failure
  (began-ns 0 :type nanoseconds)        ; when the call's own attempt began, if it is not the first
  (idle-ns 0 :type nanoseconds))        ; how long the call had no attempt, in all

(declaim (sb-ext:freeze-type retries))

(defmethod print-object ((retries retries) stream)
  (print-unreadable-object (retries stream :type t)
    (format stream "~D of ~D attempts" (retries-issued retries) (retries-limit retries))))

(define-hot (call-retries :inline t) ((call wire-call)) (or null retries)
  "The RETRIES of CALL, or nil."
  (let ((parts (call-wire-parts call)))
    (and parts (the (or null retries) (wire-parts-retries parts)))))

(defun ensure-retries (call)
  "The RETRIES of CALL, made now if there are none."
  (let ((parts (ensure-wire-parts call)))
    (or (wire-parts-retries parts)
        (setf (wire-parts-retries parts) (make-retries)))))

(define-hot (call-attempts :inline t) ((call wire-call)) list
  "The attempts of CALL that are under way beside its own, newest first."
  (let ((retries (call-retries call)))
    (if retries (retries-others retries) '())))

(defun forget-attempt (attempt)
  "Take ATTEMPT off its call's list: it is over, or the call has taken its stream over."
  (let ((retries (call-retries (attempt-call attempt))))
    (when retries
      (setf (retries-others retries) (remove attempt (retries-others retries))))))

(defun reset-attempt (attempt)
  "Nobody waits for ATTEMPT any more."
  (forget-attempt attempt)
  (let ((stream (attempt-stream attempt)))
    (when (http2:stream-open-p stream)
      (http2:reset-stream stream (if (http2:stream-receivable-p stream)
                                     http2:+cancel+
                                     http2:+no-error+)))))

(defun reset-attempts (call)
  "Reset the streams of all attempts of CALL but its own: CALL is committed or has ended."
  (mapc #'reset-attempt (call-attempts call)))

(defun commit-call (call)
  "Let CALL go on with its own attempt, and be tried no more, since it sends too much to be kept."
  (let ((retries (call-retries call)))
    (when retries
      (setf (retries-over retries) t)
      (reset-attempts call))))
