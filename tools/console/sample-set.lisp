;;;; The calls that the console keeps for display: the slowest of this minute and of the previous
;;;; one, two of each minute of the hour, and the last that failed. There is a sample set for each
;;;; loop, written with its baton held, and one for the threads without a loop, written under a
;;;; lock. Any thread reads: a kept call never changes, and takes its place by one write.
;;;;
;;;; Most calls cost two comparisons. Only two kinds of call cost more: a call that is slower than
;;;; the fastest of the slow ones, which is true of about 16 × ln(n / 16) of a minute's n calls; and
;;;; a call that has failed, at most +FAILURES-PER-SECOND+ times a second.

(in-package #:clgrpc.console)

(defconstant +slow-calls+ 16
  "The maximum number of slow calls of a minute that a sample set keeps.")
(defconstant +remembered-calls+ 120
  "The maximum number of slow calls of earlier minutes that a sample set remembers: those of the
last hour.")
(defconstant +remembered-a-minute+ 2 "The maximum number of these calls that belong to one minute.")
(defconstant +failed-calls+ 32 "The maximum number of failed calls that a sample set keeps.")
(defconstant +failures-per-second+ 10
  "The maximum number of failed calls that a sample set takes in a second.")
(defconstant +minute-ns+ 60000000000 "The time in which slow calls are collected before a new
collection begins.")

(defstruct (sample (:constructor make-sample (number unix-ns ns plist)) (:copier nil))
  "A call that has ended, kept for display."
  (number 0 :type (unsigned-byte 62) :read-only t) ; later calls of the process have higher numbers
  (unix-ns 0 :type (unsigned-byte 62) :read-only t) ; when it ended
  (ns 0 :type (unsigned-byte 62) :read-only t) ; how long the call took
  (plist '() :type list :read-only t))  ; a value of LOGS:CALL-PLIST

(defun empty-places (count)
  (make-array count :initial-element nil))

(defstruct (sample-set (:copier nil))
  "Calls of one loop, or of the threads without one, that are kept."
  ;; true of the sample set of threads without a loop
  (lock nil :type (or null sb-thread:mutex) :read-only t)
  (slow (empty-places +slow-calls+) :type simple-vector) ; SAMPLEs or nil, of this minute, unsorted
  (before (empty-places +slow-calls+) :type simple-vector) ; SAMPLEs or nil, of the last minute
  ;; the slowest calls of each minute before the last, a ring
  (remembered (empty-places +remembered-calls+) :type simple-vector :read-only t)
  (remembered-next 0 :type index)       ; the place in REMEMBERED of the next
  ;; a call must take longer than this to be among the slow calls
  (least-ns 0 :type (unsigned-byte 62))
  (turn-ns 0 :type (unsigned-byte 62))  ; the end of the minute, by the loop's clock
  (failed (empty-places +failed-calls+) :type simple-vector :read-only t) ; SAMPLEs or nil, a ring
  (next 0 :type index)                  ; the place in FAILED of the next
  (second-ns 0 :type (unsigned-byte 62)) ; the end of the second to which COUNT belongs
  (count 0 :type index))                ; how many failed calls were taken in this second

(declaim (sb-ext:freeze-type sample sample-set))

(define-printer (sample sample)
  "~D ~A ~,3F s" (sample-number sample) (getf (sample-plist sample) :method)
  (ns-seconds (sample-ns sample)))

(define-printer (sample-set sample-set)
  "~D calls" (length (sample-set-calls sample-set)))

(declaim (type (simple-array sb-ext:word (1)) **numbered**))
(define-load-time-global **numbered**   ; how many calls have been kept; atomic
    (make-array 1 :element-type 'sb-ext:word :initial-element 0))

(defun keep-call (call ns describe)
  "A SAMPLE of CALL, which took NS nanoseconds. DESCRIBE, a function, returns the plist about the
call."
  (prog1 (make-sample (1+ (sb-ext:atomic-incf (aref **numbered** 0))) (real-time-ns) ns
                      (funcall (the function describe) call))
    ;; so that a reader never finds an incomplete sample
    (sb-thread:barrier (:write))))

(defun remember-slowest (sample-set samples)
  "Remember in SAMPLE-SET the slowest of SAMPLES, a vector of SAMPLEs and nil."
  (let ((slowest (sort (remove nil samples) #'> :key #'sample-ns)))
    (loop for sample across slowest
          repeat +remembered-a-minute+
          do (setf (svref (sample-set-remembered sample-set)
                          (sample-set-remembered-next sample-set))
                   sample
                   (sample-set-remembered-next sample-set)
                   (mod (1+ (sample-set-remembered-next sample-set)) +remembered-calls+)))))

(defun turn-page (sample-set now)
  "Begin a new minute of SAMPLE-SET at NOW."
  (remember-slowest sample-set (sample-set-before sample-set))
  (setf (sample-set-before sample-set) (sample-set-slow sample-set)
        (sample-set-slow sample-set) (empty-places +slow-calls+)
        (sample-set-least-ns sample-set) 0
        (sample-set-turn-ns sample-set) (+ now +minute-ns+)))

(defun kept-or-zero (place)
  (if place (sample-ns place) 0))

(defun keep-slow (sample-set call ns describe)
  "Keep CALL, which took NS, in SAMPLE-SET, in place of the fastest of its slow calls."
  (let* ((slow (sample-set-slow sample-set))
         (place (position (reduce #'min slow :key #'kept-or-zero) slow :key #'kept-or-zero)))
    (setf (svref slow place) (keep-call call ns describe)
          (sample-set-least-ns sample-set) (reduce #'min slow :key #'kept-or-zero))))

(defun keep-failed (sample-set call ns now describe)
  "Keep CALL, which took NS and has failed, in SAMPLE-SET, unless SAMPLE-SET has taken enough failed
calls in this second."
  (when (>= now (sample-set-second-ns sample-set))
    (setf (sample-set-second-ns sample-set) (+ now +ns-per-second+)
          (sample-set-count sample-set) 0))
  (when (< (sample-set-count sample-set) +failures-per-second+)
    (incf (sample-set-count sample-set))
    (setf (svref (sample-set-failed sample-set) (sample-set-next sample-set))
          (keep-call call ns describe)
          (sample-set-next sample-set) (mod (1+ (sample-set-next sample-set)) +failed-calls+))))

(define-hot note-call ((sample-set sample-set) call (ok boolean) (ns (unsigned-byte 62))
                       (now (unsigned-byte 62)) (describe function))
    null
  "Keep CALL, which took NS, in SAMPLE-SET if it is slow or has failed. OK is true if CALL has not
failed; NOW is the time of SAMPLE-SET's loop. DESCRIBE, a function of CALL, returns a plist about
CALL."
  (when (>= now (sample-set-turn-ns sample-set)) (turn-page sample-set now))
  (cond ((not ok) (keep-failed sample-set call ns now describe))
        ((> ns (sample-set-least-ns sample-set)) (keep-slow sample-set call ns describe)))
  nil)

(defun sample-set-calls (sample-set)
  "The SAMPLEs of SAMPLE-SET, a list, in no order. From any thread."
  (remove nil (concatenate 'list (sample-set-slow sample-set) (sample-set-before sample-set)
                           (sample-set-remembered sample-set) (sample-set-failed sample-set))))
