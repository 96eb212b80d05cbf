;;;; What the peers of a server together may have it hold and do: connections, handshakes, calls,
;;;; handlers, octets. What is too much is turned away, everybody else is served, and all comes
;;;; back.

(in-package #:clgrpc.tests.abuse)
(in-suite :clgrpc.abuse)

(defun connected-count (server)
  (getf (grpc:server-statistics server) :connections))

(defun turned-away-p (attacker)
  "True if the server closes the connection without a word."
  (hear attacker #'null)
  (attacker-closed attacker))

(defmacro with-connected ((variable count address) &body body)
  "Evaluate BODY with VARIABLE bound to a list of COUNT connections that have said nothing."
  `(let ((,variable (loop repeat ,count collect (connect ,address))))
     (unwind-protect (progn ,@body)
       (dolist (attacker ,variable) (close-socket (attacker-socket attacker))))))

(test too-many-connections-of-a-peer
  "The bystander's is one of them."
  (with-victim (address :server server :options '(:max-connections-per-peer 5))
    (with-connected (first 4 address)
      (is-true (wait-until (lambda () (= 5 (connected-count server)))))
      (with-connected (more 3 address)
        (is (every #'turned-away-p more)))
      (is (= 5 (connected-count server))))
    (is-true (wait-until (lambda () (= 1 (connected-count server)))))
    (with-attacker (attacker address) (is-true (served-p attacker)))))

(test too-many-handshakes
  "Connections that say nothing keep each other out, but nobody who is connected already."
  (with-victim (address :server server :options '(:max-handshakes 5 :preface-timeout-seconds 1))
    (with-attacker (decent address)
      (is-true (served-p decent))
      (with-connected (silent 5 address)
        (is-true (wait-until (lambda () (= 7 (connected-count server)))))
        (with-connected (more 3 address) (is (every #'turned-away-p more)))
        (is-true (served-p decent))
        ;; their time is up
        (is-true (wait-until (lambda () (= 2 (connected-count server))))))
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
                  :options '(:execution :blocking :max-running-handlers 8 :reserve-threads 12)
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
        (is (wait-until (lambda () (served-p attacker))))))))

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
             (is (<= (rpc:ledger-held (server::server-ledger server)) 450000)))
        (dolist (attacker attackers) (close-socket (attacker-socket attacker))))
      (is (wait-until (lambda () (zerop (rpc:ledger-held (server::server-ledger server)))))
          "~D octets charged" (rpc:ledger-held (server::server-ledger server)))
      (check-nothing-held server))))

(test connections-that-cannot-be-begun-are-not-counted
  "A connection that is admitted and then fails before it is one takes no place of its peer's."
  (with-probe (channel :server server :options '(:max-connections-per-peer 5)
                       :events (:accept-function-error))
      (:ask #'answer)
    (sb-int:encapsulate 'rpc:open-link 'fails
                        (lambda (original owner loop transport &rest more)
                          (declare (ignore original owner loop more))
                          (loop:close-transport transport)
                          (error "no")))
    (unwind-protect
         (with-connected (attackers 6 (grpc:server-address server))
           (is (every #'turned-away-p attackers)))
      (sb-int:unencapsulate 'rpc:open-link 'fails))
    (is-true (wait-until (lambda ()
                           (zerop (hash-table-count (server::server-peers server))))))
    (is (= 2 (number-of (ask channel (note 1)))))))
