;;;; Stubs: arguments and values, deadlines, limits, and calls that are left by a non-local exit.

(in-package #:clgrpc.tests.client)

(test what-invoke-takes
  "The text names the valid arguments, and the one that was probably meant: over the network and
within the image, with interceptors and without."
  (flet ((complaint (function &rest arguments)
           (handler-case (progn (apply function arguments) "")
             (grpc:misuse (error) (princ-to-string error)))))
    (with-probe (channel :server server) (:ask #'double)
      (grpc:with-channel (intercepted (grpc:server-address server)
                          :interceptors (list (fn (_method request options next)
                                                (funcall next request options))))
        (dolist (channel (list channel intercepted (grpc:server-channel server)))
          (flet ((invoked (method) (complaint #'grpc:invoke channel method (note 1))))
            (is (search "not NIL. POOL-METHOD returns nil where" (invoked nil)))
            (is (search "GENERIC-METHOD makes a method of a name." (invoked "lab.Bench/Ask")))
            (is (search "Call the stub itself." (invoked 'lab.bench:ask)))
            (is (search "INVOKE takes a method, such as the value of GENERIC-METHOD, not 5."
                        (invoked 5)))))))
    (is (search "INVOKE takes a channel, such as the value of MAKE-CHANNEL, not NIL."
                (complaint #'grpc:invoke nil (grpc:generic-method "a/b") nil)))
    (is (search "CALL-ASYNC takes a stub, such as"
                (complaint #'grpc:call-async nil nil 1)))))

(test failing-generator
  "The generator's error reaches the caller, and the call is cancelled, as with any other exit from
the generator."
  (let ((started (make-signal)) (seen (make-signal)))
    (flet ((handler (stream call)
             (declare (ignore call))
             (handler-bind ((grpc:cancelled (fn (_error) (signal-it seen))))
               (grpc:receive stream)
               (signal-it started)
               (numbers stream)))
           (generator (then)
             (let ((first t))
               (lambda ()
                 (cond ((shiftf first nil) (note 1))
                       (t (await-signal started)
                          (funcall then)))))))
      (with-probe (channel :events (:handler-error)) (:collect #'handler :chat #'handler)
        (signals simple-error (collect channel (generator (lambda () (error "no more")))))
        (is (await-signal seen))
        (is (typep (caught (numbers (chat channel (generator (lambda () (error "no more"))))))
                   'grpc:internal))
        (is (await-signal seen))
        (is (eq :left (block nil (collect channel (generator (lambda () (return :left)))))))
        (is (await-signal seen))
        (signals grpc:misuse (collect channel (generator (lambda () (misuse "no more")))))
        (is (await-signal seen))))))

(test deadlines
  "Every way to give a deadline, and values that are not deadlines."
  (with-probe (channel :options '(:execution :blocking))
      (:ask (lambda (note call)
              (when (= 1 (number-of note))
                (wait-until (lambda () (grpc:cancelled-p call))))
              (double note call))
       :watch (lambda (note call) (declare (ignore note)) call))
    (loop for arguments in '((:timeout 0.05) (:timeout 1/20) (:timeout nil :deadline)
                             (:timeout 50 :deadline))
          do (let* ((start (monotonic-ns))
                    (soon (+ start 50000000))
                    (error (caught (apply #'lab.bench:ask channel (note 1)
                                          (if (member :deadline arguments)
                                              (append arguments (list soon))
                                              arguments)))))
               (is (typep error 'grpc:deadline-exceeded))
               (is (<= 0.04 (ns-seconds (- (monotonic-ns) start)) 5))))
    (dolist (timeout '(0 0.0 1/1000000000))
      (is (typep (caught (grpc:receive (lab.bench:watch channel (note 1) :timeout timeout)))
                 'grpc:deadline-exceeded)))
    (dolist (timeout (list 1d6 (expt 10 12) (expt 10 30) most-positive-double-float))
      (is (= 4 (number-of (ask channel (note 2) :timeout timeout)))))
    (signals grpc:misuse (ask channel (note 1) :timeout -1))
    (signals grpc:misuse (ask channel (note 1) :timeout "1"))
    (signals grpc:misuse (ask channel (note 1) :deadline -1))
    (signals grpc:misuse (ask channel (note 1) :deadline 1.5))))

(test leaving-a-wait
  "A blocking call that is left by a non-local exit is cancelled."
  (let ((started (make-signal)) (seen (make-signal)))
    (with-probe (channel)
        (:ask (fn (_note call)
                (grpc:on-cancel call (lambda () (signal-it seen)))
                (signal-it started)
                call))
      (let ((thread (in-thread (catch 'out (ask channel (note 1))))))
        (is (await-signal started))
        ;; as C-c and an abort restart at the REPL would
        (sb-thread:interrupt-thread thread (lambda () (throw 'out :left)))
        (is (eq :left (sb-thread:join-thread thread :timeout 10 :default nil)))
        (is (await-signal seen))))))

(test a-call-after-its-end
  "Inspecting, cancelling and receiving again do no harm."
  (with-probe (channel) (:ask #'double :chat #'echo)
    (multiple-value-bind (reply call) (ask channel (note 1))
      (is (= 2 (number-of reply)))
      (grpc:cancel call)
      (is (eq :ok (grpc:call-status call)))
      (is (not (grpc:cancelled-p call)))
      (is (string= (grpc:channel-target channel) (grpc:call-peer call)))
      (is (null (grpc:receive call)))
      (is (null (grpc:receive call))))
    (let ((call (chat channel :open)))
      (grpc:cancel call "enough")
      (eventually (grpc:call-status call))
      (is (grpc:cancelled-p call))
      (loop repeat 2
            for error = (caught (grpc:receive call))
            do (is (typep error 'grpc:cancelled))
               (is (string= "enough" (grpc:rpc-error-message error)))
               (is (eq :local (grpc:rpc-error-ended-by error)))
               (is (eq call (grpc:rpc-error-call error))))
      (is (typep (caught (grpc:send call (note 1))) 'grpc:cancelled)))))

(test calls-in-callbacks
  "A callback may make blocking calls of its own."
  (with-probe (channel) (:ask #'double :watch #'count-up)
    (let ((call (watch channel (note 3))) (seen '()) (done (make-signal)))
      (grpc:on-message call (lambda (note) (push (number-of (ask channel note)) seen)))
      (grpc:on-half-close call (lambda () (signal-it done)))
      (is (await-signal done))
      (is (equal '(4 2 0) seen)))))

(test callbacks-do-not-overtake
  "A message or half-close that a callback sends on the loop follows the messages that another
thread has sent before."
  (with-probe (channel) (:chat #'echo)
    (loop for (rounds expected then)
            in `((50 (0 1 2) ,(lambda (call) (grpc:send call (note 2))))
                 (20 (0 1) ,#'grpc:close-send))
          do (dotimes (i rounds)
               (let ((call (chat channel :open)) (turn 0) (seen '()) (done (make-signal)))
                 (grpc:on-message call (lambda (note)
                                         (push (number-of note) seen)
                                         (case (number-of note)
                                           (0 (setf turn 1)
                                            (loop until (= turn 2) do (sb-thread:thread-yield))
                                            (funcall then call))
                                           (2 (grpc:close-send call)))))
                 (grpc:on-half-close call (lambda () (signal-it done)))
                 (grpc:send call (note 0))
                 (loop until (= turn 1) do (sb-thread:thread-yield))
                 (grpc:send call (note 1))
                 (setf turn 2)
                 (is (await-signal done))
                 (is (equal expected (reverse seen))))))))

(test ends-are-told-to-each
  "An error in one function that waits for a call's end does not affect the others."
  (with-probe (channel :events (:handler-error)) (:chat #'echo)
    (let ((call (chat channel :open)) (seen '()) (done (make-signal)))
      (grpc:on-end call (lambda () (push 1 seen) (error "As asked.")))
      (grpc:on-end call (lambda () (push 2 seen) (error "As asked.")))
      (grpc:on-end call (lambda () (push 3 seen) (signal-it done)))
      (grpc:close-send call)
      (is (await-signal done))
      (is (equal '(3 2 1) seen)))))

(test ends-are-told-behind-the-loop
  "A function that is attached when the channel is closed, and the loop may have stopped, is called
as well."
  (with-probe (channel) (:chat #'echo)
    (let ((call (chat channel :open)))
      (grpc:send call (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (grpc:close-channel channel)
      (let ((told (make-signal)))
        (grpc:on-end call (lambda () (signal-it told)))
        (grpc:on-cancel call (lambda () (signal-it told)))
        (is (await-signal told :count 2))))))

(test times-of-a-calendar-are-no-deadlines
  (with-probe (channel) (:ask #'double)
    (dolist (deadline (list (+ 5 (get-universal-time)) 1763800000 -1 2.5 "soon"))
      (signals grpc:misuse (lab.bench:ask channel (note 1) :deadline deadline)))
    (is (= 2 (number-of (ask channel (note 1) :deadline (+ (monotonic-ns) (seconds-ns 20))))))))

(test printed-objects
  "Each public object prints as one short line, at any time."
  (let ((inside '()))
    (with-probe (channel :server server)
        (:ask (lambda (note call)
                (push (princ-to-string call) inside)
                (double note call)))
      (let ((objects (list channel server)))
        (multiple-value-bind (reply call) (ask channel (note 1))
          (push call objects)
          (push reply objects))
        (push (caught (numbers (watch channel (note 1)))) objects)
        (push (grpc:call-async #'lab.bench:ask channel (note 1)) objects)
        (grpc:await (first objects))
        (push (watch channel (note 1)) objects)
        (push (method:stub-method 'lab.bench:ask) objects)
        (push (first (grpc:option-table)) objects)
        (dolist (text (append inside (mapcar #'princ-to-string objects)))
          (is (< 5 (length text) 200) "~A" text)
          (is (not (find #\Newline text)) "~A" text))
        (dolist (object objects)
          (is (plusp (length (with-output-to-string (*standard-output*) (describe object))))))))))
