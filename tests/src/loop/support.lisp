;;;; Common code of the loop's tests: loops that must leave nothing behind, blocking clients, a
;;;; poller that counts, a clock that can be set forward.

(in-package #:clgrpc.tests.loop)

(defparameter *patience-seconds* (support:patient-seconds 20)
  "How long a test waits for an expected event.")

(define-condition mishap (error) ()
  (:documentation "What a test has go wrong."))

(defun await (semaphore &optional (count 1))
  "Wait until SEMAPHORE has been signalled COUNT times; false if that takes too long."
  (loop repeat count
        always (sb-thread:wait-on-semaphore semaphore :timeout *patience-seconds*)))

(defun on-loop (loop function)
  "Call FUNCTION on LOOP and return its value. It cannot make checks: FiveAM knows one thread."
  (let ((done (sb-thread:make-semaphore)) (value nil) (failure nil))
    (post loop (lambda ()
                 (handler-case (setf value (funcall function))
                   (error (condition) (setf failure condition)))
                 (sb-thread:signal-semaphore done)))
    (unless (await done) (error "~A does not answer." loop))
    (when failure (error failure))
    value))

(defun settle (loop)
  "Return when LOOP has ended the present turn and another one."
  (on-loop loop (constantly nil))
  (on-loop loop (constantly nil)))

(defun descriptors-become-p (count)
  "True if the process has COUNT open descriptors, now or soon: a thread that was overtaken in its
wait closes its poller when it wakes."
  (support:wait-until (lambda () (= count (os:open-descriptor-count)))))

(defun open-files ()
  "The open descriptors of the process, each a list of its number and the name of its file."
  (loop for descriptor in (os:open-descriptors)
        for name = (sb-unix:unix-readlink (format nil "/proc/self/fd/~D" descriptor))
        when name collect (list descriptor name)))

(defun files-left (before)
  "The descriptors in OPEN-FILES that are not in the list BEFORE and stay open. A descriptor that is
closed meanwhile may be an earlier test's, whose socket the collector has found."
  (loop with pause = (sb-thread:make-semaphore)
        repeat 2000
        for left = (set-difference (open-files) before :test #'equal)
        while left do (sb-thread:wait-on-semaphore pause :timeout 0.01)
        finally (return left)))

(defun threads-left (before)
  "The threads that are not in the list BEFORE. A thread that is ending, such as a resolver that has
answered, is awaited."
  (let ((left (set-difference (sb-thread:list-all-threads) before)))
    (dolist (thread left)
      (sb-thread:join-thread thread :default nil :timeout *patience-seconds*))
    (remove-if-not #'sb-thread:thread-alive-p left)))

(defun call-with-loops (count arguments function)
  (let ((files (open-files))
        (threads (sb-thread:list-all-threads))
        (loops (loop for i below count
                     collect (apply #'make-event-loop :name (format nil "test loop ~D" i)
                                    (funcall arguments)))))
    (unwind-protect
         (progn
           (mapc #'launch-event-loop loops)
           (apply function loops))
      (mapc #'stop-event-loop loops)
      (is (every #'join-event-loop loops)))
    (is (null (threads-left threads)) "threads are left")
    (let ((left (files-left files)))
      (is (null left) "descriptors are left: ~S" left))))

(defmacro with-loops ((&rest names) (&rest arguments) &body body)
  "Evaluate BODY with NAMES bound to running loops made with ARGUMENTS. They are stopped afterwards,
and must have left no thread and no descriptor."
  `(call-with-loops ,(length names) (lambda () (list ,@arguments)) (lambda ,names ,@body)))

(defun check-gone (loop)
  "Check that LOOP soon has no connection."
  (loop repeat 100000
        until (zerop (event-loop-connections loop))
        do (settle loop))
  (is (= 0 (event-loop-connections loop))))

;;; Pollers and clocks

(defstruct counts
  (waits 0 :type sb-ext:word)
  (sleeps 0 :type sb-ext:word)
  (wakes 0 :type sb-ext:word)
  (asleep (sb-thread:make-semaphore)))

(defun counting-poller (counts)
  "An epoll poller that counts in COUNTS its waits, its waits with a time-out above 0, and its
wake-ups; it signals ASLEEP each time before it sleeps."
  (let ((epoll (make-epoll-poller)))
    (make-poller :state (poller-state epoll)
                 :add #'clgrpc.loop::add-to-epoll
                 :remove #'clgrpc.loop::remove-from-epoll
                 :wait (lambda (poller timeout-ns)
                         (sb-ext:atomic-incf (counts-waits counts))
                         (unless (zerop timeout-ns)
                           (sb-ext:atomic-incf (counts-sleeps counts))
                           (sb-thread:signal-semaphore (counts-asleep counts)))
                         (clgrpc.loop::wait-for-epoll poller timeout-ns))
                 :wake (lambda (poller)
                         (sb-ext:atomic-incf (counts-wakes counts))
                         (clgrpc.loop::wake-epoll poller))
                 :close #'clgrpc.loop::close-epoll)))

(defun shiftable-clock ()
  "Two values: a clock, and a function that sets it forward by some seconds."
  (let ((offset (list 0)))
    (values (lambda () (+ (monotonic-ns) (car offset)))
            (lambda (seconds) (incf (car offset) (seconds-ns seconds))))))

;;; Loops that the thread of a test runs, turn by turn

(defconstant +noon-ns+ (* 1000 +ns-per-second+) "What their clocks say, or begin with.")

(defun still-poller (note)
  "A poller that reports nothing. NOTE is called with :wake, and with each time-out for which the
loop would wait, in nanoseconds."
  (make-poller :add (constantly 0) :remove (constantly 0)
               :wait (fn (_poller timeout-ns)
                       (funcall note timeout-ns)
                       0)
               :wake (fn (_poller) (funcall note :wake))
               :close #'identity))

(defun make-turn-of (loop)
  "Make one turn of LOOP in this thread. Return false if the baton was lost in it."
  (clgrpc.loop::with-taken-loop (loop (take loop))
    (multiple-value-prog1 (clgrpc.loop::run-turn loop)
      (hand-over loop))))

(defmacro with-still-loop ((loop &key (clock '#'monotonic-ns) (note '#'identity)) &body body)
  "Evaluate BODY with LOOP, which only MAKE-TURN-OF runs, with CLOCK and a STILL-POLLER."
  `(let ((,loop (make-event-loop :name "still" :clock ,clock :poller (still-poller ,note))))
     (unwind-protect (progn ,@body)
       (stop-event-loop ,loop))))

;;; Servers and blocking clients

(defun listen-with (loops handler &key (address "127.0.0.1:0") (options (make-server-options))
                                    on-connection arguments)
  "Listen; each connection gets HANDLER and is passed to ON-CONNECTION. Return the listener."
  (listen-on address options loops
             (fn (loop byte-channel _peer)
               (let ((connection (apply #'make-connection loop byte-channel handler arguments)))
                 (when on-connection (funcall on-connection connection))))))

(defun echo (connection octets start end)
  (append-octets (connection-output connection) octets :start start :end end)
  end)

(defstruct client socket stream)

(defun open-client (address)
  "Connect a blocking socket with a receive buffer of fixed size to ADDRESS, text."
  (multiple-value-bind (host port) (os:parse-address address)
    (let* ((v6 (find #\: host))
           (socket (make-instance (if v6 'sb-bsd-sockets:inet6-socket 'sb-bsd-sockets:inet-socket)
                                  :type :stream :protocol :tcp)))
      (handler-bind ((error (fn (_condition) (sb-bsd-sockets:socket-close socket))))
        ;; so that what a test takes for more than the kernel holds is more on every machine
        (setf (sb-bsd-sockets:sockopt-receive-buffer socket) 262144)
        (sb-bsd-sockets:socket-connect socket (if v6
                                                  (sb-bsd-sockets:make-inet6-address host)
                                                  (sb-bsd-sockets:make-inet-address host))
                                       port))
      (make-client :socket socket
                   :stream (sb-bsd-sockets:socket-make-stream
                            socket :input t :output t :element-type 'octet
                                   :buffering :full :timeout *patience-seconds*)))))

(defun client-send (client octets &key (start 0) (end (length octets)))
  (write-sequence octets (client-stream client) :start start :end end)
  (finish-output (client-stream client)))

(defun client-receive (client count)
  "The next COUNT octets; fewer if the peer sends no more."
  (let ((octets (make-octets count)))
    (subseq octets 0 (read-sequence octets (client-stream client)))))

(defun client-ended-p (client)
  "Wait for the end of the peer's octets; true if none came before it."
  (handler-case (null (read-byte (client-stream client) nil))
    (sb-int:simple-stream-error () t)))  ; reset

(defun client-descriptor (client)
  (sb-bsd-sockets:socket-file-descriptor (client-socket client)))

(defun end-client-output (client)
  (finish-output (client-stream client))
  (os:shutdown-output (client-descriptor client)))

(defun close-client (client)
  (ignore-errors (close (client-stream client) :abort t))
  (ignore-errors (sb-bsd-sockets:socket-close (client-socket client))))

(defun call-with-clients (count address function)
  (let ((clients '()))
    (unwind-protect
         (progn (loop repeat count do (push (open-client address) clients))
                (apply function clients))
      (mapc #'close-client clients))))

(defmacro with-clients ((&rest names) (address) &body body)
  "Evaluate BODY with NAMES bound to clients of ADDRESS, which are closed afterwards."
  `(call-with-clients ,(length names) ,address (lambda ,names ,@body)))

(defun pattern (count)
  "COUNT octets, each of which shows its position."
  (let ((octets (make-octets count)))
    (dotimes (i count octets)
      (setf (aref octets i) (logand 255 (+ i (ash i -8) (ash i -16)))))))
