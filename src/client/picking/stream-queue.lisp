;;;; The calls of a channel that wait for a stream. Each attempt of a call that finds no stream has
;;;; a QUEUED-ATTEMPT in one of these queues, by the event that it waits for:
;;;;
;;;;   STREAM-QUEUE-WAITING  a stream of any server, if the picker is not choosy: the pick is for
;;;;                         the oldest; while that finds no stream, no pick is made for the others
;;;;   SUBCHANNEL-WAITING    a stream of the server that a choosy picker has picked for it
;;;;   STREAM-QUEUE-PATIENT  another picker: the present one has no server for the call, or a
;;;;                         failure that does not end it
;;;;
;;;; So when a stream ends, only as many calls are examined as can get a stream. Only a new picker
;;;; examines all calls, in the order in which they came.
;;;;
;;;; A call refers to its first place, which refers to further ones (SIBLING), and leaves them when
;;;; it ends. All functions here take the same time for any number of calls that wait, except
;;;; WAITING-PLACES and its callers.

(in-package #:clgrpc.client)

(defstruct (queued-attempt (:include ring) (:constructor make-queued-attempt (call number taker))
                           (:copier nil))
  "The place of an attempt of a call in a queue of attempts that wait for a stream."
  (call nil :type client-call :read-only t) ; the call of the attempt
  (taker nil :type function :read-only t) ; the function that is called with the stream, see
                                          ; core.lisp
  (number 0 :type (unsigned-byte 62) :read-only t) ; how many calls came to the channel before
  (server nil :type (or null subchannel)) ; the attempt's last pick
  (sibling nil :type (or null queued-attempt))) ; another place of CALL

(declaim (sb-ext:freeze-type queued-attempt))

(define-printer (queued-attempt queued-attempt)
  "~D~@[ for ~A~]" (queued-attempt-number queued-attempt) (queued-attempt-server queued-attempt))

(defun choosy-p (core)
  "True if each pick of CORE's picker is for one call, so that waiting calls do not delay other
calls."
  (let ((picker (core-picker core)))
    (and (picker-p picker) (picker-choosy picker))))

(defun eager-p (core)
  "True if CORE picks for calls when they arrive, even while others wait, because each call is
placed independently of the others, or refused."
  (let ((picker (core-picker core)))
    (and (picker-p picker) (picker-eager picker))))

;;; Places in queues

(defun queued-p (queued-attempt)
  (not (eq queued-attempt (queued-attempt-after queued-attempt))))

(defun count-waiting (core server change)
  "Add CHANGE to the numbers of waiting calls: of CORE, and of SERVER, their pick, if not nil."
  (incf (stream-queue-count (core-stream-queue core)) change)
  (when (core-subchannel-pool core)
        (incf (subchannel-pool-waiting-count (core-subchannel-pool core)) change))
  (if server
      (incf (subchannel-waiting-count server) change)
      (incf (stream-queue-unpicked-count (core-stream-queue core)) change)))

(defun enter-queue (queued-attempt queue server)
  "Put QUEUED-ATTEMPT, which is in no queue, at the end of QUEUE. SERVER was picked for its call; it
is nil if none was."
  (let* ((core (client-call-core (queued-attempt-call queued-attempt)))
         (stream-queue (core-stream-queue core)))
    (setf (queued-attempt-server queued-attempt) server)
    (count-waiting core server 1)
    (unless (eq queue (stream-queue-waiting stream-queue))
      (setf (stream-queue-scattered stream-queue) t))
    (enter-ring queued-attempt queue)))

(defun quit-queue (queued-attempt)
  (quit-ring queued-attempt)
  (count-waiting (client-call-core (queued-attempt-call queued-attempt))
                 (shiftf (queued-attempt-server queued-attempt) nil) -1))

(defun queue-for (core picked)
  "The queue for a call of CORE for which PICKED was picked."
  (cond ((failure-p picked) (stream-queue-patient (core-stream-queue core)))
        ((not (choosy-p core)) (stream-queue-waiting (core-stream-queue core)))
        ((subchannel-p picked) (subchannel-waiting picked))
        (t (stream-queue-patient (core-stream-queue core)))))

(defun move-place (queued-attempt picked)
  "Move QUEUED-ATTEMPT, which waits for any stream, to the queue for PICKED, its new pick; it may be
the same queue."
  (let* ((core (client-call-core (queued-attempt-call queued-attempt)))
         (queue (queue-for core picked))
         (server (and (subchannel-p picked) picked)))
    (cond ((eq queue (stream-queue-waiting (core-stream-queue core)))
           (count-waiting core (shiftf (queued-attempt-server queued-attempt) server) -1)
           (count-waiting core server 1))
          (t (quit-queue queued-attempt)
             (enter-queue queued-attempt queue server)))))

;;; Places of calls

(defun add-queued-attempt (call picked taker)
  "Give CALL, for which PICKED was picked, a new place for TAKER, and return the place."
  (let* ((parts (ensure-client-parts call))
         (core (client-call-core call))
         (stream-queue (core-stream-queue core))
         (queued-attempt (isolate-ring (make-queued-attempt
                                        call (stream-queue-next-number stream-queue) taker))))
    (incf (stream-queue-next-number stream-queue))
    (setf (queued-attempt-sibling queued-attempt) (client-parts-queued-attempt parts)
          (client-parts-queued-attempt parts) queued-attempt)
    (enter-queue queued-attempt (queue-for core picked) (and (subchannel-p picked) picked))
    queued-attempt))

(defun leave-place (queued-attempt)
  "Remove QUEUED-ATTEMPT from its queue and its call."
  (let ((parts (ensure-client-parts (queued-attempt-call queued-attempt))))
    (quit-queue queued-attempt)
    (if (eq queued-attempt (client-parts-queued-attempt parts))
        (setf (client-parts-queued-attempt parts) (queued-attempt-sibling queued-attempt))
        (loop for other = (client-parts-queued-attempt parts) then (queued-attempt-sibling other)
              when (eq queued-attempt (queued-attempt-sibling other))
                do (setf (queued-attempt-sibling other) (queued-attempt-sibling queued-attempt))
                   (return)))
    nil))

(define-hot (leave-places :inline t) ((call client-call)) null
  "Remove all places of CALL, which has stopped waiting for streams."
  (let ((parts (call-client-parts call)))
    (loop while (and parts (client-parts-queued-attempt parts))
          do (leave-place (client-parts-queued-attempt parts)))
    nil))

;;; All that wait

(define-hot (waiting-p :inline t) ((core core)) boolean
  "True if calls of CORE wait for a stream."
  (plusp (stream-queue-count (core-stream-queue core))))

(defun waiting-places (core)
  "The places of CORE's calls, a list in the order in which they came."
  (if (stream-queue-scattered (core-stream-queue core))
      (sort (append (ring-list (stream-queue-waiting (core-stream-queue core)))
                    (ring-list (stream-queue-patient (core-stream-queue core)))
                    (loop for subchannel in (core-subchannels core)
                          nconc (ring-list (subchannel-waiting subchannel))))
            #'< :key #'queued-attempt-number)
      (ring-list (stream-queue-waiting (core-stream-queue core)))))

(defun waiting-calls (core)
  "The calls of CORE that wait for a stream, oldest first."
  (mapcar #'queued-attempt-call (waiting-places core)))

(defun gather-places (core)
  "Put all places of CORE back into one queue, in the order in which they came."
  (let ((stream-queue (core-stream-queue core)))
    (when (stream-queue-scattered stream-queue)
      (let ((queued-attempts (waiting-places core)))
        (mapc #'quit-queue queued-attempts)
        (dolist (queued-attempt queued-attempts)
          (enter-queue queued-attempt (stream-queue-waiting stream-queue) nil))
        (setf (stream-queue-scattered stream-queue) nil)))))

(defun release-places (subchannel)
  "Let the calls that wait for a stream of SUBCHANNEL, which is closed, wait for another picker."
  (loop with stream-queue = (core-stream-queue (subchannel-core subchannel))
        for queued-attempt = (ring-first (subchannel-waiting subchannel))
        while queued-attempt
        do (quit-queue queued-attempt)
           (enter-queue queued-attempt (stream-queue-patient stream-queue) nil)))
