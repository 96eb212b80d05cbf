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

(defun call-with-resets (count function)
  "Call FUNCTION while the next COUNT connections that servers accept are closed as soon as they
are."
  (let ((left (list count)))
    (sb-int:encapsulate 'wire:open-link 'resets
                        (lambda (original owner loop transport role &rest more)
                          (cond ((and (eq role :server) (plusp (sb-ext:atomic-decf (car left))))
                                 (loop:close-transport transport)
                                 (error "closed for the test"))
                                (t (apply original owner loop transport role more)))))
    (unwind-protect (funcall function)
      (sb-int:unencapsulate 'wire:open-link 'resets))))

(defun turn-away-all (server)
  "Have the connections of SERVER end in order."
  (clgrpc.server::call-on-loops
   server (lambda (hub) (clgrpc.server::map-links #'clgrpc.server::drain-link hub))))

(test a-connection-that-is-reset-after-a-good-one-is-tried-anew
  "As happens when a server is replaced by another. Once: otherwise nobody is there."
  (with-probe (channel :server server :events (:accept-function-error)
                       :channel-options '(:backoff-initial-seconds 0.01))
      (:ask #'double)
    (flet ((ask-after (resets)
             (turn-away-all server)
             (is-true (wait-until (lambda () (not (eq :ready (grpc:channel-state channel))))))
             (call-with-resets resets (lambda () (caught (ask channel (note 4)))))))
      (is (= 8 (number-of (ask channel (note 4)))))
      (is (null (ask-after 1)))
      (is (typep (ask-after 2) 'grpc:unavailable))
      (is (= 8 (number-of (ask channel (note 4) :wait-for-ready t)))))))

(defun start-next (address)
  (start-probe (list :ask #'double :watch #'count-up) :listen address :reuse-port t))

(defun note-calls (count calls)
  (sb-ext:atomic-incf (car calls) count))

(defun await-calls (count calls)
  "Wait until COUNT calls more have been made."
  (let ((start (car calls)))
    (assert (wait-until (lambda () (<= (+ start count) (car calls)))))))

(defun call-meanwhile (function channels)
  "Call FUNCTION with a cell that counts calls, while five threads, each with one of CHANNELS, make
them without a pause and without waiting for ready. Return how many there were."
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
  "Clients call without a pause while the server at an address is replaced by another, again and
again. Nobody waits for ready: the old server goes on until the new one listens."
  (let* ((server (start-next "127.0.0.1:0"))
         (address (grpc:server-address server)))
    (unwind-protect
         (check-no-call-is-lost
          address
          (lambda (round)
            (declare (ignore round))
            (let ((next (start-next address)))
              (assert (grpc:stop-server (shiftf server next) :drain 10)))))
      (grpc:stop-server server :drain 5))))

(test no-call-is-lost-between-two-addresses
  "Two servers at two addresses of one target, each replaced in turn while the other serves."
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
