;;;; The kernel's data of this process: its time on processors, its memory, its threads, the time
;;;; when it began. All these data come from one read of /proc/self/stat, except for the start time
;;;; of the machine, from which that file counts times. This source file also reads the time of all
;;;; processors, and the processor time of any process.

(in-package #:clgrpc.os)

(define-constants
  (+sc-clock-ticks+ "_SC_CLK_TCK" 2)
  (+sc-page-octets+ "_SC_PAGESIZE" 30))

(defstruct (process (:copier nil))
  "The kernel's data of this process at some time. Data that the kernel does not provide are nil."
  ;; the processor time of all its threads, in both modes
  (cpu-seconds nil :type (or null rational) :read-only t)
  ;; the time when the process began, since 1970
  (start-seconds nil :type (or null rational) :read-only t)
  (virtual-octets nil :type (or null unsigned-byte) :read-only t) ; octets of addresses
  (resident-octets nil :type (or null unsigned-byte) :read-only t) ; octets in memory
  (threads nil :type (or null unsigned-byte) :read-only t)) ; the number of threads

(declaim (sb-ext:freeze-type process))

(define-printer (process process)
  "~D threads" (process-threads process))

(defun system-figure (number)
  "Return the value of sysconf for NUMBER, or nil if it has none."
  (let ((result (syscall ("sysconf" (signed 64)) (int number))))
    (and (plusp result) result)))

(defun status-fields ()
  "Return the fields of /proc/self/stat, beginning with the third, as texts, or nil if the system
has no such file."
  (with-open-file (stream "/proc/self/stat" :external-format :latin-1 :if-does-not-exist nil)
    (let* ((line (and stream (read-line stream nil)))
           (end (and line (position #\) line :from-end t)))) ; the end of the program's name
      (and end (uiop:split-string (subseq line (+ 2 end)) :separator " ")))))

(defun processor-ticks ()
  "Return two values: the number of ticks of all processors since the machine was started, and the
number of idle ticks among these. Return nil if the kernel does not provide them."
  (with-open-file (stream "/proc/stat" :external-format :latin-1 :if-does-not-exist nil)
    (let ((line (and stream (read-line stream nil))))
      (when (eql 5 (mismatch "cpu  " line))
        (let ((ticks (mapcar #'parse-integer (uiop:split-string (subseq line 5) :separator " "))))
          ;; user, nice, system, idle, disk waits, interrupts, soft interrupts, stolen
          (values (reduce #'+ ticks :end (min 8 (length ticks))) (nth 3 ticks)))))))

(defun boot-seconds ()
  "Return the time at which the machine was started, in seconds since 1970, or nil if it is not
known."
  (with-open-file (stream "/proc/stat" :external-format :latin-1 :if-does-not-exist nil)
    (loop for line = (and stream (read-line stream nil))
          while line
          when (eql 6 (mismatch "btime " line))
            return (parse-integer line :start 6 :junk-allowed t))))

(defun read-process ()
  "Return a PROCESS with the kernel's present data of this process. From any thread."
  (let ((fields (status-fields))
        (ticks (system-figure +sc-clock-ticks+))
        (page (system-figure +sc-page-octets+)))
    (flet ((field (number)              ; numbered as in proc(5), from 1
             (let ((text (nth (- number 3) fields)))
               (and text (parse-integer text :junk-allowed t))))
           (times (a b) (and a b (* a b))))
      (let ((user (field 14)) (system (field 15)) (start (field 22))
            (boot (boot-seconds)))
        (make-process :cpu-seconds (and user system ticks (/ (+ user system) ticks))
                      :start-seconds (and start boot ticks (+ boot (/ start ticks)))
                      :virtual-octets (field 23)
                      :resident-octets (times (field 24) page)
                      :threads (field 20))))))

(defun process-time-ns (pid)
  "Return the processor time of all threads of the process PID, including threads that have ended,
in nanoseconds (clock_getcpuclockid), or 0 if there is no such process. From any thread."
  (sb-alien:with-alien ((timespec (array (sb-alien:signed 64) 2)))
    (if (zerop (sb-alien:alien-funcall
                (sb-alien:extern-alien "clock_gettime"
                                       (function sb-alien:int sb-alien:int
                                                 (* (array (sb-alien:signed 64) 2))))
                (logior (ash (lognot pid) 3) 2) (sb-alien:addr timespec)))
        (+ (* (sb-alien:deref timespec 0) +ns-per-second+) (sb-alien:deref timespec 1))
        0)))
