;;;; Resolvers: those of the predefined schemes, and those of users.

(in-package #:clgrpc.tests.client)

(defun resolver-of (target)
  (client:make-resolver target (make-channel-options)))

(defun backend-keys (resolver)
  (mapcar #'client:backend-key (client::resolver-backends resolver)))

(test targets-that-are-addresses
  (loop for (target authority host . keys)
          in '(("127.0.0.1:80" "127.0.0.1:80" "127.0.0.1" "127.0.0.1:80")
               ("localhost:80" "localhost:80" "localhost" "127.0.0.1:80" "[::1]:80")
               ("dns:///127.0.0.1" "127.0.0.1" "127.0.0.1" "127.0.0.1:443")
               ("ipv4:127.0.0.1:80,127.0.0.2:81" "127.0.0.1:80" "127.0.0.1"
                "127.0.0.1:80" "127.0.0.2:81")
               ("ipv6:[::1]:80" "[::1]:80" "::1" "[::1]:80")
               ("unix:/a/b" "localhost" "localhost" "unix:/a/b")
               ("unix-abstract:a" "localhost" "localhost" "unix-abstract:a")
               ("passthrough:///localhost:80" "localhost:80" "localhost"
                "127.0.0.1:80,[::1]:80"))
        do (let ((resolver (resolver-of target)))
             (is (string= authority (client:resolver-authority resolver)) "~A" target)
             (is (string= host (client:resolver-host resolver)) "~A" target)
             (is (equal keys (backend-keys resolver)) "~A" target)
             (is (not (client:answers-p resolver)) "~A" target))))

(test targets-that-are-names
  (dolist (target '("example.org:80" "dns:example.org" "passthrough:///example.org:1"))
    (let ((resolver (resolver-of target)))
      (is (client:answers-p resolver))
      (is (string= "example.org" (client:resolver-name resolver)))))
  (signals grpc:misuse (resolver-of "goose://post"))
  (signals grpc:misuse (resolver-of "inproc:x"))
  (signals grpc:misuse (resolver-of 5)))

(test what-a-resolver-may-push
  (flet ((parts (item)
           (let ((backend (client::parse-backend item)))
             (list (client:backend-key backend) (client:backend-attributes backend)))))
    (is (equal '("10.0.0.1:80" ()) (parts "10.0.0.1:80")))
    (is (equal '("[::1]:80" ()) (parts "[::1]:80")))
    (is (equal '("unix:/a" (:weight 3)) (parts '("unix:/a" :weight 3))))
    (is (equal '("10.0.0.1:80,[::1]:80" (:zone "a"))
               (parts '(("10.0.0.1:80" "[::1]:80") :zone "a"))))
    (dolist (item '("example.org:80" "10.0.0.1" "" 5 (()) ("") (5) (("10.0.0.1:80" "nobody:1"))))
      (signals grpc:misuse (client::parse-backend item)))))

(defvar *journal* nil "The actions of resolvers, newest first, in the car of a cons.")

(defun note-deed (&rest deed)
  (sb-ext:atomic-push deed (car *journal*)))

(defun call-with-resolvers (function)
  "Call FUNCTION with a loop that runs, a journal of its own, and the schemes that it defines."
  (let ((schemes loop::**schemes**)
        (loop (loop:make-event-loop :name "resolvers"))
        (journal *journal*))
    (loop:launch-event-loop loop)
    ;; resolvers run on other threads
    (setf *journal* (list '()))
    (unwind-protect (funcall function loop)
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop)
      (setf loop::**schemes** schemes
            *journal* journal))))

(defmacro with-resolvers ((loop) &body body)
  `(call-with-resolvers (lambda (,loop) ,@body)))

(grpc:define-resolver flock "flock"
    ((stopped :initform nil :accessor flock-stopped))
  (:documentation "A resolver of tests, which notes what it is asked for."))

(defmethod grpc:start-resolver ((flock flock))
  (note-deed :start (grpc:resolver-name flock) (sb-thread:main-thread-p))
  (cond ((string= "broken" (grpc:resolver-name flock)) (error "The flock is gone."))
        (t (grpc:push-addresses flock '("127.0.0.1:1" ("127.0.0.1:2" :weight 2))))))

(defmethod grpc:resolve-now ((flock flock))
  (note-deed :now)
  (grpc:push-failure flock "the shepherd sleeps."))

(defmethod grpc:stop-resolver ((flock flock))
  (note-deed :stop)
  (setf (flock-stopped flock) t))

(defun run-flock (loop target)
  "Run the resolver of TARGET on LOOP, with entries in the journal; return it."
  (let ((resolver (resolver-of target)))
    (loop:post loop (lambda ()
                      (client:run-resolver
                       resolver loop
                       (fn (backends failure _service-config)
                         (note-deed :told (mapcar #'client:backend-key backends) failure
                                    (loop:in-event-loop-p loop))))))
    resolver))

(defun deeds ()
  (reverse (car *journal*)))

(test resolvers-of-users
  "They are started, asked and stopped in turn, on threads that may block; their pushes reach the
loop."
  (with-resolvers (loop)
    (let ((resolver (run-flock loop "flock://pasture/meadow%20%31")))
      (is (string= "flock://pasture/meadow%20%31" (grpc:resolver-target resolver)))
      (eventually (= 2 (length (deeds))))
      (loop:post loop (lambda () (client:resolve-again resolver)))
      (eventually (= 4 (length (deeds))))
      (loop:post loop (lambda () (client:quit-resolver resolver)))
      (eventually (flock-stopped resolver))
      (is (not (grpc:push-addresses resolver '("127.0.0.1:1"))))
      (is (not (grpc:push-failure resolver "too late")))
      (is (equal '((:start "meadow 1" nil)
                   (:told ("127.0.0.1:1" "127.0.0.1:2") nil t)
                   (:now)
                   (:told () "Cannot resolve flock://pasture/meadow%20%31: the shepherd sleeps" t)
                   (:stop))
                 (deeds))))))

(test resolvers-that-fail
  "An error in a method is logged, and reported as a failure."
  (with-resolvers (loop)
    (with-log (:resolver-error)
      (run-flock loop "flock:broken")
      (eventually (= 2 (length (deeds))))
      (is (equal '(:told () "Cannot resolve flock:broken: The flock is gone" t)
                 (second (deeds))))
      (is (= 1 (length (events-of :resolver-error)))))))

(test resolvers-start-later-if-no-thread-is-free
  "A resolver that could not be started is started at the channel's next request."
  (with-resolvers (loop)
    (let ((requests 0))
      (with-replaced (('loop:run-on-resolver (fn (function loop errands)
                                               (and (< 2 (incf requests))
                                                    (funcall function loop errands)))))
        (let ((resolver (run-flock loop "flock:x")))
          (eventually (= 1 (length (deeds))))
          (is (search "no thread is free" (third (first (deeds)))))
          (loop repeat 2
                do (loop:post loop (lambda () (client:resolve-again resolver))))
          (eventually (= 6 (length (deeds))))
          (is (equal '(:start :now) (remove :told (mapcar #'first (deeds))))))))))

(grpc:define-resolver stray "stray" ()
  (:documentation "A resolver whose method does not return."))

(defmethod grpc:start-resolver ((stray stray))
  (if (string= "unprintable" (grpc:resolver-name stray))
      (error 'support:unprintable)
      (sb-thread:abort-thread)))

(defmethod grpc:resolve-now ((stray stray))
  (grpc:push-addresses stray '("127.0.0.1:1")))

(test resolvers-whose-methods-do-not-return
  "A method may end its thread, or signal an error that cannot be printed: the channel gets the
failure, and the resolver's other methods are called."
  (loop for (name text) in '(("aborted" "a method of the resolver has not returned")
                             ("unprintable" "(cannot be printed)"))
        do (with-resolvers (loop)
             (with-log (:resolver-error)
               (let ((resolver (run-flock loop (format nil "stray:~A" name))))
                 (eventually (= 1 (length (deeds))))
                 (is (equal `(:told () ,(format nil "Cannot resolve stray:~A: ~A" name text) t)
                            (first (deeds))))
                 (loop:post loop (lambda () (client:resolve-again resolver)))
                 (eventually (= 2 (length (deeds))))
                 (is (equal '(:told ("127.0.0.1:1") nil t) (second (deeds)))))))))

(defvar *gate* (make-signal))

(grpc:define-resolver sleeper "sleeper" ()
  (:documentation "A resolver that starts when *GATE* is signalled, not before."))

(defmethod grpc:start-resolver ((sleeper sleeper))
  (await-signal *gate*)
  (note-deed :start))

(defmethod grpc:resolve-now ((sleeper sleeper))
  (note-deed :now))

(defmethod grpc:stop-resolver ((sleeper sleeper))
  (note-deed :stop))

(test questions-do-not-pile-up
  "However often a busy resolver is asked, it looks up once when it has time."
  (with-resolvers (loop)
    (let ((resolver (run-flock loop "sleeper:x")))
      (loop:post loop (lambda ()
                        (loop repeat 1000 do (client:resolve-again resolver))
                        (signal-it *gate*)))
      (eventually (member '(:now) (deeds) :test #'equal))
      (loop:post loop (lambda ()
                        (client:resolve-again resolver)
                        (client:quit-resolver resolver)))
      (eventually (member '(:stop) (deeds) :test #'equal))
      (is (equal '((:start) (:now) (:now) (:stop)) (deeds))))))

(test wrong-pushes
  (with-resolvers (loop)
    (let ((resolver (run-flock loop "flock:x")))
      (eventually (= 2 (length (deeds))))
      (signals grpc:misuse (grpc:push-addresses resolver '("example.org:80")))
      (signals type-error (grpc:push-failure resolver nil))
      (is (= 2 (length (deeds)))))))

(test resolvers-are-for-names
  (signals grpc:misuse (resolver-of "flock:"))
  (signals grpc:misuse (resolver-of "flock://x"))
  (is (typep (resolver-of "FLOCK:a:80") 'flock))
  (is (string= "a:80" (client:resolver-authority (resolver-of "flock:a:80"))))
  (is (string= "a" (client:resolver-host (resolver-of "flock:a:80")))))

(grpc:define-resolver latecomer "latecomer" ()
  (:documentation "A resolver that pushes when *COME* is signalled, not before."))

(defvar *come* (make-signal))

(defmethod grpc:start-resolver ((latecomer latecomer))
  (await-signal *come*)
  (grpc:push-addresses latecomer (list (grpc:resolver-name latecomer))))

(test the-time-to-connect-begins-with-the-push
  "A resolver may take any time: calls have deadlines, and connecting has its own limit."
  (let ((server (start-probe (list :ask #'double))))
    (grpc:with-channel (channel (format nil "latecomer:~A" (grpc:server-address server))
                                :connect-timeout-seconds 0.1)
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 60)))
        (is-false (await-signal (make-signal) :seconds 0.3))
        (is (not (grpc:future-done-p future)))
        (signal-it *come*)
        (is (= 2 (number-of (grpc:await future))))))
    (grpc:stop-server server)))

;;; Of one channel

(defvar *herd-address* nil)

(grpc:define-resolver herd nil ()
  (:documentation "A resolver that only channels have which say so."))

(defmethod grpc:start-resolver ((herd herd))
  (grpc:push-addresses herd (list *herd-address*)))

(test resolvers-of-one-channel
  "They replace those of the image, and other channels do not have them."
  (with-probe (channel :server server) (:ask #'double)
    (setf *herd-address* (grpc:server-address server))
    (unwind-protect
         (progn
           (dolist (scheme '("herd" "HERD" "dns" "inproc"))
             (grpc:with-channel (channel "herd:cows" :resolvers '(("herd" . herd)))
               (is (= 4 (number-of (ask channel (note 2))))))
             (grpc:with-channel (channel (format nil "~A:cows" scheme)
                                         :resolvers `((,(string-downcase scheme) . herd)))
               (is (= 4 (number-of (ask channel (note 2)))))
               (is (equal (format nil "~A:cows" scheme) (grpc:channel-target channel)))))
           (signals grpc:misuse (grpc:make-channel "herd:cows"))
           (dolist (bad '(5 (("herd" . car)) (("herd" . no-such-class)) ((herd . herd)) ("herd")))
             (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :resolvers bad))))
      (setf *herd-address* nil))))
