;;;; A guard refuses calls of a channel before they are sent, if the channel's options limit calls
;;;; in flight, waiting calls or failures. A guard wraps the picker and checks each pick. A refused
;;;; call ends at once with :unavailable and the reason, even if it waits for ready, and is not
;;;; retried (gRFC A32).
;;;;
;;;; * max-concurrent-requests: how many calls of the channel are in flight. A call is in flight
;;;;   from the time when a server is first picked for it until it ends, however many attempts it
;;;;   makes (gRFC A105 explains why it counts before it has a stream). An observer tells the guard
;;;;   of the end of each call.
;;;; * A circuit breaker for each subchannel (breaker.lisp). If a breaker refuses a call the picker
;;;;   is asked again, as it may pick another server; if no breaker of a picked server admits the
;;;;   call, the call is refused.
;;;;
;;;; A channel without these limits has no guard, and its picker is the balancer's.

(in-package #:clgrpc.client)

(defun breakers-p (options)
  (plusp (max (options-breaker-max-calls options) (options-breaker-failure-percent options))))

(defun guard-wanted-p (options)
  (or (plusp (options-max-concurrent-requests options))
      (plusp (options-breaker-max-waiting options))
      (breakers-p options)))

(defconstant +picks-past-breakers+ 16
  "The maximum number of picks for a call if breakers refuse the picked servers.")

(defun refusal (control &rest arguments)
  "The pick for a refused call, with the reason that CONTROL and ARGUMENTS format."
  (make-failure (format nil "refused: ~?" control arguments) :unavailable t))

;;; Breakers

(defparameter *faults*
  '(:unavailable :deadline-exceeded :resource-exhausted :internal :unknown :data-loss)
  "The statuses of attempts that count as the server's fault.")

(defun cancelled-by-server-p (call)
  "True if CALL has ended with CANCELLED as the server's status."
  (and (eq :cancelled (call-status call))
       (eq :peer (status:rpc-error-ended-by (rpc:call-condition call)))))

(defun note-outcome (breaker call subchannel failed)
  "Count in BREAKER an attempt of CALL on SUBCHANNEL that has ended. FAILED is true if that was the
server's fault."
  (when-let ((new (note-end breaker call failed (core-now (subchannel-core subchannel)))))
    (log-event :warning :circuit-breaker :state new
                                         :target (core-name (subchannel-core subchannel))
                                         :address (server-text subchannel))))

(defun note-attempt (breaker call subchannel status)
  "Count in BREAKER an attempt of CALL on SUBCHANNEL that has ended with STATUS."
  (cond ((internal-call-p call))
        ((or (null status)
             (and (eq :cancelled status) (not (cancelled-by-server-p call))))
         (forget-trial breaker call))
        (t (note-outcome breaker call subchannel (and (member status *faults*) t)))))

(defun note-overtaken (call subchannel)
  "Count a failure of SUBCHANNEL: an attempt of CALL there has no answer and is about to be reset,
because an attempt that began later has an answer."
  (when (subchannel-breaker subchannel)
    (note-outcome (subchannel-breaker subchannel) call subchannel t)))

(defun ensure-breaker (subchannel)
  "The breaker of SUBCHANNEL, made now if it has none."
  (or (subchannel-breaker subchannel)
      (let ((breaker (make-breaker (core-options (subchannel-core subchannel)))))
        (add-listener subchannel
                      (lambda (call subchannel status trailers)
                        (declare (ignore trailers))
                        (note-attempt breaker call subchannel status)))
        (setf (subchannel-breaker subchannel) breaker))))

(defun answering-subchannel (call)
  "The subchannel whose server has begun to answer CALL, which has not ended; nil if no server has
begun to answer."
  (let ((stream (client-call-stream call)))
    (and stream
         (wire:marked-p call :answer)
         (attempt-subchannel (stream-attempt stream)))))

(defun trial-decided-p (breaker)
  "True if BREAKER has a trial that some server has begun to answer."
  (let ((trial (breaker-trial breaker)))
    (and trial (answering-subchannel trial) t)))

(defun decide-trial (breaker subchannel)
  "End the trial of BREAKER, SUBCHANNEL's breaker, for which TRIAL-DECIDED-P is true, although the
trial's call still runs. If SUBCHANNEL has answered the call, the trial has succeeded; if another
server has, the trial has no result."
  (let ((trial (breaker-trial breaker)))
    (if (eq subchannel (answering-subchannel trial))
        (note-outcome breaker trial subchannel nil)
        (forget-trial breaker trial))))

(defun breaker-passed-p (subchannel call)
  "True if SUBCHANNEL has no breaker, or CALL may pass it."
  (let ((breaker (subchannel-breaker subchannel)))
    (or (null breaker)
        (passes-p breaker call (subchannel-calls subchannel)
                  (core-now (subchannel-core subchannel)))
        (trial-decided-p breaker))))

(defun room-p (subchannel call)
  "True if SUBCHANNEL's breaker passes CALL, and SUBCHANNEL is likely to have a stream."
  (and (breaker-passed-p subchannel call)
       (spare-stream-p (subchannel-connection-set subchannel))))

(defun breaker-refusal (subchannel call)
  "Nil if CALL may use SUBCHANNEL, else the FAILURE of SUBCHANNEL's breaker."
  (when (breakers-p (core-options (subchannel-core subchannel)))
    (let ((breaker (ensure-breaker subchannel)))
      (when (trial-decided-p breaker) (decide-trial breaker subchannel))
      (let ((text (admit-to-breaker breaker call (subchannel-calls subchannel)
                                    (core-now (subchannel-core subchannel)))))
        (and text (refusal "~A: ~A" (server-text subchannel) text))))))

(defun pick-past-breakers (picker call)
  "Return the pick of PICKER, a subchannel or a PICKER, for CALL among the servers whose breakers
admit CALL. If no such server is found, return the FAILURE of the breaker that refused last."
  (loop with refusal = nil
        repeat (if (picker-p picker) +picks-past-breakers+ 1)
        do (let ((picked (if (picker-p picker) (funcall (picker-function picker) call) picker)))
             (unless (subchannel-p picked) (return (or refusal picked)))
             (setf refusal (breaker-refusal picked call))
             (unless refusal (return picked)))
        finally (return refusal)))

;;; The channel's calls

(defun tried-at-p (call subchannel)
  "True if an attempt of CALL has a stream of SUBCHANNEL."
  (map-own-streams (lambda (stream)
                     (when (eq call (attempt-call (stream-attempt stream)))
                       (return-from tried-at-p t)))
                   subchannel)
  nil)

(defun give-trial-back (subchannel call)
  "If CALL was the trial of SUBCHANNEL's breaker and has no stream there, let the breaker try the
next call; another attempt may have a stream elsewhere. Call this when CALL has ended, or when
another subchannel was picked for CALL after SUBCHANNEL. The breaker learns of a stream's end by its
listener."
  (let ((breaker (subchannel-breaker subchannel)))
    (when (and breaker
               (eq call (breaker-trial breaker))
               (not (tried-at-p call subchannel)))
      (forget-trial breaker call))))

(defun admit (core admitted picker call)
  "The pick of PICKER for CALL of CORE's channel, or a FAILURE if a limit refuses CALL. ADMITTED is
a table from calls in flight to the subchannels picked for them."
  (let ((most (options-max-concurrent-requests (core-options core))))
    (if (and (plusp most)
             (not (gethash call admitted))
             (>= (hash-table-count admitted) most))
        (refusal "~D calls are in flight (max-concurrent-requests)" most)
        (let ((picked (pick-past-breakers picker call)))
          (when (subchannel-p picked)
            (let ((before (shiftf (gethash call admitted) picked)))
              (when (and before (not (eq before picked))) (give-trial-back before call))))
          picked))))

(defun guarded-picker (core admitted picker)
  "A picker that checks each pick of PICKER by the guard of CORE's channel. ADMITTED has the
channel's calls in flight."
  (if (typep picker '(or subchannel picker))
      (new-picker (lambda (call) (admit core admitted picker call))
                  (format nil "guarded, ~A" (if (picker-p picker)
                                                (picker-text picker)
                                                (server-text picker)))
                  :choosy (and (picker-p picker) (picker-choosy picker))
                  :eager t
                  :again (lambda (subchannel call)
                           (or (breaker-refusal subchannel call) subchannel))
                  :waiting (lambda (queued-attempt) (refuse-to-wait core queued-attempt)))
      picker))

(defun dismiss-call (admitted call)
  "Remove CALL, which has ended, from the calls in flight."
  (when-let ((subchannel (gethash call admitted)))
    (remhash call admitted)
    (give-trial-back subchannel call)))

(defun add-guard (core)
  "Add a guard to CORE, which is new, if the channel's options require a guard. The guard gets the
ends of calls as a further observer."
  (when (guard-wanted-p (core-options core))
    (let ((admitted (make-hash-table :test #'eq)))
      (setf (core-picker-wrapper core) (lambda (picker) (guarded-picker core admitted picker))
            (core-observer core)
            (rpc:observer-for
             (list (rpc:make-observer :call-ended (lambda (call) (dismiss-call admitted call)))
                   (core-observer core)))))))

(defun refuse-to-wait (core queued-attempt)
  "If QUEUED-ATTEMPT, which has begun to wait, is one too many, remove it from its queue and return
the FAILURE for its call; else return nil. The limit applies to the calls that wait for one server,
and to all calls without a picked server."
  (let ((most (options-breaker-max-waiting (core-options core)))
        (server (queued-attempt-server queued-attempt)))
    (when (and (plusp most)
               (queued-p queued-attempt)
               (> (if server
                      (subchannel-waiting-count server)
                      (stream-queue-unpicked-count (core-stream-queue core)))
                  most))
      (leave-place queued-attempt)
      (refusal "~D calls wait for a stream~@[ of ~A~] (breaker-max-waiting)" most
               (and server (server-text server))))))
