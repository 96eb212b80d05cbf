;;;; The mix of client policy: what a seed says of servers that come and go, die, slow down, refuse,
;;;; push back and are unwell, of names, policies and service configs that change, and of calls
;;;; under retry and hedging policies meanwhile; and the checker.
;;;;
;;;; A channel learns addresses and configs from a resolver that pushes them, or from a DNS server
;;;; that is silent, fails or does not know the name for a while. In some seeds it watches its
;;;; servers' health, by policies that heed it.
;;;;
;;;; Each attempt that a server begins has a TOKEN, which its answers carry. What is checked:
;;;;
;;;; - Every call ends once, at its deadline or when it is cancelled at the latest.
;;;; - No call has more attempts than its policy and the channel's options allow, but for those that
;;;;   a server has not seen, one and those that a server that drains turns away; without a policy,
;;;;   or with :retry nil, its handlers begin once.
;;;; - All that comes of a call comes of one attempt, in order; :ok comes with all of it.
;;;; - No attempt begins once the answer to a call has.
;;;; - What calls keep to be sent again is never more than the budget of their channel.
;;;; - No attempt goes to a server that has said that it is not serving, and that all have heard.
;;;; - When all is well again, a call that waits is answered.
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
  (calm nil :type boolean)              ; all is well: handlers answer
  ;; what the channels are told
  (resolvers '() :type list)            ; of the channels
  (addresses '() :type list)            ; that they have told of
  (names nil)                           ; the DNS server, or nil if there is none
  (parts '() :type list)                ; of each service config, but for what changes
  (plain nil :type boolean)             ; they ask nothing of servers beside their calls
  (updates nil :type boolean)           ; service configs come with the addresses
  ;; what servers say of themselves
  (watchful nil :type boolean)          ; the channels heed their health
  (patients #() :type simple-vector))   ; of the servers, in their order

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
           (how (if (fleet-calm fleet)
                    :answer
                    (sim:pick chance '(:answer :answer :answer :fail :fail :push-back :late
                                       :stall)))))
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

(defun start-fleet-server (fleet number name)
  "Start the server NUMBER, from 0, called NAME."
  (flet ((stream-handler (streams)
           (fn (_stream call)
             (let ((begun nil))
               (grpc:on-message call (lambda (note)
                                       (unless (shiftf begun t)
                                         (answer-as-chance-says fleet note call streams)))))
             call)))
    (grpc:start-server
     (list (lab-server:make-probe
            :ask (lambda (note call) (answer-as-chance-says fleet note call nil))
            :watch (lambda (note call) (answer-as-chance-says fleet note call t))
            :collect (stream-handler nil)
            :chat (stream-handler t))
           (admit (svref (fleet-patients fleet) number))
           (make-instance 'load-reporter :chance (fleet-chance fleet)))
     :listen (format nil "~A:50051" name)
     ;; what channels ask beside calls has streams, too, of the policy before as well
     :max-concurrent-streams (sim:pick (fleet-chance fleet)
                                       (if (fleet-plain fleet)
                                           '(2 20 1000 1000)
                                           '(8 20 1000 1000))))))

;;; The channel

(grpc:define-resolver fleet-resolver "fleet" ())

(sb-ext:defglobal **fleet** nil)        ; the FLEET that channels are made for

(defmethod grpc:start-resolver ((resolver fleet-resolver))
  (push resolver (fleet-resolvers **fleet**))
  (grpc:push-addresses resolver (fleet-addresses **fleet**)))

(defun fleet-address (number)
  "The address of the server NUMBER, from 0 on: the first host is the simulation's own."
  (format nil "10.0.0.~D:50051" (+ 2 number)))

(defun all-addresses (fleet)
  (loop for i below (length (fleet-servers fleet)) collect (fleet-address i)))

(defun service-config (fleet)
  "A service config for FLEET: what it has all the time, and a policy that chance says."
  (format nil "{~{~A~^,~}}"
          (append (fleet-parts fleet)
                  (list (format nil "\"loadBalancingConfig\":[~A]"
                                (sim:pick (fleet-chance fleet)
                                          (if (fleet-watchful fleet)
                                              *watchful-policies*
                                              (append *watchful-policies* *other-policies*))))))))

(defun update-config (fleet)
  "What FLEET's channels are told next of a service config: one, a wrong one, or nil."
  (cond ((not (fleet-updates fleet)) nil)
        ((and (not (fleet-calm fleet)) (sim:chance-p (fleet-chance fleet) 8))
         "{\"loadBalancingConfig\":7}") ; its error does not list what is registered
        (t (service-config fleet))))

(defun tell-of-addresses (fleet addresses)
  "FLEET's channels are told of ADDRESSES, or will be when they ask."
  (let ((config (update-config fleet)) (names (fleet-names fleet)))
    (setf (fleet-addresses fleet) addresses)
    (when names
      (apply #'dns-tests:set-records names "fleet" dns:+a+
             (loop for address in addresses
                   collect (subseq address 0 (position #\: address))))
      (apply #'dns-tests:set-records names "_grpc_config.fleet" dns:+txt+
             (when config (list (config-strings config)))))
    (dolist (resolver (fleet-resolvers fleet))
      (grpc:push-addresses resolver addresses :service-config config))))

(defun config-strings (config)
  "The strings of the TXT record that has CONFIG (gRFC A2)."
  (let ((text (format nil "grpc_config=[{\"serviceConfig\":~A}]" config)))
    (loop for start from 0 below (length text) by 255
          collect (subseq text start (min (length text) (+ start 255))))))

(defun change-addresses (fleet)
  "FLEET's channels are told of some of its servers, at least one."
  (let ((chance (fleet-chance fleet)) (all (all-addresses fleet)))
    (tell-of-addresses fleet (or (remove-if (fn (_address) (sim:chance-p chance 3))
                                            all)
                                 (list (sim:pick chance all))))))

(defun disturb-names (fleet)
  "FLEET's DNS server is silent, fails or knows nothing for a while."
  (let* ((chance (fleet-chance fleet)) (names (fleet-names fleet))
         (code (sim:pick chance '(nil 2 3 5))))
    (if code
        (dns-tests:set-code names "fleet" code)
        (dns-tests:set-manner names (constantly :drop)))
    (sim:at (milliseconds chance 10 1500) (lambda () (calm-names names)))))

(defun calm-names (names)
  (dns-tests:set-code names "fleet" nil)
  (dns-tests:set-manner names nil))

(defun change-health (fleet)
  "One of FLEET's servers is unwell from now on, or well."
  (let ((number (sim:below (fleet-chance fleet) (length (fleet-servers fleet)))))
    (sim:on-host ((nth number (fleet-servers fleet)))
      (turn (svref (fleet-patients fleet) number)
            (sim:pick (fleet-chance fleet) '(:serving :not-serving)) (now-ns fleet)))))

(defun choose-policy (chance)
  "A policy, as an errand's, or nil, and the parts of a service config that say so."
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
         (throttling (when (sim:chance-p chance 3)
                       (format nil "\"retryThrottling\":{\"maxTokens\":~D,\"tokenRatio\":0.5}"
                               (sim:between chance 2 20)))))
    (values (and kind (list kind attempts))
            (append (when kind (list (format nil "\"methodConfig\":[{\"name\":[{}],~A}]" policy)))
                    (when throttling (list throttling))))))

(defun watch-attempts (fleet)
  "An observer that notes the attempts of FLEET's calls."
  (flet ((errand (call) (gethash call (fleet-errands fleet))))
    (grpc:make-observer
     :attempt-begun (lambda (call peer stream)
                      (let ((errand (and stream (errand call))))
                        (when errand
                          (incf (errand-tries errand))
                          (check-health fleet errand peer)
                          (when (rpc:call-fields call)
                            (wrong errand "an attempt began after its answer"))
                          (check-budget fleet errand))))
     :attempt-ended (fn (call _peer _status stream _sent _received _ns)
                      (let ((errand (and stream (errand call))))
                        (when errand (incf (errand-tries-ended errand))))))))

(defun check-health (fleet errand peer)
  "An attempt of ERRAND goes to the server at PEER: may it?"
  (let ((patient (svref (fleet-patients fleet)
                        (position peer (all-addresses fleet) :test #'string=))))
    (when (and (fleet-watchful fleet)
               (known-unwell-p patient (now-ns fleet))
               (notany (lambda (fault) (member (fault-kind fault) '(:partition :slow)))
                       (fleet-faults fleet)))
      (wrong errand "an attempt goes to ~A, which is not serving" peer))))

(defun fleet-cores (fleet)
  (loop for (nil . route) in (fleet-routes fleet)
        collect (clgrpc.client::channel-core (route-channel route))))

(defun check-budget (fleet errand)
  (dolist (core (fleet-cores fleet))
    (let ((kept (clgrpc.base::octet-budget-held (clgrpc.client::core-replays core))))
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

(defun choose-errand (chance number policy watchful)
  "An errand under POLICY; if it is to be WATCHFUL, one that does not hold up what servers say of
themselves."
  (let ((kind (sim:pick chance '(:ask :ask :watch :collect :chat))))
    (make-errand :number number :kind kind :policy policy
                 :count (case kind (:ask 1) (t (sim:between chance 1 5)))
                 ;; what handlers send does not wait
                 :size (sim:pick chance (if watchful '(0 10) '(0 10 1000 9000)))
                 :start (milliseconds chance 0 1500)
                 :timeout (milliseconds chance 20 3000)
                 :cancel (when (sim:chance-p chance 6) (milliseconds chance 0 500))
                 :wait-for-ready (sim:chance-p chance 4))))

(defun choose-target (fleet)
  "Where FLEET's channels learn of servers: a target, and the options that go with it."
  (let ((chance (fleet-chance fleet)))
    (cond ((sim:chance-p chance 2) (values "fleet:all" '()))
          (t (multiple-value-bind (names address) (add-name-server)
               (setf (fleet-names fleet) names)
               (values (format nil "dns://~A/fleet:50051" address)
                       (list :resolve-interval-seconds (sim:pick chance '(0.05 0.5 30))
                             :dns-timeout-seconds (sim:pick chance '(0.3 5))
                             :dns-service-config (fleet-updates fleet))))))))

(defun start-fleet-client (fleet target options)
  "Add a host with a channel to TARGET, made with OPTIONS and what chance says."
  (let* ((chance (fleet-chance fleet))
         (retry (not (sim:chance-p chance 10)))
         (config (and (or (fleet-parts fleet) (fleet-watchful fleet))
                      (if (fleet-plain fleet)
                          (format nil "{~{~A~^,~}}" (fleet-parts fleet))
                          (service-config fleet))))
         (options (append (list :service-config config :retry retry
                                :max-attempts (fleet-limit fleet)
                                :total-replay-octets (fleet-budget fleet)
                                :replay-octets (sim:pick chance '(5000 262144))
                                :resend-octets (sim:pick chance '(0 262144))
                                :balance (if (fleet-watchful fleet)
                                             nil ; as the service config says
                                             (sim:pick chance '(nil nil :pick-first :round-robin)))
                                :observer (watch-attempts fleet)
                                :backoff-initial-seconds (milliseconds chance 10 300)
                                :backoff-maximum-seconds 5)
                          options)))
    (unless retry (setf (fleet-policy fleet) '()))
    (sim:add-host "ada" (lambda () (list (apply #'grpc:make-channel target options))))))

(defun prepare-fleet (fleet)
  "Make hosts, channels and errands, and have all begin in its time."
  (let* ((chance (fleet-chance fleet)) (count (sim:between chance 1 3)))
    (setf (fleet-plain fleet) (sim:chance-p chance 4)
          (fleet-watchful fleet) (and (not (fleet-plain fleet)) (sim:chance-p chance 2))
          (fleet-updates fleet) (and (not (fleet-plain fleet)) (sim:chance-p chance 2))
          (fleet-patients fleet) (coerce (loop repeat count collect (make-patient)) 'simple-vector)
          (fleet-servers fleet)
          (loop for number below count
                for name in '("alpha" "beta" "gamma")
                collect (let ((number number) (name name))
                          (sim:add-host name (lambda () (start-fleet-server fleet number name)))))
          (values (fleet-policy fleet) (fleet-parts fleet)) (choose-policy chance)
          (fleet-limit fleet) (sim:pick chance '(5 5 2 7))
          (fleet-budget fleet) (sim:pick chance '(30000 1000000)))
    (when (fleet-watchful fleet)
      (push "\"healthCheckConfig\":{\"serviceName\":\"fleet\"}" (fleet-parts fleet)))
    (multiple-value-bind (target options) (choose-target fleet)
      (change-addresses fleet)
      (setf (fleet-clients fleet) (list (start-fleet-client fleet target options))))
    (setf (fleet-routes fleet)
          (loop for client in (fleet-clients fleet)
                append (loop for channel in (sim:host-processes client)
                             collect (cons client (make-route :channel channel))))
          (fleet-jobs fleet)
          (coerce (loop for number below (sim:between chance 5 25)
                        collect (choose-errand chance number (fleet-policy fleet)
                                               (fleet-watchful fleet)))
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
    (schedule-changes fleet)))

(defun schedule-changes (fleet)
  "Have addresses, configs, names and healths change in the time in which errands begin."
  (let ((chance (fleet-chance fleet)))
    (flet ((now-and-then (most function)
             (loop repeat (sim:between chance 0 most)
                   do (sim:at (milliseconds chance 0 1500)
                              (lambda ()
                                (sim:on-host ((first (fleet-clients fleet)))
                                  (funcall function fleet)))))))
      (now-and-then 4 #'change-addresses)
      (when (fleet-names fleet) (now-and-then 2 #'disturb-names))
      (when (fleet-watchful fleet) (now-and-then 5 #'change-health)))))

(defun calm-down (fleet)
  "All is well from now on: FLEET's servers are, and their names are known."
  (setf (fleet-calm fleet) t)
  (when (fleet-names fleet) (calm-names (fleet-names fleet)))
  (loop for host in (fleet-servers fleet)
        for patient across (fleet-patients fleet)
        do (sim:on-host (host) (turn patient :serving (now-ns fleet))))
  (sim:on-host ((first (fleet-clients fleet)))
    (tell-of-addresses fleet (all-addresses fleet))))

(defun faults-over-p (fleet)
  "True if nothing goes wrong any more."
  (and (null (sim::simulation-tasks (fleet-simulation fleet)))
       (every (lambda (host) (and (sim:host-up host) (not (sim::host-leaving host))))
              (fleet-servers fleet))
       (every (lambda (fault) (< (fault-end fault) (sim:now))) (fleet-faults fleet))))

(defun check-recovery (fleet)
  "Whatever has happened, FLEET's channels find their servers once all is well."
  (unless (sim:wait-until (lambda () (faults-over-p fleet)) :timeout 200)
    (complain "Servers are down, or tasks are left."))
  (sim:wait-for 1)                      ; what was held up comes
  (calm-down fleet)
  (loop for (client . route) in (fleet-routes fleet)
        unless (route-closed-ns route)
          do (let ((errand (make-errand :number (length (fleet-jobs fleet)) :timeout 60
                                        :wait-for-ready t :host client :route route
                                        :policy (fleet-policy fleet))))
               (setf (fleet-jobs fleet)
                     (concatenate 'simple-vector (fleet-jobs fleet) (list errand)))
               (begin-errand fleet errand)
               (sim:wait-until (lambda () (job-ended-ns errand)) :timeout 70)
               (unless (eq :ok (job-outcome errand))
                 (complain "All is well, but ~A ended with ~(~S~) ~A." errand
                           (job-outcome errand) (job-reason errand))))))

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
    (when (> (errand-tries errand) (* (1+ most) (1+ (count-if #'fault-drain (fleet-faults fleet)))))
      (wrong errand "~D attempts began, ~D may, and those again that a server has not seen"
             (errand-tries errand) most))
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
    (check-recovery fleet)
    (sim:wait-for 2)
    (dolist (core (fleet-cores fleet))
      (check-zero "octets kept by ~A"
                  (clgrpc.base::octet-budget-held (clgrpc.client::core-replays core)) core)
      (check-zero "calls of ~A to be retried"
                  (hash-table-count (clgrpc.client::core-retrying core)) core))
    (loop for errand across (fleet-jobs fleet) do (check-errand fleet errand))
    (finish-mix fleet :standing t)
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
    (found-p 'clgrpc.attempt::policy-limit (constantly 20) "attempts reached handlers")
    (found-p 'clgrpc.client::committed-call
             (lambda (original stream)
               (or (clgrpc.client::stream-call stream) (funcall original stream)))
             "attempt began after its answer")
    (found-p 'clgrpc.client::drop-replay (constantly nil) "octets kept")))
