;;;; Listening: addresses, limits, a lack of descriptors, closing.

(in-package #:clgrpc.tests.loop)

(test listener-addresses
  (with-loops (loop) ()
    (flet ((address (text)
             (let ((listener (listen-with (list loop) (make-handler :input #'echo) :address text)))
               (prog1 (listener-address listener)
                 (close-listener listener)))))
      (is (eql 0 (search "127.0.0.1:" (address "127.0.0.1:0"))))
      (is (eql 0 (search "127.0.0.1:" (address "localhost:0"))))
      (is (eql 0 (search "0.0.0.0:" (address ":0"))))
      (is-false (search ":0" (subseq (address "127.0.0.1:0") 9))))
    (signals misuse (listen-with (list loop) (make-handler :input #'echo) :address "nonsense"))))

(test address-in-use
  (with-loops (loop) ()
    (let* ((handler (make-handler :input #'echo))
           (listener (listen-with (list loop) handler))
           (descriptors (os:open-descriptor-count))
           (condition (nth-value 1 (ignore-errors
                                    (listen-with (list loop) handler
                                                 :address (listener-address listener))))))
      (is (typep condition 'socket-error))
      (is (search "in use" (princ-to-string condition)))
      (is (search (listener-address listener) (princ-to-string condition)))
      (is-true (descriptors-become-p descriptors)))))

(test address-shared
  "Several processes may share a port if all of them request this."
  (with-loops (first second) ()
    (let* ((options (make-server-options :reuse-port t))
           (handler (make-handler :input #'echo))
           (address (listener-address (listen-with (list first) handler :options options))))
      (is (string= address (listener-address (listen-with (list second) handler :address address
                                                                               :options options))))
      (signals socket-error (listen-with (list second) handler :address address))
      (with-clients (client) (address)
        (client-send client (octets-of 1))
        (is (equalp #(1) (client-receive client 1)))))))

(defun call-before-closing (descriptor function thunk)
  "Call THUNK; just before DESCRIPTOR is closed, call FUNCTION."
  (with-replaced (('os:close-descriptor
                   (lambda (original closed)
                     (when (eql closed descriptor) (funcall function))
                     (funcall original closed))))
    (funcall thunk)))

(defun echoed-p (socket)
  "True if a peer returns an octet that is sent by SOCKET, which may still be connecting."
  (let ((area (os:make-poll-area 1)))
    (flet ((wait (flag)
             (os:set-polled area 0 socket flag)
             (os:poll-descriptors area 1 20000)))
      (wait os::+poll-out+)
      (and (eql 1 (os:send-octets socket (octets-of 1) 0 1))
           (progn (wait os::+poll-in+)
                  (eql 1 (os:receive-octets socket (octets-of 0) 0 1)))))))

(defun filters-refused-p ()
  "True if the kernel does not let this user attach filters to sockets."
  (let ((socket (os:open-socket os:+af-inet+)))
    (unwind-protect (minusp (os:drop-new-connections socket))
      (os:close-descriptor socket))))

(test no-connection-is-lost-when-one-of-two-listeners-ends
  "A connection may arrive at a port after one of two listeners has accepted for the last time and
before that is closed. It is not reset: the other listener gets it."
  (if (filters-refused-p)
      (skip "the kernel lets only root attach filters to sockets")
      (check-that-none-is-lost)))

(defun check-that-none-is-lost ()
  (with-loops (first second) ()
    (let* ((options (make-server-options :reuse-port t))
           (handler (make-handler :input #'echo))
           (going (listen-with (list first) handler :options options))
           (address (listener-address going))
           (sockets '()))
      (listen-with (list second) handler :address address :options options)
      (call-before-closing (loop::listener-socket going)
                           (lambda ()
                             (dotimes (i 12)
                               (push (os:open-socket os:+af-inet+) sockets)
                               (os:connect-socket (first sockets)
                                                  (os:make-address
                                                   "127.0.0.1" (nth-value 1 (os:parse-address
                                                                             address))))))
                           (lambda ()
                             (close-listener going)
                             (settle first)))
      (unwind-protect (is (equal (make-list 12 :initial-element t) (mapcar #'echoed-p sockets)))
        (mapc #'os:close-descriptor sockets)))))

(test closed-listener-refuses
  (with-loops (loop) ()
    (let* ((listener (listen-with (list loop) (make-handler :input #'echo)))
           (address (listener-address listener)))
      (with-clients (client) (address)
        (client-send client (octets-of 1))
        (client-receive client 1)
        (close-listener listener)
        (close-listener listener)
        (settle loop)
        (is (search "closed" (princ-to-string listener)))
        (signals sb-bsd-sockets:connection-refused-error (open-client address))
        (client-send client (octets-of 2))
        (is (equalp #(2) (client-receive client 1)) "connections of a closed listener continue"))
      ;; the address can be used again
      (is (string= address (listener-address (listen-with (list loop) (make-handler :input #'echo)
                                                          :address address)))))))

(test too-many-connections
  (with-logged (events)
    (with-loops (loop) ()
      (let ((listener (listen-with (list loop) (make-handler :input #'echo)
                                   :options (make-server-options :max-connections 2))))
        (with-clients (a b) ((listener-address listener))
          (dolist (client (list a b))
            (client-send client (octets-of 1))
            (is (equalp #(1) (client-receive client 1))))
          ;; many are refused at once; that is told once
          (loop repeat 5
                do (with-clients (c) ((listener-address listener))
                     (is-true (client-ended-p c))))
          (client-send a (octets-of 1))
          (is (equalp #(1) (client-receive a 1))))))
    (is (equal '(:too-many-connections) (mapcar #'second (events))))))

(test accept-function-that-fails
  (with-logged (events)
    (with-loops (loop) ()
      (dolist (function (list (fn (_loop _byte-channel _peer) (error "broken"))
                              (fn (loop byte-channel _peer)
                                (make-connection loop byte-channel (make-handler :input #'echo))
                                (error "broken"))))
        (let ((listener (listen-on "127.0.0.1:0" (make-server-options) (list loop) function)))
          (with-clients (client) ((listener-address listener))
            (is-true (client-ended-p client)))))
      (check-gone loop))
    (is (equal '(:accept-function-error :accept-function-error) (mapcar #'second (events))))))

(test loop-that-stopped-gets-no-connections
  (with-loops (first second) ()
    (let ((listener (listen-with (list first second) (make-handler :input #'echo))))
      (stop-event-loop second)
      (join-event-loop second)
      (with-clients (a b c) ((listener-address listener))
        ;; those dealt to the one that has stopped are closed
        (dolist (client (list a b c))
          (ignore-errors (client-send client (octets-of 1)))
          (is (<= (length (ignore-errors (client-receive client 1))) 1)))))))

;;; Errors of accept(2)

(defun count-accepts (errno seconds)
  "How often a listener on which a connection waits asks for it in SECONDS while the answer is the
error ERRNO, how often it says so in the log, how often for a single connection, and how often its
function for lack of descriptors has failed; afterwards the connection must be served. The time
begins when it asks first."
  (let ((asked 0) (begun (sb-thread:make-semaphore)))
    (with-logged (events)
      (with-loops (loop) ()
        (let ((listener (listen-on "127.0.0.1:0" (make-server-options) (list loop)
                                   (lambda (loop byte-channel peer)
                                     (declare (ignore peer))
                                     (make-connection loop byte-channel
                                                      (make-handler :input #'echo)))
                                   :on-full (lambda () (error 'mishap)))))
          (sb-int:encapsulate 'os:accept-socket 'fails
                              (fn (_original _socket _address)
                                (when (= 1 (incf asked)) (sb-thread:signal-semaphore begun))
                                (- errno)))
          (unwind-protect
               (with-clients (client) ((listener-address listener))
                 (client-send client (octets-of 1))
                 (is-true (await begun))
                 (sb-thread:wait-on-semaphore (sb-thread:make-semaphore) :timeout seconds)
                 (sb-int:unencapsulate 'os:accept-socket 'fails)
                 (is (equalp #(1) (client-receive client 1))))
            (sb-int:unencapsulate 'os:accept-socket 'fails))))
      (values asked (count :cannot-accept (events) :key #'second)
              (count (list :debug :accept-failed (os:errno-text (- errno))) (events) :test #'equal
                     :key (lambda (event)
                            (list (first event) (second event) (getf (cddr event) :reason))))
              (count :full-function-error (events) :key #'second)))))

(test accept-that-only-fails
  "By any error, a listener does not spin, and logs the error; errors of one connection are ignored,
unless there are no others."
  (loop for (errno most) in `((,os:+emfile+ 10) (,os:+ebadf+ 10) (,os:+eperm+ 640)
                              (,os:+econnaborted+ 640) (22 10))
        do (multiple-value-bind (asked warnings passed-over broken) (count-accepts errno 0.3)
             (is (<= 1 asked most) "errno ~D: asked ~D times" errno asked)
             (is (= 1 warnings) "errno ~D: ~D warnings" errno warnings)
             (is (= (if (= 640 most) asked 0) passed-over))
             (is (= (if (= os:+emfile+ errno) asked 0) broken)))))

(test listeners-that-cannot-be-watched-are-closed
  (with-logged (events)
    (with-loops (loop) ()
      (with-replaced (('add-source (constantly (- os:+enfile+))))
        (let ((address (listener-address (listen-with (list loop) (make-handler :input #'echo)))))
          (settle loop)
          (destructuring-bind (level name . plist) (first (events))
            (is (equal (list :error :listener-failed (os:errno-text (- os:+enfile+)))
                       (list level name (getf plist :reason))))
            (is (string= address (listener-address (getf plist :listener)))))
          (signals error (with-clients (client) (address)
                           (client-send client (octets-of 1)))))))))

;;; Running out of descriptors

(test no-descriptors-left
  (with-logged (events)
    (with-loops (loop) ()
      (let ((listener (listen-with (list loop) (make-handler :input #'echo)))
            (limit nil))
        (with-clients (first) ((listener-address listener))
          (client-send first (octets-of 1))
          (client-receive first 1)
          (with-clients (second) ((listener-address listener))
            (client-send second (octets-of 1))
            (client-receive second 1)
            (unwind-protect
                 (let ((third (make-instance 'sb-bsd-sockets:inet-socket
                                             :type :stream :protocol :tcp)))
                   (unwind-protect
                        (let ((turns (event-loop-turns loop)))
                          ;; every number below this one is taken
                          (setf limit (support:set-descriptor-limit
                                       (1+ (sb-bsd-sockets:socket-file-descriptor third))))
                          (multiple-value-bind (host port)
                              (os:parse-address (listener-address listener))
                            (sb-bsd-sockets:socket-connect
                             third (sb-bsd-sockets:make-inet-address host) port))
                          (loop until (find :cannot-accept (events) :key #'second)
                                do (settle loop))
                          (is (search "open files" (getf (cddr (first (events))) :reason)))
                          (client-send first (octets-of 2))
                          (is (equalp #(2) (client-receive first 1)) "other connections are served")
                          (support:set-descriptor-limit limit)
                          (loop until (= 3 (event-loop-connections loop))
                                do (sb-thread:wait-on-semaphore (sb-thread:make-semaphore)
                                                                :timeout 0.01))
                          (is (> 10000 (- (event-loop-turns loop) turns)) "the loop does not spin"))
                     (sb-bsd-sockets:socket-close third)))
              (when limit (support:set-descriptor-limit limit)))))))))
