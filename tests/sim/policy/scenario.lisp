;;;; A scenario: a simulation with backends b1, b2, …, a DNS server, and what a body does with
;;;; channels. Its name is that of the public suite with hyphens. Each runs for several seeds, which
;;;; say how long packets take and who goes first.

(in-package #:clgrpc.tests.policy)

(defparameter *seeds* '(1 2 3) "What scenarios run for.")

(defparameter *name* "svc.test" "What the DNS server may know.")

(defstruct (lab (:copier nil))
  "All there is in a scenario."
  (backends '() :type list)             ; b1, b2, …
  (names nil)                           ; the DNS server
  (names-address "" :type string)       ; and where it listens
  (channels '() :type list)             ; to be closed
  (attempts '() :type list))            ; that came to any backend, newest first

(defmethod print-object ((lab lab) stream)
  (print-unreadable-object (lab stream :type t)
    (format stream "~D backends, ~D attempts" (length (lab-backends lab))
            (length (lab-attempts lab)))))

(sb-ext:defglobal **lab** nil)          ; the LAB, for all threads of the simulation

(defun note-attempt (lab attempt)
  (push attempt (lab-attempts lab)))

(defun call-with-lab (function count options)
  "Call FUNCTION with COUNT backends that have OPTIONS of SET-BACKEND, once for each seed."
  (dolist (seed *seeds*)
    (sim:with-simulation (simulation :seed seed)
      (let ((lab (make-lab)))
        (setf **lab** lab
              (lab-backends lab)
              (loop for i from 1 to count
                    collect (add-backend lab (format nil "b~D" i) options))
              (values (lab-names lab) (lab-names-address lab)) (sim-tests:add-name-server))
        (dns-tests:set-code (lab-names lab) *name* 3)
        (unwind-protect (funcall function)
          (mapc #'grpc:close-channel (lab-channels lab))
          (setf **lab** nil))))))

(defmacro define-scenario (name (expectation &rest options &key (backends 1) &allow-other-keys)
                           &body body)
  "Define the test NAME: BODY is evaluated with BACKENDS backends, which have the other OPTIONS, of
SET-BACKEND. EXPECTATION says what is expected and which document says so."
  (let ((options (loop for (key value) on options by #'cddr
                       unless (eq key :backends) append (list key value))))
    `(test ,name ,expectation
       (call-with-lab (lambda () ,@body) ,backends (list ,@options)))))

;;; Backends and names

(defun backend (number)
  (nth (1- number) (lab-backends **lab**)))

(defun change (number &rest options)
  "The backend NUMBER has OPTIONS of SET-BACKEND from now on."
  (apply #'set-backend (backend number) options))

(defun kill (number)
  "The backend NUMBER goes away."
  (change number :mode :refuse)
  (do-to-lines #'close-line (backend number))
  (sim:wait-for 1/100))

(defun ip (number)
  (format nil "10.0.0.~D" (sim::host-number (backend-host (backend number)))))

(defun address (number)
  (format nil "~A:~D" (ip number) +port+))

(defun name-target ()
  (format nil "dns://~A/~A:~D" (lab-names-address **lab**) *name* +port+))

(defun set-names (&rest numbers)
  "The DNS server knows the backends NUMBERS from now on."
  (dns-tests:set-code (lab-names **lab**) *name* nil)
  (apply #'dns-tests:set-records (lab-names **lab**) *name* dns:+a+ (mapcar #'ip numbers)))

(defun set-text (text)
  "The DNS server has the TXT record TEXT for service configs (gRFC A2)."
  (dns-tests:set-records (lab-names **lab**) (format nil "_grpc_config.~A" *name*) dns:+txt+
                         (loop for start from 0 below (length text) by 255
                               collect (subseq text start (min (length text) (+ start 255))))))

(defun set-text-config (config)
  (set-text (format nil "grpc_config=[{\"serviceConfig\":~A}]" config)))

;;; Service configs

(defun json (control &rest arguments)
  "What the format CONTROL makes of ARGUMENTS, with double quotes for the single ones of CONTROL."
  (apply #'format nil (substitute #\" #\' control) arguments))

(defun retry-config (attempts initial maximum &optional (more ""))
  "Up to ATTEMPTS if :unavailable, back-off from INITIAL to MAXIMUM seconds; MORE stands behind."
  (json "{'methodConfig':[{'name':[{'service':'lab.Bench'}],'retryPolicy':{'maxAttempts':~D,~
         'initialBackoff':'~,3Fs','maxBackoff':'~,3Fs','backoffMultiplier':2,~
         'retryableStatusCodes':['UNAVAILABLE']}}]~A}"
        attempts initial maximum more))

(defun hedging-config (attempts delay)
  "Up to ATTEMPTS, DELAY seconds, a string, between them."
  (json "{'methodConfig':[{'name':[{}],'hedgingPolicy':{'maxAttempts':~D,'hedgingDelay':'~As',~
         'nonFatalStatusCodes':['UNAVAILABLE']}}]}"
        attempts delay))

(defun method-config (fields)
  "FIELDS, as of JSON, for all methods of the service."
  (json "{'methodConfig':[{'name':[{'service':'lab.Bench'}],~A}]}" (json fields)))

(defun balancing (policy &optional (config ""))
  "POLICY with the fields CONFIG, as of JSON."
  (json "{'loadBalancingConfig':[{'~A':{~A}}]}" policy (json config)))

(defparameter *round-robin* (balancing "round_robin"))

;;; Channels

(defun open-channel (target &optional config &rest options)
  "A channel to TARGET with the default service config CONFIG, if any, and OPTIONS."
  (let ((channel (apply #'grpc:make-channel target
                        (append options
                                (when config (list :service-config config))
                                (unless (getf options :keepalive-seconds)
                                  '(:keepalive-seconds 0))
                                (when (uiop:string-prefix-p "dns:" target)
                                  '(:resolve-interval-seconds 1/10))))))
    (push channel (lab-channels **lab**))
    channel))

(defun open-to-names (config &rest numbers)
  "A channel to a name that has the backends NUMBERS, which is connected to all of them."
  (apply #'set-names numbers)
  (let ((channel (open-channel (name-target) config)))
    (connect channel)
    (apply #'await-connections numbers)
    channel))

(defun connect (channel)
  "Have CHANNEL leave :idle."
  (handler-case (grpc:ensure-connected channel :timeout 0)
    (grpc:rpc-error () nil)))

(defmacro within (seconds form)
  "FORM becomes true in so many virtual SECONDS."
  `(is (sim:wait-until (lambda () ,form) :timeout ,seconds)
       "Not within ~A s: ~S" ,seconds ',form))

(defun await-state (channel seconds state)
  (within seconds (eq state (grpc:channel-state channel))))

(defun await-connections (&rest numbers)
  "Wait until each of the backends NUMBERS has a connection that works."
  (dolist (number numbers)
    (within 8 (some (lambda (line) (and (line-settled line) (not (line-closed line))))
                    (lines number))))
  (sim:wait-for 1/4))

;;; Calls

(defstruct (result (:copier nil))
  "What came of a call."
  (status :ok :type keyword)            ; its end
  (message "" :type string)             ; of STATUS
  (backend nil)                         ; who answered
  (seconds 0)                           ; how long it took
  (at 0)                                ; when it ended
  (received 0 :type index))             ; messages

(defmethod print-object ((result result) stream)
  (print-unreadable-object (result stream :type t)
    (format stream "~(~S~) ~S of ~A after ~,3F s" (result-status result) (result-message result)
            (result-backend result) (result-seconds result))))

(defun begin-call (channel method note options)
  (ecase method
    (:ask (apply #'grpc:call-async #'lab.bench:ask channel note options))
    (:watch (apply #'lab.bench:watch channel note options))
    (:collect (apply #'lab.bench:collect channel :open options))))

(defun send-notes (call note count interval)
  (loop repeat count
        while (grpc:send call note)
        do (sim:wait-for interval))
  (grpc:close-send call))

(defun receive-all (call method)
  "Wait for the end of CALL; return how many messages came."
  (cond ((eq :ask method) (grpc:await call) 1)
        (t (loop while (grpc:receive call) count t))))

(defun make-call (channel &key (method :ask) (payload 0) (answer 0) (messages 1) (interval 0)
                            (timeout 5) (wait-for-ready nil wait-p) call metadata cancel-after)
  "Make a call of METHOD: its requests have PAYLOAD octets, its answer ANSWER. CALL is its
x-call-id. TIMEOUT may be nil. MESSAGES, INTERVAL seconds apart, are of :collect. Return its
RESULT."
  (let ((start (sim:now)) (made nil) (status :ok) (message "") (received 0)
        (note (lab:make-note :number answer :body (make-octets payload)))
        (options (append (when timeout (list :timeout timeout))
                         (when wait-p (list :wait-for-ready wait-for-ready))
                         (list :metadata (if call (acons "x-call-id" call metadata) metadata)))))
    (handler-case
        (progn
          (setf made (begin-call channel method note options))
          (when cancel-after (sim:at cancel-after (lambda () (grpc:cancel made))))
          (when (eq :collect method) (send-notes made note messages interval))
          (setf received (receive-all made method)))
      (grpc:rpc-error (error)
        (setf status (grpc:rpc-error-status error)
              message (grpc:rpc-error-message error))))
    (flet ((named (fields) (cdr (assoc "x-backend" fields :test #'string=))))
      (make-result :status status :message message :received received :at (sim:now)
                   :seconds (- (sim:now) start)
                   :backend (and made (or (named (grpc:call-metadata made))
                                          (named (grpc:call-trailers made))))))))

(defun start-call (channel &rest arguments)
  "As MAKE-CALL, but do not wait: return what RESULT-OF takes."
  (let ((box (list nil)))
    (sim:start-task "call" (lambda () (setf (first box) (apply #'make-call channel arguments))))
    box))

(defun result-of (box)
  (sim:wait-until (lambda () (first box)))
  (first box))

(defun make-calls (channel count &rest arguments
                   &key (parallel 1) (pause 0) (metadata (constantly '())) &allow-other-keys)
  "Make COUNT calls, PARALLEL at a time, PAUSE seconds between one's end and the next. METADATA is a
function of their numbers. ARGUMENTS else as for MAKE-CALL. Return their RESULTs."
  (let ((next 0) (working parallel) (results '())
        (arguments (loop for (key value) on arguments by #'cddr
                         unless (member key '(:parallel :pause :metadata))
                           append (list key value))))
    (flet ((work ()
             (loop while (< next count)
                   do (let ((number (1- (incf next))))
                        (push (apply #'make-call channel
                                     :metadata (funcall metadata number) arguments)
                              results))
                      (sim:wait-for pause))
             (decf working)))
      (loop repeat parallel do (sim:start-task "caller" #'work))
      (sim:wait-until (lambda () (zerop working)))
      results)))

;;; What is expected

(defun ended (result &rest statuses)
  (is (member (result-status result) statuses) "~S, expected ~S" result statuses))

(defun ok (result)
  (ended result :ok))

(defun all-ok (results count)
  (is (= count (length results)))
  (is (= count (with-status results :ok)) "~S" (remove :ok results :key #'result-status)))

(defun between (least value most)
  (is (<= least value most) "~,3F is not between ~A and ~A" value least most))

(defun with-status (results status)
  (count status results :key #'result-status))

(defun of-backend (results number)
  "How many of RESULTS the backend NUMBER gave."
  (count (backend-name (backend number)) results :key #'result-backend :test #'equal))

(defun backends-of (results)
  "Who gave RESULTS."
  (remove-duplicates (remove nil (mapcar #'result-backend results)) :test #'string=))

(defun attempts (&optional call)
  "The test calls that came to any backend, those of the x-call-id CALL if it is given, oldest
first."
  (reverse (remove-if-not (lambda (attempt)
                            (and (test-call-p attempt)
                                 (or (null call)
                                     (equal call (attempt-field attempt "x-call-id")))))
                          (lab-attempts **lab**))))

(defun internal-calls (path)
  "What came of calls of PATH, oldest first."
  (reverse (remove path (lab-attempts **lab**)
                   :key (lambda (attempt) (attempt-field attempt ":path")) :test-not #'string=)))

(defun lines (&optional number)
  "The connections that came to the backend NUMBER, or to all, oldest first."
  (sort (copy-list (loop for backend in (if number (list (backend number)) (lab-backends **lab**))
                         append (backend-lines backend)))
        #'< :key #'line-at))

(defun gap (attempts number)
  "The seconds between the NUMBERth of ATTEMPTS, from 0 on, and the next."
  (- (attempt-at (nth (1+ number) attempts)) (attempt-at (nth number attempts))))

(defun previous (attempts)
  "What ATTEMPTS say in grpc-previous-rpc-attempts."
  (mapcar (lambda (attempt) (attempt-field attempt "grpc-previous-rpc-attempts")) attempts))

(defun came (count &optional call)
  "Just COUNT attempts came, those of CALL if it is given."
  (is (= count (length (attempts call))) "~D attempts, expected ~D" (length (attempts call)) count))

(defun timeout-seconds (attempt)
  "What ATTEMPT's grpc-timeout says."
  (let* ((text (attempt-field attempt "grpc-timeout")) (unit (1- (length text))))
    (* (parse-integer text :end unit)
       (ecase (char text unit)
         (#\H 3600) (#\M 60) (#\S 1) (#\m 1/1000) (#\u 1/1000000) (#\n 1/1000000000)))))

(defun rejected (&rest configs)
  "Each of CONFIGS is refused when a channel is to have it."
  (dolist (config configs)
    (signals (grpc:service-config-error "~A" config) (open-channel (address 1) config))))
