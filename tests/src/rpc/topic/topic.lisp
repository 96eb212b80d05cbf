;;;; Topics: all subscribers get all messages in one order, over several loops and within the image;
;;;; subscribers that do not read; positions; the end.

(in-package #:clgrpc.tests.topic)

(defparameter *narrow*
  '(:stream-window-octets 65535 :connection-window-octets 65535)
  "Options of a channel that accepts little that its user does not read.")

(defmacro with-topic ((topic channel &rest arguments) (&key options channel-options events)
                      &body body)
  "Evaluate BODY with CHANNEL to a server whose streams of answers subscribe to TOPIC, made with
ARGUMENTS, from the number in the request, if that is not negative. EVENTS as in WITH-PROBE."
  `(let ((,topic (grpc:make-topic ,@arguments)))
     (with-probe (,channel :options ,options :channel-options ,channel-options :events ,events)
         (:watch (lambda (note call)
                   (grpc:subscribe ,topic call :from (and (<= 0 (number-of note))
                                                          (number-of note))))
          :ask #'double)
       (unwind-protect (progn ,@body)
         (grpc:close-topic ,topic)))))

(defun subscribers (topic)
  (getf (grpc:topic-statistics topic) :subscribers))

(defun subscribe-all (topic channels &key (from -1))
  "A call on each of CHANNELS, once TOPIC has them all."
  (let* ((before (subscribers topic))
         (calls (mapcar (lambda (channel) (watch channel (note from))) channels)))
    (wait-until (lambda () (= (+ before (length channels)) (subscribers topic))))
    calls))

(defun next-numbers (call count)
  (loop repeat count collect (number-of (grpc:receive call))))

(test another-object-is-not-a-topic
  (dolist (function (list (lambda (topic) (grpc:broadcast topic (note 1)))
                          (lambda (topic) (grpc:subscribe topic :call))
                          (lambda (topic) (grpc:unsubscribe topic :call))
                          #'grpc:close-topic #'grpc:topic-statistics))
    (is (search "\"news\" is not a topic, such as the value of MAKE-TOPIC."
                (handler-case (progn (funcall function "news") "")
                  (grpc:misuse (error) (princ-to-string error)))))))

(test all-subscribers-get-everything
  "They get it in one order, over two loops of the server, from several threads."
  (with-topic (topic channel) (:options '(:loops 2))
    (let* ((channels (loop repeat 6 collect (grpc:make-channel (grpc:channel-target channel))))
           (calls (subscribe-all topic channels)))
      (unwind-protect
           (progn
             (flet ((send-some (i)
                      (in-thread (dotimes (k 20) (grpc:broadcast topic (note (+ (* 100 i) k)))))))
               (mapc #'sb-thread:join-thread (mapcar #'send-some '(0 1 2 3))))
             (let ((first (next-numbers (first calls) 80)))
               (is (= 80 (length (remove-duplicates first))))
               (loop for i below 4
                     do (is (equal (loop for k below 20 collect (+ (* 100 i) k))
                                   (remove-if-not (lambda (n) (<= (* 100 i) n (+ 99 (* 100 i))))
                                                  first))))
               (dolist (call (rest calls))
                 (is (equal first (next-numbers call 80))))))
        (mapc #'grpc:close-channel channels)))))

(test subscribers-come-and-go
  (with-topic (topic channel) ()
    (is (= 1 (grpc:broadcast topic (note 0))))
    (destructuring-bind (call) (subscribe-all topic (list channel))
      (grpc:broadcast topic (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (grpc:cancel call)
      (eventually (zerop (subscribers topic))))
    (grpc:broadcast topic (note 2))
    (is (= 3 (grpc:topic-position topic)))
    (is (= 4 (number-of (ask channel (note 2)))))))

(test positions
  "A call begins after the number that it names, if the following messages are kept."
  (with-topic (topic channel :past 3) ()
    (dotimes (i 5) (grpc:broadcast topic (note (* 10 (1+ i)))))
    (flet ((from (position count)
             (let ((call (watch channel (note position))))
               (prog1 (next-numbers call count)
                 (grpc:cancel call))))
           (refused (position)
             (caught (grpc:receive (watch channel (note position))))))
      (is (equal '(30 40 50) (from 2 3)))
      (is (equal '(50) (from 4 1)))
      (dolist (position '(0 1 6 100))
        (let ((error (refused position)))
          (is (typep error 'grpc:out-of-range))
          (is (search "2 to 5" (grpc:rpc-error-message error)))))
      (let ((call (watch channel (note 5))))
        (wait-until (lambda () (plusp (subscribers topic))))
        (grpc:broadcast topic (note 60))
        (is (equal '(60) (next-numbers call 1)))
        (grpc:cancel call)))))

(test past-messages
  (let ((topic (grpc:make-topic :past 2)))
    (dotimes (i 5) (grpc:broadcast topic (note i)))
    (with-probe (channel) (:watch (fn (_note call) (grpc:subscribe topic call :from :past)))
      (let ((call (watch channel (note 0))))
        (is (equal '(3 4) (next-numbers call 2)))
        (grpc:close-topic topic)
        (is (null (grpc:receive call)))))))

(defun flood (topic count &key (first 0))
  (loop for i from first repeat count
        do (grpc:broadcast topic (note i :body 10000))))

(test a-slow-subscriber-is-ended
  "No other subscriber notices this."
  (with-topic (topic channel :queue 10) (:channel-options *narrow*)
    (grpc:with-channel (other (grpc:channel-target channel))
      (let* ((slow (first (subscribe-all topic (list channel))))
             (fast (first (subscribe-all topic (list other))))
             (count 0)
             (reader (in-thread (handler-case (grpc:do-messages (note fast) (incf count))
                                  (grpc:rpc-error () nil)))))
        (dotimes (i 100)
          (flood topic 1)
          (wait-until (lambda () (= count (1+ i)))))
        (is (= 100 count))
        (is (equal '(1 1) (list (subscribers topic)
                                (getf (grpc:topic-statistics topic) :ended))))
        (let ((condition (caught (grpc:do-messages (note slow)))))
          (is (typep condition 'grpc:resource-exhausted))
          (is (equal "the messages of the stream are not read"
                     (grpc:rpc-error-message condition))))
        (grpc:close-topic topic)
        (sb-thread:join-thread reader)))))

(test slow-subscribers-lose-messages
  "They lose the newest, or the oldest waiting ones; the messages that they get are in order."
  (dolist (slow '(:drop-oldest :drop-newest))
    (with-topic (topic channel :slow slow :queue 5) (:channel-options *narrow*)
      (let ((call (first (subscribe-all topic (list channel)))))
        (flood topic 100)
        (settled (lambda () (getf (grpc:topic-statistics topic) :waiting))) ; the window is full
        (flood topic 400 :first 100)
        (let ((dropped (getf (grpc:topic-statistics topic) :dropped)) (numbers '()))
          (is (< 300 dropped 500))
          (is (= 5 (getf (grpc:topic-statistics topic) :waiting)))
          (grpc:close-topic topic)
          (grpc:do-messages (note call) (push (number-of note) numbers))
          (is (= 500 (+ dropped (length numbers))))
          (is (apply #'> numbers))
          (is (eq (eq slow :drop-oldest) (= 499 (first numbers)))))))))

(test a-call-has-several-topics
  "Each sends its messages in order, while others send on the same call and nobody reads it."
  (let ((topics (loop repeat 3 collect (grpc:make-topic :queue 1000))))
    (with-probe (channel :channel-options *narrow*)
        (:watch (fn (_note call) (dolist (topic topics call) (grpc:subscribe topic call))))
      (let ((call (watch channel (note 0))))
        (wait-until (lambda () (every (lambda (topic) (= 1 (subscribers topic))) topics)))
        (mapc #'sb-thread:join-thread
              (loop for topic in topics
                    for first from 0 by 100
                    collect (sb-thread:make-thread
                             (lambda (topic first) (flood topic 30 :first first))
                             :arguments (list topic first))))
        (let ((numbers (next-numbers call 90)))
          (dolist (first '(0 100 200))
            (is (equal (loop for i from first repeat 30 collect i)
                       (remove-if-not (lambda (n) (<= first n (+ first 29))) numbers)))))
        (mapc #'grpc:close-topic topics)
        (is (null (grpc:receive call)))))))

(test the-past-is-not-what-a-call-has-not-read
  "A call that begins with more messages than may wait is not slow; later it has the usual limit."
  (dolist (slow '(:end :drop-newest))
    (let ((topic (grpc:make-topic :past 30 :queue 2 :slow slow)))
      (flood topic 30)
      (with-probe (channel :channel-options *narrow*)
          (:watch (fn (_note call) (grpc:subscribe topic call :from :past)))
        (flet ((waiting () (getf (grpc:topic-statistics topic) :waiting)))
          (let ((call (watch channel (note 0))))
            (eventually (< 2 (waiting)))
            (flood topic 1 :first 30)
            (is (equal (loop for i below 31 collect i) (next-numbers call 31)))
            (when (eq :drop-newest slow)
              (flood topic 200 :first 31)
              (is (>= 2 (settled #'waiting))))
            (grpc:cancel call)))))))

(test the-end-of-a-topic
  "Calls get the messages broadcast before, then its status; later calls get that at once."
  (with-topic (topic channel) ()
    (let ((call (first (subscribe-all topic (list channel)))))
      (dotimes (i 3) (grpc:broadcast topic (note i)))
      (is (grpc:close-topic topic :status :unavailable :message "moved"))
      (is (not (grpc:close-topic topic)))
      (is (equal '(0 1 2) (next-numbers call 3)))
      (let ((error (caught (grpc:receive call))))
        (is (typep error 'grpc:unavailable))
        (is (equal "moved" (grpc:rpc-error-message error))))
      (is (typep (caught (grpc:receive (watch channel (note -1)))) 'grpc:unavailable))
      (signals grpc:misuse (grpc:broadcast topic (note 5))))))

(defmacro with-subscriber ((topic call ours) &body body)
  "Evaluate BODY with CALL, which subscribes to TOPIC; OURS is its handler's end."
  `(let ((,topic (grpc:make-topic)) (,ours nil))
     (with-probe (channel) (:watch (fn (_note call)
                                     (setf ,ours call)
                                     (grpc:subscribe ,topic call)))
       (let ((,call (watch channel (note 0))))
         (wait-until (lambda () (plusp (subscribers ,topic))))
         ,@body))))

(test unsubscribed-calls-go-on
  (with-subscriber (topic call ours)
    (signals grpc:misuse (grpc:subscribe topic ours))
    (grpc:broadcast topic (note 1))
    (is (= 1 (number-of (grpc:receive call))))
    (is (grpc:unsubscribe topic ours))
    (is (not (grpc:unsubscribe topic ours)))
    (grpc:broadcast topic (note 2))
    (grpc:finish ours)
    (is (null (grpc:receive call)))))

(test calls-that-come-back
  "However often a call subscribes, it has one function for its end."
  (with-subscriber (topic call ours)
    (let ((count 0))
      (with-replaced (('grpc:on-end
                       (lambda (function call end)
                         (when (eq call ours) (incf count))
                         (funcall function call end))))
        (dotimes (i 100)
          (grpc:unsubscribe topic ours)
          (grpc:subscribe topic ours)))
      (is (zerop count) "the first subscription suffices")
      (grpc:cancel call)
      (eventually (zerop (subscribers topic)))
      (grpc:subscribe topic ours)
      (is (zerop (subscribers topic)) "the call has ended"))))

(defmacro with-filtered-topic ((topic before filtered after &key events) filter &body body)
  "Evaluate BODY with three calls that subscribe to TOPIC: FILTERED has FILTER, a form, for its
messages."
  `(let ((,topic (grpc:make-topic)) (filter ,filter))
     (with-probe (channel :events ,events)
         (:watch (lambda (note call)
                   (when (= 1 (number-of note)) (grpc:filter-messages call :outgoing filter))
                   (grpc:subscribe ,topic call)))
       (flet ((call (number) (first (subscribe-all ,topic (list channel) :from number))))
         (let* ((,before (call 0)) (,filtered (call 1)) (,after (call 2)))
           ,@body)))))

(test a-filter-that-fails-ends-its-call
  "No other subscriber notices this."
  (with-filtered-topic (topic before bad after :events (:topic-error))
      (lambda (note) (if (= 20 (number-of note)) (error "No.") note))
    (is (equal '(1 2 3) (loop for i in '(10 20 30) collect (grpc:broadcast topic (note i)))))
    (is (equal '(10 20 30) (next-numbers before 3)))
    (is (equal '(10 20 30) (next-numbers after 3)))
    (is (equal '(10) (next-numbers bad 1)))
    (is (typep (caught (grpc:receive bad)) 'grpc:internal))
    (is (>= 1 (length (events-of :topic-error))) "ten errors in a second are logged")
    (is (= 2 (subscribers topic)))))

(defun check-left-broadcast (leave catch)
  "Check that all calls get a message though LEAVE, a function, makes a non-local exit from the
broadcast while a call is sent it. CATCH is called with the function that broadcasts, and returns
true if that was left."
  (let ((thread sb-thread:*current-thread*) (left nil))
    (with-filtered-topic (topic before filtered after)
        (lambda (note)
          (when (and (= 20 (number-of note))
                     (eq thread sb-thread:*current-thread*)
                     (not (shiftf left t)))
            (funcall leave))
          note)
      (grpc:broadcast topic (note 10))
      (is-true (funcall catch (lambda () (grpc:broadcast topic (note 20)) nil)))
      (dolist (call (list before filtered after))
        (is (equal '(10 20) (next-numbers call 2)))))))

(test broadcasts-that-are-left
  (check-left-broadcast (lambda () (throw 'left t))
                        (lambda (function) (catch 'left (funcall function)))))

(test broadcasts-that-time-out
  "The time-out of SB-EXT:WITH-TIMEOUT leaves the broadcast; no call ends by it."
  (check-left-broadcast (lambda () (error 'sb-ext:timeout :seconds 1))
                        (lambda (function)
                          (handler-case (funcall function)
                            (sb-ext:timeout () t)))))

(test messages-that-are-too-long
  "If none may be missing the call ends; otherwise they are counted as dropped."
  (dolist (slow '(:end :drop-oldest))
    (with-topic (topic channel :slow slow) (:options '(:max-send-octets 5000)
                                            :events (:topic-error))
      (let ((call (first (subscribe-all topic (list channel)))))
        (grpc:broadcast topic (note 1))
        (grpc:broadcast topic (note 2 :body 6000))
        (grpc:broadcast topic (note 3))
        (is (equal '(1) (next-numbers call 1)))
        (ecase slow
          (:end
           (is (typep (caught (grpc:receive call)) 'grpc:resource-exhausted)))
          (:drop-oldest
           (is (equal '(3) (next-numbers call 1)))
           (is (= 1 (getf (grpc:topic-statistics topic) :dropped)))))
        (is (>= 1 (length (events-of :topic-error))))))))

(test wrong-messages-are-the-senders-error
  "Even while another thread sends waiting messages. No call gets one, or its number."
  (with-topic (topic channel :queue 1000) ()
    (let ((call (first (subscribe-all topic (list channel)))))
      (loop for i from 1 to 100
            do (grpc:broadcast topic (note i))
               (signals grpc:misuse (grpc:broadcast topic 5)))
      (is (= 100 (grpc:topic-position topic)))
      (is (equal (loop for i from 1 to 100 collect i) (next-numbers call 100))))))

(test topics-within-the-image
  (let ((topic (grpc:make-topic)))
    (with-started (server (start-probe (list :watch (fn (_note call) (grpc:subscribe topic call)))
                                       :listen "inproc:topics") :drain 5)
      (grpc:with-channel (channel "inproc:topics" :threads t)
        (let ((call (first (subscribe-all topic (list channel)))))
          (dotimes (i 20) (grpc:broadcast topic (note i)))
          (is (equal (loop for i below 20 collect i) (next-numbers call 20)))
          (grpc:close-topic topic)
          (is (null (grpc:receive call))))))))

(test wrong-topics-are-misuse
  (dolist (arguments '((:slow :wait) (:queue 0) (:queue 1.5) (:past -1)))
    (signals grpc:misuse (apply #'grpc:make-topic arguments)))
  (let ((topic (grpc:make-topic)))
    (signals grpc:misuse (grpc:subscribe topic nil :from -1))
    (signals grpc:misuse (grpc:close-topic topic :status :nothing))
    (signals grpc:misuse (grpc:close-topic topic :message nil))
    (is (grpc:close-topic topic))))

(test only-streams-of-answers-subscribe
  "A client's end and a call with one answer are refused."
  (let ((topic (grpc:make-topic)))
    (with-probe (channel :events (:handler-error))
        (:ask (fn (_note call) (grpc:subscribe topic call))
         :watch (lambda (note call) (grpc:send call note)))
      (is (typep (caught (ask channel (note 1) :timeout 5)) 'grpc:internal))
      (grpc:with-call (call (watch channel (note 3)))
        (signals grpc:misuse (grpc:subscribe topic call)))
      (is (= 0 (subscribers topic))))))

(test many-subscribers
  "Each of many streams of one channel gets all messages once, in order."
  (with-topic (topic channel) ()
    (let ((calls (subscribe-all topic (make-list (support:at-length 200 900)
                                                 :initial-element channel))))
      (dotimes (i 10) (grpc:broadcast topic (note i)))
      (is (every (lambda (call) (equal '(0 1 2 3 4 5 6 7 8 9) (next-numbers call 10))) calls))
      (mapc #'grpc:cancel calls))))

(test the-locks-of-a-topic-are-taken
  (let* ((topic (grpc:make-topic)) (subscriber (topic::make-subscriber nil))
         (subscription (topic::make-subscription topic subscriber 101))
         (lock (topic::subscriber-lock subscriber)))
    (setf (gethash nil (topic::topic-subscriptions topic)) subscription)
    (is (null (support:lockless (topic::topic-lock topic) `(topic:broadcast ,topic 1)
                                `(topic::leave-topic ,topic nil) `(topic:close-topic ,topic)
                                `(topic:topic-statistics ,topic))))
    (is (null (support:lockless (topic::subscription-lock subscription)
                                `(topic::next-waiting ,subscription)
                                `(topic::put-back ,subscription 1) `(topic::narrow ,subscription)
                                `(topic::put-in-queue ,topic ,subscription 1)
                                `(topic::close-topic ,topic) `(topic::leave-topic ,topic nil))))
    (is (null (support:lockless lock `(topic::pump ,subscriber) `(topic::leave-p ,subscriber))))
    ;; a pump that is unwound takes the lock as well: it is held here as the pump would leave
    (with-replaced (('topic::leave-p (lambda (function other)
                                       (when (eq subscriber other)
                                         (sb-thread:grab-mutex lock)
                                         (throw 'unwound :unwound))
                                       (funcall function other)))
                    ('topic::on-loop (lambda (function other)
                                       (unless (eq subscriber other) (funcall function other)))))
      (signals error (catch 'unwound (topic::pump subscriber)))
      (sb-thread:release-mutex lock))))
