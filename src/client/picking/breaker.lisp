;;;; A circuit breaker, which keeps calls away from a server of which too many calls fail. While a
;;;; breaker is closed it counts calls and failures over a window of time. When it has counted
;;;; enough calls and too large a part of them has failed, it opens, and passes no calls for a
;;;; while. After that time the breaker is half open and passes one call at a time, until a call has
;;;; ended: after a success the breaker is closed, after a failure it is open again. A call counts
;;;; as a success once its answer has begun, since a stream may last for days. If a trial has no
;;;; answer within the time for which a breaker stays open, its later answer has no effect, and the
;;;; next call becomes the trial: a trial without a deadline, at a server that hangs, would last for
;;;; ever.
;;;;
;;;; The window is cut into parts, of which the oldest is dropped when a new one begins. So the
;;;; counts cover between nine tenths of a window's time and the whole of it.
;;;;
;;;; A cancelled call does not count. But if a later attempt of the call was answered, the server of
;;;; an earlier attempt has failed: that server had more time, and a server that hangs would
;;;; otherwise never be detected.
;;;;
;;;; Pure: time is an argument. guarded-picker.lisp decides which calls go to which server.

(in-package #:clgrpc.client)

(defconstant +window-parts+ 10)

(defstruct (breaker (:constructor make-breaker (options)) (:copier nil))
  "The circuit breaker of one subchannel."
  (options nil :type channel-options :read-only t) ; the channel's
  (state :closed :type (member :closed :open :half-open)) ; see above
  ;; while open: the time when it becomes half open; while half open: the time limit of the trial
  (until-ns 0 :type nanoseconds)
  (trial nil)                           ; while half open: the call that has passed, or nil
  (part 0 :type unsigned-byte)          ; the newest part of the window, counted from time 0
  ;; how many calls ended in each part, at its number modulo the count of parts
  (calls (make-array +window-parts+ :initial-element 0) :type simple-vector :read-only t)
  ;; for each tenth, how many of these calls had failed
  (failures (make-array +window-parts+ :initial-element 0) :type simple-vector :read-only t))

(declaim (sb-ext:freeze-type breaker))

(define-printer (breaker breaker)
  "~(~A~), ~D of ~D calls failed" (breaker-state breaker) (reduce #'+ (breaker-failures breaker))
  (reduce #'+ (breaker-calls breaker)))

(defun clear-window (breaker)
  "Forget the calls that BREAKER has counted."
  (fill (breaker-calls breaker) 0)
  (fill (breaker-failures breaker) 0))

(defun advance-window (breaker now)
  "Drop the parts of BREAKER's window that are too old at NOW."
  (let* ((part-ns (max 1 (floor (seconds-ns (options-breaker-window-seconds
                                             (breaker-options breaker)))
                                +window-parts+)))
         (part (floor now part-ns)))
    (loop for old from (1+ (breaker-part breaker)) to part
          repeat +window-parts+
          do (setf (svref (breaker-calls breaker) (mod old +window-parts+)) 0
                   (svref (breaker-failures breaker) (mod old +window-parts+)) 0))
    (when (> (- part (breaker-part breaker)) +window-parts+) (clear-window breaker))
    (setf (breaker-part breaker) (max part (breaker-part breaker)))))

(defun keep-away (breaker state trial now)
  "Put BREAKER into STATE with TRIAL, and let no other call pass for a while from NOW on."
  (setf (breaker-state breaker) state
        (breaker-trial breaker) trial
        (breaker-until-ns breaker)
        (+ now (seconds-ns (options-breaker-open-seconds (breaker-options breaker))))))

(defun open-breaker (breaker now)
  "Open BREAKER at NOW: no call passes until the time for which it stays open is over."
  (clear-window breaker)
  (keep-away breaker :open nil now))

(defun passes-p (breaker call calls now)
  "True if CALL may use BREAKER's server, which has CALLS calls under way, at NOW. A call that has
passed may pass again."
  (let ((most (options-breaker-max-calls (breaker-options breaker)))
        (trial (breaker-trial breaker)))
    (ecase (breaker-state breaker)
      (:closed (or (zerop most) (< calls most)))
      (:open (<= (breaker-until-ns breaker) now))
      (:half-open (or (null trial) (eq call trial) (<= (breaker-until-ns breaker) now))))))

(defun admit-to-breaker (breaker call calls now)
  "Nil if PASSES-P allows CALL to use BREAKER's server; if BREAKER is half open, CALL becomes the
trial. If the breaker refuses, return the reason, a text."
  (cond ((passes-p breaker call calls now)
         (unless (or (eq :closed (breaker-state breaker)) (eq call (breaker-trial breaker)))
           (keep-away breaker :half-open call now))
         nil)
        (t (ecase (breaker-state breaker)
             (:closed (format nil "it has ~D calls (breaker-max-calls)" calls))
             (:open "too many of its calls have failed (breaker-failure-percent)")
             (:half-open "too many of its calls have failed, and a trial call is under way")))))

(defun note-end (breaker call failed now)
  "Count an attempt of CALL on BREAKER's server that has ended at NOW. FAILED is true if that was
the server's fault. Return the new state of BREAKER if it has changed, else nil."
  (let ((before (breaker-state breaker))
        (options (breaker-options breaker)))
    (ecase before
      (:closed
       (advance-window breaker now)
       (let ((at (mod (breaker-part breaker) +window-parts+)))
         (incf (svref (breaker-calls breaker) at))
         (when failed (incf (svref (breaker-failures breaker) at))))
       (let ((calls (reduce #'+ (breaker-calls breaker))))
         (when (and failed
                    (plusp (options-breaker-failure-percent options))
                    (>= calls (options-breaker-min-calls options))
                    (>= (* 100 (reduce #'+ (breaker-failures breaker)))
                        (* calls (options-breaker-failure-percent options))))
           (open-breaker breaker now))))
      (:half-open
       (when (eq call (breaker-trial breaker))
         (cond (failed (open-breaker breaker now))
               (t (setf (breaker-state breaker) :closed
                        (breaker-trial breaker) nil)))))
      (:open nil))                      ; a call from before the breaker opened
    (let ((after (breaker-state breaker)))
      (and (not (eq before after)) after))))

(defun forget-trial (breaker call)
  "If CALL was the trial of BREAKER, let another call pass as a trial. CALL has ended without a
result, because it was not sent or was cancelled."
  (when (eq call (breaker-trial breaker)) (setf (breaker-trial breaker) nil)))
