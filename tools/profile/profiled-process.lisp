;;;; The process that is profiled: one started here, with an agent that answers, or one that runs
;;;; already and is only observed from outside, through /proc and perf.

(in-package #:clgrpc.profile)

(define-condition profile-error (clgrpc-error)
  ((text :initarg :text :reader profile-error-text))
  (:report (lambda (condition stream) (write-string (profile-error-text condition) stream)))
  (:documentation "A profile could not be taken; TEXT is the reason."))

(defun fail (control &rest arguments)
  (error 'profile-error :text (format nil "~?" control arguments)))

(defstruct (subject (:copier nil))
  "The process that is profiled."
  (pid 0 :type integer :read-only t)
  (process nil :type (or null sb-impl::process) :read-only t) ; the process, if it was started here
  (lock (sb-thread:make-mutex :name "clgrpc profile subject") :read-only t) ; guards the slots below
  (news (sb-thread:make-waitqueue) :read-only t) ; notified when a slot has changed
  (addresses '() :type list)            ; the addresses on which it listens, according to its output
  ;; answers of the agent that were not taken yet, the oldest first
  (answers '() :type list)
  (ended nil :type boolean))            ; the subject's output has ended

;;; Reading its output

(defun note-subject-line (subject line)
  "Take LINE, which the process of SUBJECT has printed. Lines that are neither an address nor an
answer go to standard error."
  (flet ((rest-after (prefix)
           (and (uiop:string-prefix-p prefix line) (subseq line (length prefix)))))
    (let ((address (rest-after "listening on "))
          (answer (rest-after "profile: ")))
      (sb-thread:with-mutex ((subject-lock subject))
        (cond (address (setf (subject-addresses subject)
                             (append (subject-addresses subject) (list address))))
              (answer (setf (subject-answers subject)
                            (append (subject-answers subject) (list answer)))))
        (sb-thread:condition-broadcast (subject-news subject)))
      (unless (or address answer) (format *error-output* "~A~%" line)))))

(defun read-lines (subject)
  (let ((stream (sb-ext:process-output (subject-process subject))))
    (loop for line = (ignore-errors (read-line stream nil))
          while line
          do (note-subject-line subject line))
    (sb-thread:with-mutex ((subject-lock subject))
      (setf (subject-ended subject) t)
      (sb-thread:condition-broadcast (subject-news subject)))))

(defun await-news (subject seconds what function)
  "Wait until FUNCTION, called with SUBJECT locked, returns true, and return its value. After
SECONDS signal a PROFILE-ERROR, whose text is that WHAT has not come."
  (declare (type function function))
  (let ((end (+ (monotonic-ns) (* seconds 1000000000))))
    (sb-thread:with-mutex ((subject-lock subject))
      (loop
        (let ((found (funcall function)))
          (when found (return found)))
        (when (subject-ended subject) (fail "the process has ended before ~A" what))
        (let ((left (- end (monotonic-ns))))
          (unless (plusp left) (fail "~A has not come within ~D s" what seconds))
          (sb-thread:condition-wait (subject-news subject) (subject-lock subject)
                                    :timeout (/ left 1d9)))))))

;;; Starting and ending

(defun start-subject (arguments)
  "Start this program with ARGUMENTS, strings, and an agent; return the SUBJECT."
  (let* ((process (sb-ext:run-program (or (program-path "self") (fail "/proc does not exist"))
                                      arguments
                                      :wait nil :input :stream :output :stream
                                      :error t ; the user can read why the process ends
                                      :external-format :utf-8
                                      :environment (cons "CLGRPC_PROFILE=1"
                                                         (sb-ext:posix-environ))))
         (subject (make-subject :pid (sb-ext:process-pid process) :process process)))
    (sb-thread:make-thread #'read-lines :name "clgrpc profile reader" :arguments (list subject))
    subject))

(defun end-subject (subject)
  "End the process of SUBJECT if it was started here."
  (when-let ((process (subject-process subject)))
    (when (sb-ext:process-alive-p process) (sb-ext:process-kill process sb-unix:sigterm))
    (loop repeat 1000
          while (sb-ext:process-alive-p process)
          do (sleep 1/100))
    (when (sb-ext:process-alive-p process) (sb-ext:process-kill process sb-unix:sigkill))
    (sb-ext:process-wait process)
    (sb-ext:process-close process)))

(defun ask (subject command &key (seconds 20))
  "The parsed answer of SUBJECT's agent to COMMAND, or nil if SUBJECT has no agent."
  (when-let ((process (subject-process subject)))
    (let ((input (sb-ext:process-input process)))
      (handler-case (progn (write-line command input) (finish-output input))
        (stream-error () (fail "the process has ended")))
      (let ((answer (await-news subject seconds (format nil "an answer to ~A" command)
                                (lambda () (pop (subject-answers subject))))))
        (parse-json answer)))))

(defun subject-address (subject)
  "The first address on which the process of SUBJECT listens. Wait until the process listens."
  (await-news subject 20 "the address of a server"
              (lambda () (first (subject-addresses subject)))))

;;; The kernel's data of a process

(defun file-words (path)
  "The words of the file at PATH, or nil if it cannot be read."
  (handler-case
      (remove "" (uiop:split-string (uiop:read-file-string path)
                                    :separator '(#\Space #\Tab #\Newline))
              :test #'string=)
    (error () nil)))

(defun runs-p (pid)
  "True if the process PID runs, and this user may read how its memory is mapped."
  (handler-case (with-open-file (stream (format nil "/proc/~D/maps" pid)
                                        :external-format :latin-1)
                  (and (read-line stream nil) t))
    (error () nil)))

(defun running-subject (pid)
  "A SUBJECT for the process PID, which runs already."
  (unless (probe-file (format nil "/proc/~D/stat" pid)) (fail "process ~D does not exist" pid))
  (unless (runs-p pid)
    (fail "process ~D has ended, or this user may not read how its memory is mapped" pid))
  (make-subject :pid pid))

(defun thread-ids (pid)
  (loop for directory in (uiop:subdirectories (format nil "/proc/~D/task/" pid))
        for id = (parse-integer (first (last (pathname-directory directory))) :junk-allowed t)
        when id collect id))

(defun thread-name (pid tid)
  (handler-case (string-trim '(#\Newline)
                             (uiop:read-file-string (format nil "/proc/~D/task/~D/comm" pid tid)))
    (error () "thread")))

(defun status-number (words name)
  (let ((place (member name words :test #'string=)))
    (if place (parse-integer (second place)) 0)))

(defun thread-switches (pid)
  "The counts of how often each thread of the process PID has slept and was preempted: lists (id
slept preempted)."
  (loop for tid in (thread-ids pid)
        for words = (file-words (format nil "/proc/~D/task/~D/status" pid tid))
        when words
          collect (list tid (status-number words "voluntary_ctxt_switches:")
                        (status-number words "nonvoluntary_ctxt_switches:"))))

(defstruct (reading (:copier nil))
  "The counters of a process at one time."
  (ns 0 :type unsigned-byte :read-only t)
  (cpu-ns 0 :type unsigned-byte :read-only t)
  (switches '() :type list :read-only t) ; THREAD-SWITCHES
  (counters nil :type list :read-only t)) ; the agent's counters, or nil

(defun switches-between (before after)
  "Return two values: how often threads slept between the READINGs BEFORE and AFTER, and how often
they were preempted. These are lower bounds, because threads that ended in between are missing."
  (flet ((grown (reader)
           (loop for row in (reading-switches after)
                 for old = (find (first row) (reading-switches before) :key #'first)
                 sum (max 0 (- (funcall reader row) (if old (funcall reader old) 0))))))
    (values (grown #'second) (grown #'third))))

(defun take-reading (subject)
  (let ((pid (subject-pid subject))
        (counters (ask subject "counters")))
    (make-reading :cpu-ns (os:process-time-ns pid) :ns (monotonic-ns)
                  :switches (thread-switches pid) :counters counters)))

(defun counted (name before after)
  "The growth of the agent's counter NAME from BEFORE to AFTER, READINGs, or nil if they lack that
counter."
  (flet ((value (reading) (cdr (assoc name (reading-counters reading) :test #'string=))))
    (and (value before) (value after) (- (value after) (value before)))))
