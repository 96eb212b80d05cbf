;;;; The kernel's tracepoints in the output of `perf script`: system calls and how long they took,
;;;; threads that gave up their processor, and for how long, and futexes. Pure functions of a
;;;; stream. A line is `TID SECONDS: EVENT: TEXT`; below it are the frames of the stack, if that was
;;;; requested.
;;;;
;;;; A thread sleeps from the switch to another one until the next of its own events, which is the
;;;; end of the system call in which it waited.

(in-package #:clgrpc.profile)

(defstruct (tally (:copier nil))
  "The counts of one system call, or of the waits at one place."
  (name "" :type string :read-only t)
  (lock nil :type (or null string) :read-only t) ; the lock or condition, if that is known
  (count 0 :type unsigned-byte)
  (failed 0 :type unsigned-byte)        ; how many calls returned an error
  (ns 0 :type unsigned-byte)            ; the total time of these calls, including waits
  ;; the time of the longest call; nil if it is not known
  (longest-ns 0 :type (or null unsigned-byte)))

(defstruct (events (:copier nil))
  "The counts of tracepoints."
  (calls (make-hash-table :test 'equal) :type hash-table :read-only t) ; maps system calls to TALLYs
  ;; from the waiting function and its lock, a list, to TALLYs
  (futexes (make-hash-table :test 'equal) :type hash-table :read-only t)
  (locks (make-hash-table) :type hash-table :read-only t) ; maps addresses of futexes to names
  (source "perf" :type string :read-only t) ; the program that has recorded them
  ;; threads that gave up their processor since they waited, or nil if that was not followed
  (slept 0 :type (or null unsigned-byte))
  (preempted 0 :type (or null unsigned-byte)) ; and since another was due
  ;; from a thread's id to (ns . frames) of the sleep that it is in
  (asleep (make-hash-table) :type hash-table :read-only t)
  (sleeps (make-hash-table :test 'equal) :type hash-table :read-only t) ; maps waiters to TALLYs
  (off-cpu (make-sums) :type sums :read-only t) ; the stacks of sleeps; a sample is a nanosecond
  ;; from a thread's id to (ns name futex's tally or nil) of the system call that it is in
  (open (make-hash-table) :type hash-table :read-only t))

(defparameter *system-calls*
  #+x86-64
  '((0 . "read") (1 . "write") (3 . "close") (7 . "poll") (9 . "mmap") (10 . "mprotect")
    (11 . "munmap") (13 . "rt_sigaction") (14 . "rt_sigprocmask") (15 . "rt_sigreturn")
    (16 . "ioctl") (17 . "pread64") (19 . "readv") (20 . "writev") (24 . "sched_yield")
    (28 . "madvise") (35 . "nanosleep") (39 . "getpid") (41 . "socket") (42 . "connect")
    (44 . "sendto") (45 . "recvfrom") (46 . "sendmsg") (47 . "recvmsg") (48 . "shutdown")
    (54 . "setsockopt") (55 . "getsockopt") (56 . "clone") (60 . "exit") (72 . "fcntl")
    (98 . "getrusage") (186 . "gettid") (200 . "tkill") (202 . "futex") (228 . "clock_gettime")
    (230 . "clock_nanosleep") (232 . "epoll_wait") (233 . "epoll_ctl") (234 . "tgkill")
    (257 . "openat") (281 . "epoll_pwait") (288 . "accept4") (290 . "eventfd2") (435 . "clone3")
    (441 . "epoll_pwait2"))
  #-x86-64
  '((20 . "epoll_create1") (21 . "epoll_ctl") (22 . "epoll_pwait") (56 . "openat") (57 . "close")
    (63 . "read") (64 . "write") (65 . "readv") (66 . "writev") (73 . "ppoll") (98 . "futex")
    (101 . "nanosleep") (113 . "clock_gettime") (115 . "clock_nanosleep") (124 . "sched_yield")
    (131 . "tgkill") (134 . "rt_sigaction") (135 . "rt_sigprocmask") (139 . "rt_sigreturn")
    (198 . "socket") (203 . "connect") (206 . "sendto") (207 . "recvfrom") (208 . "setsockopt")
    (210 . "shutdown") (211 . "sendmsg") (212 . "recvmsg") (215 . "munmap") (220 . "clone")
    (222 . "mmap") (226 . "mprotect") (233 . "madvise") (242 . "accept4"))
  "The names of system calls, by number.")

(defun system-call-name (number)
  (or (cdr (assoc number *system-calls*)) (format nil "syscall ~D" number)))

(defun find-tally (name table)
  (alexandria:ensure-gethash name table (make-tally :name name)))

(defun find-wait (name lock table)
  "The tally in TABLE of the waits of the function NAME on LOCK, a name or nil."
  (let ((key (list name lock)))
    (alexandria:ensure-gethash key table (make-tally :name name :lock lock))))

(defun parse-event (line)
  "Return four values, the thread's id, the time in nanoseconds, the event's name and its text, if
LINE begins an event; else return nil."
  (multiple-value-bind (tid end) (parse-integer line :junk-allowed t)
    (let* ((start (and tid (position #\Space line :start end :test-not #'char=)))
           (colon (and start (position #\: line :start start)))
           (ns (and colon (parse-seconds-ns line start colon)))
           (name (and ns (position #\Space line :start (1+ colon) :test-not #'char=)))
           (stop (and name (search ": " line :start2 name))))
      (and stop (values tid ns (subseq line name stop) (subseq line (+ 2 stop)))))))

(defun add-duration (tally ns)
  (incf (tally-count tally))
  (incf (tally-ns tally) ns)
  (setf (tally-longest-ns tally) (max ns (tally-longest-ns tally))))

(defun end-system-call (events tid ns result)
  (destructuring-bind (&optional begin name futex) (gethash tid (events-open events))
    (when begin
      (remhash tid (events-open events))
      (flet ((add (tally)
               (when (and result (minusp result)) (incf (tally-failed tally)))
               (add-duration tally (max 0 (- ns begin)))))
        (add (find-tally name (events-calls events)))
        (when futex (add futex))))))

(defun text-number (text prefix &optional (radix 10))
  "The integer after PREFIX in TEXT, or nil if TEXT has none."
  (let ((place (search prefix text)))
    (and place (parse-integer text :start (+ place (length prefix)) :radix radix
                                   :junk-allowed t))))

(defun futex-wait-p (text)
  "True if TEXT describes a system call futex that waits: its operation is WAIT, WAIT_BITSET or
LOCK_PI, with or without flags."
  (let ((operation (text-number text "op: 0x" 16)))
    (and operation (member (logand operation #x7f) '(0 6 9)) t)))

(defun waiter (frames)
  "A name for the waiting function with the stack FRAMES, innermost first: the innermost function of
clgrpc or, if FRAMES has none, the innermost Lisp function."
  (flet ((found (predicate)
           (let ((frame (find-if predicate frames)))
             (and frame (frame-name frame)))))
    (or (found (lambda (frame)
                 (and (eq :lisp (frame-kind frame)) (frame-area frame))))
        (found (lambda (frame) (eq :lisp (frame-kind frame))))
        (found (lambda (frame) (eq :native (frame-kind frame))))
        "(unknown)")))

(defun begin-sleep (events tid ns frames)
  "Note that the thread TID gives up its processor, in FRAMES; the kernel's frames are the same for
all threads."
  (setf (gethash tid (events-asleep events))
        (cons ns (or (member :kernel frames :key #'frame-kind :test-not #'eq) frames))))

(defun end-sleep (events tid ns)
  "If the thread TID sleeps, count its sleep, which ends at NS."
  (destructuring-bind (&optional begin &rest frames) (gethash tid (events-asleep events))
    (when begin
      (remhash tid (events-asleep events))
      (let ((slept (max 0 (- ns begin))))
        (add-duration (find-tally (waiter frames) (events-sleeps events)) slept)
        (add-sample (events-off-cpu events) tid frames slept)))))

(defun add-futex (events tid text frames)
  "Note that a thread begins a futex call. If the call waits, the wait counts for the waiting
function as well."
  (when (futex-wait-p text)
    (when-let ((open (gethash tid (events-open events))))
      (setf (third open)
            (find-wait (waiter frames)
                       (gethash (text-number text "uaddr: 0x" 16) (events-locks events))
                       (events-futexes events))))))

(defun add-event (events tid ns name text)
  (cond ((uiop:string-suffix-p name "sys_enter")
         (when-let ((number (text-number text "NR ")))
           (setf (gethash tid (events-open events))
                 (list ns (system-call-name number) nil))))
        ((uiop:string-suffix-p name "sys_exit")
         (end-system-call events tid ns (text-number text "= ")))
        ((not (uiop:string-suffix-p name "sched_switch")))
        ((runnable-p text) (incf (events-preempted events)))
        (t (incf (events-slept events)))))

(defun runnable-p (text)
  "True if TEXT describes a switch from a thread that could have continued: its state is R or R+."
  (search "prev_state=R" text))

(defun add-stack-event (events tid ns name text frames)
  (cond ((uiop:string-suffix-p name "sys_enter_futex") (add-futex events tid text frames))
        ((not (runnable-p text)) (begin-sleep events tid ns frames))))

(defun read-locks (streams)
  "A hash table from address to name, of the locks that the agent has written to STREAMS, one after
the other. A lock that was moved meanwhile has several addresses; an address that several locks have
had has all their names."
  (let ((locks (make-hash-table)))
    (dolist (stream streams locks)
      (loop for line = (read-line stream nil)
            while line
            do (multiple-value-bind (address end) (parse-integer line :radix 16 :junk-allowed t)
                 (let ((name (subseq line (1+ end))) (known (gethash address locks)))
                   (setf (gethash address locks)
                         (if (or (null known) (string= known name))
                             name
                             (format nil "~A or ~A" known name)))))))))

(defun stack-event-p (name)
  "True if the events NAME are recorded with their stacks."
  (or (uiop:string-suffix-p name "sys_enter_futex") (uiop:string-suffix-p name "sched_switch")))

(defun count-events (stream symbolizer begin-ns end-ns &optional (locks (make-hash-table)))
  "EVENTS of STREAM, the output of perf script, from BEGIN-NS to END-NS. LOCKS, a hash table, has
the names of futexes by their addresses."
  (let ((events (make-events :locks locks))
        (event nil) (frames '()))       ; an event whose stack is being read
    (flet ((end-stack ()
             (when event
               (apply #'add-stack-event events (append event (list (nreverse frames)))))
             (setf event nil frames '())))
      (loop for line = (read-line stream nil)
            while line
            do (multiple-value-bind (tid ns name text) (parse-event line)
                 (cond (tid
                        (end-stack)
                        (when (<= begin-ns ns end-ns)
                          (end-sleep events tid ns)
                          (add-event events tid ns name text)
                          (when (stack-event-p name) (setf event (list tid ns name text)))))
                       (event (let ((frame (parse-frame line symbolizer)))
                                (when frame (push frame frames)))))))
      (end-stack))
    (dolist (tid (loop for tid being the hash-keys of (events-asleep events) collect tid))
      (end-sleep events tid end-ns))
    events))

;;; strace, for processes that perf may not follow

(defun parse-strace (stream)
  "EVENTS of the table that `strace -c` prints to STREAM: share, seconds, microseconds a call,
calls, errors or nothing, name."
  (let ((events (make-events :source "strace" :slept nil :preempted nil)))
    (loop for line = (read-line stream nil)
          while line
          do (let* ((words (remove "" (uiop:split-string line :separator " ") :test #'string=))
                    (seconds (and (<= 5 (length words) 6) (second words)))
                    (ns (and seconds (parse-seconds-ns seconds 0 (length seconds))))
                    (count (and ns (parse-integer (fourth words) :junk-allowed t)))
                    (name (first (last words))))
               (when (and count (string/= name "total"))
                 (setf (gethash name (events-calls events))
                       (make-tally :name name :count count :ns ns :longest-ns nil
                                   :failed (if (sixth words) (parse-integer (fifth words)) 0))))))
    events))
