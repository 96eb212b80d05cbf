;;;; Journals: functions for *LOG-FUNCTION* that never delay the thread that logs. A journal is a
;;;; queue of entries, bounded in number and by +JOURNAL-OCTETS+, and a thread that gives the
;;;; entries to a function one by one. Entries that come when the queue is full are dropped and
;;;; counted. The thread is made when there is an entry, and ends when none has come for a while. A
;;;; thread that waits until its entries are written adds a waiter: a function that is called once
;;;; the journal's function has handled these entries, or has failed.
;;;;
;;;; LOG-WRITER is a journal of lines (event-line.lisp). The thread makes the lines of events that
;;;; consist of numbers, keywords and short strings, many at once, which costs less than one line
;;;; now and then. Other lines are made where the event happens, since the objects in an event may
;;;; change a moment later.

(in-package #:clgrpc.base)

(defconstant +journal-entries+ 10000
  "The maximum number of entries in a journal.")
(defconstant +journal-octets+ (expt 2 24)
  "The maximum number of octets that the entries of a journal may take. It is limited because a line
may have 200,000 octets, and 10,000 such lines would exceed the heap.")
(defconstant +journal-idle-seconds+ 1/2
  "The time in seconds that the thread of a journal waits for more entries before it ends.")
(defconstant +journal-pause-seconds+ 1/25
  "The time in seconds for which the thread of a journal that has taken entries lets further entries
gather, unless the journal is half full. It waits because waking the thread costs as much as twenty
lines.")

(defstruct (journal (:copier nil))
  "A queue of entries and the thread that empties it."
  (consumer nil :type function :read-only t) ; a function of a list of entries, and of how many were
                                             ; lost
  (limit +journal-entries+ :type fixnum :read-only t) ; the most entries that may wait
  (lock (sb-thread:make-mutex :name "clgrpc log") :read-only t) ; held to change the slots below
  (wake (sb-thread:make-semaphore) :read-only t) ; signals the thread that it has work
  (hurry (sb-thread:make-semaphore) :read-only t) ; signals the thread to make no pause
  (entries '() :type list)              ; the entries that wait, newest first
  (waiters '() :type list)              ; functions to call after the entries, newest first
  (count 0 :type fixnum)                ; the number of ENTRIES
  (octets 0 :type fixnum)               ; about the size of ENTRIES
  (dropped 0 :type (unsigned-byte 62))  ; the number of entries that found the journal full
  (running nil :type boolean)           ; true while there is a thread
  (ending nil :type boolean))           ; true while the thread must not wait for more

(define-printer (journal journal)
  "~D entries wait, ~D dropped" (journal-count journal) (journal-dropped journal))

;;; Lost entries

(declaim (type (simple-array sb-ext:word (2)) **lost-entries**))
(defglobal **lost-entries** (make-array 2 :element-type 'sb-ext:word :initial-element 0)
  "The numbers of entries that were lost since the process began, for each of *LOGS*. Changes are
atomic.")

(defparameter *logs* '(:events :binary)
  "The kinds of logs that may lose entries: functions for *LOG-FUNCTION*, and binary logs.")

(defun note-lost-entries (log count)
  "Add COUNT to the number of lost entries of LOG, one of *LOGS*."
  (sb-ext:atomic-incf (aref **lost-entries** (position log *logs*)) count)
  nil)

(defun lost-entries (log)
  "Return the number of entries of LOG, one of *LOGS*, that this process has lost, because too many
entries waited or they could not be written. From any thread."
  (aref **lost-entries** (position log *logs*)))

(defglobal **journals** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "All journals, for FLUSH-LOG.")

(defun open-journal (consumer limit)
  "Return a journal of LIMIT entries at most. CONSUMER, a function, is called on the journal's
thread with a list of entries, the oldest first, and the number of entries that were dropped before
these. From any thread."
  (let ((journal (make-journal :consumer consumer :limit limit)))
    (setf (gethash journal **journals**) t)
    journal))

(defun entry-octets (entry)
  "Return the approximate number of octets that ENTRY takes, with its texts and lists."
  (typecase entry
    ((or simple-base-string octets) (length entry))
    (string (* 4 (length entry)))
    (vector (* 8 (length entry)))
    (list (loop for rest = entry then (cdr rest)
                repeat 1000
                while (consp rest)
                sum (+ 16 (if (consp (car rest)) 64 (entry-octets (car rest))))))
    (t 16)))

(defun call-with-journal (journal function)
  "Call FUNCTION with the lock held. FUNCTION returns true if it has added an entry or a waiter to
JOURNAL; then wake the thread of JOURNAL."
  (let ((start nil) (first nil))
    (sb-sys:without-interrupts          ; once RUNNING is true, the thread must be started
      (sb-thread:with-mutex ((journal-lock journal))
        (let ((empty (not (or (journal-entries journal) (journal-waiters journal)))))
          (when (funcall function)
            (setf first empty
                  start (not (shiftf (journal-running journal) t))))))
      (cond (start (start-journal journal))
            (first (sb-thread:signal-semaphore (journal-wake journal)))))
    nil))

(defun half-full-p (journal)
  "True if JOURNAL is at least half full."
  (or (<= (ceiling (journal-limit journal) 2) (journal-count journal))
      (<= (ash +journal-octets+ -1) (journal-octets journal))))

(defun add-to-journal (journal entry &optional (octets (entry-octets entry)))
  "Queue ENTRY, which takes OCTETS, for the thread of JOURNAL, unless too many entries wait."
  (let ((hurry nil))
    (flet ((add ()
             (cond ((or (>= (journal-count journal) (journal-limit journal))
                        (> (+ octets (journal-octets journal)) +journal-octets+))
                    (incf (journal-dropped journal))
                    nil)
                   (t (let ((before (half-full-p journal)))
                        (push entry (journal-entries journal))
                        (incf (journal-count journal))
                        (incf (journal-octets journal) octets)
                        (setf hurry (and (not before) (half-full-p journal)))
                        t)))))
      (declare (dynamic-extent #'add))
      (call-with-journal journal #'add)
      (when hurry (sb-thread:signal-semaphore (journal-hurry journal))))))

(defun call-when-written (journal function)
  "Call FUNCTION on the thread of JOURNAL when the consumer has handled the entries that wait now.
The argument is true, or nil if the consumer has failed. From any thread."
  (call-with-journal journal (lambda () (push function (journal-waiters journal))))
  (sb-thread:signal-semaphore (journal-hurry journal)))

(defun start-journal (journal)
  (let ((started nil))
    (unwind-protect (setf started (sb-thread:make-thread #'run-journal :name "clgrpc log"
                                                                       :arguments (list journal)))
      (unless started (setf (journal-running journal) nil)))))

(defun take-entries (journal)
  "Return three values: the entries that wait in JOURNAL, oldest first, the number of entries that
were dropped before these, and the waiters."
  (sb-thread:with-mutex ((journal-lock journal))
    (setf (journal-count journal) 0
          (journal-octets journal) 0)
    (values (nreverse (shiftf (journal-entries journal) '()))
            (shiftf (journal-dropped journal) 0)
            (nreverse (shiftf (journal-waiters journal) '())))))

(defun leave-journal-p (journal)
  "Return true if the thread of JOURNAL may end, because nothing waits."
  (sb-thread:with-mutex ((journal-lock journal))
    (unless (or (journal-entries journal) (journal-waiters journal))
      (setf (journal-running journal) nil)
      t)))

(defun consume-entries (journal entries dropped waiters)
  "Call the consumer of JOURNAL with ENTRIES and DROPPED, then call WAITERS."
  (flet ((call (function &rest arguments)
           (handler-case (progn (apply function arguments) t)
             (serious-condition () nil))))
    (let ((written (or (not (or entries (plusp dropped)))
                       (call (journal-consumer journal) entries dropped))))
      (dolist (waiter waiters) (call waiter written)))))

(defun run-journal (journal)
  (let ((*log-function* #'log-nothing))
    (loop
      (multiple-value-bind (entries dropped waiters) (take-entries journal)
        (consume-entries journal entries dropped waiters)
        (when (and (or entries (plusp dropped)) (not (journal-ending journal)))
          (sb-thread:wait-on-semaphore (journal-hurry journal)
                                       :timeout +journal-pause-seconds+))
        (unless (or entries
                    waiters
                    (and (not (journal-ending journal))
                         (sb-thread:wait-on-semaphore (journal-wake journal)
                                                      :timeout +journal-idle-seconds+)))
          (when (leave-journal-p journal) (return)))))))

(define-keyword-function flush-log (&key (timeout 5))
  "Wait, at most TIMEOUT seconds, until the functions of LOG-WRITER and LOG-IN-BACKGROUND and the
binary logs have written all events logged before. Return true if all were written; nil after
TIMEOUT, or if a waiting event could not be written. Do not call this on the thread of an event
loop."
  (let ((done (sb-thread:make-semaphore)) (waiting 0) (failed nil))
    (loop for journal being the hash-keys of **journals**
          when (journal-running journal)
            do (call-when-written journal (lambda (written)
                                            (unless written (setf failed t))
                                            (sb-thread:signal-semaphore done)))
               (incf waiting))
    (or (zerop waiting)
        (and (if (plusp timeout)        ; SBCL takes no time-out of 0
                 (sb-thread:wait-on-semaphore done :n waiting :timeout timeout)
                 (sb-thread:try-semaphore done waiting))
             (not failed)))))

(defun end-journals ()
  "End the threads of all journals when they have written the entries that wait. This is called
before the image is saved."
  (flush-log)
  (let ((journals (loop for journal being the hash-keys of **journals** collect journal)))
    (dolist (journal journals) (setf (journal-ending journal) t))
    (loop repeat 1000
          while (some #'journal-running journals)
          do (mapc #'sb-thread:signal-semaphore (mapcar #'journal-wake journals))
             (sb-thread:thread-yield)
             (sleep 0.001))
    (dolist (journal journals) (setf (journal-ending journal) nil))))

(pushnew 'end-journals sb-ext:*save-hooks*)

(define-keyword-function log-in-background (function &key (limit +journal-entries+))
  "Return a function for *LOG-FUNCTION* that calls FUNCTION with the same arguments on a separate
thread, so that FUNCTION may be slow. At most LIMIT events wait for the thread, with at most 16 MB
of texts; further events are dropped, and FUNCTION gets their number with the event :EVENTS-DROPPED.
Errors in FUNCTION are ignored, and LOST-ENTRIES does not count their events. The returned function
may be called from any thread. See FLUSH-LOG."
  (check-type function (or symbol function))
  (check-type limit (integer 1 *))
  (let ((journal (open-journal (lambda (entries dropped)
                                 (flet ((tell (event)
                                          (handler-case (apply function event)
                                            (serious-condition () nil))))
                                   (when (plusp dropped)
                                     (note-lost-entries :events dropped)
                                     (tell (list :warning :events-dropped :count dropped)))
                                   (mapc #'tell entries)))
                               limit)))
    (lambda (&rest event) (add-to-journal journal event))))

;;; Writers of lines

(defconstant +joined-octets+ 4096
  "The maximum number of octets of lines that are written with one call. Lines are joined because
some streams pass each write to the system. A write to a pipe is atomic up to this length
(PIPE_BUF), so that lines of processes that share a pipe do not mix.")

(define-hot lasting-p (value &optional (depth fixnum 4)) boolean
  "True if VALUE is small and will have the same text when it is printed later. Such values are
fixnums, double floats, keywords, T, NIL, short simple strings, and lists of at most 100 such
values, DEPTH levels deep."
  (typecase value
    ((or fixnum double-float boolean) t)
    (symbol (keywordp value))
    (simple-string (<= (length value) +visible-characters+))
    (cons (and (plusp depth)
               (loop for rest = value then (cdr rest)
                     repeat 100
                     while (consp rest)
                     always (lasting-p (car rest) (1- depth))
                     finally (return (null rest)))))))

(defconstant +deferred-lines+ 2000
  "The maximum number of entries that may wait while the journal's thread makes further lines.")

(defun octet-stream (stream)
  "Return the stream of this process that STREAM denotes, if octets of UTF-8 can be written to it,
else nil. Writing octets is five times as fast as writing characters."
  (loop while (typep stream 'synonym-stream)
        do (setf stream (symbol-value (synonym-stream-symbol stream))))
  (and (or (eq stream sb-sys:*stderr*) (eq stream sb-sys:*stdout*))
       (let ((format (stream-external-format stream)))
         (eq :utf-8 (if (consp format) (first format) format)))
       stream))

(defun write-lines (entries line stream)
  "Write ENTRIES, each a line or the list of the arguments with which LINE appends it to a buffer,
to STREAM."
  (let ((buffer (make-buffer :size 8192)) (octet-stream (octet-stream stream)))
    (flet ((write-until (end)
             (let ((octets (buffer-octets buffer)))
               (if octet-stream
                   (write-sequence octets octet-stream :end end)
                   (write-string (octets-string octets :end end) stream))
               (replace octets octets :start2 end :end2 (buffer-end buffer))
               (decf (buffer-end buffer) end))))
      (dolist (entry entries)
        (let ((before (buffer-end buffer)))
          (if (stringp entry)
              (append-text buffer entry)
              ;; a user's event of which no line can be made is lost alone
              (handler-case (apply line buffer entry)
                (error ()
                  (setf (buffer-end buffer) before)
                  (note-lost-entries :events 1))))
          (when (and (plusp before) (< +joined-octets+ (buffer-end buffer)))
            (write-until before))))
      (write-until (buffer-end buffer)))))

(defparameter *log-levels* '(:debug :info :warning :error :none)
  "The levels that LOG-WRITER accepts. Events of tracers are written at each of them.")

(define-keyword-function log-writer
    (&key (stream (make-synonym-stream '*error-output*)) (format :text)
       (level :warning) (limit +journal-entries+))
  "Return a function for *LOG-FUNCTION* that writes each event of LEVEL or above, and all events of
tracers, as a line to STREAM. LEVEL is :debug, :info, :warning, :error, or :none for events of
tracers only. With the FORMAT :text the line is for people; with :json it is a JSON object for
programs. A separate thread writes, several lines at once, so that threads that log do not wait for
STREAM. At most LIMIT lines, with at most 16 MB, wait to be written. Further lines are dropped, and
a line with the event events-dropped gives their number. A line shows at most 1,000 characters of a
value, 16,384 characters of all values, and 40,000 characters of a backtrace. Characters that might
move a cursor or look like another line are escaped. See FLUSH-LOG. Signal MISUSE for another level
or format. From any thread."
  (check-choice :level level *log-levels*)
  (check-choice :format format '(:text :json))
  (check-type limit (integer 1 *))
  (let* ((line (ecase format (:text #'append-text-line) (:json #'append-json-line)))
         (rank (position level *log-levels*))
         (journal (open-journal
                   (lambda (entries dropped)
                     (let ((lost (+ dropped (length entries))))
                       (unwind-protect
                            (progn
                              (when (plusp dropped)
                                (push (list (real-time-ns) :warning :events-dropped
                                            (list :count dropped))
                                      entries))
                              (write-lines entries line stream)
                              (finish-output stream)
                              (setf lost dropped))
                         (when (plusp lost) (note-lost-entries :events lost)))))
                   limit)))
    (lambda (level event &rest plist)
      (when (or (eq :trace level) (<= rank (position level *log-levels*)))
        (let ((arguments (list (real-time-ns) level event plist)))
          ;; a thread that logs more than the journal's can write makes the lines itself, and so
          ;; is slower
          (if (and (< (journal-count journal) +deferred-lines+) (lasting-p arguments))
              (add-to-journal journal arguments (entry-octets plist))
              (add-to-journal journal (written (lambda (buffer)
                                                 (apply line buffer arguments))))))))))

(setf **line-function** (log-writer :level :error))

;;; The environment

(defglobal **environment-read** nil)

(defun forget-environment ()
  (setf **environment-read** nil))

(pushnew 'forget-environment sb-ext:*save-hooks*)

(defun read-environment (&optional (get-variable #'sb-ext:posix-getenv))
  "Apply GRPC_TRACE and GRPC_VERBOSITY, once in a process; GET-VARIABLE returns their values. This
switches on the tracers that GRPC_TRACE names. With a tracer on, or with GRPC_VERBOSITY (DEBUG,
INFO, WARNING, ERROR or NONE), events are written to *ERROR-OUTPUT* unless the user has set
*LOG-FUNCTION*. From any thread."
  (unless (shiftf **environment-read** t)
    (multiple-value-bind (traced unknown)
        (parse-tracers (or (funcall get-variable "GRPC_TRACE") ""))
      (setf **traced** (logior **traced** traced))
      (let ((level (find (or (funcall get-variable "GRPC_VERBOSITY") "") *log-levels*
                         :test #'string-equal)))
        (when (and (or level (plusp traced))
                   (member (sb-ext:symbol-global-value '*log-function*) '(nil log-errors)))
          (setf (sb-ext:symbol-global-value '*log-function*)
                (log-writer :level (or level :error)))))
      (when unknown
        (log-event :warning :unknown-tracers :names unknown))))
  nil)
