;;;; The handlers, restarts, current call and deadline in force while either end's code runs.

(in-package #:clgrpc.tests.inproc)

(defun restart-names ()
  (mapcar #'restart-name (compute-restarts)))

(test handlers-see-no-context-of-callers
  (with-inproc (channel)
      (:ask (handling (note)
              (signal 'simple-condition)
              (note (if (or (find-restart 'of-the-caller) (find-restart 'rpc:retry-call)) 1 0)
                    :text (lab:note-text note))))
    (let ((seen 0))
      (handler-bind ((simple-condition (fn (_condition) (incf seen))))
        (with-simple-restart (of-the-caller "what only the caller has")
          (is (= 0 (number-of (ask channel (note 1)))))))
      (is (= 0 seen)))))

(test outermost-restarts-stay
  "A user in the debugger can leave to the top level."
  (with-inproc (channel) (:ask (handling ()
                                 (note (length (restart-names)))))
    (is (plusp (sb-thread:join-thread
                (in-thread (with-simple-restart (of-the-caller "what only the caller has")
                             (number-of (ask channel (note 1))))))))))

(test bodies-see-no-context-of-handlers
  "Nor does a body's non-local exit end in the handler."
  (let ((seen 0) (remaining '()))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (handler-bind ((simple-condition (fn (_condition) (incf seen))))
                    (with-simple-restart (of-the-handler "what only the handler has")
                      (dotimes (i 3) (grpc:send call note)))))
         :ask (fn (_note call) (note (if (grpc:time-remaining call) 1 0))))
      (grpc:do-messages (note (watch channel (note 1) :timeout 30))
        (signal 'simple-condition)
        (is (null (find-restart 'of-the-handler)))
        (is (null method:*call*))
        (push (number-of (lab.bench:ask channel note)) remaining))
      (is (equal '(0 0 0) remaining))
      (is (= 0 seen)))))

(test conditions-of-bodies-pass-handlers
  "An error in the body belongs to the consumer: its handlers see the error, the producer's do not,
and the producer is unwound."
  (let ((unwound nil) (asked nil))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (unwind-protect
                       (handler-case (loop (grpc:send call note))
                         (error () (setf unwound :caught)))
                    (setf asked (grpc:cancelled-p call)
                          unwound (or unwound :unwound)))))
      (signals simple-error
        (grpc:do-messages (note (watch channel (note 1)))
          (error "the consumer's")))
      (is (eq :unwound unwound))
      (is (eq t asked)))))

(test bodies-may-handle-with-restarts
  "Restarts that the consumer establishes around its loop work within the body."
  (let ((count 0))
    (with-inproc (channel) (:watch #'count-up)
      (handler-bind ((simple-error (lambda (error) (continue error))))
        (grpc:do-messages (note (watch channel (note 5)))
          (incf count)
          (cerror "Go on." "Message ~D." (number-of note)))))
    (is (= 5 count))))

(test cleanups-of-handlers-that-are-left
  "They may use the call, though without effect, and do not keep the consumer from leaving."
  (let ((sent :none) (received :none))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (unwind-protect (loop (grpc:send call note))
                    (setf sent (grpc:send call note)
                          received (grpc:receive call)))))
      (is (= 4 (block leaving
                 (grpc:do-messages (note (watch channel (note 1)))
                   (return-from leaving 4))
                 5)))
      (is (null sent))
      (is (null received)))))

(test nested-calls-inherit-deadlines
  (let ((channel nil))
    (with-inproc (own)
        (:ask (lambda (note call)
                (if (plusp (number-of note))
                    (lab.bench:ask channel (note (1- (number-of note))))
                    (note (ceiling (grpc:time-remaining call)))))
         :watch (lambda (note call)
                  (grpc:send call (lab.bench:ask channel note))
                  nil))
      (setf channel own)
      (is (<= 1 (number-of (ask own (note 3) :timeout 20)) 20))
      (is (<= 1 (first (numbers (watch own (note 2) :timeout 20))) 20)))))

(test debugger-in-handlers
  "With *DEBUG-ON-ERROR* the debugger's restarts are the same as over the wire."
  (let ((tries 0) (seen '()))
    (with-inproc (channel)
        (:ask (handling (note)
                (if (= 1 (incf tries)) (error "Once.") note)))
      (let ((grpc:*debug-on-error* t)
            (*debugger-hook* nil)
            (sb-ext:*invoke-debugger-hook*
              (fn (_condition _hook)
                (setf seen (restart-names))
                (grpc:retry-handler))))
        (is (= 7 (number-of (ask channel (note 7)))))
        (is (= 2 tries))
        (is (subsetp '(rpc:return-status rpc:cancel-call rpc:retry-handler) seen))
        (setf tries 0)
        (let ((sb-ext:*invoke-debugger-hook*
                (fn (_condition _hook) (grpc:return-status :data-loss "by hand"))))
          (is (eq :data-loss (status-of-error (caught (ask channel (note 1)))))))))))

;;; SB-EXT:WITH-TIMEOUT

(defun outcome-in (seconds function)
  "The value of FUNCTION, :TIME-OVER if it takes more than SECONDS, or the status of its error."
  (handler-case (sb-ext:with-timeout seconds (funcall function))
    (sb-ext:timeout () :time-over)
    (grpc:rpc-error (error) (grpc:rpc-error-status error))))

(test a-callers-time-limit-is-the-callers
  "The handler runs on its caller's thread, and the caller gets the timeout when the time is over,
as on a wire. A timeout of the handler's own that the handler does not handle fails the call."
  (with-inproc (channel :events (:handler-error))
      (:ask (handling (note)
              (case (number-of note)
                (1 (loop (sleep 0.01)))
                (2 (handler-case (sb-ext:with-timeout 0.05 (loop (sleep 0.01)))
                     (sb-ext:timeout () (note 7))))
                (t (sb-ext:with-timeout 0.05 (loop (sleep 0.01))))))
       :watch (lambda (note call) (loop (grpc:send call note) (sleep 0.001))))
    (flet ((asked (number) (number-of (ask channel (note number)))))
      (is (eq :time-over (outcome-in 0.1 (lambda () (asked 1)))))
      (is (eq :time-over (outcome-in 0.1 (lambda ()
                                           (grpc:do-messages (note (watch channel (note 1)))
                                             note)))))
      (is (eql 7 (outcome-in 30 (lambda () (asked 2)))))
      (is (eq :internal (handler-case (asked 3)
                          (grpc:rpc-error (error) (grpc:rpc-error-status error))))))))

(test a-time-limit-ends-the-report-of-an-error
  "There neither end's condition handlers are in force: the timeout must not be lost, nor enter the
debugger."
  (with-inproc (channel) (:ask (handling ()
                                 (error "broken")))
    (let ((*log-function* (fn (&rest _event) (sleep 1)))
          (sb-ext:*invoke-debugger-hook* (fn (_condition _hook) (throw 'entered :the-debugger))))
      (is (eq :timeout (catch 'entered
                         (handler-case (sb-ext:with-timeout 0.1 (ask channel (note 1)))
                           (sb-ext:timeout () :timeout))))))))

(test a-time-limit-passes-handlers-of-handlers
  "Handlers that call each other run on one thread, as does an attempt within the relay of its call;
the time limit is the first caller's, or that of a handler between them."
  (with-inproc (inner)
      (:ask (handling () (loop (sleep 0.01))))
    (with-inproc (outer :channel-options *retrying*)
        (:ask (handling (note)
                (if (= 1 (number-of note))
                    (ask inner note)
                    (progn (is (eq :time-over (outcome-in 0.1 (lambda () (ask inner note)))))
                           note))))
      (is (eq :time-over (outcome-in 0.1 (lambda () (ask outer (note 1))))))
      (is (eql 2 (outcome-in 30 (lambda () (number-of (ask outer (note 2))))))))))

(test a-time-limit-passes-callbacks
  "A handler's callback runs on the thread of the client that sends, who gets the timeout when the
time is over; the call, whose callback was interrupted, ends. A timeout without a handler is an
error of the callback."
  (let ((served nil))
    (with-inproc (channel :events (:handler-error))
        (:chat (fn (_stream call)
                 (setf served call)
                 (grpc:on-message call
                                  (lambda (note)
                                    (case (number-of note)
                                      (1 (loop (sleep 0.01)))
                                      (2 (handler-case
                                             (sb-ext:with-timeout 0.05 (loop (sleep 0.01)))
                                           (sb-ext:timeout () (grpc:send call (note 7)))))
                                      (t (sb-ext:with-timeout 0.05 (loop (sleep 0.01)))))))
                 call))
      (flet ((answer (call)
               (handler-case (number-of (grpc:receive call))
                 (grpc:internal (error) (grpc:rpc-error-message error))))
             (begun ()
               ;; a call whose handler and callback have returned
               (let ((call (chat channel :open)))
                 (grpc:send call (note 2))
                 (is (eql 7 (number-of (grpc:receive call))))
                 (eventually (null (inproc::inproc-callbacks-scheduled
                                    (inproc::call-inproc-callbacks served))))
                 call)))
        (let ((call (begun)))
          (is (eq :time-over (outcome-in 0.1 (lambda () (grpc:send call (note 1))))))
          (is (equal "callback left by a non-local exit" (answer call))))
        (let ((call (begun)))
          (sb-thread:join-thread (in-thread (grpc:send call (note 3))))
          (is (equal "error in handler" (answer call))))))))

(test a-time-limit-may-end-at-any-moment
  "In a short call no timeout is lost, taken for an error of the handler, or signalled where nobody
handles it."
  (with-inproc (channel) (:ask #'double)
    (let ((outcomes '()) (wanted 500))
      (sb-thread:join-thread
       (in-thread (loop while (< (length outcomes) wanted)
                        do (handler-case
                               (loop while (< (length outcomes) wanted)
                                     do (push (outcome-in (random 0.002d0)
                                                          (lambda () (loop (ask channel (note 1)))))
                                              outcomes))
                             ;; SBCL may signal a timeout when its body has just been left
                             (sb-ext:timeout () (push :time-over outcomes))))))
      (is (equal '(:time-over) (remove-duplicates outcomes))))))
