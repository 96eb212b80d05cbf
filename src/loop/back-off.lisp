;;;; Waiting between attempts that fail, as gRPC's document on connection back-off specifies. Each
;;;; wait is longer than the previous one, up to a limit. A part of each wait is random, so that
;;;; clients do not all connect at once when their server is back. Every kind of repeated attempt
;;;; waits by one of these structures:
;;;;
;;;;   BACK-OFF   of a channel, by its options; the wait is a timer on a loop
;;;;   PAUSES     of a thread, between two numbers of seconds; the thread waits as it does for
;;;;              anything else

(in-package #:clgrpc.loop)

(defstruct (back-off (:copier nil))
  "The length of the last wait between attempts, and the timer of the wait under way."
  (seconds 0 :type real)                ; the last wait without jitter; 0 at first
  (timer nil :type (or null timer)))    ; the timer of the wait under way

(document-functions
  make-back-off "Return a back-off whose next wait is the first and shortest wait."
  back-off-seconds "The length of the last wait of BACK-OFF in seconds, without jitter, or 0 before
the first wait."
  back-off-timer "The timer of BACK-OFF while it waits for the next attempt, or nil if it does not
wait.")

(define-printer (back-off back-off)
  "~,3F s~:[~; runs~]" (back-off-seconds back-off) (back-off-timer back-off))

(defun next-wait (back-off first most factor jitter random-state)
  "Return the number of seconds until the next attempt: FIRST, then FACTOR times as many after each
failure, at most MOST. A random part of this time, up to the fraction JITTER, is added or
subtracted."
  (let* ((base (if (zerop (back-off-seconds back-off))
                   first
                   (min (* (back-off-seconds back-off) factor) most)))
         (jitter (* base jitter)))
    (setf (back-off-seconds back-off) base)
    (max 0.001d0 (+ base (- (random (+ 1d-9 (* 2 jitter)) random-state) jitter)))))

(defun forget-failures (back-off)
  "Note that an attempt has succeeded: the next wait has the first length again."
  (setf (back-off-seconds back-off) 0))

;;; Of a channel

(defun next-back-off (back-off options random-state)
  "Return the number of seconds until the next attempt of a channel with OPTIONS."
  (next-wait back-off (options-backoff-initial-seconds options)
             (options-backoff-maximum-seconds options) (options-backoff-factor options)
             (options-backoff-jitter options) random-state))

(defun start-back-off (back-off loop options function &key (since-ns (read-clock loop)))
  "Call FUNCTION without arguments on LOOP when the next attempt is due, counted from SINCE-NS, the
beginning of the last attempt. Return the seconds between the two attempts. On LOOP."
  (let ((seconds (next-back-off back-off options (event-loop-random loop)))
        (timer (make-lasting-timer loop
                                   (lambda (back-off)
                                     (setf (back-off-timer back-off) nil)
                                     (funcall (the function function)))
                                   back-off)))
    (setf (back-off-timer back-off) timer)
    (start-timer loop timer (time-after (seconds-ns seconds) since-ns))
    seconds))

(defun stop-back-off (back-off loop)
  "Cancel the wait for the next attempt. On LOOP."
  (stop-timer loop (shiftf (back-off-timer back-off) nil)))

;;; Of a thread

(defconstant +pause-jitter+ 1/2
  "The maximum fraction by which a pause is made longer or shorter at random, so that a thousand
clients of a store that could not be reached do not all come back at once.")

(defstruct (pauses (:include back-off) (:constructor make-pauses (first most)) (:copier nil))
  "The waits of a thread between attempts, each twice as long as the one before."
  (first 1/20 :type (real (0)) :read-only t) ; the pause after one failure, in seconds
  (most 2 :type (real (0)) :read-only t) ; the seconds after many; FIRST if all are alike
  (random nil :type (or null random-state))) ; the thread's own, from the first failure on

(document-functions
  make-pauses "Return the PAUSES of a thread: FIRST seconds after one failure, at most MOST seconds
after many.")

(defun next-pause (pauses)
  "Return the number of seconds until the next attempt. Only the thread that owns PAUSES may call
this."
  (next-wait pauses (pauses-first pauses) (pauses-most pauses) 2 +pause-jitter+
             (or (pauses-random pauses)
                 (setf (pauses-random pauses) (new-random-state)))))
