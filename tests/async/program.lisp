;;;; Programs on a loop: when they end, errors in callbacks, signals, statistics; handles as well.

(in-package #:clgrpc.tests.async)

(defun call-with-program (arguments function)
  (let ((descriptors (os:open-descriptor-count))
        (threads (sb-thread:list-all-threads))
        (late nil))
    (apply #'start-event-loop
           (lambda ()
             (unref (delay (lambda () (setf late t) (exit-event-loop)) :time *patience-seconds*))
             (funcall function))
           arguments)
    (is-false late "the loop does not end")
    (is (null (threads-left threads)) "threads are left")
    (is (= descriptors (os:open-descriptor-count)) "descriptors are left")))

(defmacro with-program ((&rest arguments) &body body)
  "WITH-EVENT-LOOP, which must end by itself and leave no thread and no descriptor."
  `(call-with-program (list ,@arguments) (lambda () ,@body)))

(test a-program-ends-with-its-last-use
  (let ((steps '()))
    (with-program ()
      (push :body steps)
      (delay (lambda ()
               (push :delayed steps)
               (delay (lambda () (push :again steps))))
             :time 0.01))
    (is (equal '(:again :delayed :body) steps)))
  (with-program () nil)
  (signals misuse (delay #'list))
  (signals misuse (tcp-server nil 0 #'list)))

(test exit-from-a-program
  (let ((steps '()))
    (with-program ()
      (add-event-loop-exit-callback (lambda () (push :last steps)))
      (add-event-loop-exit-callback (lambda () (push :first steps)))
      (delay (lambda () (push :late steps)) :time 1000)
      (tcp-server "127.0.0.1" 0 #'list)
      (delay #'exit-event-loop))
    (is (equal '(:last :first) steps))))

(test a-program-waits-for-the-peer-of-its-last-socket
  "Until the peer closes its side, too: it might lose what is on its way to it otherwise."
  (let ((ended (sb-thread:make-semaphore)) (peer nil))
    (with-program ()
      (add-event-loop-exit-callback (lambda () (sb-thread:signal-semaphore ended)))
      (let ((server nil))
        (setf server (tcp-server "127.0.0.1" 0 #'list
                                 :connect-cb (lambda (socket)
                                               (write-socket-data socket "farewell")
                                               (close-socket socket)
                                               (close-tcp-server server)))
              peer (sb-thread:make-thread
                    (lambda (address)
                      (with-clients (client) (address)
                        (list (octets-string (client-receive client 100))
                              (sb-thread:wait-on-semaphore ended :timeout 1/10))))
                    :arguments (list (server-address server))))))
    (is (equal '("farewell" nil) (sb-thread:join-thread peer)))
    (is (= 1 (sb-thread:semaphore-count ended)))))

(test exit-by-unwinding
  (let ((server nil) (descriptors (os:open-descriptor-count)))
    (is (eq :out (block outside
                   (with-event-loop ()
                     (setf server (tcp-server "127.0.0.1" 0 #'list))
                     (delay (lambda () (return-from outside :out)))))))
    (is (= descriptors (os:open-descriptor-count)))
    (signals misuse (delay #'list :loop (clgrpc.async::handle-loop server)))
    (with-program () nil)))

(test nothing-begins-on-a-loop-that-has-stopped
  (let ((loop nil))
    (with-program () (setf loop *event-loop*))
    (macrolet ((refused (&rest forms)
                 `(progn ,@(loop for form in forms
                                 collect `(signals misuse (,@form :loop loop) "~S" ',form)))))
      (refused (delay #'list) (interval #'list) (make-event #'list) (idle #'list)
               (make-notifier #'list) (poll 0 #'list)
               (dns-lookup "127.0.0.1" #'list) (dns-lookup "a.example" #'list)
               (reverse-dns-lookup "127.0.0.1" #'list)
               (tcp-server "127.0.0.1" 0 #'list) (tcp-connect "127.0.0.1" 1 #'list)
               (signal-handler +sigusr1+ #'list) (free-signal-handler +sigusr1+)
               (clear-signal-handlers)))
    (is (eq :stopped (getf (stats :loop loop) :state)))))

(test one-program-a-thread-and-many-threads
  (with-program ()
    (signals misuse (with-event-loop () nil))
    (let ((other (in-thread (let ((count 0))
                              (with-event-loop () (dotimes (i 10) (delay (lambda () (incf count)))))
                              count))))
      (is (= 10 (sb-thread:join-thread other))))))

(test handles-that-do-not-count
  (let ((steps '()))
    (with-program ()
      (unref (tcp-server "127.0.0.1" 0 #'list))
      (let ((event (unref (delay (lambda () (push :counted steps)) :time 0.01))))
        (ref event))
      (unref (delay (lambda () (push :uncounted steps)) :time 1000)))
    (is (equal '(:counted) steps))))

(test a-handle-that-does-not-count-is-told-so-twice
  "It counted once, so another that counts is not taken for it."
  (let ((steps '()))
    (with-program ()
      (delay (lambda () (push :counted steps)) :time 0.01)
      (unref (unref (tcp-server "127.0.0.1" 0 #'list))))
    (is (equal '(:counted) steps))))

(test posts-from-other-threads
  (let ((steps '()) (program nil))
    (with-program ()
      (setf program *event-loop*)
      (let ((event (make-event #'list)))
        (add-event event :timeout 1000)
        (in-thread
          (post program (lambda () (push :posted steps)))
          (delay (lambda () (push :delayed steps) (cancel event)) :loop program :time 0.001))))
    (is (equal '(:delayed :posted) steps))
    (is-false (post program #'list))))

;;; Errors in callbacks

(test errors-reach-those-who-run-the-program
  (signals mishap (with-event-loop () (error 'mishap)))
  (signals mishap (with-event-loop () (delay (lambda () (error 'mishap)))))
  (with-program () nil))

(defun failing (restart &rest arguments)
  "What a program says of itself in which a callback fails and then RESTART is chosen."
  (let ((said '()))
    (handler-bind ((mishap (fn (_condition)
                             (push (and (find-restart 'clgrpc.async:close-socket) t) said)
                             (invoke-restart restart))))
      (call-with-program
       arguments
       (lambda ()
         (delay (lambda () (push :next said)) :time 0.02)
         (delay (lambda () (error 'mishap))
                :event-cb (lambda (event) (push (type-of event) said))))))
    (reverse said)))

(test restarts-of-a-failing-callback
  (is (equal '(nil :next) (failing 'abort-callback)))
  (is (equal '(nil mishap :next) (failing 'continue-event-loop)))
  (is (equal '(nil) (failing 'exit-event-loop))))

(test close-the-socket-of-a-failing-callback
  "At once: output that waits is dropped."
  (let ((said '()) (heard 0))
    (handler-bind ((mishap (fn (_condition) (invoke-restart 'close-socket))))
      (with-program ()
        (let ((server (tcp-server "127.0.0.1" 0
                                  (fn (socket _octets)
                                    (write-socket-data socket (make-octets 50000000))
                                    (error 'mishap)))))
          (tcp-connect "127.0.0.1" (server-port server)
                       (fn (_socket octets) (incf heard (length octets)))
                       :data "x"
                       :event-cb (lambda (event)
                                   (push (type-of event) said)
                                   (cancel server))))))
    (is (= 1 (length said)))
    (is (subtypep (first said) 'socket-error))
    (is (< heard 50000000))))

(test caught-errors
  (let ((told '()) (logged '()))
    (with-logged (events)
      (with-program (:catch-app-errors t)
        (add-event-loop-exit-callback (lambda () (error 'mishap)))
        (delay (lambda () (error 'mishap)) :event-cb (lambda (event) (push (type-of event) told)))
        (delay (lambda () (error 'mishap)))
        (delay (lambda () (error 'mishap)) :event-cb (lambda (event) (error event))))
      (setf logged (events)))
    (is (equal '(mishap) told))
    (is (equal '(:callback-error :event-callback-error :exit-callback-error)
               (mapcar #'second logged)))
    (is (every (lambda (event) (eq :error (first event))) logged)))
  (let ((told '()))
    (with-program (:catch-app-errors (lambda (event) (push (type-of event) told))
                   :send-errors-to-eventcb nil)
      (delay (lambda () (error 'mishap)) :event-cb (lambda (event) (push event told))))
    (is (equal '(mishap) told))))

;;; Signals and statistics

(defun send-signal (signal)
  (sb-posix:kill (sb-posix:getpid) signal))

(test signals-reach-a-program
  (let ((got '()))
    (with-program ()
      (signal-handler +sigusr1+ (lambda (number)
                                  (push number got)
                                  (if (= 3 (length got))
                                      (free-signal-handler number)
                                      (send-signal number))))
      (let ((second (signal-handler +sighup+ #'identity)))
        (delay (lambda () (cancel second))))
      (delay (lambda () (send-signal +sigusr1+))))
    (is (equal (list +sigusr1+ +sigusr1+ +sigusr1+) got)))
  (with-program ()
    (dolist (number '(0 65 9 11 12 14 19 23 32 33 :int)) ; 12, 14 and 23 are SBCL's
      (signals misuse (signal-handler number #'identity)))
    (signals misuse (tcp-server 8080 nil #'list))
    (signals misuse (tcp-connect "127.0.0.1" 1 #'list :data 5)))
  ;; the end of a program frees its handlers
  (with-program ()
    (signal-handler +sigusr1+ #'identity)
    (delay #'exit-event-loop))
  (with-program ()
    (signal-handler +sigusr1+ #'identity)
    (delay #'clear-signal-handlers)))

(test a-signal-handler-replaces-another-at-once
  "The signal never has its default action meanwhile, which would end the process."
  (let ((reset 0) (got '()))
    (with-replaced (('os:reset-signal (lambda (function signal)
                                        (incf reset)
                                        (funcall function signal))))
      (with-program ()
        (flet ((handle (name)
                 (signal-handler +sigusr1+ (lambda (number)
                                             (push name got)
                                             (free-signal-handler number)))))
          (handle :first)
          (handle :second)
          (is (= 0 reset))
          (is (= 1 (getf (stats) :uses)) "that of the second"))
        (delay (lambda () (send-signal +sigusr1+)))))
    (is (equal '(:second) got))
    (is (= 1 reset))))

(test to-cancel-what-was-replaced-changes-nothing
  (let ((got '()))
    (with-program ()
      (let ((first (signal-handler +sigusr1+ (fn (_number) (push :first got)))))
        (signal-handler +sigusr1+ (lambda (number)
                                    (push :second got)
                                    (free-signal-handler number)))
        (cancel first))
      (is (= 1 (getf (stats) :uses)))
      (delay (lambda () (when (plusp (getf (stats) :uses)) (send-signal +sigusr1+)))))
    (is (equal '(:second) got))))

(test a-signal-handler-suspends-another
  "One that other code has set has the signal again when no loop handles it."
  (let ((called (sb-thread:make-semaphore)))
    (os:handle-signal +sigwinch+ (lambda () (sb-thread:signal-semaphore called)))
    (unwind-protect
         (progn
           (with-event-loop ()
             (signal-handler +sigwinch+ #'identity)
             (signal-handler +sigwinch+ (fn (_number) (clear-signal-handlers)))
             (delay (lambda () (send-signal +sigwinch+))))
           (is (= 0 (sb-thread:semaphore-count called)))
           (send-signal +sigwinch+)
           (is-true (sb-thread:wait-on-semaphore called :timeout *patience-seconds*)))
      (os:reset-signal +sigwinch+))))

(test statistics-as-data
  (let ((during nil) (after nil))
    (with-program ()
      (let ((server (tcp-server "127.0.0.1" 0
                                (fn (socket _octets)
                                  (setf during (stats))
                                  (close-socket socket)))))
        (tcp-connect "127.0.0.1" (server-port server) #'list :data "x"
                     :event-cb (fn (_event)
                                 (close-tcp-server server)
                                 (setf after (stats))))))
    (is (= 1 (getf during :incoming-tcp-connections) (getf during :outgoing-tcp-connections)))
    (is (= 2 (getf during :connections)))
    (is (= 3 (getf during :uses)))
    (is (eq :running (getf during :state)))
    (is (= 0 (getf after :incoming-tcp-connections) (getf after :outgoing-tcp-connections)))
    (is (= 0 (getf after :uses)))))
