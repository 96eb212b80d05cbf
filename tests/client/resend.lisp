;;;; See src/client/resend.lisp: calls that a server has not seen are made again, once.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defun refusing (times counter)
  "A script that refuses the first TIMES requests, counted in the car of COUNTER, and answers others
with 7."
  (lambda (peer exchange)
    (declare (ignore peer))
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
        ;; what the caller does with the message afterwards is his affair
        (setf (lab:note-number note) 1000000)
        (number-of (grpc:await future)))
    (is (eql 7 value))
    (is (= 2 count))))

(test refused-streams-are-made-again
  "As long as nothing has been sent on them."
  (with-attempts (value count 1 channel :at :headers)
      (let ((call (chat channel :open)))
        (prog1 (number-of (grpc:receive call))
          (grpc:cancel call)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (value count 1 channel) ; which ends without a message, and that is sent again too
      (let ((call (chat channel :open :timeout 20)))
        (grpc:close-send call)
        (number-of (grpc:receive call)))
    (is (eql 7 value))
    (is (= 2 count)))
  (with-attempts (error count 1 channel) (numbers (chat channel (list (note 1))))
    (is (typep error 'grpc:unavailable))
    (is (not (grpc:rpc-error-sent-p error)))
    (is (= 1 count))))

(test who-refuses-again-means-it
  (with-attempts (error count 9 channel) (ask channel (note 1))
    (is (typep error 'grpc:unavailable))
    (is (not (grpc:rpc-error-sent-p error)))
    (is (= 2 count))))

(test answers-that-have-begun-are-not-asked-for-again
  (let ((counter (list 0)))
    (with-raw-server (address)
        (lambda (peer exchange)
          (declare (ignore peer))
          (sb-ext:atomic-incf (car counter))
          (send-fields (exchange-stream exchange)
                       '((":status" . "200") ("content-type" . "application/grpc")) nil)
          (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+))
      (grpc:with-channel (channel address)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (is (= 1 (car counter)))))))

(test refused-calls-keep-their-deadline
  (let ((counter (list 0)))
    (with-raw-server (address)
        (lambda (peer exchange)
          (declare (ignore peer))
          (when (= 0 (sb-ext:atomic-incf (car counter)))
            (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)))
      (grpc:with-channel (channel address)
        (is (typep (caught (ask channel (note 1) :timeout 0.3)) 'grpc:deadline-exceeded))
        (is (= 2 (car counter)))))))

(test refused-and-cancelled
  (let ((counter (list 0)))
    (with-raw-server (address)
        (lambda (peer exchange)
          (declare (ignore peer))
          (when (= 0 (sb-ext:atomic-incf (car counter)))
            (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)))
      (grpc:with-channel (channel address)
        (let ((future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 20)))
          (is-true (wait-until (lambda () (= 2 (car counter)))))
          (grpc:cancel future)
          (is (typep (caught (grpc:await future)) 'grpc:cancelled)))))))

(defun restart-rolling (address servers done)
  "Stop the first of SERVERS and start another at ADDRESS, twenty times over."
  (unwind-protect
       (dotimes (round 20)
         (let ((next (start-probe (list :ask #'double :watch #'count-up)
                                  :listen address :reuse-port 1)))
           (assert (grpc:stop-server (shiftf (car servers) next) :drain 10))))
    (setf (car done) t)))

(test no-call-is-lost-in-a-rolling-restart
  "Clients call without a pause while the server at an address is replaced by another, again and
again. They wait for ready: what the kernel accepts for a socket that is just being closed is reset
before it is a connection."
  (let* ((first (start-probe (list :ask #'double :watch #'count-up) :reuse-port 1))
         (address (grpc:server-address first))
         (servers (list first))
         (done (list nil)))
    (unwind-protect
         (grpc:with-channel (one address :backoff-initial-seconds 0.01)
           (grpc:with-channel (other address :backoff-initial-seconds 0.01)
             (let ((counts
                     (with-threads (thread 5)
                       (if (= thread 0)
                           (progn (restart-rolling address servers done) 0)
                           (loop for i from 0
                                 until (car done)
                                 do (let ((channel (if (oddp thread) one other)))
                                      (if (< thread 4)
                                          (assert (= (* 2 i) (number-of (ask channel (note i)
                                                                            :wait-for-ready t))))
                                          (assert (= 3 (length (numbers
                                                                (watch channel (note 3)
                                                                       :wait-for-ready t)))))))
                                 finally (return i))))))
               (is (every #'plusp (rest counts)) "~S" counts))))
      (grpc:stop-server (car servers) :drain 5))))
