;;;; Gathering: who sends message after message from outside a loop that nobody runs does not write
;;;; each by itself. The first +SINGLE-SENDS+ of a burst leave at once; what follows them closely
;;;; stays in the output until there is enough of it, until somebody does anything else with the
;;;; loop (the sender waits, ends its side or begins a call; a timer is due; another thread comes),
;;;; or for +GATHERING-NS+. For those who send and then do something else for long a sweeper, a
;;;; thread of the reserve, looks as often as that; it comes with a burst and leaves after some
;;;; looks that found nothing.
;;;;
;;;; GATHERED-NS is since when output waits, or 0; the holder of the baton sets it, and only with it
;;;; gives up a loop that has output. SWEEPER is 1 while there is one, or about to be. No output is
;;;; forgotten: who gathers says so and then looks whether there is a sweeper; the sweeper says that
;;;; it leaves and then looks whether something has been gathered.

(in-package #:clgrpc.loop)

(defconstant +single-sends+ 4
  "So many messages in a row are written one by one.")
(defconstant +burst-gap-ns+ 50000
  "Who sends again after so long does not send in a row: one write each is cheap enough.")
(defconstant +gathering-ns+ 150000
  "Output waits for more no longer than this and what a thread takes to wake, some 50 µs.")
(defconstant +empty-looks+ 5
  "After so many looks in a row that found nothing gathered the sweeper leaves.")

(define-hot gather-p ((loop event-loop)) boolean
  "Note that this thread, which has just taken LOOP for that, has sent a message. Return true if it
may wait for those that are to follow."
  (let ((now (event-loop-now loop))
        (since (event-loop-gathered-ns loop)))
    (setf (event-loop-burst loop) (if (< (- now (event-loop-sent-ns loop)) +burst-gap-ns+)
                                      (1+ (event-loop-burst loop))
                                      0)
          (event-loop-sent-ns loop) now)
    (cond ((or (< (event-loop-burst loop) +single-sends+)
               (zerop (event-loop-dirty-count loop))
               (plusp (event-loop-ready-count loop))
               (plusp (event-loop-ring-count loop))
               (> (event-loop-calls loop) 1)
               (waited-for-p loop)
               (enough-gathered-p loop))
           nil)
          ((zerop since) (begin-gathering loop now))
          (t (< (- now since) +gathering-ns+)))))

(define-hot enough-gathered-p ((loop event-loop)) boolean
  (loop for i of-type index below (event-loop-dirty-count loop)
        thereis (let ((connection (svref (event-loop-dirty loop) i)))
                  (declare (type connection connection))
                  (>= (connection-unsent connection) +flush-octets+))))

(define-hot begin-gathering ((loop event-loop) (now nanoseconds)) boolean
  "Let the output of LOOP wait from NOW on, if there is somebody to send it in the end."
  (setf (event-loop-gathered-ns loop) now)
  (sb-thread:barrier (:memory))
  (or (plusp (event-loop-sweeper loop))
      (plusp (compare-and-swap (event-loop-sweeper loop) 0 1))
      (and (run-on-reserve (event-loop-reserve loop) (lambda () (sweep loop)) :if-busy :exceed) t)
      (progn                            ; the reserve is closed
        (setf (event-loop-sweeper loop) 0
              (event-loop-gathered-ns loop) 0)
        nil)))

(defun sweep (loop)
  "Send what is gathered on LOOP and has waited long enough, until nothing has been for a while."
  (let ((empty 0) (pause-ns +gathering-ns+))
    (declare (type fixnum empty))
    (loop until (await-stop loop (ns-seconds pause-ns))
          do (let* ((since (event-loop-gathered-ns loop))
                    (age (- (the nanoseconds (funcall (event-loop-clock loop))) since)))
               (setf pause-ns +gathering-ns+)
               (cond ((zerop since)
                      (when (and (> (incf empty) +empty-looks+) (leave-sweeping-p loop))
                        (return)))
                     (t (setf empty 0)
                        (if (< age +gathering-ns+)
                            (setf pause-ns (- +gathering-ns+ age))
                            (send-gathered loop))))))))

(defun leave-sweeping-p (loop)
  "True if the sweeper of LOOP, which this thread is, may leave."
  (setf (event-loop-sweeper loop) 0)
  (sb-thread:barrier (:memory))
  (or (zerop (event-loop-gathered-ns loop))
      ;; there may be another already
      (plusp (compare-and-swap (event-loop-sweeper loop) 0 1))))

(defun send-gathered (loop)
  "Send what is gathered on LOOP, unless somebody runs that and so does it himself."
  (with-taken-loop (loop (take loop))
    (run-aside loop (constantly nil) nil)))
