;;;; Waiting between attempts that fail, as gRPC's document on connection back-off says: each wait
;;;; is longer than the one before, up to a limit, and random by a part of itself, so that the
;;;; clients of a server that comes back do not all come at once.

(in-package #:clgrpc.client)

(defstruct (back-off (:copier nil))
  "How long to wait before the next attempt, and the wait that is under way."
  (seconds 0 :type real)                ; what the last wait was derived from; 0 before the first
  (timer nil :type (or null timer)))    ; while somebody waits

(defmethod print-object ((back-off back-off) stream)
  (print-unreadable-object (back-off stream :type t)
    (format stream "~,3F s~:[~; runs~]" (back-off-seconds back-off) (back-off-timer back-off))))

(defun next-back-off (back-off options random-state)
  "The seconds until the next attempt, as OPTIONS say; each failure makes them more."
  (let* ((base (if (zerop (back-off-seconds back-off))
                   (options-backoff-initial-seconds options)
                   (min (* (back-off-seconds back-off) (options-backoff-factor options))
                        (options-backoff-maximum-seconds options))))
         (jitter (* base (options-backoff-jitter options))))
    (setf (back-off-seconds back-off) base)
    (max 0.001d0 (+ base (- (random (+ 1d-9 (* 2 jitter)) random-state) jitter)))))

(defun start-back-off (back-off loop options function &key (since-ns (loop:read-clock loop)))
  "Call FUNCTION without arguments on LOOP when the next attempt is due, which is counted from
SINCE-NS, when the last began; return the seconds between the two. On LOOP."
  (let ((seconds (next-back-off back-off options (loop:event-loop-random loop)))
        (timer (loop:make-lasting-timer
                loop
                (lambda (back-off)
                  (setf (back-off-timer back-off) nil)
                  (funcall (the function function)))
                back-off)))
    (setf (back-off-timer back-off) timer)
    (schedule-timer (loop:event-loop-wheel loop) timer
                    (+ since-ns (seconds-ns seconds)))
    seconds))

(defun stop-back-off (back-off loop)
  "Nobody waits for the next attempt any more. On LOOP."
  (let ((timer (shiftf (back-off-timer back-off) nil)))
    (when timer (cancel-timer (loop:event-loop-wheel loop) timer))))

(defun forget-failures (back-off)
  "An attempt was of use: the next wait is the first again."
  (setf (back-off-seconds back-off) 0))
