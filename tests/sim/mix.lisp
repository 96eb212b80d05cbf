;;;; The mix: what a seed says of hosts, options and faults, and calls of all kinds meanwhile; and
;;;; the checker, which knows of each call what may come of it.
;;;;
;;;; A JOB is one call and what is known of it at both ends, which are in one image. Its messages
;;;; carry the job's number, their own, and octets that both ends can tell. What is checked:
;;;;
;;;; - Every call ends, and is told to end once. Its handler begins at most once.
;;;; - :ok comes with the right reply, or with all messages, in order, without holes or duplicates.
;;;;   What comes of a stream that ends otherwise is the beginning of that.
;;;; - Another status is the one that the handler gave; :deadline-exceeded, never before the
;;;;   deadline; :cancelled, of a call that was cancelled, or whose channel was closed; or
;;;;   :unavailable, while a fault was there that may cause it. Connections that end since they are
;;;;   old or idle are no fault.
;;;; - A call ends at its deadline, or when it is cancelled, at most +LATEST-NS+ later.
;;;; - Of servers that drain, with time enough and no other fault, no call is lost whose handler has
;;;;   begun, and none that waits for a connection.
;;;; - At the end no call is open, no octet charged, no timer, task, connection or loop left, and
;;;;   nothing was logged as an error.

(in-package #:clgrpc.tests.sim)

(defconstant +latest-ns+ 5000000
  "How long after its deadline a call may end: some turns of all loops.")

(defconstant +messages+ 1000 "The most messages of a job, for numbering them.")

(defstruct (route (:copier nil))
  "A way from a client to a server."
  (channel nil)
  (closed-ns nil))                      ; when CHANNEL was closed

(defmethod print-object ((route route) stream)
  (print-unreadable-object (route stream :type t)
    (format stream "~A~:[~; closed~]" (route-channel route) (route-closed-ns route))))

(defstruct (job (:copier nil))
  "A call of the mix."
  (number 0 :type fixnum)
  (kind :ask :type (member :ask :watch :collect :chat))
  (style :async :type (member :async :blocking)) ; of its caller
  (count 1 :type fixnum)                ; how many messages a stream has
  (size 0 :type fixnum)                 ; the octets of each message
  (pause 0 :type real)                  ; seconds, before the handler answers, or sends more
  (status :ok :type symbol)             ; that the handler gives
  (start 0 :type real)                  ; when it begins
  (timeout nil :type (or null real))
  (cancel nil :type (or null real))     ; after so many seconds the caller cancels it
  (wait-for-ready nil :type boolean)
  (host nil)
  (route nil :type (or null route))
  ;; what the client knows
  (begun-ns nil)
  (cancelled-ns nil)
  (ended-ns nil)
  (ends 0 :type fixnum)                 ; how often it was said to have ended
  (outcome nil)                         ; the status that it ended with
  (reason "" :type string)
  (got '() :type list)                  ; numbers of messages, newest first
  (wrong '() :type list)                ; texts of what is not as it should be
  ;; what the server knows
  (begins 0 :type fixnum)
  (heard '() :type list))               ; numbers of messages, newest first

(defmethod print-object ((job job) stream)
  (print-unreadable-object (job stream :type t)
    (format stream "~D ~(~A ~A~) ~D × ~D octets, pause ~,3F s, ~(~A~)~@[, timeout ~,3F s~]~
                    ~@[, cancelled after ~,3F s~]~:[~;, waits for ready~]"
            (job-number job) (job-style job) (job-kind job) (job-count job) (job-size job)
            (job-pause job) (job-status job) (job-timeout job) (job-cancel job)
            (job-wait-for-ready job))))

(defstruct (fault (:copier nil))
  "What goes wrong from START to END, in seconds."
  (kind nil :type symbol)
  (start 0 :type real)
  (end 0 :type real)
  (drain nil :type (or null real)))     ; of a :restart

(defstruct (mix (:copier nil))
  "All that a seed says."
  (simulation nil)
  (chance nil)
  (jobs #() :type simple-vector)
  (faults '() :type list)
  (servers '() :type list)              ; hosts
  (clients '() :type list)              ; hosts
  (routes '() :type list)               ; pairs of a client and a ROUTE of it
  (keepalive nil :type boolean)         ; channels end a connection that does not answer
  (execution :inline :type symbol)
  (options '() :type list)              ; of servers
  (channel-options '() :type list))

(defmethod print-object ((mix mix) stream)
  (print-unreadable-object (mix stream :type t)
    (format stream "~D jobs" (length (mix-jobs mix)))))

(defun job-channel (job)
  (route-channel (job-route job)))

(defun now-ns (mix)
  (sim:simulation-now (mix-simulation mix)))

(defun wrong (job control &rest arguments)
  (push (apply #'format nil control arguments) (job-wrong job)))

;;; Messages

(defun body-octets (job index)
  (let ((octets (make-octets (job-size job))))
    (dotimes (i (length octets) octets)
      (setf (aref octets i) (ldb (byte 8 0) (+ i (* 31 index) (job-number job)))))))

(defun message-of (job index)
  "The message INDEX of JOB, in either direction."
  (lab:make-note :number (+ index (* +messages+ (job-number job))) :text "mix"
                 :body (body-octets job index)))

(defun index-of (job note)
  "The index of NOTE, a message of JOB; note what is wrong with it."
  (let ((index (- (lab:note-number note) (* +messages+ (job-number job)))))
    (cond ((not (<= 0 index (1- +messages+)))
           (wrong job "it got a message of job ~D" (floor (lab:note-number note) +messages+)))
          ((not (and (string= "mix" (lab:note-text note))
                     (equalp (body-octets job index) (lab:note-body note))))
           (wrong job "message ~D is not what was sent" index)))
    index))

;;; Handlers

(defun begun-job (mix note)
  "The job that NOTE is a message of."
  (svref (mix-jobs mix) (floor (lab:note-number note) +messages+)))

(defun note-heard (job note)
  (push (index-of job note) (job-heard job)))

(defun may-wait-p (mix)
  (not (eq :inline (mix-execution mix))))

(defun answer (job call &optional reply)
  "End CALL as JOB says."
  (cond ((not (eq :ok (job-status job)))
         (grpc:finish call :status (job-status job) :message "as asked"))
        (reply (grpc:reply call reply))
        (t (grpc:finish call))))

(defun handle-ask (mix note call)
  (let ((job (begun-job mix note)))
    (incf (job-begins job))
    (note-heard job note)
    (cond ((and (may-wait-p mix) (oddp (job-number job)))
           (when (plusp (job-pause job)) (sim:wait-for (job-pause job)))
           (unless (eq :ok (job-status job)) (grpc:fail (job-status job) "as asked"))
           (message-of job 1))
          ((plusp (job-pause job))
           (grpc:after call (job-pause job)
                       (lambda () (answer job call (message-of job 1))))
           call)
          ((eq :ok (job-status job)) (message-of job 1))
          (t (grpc:fail (job-status job) "as asked")))))

(defun handle-watch (mix note call)
  (let ((job (begun-job mix note)))
    (incf (job-begins job))
    (note-heard job note)
    (cond ((and (may-wait-p mix) (oddp (job-number job)))
           (dotimes (i (job-count job))
             (grpc:send call (message-of job i))
             (when (and (plusp (job-pause job)) (zerop (mod i 4))) (sim:wait-for (job-pause job))))
           (unless (eq :ok (job-status job)) (grpc:fail (job-status job) "as asked"))
           nil)
          (t (let ((next 0))
               (labels ((pump ()
                          (loop while (and (< next (job-count job))
                                           (grpc:try-send call (message-of job next)))
                                do (incf next))
                          (when (= next (job-count job))
                            (incf next)
                            (answer job call))))
                 (if (plusp (job-pause job))
                     (grpc:after call (job-pause job) (lambda () (grpc:on-writable call #'pump)))
                     (grpc:on-writable call #'pump))))
             call))))

(defun first-heard (mix job note)
  "The job of a stream of which NOTE is a message; JOB if that is known."
  (let ((found (or job
                   (let ((found (begun-job mix note)))
                     (incf (job-begins found))
                     found))))
    (note-heard found note)
    found))

(defun handle-collect (mix call)
  (let ((job nil))
    (cond ((may-wait-p mix)
           (grpc:do-messages (note call) (setf job (first-heard mix job note)))
           (unless (eq :ok (job-status job)) (grpc:fail (job-status job) "as asked"))
           (message-of job (job-count job)))
          (t (grpc:on-message call (lambda (note) (setf job (first-heard mix job note))))
             (grpc:on-half-close call
                                 (lambda ()
                                   (answer job call (message-of job (job-count job)))))
             call))))

(defun handle-chat (mix call)
  (let ((job nil))
    (flet ((echo (note)
             (setf job (first-heard mix job note))
             (grpc:send call note)))
      (cond ((may-wait-p mix)
             (grpc:do-messages (note call) (echo note))
             (unless (eq :ok (job-status job)) (grpc:fail (job-status job) "as asked"))
             nil)
            (t (grpc:on-message call #'echo)
               (grpc:on-half-close call (lambda () (answer job call)))
               call)))))

(defun start-mixed-server (mix name)
  (apply #'lab-server:start-probe
         (list :ask (lambda (note call) (handle-ask mix note call))
               :watch (lambda (note call) (handle-watch mix note call))
               :collect (fn (_stream call) (handle-collect mix call))
               :chat (fn (_stream call) (handle-chat mix call)))
         :listen (format nil "~A:50051" name) :execution (mix-execution mix)
         (mix-options mix)))

;;; Callers

(defun note-got (job note)
  (when (job-ended-ns job) (wrong job "a message came after its end"))
  (push (index-of job note) (job-got job)))

(defun note-end (mix job status &optional error)
  (incf (job-ends job))
  (setf (job-ended-ns job) (now-ns mix)
        (job-outcome job) status
        (job-reason job) (if error (princ-to-string error) ""))
  (let ((loop:*world* (sim::host-world (job-host job))))
    (sim:note "job ~D ended: ~(~A~)~@[ ~A~]" (job-number job) status error)))

(defun call-options (job)
  (append (and (job-timeout job) (list :timeout (job-timeout job)))
          (and (job-wait-for-ready job) (list :wait-for-ready t))))

(defun messages-of (job)
  (loop for i below (job-count job) collect (message-of job i)))

(defun cancel-later (mix job call)
  "Have CALL of JOB cancelled if JOB says so."
  (when (job-cancel job)
    (sim:at (job-cancel job)
            (lambda ()
              (unless (job-ended-ns job)
                (setf (job-cancelled-ns job) (now-ns mix))
                (grpc:cancel call))))))

(defun begin-async (mix job)
  "Begin JOB, which holds no thread."
  (let ((channel (job-channel job)) (options (call-options job)) (call nil))
    (flet ((attach (call)
             (grpc:attach call (lambda (reply error)
                                 (when reply (note-got job reply))
                                 (note-end mix job (if error (status:rpc-error-status error) :ok)
                                           error))))
           (watch (call)
             (grpc:on-message call (lambda (note) (note-got job note)))
             (grpc:on-end call (lambda ()
                                 (note-end mix job (grpc:call-status call)
                                           (unless (eq :ok (grpc:call-status call))
                                             (rpc:call-condition call)))))))
      (setf call
            (ecase (job-kind job)
              (:ask (attach (apply #'grpc:call-async #'lab.bench:ask channel (message-of job 0)
                                   options)))
              (:watch (watch (apply #'lab.bench:watch channel (message-of job 0) options)))
              (:collect (attach (apply #'grpc:call-async #'lab.bench:collect channel
                                       (messages-of job) options)))
              (:chat (watch (apply #'lab.bench:chat channel (messages-of job) options)))))
      (cancel-later mix job call))))

(defun receive-all (mix job call)
  (cancel-later mix job call)
  (grpc:do-messages (note call) (note-got job note)))

(defun begin-blocking (mix job)
  "Do JOB in this thread."
  (let ((channel (job-channel job)) (options (call-options job)))
    (handler-case
        (ecase (job-kind job)
          (:ask (note-got job (apply #'lab.bench:ask channel (message-of job 0) options)))
          (:watch (receive-all mix job (apply #'lab.bench:watch channel (message-of job 0)
                                              options)))
          (:collect (note-got job (apply #'lab.bench:collect channel (messages-of job) options)))
          (:chat (let ((call (apply #'lab.bench:chat channel :open options)))
                   (cancel-later mix job call)
                   (grpc:with-call (call call)
                     (dotimes (i (job-count job))
                       (unless (grpc:send call (message-of job i)) (return))
                       ;; two who only send, more than windows hold, would wait for each other
                       (when (or (zerop (mod i 3)) (<= 5000 (job-size job)))
                         (let ((note (grpc:receive call)))
                           (if note (note-got job note) (return)))))
                     (grpc:close-send call)
                     (grpc:do-messages (note call) (note-got job note))))))
      (status:rpc-error (error) (note-end mix job (status:rpc-error-status error) error))
      (:no-error (value) (declare (ignore value)) (note-end mix job :ok)))))

(defun begin-job (mix job)
  "Begin JOB, unless its channel is closed: then that is misuse."
  (sim:on-host ((job-host job))
    (sim:note "job ~A begins" job)
    (setf (job-begun-ns job) (now-ns mix))
    (handler-case (if (eq :async (job-style job))
                      (begin-async mix job)
                      (start-blocking mix job))
      (grpc:misuse (error)
        (unless (route-closed-ns (job-route job)) (wrong job "~A" error))
        (note-end mix job :cancelled)))))

(defun start-blocking (mix job)
  (sim:start-task (format nil "job ~D" (job-number job))
                  (lambda ()
                    (setf (job-begun-ns job) (now-ns mix))
                    (handler-case (begin-blocking mix job)
                      (grpc:misuse (error)
                        (unless (route-closed-ns (job-route job)) (wrong job "~A" error))
                        (note-end mix job :cancelled))))))

;;; Choosing

(defun milliseconds (chance least most)
  (/ (sim:between chance least most) 1000))

(defun choose-job (chance number)
  (let* ((kind (sim:pick chance '(:ask :ask :ask :watch :collect :chat)))
         (style (if (sim:chance-p chance 4) :blocking :async))
         (cancellable (or (eq :async style) (member kind '(:watch :chat)))))
    (make-job :number number :kind kind :style style
              :count (case kind (:ask 1) (t (sim:between chance 1 20)))
              :size (sim:pick chance '(0 0 10 10 100 1000 5000 20000))
              :pause (if (sim:chance-p chance 3)
                         (milliseconds chance 1 (sim:pick chance '(30 300 2000)))
                         0)
              :status (if (sim:chance-p chance 8) :not-found :ok)
              :start (milliseconds chance 0 1500)
              :timeout (when (sim:chance-p chance 3) (milliseconds chance 1 600))
              :cancel (when (and cancellable (sim:chance-p chance 6)) (milliseconds chance 0 300))
              :wait-for-ready (sim:chance-p chance 4))))

(defun choose-fault (chance)
  (let* ((kind (sim:pick chance '(:cut :partition :restart :restart :drain :drain :slow :close)))
         (start (milliseconds chance 0 1500))
         (end (+ start (milliseconds chance 10 (if (sim:chance-p chance 6) 8000 2000)))))
    (case kind
      (:drain (make-fault :kind :restart :start start :end end
                          :drain (if (sim:chance-p chance 3) (milliseconds chance 0 200) 100)))
      (t (make-fault :kind kind :start start :end end)))))

(defun close-route (mix route)
  (sim:on-host ((car (rassoc route (mix-routes mix))))
    (sim:start-task "close"
                    (lambda ()
                      (unless (route-closed-ns route)
                        (sim:note "a channel is closed")
                        (setf (route-closed-ns route) (now-ns mix))
                        (grpc:close-channel (route-channel route)))))))

(defun schedule-fault (mix fault)
  (let* ((chance (mix-chance mix))
         (server (sim:pick chance (mix-servers mix)))
         (client (sim:pick chance (mix-clients mix)))
         (route (cdr (sim:pick chance (mix-routes mix))))
         (duration (- (fault-end fault) (fault-start fault))))
    (sim:at (fault-start fault)
            (ecase (fault-kind fault)
              (:cut (lambda () (sim:cut client server)))
              (:partition (lambda () (sim:partition client server)))
              (:close (lambda () (close-route mix route)))
              (:slow (lambda () (sim:slow server 20000) (sim:slow client 50000)))
              (:restart (lambda ()
                          (sim:restart-host server :down duration :drain (fault-drain fault))))))
    (sim:at (fault-end fault)
            (case (fault-kind fault)
              (:partition (lambda () (sim:heal client server)))
              (:slow (lambda () (sim:slow server nil) (sim:slow client nil)))
              (t (lambda ()))))))

(defun choose-options (chance)
  "Options of servers, and of channels."
  (values (append (when (sim:chance-p chance 4)
                    (list :max-concurrent-streams (sim:between chance 1 5)))
                  (when (sim:chance-p chance 4)
                    (list :stream-window-octets 65535 :connection-window-octets 65535))
                  (when (sim:chance-p chance 4) (list :send-budget-octets 1024))
                  (when (sim:chance-p chance 6)
                    (list :max-connection-age-seconds (milliseconds chance 50 1000)))
                  (when (sim:chance-p chance 6)
                    (list :max-connection-idle-seconds (milliseconds chance 10 200)))
                  (when (sim:chance-p chance 4) (list :compression :gzip))
                  (list :loops (sim:between chance 1 2)
                        :min-ping-interval-seconds 0 :ping-without-calls t))
          (append (when (sim:chance-p chance 4)
                    (list :stream-window-octets 65535 :connection-window-octets 65535))
                  (when (sim:chance-p chance 4) (list :send-budget-octets 1024))
                  (when (sim:chance-p chance 6)
                    (list :max-connection-idle-seconds (milliseconds chance 10 200)))
                  (when (sim:chance-p chance 4) (list :compression :gzip))
                  (when (sim:chance-p chance 4)
                    (list :keepalive-seconds 1/5 :keepalive-timeout-seconds 4
                          :min-keepalive-seconds 0))
                  (list :backoff-initial-seconds (milliseconds chance 10 500)))))

(defun prepare (mix)
  "Make hosts, channels and jobs, and have all begin in its time."
  (let ((chance (mix-chance mix)))
    (setf (mix-execution mix) (sim:pick chance '(:inline :inline :blocking))
          (values (mix-options mix) (mix-channel-options mix)) (choose-options chance)
          (mix-keepalive mix) (and (getf (mix-channel-options mix) :keepalive-seconds) t)
          (mix-servers mix)
          (loop repeat (sim:between chance 1 2)
                for name in '("alpha" "beta")
                collect (let ((name name))
                          (sim:add-host name (lambda () (start-mixed-server mix name)))))
          (mix-clients mix)
          (loop repeat (sim:between chance 1 2)
                for name in '("ada" "bob")
                collect (sim:add-host name
                                      (lambda ()
                                        (loop repeat (sim:between chance 1 2)
                                              collect (apply #'grpc:make-channel
                                                             (format nil "~A:50051"
                                                                     (sim:host-name
                                                                      (sim:pick
                                                                       chance
                                                                       (mix-servers mix))))
                                                             (mix-channel-options mix))))))
          (mix-routes mix)
          (loop for client in (mix-clients mix)
                append (loop for channel in (sim:host-processes client)
                             collect (cons client (make-route :channel channel))))
          (mix-jobs mix)
          (coerce (loop for number below (sim:between chance 5 30)
                        collect (choose-job chance number))
                  'simple-vector)
          (mix-faults mix)
          (loop repeat (sim:pick chance '(0 0 1 1 1 2 3)) collect (choose-fault chance)))
    (loop for job across (mix-jobs mix)
          do (let ((job job))
               (setf (values (job-host job) (job-route job))
                     (let ((pair (sim:pick chance (mix-routes mix))))
                       (values (car pair) (cdr pair))))
               (sim:at (job-start job) (lambda () (begin-job mix job)))))
    (dolist (fault (mix-faults mix)) (schedule-fault mix fault))))

;;; The checker

(define-condition wrong-result (clgrpc-error)
  ((text :initarg :text :reader wrong-result-text))
  (:report (lambda (condition stream) (write-string (wrong-result-text condition) stream))))

(defun complain (control &rest arguments)
  (error 'wrong-result :text (apply #'format nil control arguments)))

(defun count-up-p (numbers)
  "True if NUMBERS, newest first, are 0, 1 and so on."
  (loop for number in (reverse numbers)
        for i from 0
        always (= i number)))

(defun expected-messages (job)
  "What the caller of JOB gets if all goes well."
  (ecase (job-kind job)
    (:ask '(1))
    (:collect (list (job-count job)))
    ((:watch :chat) (loop for i below (job-count job) collect i))))

(defun connections-end-p (mix)
  "True if servers of MIX end connections by themselves: they wait a second for their peers to hear
of it, and two for them to close, and then what comes is answered by a reset."
  (or (getf (mix-options mix) :max-connection-age-seconds)
      (getf (mix-options mix) :max-connection-idle-seconds)))

(defun fault-may-end-p (mix job)
  "True if a fault was there while JOB ran that may have ended it with :unavailable."
  (flet ((ns (seconds) (+ sim::+beginning-ns+ (seconds-ns seconds))))
    (loop for fault in (mix-faults mix)
          thereis (and (or (member (fault-kind fault) '(:cut :restart))
                           (and (or (mix-keepalive mix) (connections-end-p mix))
                                (member (fault-kind fault) '(:partition :slow))))
                       (<= (ns (fault-start fault)) (job-ended-ns job))
                       ;; a restart may be delayed by its drain, and a client by its back-off; what
                       ;; was sent to a slow host comes for long
                       (<= (job-begun-ns job) (ns (+ (fault-end fault) 5)))
                       (not (and (only-drains-p mix)
                                 (or (plusp (job-begins job)) (job-wait-for-ready job))))))))

;;; A PING waits behind what was sent before it, and keepalive for its answer from when it was sent
;;; for (gRFC A8), whatever becomes of that: so peers do.

(defun line-octets (job)
  "The octets of JOB's messages, both ways."
  (* (job-size job)
     (ecase (job-kind job)
       (:ask 2)
       ((:watch :collect) (1+ (job-count job)))
       (:chat (* 2 (job-count job))))))

(defun slow-line-p (mix job)
  "True if what the channel of JOB carries may take longer than keepalive waits for an answer: the
narrowest line has 4096 octets under way, and each packet the longest latency or is lost."
  (let* ((simulation (mix-simulation mix))
         (octets (loop for other across (mix-jobs mix)
                       when (eq (job-route other) (job-route job))
                         sum (line-octets other)))
         (packet-ns (+ (sim::simulation-most-latency-ns simulation)
                       (* sim::+resend-ns+ (sim::simulation-losses simulation) 1/1000))))
    (<= (seconds-ns (getf (mix-channel-options mix) :keepalive-timeout-seconds))
        (* 2 packet-ns (ceiling octets 4096)))))

(defun silent-p (mix job)
  "True if keepalive has ended JOB, and its line may have been too slow for that."
  (and (mix-keepalive mix)
       (search "keepalive: no sign of the peer" (job-reason job))
       (slow-line-p mix job)))

(defun turned-away-p (mix job)
  "True if JOB ended since its server, which ends connections, had done so twice before any call: the
client waits then before it connects again."
  (and (connections-end-p mix)
       (zerop (job-begins job))
       (not (job-wait-for-ready job))
       (search "accepts connections and ends them" (job-reason job))))

(defun only-drains-p (mix)
  "True if all that went wrong was servers that drained, with time enough."
  (loop for fault in (mix-faults mix)
        always (or (eq :close (fault-kind fault))
                   (and (eq :restart (fault-kind fault)) (eql 100 (fault-drain fault))))))

(defun check-status (mix job)
  (let* ((status (job-outcome job))
         (ended (job-ended-ns job))
         (deadline (and (job-timeout job)
                        (+ (job-begun-ns job) (seconds-ns (job-timeout job))))))
    (ecase status
      (:ok (unless (eq :ok (job-status job)) (wrong job "it ended with :ok")))
      (:not-found (unless (eq :not-found (job-status job)) (wrong job "its handler said :ok")))
      (:deadline-exceeded
       (cond ((null deadline) (wrong job "it had no deadline"))
             ((< ended deadline)
              (wrong job "it ended ~D ns before its deadline" (- deadline ended)))))
      (:cancelled
       (unless (or (job-cancelled-ns job) (route-closed-ns (job-route job)))
         (wrong job "nobody cancelled it: ~A" (job-reason job))))
      (:unavailable
       (unless (or (fault-may-end-p mix job) (turned-away-p mix job) (silent-p mix job))
         (wrong job "no fault explains ~A" (job-reason job))))
      ((:internal :unknown :resource-exhausted :unimplemented :aborted :data-loss
        :invalid-argument :out-of-range :permission-denied :unauthenticated
        :failed-precondition :already-exists)
       (wrong job "it ended with ~(~S~) ~A" status (job-reason job))))
    (when (and deadline (> ended (+ deadline +latest-ns+)))
      (wrong job "it ended ~D ns after its deadline" (- ended deadline)))
    (when (and (job-cancelled-ns job) (> ended (+ (job-cancelled-ns job) +latest-ns+)))
      (wrong job "it ended ~D ns after it was cancelled" (- ended (job-cancelled-ns job))))
    (let ((closed (route-closed-ns (job-route job))))
      (when (and closed (> ended (+ (max closed (job-begun-ns job)) +latest-ns+)))
        (wrong job "it ended ~D ns after its channel was closed" (- ended closed))))))

(defun check-messages (job)
  (let ((expected (expected-messages job)) (got (reverse (job-got job))))
    (cond ((eq :ok (job-outcome job))
           (unless (equal expected got) (wrong job "it got ~S, not ~S" got expected)))
          ((not (member (mismatch got expected) (list nil (length got))))
           (wrong job "it got ~S, which is not the beginning of ~S" got expected)))
    (unless (count-up-p (job-heard job))
      (wrong job "its handler got ~S" (reverse (job-heard job))))
    (when (and (eq :ok (job-outcome job))
               (member (job-kind job) '(:collect :chat))
               (/= (job-count job) (length (job-heard job))))
      (wrong job "its handler got ~D of ~D messages" (length (job-heard job)) (job-count job)))
    (when (> (job-begins job) 1) (wrong job "its handler began ~D times" (job-begins job)))
    (when (and (member (job-outcome job) '(:ok :not-found)) (zerop (job-begins job)))
      (wrong job "its handler never began"))))

(defun check-job (mix job)
  (cond ((/= 1 (job-ends job)) (wrong job "it ended ~D times" (job-ends job)))
        (t (check-status mix job)
           (check-messages job)))
  (when (job-wrong job)
    (complain "~A, which ended with ~(~S~): ~{~A~^; ~}" job (job-outcome job)
              (reverse (job-wrong job)))))

(defun check-logged (mix)
  (loop for entry across (sim::history-entries (sim::simulation-history (mix-simulation mix)))
        do (when (or (eq :error (first (sim::entry-arguments entry)))
                     (eq :task-error (sim::entry-event entry)))
             (complain "This was logged: ~A" (sim::entry-line entry)))))

(defun check-zero (what count &rest arguments)
  (unless (zerop count)
    (complain "~D ~? ~:[are~;is~] left." count what arguments (= 1 count))))

(defun check-server (server)
  (dolist (server-loop (server:server-loops server))
    (check-zero "calls of ~A" (server::server-loop-open server-loop) server)
    (check-zero "octets charged at ~A"
                (loop for link across (server:server-loop-links server-loop) sum
                      (wire::link-held link)) server))
  (when (every (lambda (server-loop) (zerop (server::server-loop-link-count server-loop)))
               (server:server-loops server))
    (check-zero "octets charged at ~A" (account-sum (server::server-account server)) server)))

(defun check-loop (loop)
  (check-zero "timers of ~A" (wheel-count (loop:event-loop-wheel loop)) loop)
  (check-zero "connections of ~A" (loop:event-loop-connections loop) loop))

(defun finish-mix (mix &key standing)
  "See that nothing is left, then that nothing is when all has ended; STANDING says that channels
have calls of their own on their servers, which end with them."
  (let* ((simulation (mix-simulation mix))
         (loops (mapcar #'sim::running-loop-loop (sim::simulation-loops simulation)))
         (servers (loop for host in (mix-servers mix) append (sim:host-processes host))))
    (unless (sim:wait-until (lambda () (null (sim::simulation-tasks simulation))) :timeout 200)
      (complain "Tasks are left: ~S" (sim::simulation-tasks simulation)))
    (unless standing
      ;; what was sent to slow hosts comes for long
      (sim:wait-until (lambda () (sim:idle-p simulation)) :timeout 200)
      (mapc #'check-server servers))
    (dolist (host (mix-clients mix)) (sim:stop-host host :drain 0))
    (sim:wait-for 3)                    ; whatever lingers
    (dolist (host (mix-servers mix)) (sim:stop-host host :drain 10))
    (mapc #'check-server servers)
    (mapc #'check-loop loops)
    (dolist (loop loops)
      (unless (eq :stopped (loop:event-loop-state loop)) (complain "~A runs still." loop)))))

(defun run-mix (simulation)
  "Run what the seed of SIMULATION says and check it: signal WRONG-RESULT or SIM:SIMULATION-HANG."
  (let ((mix (make-mix :simulation simulation
                       :chance (sim:make-chance (- (sim:simulation-seed simulation))))))
    (setf (sim::simulation-most-latency-ns simulation)
          (sim:pick (mix-chance mix) '(1000000 4000000 40000000)))
    (prepare mix)
    (sim:wait-for 1501/1000)
    (unless (sim:wait-until (lambda () (every #'job-ended-ns (mix-jobs mix))) :timeout 300)
      (let ((job (find nil (mix-jobs mix) :key #'job-ended-ns)))
        (complain "~A hangs~{; ~A~}" job (job-wrong job))))
    (sim:wait-for 2)
    (loop for job across (mix-jobs mix) do (check-job mix job))
    (finish-mix mix)
    (check-logged mix)
    mix))

(defparameter *mix-options* '(:latency (1/10000 4/1000) :losses 5)
  "What the simulations of the mix are made with.")
