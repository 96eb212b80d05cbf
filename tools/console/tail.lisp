;;;; The log's tail: the last events, as text, for the console. Values become text when they are
;;;; logged, since they may change or hold much memory. The length of a text and the number of
;;;; events taken in a second are limited. The access log's events about calls are many; they have a
;;;; ring and a limit of their own, so that they do not push other events out.

(in-package #:clgrpc.console)

(defconstant +tail-events+ 200
  "The maximum number of events in each of the two rings: the ring of events about calls, and the
ring of all other events.")
(defconstant +events-per-second+ 50
  "The maximum number of events that each of the two rings takes in a second.")
(defconstant +value-characters+ 300 "The maximum number of characters of a value in the tail.")
(defconstant +value-backtrace+ 4000 "The maximum number of characters of a backtrace in the tail.")

(defstruct (entry (:constructor make-entry (number unix-ns level event plist)) (:copier nil))
  "An event of the log."
  (number 0 :type index :read-only t)   ; later entries of the tail have higher numbers
  (unix-ns 0 :type (unsigned-byte 62) :read-only t) ; when the event was logged
  (level :info :type symbol :read-only t) ; :trace, :debug, :info, :warning or :error
  (event :event :type symbol :read-only t) ; the event's name
  (plist '() :type list :read-only t))  ; the plist of keywords and texts

(defstruct (event-ring (:copier nil))
  "The last events of a kind."
  ;; ENTRYs or nil, each at its number in the ring modulo the length
  (entries (make-array +tail-events+ :initial-element nil) :type simple-vector :read-only t)
  (count 0 :type index)                 ; how many entries the ring has had
  (taken 0 :type index))                ; how many entries came in this second

(defstruct (tail (:copier nil))
  "The last events of the log."
  (lock (sb-thread:make-mutex :name "clgrpc console log") :read-only t) ; guards the other slots
  (count 0 :type index)                 ; how many events have had an entry
  (others (make-event-ring) :type event-ring :read-only t) ; all events except those about calls
  (calls (make-event-ring) :type event-ring :read-only t) ; events about calls
  (second-ns 0 :type (unsigned-byte 62)) ; the end of the present second
  (dropped 0 :type index))              ; how many events were dropped so far

(declaim (sb-ext:freeze-type entry event-ring tail))

(define-printer (ring event-ring)
  "~D events" (event-ring-count ring))

(define-printer (entry entry)
  "~D ~(~A ~A~)" (entry-number entry) (entry-level entry) (entry-event entry))

(define-printer (tail tail)
  "~D events" (tail-count tail))

(defun entry-text (key value)
  "VALUE of an event, whose name is KEY, as the log writes it."
  (if (and (eq :backtrace key) (stringp value))
      (subseq value 0 (min (length value) +value-backtrace+))
      (printable-text (log-value-text value) :limit +value-characters+)))

(defun ring-for (tail event)
  (if (eq :call event) (tail-calls tail) (tail-others tail)))

(defun room-in-second-p (tail event now)
  "True if TAIL may take another EVENT in the second of NOW. If so, count EVENT, else count it as
dropped. The caller must hold TAIL's lock."
  (when (>= now (tail-second-ns tail))
    (setf (tail-second-ns tail) (+ now +ns-per-second+)
          (event-ring-taken (tail-calls tail)) 0
          (event-ring-taken (tail-others tail)) 0))
  (let ((ring (ring-for tail event)))
    (if (< (event-ring-taken ring) +events-per-second+)
        (incf (event-ring-taken ring))
        (progn (incf (tail-dropped tail)) nil))))

(defun add-event (tail level event plist)
  "Add EVENT, with its LEVEL and PLIST as log listeners get them, to TAIL. From any thread."
  (when (sb-thread:with-mutex ((tail-lock tail)) (room-in-second-p tail event (monotonic-ns)))
    (let ((texts (loop for (key value) on plist by #'cddr
                       repeat 30
                       unless (null value) collect key and collect (entry-text key value))))
      (sb-thread:with-mutex ((tail-lock tail))
        (let ((number (incf (tail-count tail))) (ring (ring-for tail event)))
          (setf (svref (event-ring-entries ring)
                       (mod (1- (incf (event-ring-count ring))) +tail-events+))
                (make-entry number (real-time-ns) level event texts)))))))

(defun entries-after (tail number)
  "The entries of TAIL whose numbers are higher than NUMBER, the oldest first. From any thread."
  (sb-thread:with-mutex ((tail-lock tail))
    (sort (loop for ring in (list (tail-others tail) (tail-calls tail))
                append (loop for entry across (event-ring-entries ring)
                             when (and entry (< number (entry-number entry))) collect entry))
          #'< :key #'entry-number)))
