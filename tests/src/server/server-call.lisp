;;;; Calls as handlers see them: the four kinds in both styles and every execution, cancellation and
;;;; deadlines in a handler, errors in handlers.

(in-package #:clgrpc.tests.server)

;;; The four kinds, blocking

(defun double (note call)
  (declare (ignore call))
  (note (* 2 (number-of note)) :text (lab:note-text note)))

(defun double-when (running go-on)
  "A handler like DOUBLE that signals RUNNING, and then waits for GO-ON."
  (lambda (note call)
    (signal-it running)
    (await-signal go-on)
    (double note call)))

(defun count-up (note call)
  (loop for i below (number-of note) do (grpc:send call (note i)))
  nil)

(defun add-up (stream call)
  (declare (ignore call))
  (note (reduce #'+ (numbers stream))))

(defun echo (stream call)
  (grpc:do-messages (note stream)
    (grpc:send call note))
  nil)

;;; The four kinds, reactive

(defun double-later (note call)
  (grpc:after call 0.001 (lambda () (grpc:reply call (double note call))))
  call)

(defun count-up-reactively (note call)
  (let ((next 0))
    (grpc:on-writable call
                      (lambda ()
                        (loop while (and (< next (number-of note)) (grpc:try-send call (note next)))
                              do (incf next))
                        (when (= next (number-of note)) (grpc:finish call))))
    call))

(defun add-up-reactively (stream call)
  (let ((sum 0))
    (grpc:on-message stream (lambda (note) (incf sum (number-of note))))
    (grpc:on-half-close stream (lambda () (grpc:reply call (note sum))))
    call))

(defun echo-reactively (stream call)
  (grpc:on-message stream (lambda (note) (grpc:send call note)))
  (grpc:on-half-close stream (lambda () (grpc:finish call)))
  call)

(defun check-four-kinds (channel)
  (is (= 42 (number-of (ask channel (note 21)))))
  (is (equal '(0 1 2 3 4) (numbers (watch channel (note 5)))))
  (is (null (numbers (watch channel (note 0)))))
  (is (= 6 (number-of (collect channel (list (note 1) (note 2) (note 3))))))
  (is (= 0 (number-of (collect channel '()))))
  (is (equal '(7 8 9) (numbers (chat channel (vector (note 7) (note 8) (note 9))))))
  (is (null (numbers (chat channel '()))))
  (let ((call (chat channel :open)))
    (loop for i below 5
          do (grpc:send call (note i))
             (is (= i (number-of (grpc:receive call)))))
    (grpc:close-send call)
    (is (null (grpc:receive call)))
    (is (eq :ok (grpc:call-status call)))))

(defparameter *by-method* '((lab.bench:ask . :inline) (lab.bench:watch . :blocking)
                            (lab.bench:collect . :auto))
  "An execution for each method but one.")

(test blocking-handlers
  "All kinds, with handlers that wait, by every execution that allows this."
  (dolist (execution (list :auto :blocking *by-method*))
    (with-probe (channel :options (list :execution execution))
        (:ask #'double :watch #'count-up :collect #'add-up :chat #'echo)
      (check-four-kinds channel))))

(test reactive-handlers
  "All kinds, with handlers that occupy no thread, on the loop and elsewhere."
  (dolist (execution (list :inline :blocking *by-method*))
    (with-probe (channel :options (list :execution execution))
        (:ask #'double-later :watch #'count-up-reactively :collect #'add-up-reactively
         :chat #'echo-reactively)
      (check-four-kinds channel))))

(test inline-handlers
  "Handlers on the loop that answer at once; one of them only sends."
  (with-probe (channel :options '(:execution :inline))
      (:ask #'double :watch #'count-up :collect #'add-up-reactively :chat #'echo-reactively)
    (check-four-kinds channel)))

(defmacro elsewhere (&body body)
  "Evaluate BODY in another thread, and wait until it has ended."
  `(sb-thread:join-thread (in-thread ,@body)))

(test ends-do-not-overtake
  "A stream's end on the loop follows the messages that another thread has sent before: the return
of the handler, FINISH, and an error."
  (flet ((check (handler status)
           (with-probe (channel :options '(:execution :inline)) (:watch handler)
             (loop repeat 20
                   do (let ((call (watch channel (note 3))) (seen '()))
                        (is (eq status (handler-case (grpc:do-messages (note call :ok)
                                                       (push (number-of note) seen))
                                         (status:rpc-error (error)
                                           (status:rpc-error-status error)))))
                        (is (equal '(0 1 2) (reverse seen))))))))
    (check (lambda (note call)
             (elsewhere (count-up note call))
             nil)
           :ok)
    (check (lambda (note call)
             (elsewhere (count-up note call))
             (grpc:finish call)
             call)
           :ok)
    (check (lambda (note call)
             (elsewhere (count-up note call))
             (grpc:fail :aborted "enough"))
           :aborted)))

(test headers-are-not-overtaken
  "Metadata that another thread has sent before precede the loop's output: a message of a stream,
the only answer, and the end."
  (flet ((say (call)
           (elsewhere (grpc:send-metadata call '(("said" . "before")))))
         (said (call)
           (cdr (assoc "said" (grpc:call-metadata call) :test #'string=))))
    (with-probe (channel :options '(:execution :inline))
        (:watch (lambda (note call)
                  (say call)
                  (when (plusp (number-of note)) (grpc:send call note))
                  nil)
         :ask (lambda (note call) (say call) note)
         :collect (lambda (stream call)
                    (grpc:on-half-close stream (lambda ()
                                                 (say call)
                                                 (grpc:reply call (note 3))))
                    call))
      (loop repeat 20
            do (dolist (number '(1 0))
                 (let ((call (watch channel (note number))))
                   (is (equal "before" (said call)))
                   (is (= number (length (numbers call))))))
               (grpc:with-call (call (collect channel :open))
                 (grpc:close-send call)
                 (is (equal "before" (said call)))
                 (is (= 3 (number-of (grpc:receive call)))))
               (let ((call (grpc:call-async #'lab.bench:ask channel (note 2))))
                 (is (equal "before" (said call)))
                 (is (= 2 (number-of (grpc:await call)))))))))

(test handlers-run-where-they-should
  "Inline handlers on the loop's thread, others on reserve threads."
  (flet ((thread-name (note call)
           (declare (ignore note call))
           (note 0 :text (sb-thread:thread-name sb-thread:*current-thread*))))
    (loop for (execution expected) in '((:inline "clgrpc server 1") (:blocking "clgrpc reserve")
                                        (:auto "clgrpc server 1")
                                        (((lab.bench:ask . :blocking)) "clgrpc reserve")
                                        (((lab.bench:ask . :inline)) "clgrpc server 1"))
          do (with-probe (channel :options (list :execution execution)) (:ask #'thread-name)
               (is (string= expected (lab:note-text (ask channel (note 1)))))))))

(defun speak (call number)
  "Exchange one message with the handler of CALL, which echoes."
  (grpc:send call (note number))
  (is (= number (number-of (grpc:receive call)))))

(defun call-with-echoes (execution function)
  "Call FUNCTION with a channel, the server's route for echoes by EXECUTION, and a function that
returns true if all echoes of a call ran on the loop."
  (let ((elsewhere (list 0)))
    (flet ((echo (stream call)
             (grpc:do-messages (note stream)
               (unless (and loop:*event-loop* (loop:in-event-loop-p loop:*event-loop*))
                 (sb-ext:atomic-incf (car elsewhere)))
               (grpc:send call note))))
      (with-probe (channel :server server :options (list :execution execution))
          (:chat #'echo :ask #'double)
        (funcall function channel (route-named server 'lab.bench:chat)
                 (lambda ()
                   (grpc:with-call (call (chat channel :open))
                     (setf (car elsewhere) 0)
                     (dotimes (i 20) (speak call i))
                     (grpc:close-send call)
                     (is (null (grpc:receive call)))
                     (zerop (car elsewhere)))))))))

(test waiting-handlers-run-the-loop
  "A handler that waits for its peer runs the loop meanwhile, as long as no other is due."
  (call-with-echoes
   :inline
   (fn (channel _route on-the-loop-p)
     ;; a handler that had no processor for long may be overtaken
     (is (loop repeat 20 thereis (funcall on-the-loop-p)) "no other call ran the loop")
     (grpc:with-call (first (chat channel :open))
       (speak first 1)
       (grpc:with-call (second (chat channel :open))
         (speak second 2)
         (is (= 6 (number-of (ask channel (note 3)))))
         (speak first 4)
         (speak second 5))
       (speak first 6)))))

(test handlers-that-waited-beside-others
  "They run on reserve threads, but on the loop if alone; those that have overstayed do not."
  (call-with-echoes
   :auto
   (lambda (channel route on-the-loop-p)
     (grpc:with-call (first (chat channel :open))
       (speak first 1)
       (grpc:with-call (second (chat channel :open))
         (speak second 2)
         (speak first 3)))
     (eventually (server::route-blocks route))
     (is (loop repeat 20
               do (setf (server::route-blocks route) :waits)
               thereis (funcall on-the-loop-p)))
     (setf (server::route-blocks route) t)
     (is (not (funcall on-the-loop-p))))))

(test several-loops
  "Connections are shared by the loops of a server; each serves its own."
  (with-probe (first :server server :options '(:loops 3 :execution :inline)) (:ask #'double)
    (let ((channels (loop repeat 5 collect (grpc:make-channel (grpc:server-address server)))))
      (unwind-protect
           (loop for channel in (cons first channels)
                 for i from 0
                 do (is (= (* 2 i) (number-of (ask channel (note i))))))
        (is (= 6 (getf (grpc:server-statistics server) :connections)))
        (is (every (lambda (server-loop) (= 2 (length (server:server-loop-links server-loop))))
                   (server:server-loops server)))
        (mapc #'grpc:close-channel channels)))))

(test client-streaming-starts-at-the-first-message
  "A bidi handler starts at the headers and may send first; a client-streaming one at a message."
  (let ((started (make-signal)))
    (with-probe (channel)
        (:collect (lambda (stream call) (signal-it started) (add-up stream call))
         :chat (lambda (stream call) (grpc:send call (note 1)) (echo stream call)))
      (let ((call (chat channel :open)))
        (is (= 1 (number-of (grpc:receive call))))
        (grpc:close-send call)
        (is (null (grpc:receive call))))
      (let ((call (collect channel :open)))
        (is (not (await-signal started :seconds 0.05)))
        (grpc:send call (note 5))
        (is (await-signal started))
        (grpc:close-send call)
        (is (= 5 (number-of (grpc:receive call))))
        (is (null (grpc:receive call)))))))

;;; Cancellation

(test on-cancel-after-the-end
  "A callback that is set late is called at once."
  (let ((started (make-signal)) (seen (make-signal)))
    (with-probe (channel)
        (:watch (fn (_note call)
                  (signal-it started)
                  (wait-until (lambda () (grpc:cancelled-p call)))
                  (grpc:on-cancel call (lambda () (signal-it seen)))
                  call))
      (let ((call (watch channel (note 1))))
        (is (await-signal started))
        (grpc:cancel call)
        (is (await-signal seen))))))

(test cancelled-before-it-began
  "The handler of a call that is cancelled while it waits for a thread never runs."
  (let ((running (make-signal)) (go-on (make-signal)) (count 0))
    (with-probe (channel :options '(:reserve-threads 1 :execution ((lab.bench:ask . :blocking)
                                                                   (lab.bench:watch . :inline))))
        (:watch #'count-up
         :ask (lambda (note call)
                (incf count)
                (signal-it running)
                (await-signal go-on)
                (double note call)))
      (let ((first (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
        (is (await-signal running))
        (let ((second (grpc:call-async #'lab.bench:ask channel (note 2) :timeout 20)))
          (is (typep (caught (ask channel (note 3) :timeout 0.05)) 'grpc:deadline-exceeded))
          (grpc:cancel second)
          (is (typep (caught (grpc:await second)) 'grpc:cancelled))
          ;; when this has been answered, the server has seen the resets too
          (is (equal '(0) (numbers (watch channel (note 1)))))
          (signal-it go-on)
          (is (= 2 (number-of (grpc:await first))))
          (signal-it go-on)
          (is (= 8 (number-of (ask channel (note 4)))))
          (is (= 2 count)))))))

;;; Deadlines

(test server-ends-a-call-at-its-deadline
  "The server's own timer ends it if the peer does not."
  (let ((seen (make-signal)))
    (with-probe (channel :server server)
        (:watch (fn (_note call)
                  (grpc:on-cancel call (lambda () (signal-it seen)))
                  call))
      (with-raw-client (peer (grpc:server-address server))
        (let ((exchange (ask-raw peer "/lab.Bench/Watch" :data (note-octets 1)
                                                         :fields '(("grpc-timeout" . "30m")))))
          (is (eq :deadline-exceeded (status-of exchange)))
          (is (await-signal seen)))))))

(test deadlines-are-passed-on-by-hand
  "A handler passes its deadline to another thread, which inherits nothing."
  (let ((inner nil))
    (with-probe (back)
        (:ask (lambda (note call)
                (setf inner (grpc:time-remaining call))
                (double note call)))
      (with-probe (front)
          (:ask (lambda (note call)
                  (sb-thread:join-thread
                   (in-thread (lab.bench:ask back note :deadline (grpc:call-deadline call))))))
        (ask front (note 1) :timeout 5)
        (is (< 0 inner 5.001))
        (ask front (note 1) :timeout nil)
        (is (null inner))))))

;;; Errors

(test handler-error
  "An error becomes :internal without its text; its backtrace is logged once."
  (dolist (execution '(:inline :blocking))
    (with-probe (channel :options (list :execution execution) :events (:handler-error))
        (:ask (handling () (error "secret ~D" 42)))
      (let ((error (caught (ask channel (note 1)))))
        (is (typep error 'grpc:internal))
        (is (not (search "secret" (grpc:rpc-error-message error)))))
      (let ((logged (events-of :handler-error)))
        (is (= 1 (length logged)))
        (is (string= "/lab.Bench/Ask" (getf (first logged) :method)))
        (is (search "secret" (princ-to-string (getf (first logged) :condition))))
        (is (search "HANDLER-ERROR" (string-upcase (getf (first logged) :backtrace))))))))

(test handler-returns-nothing
  "The log has the method, and the value that the handler should have returned."
  (with-probe (channel :events (:handler-error)) (:ask (constantly nil))
    (is (typep (caught (ask channel (note 1))) 'grpc:internal))
    (let ((logged (events-of :handler-error)))
      (is (= 1 (length logged)))
      (is (search "The handler of /lab.Bench/Ask has returned COMMON-LISP:NIL, which cannot be sent: it should return a"
                  (let ((*package* (find-package '#:keyword)))
                    (substitute #\Space #\Newline
                                (princ-to-string (getf (first logged) :condition)))))))))

(test handler-returns-octets
  "Octets are not a message, whichever thread would send them."
  (dolist (execution '(:inline :blocking))
    (with-probe (channel :options (list :execution execution) :events (:handler-error))
        (:ask (constantly (note-octets 7)))
      (is (typep (caught (ask channel (note 1))) 'grpc:internal))
      (is (= 1 (length (events-of :handler-error)))))))

(test handlers-of-streams-that-return-messages
  "The messages are not sent, which is logged once for a method. A handler that has sent a message
may return anything, and so may one that returns no message."
  (flet ((watched (answer sent)
           (clrhash server::**methods-not-sent**)
           (with-probe (channel :events (:messages-not-sent))
               (:watch (lambda (note call)
                         (dotimes (i sent) (grpc:send call note))
                         answer))
             (dotimes (i 2)
               (let ((count 0))
                 (grpc:do-messages (message (watch channel (note 1))) (incf count))
                 (is (= sent count))))
             (events-of :messages-not-sent))))
    (dolist (answer (list (note 2) (list (note 2) (note 3))))
      (let ((logged (watched answer 0)))
        (is (= 1 (length logged)))
        (is (equal "/lab.Bench/Watch" (getf (first logged) :method))))
      (is (null (watched answer 2))))
    (dolist (answer (list nil t (list 1) (make-instance 'standard-object)))
      (is (null (watched answer 0))))))

(test handler-runs-out-of-stack
  "Even an exhausted stack ends only the call, not the server."
  (support:exhausting-a-stack
    (with-probe (channel :events (:handler-error))
        (:ask (lambda (note call)
                (labels ((recurse (n) (+ 1 (recurse (1+ n)))))
                  (if (= 1 (number-of note)) (recurse 0) (double note call)))))
      (is (typep (caught (ask channel (note 1))) 'grpc:internal))
      (is (= 4 (number-of (ask channel (note 2))))))))

(test handler-thread-aborted
  "If a handler's thread is ended by force, as from the debugger, its call ends, even if the thread
ran the loop."
  (dolist (execution '(:inline :blocking))
    (with-probe (channel :options (list :execution execution) :events (:handler-error))
        (:ask (lambda (note call)
                (if (= 1 (number-of note)) (sb-thread:abort-thread) (double note call))))
      (loop repeat 3
            do (is (typep (caught (ask channel (note 1))) 'grpc:internal))
               (is (= 4 (number-of (ask channel (note 2)))))))))

(test handler-fails
  "An error without a message, with any message, and with details that are octets."
  (let ((details (octets-of 0 1 254 255)))
    (with-probe (channel)
        (:ask (handling (note)
                (let ((status (grpc:code-status (number-of note))))
                  (if (string= "" (lab:note-text note))
                      (grpc:fail status "")
                      (error (grpc:make-rpc-error status :message (lab:note-text note)
                                                         :details (lab:note-body note)))))))
      (let ((error (caught (ask channel (note 1)))))
        (is (string= "" (grpc:rpc-error-message error)))
        (is (null (grpc:rpc-error-details-octets error)))
        (is (null (grpc:rpc-error-details error))))
      (dolist (text (list "plain" "100% of ä, €, 𝄞" (format nil "two~%lines") " padded " "%41"
                          (make-string 2000 :initial-element #\x)))
        (let ((error (caught (ask channel (note 5 :text text :body details)))))
          (is (typep error 'grpc:not-found))
          (is (string= text (grpc:rpc-error-message error)))
          (is (equalp details (grpc:rpc-error-details-octets error)))
          (is (null (grpc:rpc-error-details error)) "not a google.rpc.Status"))))))

(test handler-fails-oddly
  "A status that cannot be sent unchanged is sent in another form."
  (let ((odd nil))
    (with-probe (channel :events (:handler-error))
        (:ask (handling () (funcall odd)))
      (flet ((status (function)
               (setf odd function)
               (grpc:rpc-error-status (caught (ask channel (note 1) :timeout 5)))))
        (is (eq :not-found (status (lambda () (grpc:fail :not-found nil)))))
        (is (eq :not-found
                (status (lambda () (error (grpc:make-rpc-error :not-found :message 5))))))
        (is (eq :not-found (status (lambda ()
                                     (error (grpc:make-rpc-error
                                             :not-found :details (list 1 2 3)))))))
        (is (eq :not-found (status (lambda ()
                                     (error (grpc:make-rpc-error :not-found :details "text"))))))
        (is (eq :not-found (status (lambda ()
                                     (error (grpc:make-rpc-error
                                             :not-found :trailers '(("Bad Name" . 5))))))))
        (is (eq :internal (status (lambda () (error (grpc:make-rpc-error :ok))))))
        (is (eq :internal (status (lambda () (grpc:fail :no-such-status "")))))
        (is (eq :internal (status (lambda () 5))))
        (is (eq :internal (status (lambda () nil))))
        (is (eq :internal (status (lambda () (lab.bench:ask nil (note 1))))))))))

(defun call-in-debugger (function script)
  "Call FUNCTION while errors in handlers enter a debugger, whose user is SCRIPT, a function of the
condition."
  (setf (sb-ext:symbol-global-value 'grpc:*debug-on-error*) t)
  (setf (sb-ext:symbol-global-value 'sb-ext:*invoke-debugger-hook*)
        (fn (condition _hook) (funcall script condition)))
  (unwind-protect (funcall function)
    (setf (sb-ext:symbol-global-value 'sb-ext:*invoke-debugger-hook*) nil
          (sb-ext:symbol-global-value 'grpc:*debug-on-error*) nil)))

(test debug-on-error
  "With *DEBUG-ON-ERROR* the debugger opens in the handler's thread, while others are served, and
its user chooses the end of the call."
  (let ((seen '()) (good nil) (script nil) (other nil))
    (dolist (execution '(:inline :auto :blocking))
      (with-probe (channel :options (list :execution execution) :events (:handler-error))
          (:ask (lambda (note call)
                  (if (or good (= 1 (number-of note)))
                      (double note call)
                      (error "to be debugged"))))
        (setf other channel
              good nil)
        (call-in-debugger
         (lambda ()
           (flet ((outcome (new-script)
                    (setf script new-script)
                    (handler-case (number-of (ask channel (note 21)))
                      (grpc:rpc-error (error) (grpc:rpc-error-status error)))))
             (is (eq :aborted (outcome (lambda () (grpc:return-status :aborted "by hand")))))
             (is (eq :cancelled (outcome #'grpc:cancel-call)))
             (is (eq :internal (outcome #'sb-thread:abort-thread)))
             (is (= 42 (outcome (lambda ()
                                  (setf good t)
                                  (grpc:retry-handler)))))))
         (lambda (condition)
           (push (princ-to-string condition) seen)
           (push (number-of (ask other (note 1))) seen)
           (funcall script)))))
    (is (equal (loop repeat 12 collect 2 collect "to be debugged") seen))
    (signals control-error (grpc:retry-handler))
    (signals control-error (grpc:cancel-call))
    (signals control-error (grpc:return-status :aborted))))

(test callback-left-by-force
  "If a callback's thread is ended by force, its call ends."
  (with-probe (channel :options '(:execution :inline))
      (:chat (lambda (stream call)
               (grpc:on-message stream (fn (_note) (sb-thread:abort-thread)))
               call)
       :ask #'double)
    (loop repeat 3
          do (is (typep (caught (numbers (chat channel (list (note 1))))) 'grpc:internal))
             (is (= 4 (number-of (ask channel (note 2))))))))

(test peers
  "Both ends know the address of the other."
  (let ((peer nil))
    (with-probe (channel :server server) (:ask (lambda (note call)
                                                 (setf peer (grpc:call-peer call))
                                                 (double note call)))
      (let ((call (nth-value 1 (ask channel (note 1)))))
        (is (string= (grpc:server-address server) (grpc:call-peer call)))
        (is (uiop:string-prefix-p "127.0.0.1:" peer))
        (is (string/= peer (grpc:server-address server)))))))

;;; Cardinality and misuse

(test inline-handlers-may-wait
  "If an inline handler or a callback waits in our API, another thread runs the loop."
  (let ((waiting (make-signal)) (other nil))
    (with-probe (channel :options '(:execution :inline))
        (:chat (lambda (stream call)
                 (signal-it waiting)
                 (echo stream call))
         :collect (lambda (stream call)
                    (grpc:on-message stream
                                     (fn (_note)
                                       (signal-it waiting)
                                       (grpc:reply call (grpc:receive other))))
                    call)
         :ask #'double)
      (let ((chats (loop repeat 3 collect (chat channel :open)))
            (collect (collect channel :open)))
        (setf other (chat channel :open))
        (grpc:send collect (note 1))
        (is (await-signal waiting :count 5))
        (is (= 2 (number-of (ask channel (note 1)))))
        (dolist (chat chats)
          (grpc:send chat (note 5))
          (is (= 5 (number-of (grpc:receive chat))))
          (grpc:close-send chat)
          (is (null (grpc:receive chat))))
        (grpc:send other (note 7))
        (is (= 7 (number-of (grpc:receive collect))))
        (grpc:cancel other)))))

(test callbacks-may-replace-callbacks
  "A callback sets other callbacks while it runs; an error in one ends the call."
  (with-probe (channel :options '(:execution :inline) :events (:handler-error))
      (:collect (lambda (stream call)
                  (let ((sum 0))
                    (grpc:on-message
                     stream
                     (lambda (first)
                       (incf sum (* 100 (number-of first)))
                       (grpc:on-message stream (lambda (note) (incf sum (number-of note))))))
                    (grpc:on-half-close
                     stream
                     (lambda ()
                       (grpc:on-half-close stream (lambda () (grpc:reply call (note sum))))))
                    call))
       :chat (lambda (stream call)
               (grpc:on-message stream (lambda (note) (declare (ignore note)) (error "oops")))
               call))
    (is (= 105 (number-of (collect channel (list (note 1) (note 2) (note 3))))))
    (is (typep (caught (numbers (chat channel (list (note 1))))) 'grpc:internal))))

(test callbacks-in-order
  "Messages that arrived before it was set come first, then others, then the half-close."
  (let ((go-on (make-signal)))
    (with-probe (channel)
        (:collect (lambda (stream call)
                    (let ((seen '()))
                      (await-signal go-on)
                      (grpc:on-half-close
                       stream (lambda ()
                                (grpc:reply call (note (if (equal (reverse seen)
                                                                  (loop for i below 100 collect i))
                                                           1 0)))))
                      (grpc:on-message stream (lambda (note) (push (number-of note) seen)))
                      call)))
      (let ((call (collect channel :open)))
        (loop for i below 50 do (grpc:send call (note i)))
        (signal-it go-on)
        (loop for i from 50 below 100 do (grpc:send call (note i)))
        (grpc:close-send call)
        (is (= 1 (number-of (grpc:receive call))))))))

(test callbacks-run-after-what-after-has-called
  "A function given to AFTER is one of the call's callbacks: callbacks that it sets run when it has
returned, as do others."
  (with-probe (channel)
      (:watch (lambda (note call)
                (grpc:after call 0.001
                            (lambda ()
                              (grpc:on-writable call (lambda ()
                                                       (grpc:try-send call note)
                                                       (grpc:finish call)))))
                call)
       :chat (fn (_request call)
               (grpc:on-message call (lambda (note)
                                       (grpc:after call 0.001 (lambda () (grpc:send call note)))))
               (grpc:on-half-close call (lambda () (grpc:finish call)))
               call))
    (is (equal '(7) (numbers (watch channel (note 7)))))
    (let ((call (chat channel :open)))
      (dotimes (i 3)
        (grpc:send call (note i))
        (is (= i (number-of (grpc:receive call)))))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

(test after-and-errors
  "AFTER calls its function on the loop while the call is open, and not once it has ended."
  (let ((late 0) (seen (make-signal)))
    (with-probe (channel :events (:handler-error))
        (:ask (lambda (note call)
                (grpc:after call 0.01 (lambda () (incf late)))
                (double note call))
         :watch (fn (_note call)
                  (grpc:after call 0.05 (lambda () (signal-it seen) (error "late oops")))
                  call))
      (ask channel (note 1))
      (is (typep (caught (grpc:receive (watch channel (note 1)))) 'grpc:internal))
      (is (await-signal seen))
      (is (= 0 late)))))

(test stages-of-a-call
  "The times add up, by the clock of the loop."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (begins-to-ask 1)
    (let ((call nil))
      (http2:map-streams (lambda (stream) (setf call (http2:stream-user stream)))
                         (wire::link-http2 (link-of memory:*end* server-loop)))
      (flet ((mark (mark)
               (memory:call-in-world memory:*world* (lambda () (wire:mark-call call mark)))))
        (is (eq :receive (rpc:operate stage call)))
        (memory:passes 1)
        (mark :due)
        (is (eq :queue (rpc:operate stage call)))
        (memory:passes 2)
        (setf (server::server-call-began-ns call) (rpc:operate now call))
        (is (eq :answer (rpc:operate stage call)))
        (memory:passes 3)
        (mark :headers)
        (is (eq :send (rpc:operate stage call)))
        (memory:passes 4)
        (let ((stages (rpc:call-stages call)))
          (is (= 10 (getf stages :total)))
          (is (< 0.99 (getf stages :receive) 1.01))
          (is (< 1.99 (getf stages :queue) 2.01))
          (is (< 2.99 (getf stages :answer) 3.01))
          (is (< 3.99 (getf stages :send) 4.01))
          (is (eq :send (getf stages :stage))))))))
