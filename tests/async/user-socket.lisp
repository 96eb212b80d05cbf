;;;; Sockets for users: what comes and goes, back-pressure, time-outs, closing.

(in-package #:clgrpc.tests.async)

(defmacro with-server ((server read-cb &rest arguments) &body body)
  "A program with SERVER, which callbacks may mention, on loopback."
  `(with-program ()
     (let ((,server nil))
       (setf ,server (tcp-server "127.0.0.1" 0 ,read-cb ,@arguments))
       ,@body)))

(defun call (server read-cb &rest arguments)
  "A socket to SERVER."
  (apply #'tcp-connect "127.0.0.1" (server-port server) read-cb arguments))

(defun write-back (socket octets)
  (write-socket-data socket octets))

(test octets-strings-and-sequences-are-echoed
  (let ((received (make-buffer)))
    (with-server (server #'write-back)
      (let ((socket (call server
                          (lambda (socket octets)
                            (append-octets received octets)
                            (when (= 11 (buffer-fill received))
                              (close-socket socket)
                              (close-tcp-server server)))
                          :data (octets-of 1 2))))
        (is (null (socket-peer socket)))
        (is-true (write-socket-data socket "hé"))
        (is-true (write-socket-data socket '(5 6 7 8 9) :start 1 :end 4))
        (is (= 8 (socket-unsent-octets socket)))
        (delay (lambda () (write-socket-data socket #(10 11 12))) :time 0.005)))
    (is (equalp #(1 2 104 #xC3 #xA9 6 7 8 10 11 12)
                (subseq (buffer-octets received) 0 (buffer-end received))))))

(test data-of-sockets
  (with-server (server (fn (socket _octets)
                         (is (equal '(:peer "x") (socket-data socket)))
                         (is (eql 0 (search "127.0.0.1:" (socket-peer socket))))
                         (is (search "from 127.0.0.1" (princ-to-string socket)))
                         (close-socket socket)
                         (is (search "closed" (princ-to-string socket))))
                       :connect-cb (lambda (socket)
                                     (is (null (socket-data socket)))
                                     (setf (socket-data socket) (list :peer "x"))))
    (call server #'list :data "x"
                        :event-cb (lambda (event)
                                    (is (typep event 'socket-eof))
                                    (is (typep event 'tcp-eof))
                                    (is (socket-closed-p (tcp-socket event)))
                                    (close-tcp-server server)))))

(test written-data-may-be-changed
  (with-server (server #'write-back)
    (let ((data (octets-of 1 2 3)) (program *event-loop*))
      (call server
            (lambda (socket octets)
              (is (equalp #(1 2 3) octets))
              (close-socket socket)
              (close-tcp-server server))
            :connect-cb (lambda (socket)
                          (sb-thread:join-thread
                           (in-thread
                             (assert (eq program (clgrpc.async::handle-loop socket)))
                             (write-socket-data socket data)
                             (fill data 0))))))))

(test write-callbacks
  (let ((steps '()))
    (with-server (server (fn (socket _octets)
                           (push :read steps)
                           (write-socket-data socket "answer"
                                              :write-cb (lambda (socket)
                                                          (push :written steps)
                                                          (close-socket socket)
                                                          (close-tcp-server server)))))
      (call server (fn (_socket octets) (is (= 6 (length octets))))
            :data "question" :write-cb (fn (_socket) (push :sent steps))))
    (is (null (set-exclusive-or '(:sent :read :written) steps)))
    (is (eq :written (first steps)))))

(test input-in-place
  (with-server (server (lambda (socket octets start end)
                         (write-socket-data socket octets :start start :end end))
                       :in-place t)
    (call server (lambda (socket octets)
                   (is (equalp #(104 105) octets))
                   (close-socket socket)
                   (close-tcp-server server))
          :data "hi")))

(test back-pressure
  (let* ((total 20000000) (piece (pattern 100000)) (sent 0) (received 0) (refused 0) (drained 0)
         (most 0))
    (with-program ()
      (let* ((feeding nil)
             (server (tcp-server "127.0.0.1" 0
                                 (fn (_socket octets) (incf received (length octets)))
                                 :event-cb (lambda (event)
                                             (is (typep event 'socket-eof))
                                             (cancel feeding)))))
        (setf feeding server)
        (labels ((feed (socket)
                   (loop while (< sent total)
                         do (incf sent (length piece))
                            (let ((ready (write-socket-data socket piece)))
                              (setf most (max most (socket-unsent-octets socket)))
                              (unless ready
                                (incf refused)
                                (return)))
                         finally (close-socket socket))))
          (call server #'list :connect-cb #'feed :high-water 250000 :low-water 50000
                              :drain-cb (lambda (socket)
                                          (incf drained)
                                          (is (<= (socket-unsent-octets socket) 50000))
                                          (feed socket))))))
    (is (= total sent received))
    (is (plusp refused))
    (is (= refused drained))
    (is (<= most 350000))))

(test reading-can-be-stopped
  (let ((steps '()))
    (with-server (server (lambda (socket octets)
                           (push (length octets) steps)
                           (close-socket socket)
                           (close-tcp-server server))
                         :connect-cb (lambda (socket)
                                       (disable-socket socket :read t)
                                       (delay (lambda ()
                                                (push :enabled steps)
                                                (enable-socket socket :read t))
                                              :time 0.02)))
      (call server #'list :data "hello"))
    (is (equal '(5 :enabled) steps))))

(test reading-can-be-stopped-before-there-is-a-connection
  (let ((steps '()))
    (with-server (server #'list :connect-cb (lambda (socket) (write-socket-data socket "hello"))
                                :event-cb (fn (_event) (close-tcp-server server)))
      (let ((socket (call server (lambda (socket octets)
                                   (push (length octets) steps)
                                   (close-socket socket)))))
        (disable-socket socket :read t)
        (delay (lambda ()
                 (push :enabled steps)
                 (enable-socket socket :read t))
               :time 0.05)))
    (is (equal '(5 :enabled) steps))))

(test failures-that-nobody-takes-are-logged
  (let ((logged '()))
    (with-logged (events)
      (with-program ()
        (let* ((server (tcp-server "127.0.0.1" 0 #'list)) (port (server-port server)))
          (close-tcp-server server)
          (delay (lambda () (tcp-connect "127.0.0.1" port #'list)))))
      (setf logged (events)))
    (destructuring-bind (level name &key socket reason) (first logged)
      (is (equal '(:info :socket-failed) (list level name)))
      (is (typep socket 'socket))
      (is (search "refused" reason)))))

(test read-time-out
  (let ((told '()))
    (with-server (server (fn (socket _octets)
                           (push :read told)
                           (set-socket-timeouts socket 0.05 nil))
                         :read-timeout 1000
                         :event-cb (lambda (event)
                                     (push (type-of event) told)
                                     (is-true (socket-closed-p (socket event)))
                                     (signals socket-closed
                                       (set-socket-timeouts (socket event) 1 1))
                                     (close-tcp-server server)))
      (call server #'list :data "x" :write-timeout 1000))
    (is (equal '(socket-timeout :read) told))))

(test write-time-out
  (let ((told '()))
    (with-server (server #'list :connect-cb (lambda (socket) (disable-socket socket :read t))
                                :event-cb (fn (_event) (close-tcp-server server)))
      (call server #'list :write-timeout 0.1 :data (make-octets 20000000)
                          :event-cb (lambda (event)
                                      (push (type-of event) told)
                                      (exit-event-loop))))
    (is (equal '(socket-timeout) told))))

(test a-write-time-out-for-output-that-waits
  "The time-out may come after the output for which it is."
  (let ((told '()))
    (with-server (server #'list :connect-cb (lambda (socket) (disable-socket socket :read t))
                                :event-cb (lambda (event)
                                            (declare (ignore event))
                                            (close-tcp-server server)))
      (call server #'list :data (make-octets 20000000) :high-water 30000000
                          :connect-cb (lambda (socket)
                                        (delay (lambda () (set-socket-timeouts socket nil 0.1))
                                               :time 0.05))
                          :event-cb (lambda (event)
                                      (push (type-of event) told)
                                      (exit-event-loop)))
      (delay #'exit-event-loop :time 10))
    (is (equal '(socket-timeout) told))))

(test a-write-time-out-that-comes-while-a-look-is-due
  "Earlier output was sent in this turn; the next turn looks at the rest, and finds later output."
  (let ((told '()))
    (with-server (server #'list :connect-cb (lambda (socket) (disable-socket socket :read t))
                                :event-cb (fn (_event) (close-tcp-server server)))
      (call server #'list :connect-cb (lambda (socket)
                                        (write-socket-data socket "x" :write-cb #'list)
                                        (loop::flush-phase *event-loop*)
                                        (is (= 0 (socket-unsent-octets socket)))
                                        (set-socket-timeouts socket nil 0.1)
                                        (write-socket-data socket (make-octets 20000000)))
                          :event-cb (lambda (event)
                                      (push (type-of event) told)
                                      (exit-event-loop)))
      (delay #'exit-event-loop :time 10))
    (is (equal '(socket-timeout) told))))

(test parts-of-data
  "START and END count the elements of what is given, the characters of a string."
  (let ((received (make-octets 0)))
    (with-server (server (lambda (socket octets)
                           (declare (ignore socket))
                           (setf received (concatenate 'octets received octets)))
                         :event-cb (lambda (event)
                                     (declare (ignore event))
                                     (close-tcp-server server)))
      (let ((socket (call server #'list)))
        (write-socket-data socket "äöü" :start 1 :end 2)
        (write-socket-data socket '(1 2 3 4) :start 1 :end 3)
        (write-socket-data socket "xyz" :end 1)
        (signals error (write-socket-data socket "xyz" :start 2 :end 4))
        (close-socket socket)))
    (is (equalp #(195 182 2 3 120) received))))

(test output-of-a-socket-that-is-closed-before-it-connects
  "It is sent before the end; what cannot connect ends without a word."
  (let ((received '()))
    (with-server (server (lambda (socket octets)
                           (declare (ignore socket))
                           (push (octets-string octets) received)
                           (close-tcp-server server)))
      (close-socket (call server #'list
                          :data "x"
                          :event-cb (lambda (event) (push event received)))))
    (is (equal '("x") received))
    (with-program ()
      (let ((server (tcp-server "127.0.0.1" 0 #'list)))
        (close-tcp-server server)
        (close-socket (call server #'list :data "x"
                                          :event-cb (lambda (event) (push event received))))))
    (is (equal '("x") received))))

(test reset-by-the-peer
  (let ((told '()))
    (with-server (server (fn (socket _octets)
                           (delay (lambda () (close-socket socket :force t)) :time 0.01))
                         :connect-cb (lambda (socket)
                                       (delay (lambda () (disable-socket socket :read t))
                                              :time 0.005)))
      (call server #'list
            :data "x"
            :connect-cb (lambda (socket)
                          (delay (lambda () (write-socket-data socket "unread" :write-cb #'list))
                                 :time 0.007))
            :event-cb (lambda (event)
                        (push (type-of event) told)
                        (close-tcp-server server))))
    (is (= 1 (length told)))
    (is (subtypep (first told) 'socket-error))))

(test closing-sends-first
  (let ((received 0))
    (with-server (server (fn (socket _octets)
                           (write-socket-data socket (make-octets 3000000))
                           (close-socket socket)
                           (close-tcp-server server)))
      (call server (fn (_socket octets) (incf received (length octets)))
            :data "x"))
    (is (= 3000000 received))))

(test a-socket-closed-while-it-connects
  "No callback of it is called, and the connection that is made nevertheless is closed."
  (let ((steps '()))
    (with-server (server (fn (_socket octets) (push octets steps))
                         :event-cb (lambda (event)
                                     (push (type-of event) steps)
                                     (close-tcp-server server)))
      (let ((socket (call server #'list
                          :data "x"
                          :connect-cb (lambda (socket) (push socket steps))
                          :event-cb (lambda (event) (push event steps)))))
        (is (null (socket-peer socket)))
        (close-socket socket :force t)
        (is-true (socket-closed-p socket))))
    (is (equal '(socket-eof) steps))))

;;; At random

(defun exchange-at-random (random sockets)
  "Have SOCKETS clients send octets to an echo server, in pieces and at times of RANDOM; some leave
before they have all. Return what is wrong, as a list."
  (let ((wrong '()) (left sockets))
    (with-server (server #'write-back :high-water (random 100000 random)
                                      :in-place nil
                                      :read-timeout (when (zerop (random 2 random)) 60))
      (flet ((begin ()
               (let* ((octets (pattern (1+ (random 60000 random))))
                      (offset (random 100 random))
                      (sent 0) (received 0)
                      (leaves (and (zerop (random 4 random)) (random (length octets) random)))
                      (socket nil))
                 (labels ((expected (i) (aref octets i))
                          (finish ()
                            (close-socket socket :force (zerop (random 2 random)))
                            (when (zerop (decf left)) (close-tcp-server server)))
                          (feed ()
                            (unless (or (socket-closed-p socket) (= sent (length octets)))
                              (let ((end (min (length octets)
                                              (+ sent 1 (random 20000 random)))))
                                (write-socket-data socket octets :start sent :end end)
                                (setf sent end)
                                (if (zerop (random 2 random))
                                    (delay #'feed :time (/ (random 4 random) 1000))
                                    (feed)))))
                          (take (socket new)
                            (unless (loop for octet across new
                                          for i from received
                                          always (= octet (expected i)))
                              (push (list :garbled received) wrong))
                            (incf received (length new))
                            (cond ((and leaves (>= received leaves)) (finish))
                                  ((= received (length octets)) (finish))
                                  ((zerop (random 8 random))
                                   (disable-socket socket :read t)
                                   (delay (lambda () (enable-socket socket :read t))
                                          :time 0.002)))))
                   (setf socket (call server #'take
                                      :event-cb (lambda (event)
                                                  (push (princ-to-string event) wrong)
                                                  (finish))))
                   (delay #'feed :time (/ offset 10000))))))
        (dotimes (i sockets) (begin))))
    wrong))

(test exchanges-at-random
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed)))
    (format t "seed ~D~%" seed)
    (loop repeat 5
          do (is (null (exchange-at-random random 40)) "seed ~D" seed))))
