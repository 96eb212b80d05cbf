;;;; Timers run whoever runs the loop. Each test has one kind of those who may run it do so, again
;;;; and again or for long, and sees how late a timer of the loop runs: within 10 ms of when it is
;;;; due, beside what this machine itself takes to wake a thread.
;;;;
;;;; Who may run a loop (src/loop): its own thread or the one that called RUN-EVENT-LOOP; a reserve
;;;; thread that was asked for by a post, a waiter, the watchdog or a late handler; a caller that
;;;; drives; a thread that takes it for a moment (RUN-BRIEFLY) to begin a call or to send; the
;;;; flusher of what was gathered; user code on the loop that waits and drives on.

(in-package #:clgrpc.tests.promise)

(defparameter *timely-ms* 10 "How late a timer may be.")
(defparameter *give-up-ms* 400 "A timer that is so late is not waited for.")

(defun lateness-ms (loop occupy)
  "Have a timer of LOOP be due in 20 ms, and call OCCUPY, which has LOOP run, with a function that
says whether it may end. Return how late the timer ran."
  (let* ((due (+ (monotonic-ns) 20000000))
         (ran nil)
         (timer (make-timer (fn (_argument) (setf ran (monotonic-ns)))
                            nil)))
    (loop:run-or-post loop (lambda () (loop:start-timer loop timer due)))
    (flet ((over-p ()
             (or ran (> (monotonic-ns) (+ due (* 1000000 *give-up-ms*))))))
      (funcall occupy #'over-p)
      (wait-until #'over-p)
      (prog1 (if ran (/ (- ran due) 1d6) *give-up-ms*)
        (loop:run-or-post loop (lambda () (loop:stop-timer loop timer)))))))

(defun median (numbers)
  (quantile numbers 0.5))

(defun check-timely (who loop occupy)
  "While LOOP is run by WHO, a text, as OCCUPY has it, a timer is in time: the median of fifteen
beside how late this machine wakes its threads meanwhile."
  (let ((figures '()) (wakes '()))
    (dotimes (i 15)
      (multiple-value-bind (ms late) (call-with-lateness (lambda () (lateness-ms loop occupy)))
        (push ms figures)
        (push late wakes)))
    (report "a timer beside ~A: ~,2F ms late (under ~D), at most ~,2F; threads wake ~,2F ms late"
            who (median figures) *timely-ms* (reduce #'max figures) (median wakes))
    (let ((excess (- (median figures) (median wakes))))
      (cond ((< excess *timely-ms*) (pass))
            ((> (median wakes) *timely-ms*)
             (support:skip-on-slow-machine "threads wake ~,1F ms late" (median wakes)))
            (t (fail "a timer beside ~A ran ~,1F ms late" who excess))))))

(defun server-loop (server)
  (server:server-loop-loop (first (server:server-loops server))))

(defun quick (note call)
  (declare (ignore call))
  note)

(defun ask-async (channel number)
  (grpc:call-async #'lab.bench:ask channel (note number) :timeout +patience+))

(defun busy-for (ms)
  "Compute for MS milliseconds."
  (let ((end (+ (monotonic-ns) (floor (* 1000000 ms)))))
    (loop until (> (monotonic-ns) end))))

;;; Threads that have a loop for long

(test timers-run-on-a-loop-with-a-thread
  (let ((loop (loop:make-event-loop)))
    (loop:launch-event-loop loop)
    (unwind-protect
         (progn
           (check-timely "the loop's own thread" loop (constantly nil))
           (check-timely "a thread that posts in a row" loop
                         (lambda (over-p)
                           (loop until (funcall over-p)
                                 do (loop:post loop (constantly nil))
                                    (busy-for 1/10)))))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))))

(test timers-run-in-a-program
  (let ((loop (list nil)) (ready (make-signal)))
    (let ((thread (in-thread
                    (async:with-event-loop ()
                      (let ((own loop:*event-loop*))
                        (async:signal-handler async:+sigusr1+ (constantly nil)) ; keeps it running
                        (setf (car loop) own)
                        (signal-it ready))))))
      (await-signal ready)
      (check-timely "WITH-EVENT-LOOP" (car loop) (constantly nil))
      (loop:call-in-loop (car loop) #'async:exit-event-loop)
      (sb-thread:join-thread thread))))

(test timers-run-on-a-loop-of-in-process-handlers
  (let ((loop (loop:make-event-loop)))
    (loop:launch-event-loop loop)
    (unwind-protect
         (let* ((server (start-probe (list :ask #'quick) :listen "inproc:timely"))
                (channel (grpc:server-channel server :on loop)))
           (unwind-protect
                (check-timely "in-process handlers" loop
                              (lambda (over-p)
                                (loop until (funcall over-p) do (ask channel (note 1)))))
             (grpc:close-channel channel)
             (grpc:stop-server server)))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))))

;;; The client's loop, which has no thread of its own

(test timers-run-while-a-caller-drives
  (with-probe (channel) (:ask (lambda (note call) (sleepy note call)))
    (ask channel (note 0))
    (check-timely "a caller that drives" (client-loop channel)
                  (lambda (over-p) (loop until (funcall over-p) do (ask channel (note 100)))))
    (check-timely "a caller without a pause" (client-loop channel)
                  (lambda (over-p) (loop until (funcall over-p) do (ask channel (note 0)))))))

(test timers-run-while-a-caller-fails-at-once
  "A call that is over as soon as it begins drives nothing: it has the loop for a moment."
  (grpc:with-channel (channel "127.0.0.1:1" :backoff-initial-seconds 10)
    (dolist (pause '(0 1 5))
      (check-timely (format nil "failing calls ~D ms apart" pause) (client-loop channel)
                    (lambda (over-p)
                      (loop until (funcall over-p)
                            do (caught (ask channel (note 1)))
                               (when (plusp pause) (pass-time (/ pause 1000)))))))))

(test timers-run-between-rare-calls
  "Nobody runs the loop between calls that come more often than the watchdog looks."
  (with-probe (channel) (:ask #'quick)
    (dolist (pause '(15 25 40))
      (check-timely (format nil "calls ~D ms apart" pause) (client-loop channel)
                    (lambda (over-p)
                      (loop until (funcall over-p)
                            do (ask channel (note 1))
                               (pass-time (/ pause 1000))))))))

(test timers-run-while-nobody-calls
  (with-probe (channel) (:ask #'quick)
    (check-timely "nobody" (client-loop channel)
                  (lambda (over-p) (declare (ignore over-p)) (ask channel (note 1))))))

(test timers-run-beside-calls-nobody-waits-for
  (with-probe (channel) (:ask #'sleepy)
    (check-timely "calls that nobody waits for" (client-loop channel)
                  (lambda (over-p)
                    (loop until (funcall over-p)
                          do (grpc:await (ask-async channel 100)))))
    (check-timely "a crowd of callers" (client-loop channel)
                  (lambda (over-p)
                    (with-threads (i 4)
                      (loop until (funcall over-p) do (ask channel (note (* i 10)))))))))

(test timers-run-while-messages-are-sent
  "Sending from outside takes the loop for a moment each time, and what is gathered is swept up."
  (with-probe (channel) (:chat (handling (stream)
                                 (grpc:do-messages (note stream))))
    (let ((call (chat channel :open :timeout 60)))
      (grpc:send call (note 0))
      (check-timely "a sender without a pause" (client-loop channel)
                    (lambda (over-p)
                      (loop for i from 0
                            until (funcall over-p)
                            do (grpc:send call (note i)))))
      (check-timely "bursts that are swept up" (client-loop channel)
                    (lambda (over-p)
                      (loop until (funcall over-p)
                            do (dotimes (i 20) (grpc:send call (note i)))
                               (pass-time 0.02))))
      (grpc:cancel call))))

;;; A server's loop, in handlers


(test timers-run-while-a-handler-is-late
  (with-probe (channel :server server) (:ask #'sleepy)
    (check-timely "handlers that sleep" (server-loop server)
                  (lambda (over-p) (loop until (funcall over-p) do (ask channel (note 100)))))))

(test timers-run-when-the-first-handler-is-late
  "The methods are never known to block, and the watchdog is used to quick ones."
  (with-probe (channel :server server :options '(:execution :inline))
      (:ask (handling (note) (busy-for (number-of note)) note))
    (check-timely "handlers that compute, after quick ones" (server-loop server)
                  (lambda (over-p)
                    (dotimes (i 300) (ask channel (note 0)))
                    (loop until (funcall over-p) do (ask channel (note 100)))))))

(test timers-run-in-a-long-turn
  "Many handlers in one turn, none of which overstays."
  (with-probe (channel :server server :options '(:execution :inline))
      (:ask (handling (note)
              (busy-for (/ (number-of note) 1000))
              note))
    (dolist (us '(20 300 800))
      (check-timely (format nil "a crowd of handlers of ~D µs" us) (server-loop server)
                    (lambda (over-p)
                      (loop until (funcall over-p)
                            do (mapc #'grpc:await
                                     (loop repeat (floor 100000 us)
                                           collect (ask-async channel us)))))))))

(test timers-run-while-a-handler-waits
  "It runs the loop itself meanwhile."
  (with-probe (channel :server server :options '(:execution :inline))
      (:chat (lambda (stream call)
               (grpc:do-messages (note stream) (grpc:send call note))))
    (let ((chat (chat channel :open :timeout 60)))
      (flet ((say ()
               (grpc:send chat (note 1))
               (grpc:receive chat)))
        (say)
        (check-timely "a handler that waits" (server-loop server) (constantly nil))
        (check-timely "a handler in an exchange" (server-loop server)
                      (lambda (over-p) (loop until (funcall over-p) do (say)))))
      (grpc:cancel chat))))

(test timers-run-while-a-handler-sends
  "It has to do with the loop time and again and never waits: what it leaves the loop is too short
for anybody else to notice."
  (dolist (us '(0 20 200))
    (with-probe (channel :server server :options '(:execution :inline))
        (:watch (lambda (note call)
                  (loop with end = (+ (monotonic-ns) (* 1000000 (number-of note)))
                        until (or (grpc:call-status call) (> (monotonic-ns) end))
                        do (grpc:send call note)
                           (busy-for (/ us 1000)))))
      (check-timely (format nil "a handler that sends each ~D µs" us) (server-loop server)
                    (fn (_over-p) (numbers (watch channel (note 150))))))))

(test timers-run-while-handlers-call
  (let ((inner (list nil)))
    (with-probe (channel :server server)
        (:ask (handling (note)
                (sleepy (note (if (plusp (number-of note)) 0 50)) nil)
                (if (plusp (number-of note)) (ask (car inner) (note 0)) note)))
      (setf (car inner) channel)
      (check-timely "handlers that call" (server-loop server)
                    (lambda (over-p) (loop until (funcall over-p) do (ask channel (note 1)))))
      (check-timely "handlers that call, for their client" (client-loop channel)
                    (lambda (over-p) (loop until (funcall over-p) do (ask channel (note 1))))))))
