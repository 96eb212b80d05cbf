;;;; Connecting: success, refusal, time-out, names, and a loop that stops meanwhile. The owner is
;;;; called exactly once.

(in-package #:clgrpc.tests.loop)

(defun answer-of (loop begin)
  "The arguments of the function given to BEGIN, which is called once, on LOOP."
  (let ((done (sb-thread:make-semaphore)) (answers '()))
    (funcall begin (lambda (&rest values)
                     (push (cons (in-event-loop-p loop) values) answers)
                     (sb-thread:signal-semaphore done)))
    (is-true (await done))
    (settle loop)
    (is (= 1 (length answers)))
    (is-true (first (first answers)) "the answer came on another thread")
    (values-list (rest (first answers)))))

(defun connect-and-wait (loop host port &key (seconds 10))
  "Connect; return the byte channel, closed again, and the condition."
  (answer-of loop (lambda (answer)
                    (connect-to loop (format nil "~A:~D" host port) (seconds-ns seconds)
                                (lambda (byte-channel condition)
                                  (funcall answer byte-channel condition)
                                  (when byte-channel (close-byte-channel byte-channel)))))))

(defun port-of (listener)
  (nth-value 1 (os:parse-address (listener-address listener))))

(defun closed-port ()
  "A port on which nobody listens."
  (let ((socket (os:open-socket os:+af-inet+)))
    (os:bind-socket socket (os:make-address "127.0.0.1" 0))
    (prog1 (os:address-port (os:socket-address socket))
      (os:close-descriptor socket))))

(test connecting
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo))))
      (dolist (host '("127.0.0.1" "localhost"))
        (multiple-value-bind (byte-channel condition)
                             (connect-and-wait loop host (port-of listener))
          (is-false condition)
          (is (string= (listener-address listener) (byte-channel-peer byte-channel))))))))

(test connected-byte-channel-carries-octets
  (with-loops (loop other) ()
    (let ((listener (listen-with (list other) (make-handler :input #'echo)))
          (done (sb-thread:make-semaphore)) (got nil) (no-delay nil))
      (connect-to loop (listener-address listener) (seconds-ns 10)
                  (fn (byte-channel _condition)
                    (let ((connection
                            (make-connection
                             loop byte-channel
                             (make-handler :input (fn (_connection octets start end)
                                                    (setf got (subseq octets start end))
                                                    (sb-thread:signal-semaphore done)
                                                    end)))))
                      (setf no-delay (os:socket-option (byte-channel-descriptor byte-channel)
                                                       os:+ipproto-tcp+ os:+tcp-nodelay+))
                      (append-octets (connection-output connection) (octets-of 1 2 3)))))
      (is-true (await done))
      (is (= 1 no-delay))
      (is (equalp #(1 2 3) got)))))

(test connection-is-refused
  (with-loops (loop) ()
    (dolist (host '("127.0.0.1" "localhost"))
      (let ((port (closed-port)))
        (multiple-value-bind (byte-channel condition) (connect-and-wait loop host port)
          (is-false byte-channel)
          (is (typep condition 'connect-error))
          (is (search "refused" (princ-to-string condition)))
          (is (search (format nil "~A:~D" host port) (princ-to-string condition))))))))

(defun call-with-deaf-listener (function)
  "Call FUNCTION with the address, as text, of a listener whose queue is full: it does not answer."
  (let ((listener (os:open-socket os:+af-inet+)) (fillers '()))
    (os:bind-socket listener (os:make-address "127.0.0.1" 0))
    (os:listen-socket listener 0)
    (let ((address (os:socket-address listener)))
      (unwind-protect
           (progn
             (dotimes (i 4)
               (push (os:open-socket os:+af-inet+) fillers)
               (os:connect-socket (first fillers) address))
             (funcall function (os:address-text address)))
        (mapc #'os:close-descriptor (cons listener fillers))))))

(test connecting-takes-too-long
  (with-loops (loop) ()
    (call-with-deaf-listener
     (lambda (address)
       (multiple-value-bind (host port) (os:parse-address address)
         (multiple-value-bind (byte-channel condition)
             (connect-and-wait loop host port :seconds 0.05)
           (is-false byte-channel)
           (is (search "in time" (princ-to-string condition)))))))))

(test connecting-to-a-name
  ;; whatever this machine calls itself; its resolver may know it or not
  (with-loops (loop) ()
    (multiple-value-bind (byte-channel condition)
        (connect-and-wait loop (machine-instance) (closed-port) :seconds 2)
      (is-false byte-channel)
      (is (typep condition 'connect-error)))))

(defun answers-while-stopping (begin)
  "The arguments of the function given to BEGIN, with a loop that is stopped meanwhile."
  (let ((answers '()))
    (with-loops (loop) ()
      (let ((held (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
        (post loop (lambda () (sb-thread:signal-semaphore held) (await release)))
        (await held)
        (funcall begin loop (lambda (&rest values) (push values answers)))
        (stop-event-loop loop)
        (sb-thread:signal-semaphore release)
        (is-true (join-event-loop loop))))
    answers))

(test stopping-while-connecting
  (let ((answers (answers-while-stopping
                  (lambda (loop function)
                    (connect-to loop (format nil "127.0.0.1:~D" (closed-port)) (seconds-ns 10)
                                function)))))
    (is (= 1 (length answers)))
    (is (typep (second (first answers)) 'connect-error))))

(test connect-function-that-fails
  (with-logged (events)
    (with-loops (loop) ()
      (let ((listener (listen-with (list loop) (make-handler :input #'echo)))
            (called (sb-thread:make-semaphore)))
        (connect-to loop (listener-address listener) (seconds-ns 10)
                    (fn (_byte-channel _condition)
                      (sb-thread:signal-semaphore called)
                      (error "broken")))
        (is-true (await called))
        (settle loop)
        (check-gone loop)))
    (is (equal '(:connect-function-error) (mapcar #'second (events))))))

;;; Several addresses

(test the-next-address-is-tried
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo))))
      (is (string= (listener-address listener)
                   (connect-once loop (format nil "ipv4:127.0.0.1:~D,~A" (closed-port)
                                              (listener-address listener)))))
      (let* ((ports (list (closed-port) (closed-port)))
             (text (connect-once loop (format nil "ipv4:~{127.0.0.1:~D~^,~}" ports))))
        (dolist (port ports)
          (is (search (format nil "Connection refused (127.0.0.1:~D)" port) text) "~A" text))))))

(test an-address-that-does-not-answer-holds-nobody-up
  (with-loops (loop) ()
    (call-with-deaf-listener
     (lambda (deaf)
       (let* ((listener (listen-with (list loop) (make-handler :input #'echo)))
              (start (monotonic-ns))
              (descriptors (progn (settle loop) (os:open-descriptor-count))))
         (is (string= (listener-address listener)
                      (connect-once loop (format nil "ipv4:~A,~A" deaf (listener-address listener))
                                    :seconds 60)))
         (is (< (ns-seconds (- (monotonic-ns) start)) 20))
         (settle loop)
         (is (>= (1+ descriptors) (os:open-descriptor-count)) "the abandoned socket is closed"))))))

(test names-without-a-host
  "The resolver runs on another thread; its error for an impossible name is reported."
  (with-loops (loop) ()
    (let ((text (connect-once loop "nobody.invalid:1" :seconds 60)))
      ;; a resolver does not know the name; without a resolver nobody answers
      (is (or (search "no such host nobody.invalid" text)
              (search "no name server answers for nobody.invalid" text))
          "~A" text)
      (is (search "nobody.invalid:1" text)))))

(test interleaved-families
  (flet ((interleaved (&rest texts)
           (mapcar #'os:address-text
                   (os:interleave-families
                    (loop for text in texts collect (os:make-address text 1))))))
    (is (null (interleaved)))
    (is (equal '("[::1]:1" "1.1.1.1:1" "[::2]:1" "2.2.2.2:1" "[::3]:1")
               (interleaved "::1" "::2" "::3" "1.1.1.1" "2.2.2.2")))
    (is (equal '("1.1.1.1:1" "[::1]:1" "2.2.2.2:1" "3.3.3.3:1")
               (interleaved "1.1.1.1" "2.2.2.2" "3.3.3.3" "::1")))))

;;; The two halves

(defun lookup-and-wait (loop text &key (seconds 10))
  "Look the target TEXT up; return its addresses as texts, and the condition."
  (answer-of loop (lambda (answer)
                    (loop:lookup loop (parse-target text) (seconds-ns seconds)
                                 (lambda (addresses condition)
                                   (funcall answer (mapcar #'os:address-text addresses)
                                            condition))))))

(test lookups
  (with-loops (loop) ()
    (is (equal '("127.0.0.1:5" "127.0.0.2:6")
               (lookup-and-wait loop "ipv4:127.0.0.1:5,127.0.0.2:6")))
    (is (equal '("127.0.0.1:5" "[::1]:5") (lookup-and-wait loop "localhost:5")))
    (is (equal '("127.0.0.1:5" "[::1]:5")
               (lookup-and-wait loop "localhost:5" :seconds most-positive-fixnum)))
    (multiple-value-bind (addresses condition)
        (lookup-and-wait loop "nobody.invalid:1" :seconds 60)
      (is (null addresses))
      (is (typep condition 'dns-error))
      (is (search "Cannot connect to nobody.invalid:1" (princ-to-string condition))))))

(test a-lookup-has-a-time-limit
  "An answer that comes after the limit is dropped."
  (with-loops (loop) ()
    (let ((asked (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore)))
      ;; all threads that resolve names are busy
      (loop repeat loop::+resolver-threads+
            do (loop:run-on-resolver loop (lambda ()
                                            (sb-thread:signal-semaphore asked)
                                            (await go-on))))
      (loop repeat loop::+resolver-threads+ do (is-true (await asked)))
      (multiple-value-bind (addresses condition)
          (lookup-and-wait loop "nobody.invalid:1" :seconds 0.02)
        (is (null addresses))
        (is (typep condition 'connect-timeout))
        (is (search "no answer to the look-up in time" (princ-to-string condition))))
      (sb-thread:signal-semaphore go-on loop::+resolver-threads+))))

(defun call-with-busy-resolver (loop function)
  "Call FUNCTION while all threads that look up names for LOOP, which has no reserve, are busy."
  (let ((asked (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore)))
    (loop repeat loop::+resolver-threads+
          do (loop:run-on-resolver loop (lambda ()
                                          (sb-thread:signal-semaphore asked)
                                          (await go-on))))
    (loop repeat loop::+resolver-threads+ do (is-true (await asked)))
    (unwind-protect (funcall function)
      (sb-thread:signal-semaphore go-on loop::+resolver-threads+))))

(test a-name-is-looked-up-once-for-all-who-ask
  "Requests during the look-up get the same answer, and occupy no further thread."
  (with-loops (loop) ()
    (let ((answered (sb-thread:make-semaphore)) (addresses '()))
      (call-with-busy-resolver
       loop
       (lambda ()
         (dotimes (i 100)
           (loop:lookup-host loop "localhost" 5 (fn (found _failure)
                                                  (push found addresses)
                                                  (sb-thread:signal-semaphore answered))))
         (is (= 1 (loop::quota-waiting (loop:reserve-root loop::**resolvers**))))))
      (is-true (await answered 100))
      (is (= 1 (length (remove-duplicates addresses :test #'equalp))))
      (is (null loop::**address-queries**)))))

(test a-name-does-not-wait-for-the-threads-of-another-loop
  "All threads that look up names for one loop hang, and a name waits for one. A loop with threads
of its own that requests the same name gets its answer."
  (let ((reserve (make-reserve :threads 4))
        (answered (sb-thread:make-semaphore)))
    (with-loops (busy) ()
      (with-loops (loop) (:reserve reserve)
        (flet ((ask (loop)
                 (loop:lookup-host loop "localhost" 5 (fn (_found _failure)
                                                        (sb-thread:signal-semaphore answered)))))
          (call-with-busy-resolver busy (lambda ()
                                          (ask busy)
                                          (ask loop)
                                          (is-true (await answered))))
          (is-true (await answered))
          (is (null loop::**address-queries**)))))
    (is-true (close-reserve reserve 10))))

(test what-nobody-waits-for-is-not-looked-up
  (with-loops (loop) ()
    (let ((answers 0))
      (call-with-busy-resolver
       loop
       (lambda ()
         (loop:lookup-host loop "nobody.invalid" 1 (fn (_found _failure) (incf answers))
                           (constantly nil))))
      (loop while loop::**address-queries** do (settle loop))
      (is (zerop answers)))))

(test names-that-hang-take-a-share-of-the-threads
  "There are six hundred such names: the other threads of a reserve remain for other work."
  (let* ((reserve (make-reserve :threads 32))
         (event-loop (make-event-loop :reserve reserve))
         (hung (sb-thread:make-semaphore)) (done (sb-thread:make-semaphore)))
    (launch-event-loop event-loop)
    (unwind-protect
         (progn
           (dotimes (i 600)
             (is-true (loop:run-on-resolver event-loop (lambda ()
                                                         (await hung)
                                                         (sb-thread:signal-semaphore done)))))
           (is (<= 4 (reserve-thread-count reserve) 17))
           (is (eq t (run-on-reserve reserve #'list :if-busy :refuse
                                     :quota (make-quota :parent (reserve-root reserve)))))
           (sb-thread:signal-semaphore hung 600)
           (is-true (await done 600)))
      (stop-event-loop event-loop)
      (join-event-loop event-loop)
      (is-true (close-reserve reserve 10)))))

(test stopping-while-looking-up
  (is (= 1 (length (answers-while-stopping
                    (lambda (loop function)
                      (loop:lookup loop (parse-target "localhost:1") (seconds-ns 10)
                                   function)))))))

(test addresses-are-connected-to-in-turn
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo)))
          (done (sb-thread:make-semaphore))
          (progress '()) (peer nil)
          (closed (closed-port)))
      (connect-addresses loop "somebody"
                         (list (os:make-address "127.0.0.1" closed)
                               (os:make-address "127.0.0.1" (port-of listener)))
                         (seconds-ns 10)
                         (fn (byte-channel _condition)
                           (setf peer (byte-channel-peer byte-channel))
                           (close-byte-channel byte-channel)
                           (sb-thread:signal-semaphore done))
                         :on-progress (lambda (event &key address reason)
                                        (push (list event address reason) progress)))
      (is-true (await done))
      (settle loop)
      (is (string= (listener-address listener) peer))
      (let ((dead (format nil "127.0.0.1:~D" closed)))
        (is (equal `((:attempt ,dead nil)
                     (:attempt-failed ,dead ,(format nil "Connection refused (~A)" dead))
                     (:attempt ,peer nil))
                   (reverse progress)))))))

(test a-failure-of-very-many-addresses-has-a-short-text
  (with-loops (loop) ()
    (let ((closed (closed-port)) (failure nil) (done (sb-thread:make-semaphore)))
      (connect-addresses loop "somebody"
                         (loop for i from 1 to 200
                               collect (os:make-address (format nil "127.0.0.~D" i) closed))
                         (seconds-ns 60)
                         (fn (_byte-channel condition)
                           (setf failure condition)
                           (sb-thread:signal-semaphore done)))
      (is-true (await done))
      (let ((text (princ-to-string failure)))
        (is (search (format nil "refused (127.0.0.8:~D); and 192 more failures" closed) text))
        (is (< (length text) 1000))))))

(defun call-with-candidates (function)
  "Call FUNCTION with a loop, a connector to two listeners, a function that returns the byte
channels that were candidates, latest first, and one that returns the condition of its end."
  (with-loops (loop other) ()
    (let* ((listeners (loop repeat 2 collect (listen-with (list other)
                                                          (make-handler :input #'echo))))
           (byte-channels '()) (ended nil)
           (connector (connect-addresses
                       loop "somebody"
                       (loop for listener in listeners
                             collect (os:make-address "127.0.0.1" (port-of listener)))
                       (seconds-ns 20)
                       (fn (_byte-channel condition) (setf ended condition))
                       :delay-ns (seconds-ns 60)
                       :on-candidate (lambda (byte-channel) (push byte-channel byte-channels)))))
      (flet ((count-of (count)
               (loop repeat 100000
                     until (= count (length byte-channels))
                     do (settle loop))
               (= count (length byte-channels))))
        (funcall function loop connector #'count-of (lambda () byte-channels) (lambda () ended))
        (on-loop loop (lambda () (mapc #'close-byte-channel byte-channels)))))))

(test candidates-that-fail
  "The next address is tried at once, until none is left."
  (call-with-candidates
   (lambda (loop connector count-of byte-channels ended)
     (flet ((reject ()
              (on-loop loop (lambda ()
                              (candidate-failed connector
                                                (byte-channel-peer (first (funcall byte-channels)))
                                                "it is rude")))))
       (is-true (funcall count-of 1))
       (is-false (funcall ended))
       (reject)
       (is-true (funcall count-of 2))
       (is-false (funcall ended))
       (reject)
       (is (search "it is rude" (princ-to-string (funcall ended))))))))

(test candidates-that-are-accepted
  "No function of the connector is called afterwards."
  (call-with-candidates
   (fn (loop connector count-of _byte-channels ended)
     (is-true (funcall count-of 1))
     (on-loop loop (lambda ()
                     (end-connecting connector)
                     (candidate-failed connector "127.0.0.1:1" "too late")))
     (settle loop)
     (is-true (funcall count-of 1))
     (is-false (funcall ended)))))
