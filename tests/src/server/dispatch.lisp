;;;; Requests as they come, good and bad, from a raw peer: the right answer, on the right stream
;;;; only.

(in-package #:clgrpc.tests.server)

(defmacro with-raw-probe ((peer channel &rest options) (&rest handlers) &body body)
  "WITH-PROBE with a raw client in addition. After BODY the server must still serve both."
  (let ((server (gensym "SERVER")))
    `(with-probe (,channel :server ,server ,@options) (:ask #'double :chat #'echo ,@handlers)
       (with-raw-client (,peer (grpc:server-address ,server))
         ,@body
         (is (equalp (note-octets 42)
                     (exchange-data-octets
                      (ask-raw ,peer "/lab.Bench/Ask" :data (note-octets 21))))))
       (is (= 42 (number-of (ask ,channel (note 21))))))))

(test unimplemented
  "Methods and services that do not exist, and methods without a handler."
  (with-raw-probe (peer channel) ()
    (is (typep (caught (lab.absent:ask channel (note 1) :timeout 5)) 'grpc:unimplemented))
    (is (typep (caught (numbers (watch channel (note 1)))) 'grpc:unimplemented))
    (is (typep (caught (collect channel (list (note 1)))) 'grpc:unimplemented))
    (dolist (path '("/lab.Bench/Nothing" "/lab.Bench/ask" "/lab.Nothing/Ask" "/" "lab.Bench/Ask"
                    "/lab.Bench/Ask/" "/lab.Bench/Ask?x=1" "*"))
      (loop repeat 2                    ; the second time the path is remembered
            do (is (eq :unimplemented (status-of (ask-raw peer path :data (note-octets 1)))))))
    (is (eq :unimplemented (status-of (ask-raw peer "/lab.Bench/Nothing" :end nil))))))

(test not-grpc
  "A request that is not gRPC gets an HTTP status and a short text."
  (with-raw-probe (peer channel) ()
    (flet ((check (status &rest arguments)
             (let ((exchange (apply #'ask-raw peer "/lab.Bench/Ask" arguments)))
               (is (string= status (field-of ":status" (exchange-headers exchange))))
               (is (string= "text/plain" (field-of "content-type" (exchange-headers exchange))))
               (is (null (status-of exchange)))
               (is (< 5 (length (exchange-data-octets exchange)) 200)))))
      (check "415" :content-type nil)
      (check "415" :content-type "text/html")
      (check "415" :content-type "application/grpcx")
      (check "415" :content-type "application/grpc-web")
      (check "415" :content-type "application/grpc+json" :data (octets-of 1 2 3))
      (check "415" :method "GET" :content-type nil)
      (check "405" :method "GET")
      (check "405" :method "PUT" :data (note-octets 1)))
    (dolist (type '("application/grpc" "application/grpc+proto" "application/grpc;charset=utf-8"
                    "Application/gRPC" "application/grpc+proto; x=y"))
      (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask" :content-type type
                                                            :data (note-octets 1))))))))

(test request-fields
  "A malformed time-out or an unknown encoding ends its call only."
  (with-raw-probe (peer channel) ()
    (flet ((status (&rest fields)
             (status-of (ask-raw peer "/lab.Bench/Ask" :fields fields :data (note-octets 1)))))
      (dolist (value '("" "5" "S" "5s" "-1S" "123456789S" "1.5S"))
        (is (eq :internal (status (cons "grpc-timeout" value))) "grpc-timeout ~S" value))
      (is (eq :ok (status '("grpc-timeout" . "99999999H"))))
      (is (eq :ok (status '("grpc-encoding" . "identity"))))
      (is (eq :unimplemented (status '("grpc-encoding" . "snappy"))))
      (is (eq :unimplemented (status '("grpc-encoding" . "snappy") '("grpc-encoding" . "gzip"))))
      (is (eq :ok (status '("grpc-accept-encoding" . "gzip") '("user-agent" . "x"))))
      ;; also when the field comes from the table, and the block has been seen before
      (dotimes (i 4)
        (is (eq :internal (status '("x-odd-bin" . "!!"))))
        (is (eq :ok (status '("x-odd-bin" . "AQ==,AgM"))))))))

(test deadlines-that-have-passed
  "A call that arrives too late, or whose deadline passes before its handler could run, ends without
its handler, by every execution."
  (dolist (execution '(:inline :blocking))
    (let ((ran 0))
      (flet ((handle (request call)
               (declare (ignore request call))
               (incf ran)
               (note 1)))
        (with-probe (channel :server server :options (list :execution execution))
            (:ask #'handle :watch #'handle :collect #'handle :chat #'handle)
          (with-raw-client (peer (grpc:server-address server))
            (dolist (path '("/lab.Bench/Ask" "/lab.Bench/Watch" "/lab.Bench/Collect"
                            "/lab.Bench/Chat"))
              (dolist (value '("0n" "0H" "00000000S" "1n" "1n"))
                (is (eq :deadline-exceeded
                        (status-of (ask-raw peer path :fields `(("grpc-timeout" . ,value))
                                                      :data (note-octets 1))))
                    "~A ~A" path value)))
            (is (zerop ran))
            (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask"
                                            :fields '(("grpc-timeout" . "20S"))
                                            :data (note-octets 1)))))
            (is (= 1 ran))
            (is (= 1 (number-of (ask channel (note 1)))))))))))


(test request-messages
  "Wrong numbers of messages, wrong prefixes and malformed messages."
  (with-raw-probe (peer channel :options '(:max-receive-octets 1000)) ()
    (flet ((status (&rest pieces)
             (status-of (ask-raw peer "/lab.Bench/Ask"
                                 :data (apply #'concatenate 'octets pieces)))))
      (is (eq :unimplemented (status (octets-of))))
      (is (eq :unimplemented (status-of (ask-raw peer "/lab.Bench/Ask"))))
      (is (eq :unimplemented (status (note-octets 1) (note-octets 2))))
      (is (eq :internal (status (framed (octets-of 1) :flag 1))))
      (is (eq :internal (status (framed (octets-of 1) :flag 2))))
      (is (eq :internal (status (framed (octets-of 8)))))
      (is (eq :internal (status (framed (octets-of 255 255 255)))))
      (is (eq :internal (status (octets-of 0))))
      (is (eq :internal (status (octets-of 0 0 0 0))))
      (is (eq :internal (status (framed (octets-of 8 1) :length 3))))
      (is (eq :internal (status (note-octets 1) (octets-of 0 0))))
      (is (eq :resource-exhausted (status (framed (make-octets 1001)))))
      (is (eq :resource-exhausted (status (octets-of 0 255 255 255 255))))
      (is (eq :ok (status (framed (octets-of))))))))

(test messages-in-pieces
  "A message cut at any place is joined; several in one frame are separated."
  (with-raw-probe (peer channel) ()
    (let* ((octets (concatenate 'octets (note-octets 1) (note-octets 2 :body 300) (note-octets 3)
                                (framed (octets-of))))
           (all octets))
      (loop for cut from 0 to (length octets) by 7
            for exchange = (send-request peer "/lab.Bench/Chat" :data (subseq-octets octets 0 cut)
                                                                :end nil)
            do (http2:send-data (exchange-stream exchange)
                                (subseq-octets octets cut (length octets)) 0
                                (- (length octets) cut) t)
               (await-answer peer exchange)
               (is (eq :ok (status-of exchange)))
               (is (equalp all (exchange-data-octets exchange)))))))

(test octet-by-octet
  "Every octet in a frame of its own."
  (with-raw-probe (peer channel) ()
    (let ((exchange (send-request peer "/lab.Bench/Ask" :end nil)))
      (loop with octets = (note-octets 4 :text "four")
            for i below (length octets)
            do (http2:send-data (exchange-stream exchange) (subseq-octets octets i (1+ i)) 0 1
                                (= i (1- (length octets))))
               (flush-peer peer))
      (await-answer peer exchange)
      (is (equalp (note-octets 8 :text "four") (exchange-data-octets exchange))))))

(test request-with-trailers
  "Trailers of a request end it."
  (with-raw-probe (peer channel) ()
    (let ((exchange (send-request peer "/lab.Bench/Ask" :data (note-octets 1) :end nil)))
      (send-fields (exchange-stream exchange) '(("x-tail" . "1")) t)
      (await-answer peer exchange)
      (is (equalp (note-octets 2) (exchange-data-octets exchange))))))

(test reset-while-running
  "A reset at any time ends that call only."
  (let ((begun (make-signal)) (ended (make-signal)))
    (with-raw-probe (peer channel)
        (:watch (lambda (note call)
                  (grpc:on-cancel call (lambda () (signal-it ended)))
                  (when (evenp (lab:note-number note)) (signal-it begun))
                  call)
         :collect (handling (stream)
                    (handler-bind ((grpc:cancelled (fn (_error) (signal-it ended))))
                      (when (evenp (lab:note-number (grpc:receive stream))) (signal-it begun))
                      (grpc:receive stream))))
      (flet ((reset (exchange)
               (http2:reset-stream (exchange-stream exchange) http2:+cancel+)
               (flush-peer peer)))
        (loop for i below 20
              for watch = (send-request peer "/lab.Bench/Watch" :data (note-octets i))
              for collect = (send-request peer "/lab.Bench/Collect" :data (note-octets i) :end nil)
              do (when (evenp i)
                   (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))
                   ;; for the other calls it is not known whether their handlers begin
                   (is (await-signal begun :count 2)))
                 (reset watch)
                 (reset collect)
                 (reset (send-request peer "/lab.Bench/Ask" :data (octets-of 0) :end nil))))
      (is (await-signal ended :count 20)))))

(test connection-lost-while-running
  "All calls of a lost connection are cancelled."
  (let ((started (make-signal)) (ended (make-signal)))
    (with-probe (channel :server server)
        (:chat (handling (stream)
                 (signal-it started)
                 (handler-case (grpc:receive stream)
                   (grpc:cancelled (error) (signal-it ended) (error error))))
         :watch (fn (_note call)
                  (grpc:on-cancel call (lambda () (signal-it ended)))
                  (signal-it started)
                  call))
      (with-raw-client (peer (grpc:server-address server))
        (loop repeat 5
              do (send-request peer "/lab.Bench/Chat" :end nil)
                 (send-request peer "/lab.Bench/Watch" :data (note-octets 1)))
        (is (await-signal started :count 10)))
      (is (await-signal ended :count 10)))))

(test too-many-streams
  "Beyond max-concurrent-streams requests are refused; our client waits instead."
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :server server :options '(:max-concurrent-streams 2 :execution :blocking))
        (:ask (double-when running go-on))
      (let ((futures (loop for i below 6
                           collect (grpc:call-async #'lab.bench:ask channel (note i) :timeout 20))))
        (is (await-signal running :count 2))
        (with-raw-client (peer (grpc:server-address server))
          (let ((exchanges (loop for i below 3
                                 collect (progn
                                           ;; a peer that does not keep to the limit
                                           (setf (http2:connection-peer-max-streams
                                                  (peer-http2 peer))
                                                 100)
                                           (send-request peer "/lab.Bench/Ask"
                                                         :data (note-octets i))))))
            (is (eql http2:+refused-stream+ (exchange-reset (await-answer peer (third exchanges)))))
            (loop repeat 8 do (signal-it go-on))
            (is (eq :ok (status-of (await-answer peer (first exchanges)))))
            (is (eq :ok (status-of (await-answer peer (second exchanges)))))))
        (loop for future in futures
              for i from 0
              do (is (= (* 2 i) (number-of (grpc:await future)))))))))

(test full-reserve
  "When all threads are busy and the queue is full, calls are refused at once."
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :options '(:reserve-threads 1 :reserve-queue 1 :execution :blocking))
        (:ask (double-when running go-on))
      (let ((first (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
        (is (await-signal running))
        (let ((second (grpc:call-async #'lab.bench:ask channel (note 2) :timeout 20)))
          (is (typep (caught (ask channel (note 3))) 'grpc:resource-exhausted))
          (loop repeat 2 do (signal-it go-on))
          (is (= 2 (number-of (grpc:await first))))
          (is (= 4 (number-of (grpc:await second)))))))))

(test calls-that-have-waited-for-a-thread-leave-no-timer
  "The timer of a call's wait for a thread ends with the call."
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :server server
                         :options '(:reserve-threads 1 :execution :blocking
                                    :reserve-wait-seconds 3600))
        (:ask (double-when running go-on))
      (flet ((timers ()
               (reduce #'+ (server:server-loops server)
                       :key (lambda (server-loop)
                              (wheel-count (loop:event-loop-wheel
                                            (server:server-loop-loop server-loop)))))))
        (signal-it go-on)
        (ask channel (note 0))
        (await-signal running)
        (let* ((first (grpc:call-async #'lab.bench:ask channel (note 1)))
               ;; once it runs, the loop has finished the previous call
               (before (progn (is-true (await-signal running)) (timers))))
          (let ((others (loop for i from 2 to 5
                              collect (grpc:call-async #'lab.bench:ask channel (note i)))))
            (eventually (= (+ 4 before) (timers)))
            (loop repeat 5 do (signal-it go-on))
            (dolist (future (cons first others)) (grpc:await future))
            (eventually (<= (timers) before))))))))

(test places-of-calls-that-have-ended-are-free
  "A call that is cancelled while it waits for a thread frees its place in the queue."
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :options '(:reserve-threads 1 :reserve-queue 1 :execution :blocking))
        (:ask (double-when running go-on))
      (flet ((ask-later (number)
               (grpc:call-async #'lab.bench:ask channel (note number) :timeout 20)))
        (let ((first (ask-later 1)))
          (is (await-signal running))
          ;; on one connection, so what ends a call comes before the next
          (loop repeat 10 do (grpc:cancel (ask-later 2)))
          (let ((last (ask-later 3)))
            (is (typep (caught (ask channel (note 4))) 'grpc:resource-exhausted))
            (loop repeat 2 do (signal-it go-on))
            (is (= 2 (number-of (grpc:await first))))
            (is (= 6 (number-of (grpc:await last))))))))))

(test answers-unread
  "A peer that sends requests and does not read delays no other; later it gets every answer."
  (with-raw-probe (peer channel :options '(:max-unsent-octets 16384)) ()
    (let ((exchanges (loop repeat 3000
                           collect (progn (setf (http2:connection-peer-max-streams
                                                 (peer-http2 peer))
                                                4000)
                                          (send-request peer "/lab.Bench/Nothing"
                                                        :fields '(("x-unknown" . "whatever")))))))
      (is (= 2 (number-of (ask channel (note 1)))))
      (dolist (exchange exchanges) (await-answer peer exchange))
      (is (every (lambda (exchange) (or (exchange-reset exchange) (status-of exchange)))
                 exchanges)))))

(test long-turns-take-little-of-each-connection
  "A peer may have a thousand connections that all send: in a turn that has taken long already, only
a few frames of each are read, and the rest in the next turn."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (let* ((socket (wire::link-socket (link-of memory:*end* server-loop)))
           (frame (dialogue:frames-octets (dialogue:make-peer) '((:priority 3 1))))
           (frames (apply #'concatenate 'octets (loop repeat 20 collect frame))))
      (flet ((taken (turn-ns)
               (memory:call-in-world
                memory:*world*
                (lambda ()
                  (incf (memory:world-now memory:*world*) turn-ns) ; since the turn began
                  (multiple-value-bind (end more) (wire::link-input socket frames 0 (length frames))
                    (list (floor end (length frame)) more))))))
        (is (equal '(20 nil) (taken 0)))
        (is (equal (list wire::+frames-at-first+ t) (taken (1+ loop::+reading-ns+))))))))
