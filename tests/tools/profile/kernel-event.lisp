;;;; What perf script prints of tracepoints.

(in-package #:clgrpc.tests.profile)

(defun recorded-events ()
  (lines
   "  399 100.000010:   raw_syscalls:sys_enter: NR 45 (8, 1002d30010, 10000, 0, 0, 0) ffffffff81 __traceiter ([kernel.kallsyms])"
   "  399 100.000014:    raw_syscalls:sys_exit: NR 45 = 480 ffffffff81 syscall_exit_work ([kernel.kallsyms])"
   "  399 100.000020:   raw_syscalls:sys_enter: NR 45 (8, 1002d30010, 10000, 0, 0, 0)"
   "  399 100.000021:    raw_syscalls:sys_exit: NR 45 = -11"
   "  398 100.000030:   raw_syscalls:sys_enter: NR 202 (1001057398, 80, 18e, 0, 0, 0)"
   "  398 100.000031: syscalls:sys_enter_futex: uaddr: 0x1001057398, op: 0x00000080, val: 0x0000018e, utime: 0x7ff5, uaddr2: 0x0, val3: 0x0"
   "	          101829 syscall (/usr/lib/x86_64-linux-gnu/libc.so.6)"
   "	         37ecd08 [unknown] (/opt/clgrpc)"
   ""
   "  398 100.000040:       sched:sched_switch: prev_comm=clgrpc watch prev_pid=398 prev_prio=120 prev_state=S ==> next_comm=x next_pid=412 next_prio=120"
   "	ffffffff81c0 __schedule ([kernel.kallsyms])"
   "	          101829 syscall (/usr/lib/x86_64-linux-gnu/libc.so.6)"
   "	         37ecd08 [unknown] (/opt/clgrpc)"
   ""
   "  399 100.000050:       sched:sched_switch: prev_comm=clgrpc prev_pid=399 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=412 next_prio=120"
   "  398 100.032030:    raw_syscalls:sys_exit: NR 202 = -110"
   ;; one that wakes
   "  399 100.040000:   raw_syscalls:sys_enter: NR 202 (1001057398, 81, 18e, 0, 0, 0)"
   "  399 100.040001: syscalls:sys_enter_futex: uaddr: 0x1001057398, op: 0x00000081, val: 0x00000001"
   "  399 100.040005:    raw_syscalls:sys_exit: NR 202 = 1"))

(defun tally-list (tally)
  (list (profile::tally-count tally) (profile::tally-failed tally) (profile::tally-ns tally)
        (profile::tally-longest-ns tally)))

(test events
  (let* ((events (profile::count-events (recorded-events) (symbolizer) 0 (expt 10 12)))
         (calls (profile::events-calls events))
         (futexes (profile::events-futexes events))
         (name #+x86-64 "recvfrom" #-x86-64 "syscall 45"))
    (is (equal '(2 1 5000 4000) (tally-list (gethash name calls))))
    (is (equal '(1 1) (list (profile::events-slept events) (profile::events-preempted events))))
    #+x86-64
    (progn
      (is (equal '(2 1 32005000 32000000) (tally-list (gethash "futex" calls))))
      (is (equal '(1 1 32000000 32000000)
                 (tally-list (gethash '("clgrpc.profile::find-range" nil) futexes)))
          "who wakes does not wait"))
    (is (= 1 (hash-table-count futexes)))))

(test sleeps-have-stacks
  "A thread sleeps from the switch until its next event, or the end; one that could go on does not."
  (flet ((sleeps (begin-ns end-ns)
           (let* ((events (profile::count-events (recorded-events) (symbolizer) begin-ns end-ns))
                  (sums (profile::events-off-cpu events)))
             (values (loop for name being the hash-keys of (profile::events-sleeps events)
                             using (hash-value tally)
                           collect (cons name (tally-list tally)))
                     (profile::sums-samples sums)
                     (loop for name being the hash-keys of (profile::sums-own sums)
                           collect name)))))
    (multiple-value-bind (sleeps ns innermost) (sleeps 0 100033000000)
      (is (equal '(("clgrpc.profile::find-range" 1 0 31990000 31990000)) sleeps))
      (is (= 31990000 ns))
      (is (equal '("syscall") innermost) "nothing of the kernel"))
    (is (= 19960000 (nth-value 1 (sleeps 0 100020000000))) "until the end of the record")
    (is (null (sleeps 100000045000 100033000000)) "one that has begun before")))

(test waits-on-locks-by-name
  (let ((mutex (sb-thread:make-mutex :name "a lock of tests")))
    (uiop:with-temporary-file (:pathname path)
      (profile::write-locks path)
      (with-open-file (stream path :external-format :utf-8)
        (is (find "mutex a lock of tests"
                  (loop for name being the hash-values of (profile::read-locks (list stream))
                        collect name)
                  :test #'search)))
      (is (string= "a lock of tests" (sb-thread:mutex-name mutex)))))
  (let* ((locks (profile::read-locks
                 (list (lines "1001057398 condition news" "10 mutex a")
                       (lines "1001057398 condition news" "10 mutex b" "20 mutex a"))))
         (events (profile::count-events (recorded-events) (symbolizer) 0 (expt 10 12) locks)))
    (declare (ignorable events))        ; elsewhere nothing asks them
    (is (string= "mutex a or mutex b" (gethash 16 locks)) "one has moved to where another was")
    #+x86-64
    (is (equal '(("clgrpc.profile::find-range" "condition news"))
               (loop for key being the hash-keys of (profile::events-futexes events)
                     collect key)))))

(test events-of-a-time
  (let ((events (profile::count-events (recorded-events) (symbolizer) 100000045000 (expt 10 12))))
    (is (equal '(0 1) (list (profile::events-slept events) (profile::events-preempted events))))))

(test what-strace-counts
  (let* ((events (profile::parse-strace
                  (lines "% time     seconds  usecs/call     calls    errors syscall"
                         "------ ----------- ----------- --------- --------- ----------------"
                         " 60.00    0.060000           6     10000         3 epoll_wait"
                         " 40.00    0.040000          20      2000           sendto"
                         "------ ----------- ----------- --------- --------- ----------------"
                         "100.00    0.100000           8     12000         3 total")))
         (calls (profile::events-calls events)))
    (is (= 2 (hash-table-count calls)))
    (is (equal '(10000 3 60000000 nil) (tally-list (gethash "epoll_wait" calls))))
    (is (equal '(2000 0 40000000 nil) (tally-list (gethash "sendto" calls))))))

(test lines-that-are-no-events
  (dolist (line '("" "x" "12" "12 13" "12 13.5" "12 a.b: c: d" "	 37ecd08 [unknown] (/opt/clgrpc)"))
    (is (null (profile::parse-event line)) "~S" line)))
