;;;; Turns, posts, deferred functions, timers, errors, signals, and the ends of a loop.

(in-package #:clgrpc.tests.loop)

;;; Posts

(test posts-keep-each-threads-order
  (with-loops (loop) ()
    (let* ((seen (list '())) (done (sb-thread:make-semaphore)) (each 5000))
      (flet ((produce (name)
               (dotimes (i each)
                 (let ((item (cons name i)))
                   (post loop (lambda () (push item (car seen))))))
               (post loop (lambda () (sb-thread:signal-semaphore done)))))
        (mapc #'sb-thread:join-thread
              (loop for name below 4
                    collect (sb-thread:make-thread #'produce :arguments (list name)))))
      (is-true (await done 4))
      (dotimes (name 4)
        (is (equal (loop for i below each collect i)
                   (loop for (from . i) in (reverse (car seen)) when (= name from) collect i)))))))

(test posts-wake-a-sleeper-once
  (let ((counts (make-counts)))
    (with-loops (loop) (:poller (counting-poller counts))
      (is-true (await (counts-asleep counts)))
      (let ((entered (sb-thread:make-semaphore)) (leave (sb-thread:make-semaphore)) (ran 0))
        (post loop (lambda ()
                     (sb-thread:signal-semaphore entered)
                     (await leave)))
        (is-true (await entered))
        ;; none if a timer had just ended its sleep
        (is (>= 1 (counts-wakes counts)))
        (let ((before (counts-wakes counts)))
          (dotimes (i 1000) (post loop (lambda () (incf ran))))
          (is (= before (counts-wakes counts)) "a running loop is not woken"))
        (sb-thread:signal-semaphore leave)
        (settle loop)
        (is (= 1000 ran))))))

(test idle-loop-makes-no-system-call
  (let ((counts (make-counts)))
    (with-loops (loop) (:poller (counting-poller counts))
      (let ((listener (listen-with (list loop) (make-handler :input #'echo))))
        (with-clients (client) ((listener-address listener))
          (client-send client (octets-of 1))
          (client-receive client 1)
          (settle loop)
          (flet ((let-time-pass (seconds)
                   (sb-thread:wait-on-semaphore (sb-thread:make-semaphore) :timeout seconds)))
            (loop for waits = (counts-waits counts)
                  do (let-time-pass 0.05)
                  until (= waits (counts-waits counts)))
            (let ((waits (counts-waits counts)) (turns (event-loop-turns loop)))
              (is (> 100 waits))
              ;; this wait is not for an event: nothing may happen
              (let-time-pass 0.5)
              (is (= waits (counts-waits counts)))
              (is (= turns (event-loop-turns loop))))))))))

(test loop-survives-collections
  (with-loops (loop) ()
    (dotimes (i 3)
      (sb-ext:gc)
      (is (= i (on-loop loop (lambda () i)))))))

;;; Deferred functions

(test deferred-functions-keep-order
  (with-loops (loop) ()
    (let ((seen '()))
      (on-loop loop (lambda ()
                      ;; more than the ring has at first, and its start is in the middle
                      (dotimes (i 10) (defer loop #'identity i))))
      (settle loop)
      (on-loop loop (lambda ()
                      (dotimes (i 1000)
                        (defer loop (lambda (i) (push i seen)) i))))
      (settle loop)
      (is (equal (loop for i below 1000 collect i) (reverse seen))))))

(test deferred-function-that-defers-gives-way
  (with-loops (loop) ()
    (let ((rounds 0) (go-on t))
      (labels ((again (argument)
                 (incf rounds)
                 (when go-on (defer loop #'again argument))))
        (on-loop loop (lambda () (defer loop #'again nil)))
        (dotimes (i 3) (settle loop))
        (is (plusp rounds) "posts are still served")
        (on-loop loop (lambda () (setf go-on nil)))))))

(test deferred-functions-run-after-all-reads
  (with-loops (loop) ()
    (let* ((order '()) (done (sb-thread:make-semaphore))
           (handler (make-handler
                     :input (fn (connection _octets _start end)
                              (push :read order)
                              (defer (connection-loop connection)
                                     (fn (_argument)
                                       (push :deferred order)
                                       (sb-thread:signal-semaphore done))
                                     nil)
                              end)))
           (listener (listen-with (list loop) handler)))
      (with-clients (a b c) ((listener-address listener))
        (let ((held (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
          (settle loop)
          (is-true (loop until (= 3 (event-loop-connections loop)) do (settle loop)
                         finally (return t)))
          (post loop (lambda () (sb-thread:signal-semaphore held) (await release)))
          (await held)
          (dolist (client (list a b c)) (client-send client (octets-of 1)))
          (sb-thread:signal-semaphore release)
          (is-true (await done 3))
          (is (equal '(:read :read :read :deferred :deferred :deferred) (reverse order))))))))

;;; Errors

(test errors-do-not-end-the-loop
  (with-logged (events)
    (with-loops (loop) ()
      (let ((ran '()))
        (on-loop loop (lambda ()
                        (defer loop (lambda (x) (push x ran)) 1)
                        (defer loop #'error "deferred")
                        (defer loop (lambda (x) (push x ran)) 2)
                        (start-timer loop (make-timer #'error "timer") 0)
                        (start-timer loop (make-timer (lambda (x) (push x ran)) 3) 0)))
        (post loop (lambda () (error "posted")))
        (settle loop)
        (is (equal '(1 2 3) (sort ran #'<)))))
    (is (equal '(:deferred-function-error :posted-function-error :timer-function-error)
               (sort (mapcar #'second (events)) #'string<)))
    (dolist (event (events))
      (is (eq :error (first event)))
      (is (typep (getf (cddr event) :condition) 'error))
      (is (search "ERROR" (getf (cddr event) :backtrace))))))

(defstruct (broken-source (:include clgrpc.loop::source)))

(test functions-of-a-source-may-fail
  "The function for an event may fail, and the function for the loop's end."
  (let ((descriptor (os:open-eventfd)))
    (flet ((fails (&rest arguments) (declare (ignore arguments)) (error 'mishap)))
      (with-logged (events)
        (with-loops (loop) ()
          (let ((source (make-broken-source :loop loop :on-event #'fails :on-release #'fails)))
            (on-loop loop (lambda () (clgrpc.loop::add-source source descriptor)))
            (os:write-eventfd descriptor)
            (loop until (events) do (settle loop))
            (stop-event-loop loop)
            (join-event-loop loop)
            (is (equal (list (list :error :event-handler-error source 'mishap)
                             (list :error :release-error source 'mishap))
                       (remove-duplicates
                        (loop for (level name . plist) in (events)
                              collect (list level name (getf plist :source)
                                            (type-of (getf plist :condition))))
                        :test #'equal)))))))
    (os:close-descriptor descriptor)))

(test exhausted-stack-does-not-end-the-loop
  (support:exhausting-a-stack
    (with-logged (events)
      (with-loops (loop) ()
        (labels ((dig (n) (1+ (dig (1+ n)))))
          (on-loop loop (lambda () (defer loop #'dig 0))))
        (is (eq :alive (on-loop loop (constantly :alive)))))
      (is (equal '(:deferred-function-error) (mapcar #'second (events)))))))

;;; Timers

(test timers-of-a-loop
  (with-loops (loop) ()
    (let ((done (sb-thread:make-semaphore)) (lateness nil) (due 0))
      (on-loop loop (lambda ()
                      (setf due (+ (event-loop-now loop) 20000000))
                      (start-timer loop
                                   (make-timer (lambda (due)
                                                 (setf lateness (- (monotonic-ns) due))
                                                 (sb-thread:signal-semaphore done))
                                               due)
                                   due)))
      (is-true (await done))
      (is (<= 0 lateness)))))

(defun virtual-poller (clock-cell)
  "A poller without descriptors whose wait sets the clock forward at once."
  (make-poller :add (constantly 0) :remove (constantly 0) :wake (constantly nil)
               :close (constantly nil)
               :wait (fn (_poller timeout-ns)
                       (when (plusp timeout-ns) (incf (car clock-cell) timeout-ns))
                       0)))

(test virtual-time
  ;; a day of timers in no time, in this thread
  (let* ((cell (list 0))
         (loop (make-event-loop :clock (lambda () (car cell)) :poller (virtual-poller cell)))
         (seen '()))
    (labels ((note (name)
               (push (cons name (floor (event-loop-now loop) +ns-per-second+)) seen))
             (schedule (seconds function argument)
               (start-timer loop (make-timer function argument) (seconds-ns seconds))))
      (loop for (name seconds) in '((:hour 3600) (:second 1) (:day 86400) (:minute 60))
            do (schedule seconds #'note name))
      (schedule 90000 #'stop-event-loop loop)
      (run-event-loop loop))
    (is (equal '((:second . 1) (:minute . 60) (:hour . 3600) (:day . 86400)) (reverse seen)))
    (is (> 40 (event-loop-turns loop)))))

;;; Signals

(test signals-reach-the-loop
  (with-loops (loop) ()
    (let ((got (sb-thread:make-semaphore)) (where nil))
      (unwind-protect
           (progn
             (on-signal loop os:+sigusr1+ (lambda ()
                                            (setf where (in-event-loop-p loop))
                                            (sb-thread:signal-semaphore got)))
             (sb-alien:alien-funcall
              (sb-alien:extern-alien "raise" (function sb-alien:int sb-alien:int)) os:+sigusr1+)
             (is-true (await got))
             (is-true where))
        (on-signal loop os:+sigusr1+ nil)))))

(test signals-reach-each-loop-that-asks
  (with-loops (one other) ()
    (let ((one-got (sb-thread:make-semaphore)) (other-got (sb-thread:make-semaphore)))
      (flet ((send () (sb-posix:kill (sb-posix:getpid) os:+sigusr1+)))
        (unwind-protect
             (progn
               (on-signal one os:+sigusr1+ (lambda () (sb-thread:signal-semaphore one-got)))
               (on-signal other os:+sigusr1+ (lambda () (sb-thread:signal-semaphore other-got)))
               (send)
               (is-true (await one-got))
               (is-true (await other-got))
               (on-signal other os:+sigusr1+ nil)
               (send)
               (is-true (await one-got))
               (settle other)
               (is (= 0 (sb-thread:semaphore-count other-got))))
          (on-signal one os:+sigusr1+ nil)
          (on-signal other os:+sigusr1+ nil))))))

;;; Life

(test functions-called-at-the-stop
  (with-logged (events)
    (let ((calls '()) (ready nil))
      (with-loops (loop) ()
        (flet ((first-added (loop) (push (list :first loop (in-event-loop-p loop)) calls))
               (last-added (loop)
                 (setf ready (event-loop-state loop))
                 (push (list :last loop (in-event-loop-p loop)) calls)
                 (error 'mishap)))
          (on-loop loop (lambda ()
                          (call-at-stop loop #'first-added)
                          (call-at-stop loop #'last-added)
                          (call-at-stop loop #'first-added))))
        (stop-event-loop loop)
        (is-true (join-event-loop loop))
        (is (eq :running ready))
        (is (equal (list (list :first loop t) (list :last loop t)) calls)))
      (is (equal '(:stop-function-error) (mapcar #'second (events)))))))

(test loop-that-is-never-started
  (let* ((descriptors (os:open-descriptor-count))
         (loop (make-event-loop)) (ran 0))
    (is-true (post loop (lambda () (incf ran))))
    (stop-event-loop loop)
    (is-true (join-event-loop loop))
    (is (= 1 ran) "an accepted post is run")
    (is-false (post loop (lambda () (incf ran))))
    (is (= descriptors (os:open-descriptor-count)))
    (signals misuse (launch-event-loop loop))
    (signals misuse (listen-on "127.0.0.1:0" (make-server-options) (list loop) #'list))
    (signals misuse (connect-to loop "127.0.0.1:1" 1 #'list))
    (is (= descriptors (os:open-descriptor-count)))))

(test loop-in-this-thread
  (let ((loop (make-event-loop)) (where nil))
    (post loop (lambda ()
                 (setf where (in-event-loop-p loop))
                 (stop-event-loop loop)))
    (run-event-loop loop)
    (is-true where)
    (is-false (event-loop-running-p loop))
    (is-true (join-event-loop loop))
    (signals misuse (run-event-loop loop))))

(test loop-is-started-once
  (with-loops (loop) ()
    (is-true (event-loop-running-p loop))
    (signals misuse (launch-event-loop loop))
    (stop-event-loop loop)
    (stop-event-loop loop)
    (is-true (join-event-loop loop))
    (is-true (join-event-loop loop))))

(test joining-has-a-limit
  (with-logged (events)
    (with-loops (loop) ()
      (let ((held (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
        (post loop (lambda () (sb-thread:signal-semaphore held) (await release)))
        (await held)
        (stop-event-loop loop)
        (is-false (join-event-loop loop :timeout-seconds 0.05))
        (sb-thread:signal-semaphore release)
        (is-true (join-event-loop loop))))
    (is (equal '(:loop-does-not-stop) (mapcar #'second (events))))))

(test unwinding-stops-the-loop
  (let ((descriptors (os:open-descriptor-count)) (loop (make-event-loop)))
    (post loop (lambda () (throw 'out :thrown)))
    (is (eq :thrown (catch 'out (run-event-loop loop))))
    (is-true (join-event-loop loop))
    (is (= descriptors (os:open-descriptor-count)))))

(test loops-print
  (let ((loop (make-event-loop :name "printed")))
    (is (search "printed new" (princ-to-string loop)))
    (stop-event-loop loop)
    (is (search "stopped" (princ-to-string loop)))))

(test turns-allocate-nothing
  (with-loops (server client) ()
    (let* ((done (sb-thread:make-semaphore)) (rounds 0) (consed 0) (start 0)
           (listener (listen-with (list server) (make-handler :input #'echo))))
      (flet ((input (connection octets start-index end)
               (incf rounds)
               (when (= rounds 2000) (setf start (sb-ext:get-bytes-consed)))
               (cond ((= rounds 6000)
                      (setf consed (- (sb-ext:get-bytes-consed) start))
                      (sb-thread:signal-semaphore done))
                     (t (echo connection octets start-index end)))
               end))
        (connect-to client (listener-address listener) (seconds-ns 10)
                    (fn (byte-channel _condition)
                      (let ((connection (make-connection client byte-channel
                                                         (make-handler :input #'input))))
                        (append-octet (connection-output connection) 1)))))
      (is-true (await done))
      ;; 8,000 turns
      (is (> 20000 consed) "~D octets" consed))))
