;;;; See src/rpc/attempt/retry.lisp and src/client/attempts/attempt.lisp: calls that a server has
;;;; not seen are repeated once, others as the service config allows.

(in-package #:clgrpc.tests.client)

(defun refusing (times counter)
  "A script that refuses the first TIMES requests, counted in the car of COUNTER, and answers others
with 7."
  (fn (_peer exchange)
    (if (<= (sb-ext:atomic-incf (car counter)) (1- times))
        (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)
        (ok-response exchange (note-octets 7)))))

(defun attempts-of (times function &key (at :end))
  "Call FUNCTION with a channel to a server that refuses TIMES requests. Return its value, or the
RPC-ERROR it signals, and how many requests the server got."
  (let ((counter (list 0)))
    (with-raw-server (address :at at) (refusing times counter)
      (grpc:with-channel (channel address)
        (let ((value nil))
          (let ((error (caught (setf value (funcall function channel)))))
            (values (or error value) (car counter))))))))

(defmacro with-attempts ((value count times channel &rest options) call &body body)
  `(multiple-value-bind (,value ,count) (attempts-of ,times (lambda (,channel) ,call) ,@options)
     ,@body))

(test refused-calls-are-made-again
  (with-attempts (value count 1 channel) (number-of (ask channel (note 1)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel) (number-of (ask channel (note 1 :body 100000)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel) (number-of (ask channel (note 1 :body 100000)
                                                         :compression :gzip))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel) (numbers (watch channel (note 1)))
    (is (equal '(7) value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel)
      (let* ((note (note 1))
             (future (grpc:call-async #'lab.bench:ask channel note :timeout 20)))
        ;; the caller may change the message afterwards
        (setf (lab:note-number note) 1000000)
        (number-of (grpc:await future)))
    (is (eql 7 value))
    (is (= 2 count))))

(test refused-streams-are-made-again
  "A refused stream is repeated as long as the call has sent no more messages than are kept."
  (with-attempts (value count 1 channel :at :headers)
      (let ((call (chat channel :open)))
        (prog1 (number-of (grpc:receive call))
          (grpc:cancel call)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel) ; a stream without messages is also sent again
      (let ((call (chat channel :open :timeout 20)))
        (grpc:close-send call)
        (number-of (grpc:receive call)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (error count 1 channel)
      (numbers (chat channel (loop for i from 1 to 5 collect (note i))))
    (is (typep error 'grpc:unavailable))
    (is (not (grpc:rpc-error-sent-p error)))
    (is (= 1 count))))

(test who-refuses-again-means-it
  (with-attempts (error count 9 channel) (ask channel (note 1))
    (is (typep error 'grpc:unavailable))
    (is (not (grpc:rpc-error-sent-p error)))
    (is (= 2 count))))

(defun send-away (peer exchange)
  "Send a GOAWAY to PEER that refuses the stream of EXCHANGE and later ones."
  (http2:send-goaway (peer-http2 peer) http2:+no-error+
                     :last-stream-id (max 0 (- (http2:stream-id (exchange-stream exchange)) 2))))

(test goaways-that-may-have-been-under-way-do-not-count
  "Three existing connections end with the first call on each; the call continues on another
connection, old or new."
  (let ((counter (list 0)))
    (flet ((script ()
             (let ((first t))
               (lambda (peer exchange)
                 (sb-ext:atomic-incf (car counter))
                 (if (shiftf first nil)
                     (send-away peer exchange)
                     (ok-response exchange (note-octets 7)))))))
      (with-raw-server (one) (script)
        (with-raw-server (two) (script)
          (with-raw-server (three) (script)
            (grpc:with-channel (channel (format nil "ipv4:~A,~A,~A" one two three)
                                        :balance :round-robin)
              (grpc:ensure-connected channel)
              (assert (wait-until (lambda ()
                                    (loop for facts in (grpc:channel-addresses channel)
                                          always (eq :ready (getf facts :state))))))
              (is (eql 7 (number-of (ask channel (note 1) :timeout 20))))
              (is (<= 3 (car counter) 4)))))))))

(test who-sends-away-again-means-it
  "The second connection is made after the first GOAWAY, so its GOAWAY counts."
  (let ((counter (list 0)))
    (with-raw-server (address) (lambda (peer exchange)
                                 (sb-ext:atomic-incf (car counter))
                                 (send-away peer exchange))
      (grpc:with-channel (channel address)
        (let ((error (caught (ask channel (note 1) :timeout 20))))
          (is (typep error 'grpc:unavailable))
          (is (= 2 (car counter)))
          (is (= 2 (length (grpc:rpc-error-attempts error)))))))))

(test answers-that-have-begun-are-not-asked-for-again
  (let ((counter (list 0)))
    (with-raw-server (address)
        (fn (_peer exchange)
          (sb-ext:atomic-incf (car counter))
          (send-fields (exchange-stream exchange)
                       '((":status" . "200") ("content-type" . "application/grpc")) nil)
          (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+))
      (grpc:with-channel (channel address)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (is (= 1 (car counter)))))))

(test refused-calls-keep-their-deadline-and-can-be-cancelled
  "The second attempt, which is not answered, ends by the call's deadline or its cancellation."
  (let ((counter (list 0)))
    (with-raw-server (address)
        (fn (_peer exchange)
          (when (evenp (sb-ext:atomic-incf (car counter)))
            (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)))
      (grpc:with-channel (channel address)
        (is (typep (caught (ask channel (note 1) :timeout 0.3)) 'grpc:deadline-exceeded))
        (is (= 2 (car counter)))
        (let ((future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
          (eventually (= 4 (car counter)))
          (grpc:cancel future)
          (is (typep (caught (grpc:await future)) 'grpc:cancelled)))))))

(defun call-with-resets (count function)
  "Call FUNCTION while the next COUNT connections that servers accept are closed at once."
  (let ((left (list count)))
    (with-replaced (('wire:open-link
                     (lambda (original owner loop transport role &rest more)
                       (cond ((and (eq role :server) (plusp (sb-ext:atomic-decf (car left))))
                              (loop:close-byte-channel transport)
                              (error "closed for the test"))
                             (t (apply original owner loop transport role more))))))
      (funcall function))))

(defun turn-away-all (server)
  "Let the connections of SERVER end in order."
  (clgrpc.server::call-on-loops
   server
   (lambda (server-loop) (clgrpc.server::map-links #'clgrpc.server::drain-link server-loop))))

(test a-connection-that-is-reset-after-a-good-one-is-tried-anew
  "So it is when another process replaces a server. Once, since otherwise nobody listens, and only
for calls that would fail: calls that wait for ready wait for the back-off."
  (with-probe (channel :server server :events (:accept-function-error)
                       :channel-options '(:backoff-initial-seconds 0.01))
      (:ask #'double)
    (flet ((ask-after (resets &rest arguments)
             (turn-away-all server)
             (eventually (not (eq :ready (grpc:channel-state channel))))
             (call-with-resets resets
                               (lambda () (caught (apply #'ask channel (note 4) arguments)))))
           (back-offs ()
             (loop for facts in (grpc:channel-addresses channel)
                   sum (getf facts :failed-connects))))
      (is (= 8 (number-of (ask channel (note 4)))))
      (is (null (ask-after 1)))
      (is (= 0 (back-offs)))
      (is (typep (ask-after 2) 'grpc:unavailable))
      (is (= 8 (number-of (ask channel (note 4) :wait-for-ready t))))
      (let ((before (back-offs)))
        (is (null (ask-after 1 :wait-for-ready t)))
        (is (= (1+ before) (back-offs)))))))

(defun start-next (address)
  (start-probe (list :ask #'double :watch #'count-up) :listen address :reuse-port t))

(defun note-calls (count calls)
  (sb-ext:atomic-incf (car calls) count))

(defun await-calls (count calls)
  "Wait until COUNT calls more have been made."
  (let ((start (car calls)))
    (assert (wait-until (lambda () (<= (+ start count) (car calls)))))))

(defun call-meanwhile (function channels)
  "Call FUNCTION with a cell that counts calls, while five threads call without a pause and without
waiting for ready, each on one of CHANNELS. Return the number of calls."
  (let ((calls (list 0)) (done nil))
    (with-threads (thread 6)
      (if (= thread 0)
          (unwind-protect (funcall function calls)
            (setf done t))
          (loop with channel = (elt channels (mod thread (length channels)))
                for i from 0
                until done
                do (ecase thread
                     ((1 2 3) (assert (= (* 2 i) (number-of (ask channel (note i))))))
                     (4 (assert (= 3 (length (numbers (watch channel (note 3)))))))
                     (5 (let ((futures (loop for k below 10
                                             collect (grpc:call-async #'lab.bench:ask channel
                                                                      (note k)))))
                          (assert (equal (loop for k below 10 collect (* 2 k))
                                         (loop for future in futures
                                               collect (number-of (grpc:await future))))))))
                   (note-calls (if (= thread 5) 10 1) calls))))
    (car calls)))

(defun check-no-call-is-lost (target replace)
  "Call REPLACE, a function that replaces a server of TARGET, with 0 to 19 while calls are made."
  (grpc:with-channel (one target)
    (grpc:with-channel (other target)
      (is (< 2000 (call-meanwhile (lambda (calls)
                                    (dotimes (round 20)
                                      (await-calls 100 calls)
                                      (funcall replace round)))
                                  (list one other)))))))

(test no-call-is-lost-in-a-rolling-restart
  "Clients call without a pause while another process replaces the server at an address, again and
again. No call waits for ready: the old server continues until the new one listens."
  (let* ((server (start-next "127.0.0.1:0"))
         (address (grpc:server-address server)))
    (unwind-protect
         (check-no-call-is-lost
          address
          (fn (_round)
            (let ((next (start-next address)))
              (assert (grpc:stop-server (shiftf server next) :drain 10)))))
      (grpc:stop-server server :drain 5))))

(test no-call-is-lost-between-two-addresses
  "Two servers at two addresses of one target are replaced in turn, while the other one serves."
  (let* ((servers (list (start-next "127.0.0.1:0") (start-next "127.0.0.1:0")))
         (addresses (mapcar #'grpc:server-address servers)))
    (unwind-protect
         (check-no-call-is-lost
          (format nil "ipv4:~{~A~^,~}" addresses)
          (lambda (round)
            (let ((which (mod round 2)))
              (assert (grpc:stop-server (elt servers which) :drain 10))
              (setf (elt servers which) (start-next (elt addresses which))))))
      (dolist (server servers) (grpc:stop-server server :drain 5)))))

;;; Retry policies

(defun retry-config (&key (attempts 3) (initial "0.01s") (maximum "0.02s") (multiplier 2)
                       (codes "\"UNAVAILABLE\"") (more ""))
  "The JSON of a service config that has a retry policy for all methods."
  (format nil "{\"methodConfig\":[{\"name\":[{}],\"retryPolicy\":{\"maxAttempts\":~D,~
               \"initialBackoff\":~S,\"maxBackoff\":~S,\"backoffMultiplier\":~D,~
               \"retryableStatusCodes\":[~A]}}]~A}"
          attempts initial maximum multiplier codes more))

(defun fail-exchange (exchange code &key pushback (message ""))
  "Answer EXCHANGE with trailers only."
  (send-fields (exchange-stream exchange)
               (append (list '(":status" . "200") '("content-type" . "application/grpc")
                             (cons "grpc-status" (princ-to-string code))
                             (cons "grpc-message" message))
                       (and pushback (list (cons "grpc-retry-pushback-ms" pushback))))
               t))

(defun call-under-config (config script function &key (at :end) (options '()))
  "Call FUNCTION with a channel that has CONFIG, JSON, and OPTIONS, to a server with SCRIPT, a
function of an exchange and the number of exchanges before it. Return FUNCTION's value or the
RPC-ERROR that it signals, and the exchanges, the oldest first."
  (let ((exchanges '()))
    (with-raw-server (address :at at)
        (fn (_peer exchange)
          (push exchange exchanges)
          (funcall script exchange (1- (length exchanges))))
      (let ((channel (apply #'grpc:make-channel address :service-config config options)))
        (unwind-protect
             (let* ((value nil)
                    (error (caught (setf value (funcall function channel)))))
               (assert (wait-until (lambda () (zerop (kept-octets channel)))))
               (values (or error value) (reverse exchanges)))
          (grpc:close-channel channel))))))

(defun kept-octets (channel)
  "The octets that all calls of CHANNEL keep for further attempts."
  (clgrpc.base::octet-budget-held (client::core-replays (client::channel-core channel))))

(defmacro under-config ((value exchanges config script &rest options) call &body body)
  "Evaluate BODY with VALUE and EXCHANGES bound to what CALL-UNDER-CONFIG returns; in CALL, CHANNEL
is the channel."
  `(multiple-value-bind (,value ,exchanges)
       (call-under-config ,config ,script (lambda (channel) ,call) ,@options)
     (declare (ignorable ,exchanges))
     ,@body))

(defun failing-first (count &rest how)
  "A script that fails the first COUNT exchanges as FAIL-EXCHANGE with HOW, and answers others."
  (lambda (exchange number)
    (if (< number count)
        (apply #'fail-exchange exchange how)
        (ok-response exchange (note-octets 7)))))

(test streams-go-on-while-they-wait-to-be-retried
  "Messages sent meanwhile follow the messages that are sent again."
  (let ((count (list 0)))
    (with-probe (channel :channel-options (list :service-config
                                                (retry-config :initial "0.1s" :maximum "0.1s")))
        (:chat (lambda (stream call)
                 (if (zerop (sb-ext:atomic-incf (car count)))
                     (grpc:fail :unavailable "not yet")
                     (echo stream call))))
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (eventually (grpc:failed-attempts call))
        (grpc:send call (note 2 :body 5000))
        (grpc:send call (note 3))
        (grpc:close-send call)
        (is (equal '(1 2 3) (numbers call)))
        (is (= 2 (car count)))))))

(test what-is-retried-and-what-not
  (flet ((attempts (code config &rest options &key (script (failing-first 9 code :message "why"))
                                               (call (lambda (channel) (ask channel (note 1))))
                    &allow-other-keys)
           (multiple-value-bind (value exchanges)
               (call-under-config config script call
                                  :options (alexandria:remove-from-plist options :script :call))
             (values (length exchanges) value))))
    (multiple-value-bind (count error) (attempts 14 (retry-config))
      (is (= 3 count))
      (is (typep error 'grpc:unavailable))
      (is (string= "why" (grpc:rpc-error-message error)))
      (is (search "attempts: 3, UNAVAILABLE from 127.0.0.1:" (princ-to-string error)))
      (is (equal '((0 :unavailable) (1 :unavailable) (2 :unavailable))
                 (loop for attempt in (grpc:rpc-error-attempts error)
                       collect (list (getf attempt :number) (getf attempt :status))))))
    (multiple-value-bind (count error) (attempts 5 (retry-config))
      (is (= 1 count))
      (is (typep error 'grpc:not-found))
      (is (not (search "attempts:" (princ-to-string error)))))
    (is (= 5 (attempts 14 (retry-config :attempts 9))))
    (is (= 7 (attempts 14 (retry-config :attempts 9) :max-attempts 7)))
    (is (= 1 (attempts 14 (retry-config) :retry nil)))
    (is (= 3 (attempts 14 (retry-config :codes "14"))))
    ;; an answer that has begun
    (is (= 1 (attempts 14 (retry-config)
                       :script (fn (exchange _number)
                                 (send-fields (exchange-stream exchange)
                                              '((":status" . "200")
                                                ("content-type" . "application/grpc"))
                                              nil)
                                 (send-fields (exchange-stream exchange)
                                              '(("grpc-status" . "14")) t)))))
    ;; streams that are reset, and answers that are not gRPC
    (is (= 3 (attempts 13 (retry-config :codes "\"INTERNAL\"")
                       :script (fn (exchange _number) (reset-exchange exchange)))))
    (is (= 3 (attempts 14 (retry-config)
                       :script (fn (exchange _number)
                                 (send-fields (exchange-stream exchange)
                                              '((":status" . "503")) t)))))
    ;; a refused attempt is first made again transparently, then by the policy
    (is (= 4 (attempts 14 (retry-config)
                       :script (fn (exchange _number)
                                 (http2:reset-stream (exchange-stream exchange)
                                                     http2:+refused-stream+)))))))

(test a-request-too-long-to-be-kept-is-sent-once
  (flet ((attempts (octets call &rest options)
           (length (nth-value 1 (call-under-config (retry-config) (failing-first 9 14) call
                                                   :options (list* :replay-octets octets
                                                                   options))))))
    (flet ((ask-long (channel) (ask channel (note 1 :body 1000)))
           (collect-three (channel)
             (lab.bench:collect channel (loop repeat 3 collect (note 1 :body 400)))))
      (is (= 3 (attempts 2000 #'ask-long)))
      (is (= 1 (attempts 500 #'ask-long)))
      (is (= 3 (attempts 2000 #'collect-three)))
      (is (= 1 (attempts 500 #'collect-three)))
      (is (= 1 (attempts 2000 #'ask-long :total-replay-octets 500)))
      (is (= 1 (attempts 2000 #'collect-three :total-replay-octets 500))))))

(test pushback-says-when
  (flet ((outcome (pushback)
           (let ((start (monotonic-ns)))
             (multiple-value-bind (value exchanges)
                 (call-under-config (retry-config :initial "5s" :maximum "5s")
                                    (failing-first 1 14 :pushback pushback)
                                    (lambda (channel) (number-of (ask channel (note 1)))))
               (list (if (eql 7 value) :ok :failed) (length exchanges)
                     (floor (- (monotonic-ns) start) 1000000))))))
    (destructuring-bind (value count milliseconds) (outcome "80")
      (is (eq :ok value))
      (is (= 2 count))
      (is (<= 80 milliseconds 3000)))
    (is (equal '(:ok 2) (subseq (outcome "0") 0 2)))
    (dolist (never '("-1" "soon" "1e3" "007" "99999999999" "+5" ""))
      (is (equal '(:failed 1) (subseq (outcome never) 0 2)) "~S" never))))

(test a-call-that-waits-to-be-retried-can-be-cancelled
  (under-config (error exchanges (retry-config :initial "20s" :maximum "20s") (failing-first 9 14))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
        (assert (wait-until (lambda () (grpc:failed-attempts call))))
        (assert (wait-until (lambda ()
                              (= 1 (hash-table-count
                                    (client::core-retrying (client::channel-core channel)))))))
        (grpc:cancel call)
        (unwind-protect (grpc:await call)
          (assert (zerop (hash-table-count
                          (client::core-retrying (client::channel-core channel)))))))
    (is (typep error 'grpc:cancelled))
    (is (= 1 (length exchanges))))
  ;; a channel may be closed while its call waits
  (under-config (error exchanges (retry-config :initial "20s" :maximum "20s") (failing-first 9 14))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
        (assert (wait-until (lambda () (grpc:failed-attempts call))))
        (grpc:close-channel channel)
        (grpc:await call))
    (is (typep error 'grpc:cancelled))
    (is (= 1 (length exchanges)))))

(test servers-that-cannot-be-reached-are-tried-again
  "A failure to connect counts as a failed attempt."
  (let ((channel (grpc:make-channel (free-address)
                                    :service-config (retry-config :attempts 3))))
    (unwind-protect
         (let ((error (caught (ask channel (note 1)))))
           (is (typep error 'grpc:unavailable))
           (is (= 3 (length (grpc:rpc-error-attempts error))))
           (is (not (grpc:rpc-error-sent-p error))))
      (grpc:close-channel channel))))

(test observers-of-retries
  "Observers see each attempt with its own status, and each repeated message again."
  (multiple-value-bind (observer told) (recorder)
    (under-config (value exchanges (retry-config) (failing-first 2 14)
                   :options (list :observer observer))
        (prog1 (number-of (ask channel (note 1)))
          (assert (wait-until (lambda () (= 3 (length (told-of told :attempt-ended)))))))
      (is (eql 7 value))
      (is (equal '(:unavailable :unavailable :ok)
                 (mapcar #'third (told-of told :attempt-ended))))
      (is (= 3 (length (told-of told :message-sent))))
      (is (= 1 (length (told-of told :call-ended)))))))
