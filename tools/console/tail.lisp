;;;; The log's tail: the last events, as text, for the console. Values become text when they are
;;;; logged, since they may change or hold much memory; how long they may get, and how many events a
;;;; second are taken, is bounded.

(in-package #:clgrpc.console)

(defconstant +tail-events+ 200 "How many events the tail has.")
(defconstant +events-per-second+ 50 "How many events the tail takes in a second.")
(defconstant +value-characters+ 300 "How long a value in the tail may be.")
(defconstant +value-backtrace+ 4000 "How long a backtrace in the tail may be.")

(defstruct (entry (:constructor make-entry (number unix-ns level event plist)) (:copier nil))
  "An event of the log."
  (number 0 :type index :read-only t)   ; later ones of the tail have higher ones
  (unix-ns 0 :type (unsigned-byte 62) :read-only t) ; when it was logged
  (level :info :type symbol :read-only t) ; :trace, :debug, :info, :warning or :error
  (event :event :type symbol :read-only t) ; its name
  (plist '() :type list :read-only t))  ; of keywords and texts

(defstruct (tail (:copier nil))
  "The last events of the log."
  (lock (sb-thread:make-mutex :name "clgrpc console log") :read-only t) ; of the rest
  ;; a ring
  (entries (make-array +tail-events+ :initial-element nil) :type simple-vector :read-only t)
  (count 0 :type index)                 ; how many events have had an entry
  (second-ns 0 :type (unsigned-byte 62)) ; when the second of TAKEN is over
  (taken 0 :type index)                 ; how many events were taken in it
  (dropped 0 :type index))              ; how many were not, ever

(declaim (sb-ext:freeze-type entry tail))

(defmethod print-object ((entry entry) stream)
  (print-unreadable-object (entry stream :type t)
    (format stream "~D ~(~A ~A~)" (entry-number entry) (entry-level entry) (entry-event entry))))

(defmethod print-object ((tail tail) stream)
  (print-unreadable-object (tail stream :type t)
    (format stream "~D events" (tail-count tail))))

(defun entry-text (key value)
  "VALUE of an event, whose name is KEY, as the log writes it."
  (if (and (eq :backtrace key) (stringp value))
      (subseq value 0 (min (length value) +value-backtrace+))
      (printable-text (log-value-text value) :limit +value-characters+)))

(defun room-in-second-p (tail now)
  "True if TAIL may take another event NOW; the lock is held."
  (when (>= now (tail-second-ns tail))
    (setf (tail-second-ns tail) (+ now +ns-per-second+)
          (tail-taken tail) 0))
  (if (< (tail-taken tail) +events-per-second+)
      (incf (tail-taken tail))
      (progn (incf (tail-dropped tail)) nil)))

(defun add-event (tail level event plist)
  "Add EVENT, with its LEVEL and PLIST as log listeners get them, to TAIL. From any thread."
  (when (sb-thread:with-mutex ((tail-lock tail)) (room-in-second-p tail (monotonic-ns)))
    (let ((texts (loop for (key value) on plist by #'cddr
                       repeat 30
                       unless (null value) collect key and collect (entry-text key value))))
      (sb-thread:with-mutex ((tail-lock tail))
        (let ((number (incf (tail-count tail))))
          (setf (svref (tail-entries tail) (mod number +tail-events+))
                (make-entry number (real-time-ns) level event texts)))))))

(defun entries-after (tail number)
  "The entries of TAIL that have a higher number than NUMBER, the oldest first. From any thread."
  (sb-thread:with-mutex ((tail-lock tail))
    (loop for i from (1+ (max number (- (tail-count tail) +tail-events+)))
            to (tail-count tail)
          collect (svref (tail-entries tail) (mod i +tail-events+)))))
