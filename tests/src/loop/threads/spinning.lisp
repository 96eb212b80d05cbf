;;;; Spinning: a loop's decisions to spin in its waits, simulated by a model of two ends; and that a
;;;; loop that spins misses nothing.

(in-package #:clgrpc.tests.loop)

;;; The model: two ends that answer each other. Times are nanoseconds.

(defconstant +model-work-ns+ 6000 "What an end takes from a message to its answer.")
(defparameter *model-wake-ns* 20000 "The time that an end that sleeps needs to wake.")

(defstruct model-end
  (spin-state (clgrpc.loop::make-spin-state))
  (driven nil)
  (begun 0)                             ; when it began to wait
  (spin-ns 0)                           ; how long it spins at most
  (spun 0)                              ; how long it has spun, in all
  (token 1)                             ; the source of its events
  (octets 100))                         ; what it sends before each wait

(defun begin-to-wait (end now)
  (setf (model-end-begun end) now
        (model-end-spin-ns end) (clgrpc.loop::spin-time-ns (model-end-spin-state end)
                                                           (model-end-driven end)
                                                           (model-end-octets end))))

(defun see-event (end at)
  "The time when END, which waits, sees an event that came at AT."
  (let* ((spin-ns (model-end-spin-ns end))
         (waited (max 0 (- at (model-end-begun end))))
         (awake (< waited spin-ns)))
    (incf (model-end-spun end) (min waited spin-ns))
    (when (plusp spin-ns)
      (clgrpc.loop::note-spin (model-end-spin-state end) (model-end-driven end)
                              (and awake waited)))
    (clgrpc.loop::note-source (model-end-spin-state end) (model-end-token end))
    (if awake at (+ at *model-wake-ns*))))

(defun play (caller server count &key (now 0) (pause-ns (constantly 0)) (work-ns +model-work-ns+))
  "Let CALLER make COUNT calls of SERVER from NOW on; before call I it pauses for (PAUSE-NS I).
Either may be nil, an end that always sleeps. Return the end time and the mean time of the last 100
calls."
  (let ((last '()))
    (flet ((wait (end now) (when end (begin-to-wait end now)))
           (see (end at) (if end (see-event end at) (+ at *model-wake-ns*))))
      (wait server now)
      (dotimes (i count)
        (incf now (funcall pause-ns i))
        (let ((begin now))
          (incf now +model-work-ns+)
          (wait caller now)
          (let ((answered (+ work-ns (see server now))))
            (wait server answered)
            (setf now (see caller answered)))
          (push (- now begin) last)))
      (values now (/ (reduce #'+ last :end (min count 100)) (min count 100))))))

(defun average-of (&rest arguments)
  (nth-value 1 (apply #'play arguments)))

(test two-ends-that-spin-find-each-other
  (let ((caller (make-model-end :driven t)) (server (make-model-end)))
    (is (= (* 2 (+ +model-work-ns+ *model-wake-ns*)) (average-of caller server 8)) "at first")
    (is (= (* 2 +model-work-ns+) (average-of caller server 500)) "soon")
    (is (> (* 2.2 +model-work-ns+)
           (average-of caller server 1000 :pause-ns (lambda (i) (if (= 50 (mod i 100)) 100000 0))))
        "rare pauses change little")
    (is (< (* 2 +model-work-ns+)
           (average-of caller server 1000 :pause-ns (constantly 100000)))
        "a pause before each call ends the spinning")
    (is (= (* 2 +model-work-ns+) (average-of caller server 10000))
        "afterwards both ends spin again")))

(test mixed-waits-do-not-keep-a-server-spinning
  "If every second wait is too long, spinning costs more than it saves, and becomes rare; with one
long wait in four it continues."
  (flet ((spun (every)
           "What a server spins on average if each wait whose number is divided by EVERY is long."
           (let ((server (make-model-end)) (now 0))
             (dotimes (i 4000 (/ (model-end-spun server) 4000))
               (begin-to-wait server now)
               (setf now (see-event server (+ now (if (zerop (mod i every)) 100000 5000))))))))
    (is (< (spun 2) 5000) "constant spinning would take 14500")
    (is (< 9000 (spun 4) 9800))))

(test a-server-of-long-ago-is-found
  "A new caller finds a server whose trials have failed for long, if it calls for long enough."
  (let ((server (make-model-end)) (caller (make-model-end :driven t)))
    (play nil server 10000)
    (is (= (* 2 +model-work-ns+) (average-of caller server 20000)))))

(test ends-of-one-process-that-wake-slowly-find-each-other
  "A caller's trial makes the loops of its process try too, even if they have not for long."
  (let ((server (make-model-end)) (caller (make-model-end :driven t)) (*model-wake-ns* 60000))
    (play nil server 10000)
    (is (= (* 2 +model-work-ns+) (average-of caller server 300)))
    (play nil server 10000)
    (is (= (* 2 +model-work-ns+) (average-of (make-model-end :driven t) server 300)))))

(test a-caller-whose-messages-become-short-tries-soon
  "After long messages, for which spinning does not pay, a caller with short messages to the same
server spins within two hundred calls; if only a few short ones come at a time, trials stay rare."
  (let ((server (make-model-end)) (caller (make-model-end :driven t)))
    (flet ((call (octets count &rest arguments)
             (setf (model-end-octets caller) octets)
             (apply #'average-of caller server count arguments)))
      (call 100000 20000 :work-ns 300000)
      (is (= (* 2 +model-work-ns+) (call 100 200)))
      (call 100000 20000 :work-ns 300000)
      (let ((spun (model-end-spun caller)))
        (dotimes (i 20000)
          (if (< (mod i 20) 5)
              (call 100000 1 :work-ns 300000)
              (call 100 1)))
        (is (< (- (model-end-spun caller) spun) 20000000))))))

(test a-caller-that-spins-has-others-try-now-and-then
  "Its peer may share its processor: then trials of the peer fail, except long ones. A peer that
spins ignores the requests."
  (let ((server (make-model-end)) (caller (make-model-end :driven t)))
    (average-of caller server 1000)
    (let ((before clgrpc.loop::**callers-trials**) (spun (model-end-spun server)))
      (play caller server 81920)
      (is (= 10 (- clgrpc.loop::**callers-trials** before)))
      (is (= (* 81920 +model-work-ns+) (- (model-end-spun server) spun))))))

(test trials-that-fail-are-rare
  "An end spins little in vain if its peer sleeps, or takes long to answer."
  (flet ((spun (end play)
           (funcall play 10000)
           (let ((before (model-end-spun end)))
             (funcall play 100000)
             (/ (- (model-end-spun end) before) 100000))))
    (let ((server (make-model-end)))
      (is (< (spun server (lambda (count) (play nil server count))) 200)))
    (let ((caller (make-model-end :driven t)))
      (is (< (spun caller (lambda (count) (play caller nil count))) 800)))
    (let ((caller (make-model-end :driven t)) (server (make-model-end)))
      (is (< (spun caller (lambda (count) (play caller server count :work-ns 300000))) 200)))))

(test only-one-source-is-spun-for
  (let ((server (make-model-end)))
    (play nil server 3 :work-ns 0)
    (is (= 0 (loop for i below 1000
                   do (setf (model-end-token server) (1+ (mod i 2)))
                      (begin-to-wait server 0)
                      (see-event server 1000)
                   sum (model-end-spun server)))
        "two sources alternate")
    (setf (model-end-token server) 7)
    (loop repeat 100 do (begin-to-wait server 0) (see-event server 1000))
    (is (plusp (model-end-spin-ns server)))
    (setf (model-end-token server) 0)
    (see-event server 1000)
    (begin-to-wait server 0)
    (is (= 0 (model-end-spin-ns server)) "a wait that ends another way ends the spinning")))

(test a-source-now-and-then
  "It causes no trials in vain for ever; one for which spinning pays is tried again soon."
  (let ((server (make-model-end)))
    (flet ((spun (count)
             (let ((before (model-end-spun server)))
               (loop for i below count
                     do (setf (model-end-token server) (if (= 49 (mod i 50)) 2 1))
                        (begin-to-wait server 0)
                        (see-event server 1000000))
               (/ (- (model-end-spun server) before) count))))
      (spun 10000)
      (is (< (spun 10000) 200))))
  (let ((caller (make-model-end :driven t)) (server (make-model-end)))
    (play caller server 1000)
    (setf (model-end-token caller) 2)
    (play caller server 1)
    (setf (model-end-token caller) 1)
    (is (= (* 2 +model-work-ns+) (average-of caller server 500)))))

;;; The real thing

(defun spinning-for-good ()
  "A spin state that spins through each wait."
  (clgrpc.loop::make-spin-state :token 1 :streak 8 :credit 4 :sent 1))

(test a-loop-spins-and-then-sleeps
  (let ((waits '()))
    (with-still-loop (loop :note (lambda (what) (push what waits)))
      (setf (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
      (make-turn-of loop)
      (is (< 1 (count 0 waits)) "the loop looks more than once")
      (is (= -1 (first waits)) "and sleeps without limit")
      (is (= 1 (count 0 waits :test #'/=)))
      (setf waits '()
            (clgrpc.loop::event-loop-spin-state loop) nil)
      (make-turn-of loop)
      (is (equal '(-1) waits) "without a spin state the loop sleeps at once")
      (setf waits '()
            (clgrpc.loop::event-loop-spin-state loop)
            (clgrpc.loop::make-spin-state :token 1 :streak 8 :credit 4))
      (make-turn-of loop)
      (is (equal '(-1) waits) "a loop that has sent nothing does not spin")
      (setf waits '()
            (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
      (start-timer loop (make-timer #'identity nil) (+ (monotonic-ns) 10000))
      (make-turn-of loop)
      (is (= 0 (count 0 waits)) "a loop does not spin if a timer is due at once"))))

(defun wait-at-least (ns)
  "Let NS pass without sleep."
  (loop with end = (+ (monotonic-ns) ns)
        while (< (monotonic-ns) end)))

(test timers-are-not-late-for-a-spin
  "The time of a spin, even if its thread was kept from running, is not waited again."
  (let ((waits '()))
    (with-still-loop (loop :note (lambda (what)
                                   (push what waits)
                                   (when (eql 0 what) (wait-at-least 3000000))))
      (setf (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
      (start-timer loop (make-timer #'identity nil) (+ (monotonic-ns) 60000000000))
      (make-turn-of loop)
      (is (< 1000000 (first waits) (- 60000000000 3000000)))
      (is (<= 3000000 (getf (event-loop-statistics loop) :spun-ns)))
      (setf waits '()
            (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
      (start-timer loop (make-timer #'identity nil) (+ (monotonic-ns) 1000000))
      (make-turn-of loop)
      (is (eql 0 (first waits)) "the timer is due after the spinning"))))

(test who-posts-ends-the-spinning
  (let ((waits '()) (ran nil) (still nil))
    (with-still-loop (loop :note (lambda (what)
                                   (push what waits)
                                   (when (and still (eql 0 what) (= 3 (count 0 waits)))
                                     (post (shiftf still nil) (lambda () (setf ran t))))))
      (setf still loop
            (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
      (make-turn-of loop)
      (is-true ran)
      (is (= 3 (count 0 waits)))
      (is (= 1 (count :wake waits)) "a spinning loop counts as asleep")
      (is (notany (lambda (what) (eql -1 what)) waits) "and does not sleep"))))

(test a-loop-that-spins-misses-nothing
  "Posts and octets that come at any moment of a spin, or of the following sleep, are seen."
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo))))
      (with-clients (client) ((listener-address listener))
        (dotimes (i 2000)
          (setf (clgrpc.loop::event-loop-spin-state loop) (spinning-for-good))
          (let ((pause (random 60)) (begin (monotonic-ns)))
            (loop while (< (- (monotonic-ns) begin) (* 1000 pause))))
          (if (evenp i)
              (unless (= i (on-loop loop (lambda () i))) (fail "A post is lost."))
              (progn (client-send client (pattern 3))
                     (unless (equalp (pattern 3) (client-receive client 3))
                       (fail "An echo is lost."))))))
      (on-loop loop (lambda () (close-listener listener)))
      (pass))))

(test what-never-spins
  (let ((*world* (make-world :clock #'monotonic-ns :wait (constantly nil)
                             :network (loop::world-network *world*))))
    (is (null (clgrpc.loop::make-spin-state-if-useful)) "A simulated world never spins, since it
cannot lose time."))
  (flet ((spins-with (processors)
           (with-replaced (('os:processor-limit (constantly processors)))
             (not (null (clgrpc.loop::make-spin-state-if-useful))))))
    (is-true (spins-with 2))
    (is-false (spins-with 1) "with one processor the peer cannot run meanwhile")
    (is-false (spins-with 3/2) "what is spun would be taken from the quota")))
