;;;; Callers that drive the client's loop: alone, interrupted, beside others, inside handlers; and
;;;; who runs the loop when they do not.

(in-package #:clgrpc.tests.promise)

(defun client-loop (channel)
  (client:core-loop (client::channel-core channel)))

(defun free-p (loop)
  (= 0 (clgrpc.loop::baton-state (clgrpc.loop::event-loop-baton loop))))

(defun runner (loop)
  "The thread that runs LOOP, or nil."
  (clgrpc.loop::event-loop-thread loop))

(defun call-with-gate (function)
  "Call FUNCTION with a handler of ASK that answers a note above 0 only once the second argument, a
signal, has been given for it, and says by the third that it has begun."
  (let ((release (make-signal)) (begun (make-signal)))
    (funcall function
             (handling (note)
               (when (plusp (number-of note))
                 (signal-it begun)
                 (await-signal release))
               note)
             release begun)))

(defun start-driver (channel function release begun)
  "Have a thread call FUNCTION, which asks for a note that is held back, so that it drives the loop
of CHANNEL; return it."
  (let ((loop (client-loop channel)))
    (loop repeat 20
          do (wait-until (lambda () (ask channel (note 0)) (free-p loop)))
             (let ((thread (sb-thread:make-thread function)))
               (await-signal begun)
               (when (wait-until (lambda () (eq thread (runner loop))) :seconds 0.5)
                 (return thread))
               ;; a reserve thread was first, which may be
               (signal-it release)
               (sb-thread:join-thread thread))
          finally (error "No thread gets to drive."))))

(test interrupted-caller-passes-the-baton-on
  "Leaving a call by force, as C-c in a REPL does, cancels it, and the loop is run on."
  (call-with-gate
   (lambda (handler release begun)
     (let ((cancelled (make-signal)) (inside (list 0)))
       (with-probe (channel :options '(:execution :blocking))
           (:ask (lambda (note call)
                   (grpc:on-cancel call (lambda () (signal-it cancelled)))
                   (sb-ext:atomic-incf (car inside))
                   (unwind-protect (funcall handler note call)
                     (sb-ext:atomic-decf (car inside)))))
         (dotimes (i 5)
           (let ((caller (start-driver channel
                                       (lambda () (catch 'out (ask channel (note 1)) :answered))
                                       release begun)))
             (sb-thread:interrupt-thread caller (lambda () (throw 'out :thrown)))
             (is (eq :thrown (sb-thread:join-thread caller :timeout +patience+ :default :hangs)))
             (is (await-signal cancelled) "the server hears of it")
             (is (= 0 (number-of (ask channel (note 0)))) "others go on")
             (signal-it release)
             ;; or the next one's handler might take what releases this one
             (eventually (zerop (car inside))))))))))

(test interrupt-leaves-the-loop-to-others
  "While C-c has opened a debugger for a caller that drives, others call, and it may go on to wait."
  (call-with-gate
   (lambda (handler release begun)
     (with-probe (channel :options '(:execution :blocking)) (:ask handler)
       (let* ((entered (make-signal)) (continue (make-signal))
              (caller (start-driver channel
                                    (lambda ()
                                      (let ((sb-ext:*invoke-debugger-hook*
                                              (fn (_condition _hook)
                                                (signal-it entered)
                                                (await-signal continue)
                                                (continue))))
                                        (number-of (ask channel (note 1)))))
                                    release begun)))
         (sb-thread:interrupt-thread
          caller (lambda ()
                   (let ((interrupt (make-condition 'sb-sys:interactive-interrupt)))
                     (with-simple-restart (continue "Go on.") ; as SBCL's own C-c does
                       (signal interrupt)
                       (invoke-debugger interrupt)))))
         (is (await-signal entered))
         (is (= 0 (number-of (ask channel (note 0)))) "others call meanwhile")
         (signal-it continue)
         (signal-it release)
         (is (eql 1 (sb-thread:join-thread caller :timeout +patience+ :default :hangs))))))))

(test who-handles-an-interrupt-has-it
  "C-c reaches the handlers of a caller that drives, and no debugger."
  (call-with-gate
   (lambda (handler release begun)
     (with-probe (channel :options '(:execution :blocking)) (:ask handler)
       (let ((caller (start-driver channel
                                   (lambda ()
                                     (let ((sb-ext:*invoke-debugger-hook*
                                             (fn (_condition _hook) (sb-thread:abort-thread))))
                                       (handler-case (ask channel (note 1))
                                         (sb-sys:interactive-interrupt () :handled))))
                                   release begun)))
         (sb-thread:interrupt-thread
          caller (lambda ()
                   (let ((interrupt (make-condition 'sb-sys:interactive-interrupt)))
                     (signal interrupt)
                     (invoke-debugger interrupt))))
         (is (eq :handled (sb-thread:join-thread caller :timeout +patience+ :default :hangs)))
         (is (= 0 (number-of (ask channel (note 0)))) "others call")
         (signal-it release))))))

(test callers-at-once-are-served
  "With several callers a reserve thread runs the loop; when one is left it drives again."
  (with-probe (channel) (:ask #'double)
    (let ((sums (with-threads (i 16)
                  (loop for n below 200 sum (number-of (ask channel (note n)))))))
      (is (every (lambda (sum) (= sum (* 199 200))) sums)))
    (let ((loop (client-loop channel)))
      (is (wait-until (lambda () (ask channel (note 1)) (free-p loop)))
          "between the calls of one caller nobody runs it"))))

(test the-only-caller-gets-the-loop-back
  "A reserve thread that has taken the loop in the middle of a call, because the machine was slow or
others had calls, leaves it to the caller again."
  (with-probe (channel)
      (:ask #'double
       :chat (lambda (stream call)
               (grpc:do-messages (note stream) (grpc:send call note))))
    (ask channel (note 0))
    (let* ((loop (client-loop channel)) (chat (chat channel :open)) (left 0))
      (flet ((say (i)
               (grpc:send chat (note i))
               (is (= i (number-of (grpc:receive chat))))))
        (dotimes (round 20)
          (say round)
          (clgrpc.loop::request-runner loop)
          (eventually (not (free-p loop)))
          (when (loop for i below 100
                      do (say i)
                      thereis (free-p loop))
            (incf left))))
      (is (= 20 left))
      (grpc:close-send chat)
      (is (null (grpc:receive chat))))))

(test who-is-left-the-loop-runs-it
  "A caller that sleeps while a reserve thread runs the loop is woken when that leaves the loop to
it, and runs the loop, though its answer has not come: nobody else would."
  (call-with-gate
   (lambda (handler release begun)
     (with-probe (channel :options '(:execution :blocking)) (:ask handler)
       (let* ((loop (client-loop channel))
              (caller (start-driver channel (lambda () (number-of (ask channel (note 1))))
                                    release begun)))
         ;; a second call has a reserve thread take the loop
         (is (= 0 (number-of (ask channel (note 0)))))
         (is-true (wait-until (lambda ()
                                ;; in this turn somebody seems to be woken
                                (loop:post loop (lambda () (loop:call-last loop #'identity nil)))
                                (eq caller (runner loop)))))
         (signal-it release)
         (is (eql 1 (sb-thread:join-thread caller :timeout +patience+ :default :hangs))))))))

(test nested-calls-do-not-drive
  "A handler's own calls are driven by a reserve thread, at once."
  (let ((channel-box (list nil)) (drivers (list '())))
    (with-probe (channel)
        (:ask (handling (note)
                (if (plusp (number-of note))
                    (let ((answer (ask (car channel-box) (note (1- (number-of note))))))
                      (push (clgrpc.loop::driving-owner
                             (clgrpc.loop::event-loop-driving (client-loop (car channel-box))))
                            (car drivers))
                      (note (1+ (number-of answer))))
                    note)))
      (setf (car channel-box) channel)
      (is (= 3 (number-of (ask channel (note 3)))))
      (let ((slowest 0))
        (dotimes (i 50)
          (setf slowest (max slowest (elapsed-seconds (ask channel (note 2))))))
        (report "nested calls: ~,1F ms at most" (* 1000 slowest)))
      (is (every #'null (car drivers))))))

(test completions-run-elsewhere
  "A completion never runs on a thread that drives, and may itself make calls."
  (with-probe (channel) (:ask #'double)
    (let ((threads (list '())) (done (make-signal)))
      (dotimes (i 20)
        (grpc:attach (grpc:call-async #'lab.bench:ask channel (note i) :timeout +patience+)
                     (fn (_reply _error)
                       (ask channel (note 1))
                       (sb-ext:atomic-push sb-thread:*current-thread* (car threads))
                       (signal-it done)))
        (ask channel (note i)))
      (is (await-signal done :count 20))
      (is-false (member sb-thread:*current-thread* (car threads))))))

(test one-future-completes-at-once
  "Nobody waits for the call, and still its end does not wait for the watchdog."
  (with-probe (channel) (:ask #'double)
    (ask channel (note 0))
    (let* ((latencies '()) (done (make-signal))
           (late (nth-value 1 (call-with-lateness
                               (lambda ()
                                 (dotimes (i 20)
                                   (let ((begin (monotonic-ns)))
                                     (grpc:attach
                                      (grpc:call-async #'lab.bench:ask channel (note i)
                                                       :timeout +patience+)
                                      (fn (_reply _error)
                                        (push (/ (- (monotonic-ns) begin) 1d6) latencies)
                                        (signal-it done)))
                                     (is (await-signal done)))))))))
      (report "one future at a time: completed after ~,2F ms (median); threads wake ~,2F ms late"
              (quantile latencies 0.5) late)
      (if (and (<= 5 (quantile latencies 0.5)) (< 1 late))
          (support:skip-on-slow-machine "threads wake ~,1F ms late" late)
          (is (< (quantile latencies 0.5) 5))))))

(test callbacks-run-on-no-stranger
  "What a caller drives runs no callback of another's call."
  (let ((strangers (list 0)))
    (with-probe (channel)
        (:ask #'double
         :chat (lambda (stream call)
                 (grpc:do-messages (note stream) (grpc:send call note))))
      (let ((caller sb-thread:*current-thread*))
        (dotimes (i 30)
          (let ((chat (chat channel :open)) (heard (make-signal)))
            (grpc:on-message chat (fn (_note)
                                    (when (eq caller sb-thread:*current-thread*)
                                      (sb-ext:atomic-incf (car strangers)))
                                    (signal-it heard)))
            (grpc:send chat (note i))
            (ask channel (note i))
            (grpc:close-send chat)
            (ask channel (note i))
            (is (await-signal heard))))))
    (is (= 0 (car strangers)))))

(test loops-end-however-they-are-used
  "Channels closed while others call, servers stopped while they are called."
  (dotimes (round 10)
    (with-log ()
      (let* ((server (start-probe (list :ask #'double)))
             (channel (grpc:make-channel (grpc:server-address server)))
             (stop nil)
             (callers (loop repeat 3
                            collect (in-thread (loop until stop
                                                     do (handler-case (ask channel (note 1))
                                                          (status:rpc-error ())
                                                          (misuse () (return))))))))
        (ask channel (note 1))
        (if (evenp round)
            (progn (grpc:close-channel channel) (grpc:stop-server server :drain 0))
            (progn (grpc:stop-server server :drain 0) (grpc:close-channel channel)))
        (setf stop t)
        (is (notany (lambda (value) (eq value :hangs))
                    (mapcar (lambda (thread)
                              (sb-thread:join-thread thread :timeout +patience+ :default :hangs))
                            callers)))))))
