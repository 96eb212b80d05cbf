;;;; Peers that take nothing, or say nothing: without window, not reading, slow to begin, gone
;;;; without a word. What they asked for must not pile up, nor be waited for without end.

(in-package #:clgrpc.tests.abuse)

(defun answer-at-length (note call)
  "As many KB as the number says, if that is not a bystander's."
  (if (< (number-of note) 10)
      (answer note call)
      (note 1 :body (* 1000 (number-of note)))))

(defun ask-for-much (attacker count kilobytes)
  "Begin COUNT calls whose answers have so many KILOBYTES each; return their streams."
  (loop repeat count
        collect (demand attacker "/lab.Bench/Ask" (note-octets kilobytes))))

(defun queued-octets (server)
  "What the connections of SERVER have queued for windows or a turn."
  (loop for link in (server-links server)
        for http2 = (wire::link-http2 link)
        ;; nil until it is known what the link speaks
        when http2
          sum (clgrpc.http2:counters-queued-octets (clgrpc.http2:connection-counters http2))))

(defmacro with-long-answers ((address server &rest options) &body body)
  `(with-victim (,address :server ,server :options (list ,@options)
                          :handlers (list :ask #'answer-at-length :watch #'count-down
                                          :collect #'add-up :chat #'echo))
     ,@body))

(test answers-without-window
  "A thousand answers of 400 KB that may not be sent: most are not made before others have left.
When those have been cancelled, or taken, they are."
  (with-long-answers (address server)
    (with-attacker (attacker address :settings '((:initial-window-size 0)))
      (let ((ids (ask-for-much attacker 1000 400)))
        (eventually (< 20000000 (queued-octets server)))
        (with-attacker (decent address) (is-true (served-p decent)))
        (is (< (queued-octets server) 60000000) "~D octets queued" (queued-octets server))
        (dolist (id (butlast ids 10)) (throw-frames attacker `(:rst-stream ,id :cancel)))
        (throw-frames attacker '(:settings (:initial-window-size 1000000)))
        (let ((ended 0))
          (hear attacker (lambda (form)
                           (and (eq :headers (first form))
                                (eq :ok (ending-of form))
                                (= 10 (incf ended)))))
          (is (= 10 ended)))
        (is-true (served-p attacker))))))

(test answers-that-wait-come-in-time
  "A peer with little window that takes what it asked for gets all of it, wherever handlers run."
  (dolist (execution '(:inline :blocking))
    (with-long-answers (address server :max-queued-octets 65536 :execution execution)
      (with-attacker (attacker address :settings '((:initial-window-size 100000)))
        (let ((ended 0) (ids (ask-for-much attacker 100 40)))
          (hear attacker (lambda (form)
                           (and (eq :headers (first form))
                                (eq :ok (ending-of form))
                                (= (length ids) (incf ended)))))
          (is (= (length ids) ended)))))))

(test answers-without-window-on-many-connections
  (with-long-answers (address server :max-total-held-octets 40000000)
    (with-connected (attackers 20 address)
      (dolist (attacker attackers)
        (greet attacker '(:initial-window-size 0))
        (ask-for-much attacker 50 400))
      (eventually (< 15000000 (queued-octets server)))
      (with-attacker (decent address) (is-true (served-p decent)))
      (is (< (queued-octets server) 60000000) "~D octets queued" (queued-octets server)))))

(test answers-without-window-are-charged
  "What waits for windows is charged while its connection is silent. A long answer is encoded while
another thread runs the loop, which sends its header list meanwhile, and nothing goes out with it;
it is charged all the same. Of these rounds about half failed."
  (loop repeat 8
        do (with-long-answers (address server :max-total-held-octets 40000000)
             (with-connected (attackers 20 address)
               (dolist (attacker attackers)
                 (greet attacker '(:initial-window-size 0))
                 (ask-for-much attacker 50 400))
               (flet ((queued () (queued-octets server))
                      (charged () (account-sum (server::server-account server))))
                 (eventually (< 15000000 (queued)))
                 (is (wait-until (lambda () (<= (queued) (charged))))
                     "~D octets wait, ~D are charged" (queued) (charged)))))))

(test answers-that-nobody-reads
  "The windows are large, but nothing is taken from the socket; the calls are not begun either."
  (with-long-answers (address server)
    (with-attacker (attacker address :settings '((:initial-window-size 1000000000)))
      (ask-for-much attacker 500 400)
      (with-attacker (decent address) (is-true (served-p decent)))
      (is (< (queued-octets server) 60000000) "~D octets queued" (queued-octets server)))))

(defun unsent-octets (server)
  "What the connections of SERVER, which has one loop, have in their output."
  (let ((total 0))
    (server::call-on-loops server
                           (lambda (server-loop)
                             (loop for link across (server:server-loop-links server-loop)
                                   do (incf total (loop:connection-unsent
                                                   (wire::link-socket link))))))
    total))

(test errors-that-nobody-reads
  "Header blocks need no window, so calls that fail at length are begun no more once so much is
unsent; when it is read all get their status, wherever their handlers run."
  (dolist (execution '(:inline :blocking))
    (with-log ()
      (with-victim (address :server server :watched nil
                            :options (list :execution execution)
                            :handlers (list :ask (lambda (note call)
                                                   (if (< (number-of note) 10)
                                                       (answer note call)
                                                       (grpc:fail :aborted
                                                                  (make-string 100000))))))
        (with-attacker (attacker address)
          (let* ((count 900) (endings 0) (most 0)
                 (ids (loop repeat count
                            collect (demand attacker "/lab.Bench/Ask" (note-octets 10)))))
            (with-attacker (decent address)
              (loop repeat 50
                    do (is-true (served-p decent))
                       (setf most (max most (unsent-octets server)))))
            (is (< most 4000000) "~D octets were not sent." most)
            (hear attacker (lambda (form)
                             (and (eq :headers (first form))
                                  (eq :aborted (ending-of form))
                                  (= count (incf endings)))))
            (is (= (length ids) endings))))))))

(test streams-that-take-all-threads
  "A thousand streams whose handlers wait for window, on all threads there are."
  (with-victim (address)
    (with-attacker (attacker address :settings '((:initial-window-size 0)))
      (loop repeat 1000 do (demand attacker "/lab.Bench/Watch" (note-octets 200)))
      (with-attacker (decent address)
        (dotimes (i 20) (is-true (served-p decent)))))))

(test silent-peers-are-given-up
  "A peer that has gone without a word, or never reads: keepalive finds it, with calls or without."
  (with-long-answers (address server :keepalive-seconds 0.2 :keepalive-timeout-seconds 0.2)
    (with-attacker (gone address)
      (demand gone "/lab.Bench/Collect" (note-octets 1) :end nil)
      (with-attacker (full address :settings '((:initial-window-size 1000000000)))
        (ask-for-much full 50 400)
        (eventually (= 1 (connected-count server)) :seconds *return-seconds*)))))

(test half-closed-connections
  "Who ends its side of the connection has gone (we do not answer into the dark)."
  (with-victim (address :server server)
    (with-attacker (attacker address)
      (demand attacker "/lab.Bench/Collect" (note-octets 1) :end nil)
      (sb-bsd-sockets:socket-shutdown (attacker-socket attacker) :direction :output)
      (eventually (= 1 (connected-count server)) :seconds *return-seconds*))))

(test slow-prefaces
  "Hundreds that send their preface octet by octet, and never the end of it."
  (with-victim (address :server server :options '(:preface-timeout-seconds 1))
    (with-connected (attackers 300 address)
      (loop for octet across (subseq *preface* 0 20)
            do (dolist (attacker attackers) (throw-octets attacker (octets-of octet))))
      (is (every (lambda (attacker) (eq :protocol-error (hear-to-the-end attacker))) attackers))
      (eventually (= 1 (connected-count server))))))

(test slow-handshakes
  "Hundreds that begin TLS, and go on octet by octet."
  (let ((hello (octets-of #x16 #x03 #x01 #x02 #x00 #x01 #x00 #x01 #xFC #x03 #x03)))
    (with-victim (address :server server :watched nil
                          :options (list :preface-timeout-seconds 1
                                         :credentials
                                         (grpc:tls-credentials
                                          :certificate (support:certificate-file "server.pem")
                                          :key (support:certificate-file "server.key")))
                          :channel-options (list :credentials
                                                 (grpc:tls-credentials
                                                  :roots (support:certificate-file "ca.pem"))))
      (with-connected (attackers 300 address)
        (loop for octet across hello
              do (dolist (attacker attackers) (throw-octets attacker (octets-of octet))))
        (is (every #'turned-away-p attackers))
        (eventually (= 1 (connected-count server)))))))
