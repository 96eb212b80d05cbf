;;;; The mix of client policy: what a seed says of servers that come and go, die, slow down, refuse
;;;; and push back, and of calls under retry and hedging policies meanwhile; and the checker.
;;;;
;;;; Each attempt that a server begins has a TOKEN, which its answers carry. What is checked:
;;;;
;;;; - Every call ends once, at its deadline or when it is cancelled at the latest.
;;;; - No call has more attempts than its policy and the channel's options allow, but for one that a
;;;;   server has not seen; without a policy, or with :retry nil, its handlers begin once.
;;;; - All that comes of a call comes of one attempt, in order; :ok comes with all of it.
;;;; - No attempt begins once the answer to a call has.
;;;; - What calls keep to be sent again is never more than the budget of their channel.
;;;; - An attempt that begins ends. At the end no call is open, nothing is kept or charged, no
;;;;   timer, task, connection or loop is left, and nothing was logged as an error.

(in-package #:clgrpc.tests.sim)

(defstruct (errand (:include job) (:copier nil))
  "A call of the mix."
  (policy nil :type list)               ; (:retry or :hedging, its maxAttempts), or nil
  (tokens '() :type list)               ; of the attempts that servers began, newest first
  (answered-by nil)                     ; the token of what came
  (tries 0 :type fixnum)                ; attempts that the client began
  (tries-ended 0 :type fixnum))         ; and those that ended

(defstruct (fleet (:include mix) (:copier nil))
  "All that a seed says."
  (errands (make-hash-table :test 'eq) :type hash-table) ; from a call to its ERRAND
  (policy nil :type list)               ; of all calls, as an errand's
  (limit 5 :type fixnum)                ; the channel's of attempts
  (budget 0 :type fixnum)               ; of what its calls keep, all together
  (token 0 :type fixnum)
  (resolvers '() :type list)            ; of the channels
  (addresses '() :type list))           ; that they have told of

(defmethod print-object ((fleet fleet) stream)
  (print-unreadable-object (fleet stream :type t)
    (format stream "~D jobs, ~S" (length (fleet-jobs fleet)) (fleet-policy fleet))))

;;; Servers

(defun begin-attempt (fleet note)
  "A handler begins for the errand that NOTE is of. Return it and the token."
  (let ((errand (begun-job fleet note))
        (token (incf (fleet-token fleet))))
    (push token (errand-tokens errand))
    (values errand token)))

(defun answer-of (errand index token)
  (lab:make-note :number (+ index (* +messages+ (errand-number errand)))
                 :text (princ-to-string token) :body (make-octets (errand-size errand))))

(defun answer-as-chance-says (fleet note call streams)
  "Answer CALL, or fail, or do neither, as the chance of FLEET says now; STREAMS says that there may
be several answers."
  (multiple-value-bind (errand token) (begin-attempt fleet note)
    (let* ((chance (fleet-chance fleet))
           (pause (sim:pick chance '(0 0 0 1/100 1/20 1/5)))
           (how (sim:pick chance '(:answer :answer :answer :fail :fail :push-back :late :stall))))
      (flet ((conclude ()
               (ecase how
                 (:answer
                  (cond (streams
                         (dotimes (i (errand-count errand))
                           (grpc:send call (answer-of errand i token)))
                         (grpc:finish call))
                        (t (grpc:reply call (answer-of errand 0 token)))))
                 (:fail (grpc:finish call :status (sim:pick chance '(:unavailable :unavailable
                                                                     :aborted :not-found))
                                          :message "as asked"))
                 (:push-back
                  (grpc:finish call :status :unavailable :message "as asked"
                                    :trailers (list (cons "grpc-retry-pushback-ms"
                                                          (sim:pick chance '("-1" "0" "5" "80"
                                                                             "soon"))))))
                 (:late
                  (grpc:send-metadata call '(("x-late" . "1")))
                  (grpc:finish call :status :unavailable :message "late"))
                 (:stall))))
        (if (plusp pause)
            (grpc:after call pause #'conclude)
            (conclude))
        call))))

(defun start-fleet-server (fleet name)
  (flet ((stream-handler (streams)
           (lambda (stream call)
             (declare (ignore stream))
             (let ((begun nil))
               (grpc:on-message call (lambda (note)
                                       (unless (shiftf begun t)
                                         (answer-as-chance-says fleet note call streams)))))
             call)))
    (lab-server:start-probe
     (list :ask (lambda (note call) (answer-as-chance-says fleet note call nil))
           :watch (lambda (note call) (answer-as-chance-says fleet note call t))
           :collect (stream-handler nil)
           :chat (stream-handler t))
     :listen (format nil "~A:50051" name)
     :max-concurrent-streams (sim:pick (fleet-chance fleet) '(2 20 1000 1000)))))

;;; The channel

(grpc:define-resolver fleet-resolver "fleet" ())

(sb-ext:defglobal **fleet** nil)        ; the FLEET that channels are made for

(defmethod grpc:start-resolver ((resolver fleet-resolver))
  (push resolver (fleet-resolvers **fleet**))
  (grpc:push-addresses resolver (fleet-addresses **fleet**)))

(defun fleet-address (number)
  "The address of the server NUMBER, from 0 on: the first host is the simulation's own."
  (format nil "10.0.0.~D:50051" (+ 2 number)))

(defun change-addresses (fleet)
  "The resolver tells of some of FLEET's servers, at least one."
  (let* ((chance (fleet-chance fleet))
         (all (loop for i below (length (fleet-servers fleet)) collect (fleet-address i)))
         (some (or (remove-if (lambda (address)
                                (declare (ignore address))
                                (sim:chance-p chance 3))
                              all)
                   (list (sim:pick chance all)))))
    (setf (fleet-addresses fleet) some)
    (dolist (resolver (fleet-resolvers fleet)) (grpc:push-addresses resolver some))))

(defun choose-policy (chance)
  "A policy, as an errand's, and the service config that says so, or two nils."
  (let* ((attempts (sim:between chance 2 7))
         (kind (sim:pick chance '(:retry :retry :hedging :hedging nil)))
         (delay (format nil "0.~3,'0Ds" (sim:between chance 1 100)))
         (policy
           (ecase kind
             (:retry (format nil "\"retryPolicy\":{\"maxAttempts\":~D,\"initialBackoff\":~S,~
                                  \"maxBackoff\":\"0.1s\",\"backoffMultiplier\":2,~
                                  \"retryableStatusCodes\":[\"UNAVAILABLE\"~:[~;,10~]]}"
                             attempts delay (sim:chance-p chance 2)))
             (:hedging (format nil "\"hedgingPolicy\":{\"maxAttempts\":~D,\"hedgingDelay\":~S,~
                                    \"nonFatalStatusCodes\":[\"UNAVAILABLE\"]}"
                               attempts (if (sim:chance-p chance 4) "0s" delay)))
             ((nil) nil)))
         (throttling (if (sim:chance-p chance 3)
                         (format nil ",\"retryThrottling\":{\"maxTokens\":~D,\"tokenRatio\":0.5}"
                                 (sim:between chance 2 20))
                         "")))
    (values (and kind (list kind attempts))
            (and kind (format nil "{\"methodConfig\":[{\"name\":[{}],~A}]~A}" policy throttling)))))

(defun watch-attempts (fleet)
  "An observer that notes the attempts of FLEET's calls."
  (flet ((errand (call) (gethash call (fleet-errands fleet))))
    (grpc:make-observer
     :attempt-begun (lambda (call peer stream)
                      (declare (ignore peer stream))
                      (let ((errand (errand call)))
                        (when errand
                          (incf (errand-tries errand))
                          (when (rpc:call-fields call)
                            (wrong errand "an attempt began after its answer"))
                          (check-budget fleet errand))))
     :attempt-ended (lambda (call peer status)
                      (declare (ignore peer status))
                      (let ((errand (errand call)))
                        (when errand (incf (errand-tries-ended errand))))))))

(defun fleet-cores (fleet)
  (loop for (nil . route) in (fleet-routes fleet)
        collect (clgrpc.client::channel-core (route-channel route))))

(defun check-budget (fleet errand)
  (dolist (core (fleet-cores fleet))
    (let ((kept (wire:ledger-held (clgrpc.client::core-replays core))))
      (when (> kept (fleet-budget fleet))
        (wrong errand "~D octets are kept, ~D may be" kept (fleet-budget fleet))))))

;;; Callers

(defun note-answer (errand note)
  (let ((token (parse-integer (lab:note-text note))))
    (when (job-ended-ns errand) (wrong errand "a message came after its end"))
    (unless (member token (errand-tokens errand)) (wrong errand "nobody gave it ~D" token))
    (when (and (errand-answered-by errand) (/= token (errand-answered-by errand)))
      (wrong errand "it was answered by ~D and ~D" (errand-answered-by errand) token))
    (setf (errand-answered-by errand) token)
    (push (mod (lab:note-number note) +messages+) (job-got errand))))

(defun begin-errand (fleet errand)
  "Begin ERRAND of FLEET, unless its channel is closed: then that is misuse."
  (sim:on-host ((job-host errand))
    (sim:note "job ~A begins" errand)
    (setf (job-begun-ns errand) (now-ns fleet))
    (handler-case
        (let* ((channel (job-channel errand))
               (options (call-options errand))
               (one (lab:make-note :number (* +messages+ (job-number errand))
                                   :body (make-octets (job-size errand))))
               (several (loop for i below (job-count errand)
                              collect (lab:make-note
                                       :number (+ i (* +messages+ (job-number errand)))
                                       :body (make-octets (job-size errand)))))
               (call (ecase (job-kind errand)
                       (:ask (apply #'grpc:call-async #'lab.bench:ask channel one options))
                       (:watch (apply #'lab.bench:watch channel one options))
                       (:collect (apply #'grpc:call-async #'lab.bench:collect channel several
                                        options))
                       (:chat (apply #'lab.bench:chat channel several options)))))
          (setf (gethash call (fleet-errands fleet)) errand)
          (flet ((end (error)
                   (note-end fleet errand (if error (status:rpc-error-status error) :ok) error)))
            (if (member (job-kind errand) '(:ask :collect))
                (grpc:attach call (lambda (reply error)
                                    (when reply (note-answer errand reply))
                                    (end error)))
                (progn
                  (grpc:on-message call (lambda (note) (note-answer errand note)))
                  (grpc:on-end call (lambda ()
                                      (end (unless (eq :ok (grpc:call-status call))
                                             (rpc:call-condition call))))))))
          (cancel-later fleet errand call))
      (grpc:misuse (error)
        (unless (route-closed-ns (job-route errand)) (wrong errand "~A" error))
        (note-end fleet errand :cancelled)))))

;;; Choosing

(defun choose-errand (chance number policy)
  (let ((kind (sim:pick chance '(:ask :ask :watch :collect :chat))))
    (make-errand :number number :kind kind :policy policy
                 :count (case kind (:ask 1) (t (sim:between chance 1 5)))
                 :size (sim:pick chance '(0 10 1000 9000)) ; what handlers send does not wait
                 :start (milliseconds chance 0 1500)
                 :timeout (milliseconds chance 20 3000)
                 :cancel (when (sim:chance-p chance 6) (milliseconds chance 0 500))
                 :wait-for-ready (sim:chance-p chance 4))))

(defun prepare-fleet (fleet)
  "Make hosts, channels and errands, and have all begin in its time."
  (let ((chance (fleet-chance fleet)) (config nil))
    (setf (fleet-servers fleet)
          (loop repeat (sim:between chance 1 3)
                for name in '("alpha" "beta" "gamma")
                collect (let ((name name))
                          (sim:add-host name (lambda () (start-fleet-server fleet name)))))
          (values (fleet-policy fleet) config) (choose-policy chance)
          (fleet-limit fleet) (sim:pick chance '(5 5 2 7))
          (fleet-budget fleet) (sim:pick chance '(30000 1000000)))
    (change-addresses fleet)
    (let* ((retry (not (sim:chance-p chance 10)))
           (options (append (list :service-config config :retry retry
                                  :max-attempts (fleet-limit fleet)
                                  :total-replay-octets (fleet-budget fleet)
                                  :replay-octets (sim:pick chance '(5000 262144))
                                  :resend-octets (sim:pick chance '(0 262144))
                                  :balance (sim:pick chance '(:pick-first :round-robin))
                                  :observer (watch-attempts fleet)
                                  :backoff-initial-seconds (milliseconds chance 10 300)))))
      (unless retry (setf (fleet-policy fleet) '()))
      (setf (fleet-clients fleet)
            (list (sim:add-host "ada" (lambda ()
                                        (list (apply #'grpc:make-channel "fleet:all" options)))))))
    (setf (fleet-routes fleet)
          (loop for client in (fleet-clients fleet)
                append (loop for channel in (sim:host-processes client)
                             collect (cons client (make-route :channel channel))))
          (fleet-jobs fleet)
          (coerce (loop for number below (sim:between chance 5 25)
                        collect (choose-errand chance number (fleet-policy fleet)))
                  'simple-vector)
          (fleet-faults fleet)
          (loop repeat (sim:pick chance '(0 1 1 2 3)) collect (choose-fault chance)))
    (loop for errand across (fleet-jobs fleet)
          do (let ((errand errand))
               (setf (values (job-host errand) (job-route errand))
                     (let ((pair (sim:pick chance (fleet-routes fleet))))
                       (values (car pair) (cdr pair))))
               (sim:at (job-start errand) (lambda () (begin-errand fleet errand)))))
    (dolist (fault (fleet-faults fleet)) (schedule-fault fleet fault))
    (loop repeat (sim:between chance 0 4)
          do (sim:at (milliseconds chance 0 1500)
                     (lambda ()
                       (sim:on-host ((first (fleet-clients fleet))) (change-addresses fleet)))))))

;;; The checker

(defun most-attempts (fleet errand)
  "How many attempts of ERRAND may reach handlers."
  (if (errand-policy errand)
      (min (second (errand-policy errand)) (fleet-limit fleet))
      1))

(defun check-errand (fleet errand)
  (let* ((status (job-outcome errand))
         (ended (job-ended-ns errand))
         (deadline (+ (job-begun-ns errand) (seconds-ns (job-timeout errand))))
         (most (most-attempts fleet errand))
         (got (reverse (job-got errand))))
    (unless (= 1 (job-ends errand)) (wrong errand "it ended ~D times" (job-ends errand)))
    (when (> ended (+ deadline +latest-ns+))
      (wrong errand "it ended ~D ns after its deadline" (- ended deadline)))
    (when (and (job-cancelled-ns errand) (> ended (+ (job-cancelled-ns errand) +latest-ns+)))
      (wrong errand "it ended ~D ns after it was cancelled"
             (- ended (job-cancelled-ns errand))))
    (let ((closed (route-closed-ns (job-route errand))))
      (when (and closed (> ended (+ (max closed (job-begun-ns errand)) +latest-ns+)))
        (wrong errand "it ended ~D ns after its channel was closed" (- ended closed)))
      (when (and (eq :cancelled status) (not (or closed (job-cancelled-ns errand))))
        (wrong errand "nobody cancelled it: ~A" (job-reason errand))))
    (when (and (eq :deadline-exceeded status) (< ended deadline))
      (wrong errand "it ended ~D ns before its deadline" (- deadline ended)))
    (when (member status '(:internal :unknown :unimplemented :resource-exhausted :data-loss))
      (wrong errand "it ended with ~(~S~) ~A" status (job-reason errand)))
    (when (> (length (errand-tokens errand)) most)
      (wrong errand "~D attempts reached handlers, ~D may" (length (errand-tokens errand)) most))
    (when (> (errand-tries errand) (1+ most))
      (wrong errand "~D attempts began, ~D may, and one again" (errand-tries errand) most))
    (unless (= (errand-tries errand) (errand-tries-ended errand))
      (wrong errand "~D attempts began, ~D ended" (errand-tries errand)
             (errand-tries-ended errand)))
    (unless (loop for index in got for i from 0 always (= i index))
      (wrong errand "it got ~S" got))
    (when (eq :ok status)
      (let ((expected (if (member (job-kind errand) '(:ask :collect)) 1 (job-count errand))))
        (unless (= expected (length got))
          (wrong errand "it got ~D of ~D messages" (length got) expected))))
    (when (job-wrong errand)
      (complain "~A, ~S, which ended with ~(~S~) after ~D attempts: ~{~A~^; ~}" errand
                (errand-policy errand) status (errand-tries errand)
                (reverse (job-wrong errand))))))

(defun run-fleet (simulation)
  "Run what the seed of SIMULATION says and check it: signal WRONG-RESULT or SIM:SIMULATION-HANG."
  (let ((fleet (make-fleet :simulation simulation
                           :chance (sim:make-chance (- (sim:simulation-seed simulation))))))
    (setf **fleet** fleet
          (sim::simulation-most-latency-ns simulation)
          (sim:pick (fleet-chance fleet) '(1000000 4000000 40000000)))
    (prepare-fleet fleet)
    (sim:wait-for 1501/1000)
    (unless (sim:wait-until (lambda () (every #'job-ended-ns (fleet-jobs fleet))) :timeout 300)
      (let ((errand (find nil (fleet-jobs fleet) :key #'job-ended-ns)))
        (complain "~A hangs~{; ~A~}" errand (job-wrong errand))))
    (sim:wait-for 2)
    (dolist (core (fleet-cores fleet))
      (check-zero "octets kept by ~A" (wire:ledger-held (clgrpc.client::core-replays core)) core)
      (check-zero "calls of ~A to be retried"
                  (hash-table-count (clgrpc.client::core-retrying core)) core))
    (loop for errand across (fleet-jobs fleet) do (check-errand fleet errand))
    (finish-mix fleet)
    (check-logged fleet)
    fleet))

(test two-thousand-seeds-of-client-policy
  (is (= 2000 (apply #'sim:run-seeds 'run-fleet :count 2000 *mix-options*))))

(test what-is-wrong-with-attempts-is-found
  "Each breaks what the checker is for."
  (flet ((found-p (name mutant text)
           (let ((story (call-with-mutant
                         name mutant
                         (lambda ()
                           (handler-case (progn (apply #'sim:run-seeds 'run-fleet :count 200
                                                       *mix-options*)
                                                "")
                             (sim:seed-failed (failure) (princ-to-string failure)))))))
             (is (search text story) "~A: ~A" name (subseq story 0 (min 300 (length story)))))))
    (found-p 'clgrpc.client::policy-limit (constantly 20) "attempts reached handlers")
    (found-p 'clgrpc.client::committed-call
             (lambda (original stream)
               (let ((user (http2:stream-user stream)))
                 (if (typep user 'rpc:call) user (funcall original stream))))
             "attempt began after its answer")
    (found-p 'wire:drop-replay (constantly nil) "octets kept")))
