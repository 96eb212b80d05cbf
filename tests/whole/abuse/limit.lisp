;;;; What the peers of a server together may have it hold and do: connections, handshakes, calls,
;;;; handlers, octets. What is too much is turned away, everybody else is served, and all comes
;;;; back.

(in-package #:clgrpc.tests.abuse)

(defun connected-count (server)
  (getf (grpc:server-statistics server) :connections))

(defun turned-away-p (attacker)
  "True if the server closes the connection without a word."
  (hear attacker #'null)
  (attacker-closed attacker))

(defun gone-p (attacker)
  "True if the server has closed the connection by now; what it has said before can be heard still."
  (loop while (read-input attacker 0))
  (attacker-closed attacker))

(defmacro with-connected ((variable count address &key from) &body body)
  "Evaluate BODY with VARIABLE bound to a list of COUNT connections that have said nothing."
  `(let ((,variable (loop repeat ,count collect (connect ,address :from ,from))))
     (unwind-protect (progn ,@body)
       (dolist (attacker ,variable) (close-socket (attacker-socket attacker))))))

(test too-many-connections-of-a-peer
  "The bystander's is one of them."
  (with-victim (address :server server :options '(:max-connections-per-peer 5))
    (with-connected (first 4 address)
      (eventually (= 5 (connected-count server)))
      (with-connected (more 3 address)
        (is (every #'turned-away-p more)))
      (is (= 5 (connected-count server))))
    (eventually (= 1 (connected-count server)))
    (with-attacker (attacker address) (is-true (served-p attacker)))))

(test too-many-handshakes
  "Connections that say nothing have each other closed, the oldest first, and nobody else."
  (with-victim (address :server server :options '(:max-handshakes 5 :preface-timeout-seconds 1))
    (with-attacker (decent address)
      (is-true (served-p decent))
      (with-connected (silent 5 address)
        (eventually (= 7 (connected-count server)))
        (with-connected (more 3 address)
          (is (every #'turned-away-p (subseq silent 0 3)))
          (is (notany #'gone-p (append more (nthcdr 3 silent)))))
        (is-true (served-p decent))
        ;; their time is up
        (eventually (= 2 (connected-count server))))
      (with-attacker (attacker address) (is-true (served-p attacker))))))

(test too-many-calls
  ;; a bystander would be among them
  (with-victim (address :watched nil :options '(:max-calls 10))
    (with-attacker (attacker address)
      (let ((ids (loop repeat 10
                       collect (demand attacker "/lab.Bench/Collect" (note-octets 1) :end nil))))
        (is (eq :resource-exhausted
                (verdict attacker (demand attacker "/lab.Bench/Ask" (note-octets 1)))))
        (throw-frames attacker `(:rst-stream ,(first ids) :cancel))
        (is-true (served-p attacker))))))

(test reset-calls-count-while-their-handlers-run
  "Calls that are reset as soon as their handlers run, which blocks: those of one connection are
limited, another's are served."
  (let ((release (make-signal)) (begun (list 0)))
    (with-victim (address
                  :options '(:execution :blocking :max-running-handlers 8 :reserve-threads 24)
                  :handlers (list :ask (lambda (note call)
                                         (when (= 77 (number-of note))
                                           (sb-ext:atomic-incf (car begun))
                                           (await-signal release))
                                         (answer note call))))
      (with-attacker (attacker address)
        (loop for round below 30
              do (let ((id (demand attacker "/lab.Bench/Ask" (note-octets 77))))
                   (when (< round 8) (wait-until (lambda () (= (1+ round) (car begun)))))
                   (throw-frames attacker `(:rst-stream ,id :cancel))))
        (is (eq :resource-exhausted
                (verdict attacker (demand attacker "/lab.Bench/Ask" (note-octets 1)))))
        (is (= 8 (car begun)))
        (with-attacker (decent address) (is-true (served-p decent)))
        (signal-it release)
        (loop repeat 7 do (signal-it release))
        (eventually (served-p attacker))))))

(defun call-with-stalled (function)
  "Call FUNCTION with a handler that returns for numbers from 70 on only when FUNCTION has."
  (let ((over nil) (lock (sb-thread:make-mutex)) (told (sb-thread:make-waitqueue)))
    (unwind-protect
         (funcall function
                  (lambda (note call)
                    (when (<= 70 (number-of note))
                      (sb-thread:with-mutex (lock)
                        (loop until over do (sb-thread:condition-wait told lock))))
                    (answer note call)))
      (sb-thread:with-mutex (lock)
        (setf over t)
        (sb-thread:condition-broadcast told)))))

(defmacro with-stalled ((address handler &rest options) &body body)
  "As WITH-VICTIM with OPTIONS, where HANDLER is a handler of Ask that stalls; see above."
  `(with-victim (,address :options (list ,@options :execution :blocking)
                          :handlers (list :ask (lambda (note call) (funcall ,handler note call))))
     (call-with-stalled (lambda (stalled) (setf ,handler stalled) ,@body))))

(test blocking-calls-of-one-connection
  "A thousand calls that stay, on one connection: another's begin at once, as does one call more of
the peer's connections after one has ended."
  (let ((handler #'answer))
    (with-stalled (address handler)
      (with-attacker (attacker address)
        (dotimes (i 1000) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
        (with-attacker (decent address)
          (dotimes (i 100) (is-true (served-p decent))))))))

(test blocking-calls-that-nobody-expected
  "The same calls where handlers run on the loop until one of their method has overstayed: it need
not have returned for the next to run elsewhere. Neither do quick ones bring the method back."
  (let ((handler #'answer))
    (with-stalled (address handler :execution :auto)
      (with-attacker (attacker address)
        (dotimes (round 10)
          (dotimes (i 80) (demand attacker "/lab.Bench/Ask" (note-octets 1)))
          (dotimes (i 20) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
          (with-attacker (decent address)
            (dotimes (i 50) (is-true (served-p decent)))))
        (dotimes (i 700) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
        (with-attacker (decent address)
          (dotimes (i 50) (is-true (served-p decent))))))))

(test blocking-calls-of-many-connections
  "The same on fifty connections: each gets less, and who comes last finds a thread."
  (let ((handler #'answer))
    (with-stalled (address handler :reserve-wait-seconds 60)
      (with-connected (attackers 50 address)
        (dolist (attacker attackers)
          (greet attacker)
          (dotimes (i 200) (demand attacker "/lab.Bench/Ask" (note-octets 77))))
        (with-attacker (decent address)
          (dotimes (i 20) (is-true (served-p decent))))))))

(test requests-of-calls-that-were-reset
  "Calls with long requests that are reset while they wait for a thread: nothing keeps the request."
  (let ((handler #'answer))
    (with-stalled (address handler :reserve-threads 4 :reserve-wait-seconds 60)
      (with-attacker (attacker address)
        (dotimes (i 10) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
        (throw-and-reset attacker (support:at-length 50 200) 1000000)
        (with-attacker (decent address) (is-true (served-p decent)))))))

(test requests-of-calls-that-were-held-up
  "The same while they wait for answers to leave."
  (check-requests-held-up :inline)
  (check-requests-held-up :blocking))

(defun check-requests-held-up (execution)
  (with-victim (address :server server
                        :options (list :max-queued-octets 65536 :execution execution)
                        :handlers (list :ask #'answer-at-length))
    (with-attacker (attacker address :settings '((:initial-window-size 0)))
      (ask-for-much attacker 2 100)
      (eventually (< 65536 (queued-octets server)))
      (throw-and-reset attacker (support:at-length 50 200) 1000000)
      (with-attacker (decent address) (is-true (served-p decent)))
      ;; one of the two that asked for much may wait still
      (eventually (>= 1 (held-up-count server))))))

(defun held-up-count (server)
  "How many calls wait at SERVER for answers to leave."
  (loop for link in (server-links server)
        for queue = (clgrpc.wire::link-held-up link)
        when queue sum (length (fifo-items queue))))

(test calls-held-up-by-one-that-is-reset
  "A call that waits for the answer of another is served once that one is reset: the connection has
nothing else to send, which would have it look."
  (with-victim (address :server server :options '(:max-queued-octets 65536 :execution :inline)
                        :handlers (list :ask #'answer-at-length))
    (with-attacker (attacker address)
      (let ((much (first (ask-for-much attacker 1 300))))
        (eventually (< 65536 (queued-octets server)))
        (let ((little (demand attacker "/lab.Bench/Ask" (note-octets 1))))
          (eventually (= 1 (held-up-count server)))
          (throw-frames attacker `(:rst-stream ,much :cancel))
          (is (eq :ok (verdict attacker little))))))))

(defun throw-and-reset (attacker count length)
  "Make COUNT calls with requests of LENGTH octets, and reset each when it is whole."
  (let ((octets (note-octets 5 :body length)))
    (dotimes (i count)
      (let ((id (new-id attacker)))
        (throw-frames attacker `(:headers ,id ,(request-fields "/lab.Bench/Ask")))
        (loop for at from 0 below (length octets) by 16384
              for end = (min (+ at 16384) (length octets))
              do (throw-frames attacker
                               `(:data ,id ,(subseq octets at end)
                                       ,@(when (= end (length octets)) '(:end-stream)))))
        (throw-frames attacker `(:rst-stream ,id :cancel))
        (hear attacker (constantly nil) :seconds 0)))))

(test too-many-octets-of-all-connections
  "Half messages on many connections, each within its own limit."
  (with-victim (address :server server
                        :options '(:max-total-held-octets 400000 :max-receive-octets 50000
                                   :max-held-octets 200000))
    (let* ((octets (note-octets 1 :body 40000))
           (half (subseq octets 0 (1- (length octets))))
           (attackers (loop repeat 12 collect (connect address))))
      (unwind-protect
           (progn
             (dolist (attacker attackers)
               (greet attacker)
               (dotimes (i 3)
                 (let ((id (new-id attacker)))
                   (throw-frames attacker `(:headers ,id ,(request-fields "/lab.Bench/Ask")))
                   (loop for at from 0 below (length half) by 16384
                         do (throw-frames attacker
                                          `(:data ,id ,(subseq half at (min (+ at 16384)
                                                                            (length half)))))))))
             (with-attacker (decent address) (is-true (served-p decent)))
             (is (<= (account-sum (server::server-account server)) 450000)))
        (dolist (attacker attackers) (close-socket (attacker-socket attacker))))
      (is (wait-until (lambda () (zerop (charged-beside server))))
          "~D octets charged" (charged-beside server))
      (check-nothing-held server))))

(test connections-that-cannot-be-begun-are-not-counted
  "A connection that is admitted and then fails before it is one takes no place of its peer's."
  (with-probe (channel :server server :options '(:max-connections-per-peer 5)
                       :events (:accept-function-error))
      (:ask #'answer)
    (with-replaced (('wire:open-link
                     (fn (_original _owner _loop byte-channel &rest _more)
                       (loop:close-byte-channel byte-channel)
                       (error "no"))))
      (with-connected (attackers 6 (grpc:server-address server))
        (is (every #'turned-away-p attackers))))
    (eventually (zerop (hash-table-count (server::admission-peers
                                          (server::server-admission server)))))
    (is (= 2 (number-of (ask channel (note 1)))))))
