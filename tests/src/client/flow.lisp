;;;; Back-pressure: an end that does not read stops its sender only, and nothing is lost.

(in-package #:clgrpc.tests.client)

(defparameter *small-windows* '(:stream-window-octets 65535)
  "Options of a receiver that makes a sender stop soon.")

(defparameter *bound-octets* (+ (* 2 65535) (* 4 65536))
  "The most octets on their way to a reader with *SMALL-WINDOWS* that does not read: a window, and
as much in its queue; a send budget; and the contents of the output and of one more message.")

(defun count-and-send (note call sent)
  "Send on CALL as fast as possible; count the messages in the car of SENT."
  (loop for i below (number-of note)
        do (grpc:send call (note i :body 5000))
           (incf (car sent))))

(test a-client-that-does-not-read
  "The handler's SEND waits, within bounds; when the client reads, all arrives in order."
  (dolist (execution '(:auto :blocking))
    (let ((sent (list 0)))
      (with-probe (channel :options (list :execution execution) :channel-options *small-windows*)
          (:watch (lambda (note call) (count-and-send note call sent) nil) :ask #'double)
        (let ((call (watch channel (note 1000))))
          (is (<= 13 (settled (lambda () (car sent))) (floor *bound-octets* 5000)))
          (is (= 2 (number-of (ask channel (note 1)))))
          (is (equal (loop for i below 1000 collect i) (numbers call)))
          (is (= 1000 (car sent))))))))

(test a-client-that-does-not-read-and-callbacks
  "The reactive handler is notified when there is room again."
  (let ((sent 0))
    (with-probe (channel :options '(:execution :inline) :channel-options *small-windows*)
        (:watch (lambda (note call)
                  (grpc:on-writable
                   call
                   (lambda ()
                     (loop while (and (< sent (number-of note))
                                      (grpc:try-send call (note sent :body 5000)))
                           do (incf sent))
                     (when (= sent (number-of note)) (grpc:finish call))))
                  call)
         :ask #'double)
      (let ((call (watch channel (note 1000))))
        (is (<= 13 (settled (lambda () sent)) (floor *bound-octets* 5000)))
        (is (= 2 (number-of (ask channel (note 1)))))
        (is (equal (loop for i below 1000 collect i) (numbers call)))))))

(test a-handler-that-does-not-read
  "The client's SEND and its generator wait; when the handler reads, all arrives in order."
  (let ((go-on (make-signal)) (ok t) (asked 0) (sent 0))
    (flet ((handler (stream call)
             (await-signal go-on)
             (let ((next 0))
               (grpc:do-messages (note stream)
                 (unless (= next (number-of note)) (setf ok nil))
                 (incf next))
               (if (eq 'lab.bench:collect
                       (method:rpc-method-function-name (rpc:call-rpc-method call)))
                   (note next)
                   (progn (grpc:send call (note next)) nil)))))
      (with-probe (channel :options *small-windows*)
          (:collect #'handler :chat #'handler :ask #'double)
        (let ((chat (chat channel (lambda ()
                                    (when (< asked 1000)
                                      (prog1 (note asked :body 5000) (incf asked))))))
              (sender (in-thread
                        (number-of (collect channel
                                            (lambda ()
                                              (when (< sent 1000)
                                                (prog1 (note sent :body 5000) (incf sent)))))))))
          (is (<= 13 (settled (lambda () asked)) (floor *bound-octets* 5000)))
          (is (<= 13 (settled (lambda () sent)) (floor *bound-octets* 5000)))
          (is (= 2 (number-of (ask channel (note 1)))))
          (loop repeat 2 do (signal-it go-on))
          (is (equal '(1000) (numbers chat)))
          (is (= 1000 (sb-thread:join-thread sender :timeout 20 :default nil)))
          (is-true ok))))))

(test many-that-do-not-read
  "Streams that nobody reads do not exhaust the connection while they hold less than half of
max-held-octets, with 4 MB each: other calls continue meanwhile."
  (let ((sent (loop repeat 6 collect (list 0))) (begun (list -1)))
    (with-probe (channel) (:watch (lambda (note call)
                                    (count-and-send note call
                                                    (nth (1+ (sb-ext:atomic-incf (car begun)))
                                                         sent))
                                    nil)
                           :ask #'double)
      (let ((calls (loop repeat 6 collect (watch channel (note 1000000) :timeout 120))))
        (settled (lambda () (reduce #'+ sent :key #'car)))
        (loop for i below 20
              do (is (= (* 2 i) (number-of (ask channel (note i :body 100000) :timeout 20)))))
        (mapc #'grpc:cancel calls)
        (is (= 2 (number-of (ask channel (note 1)))))))))

(test empty-messages-are-bounded
  "Empty messages cannot accumulate either."
  (let ((go-on (make-signal)) (count 0))
    (with-probe (channel :options *small-windows*)
        (:collect (handling (stream)
                    (await-signal go-on)
                    (grpc:do-messages (note stream (note count)) (incf count))))
      (let ((sent 0) (empty (note 0)))
        (let ((thread (in-thread
                        (number-of (collect channel
                                            (lambda ()
                                              (when (< sent 200000) (incf sent) empty)))))))
          (is (< (settled (lambda () sent)) 100000))
          (signal-it go-on)
          (is (= 200000 (sb-thread:join-thread thread :timeout 20 :default nil))))))))

(test ten-thousand-each-way
  "All arrive, in order, blocking and reactive, on one stream and on several at once."
  (dolist (handler (list #'echo
                         (lambda (stream call)
                           (grpc:on-message stream (lambda (note) (grpc:send call note)))
                           (grpc:on-half-close stream (lambda () (grpc:finish call)))
                           call)))
    (with-probe (channel) (:chat handler :watch #'count-up :collect #'add-up)
      (let ((expected (loop for i below 10000 collect i)))
        (is (equal expected (numbers (watch channel (note 10000)))))
        (is (= 49995000 (number-of (collect channel (mapcar #'note expected)))))
        (is (equal expected (numbers (chat channel (mapcar #'note expected)))))
        (let* ((call (chat channel :open))
               (sender (in-thread
                         (dolist (i expected) (grpc:send call (note i :body (mod i 100))))
                         (grpc:close-send call))))
          (is (equal expected (numbers call)))
          (sb-thread:join-thread sender :timeout 20 :default nil))))))

(test large-messages
  "16 MB both ways, with the right content, while small calls go on."
  (with-probe (channel :options '(:max-receive-octets 20000000)
                       :channel-options '(:max-receive-octets 20000000))
      (:ask #'double :chat #'echo)
    (let ((body (make-octets 16777216)))
      (loop for i below (length body) by 997 do (setf (aref body i) (mod i 251)))
      (let ((call (chat channel :open)))
        (loop for i below 2
              do (grpc:send call (note i :body body))
                 (is (= 2 (number-of (ask channel (note 1)))))
                 (let ((reply (grpc:receive call)))
                   (is (= i (number-of reply)))
                   (is (octets-equal body (lab:note-body reply)))))
        (grpc:close-send call)
        (is (null (grpc:receive call)))))))

(test what-is-sent-leaves-by-itself
  "A sender of some messages, in a row or not, may do something else then: they are sent at once."
  (let ((came (make-signal)))
    (with-probe (channel)
        (:collect (handling (stream)
                    (let ((sum 0))
                      (grpc:do-messages (note stream (note sum))
                        (incf sum (number-of note))
                        (signal-it came)))))
      (flet ((seconds-to-come (count)
               (let ((call (collect channel :open)))
                 (prog1 (elapsed-seconds
                          (dotimes (i count) (grpc:send call (note 1)))
                          (is (await-signal came :count count)))
                   (grpc:close-send call)
                   (is (= count (number-of (grpc:receive call))))))))
        (dolist (count '(1 2 5 6 50))
          (let ((best (loop repeat 10 minimize (seconds-to-come count))))
            (is (< best 0.02) "~D messages came after ~,1F ms" count (* 1000 best)))))
      (let ((loop (client:core-loop (client::channel-core channel))))
        (is (wait-until (lambda ()
                          (zerop (clgrpc.loop::driving-flusher
                                  (clgrpc.loop::event-loop-driving loop)))))
            "the loop soon stops looking for more messages")))))

(test messages-sent-in-bursts
  "Short and long messages, in bursts and with pauses, arrive whole and in order."
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed))
         (handler (handling (stream)
                    (let ((next 0) (octets 0))
                      (grpc:do-messages (note stream (note octets))
                        (unless (= next (number-of note)) (grpc:fail :data-loss "out of order"))
                        (incf next)
                        (incf octets (length (lab:note-body note))))))))
    (with-probe (channel) (:collect handler)
      (dotimes (i 5)
        (let ((call (collect channel :open)) (octets 0))
          (dotimes (i 400)
            (let ((size (if (zerop (random 20 random)) (random 50000 random) (random 50 random))))
              (grpc:send call (note i :body size))
              (incf octets size))
            (when (zerop (random 40 random))
              (let ((end (+ (monotonic-ns) (random 600000 random))))
                (loop while (< (monotonic-ns) end)))))
          (grpc:close-send call)
          (is (= octets (number-of (grpc:receive call))) "seed ~D" seed))))))
