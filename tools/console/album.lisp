;;;; Which calls the console keeps to be looked at: the slowest of this minute and of the one
;;;; before, and the last that failed. There is an album for each loop, written with its baton held,
;;;; and one for the threads without a loop, written under a lock. Anybody reads: what is kept never
;;;; changes, and takes its place by one store.
;;;;
;;;; Most calls cost two comparisons. A call is looked at closely only if it is slower than the
;;;; fastest of the slow ones, which is so for some 16 × ln(n / 16) of a minute's n calls, or if it
;;;; fails, and then at most +FAILURES-PER-SECOND+ times.

(in-package #:clgrpc.console)

(defconstant +slow-calls+ 16 "How many slow calls of a minute an album keeps.")
(defconstant +failed-calls+ 32 "How many failed calls an album keeps.")
(defconstant +failures-per-second+ 10 "How many failed calls an album takes in a second.")
(defconstant +minute-ns+ 60000000000 "How long the slowest calls are collected together.")

(defstruct (kept (:constructor make-kept (number unix-ns ns plist)) (:copier nil))
  "A call that has ended, to be looked at."
  (number 0 :type (unsigned-byte 62) :read-only t) ; later calls of the process have higher ones
  (unix-ns 0 :type (unsigned-byte 62) :read-only t) ; when it ended
  (ns 0 :type (unsigned-byte 62) :read-only t) ; how long it took
  (plist '() :type list :read-only t))  ; as LOGS:CALL-PLIST returns it

(defun empty-places (count)
  (make-array count :initial-element nil))

(defstruct (album (:copier nil))
  "Calls of one loop, or of the threads without one, that are kept."
  ;; true of the album of threads without a loop
  (lock nil :type (or null sb-thread:mutex) :read-only t)
  (slow (empty-places +slow-calls+) :type simple-vector) ; KEPTs or nil, of this minute, in no order
  (before (empty-places +slow-calls+) :type simple-vector) ; what SLOW was a minute ago
  (least-ns 0 :type (unsigned-byte 62)) ; a call must take longer to be among the slow ones
  (turn-ns 0 :type (unsigned-byte 62))  ; when the minute is over, by the loop's clock
  (failed (empty-places +failed-calls+) :type simple-vector :read-only t) ; KEPTs or nil, a ring
  (next 0 :type index)                  ; the place in FAILED of the next
  (second-ns 0 :type (unsigned-byte 62)) ; when the second of COUNT is over
  (count 0 :type index))                ; how many failed calls were taken in it

(declaim (sb-ext:freeze-type kept album))

(defmethod print-object ((kept kept) stream)
  (print-unreadable-object (kept stream :type t)
    (format stream "~D ~A ~,3F s" (kept-number kept) (getf (kept-plist kept) :method)
            (ns-seconds (kept-ns kept)))))

(defmethod print-object ((album album) stream)
  (print-unreadable-object (album stream :type t)
    (format stream "~D calls" (length (album-calls album)))))

(declaim (type (simple-array sb-ext:word (1)) **numbered**))
(define-load-time-global **numbered**   ; how many calls have been kept; atomic
    (make-array 1 :element-type 'sb-ext:word :initial-element 0))

(defun keep-call (call ns describe)
  "A KEPT of CALL, which has taken NS and which DESCRIBE, a function, turns into a plist."
  (prog1 (make-kept (1+ (sb-ext:atomic-incf (aref **numbered** 0))) (real-time-ns) ns
                    (funcall (the function describe) call))
    ;; what readers find is whole
    (sb-thread:barrier (:write))))

(defun turn-page (album now)
  "A minute of ALBUM is over NOW."
  (setf (album-before album) (album-slow album)
        (album-slow album) (empty-places +slow-calls+)
        (album-least-ns album) 0
        (album-turn-ns album) (+ now +minute-ns+)))

(defun kept-or-zero (place)
  (if place (kept-ns place) 0))

(defun keep-slow (album call ns describe)
  "Keep CALL, which took NS, in ALBUM in the place of the fastest of the slow ones."
  (let* ((slow (album-slow album))
         (place (position (reduce #'min slow :key #'kept-or-zero) slow :key #'kept-or-zero)))
    (setf (svref slow place) (keep-call call ns describe)
          (album-least-ns album) (reduce #'min slow :key #'kept-or-zero))))

(defun keep-failed (album call ns now describe)
  "Keep CALL, which took NS and has failed, in ALBUM, unless many have within this second."
  (when (>= now (album-second-ns album))
    (setf (album-second-ns album) (+ now +ns-per-second+)
          (album-count album) 0))
  (when (< (album-count album) +failures-per-second+)
    (incf (album-count album))
    (setf (svref (album-failed album) (album-next album)) (keep-call call ns describe)
          (album-next album) (mod (1+ (album-next album)) +failed-calls+))))

(define-hot note-call ((album album) call (ok boolean) (ns (unsigned-byte 62))
                       (now (unsigned-byte 62)) (describe function))
    null
  "Keep CALL in ALBUM if it is worth that. It has taken NS and is OK or has failed; NOW is the time
of ALBUM's loop. DESCRIBE returns what is to be known of it."
  (when (>= now (album-turn-ns album)) (turn-page album now))
  (cond ((not ok) (keep-failed album call ns now describe))
        ((> ns (album-least-ns album)) (keep-slow album call ns describe)))
  nil)

(defun album-calls (album)
  "The calls that ALBUM has, a list of KEPTs, in no order. From any thread."
  (remove nil (concatenate 'list (album-slow album) (album-before album) (album-failed album))))
