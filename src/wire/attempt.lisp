;;;; Attempts. A client's call is its first attempt, and those that follow one that has failed use
;;;; the same object, since nothing of the failed one is needed any more. Those that run beside
;;;; another are objects of their own. These have nothing but their stream, for nothing has come on
;;;; it: the attempt whose answer begins commits the call, which goes on with that stream as its own
;;;; (client/attempt.lisp); the streams of the others are reset.
;;;;
;;;; The user of a stream is its call, or the attempt that the stream is of.

(in-package #:clgrpc.wire)

(defstruct (attempt (:constructor make-attempt (call link stream)) (:copier nil))
  "One try of a call beside another, until the call is committed."
  (call nil :type wire-call :read-only t) ; that it is one try of
  (link nil :type link :read-only t)    ; that its stream is on
  (stream nil :type http2:stream :read-only t)) ; whose user it is

(declaim (sb-ext:freeze-type attempt))

(defmethod print-object ((attempt attempt) stream)
  (print-unreadable-object (attempt stream :type t)
    (format stream "of ~A on ~A" (call-path (attempt-call attempt))
            (link-peer (attempt-link attempt)))))

(define-hot (call-attempts :inline t) ((call wire-call)) list
  "The attempts of CALL that are under way beside its own, newest first."
  (let ((parts (call-wire-parts call)))
    (if parts (wire-parts-attempts parts) '())))

(defun forget-attempt (attempt)
  "ATTEMPT is over, or has become its call's own."
  (let ((parts (ensure-wire-parts (attempt-call attempt))))
    (setf (wire-parts-attempts parts) (remove attempt (wire-parts-attempts parts)))))

(defun reset-attempt (attempt)
  "Nobody waits for ATTEMPT any more."
  (forget-attempt attempt)
  (when (http2:stream-open-p (attempt-stream attempt))
    (http2:reset-stream (attempt-stream attempt) http2:+cancel+)))

(defun reset-attempts (call)
  "Of CALL its own attempt alone goes on, or none since it has ended."
  (mapc #'reset-attempt (call-attempts call)))
