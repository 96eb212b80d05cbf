;;;; Calls without waiting.

(in-package #:clgrpc.tests.client)

(test futures-of-calls
  "A future can be awaited twice, and from several threads. The requests of a client stream may be a
list or come from a generator."
  (with-probe (channel) (:ask #'double :collect #'add-up)
    (let ((future (grpc:call-async #'lab.bench:ask channel (note 5) :timeout 20)))
      (multiple-value-bind (reply call) (grpc:await future)
        (is (eq call future))
        (is-true (grpc:future-done-p future))
        (is (eq reply (grpc:await future))))
      (is (= 1 (length (remove-duplicates (with-threads (i 8) (grpc:await future)))))))
    (is (= 6 (number-of (grpc:await (grpc:call-async #'lab.bench:collect channel
                                                     (list (note 1) (note 2) (note 3)))
                                    :timeout +patience+))))
    (is (= 55 (number-of (grpc:await (grpc:call-async
                                      #'lab.bench:collect channel
                                      (let ((i 0))
                                        (lambda () (when (<= (incf i) 10) (note i)))))))))))

(test unparsable-reply
  (with-raw-server (address) (fn (_peer exchange) (ok-response exchange (framed (octets-of 255))))
    (grpc:with-channel (channel address)
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 3) :timeout 20)))
        (loop repeat 2 do (is (typep (caught (grpc:await future)) 'grpc:internal)))))))

(test attached-functions
  "Each runs once, on a thread that may wait, whether it was attached before or after the end."
  (let ((go-on (make-signal)) (done (make-signal)) (seen '()) (lock (sb-thread:make-mutex)))
    (with-probe (channel :options '(:execution :blocking))
        (:ask (lambda (note call)
                (await-signal go-on)
                (if (= 1 (number-of note)) (grpc:fail :not-found "gone") (double note call))))
      (flet ((record (name)
               (lambda (reply error)
                 (sb-thread:with-mutex (lock)
                   (push (list name (and reply (number-of reply))
                               (and error (grpc:rpc-error-status error)))
                         seen))
                 (signal-it done))))
        (let ((good (grpc:call-async #'lab.bench:ask channel (note 4) :timeout 20))
              (bad (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
          (is (eq good (grpc:attach good (record :a))))
          (grpc:attach good (record :b))
          (grpc:attach bad (record :c))
          (loop repeat 2 do (signal-it go-on))
          (is (await-signal done :count 3))
          (grpc:attach good (record :d))
          (grpc:attach bad (record :e))
          (is (await-signal done :count 2))
          (is (not (await-signal done :seconds 0.01)))
          (is (null (set-exclusive-or seen '((:a 8 nil) (:b 8 nil) (:c nil :not-found) (:d 8 nil)
                                             (:e nil :not-found))
                                      :test #'equal))))))))

(test attached-functions-may-call
  "They may make calls of their own, and an error in one does not affect the others."
  (let ((done (make-signal)) (sum 0) (lock (sb-thread:make-mutex)))
    (with-probe (channel :events (:reserve-function-error)) (:ask #'double)
      (loop for i below 50
            do (grpc:attach (grpc:call-async #'lab.bench:ask channel (note i) :timeout 20)
                            (fn (reply _error)
                              (let ((twice (number-of (ask channel reply))))
                                (sb-thread:with-mutex (lock) (incf sum twice)))
                              (signal-it done)
                              (error "of no consequence"))))
      (is (await-signal done :count 50))
      (is (= (* 4 1225) sum)))))

(test call-async-misuse
  "A stub that returns no reply is refused before there is a call."
  (let ((calls 0))
    (with-probe (channel :server server
                 :channel-options (list :observer (grpc:make-observer
                                                   :call-made (fn (_call) (incf calls)))))
        (:ask #'double :watch #'count-up :chat #'echo :collect #'add-up)
      (is (search "the stub of /lab.Bench/Watch returns a call at once. Call it directly"
                  (handler-case (grpc:call-async #'lab.bench:watch channel (note 1))
                    (grpc:misuse (error) (princ-to-string error)))))
      (signals grpc:misuse (grpc:call-async 'lab.bench:watch channel (note 1)))
      (signals grpc:misuse (grpc:call-async #'lab.bench:chat channel :open))
      (signals grpc:misuse (grpc:call-async #'lab.bench:collect channel :open))
      (signals grpc:misuse (grpc:call-async #'list channel (note 1)))
      (is (= 0 calls))
      (is (= 2 (number-of (ask channel (note 1))))))))

(test future-and-call-are-one
  "The value of CALL-ASYNC is a future and its own call; other calls cannot be awaited as futures."
  (with-probe (channel) (:ask #'double :chat #'echo)
    (let ((future (grpc:call-async #'lab.bench:ask channel (note 2) :timeout 20)))
      (is (typep future 'grpc:future))
      (multiple-value-bind (reply call) (grpc:await future)
        (is (= 4 (number-of reply)))
        (is (eq future call))))
    (let ((chat (chat channel :open))
          (call (nth-value 1 (ask channel (note 1)))))
      (dolist (other (list chat call))
        (signals grpc:misuse (grpc:await other))
        (signals grpc:misuse (grpc:await other :timeout 1))
        (signals grpc:misuse (grpc:attach other #'list)))
      (is (not (grpc:future-done-p chat)))
      (is-true (grpc:future-done-p call))
      (grpc:cancel chat)))
  (let ((error nil))
    (with-probe (channel) (:ask (lambda (note call)
                                  (setf error (nth-value 1 (ignore-errors
                                                            (grpc:attach call #'list))))
                                  (double note call)))
      (is (= 2 (number-of (ask channel (note 1)))))
      (is (typep error 'grpc:misuse)))))

(test calls-among-other-futures
  "ALL and ANY take calls; cancelling the future that they return cancels the calls."
  (let ((go-on (make-signal)))
    (with-probe (channel :options '(:execution :blocking))
        (:ask (lambda (note call)
                (when (= 9 (number-of note)) (await-signal go-on))
                (double note call)))
      (flet ((ask-later (i) (grpc:call-async #'lab.bench:ask channel (note i) :timeout 20)))
        (is (equal '(2 4 6) (mapcar #'number-of
                                    (grpc:await (grpc:all (mapcar #'ask-later '(1 2 3)))
                                                :timeout 20))))
        (let ((slow (ask-later 9)))
          (is (= 10 (number-of (grpc:await (grpc:any (list slow (ask-later 5))) :timeout 20))))
          (is (not (grpc:future-done-p slow)))
          (grpc:cancel (grpc:all (list slow)))
          (is (typep (caught (grpc:await slow :timeout 20)) 'grpc:cancelled)))
        (signal-it go-on)))))

(test long-replies-of-futures
  "One thread decodes a long reply, and all threads and completions get the same message."
  (with-probe (channel) (:ask (handling (note) note))
    (let ((done (make-signal)) (attached nil)
          (future (grpc:call-async #'lab.bench:ask channel (note 1 :body 100000) :timeout 20)))
      (grpc:attach future (fn (reply _error)
                            (setf attached reply)
                            (signal-it done)))
      (let ((replies (with-threads (i 8) (grpc:await future))))
        (is (await-signal done))
        (is (= 1 (length (remove-duplicates (cons attached replies)))))
        (is (= 1 (number-of attached)))))))

(test futures-of-a-closed-channel
  "Their functions still run, with :cancelled."
  (let ((done (make-signal)) (status nil) (started (make-signal)))
    (with-probe (kept :server server) (:ask (fn (_note call)
                                              (signal-it started)
                                              call))
      (let* ((channel (grpc:make-channel (grpc:server-address server)))
             (future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
        (grpc:attach future (fn (_reply error)
                              (setf status (grpc:rpc-error-status error))
                              (signal-it done)))
        (is (await-signal started))
        (grpc:close-channel channel)
        (is (await-signal done))
        (is (eq :cancelled status))))))
