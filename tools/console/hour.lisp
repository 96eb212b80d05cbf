;;;; The last hour: every twelve seconds the console notes the counts and values of its metrics,
;;;; which is called a look, even if the page has no viewers. So a viewer that comes after an
;;;; incident still sees it.
;;;;
;;;; The looks are kept in an update stream like that of viewers, with its own series. A lock guards
;;;; the hour, since threads of loops' reserves write it and the viewers' thread reads it. The event
;;;; :hello contains all looks as "hour", {"series": …, "frames": […]}, and each :frame contains the
;;;; new looks.

(in-package #:clgrpc.console)

(defconstant +look-seconds+ 12
  "The number of seconds between two looks. An update stream holds +UPDATES+ looks, the looks of an
hour.")

(defstruct (hour (:copier nil))
  "The looks of the last hour."
  (lock (sb-thread:make-mutex :name "clgrpc console hour") :read-only t) ; guards all slots below
  (update-stream (make-update-stream) :type update-stream :read-only t) ; the stream of updates
  (looks 0 :type index)                 ; how many looks there have been
  (told-looks 0 :type index)            ; the number of looks that viewers have got
  (told-series 0 :type index))          ; how many series viewers have

(declaim (sb-ext:freeze-type hour))

(define-printer (hour hour)
  "~D looks" (hour-looks hour))

(defun take-look (hour metrics now)
  "Add a reading of METRICS to HOUR. NOW is the time by the monotonic clock."
  (sb-thread:with-mutex ((hour-lock hour))
    (let ((update-stream (hour-update-stream hour)))
      (multiple-value-bind (counts values)
          (note-families update-stream (metrics:collect metrics :names (shown-instruments)))
        (keep-update update-stream (timed-members update-stream now
                                                  "counts" (json-list counts) "values" values))
        (incf (hour-looks hour))))
    nil))

(defun hour-object (hour looks series)
  "The JSON object with the last LOOKS looks of HOUR, and with its series whose numbers are SERIES
or higher. The caller must hold HOUR's lock."
  (let* ((update-stream (hour-update-stream hour))
         (updates (fifo-items (update-stream-updates update-stream))))
    (list (cons "series" (json-list (mapcar #'series-row (all-series update-stream :from series))))
          (cons "frames" (json-list (last updates looks))))))

(defun whole-hour (hour)
  "All of HOUR, for a viewer that has received nothing yet."
  (sb-thread:with-mutex ((hour-lock hour))
    (hour-object hour +updates+ 0)))

(defun hour-news (hour)
  "The part of HOUR that viewers do not have yet, or nil if they have everything."
  (sb-thread:with-mutex ((hour-lock hour))
    (let* ((looks (- (hour-looks hour) (shiftf (hour-told-looks hour) (hour-looks hour))))
           (count (hash-table-count (update-stream-series (hour-update-stream hour))))
           (series (shiftf (hour-told-series hour) count)))
      (and (plusp looks) (hour-object hour looks series)))))
