;;;; Threads that are interrupted in the middle of calls, as users do it: WITH-TIMEOUT around a
;;;; call, TERMINATE-THREAD, and SLIME's C-c C-c, after which a debugger is open for a while and the
;;;; call is then continued or aborted. Whatever the moment, the channel serves other threads
;;;; meanwhile, and nothing is left of the calls.
;;;;
;;;; `make endurance` does it some 100,000 times in all.

(in-package #:clgrpc.tests.transports)

(defun interruptions ()
  "How often threads are interrupted in a test of this file."
  (support:at-length 400 15000))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *thread-transports* '(:tcp :tls :in-process :in-process-threads :in-process-loop)
    "Those that differ in what a thread does for its call."))

;;; Calls of every kind. Some are answered at once, some never end by themselves.

(defun endless (note call)
  "Count up for ever."
  (loop for i from 0
        while (grpc:send call (note i)))
  note)

(defun counting (note call)
  (if (zerop (number-of note))
      (endless note call)
      (count-up note call)))

(defparameter *kinds*
  (list (lambda (channel) (ask channel (note 3)))
        (lambda (channel)               ; a whole stream of responses
          (grpc:do-messages (note (watch channel (note 20))) note))
        (lambda (channel)               ; one without an end
          (let ((left 50))
            (grpc:do-messages (note (watch channel (note 0)))
              (when (zerop (decf left)) (return note)))))
        (lambda (channel) (collect channel (loop repeat 10 collect (note 1))))
        (lambda (channel)               ; from a generator
          (let ((left 20))
            (collect channel (lambda () (and (plusp (decf left)) (note left))))))
        (lambda (channel)
          (grpc:with-call (call (chat channel :open))
            (loop for i below 5
                  do (grpc:send call (note i))
                     (grpc:receive call))
            (grpc:close-send call)
            (grpc:receive call)))
        (lambda (channel)
          (let ((left 10))
            (grpc:do-messages (note (chat channel (lambda ()
                                                    (and (plusp (decf left)) (note left)))))
              note)))
        (lambda (channel) (grpc:await (grpc:call-async #'lab.bench:ask channel (note 3)
                                                       :timeout 10)))
        (lambda (channel)
          (grpc:await (grpc:all (loop repeat 3
                                      collect (grpc:call-async #'lab.bench:ask channel (note 3)
                                                               :timeout 10)))))))

(defun make-some-call (channel)
  "Make a call of some kind on CHANNEL; an error of an interrupted handler, or of what was
cancelled, is none."
  (handler-case (funcall (elt *kinds* (random (length *kinds*))) channel)
    (grpc:rpc-error ())
    (grpc:await-timeout ())))

;;; Threads that make calls and are interrupted

(defstruct victim
  (thread nil)
  (inside nil)                          ; it may be unwound
  (hits 0 :type fixnum)                 ; how often it was
  (ended nil))                          ; it is to make no more calls

(defun run-victim (victim channel)
  (let ((*random-state* (sb-sys:without-interrupts (make-random-state t))))
    (loop until (victim-ended victim)
          do (catch 'unwound
               (setf (victim-inside victim) t)
               (loop until (victim-ended victim)
                     do (make-some-call channel)))
             (sb-sys:without-interrupts (incf (victim-hits victim))))))

(defun start-victim (channel)
  (let ((victim (make-victim)))
    (setf (victim-thread victim)
          (sb-thread:make-thread #'run-victim :name "victim" :arguments (list victim channel)))
    victim))

(defun end-victim (victim)
  (setf (victim-ended victim) t)
  (sb-thread:join-thread (victim-thread victim) :default nil))

(defun unwind-victim (victim)
  "What an abort of a debugger or WITH-TIMEOUT does."
  (sb-thread:interrupt-thread (victim-thread victim)
                              (lambda ()
                                (when (shiftf (victim-inside victim) nil)
                                  (throw 'unwound nil)))))

(defun open-debugger (victim seconds abort)
  "Have VICTIM show a debugger for SECONDS, and then abort its call if ABORT is true, or go on."
  (sb-thread:interrupt-thread
   (victim-thread victim)
   (lambda ()
     (let ((sb-ext:*invoke-debugger-hook*
             (fn (condition _hook)
               (sleep seconds)          ; while the user looks
               (if (and abort (shiftf (victim-inside victim) nil))
                   (throw 'unwound nil)
                   (continue condition)))))
       (with-simple-restart (continue "Go on.")
         (sb-sys:with-interrupts (invoke-debugger (make-condition 'simple-condition))))))))

(defun terminate-victim (victim)
  (sb-thread:terminate-thread (victim-thread victim))
  (sb-thread:join-thread (victim-thread victim) :default nil))

(defun torment (channel victims count)
  "Interrupt some of VICTIMS COUNT times; return those that there are then. Meanwhile other calls on
CHANNEL are answered."
  (let ((late 0) (patience 10))
    (dotimes (i count)
      (let ((place (random (length victims))))
        (symbol-macrolet ((victim (nth place victims)))
          (case (random 20)
            (0 (terminate-victim victim)
             (setf victim (start-victim channel)))
            (1 (open-debugger victim (random 0.01) nil))
            (2 (open-debugger victim (random 0.01) t))
            (t (let ((hits (victim-hits victim)))
                 (unwind-victim victim)
                 (wait-until (lambda ()
                               (or (/= hits (victim-hits victim))
                                   (progn (unwind-victim victim) nil)))))))))
      (when (zerop (mod i 20))
        (handler-case (ask channel (note 1) :timeout patience)
          (grpc:rpc-error () (incf late)))))
    (is (zerop late) "~D calls of others were not answered" late)
    victims))

;;; What must not be left

(defun loop-of (channel)
  "The loop that CHANNEL's callers drive or post to, if there is one."
  (let ((core (ignore-errors (clgrpc.client::channel-core channel))))
    (if core
        (clgrpc.client:core-loop core)
        (let ((execution
               (clgrpc.inproc::inproc-core-execution (clgrpc.inproc::channel-inproc-core channel))))
          (and (typep execution 'loop:event-loop) execution)))))

(defun open-lines (server)
  "How many calls within the image SERVER has."
  (hash-table-count (clgrpc.inproc::callee-call-pairs (clgrpc.inproc::server-callee server))))

(defun counted-calls (server)
  "How many calls within the image SERVER counts as under way, registered or not."
  (clgrpc.inproc::tally-open (clgrpc.inproc::callee-tally (clgrpc.inproc::server-callee server))))

(defun check-nothing-left (channel server)
  (let ((loop (loop-of channel)))
    (flet ((check (what function)
             (is (eql 0 (wait-until (lambda () (and (eql 0 (funcall function)) 0))))
                 "~A: ~D" what (funcall function))))
      (when loop
        (check "wakers" (lambda ()
                          (clgrpc.loop::inbox-wakers (clgrpc.loop::event-loop-inbox loop))))
        (let ((driving (clgrpc.loop::event-loop-driving loop)))
          (check "calls" (lambda () (clgrpc.loop::driving-calls driving)))
          (check "waiters" (lambda () (clgrpc.loop::driving-waiters driving)))))
      (cond ((member *transport* '(:tcp :tls))
             (let ((core (clgrpc.client::channel-core channel)))
               (check "waiting calls" (lambda () (length (clgrpc.client::waiting-calls core))))
               (check "held octets" (lambda ()
                                      (loop for subchannel in (clgrpc.client:core-subchannels core)
                                            for set =
                                            (clgrpc.client:subchannel-connection-set subchannel)
                                            sum (loop for link in
                                                      (clgrpc.client::connection-set-links set)
                                                      sum (clgrpc.wire::link-held link)))))
               (check "streams" (lambda ()
                                  (reduce #'+ (clgrpc.client:core-subchannels core)
                                          :key #'clgrpc.client:subchannel-calls)))))
            (t (check "open calls" (lambda () (open-lines server)))
               (check "counted calls" (lambda () (counted-calls server)))))
      (check "promised octets" (lambda () (car clgrpc.base::**promised**))))))

(defun check-closing (channel)
  (let ((begin (monotonic-ns)))
    (grpc:close-channel channel)
    (is (< (- (monotonic-ns) begin) (seconds-ns 20)))))

(defun storm (victims)
  "Interrupt so many threads, on one channel, again and again."
  (with-transport (channel :server server :events (:handler-error))
      (:ask #'double :watch #'counting :collect #'add-up :chat #'echo)
    (let ((threads (loop repeat victims collect (start-victim channel))))
      (unwind-protect (setf threads (torment channel threads (interruptions)))
        (mapc #'end-victim threads))
      (is (eql 2 (number-of (ask channel (note 1)))))
      (check-nothing-left channel server)
      (check-closing channel))))

(macrolet ((define-storms ()
             `(progn
                ,@(loop for transport in *thread-transports*
                        for name = (format nil "INTERRUPTED-THREADS-LEAVE-NOTHING-OVER-~A"
                                           transport)
                        collect `(test ,(intern name)
                                   (let ((*transport* ,transport)) (storm 3)))))))
  (define-storms))

(test an-interrupted-thread-that-drives-leaves-nothing
  "The only thread with calls on a channel runs its loop."
  (let ((*transport* :tcp)) (storm 1)))

(defun make-calls-for (seconds channel)
  "Make calls on CHANNEL until SB-EXT:WITH-TIMEOUT ends that after SECONDS, also where its time is
over in a handler or a callback that runs here."
  (handler-case (sb-ext:with-timeout seconds (loop (make-some-call channel)))
    (sb-ext:timeout ())))

(test calls-under-with-timeout-leave-nothing
  "As users write it: SB-EXT:WITH-TIMEOUT around calls of every kind."
  (dolist (*transport* '(:tcp :in-process-threads))
    (with-transport (channel :server server :events (:handler-error))
        (:ask #'double :watch #'counting :collect #'add-up :chat #'echo)
      (loop repeat (ceiling (interruptions) 4)
            do (make-calls-for (+ 0.0001 (random 0.002)) channel))
      (is (eql 2 (number-of (ask channel (note 1)))))
      (check-nothing-left channel server)
      (check-closing channel))))

(test an-interrupt-that-waited-for-user-code-is-the-error-of-the-call
  "An interrupt that comes while the loop's own code runs, with interrupts off, is taken as a
callback begins. It is the error of that callback's call then, as if it had come a moment later, and
none of the loop."
  (let ((*transport* :tcp) (next nil)) ; NEXT: true once there are callbacks to take it
    (with-transport (channel
                     :events (:handler-error)
                     :channel-options
                     (list :observer
                           (grpc:make-observer
                            :message-received
                            (fn (_call _octets)
                              (when (shiftf next nil)
                                (sb-thread:interrupt-thread sb-thread:*current-thread*
                                                            (lambda () (error "Late."))))))))
        (:watch (fn (_note call)
                  (loop while (grpc:send call (note 1))
                        until (grpc:cancelled-p call)))) ; it ends when the client's has
      (let ((call (watch channel (note 1))) (ended (make-signal)))
        (grpc:on-message call #'identity)
        (grpc:on-end call (lambda () (signal-it ended)))
        (setf next t)
        (is-true (await-signal ended))
        (is (eq :internal (grpc:call-status call)))))))

(test a-time-limit-passes-the-callbacks-of-its-call
  "A thread that waits for a call runs its callbacks. If the time of a WITH-TIMEOUT around the wait
is over in one, the timeout is for the one who waits, and is not lost."
  (dolist (*transport* '(:tcp :tls))
    (with-transport (channel :events (:handler-error)) (:watch #'count-up)
      (let ((call (watch channel (note 3))) (stop nil))
        (grpc:on-end call (lambda () (loop until stop do (sleep 0.01))))
        (is (eq :time-over (handler-case (sb-ext:with-timeout 0.3
                                           (numbers call)
                                           (sleep 5))
                             (sb-ext:timeout () :time-over)))
            "~A" *transport*)
        (setf stop t)))))

;;; A debugger that stays open

(define-case a-debugger-holds-up-no-other-call (:except (:in-process :in-process-share
                                                         :in-process-threads))
  "SLIME's C-c C-c in a thread that waits for its call: the debugger stays open, and another
thread's call on that channel ends in time. Then the first goes on."
  (let ((begun (sb-thread:make-semaphore)) (answer (sb-thread:make-semaphore))
        (debugged (sb-thread:make-semaphore)) (continued (sb-thread:make-semaphore)))
    (with-transport (channel)
        (:ask #'double
         :collect (handling (stream)
                    (sb-thread:signal-semaphore begun)
                    (sb-thread:wait-on-semaphore answer :timeout 60)
                    (note (reduce #'+ (numbers stream)))))
      (flet ((drives-p (thread)
               ;; true if THREAD's call is driven by it; else that call is ended. Where a reserve
               ;; thread has taken the idle loop, as the watchdog has it do, it keeps it for a call
               (let ((driving (clgrpc.loop::event-loop-driving (loop-of channel))))
                 (or (wait-until (lambda () (clgrpc.loop::driving-owner driving)) :seconds 1)
                     (progn (sb-thread:signal-semaphore answer)
                            (is (eql 7 (sb-thread:join-thread thread)))
                            nil)))))
        (let ((thread (loop repeat 20
                            for thread = (progn
                                           ;; one call after the other: callers drive
                                           (dotimes (i 10)
                                             (is (eql 2 (number-of (ask channel (note 1))))))
                                           (in-thread
                                             (number-of (collect channel
                                                                 (list (note 3) (note 4))))))
                            do (is-true (sb-thread:wait-on-semaphore begun :timeout 60))
                            when (drives-p thread) return thread
                            finally (error "No caller drives."))))
          (sb-thread:interrupt-thread
           thread
           (lambda ()
             (sb-sys:with-interrupts
               (sb-thread:signal-semaphore debugged)
               (sb-thread:wait-on-semaphore continued :timeout 60))))
          (is-true (sb-thread:wait-on-semaphore debugged :timeout 60))
          (dotimes (i 3)
            (is (eql (* 2 i) (number-of (ask channel (note i) :timeout 2)))))
          (sb-thread:signal-semaphore continued)
          (sb-thread:signal-semaphore answer)
          (is (eql 7 (sb-thread:join-thread thread))))))))
