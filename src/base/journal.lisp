;;;; Journals: functions for *LOG-FUNCTION* that never hold up who logs. A journal is a queue of
;;;; entries that is no longer than its limit, and a thread that gives them to a function one by
;;;; one; what comes when it is full is dropped and counted. The thread is made when there is
;;;; something to do and ends when there has been nothing for a while.
;;;;
;;;; LOG-WRITER is a journal of lines, as text for people or JSON for programs. Its lines are made
;;;; where the event happens, since what an event names may be different a moment later, and only
;;;; written by the thread.

(in-package #:clgrpc.base)

(defconstant +journal-entries+ 10000
  "How many entries a journal holds.")
(defconstant +journal-idle-seconds+ 1/2
  "How long the thread of a journal waits for more.")

(defstruct (journal (:copier nil))
  "CONSUMER is called with a list of entries. ENTRIES, newest first, are those that wait, COUNT of
them; DROPPED counts those that found it full. RUNNING is true while there is a thread."
  (consumer nil :type function :read-only t)
  (limit +journal-entries+ :type fixnum :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc log") :read-only t)
  (wake (sb-thread:make-semaphore) :read-only t)
  (entries '() :type list)
  (count 0 :type fixnum)
  (dropped 0 :type (unsigned-byte 62))
  (running nil :type boolean)
  (ending nil :type boolean))

(defmethod print-object ((journal journal) stream)
  (print-unreadable-object (journal stream :type t)
    (format stream "~D entries wait, ~D dropped" (journal-count journal)
            (journal-dropped journal))))

(defglobal **journals** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "All journals, for FLUSH-LOG.")

(defun open-journal (consumer limit)
  (let ((journal (make-journal :consumer consumer :limit limit)))
    (setf (gethash journal **journals**) t)
    journal))

(defun add-entry (journal entry &key insist)
  "Have the thread of JOURNAL take ENTRY, unless too many wait; with INSIST even then."
  (let ((start nil))
    (sb-thread:with-mutex ((journal-lock journal))
      (cond ((and (>= (journal-count journal) (journal-limit journal)) (not insist))
             (incf (journal-dropped journal)))
            (t (push entry (journal-entries journal))
               (incf (journal-count journal))
               (setf start (not (shiftf (journal-running journal) t))))))
    (if start
        (start-journal journal)
        (sb-thread:signal-semaphore (journal-wake journal))))
  nil)

(defun start-journal (journal)
  (let ((started nil))
    (unwind-protect (setf started (sb-thread:make-thread #'run-journal :name "clgrpc log"
                                                                       :arguments (list journal)))
      (unless started (setf (journal-running journal) nil)))))

(defun take-entries (journal)
  "What waits in JOURNAL, oldest first, and how many were dropped before."
  (sb-thread:with-mutex ((journal-lock journal))
    (setf (journal-count journal) 0)
    (values (nreverse (shiftf (journal-entries journal) '()))
            (shiftf (journal-dropped journal) 0))))

(defun leave-journal-p (journal)
  "True if the thread of JOURNAL may end, since nothing waits."
  (sb-thread:with-mutex ((journal-lock journal))
    (unless (journal-entries journal)
      (setf (journal-running journal) nil)
      t)))

(defun run-journal (journal)
  (let ((*log-function* #'log-nothing))
    (loop
      (multiple-value-bind (entries dropped) (take-entries journal)
        (when (or entries (plusp dropped))
          (handler-case (funcall (journal-consumer journal) entries dropped)
            (serious-condition () nil)))
        (unless (or entries
                    (and (not (journal-ending journal))
                         (sb-thread:wait-on-semaphore (journal-wake journal)
                                                      :timeout +journal-idle-seconds+)))
          (when (leave-journal-p journal) (return)))))))

(defun flush-log (&key (timeout 5))
  "Wait until what has been logged so far has been written by the functions that LOG-WRITER and
LOG-IN-BACKGROUND have returned, TIMEOUT seconds at most. Return true if it has. From any thread but
an event loop's."
  (let ((done (sb-thread:make-semaphore)) (waiting 0))
    (loop for journal being the hash-keys of **journals**
          when (journal-running journal)
            do (add-entry journal (lambda () (sb-thread:signal-semaphore done)) :insist t)
               (incf waiting))
    (or (zerop waiting)
        (and (sb-thread:wait-on-semaphore done :n waiting :timeout timeout) t))))

(defun end-journals ()
  "Have the threads of all journals end, once they have written what waits; the image is about to be
saved."
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

(defun log-in-background (function &key (limit +journal-entries+))
  "Return a function for *LOG-FUNCTION* that has FUNCTION called with the same arguments on a thread
of its own, so that it may take its time. At most LIMIT events wait for it; those that come
meanwhile are dropped, and FUNCTION is told how many by the event :EVENTS-DROPPED. Errors in it are
swallowed. See FLUSH-LOG."
  (check-type function (or symbol function))
  (check-type limit (integer 1 *))
  (let ((journal (open-journal (lambda (entries dropped)
                                 (flet ((tell (entry)
                                          (handler-case
                                              (if (functionp entry)
                                                  (funcall entry)
                                                  (apply function entry))
                                            (serious-condition () nil))))
                                   (when (plusp dropped)
                                     (tell (list :warning :events-dropped :count dropped)))
                                   (mapc #'tell entries)))
                               limit)))
    (lambda (&rest event) (add-entry journal event))))

;;; Lines

(defun iso-time (ns)
  "NS since 1970 as text, in UTC with microseconds."
  (multiple-value-bind (seconds rest) (floor ns +ns-per-second+)
    (multiple-value-bind (second minute hour day month year)
        (decode-universal-time (+ seconds (encode-universal-time 0 0 0 1 1 1970 0)) 0)
      (format nil "~4,'0D-~2,'0D-~2,'0DT~2,'0D:~2,'0D:~2,'0D.~6,'0DZ"
              year month day hour minute second (floor rest 1000)))))

(defun proper-list-p (list)
  "True if LIST, a cons, is neither dotted nor circular."
  (handler-case (list-length list)
    (type-error () nil)))

(defun value-text (value)
  "VALUE as PRINC has it, in one piece, whatever happens."
  (handler-case
      (let ((*print-pretty* nil) (*print-readably* nil) (*print-length* 100) (*print-level* 8)
            (*print-circle* nil))
        (typecase value
          (keyword (string-downcase value))
          (double-float (let ((*read-default-float-format* 'double-float)) (princ-to-string value)))
          (cons (if (proper-list-p value)
                    (format nil "(~{~A~^ ~})" (mapcar #'value-text value))
                    (princ-to-string value)))
          (t (princ-to-string value))))
    (serious-condition () "(cannot be printed)")))

(defun write-quoted (text stream)
  "Write TEXT to STREAM, between quotes unless it is a plain word; a peer may have sent it, so
nothing in it may look like another line."
  (if (and (plusp (length text))
           (every (lambda (char) (and (graphic-char-p char) (not (find char " \"\\=")))) text))
      (write-string text stream)
      (progn
        (write-char #\" stream)
        (loop for char across text
              do (cond ((find char "\"\\") (format stream "\\~C" char))
                       ((char= char #\Newline) (write-string "\\n" stream))
                       ((or (graphic-char-p char) (char= char #\Space)) (write-char char stream))
                       (t (format stream "\\x~(~2,'0X~)" (char-code char)))))
        (write-char #\" stream))))

(defun text-line (level event plist)
  "The event as a line of text, without what is nil; a backtrace comes behind it, each line of it
indented."
  (with-output-to-string (stream)
    (format stream "~A ~A ~(~@[~A ~]~A~)" (iso-time (real-time-ns)) level (getf plist :tracer)
            event)
    (loop for (key value) on plist by #'cddr
          unless (or (null value) (member key '(:tracer :backtrace)))
            do (format stream " ~(~A~)=" key)
               (write-quoted (value-text value) stream))
    (terpri stream)
    (with-input-from-string (lines (or (getf plist :backtrace) ""))
      (loop for line = (read-line lines nil)
            while line do (format stream "    ~A~%" line)))))

(defun plist-p (value)
  "True if VALUE, a proper list, looks like a plist, and not like a list of keywords."
  (and (evenp (length value))
       (loop for (key) on value by #'cddr always (keywordp key))
       (notevery #'keywordp value)))

(defun json-members (plist)
  (loop for (key value) on plist by #'cddr
        collect (cons (substitute #\_ #\- (string-downcase key)) (json-line-value value))))

(defun json-line-value (value)
  "VALUE as WRITE-JSON takes it; a plist becomes an object."
  (typecase value
    ((or string integer) value)
    (float (if (or (sb-ext:float-infinity-p value) (sb-ext:float-nan-p value))
               (value-text value)
               value))
    (null :null)
    ((eql t) :true)
    (cons (cond ((not (proper-list-p value)) (value-text value))
                ((plist-p value) (json-members value))
                (t (map 'vector #'json-line-value value))))
    (t (value-text value))))

(defun json-line (level event plist)
  "The event as a line of JSON, an object with the members time, level, event and those of PLIST."
  (format nil "~A~%"
          (write-json (list* (cons "time" (iso-time (real-time-ns)))
                             (cons "level" (string-downcase level))
                             (cons "event" (string-downcase event))
                             (json-members plist)))))

(defparameter *log-levels* '(:debug :info :warning :error :none)
  "What a writer can be told to begin with; events of tracers pass whatever that is.")

(defun log-writer (&key (stream (make-synonym-stream '*error-output*)) (format :text)
                     (level :warning) (limit +journal-entries+))
  "Return a function for *LOG-FUNCTION* that writes each event of LEVEL (:debug, :info, :warning or
:error; :none for no others) or above, and all events of tracers, as a line to STREAM: with the
FORMAT :text for people, with :json an object for programs. A thread of its own writes, so that
nobody waits for STREAM; at most LIMIT lines wait for it, and those that come meanwhile are dropped,
which a line with the event events-dropped tells. See FLUSH-LOG."
  (check-type level (member :debug :info :warning :error :none))
  (check-type format (member :text :json))
  (check-type limit (integer 1 *))
  (let* ((line (ecase format (:text #'text-line) (:json #'json-line)))
         (rank (position level *log-levels*))
         (journal (open-journal
                   (lambda (entries dropped)
                     (when (plusp dropped)
                       (write-string (funcall line :warning :events-dropped (list :count dropped))
                                     stream))
                     (let ((flushes (remove-if-not #'functionp entries))
                           (lines (remove-if #'functionp entries)))
                       (dolist (line lines) (write-string line stream))
                       (when lines (finish-output stream))
                       (mapc #'funcall flushes)))
                   limit)))
    (lambda (level event &rest plist)
      (when (or (eq :trace level) (<= rank (position level *log-levels*)))
        (add-entry journal (funcall line level event plist))))))

(setf **trace-function** (log-writer))

;;; The environment

(defglobal **environment-read** nil)

(defun forget-environment ()
  (setf **environment-read** nil))

(pushnew 'forget-environment sb-ext:*save-hooks*)

(defun read-environment (&optional (get-variable #'sb-ext:posix-getenv))
  "Do what GRPC_TRACE and GRPC_VERBOSITY, of which GET-VARIABLE tells the values, say, once in the
life of a process: tracers that the one names are switched on; with the other (DEBUG, INFO, WARNING,
ERROR or NONE), or with a tracer on, events go to *ERROR-OUTPUT* unless there is a *LOG-FUNCTION*
already. From any thread."
  (unless (shiftf **environment-read** t)
    (multiple-value-bind (traced unknown)
        (parse-tracers (or (funcall get-variable "GRPC_TRACE") ""))
      (setf **traced** (logior **traced** traced))
      (let ((level (find (or (funcall get-variable "GRPC_VERBOSITY") "") *log-levels*
                         :test #'string-equal)))
        (when (and (or level (plusp traced))
                   (null (sb-ext:symbol-global-value '*log-function*)))
          (setf (sb-ext:symbol-global-value '*log-function*)
                (log-writer :level (or level :error)))))
      (when unknown
        (log-event :warning :unknown-tracers :names unknown))))
  nil)
