;;;; Streams that resume: breaks, ends, and messages that must not be delivered twice.

(in-package #:clgrpc.tests.topic)

(defun follow (channel function &rest arguments)
  "Follow WATCH on CHANNEL, whose requests and messages are positions."
  (apply #'grpc:follow-stream
         (lambda (position) (watch channel (note (or position 0))))
         function :position-of #'number-of arguments))

(test streams-resume
  "Each number once, in order, though the stream breaks three ways."
  (let ((asked '()) (told '()))
    (with-probe (channel) (:watch (lambda (note call)
                                    (let ((from (number-of note)))
                                      (push from asked)
                                      (loop for i from (1+ from) to (min 10 (+ from 3))
                                            do (grpc:send call (note i)))
                                      (when (< from 7)
                                        (grpc:fail (case (length asked)
                                                     (1 :unavailable) (2 :cancelled)
                                                     (t :resource-exhausted))
                                                   "broken")))))
      (is (= 10 (follow channel (lambda (note) (push (number-of note) told)))))
      (is (equal '(0 3 6 9) (reverse asked)))
      (is (equal '(1 2 3 4 5 6 7 8 9 10) (reverse told))))))

(test streams-that-have-lost-messages
  "The user handles the loss, and returns the position to continue at; or the error is signalled."
  (let ((lost 0) (told '()))
    (with-probe (channel) (:watch (lambda (note call)
                                    (when (plusp (number-of note)) (grpc:fail :out-of-range "gone"))
                                    (grpc:send call (note 1))
                                    (when (< lost 2) (grpc:fail :unavailable "x"))))
      (is (= 1 (follow channel (lambda (note) (push (number-of note) told))
                       :lost (lambda () (incf lost) nil))))
      (is (= 2 lost))
      (is (equal '(1 1 1) told))
      (setf lost 0)
      (is (typep (caught (follow channel #'identity)) 'grpc:out-of-range)))))

(defun have-lost ()
  nil)

(test functions-of-followers-may-be-symbols
  (let ((count 0))
    (with-probe (channel) (:watch (fn (_note _call)
                                    (when (< (incf count) 2) (grpc:fail :out-of-range "gone"))))
      (is (null (follow channel 'identity :lost 'have-lost)))
      (is (= 2 count)))))

(test streams-that-fail-for-good
  (let ((count 0))
    (with-probe (channel) (:watch (fn (_note _call)
                                    (incf count)
                                    (grpc:fail :permission-denied "no")))
      (is (typep (caught (follow channel #'identity)) 'grpc:permission-denied))
      (is (= 1 count))
      (is (typep (caught (follow channel #'identity :retry '(:permission-denied)
                                                    :patience-seconds 0.5))
                 'grpc:permission-denied))
      (is (< 2 count)))))

(test streams-without-messages-are-followed
  "A stream without messages for longer than the patience that then breaks does not count as
unavailable."
  (let ((count 0))
    (with-probe (channel) (:watch (fn (_note call)
                                    (when (< (incf count) 4)
                                      (sleep 0.11)
                                      (grpc:fail :unavailable "quiet until now"))
                                    (grpc:send call (note 7))))
      (is (= 7 (follow channel #'identity :patience-seconds 0.1)))
      (is (= 4 count)))))

(test errors-of-followers-functions
  "They are signalled to the user, and end the call."
  (let ((ended (make-signal)))
    (with-probe (channel) (:watch (fn (_note call)
                                    (grpc:on-cancel call (lambda () (signal-it ended)))
                                    (grpc:send call (note 1))
                                    call))
      (is (typep (caught (follow channel (fn (_note) (grpc:fail :unavailable "mine"))))
                 'grpc:unavailable))
      (is (await-signal ended))
      (is (eq :left (catch 'out (follow channel (fn (_note) (throw 'out :left))))))
      (signals grpc:misuse (grpc:follow-stream #'identity #'identity))
      (loop for bad in '((:lost 5) (:patience-seconds -1) (:patience-seconds nil) (:retry :ok))
            do (signals grpc:misuse (apply #'follow channel #'identity bad)))
      (is (search "BEGIN of FOLLOW-STREAM is a function of a position, not #<"
                  (handler-case (grpc:follow-stream channel #'identity :position-of #'identity)
                    (grpc:misuse (error) (princ-to-string error)))))
      (is (search "FUNCTION of FOLLOW-STREAM is a function of a message, not NIL"
                  (handler-case (grpc:follow-stream #'identity nil :position-of #'identity)
                    (grpc:misuse (error) (princ-to-string error))))))))

(test a-topic-is-followed
  "A client whose server stops gets all that its topic keeps from the next server."
  (let ((topic (grpc:make-topic :past 100)) (told '()))
    (flet ((serve (&rest options)
             (apply #'start-probe (list :watch (lambda (note call)
                                                 (grpc:subscribe topic call
                                                                 :from (number-of note))))
                    options)))
      (let* ((server (serve)) (address (grpc:server-address server)))
        (grpc:with-channel (channel address)
          (let ((thread (in-thread (follow channel (lambda (note) (push (number-of note) told))))))
            (dotimes (i 5) (grpc:broadcast topic (note (1+ i))))
            (wait-until (lambda () (= 5 (length told))))
            (grpc:stop-server server :drain 0)
            (dotimes (i 5) (grpc:broadcast topic (note (+ 6 i))))
            (setf server (serve :listen address))
            (wait-until (lambda () (= 10 (length told))))
            (is (equal '(1 2 3 4 5 6 7 8 9 10) (reverse told)))
            (grpc:close-topic topic)
            (is (= 10 (sb-thread:join-thread thread)))))
        (grpc:stop-server server :drain 5)))))
