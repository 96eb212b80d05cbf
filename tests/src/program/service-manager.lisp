;;;; The notifications of a program to a service manager, and the effect of SIGHUP.

(in-package #:clgrpc.tests.program)

(defmacro with-managed-greeter ((program address next abstract &rest arguments) &body body)
  "Run BODY while greeter.lisp runs with ARGUMENTS under a service manager; NEXT waits for the lines
of the manager's next notification."
  `(support:call-with-service-manager
    ,abstract
    (lambda (path next)
      (flet ((,next () (funcall next)))
        (support:call-with-program
         (lambda (,program)
           (let ((,address (support:server-address ,program)))
             (declare (ignorable ,address))
             ,@body))
         "/usr/bin/env"
         (list* (format nil "NOTIFY_SOCKET=~A" path)
                (uiop:native-namestring sb-ext:*runtime-pathname*)
                (script-arguments "greeter.lisp" "--listen" "127.0.0.1:0" ,@arguments)))))))

(defun hears (line lines)
  (is (member line lines :test #'string=) "~S is not in ~S" line lines))

(test a-service-manager-hears-of-a-program
  "That it serves, of an end that may take as long as its drain, and of SIGHUP in between."
  (dolist (abstract '(nil t))
    (with-managed-greeter (program address next abstract "--limits" "drain-seconds=30")
      (let ((lines (next)))
        (hears "READY=1" lines)
        (hears (format nil "STATUS=listening on ~A" address) lines))
      (support:signal-program program sb-unix:sighup)
      (let ((lines (next)))
        (hears "RELOADING=1" lines)
        (is (find-if (lambda (line) (uiop:string-prefix-p "MONOTONIC_USEC=" line)) lines)))
      (hears "READY=1" (next))
      (grpc:with-channel (channel address)
        (is (string= "Hello, Ada!" (greet channel "Ada"))))
      (support:signal-program program sb-unix:sigterm)
      (let ((lines (next)))
        (hears "STOPPING=1" lines)
        (hears "EXTEND_TIMEOUT_USEC=40000000" lines))
      (last-lines program)
      (is (= 0 (support:program-exit-code program))))))

(test a-manager-that-is-not-there-is-logged
  (with-replaced (('program::manager-address
                   (constantly (clgrpc.os:make-unix-address
                                (clgrpc.base:string-octets "/nonexistent/socket")))))
    (with-logged (events)
      (program::tell-manager "READY=1")
      (is (equal '((:warning :manager-not-told :reason "No such file or directory")) (events))))))

(test a-manager-that-is-not-there-stops-nothing
  (dolist (path '("/nonexistent/socket" "@nobody-listens-here" "nonsense" "/"))
    (support:call-with-program
     (lambda (program)
       (grpc:with-channel (channel (support:server-address program))
         (is (string= "Hello, Ada!" (greet channel "Ada"))))
       (support:signal-program program sb-unix:sigterm)
       (last-lines program)
       (is (= 0 (support:program-exit-code program))))
     "/usr/bin/env"
     (list* (format nil "NOTIFY_SOCKET=~A" path)
            (uiop:native-namestring sb-ext:*runtime-pathname*)
            (script-arguments "greeter.lisp" "--listen" "127.0.0.1:0")))))

(test sighup-reloads-what-there-is
  "Certificates, and the program's own function, an error in which stops nothing."
  (uiop:with-temporary-file (:pathname certificate)
    (uiop:with-temporary-file (:pathname key)
      (flet ((install (name) (support:install-certificate name certificate key))
             (serial (address)
               (grpc:with-channel (channel address
                                           :credentials (grpc:tls-credentials
                                                         :roots (support:certificate-file
                                                                 "ca.pem")))
                 (multiple-value-bind (reply call)
                     (helloworld.greeter:say-hello channel (helloworld:make-hello-request)
                                                   :timeout 10)
                   (declare (ignore reply))
                   (grpc:certificate-serial-number
                    (grpc:security-peer-certificate (grpc:call-security call)))))))
        (install "server")
        (with-greeter (program address "--tls-cert" (uiop:native-namestring certificate)
                                       "--tls-key" (uiop:native-namestring key))
          (let ((before (serial address)))
            (install "renewed")
            (support:signal-program program sb-unix:sighup)
            (loop until (search "own reload" (support:program-line program)))
            (is (/= before (serial address)))
            (support:signal-program program sb-unix:sigterm)
            (last-lines program)
            (is (= 0 (support:program-exit-code program)))))))))

(defun reload-threads ()
  (remove "clgrpc reload" (sb-thread:list-all-threads) :key #'sb-thread:thread-name
                                                       :test-not #'equal))

(defun call-with-unasked (function)
  "Call FUNCTION with an ENDING that no signal reaches."
  (let ((loop (loop:make-event-loop :name "ending")))
    (loop:launch-event-loop loop)
    (unwind-protect (funcall function (program::make-ending :loop loop :seconds 600))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))))

(defun on-its-loop (ending function &rest arguments)
  "Call FUNCTION with ARGUMENTS on the loop of ENDING, and wait for its value."
  (loop:await (loop:call-in-loop (program::ending-loop ending)
                                 (lambda () (apply function arguments)))))

(defun call-with-reloader (function)
  "Call FUNCTION with an ENDING, a reloader of it, and two semaphores: reloads signal the first, and
then wait for the second."
  (let ((begun (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
        (server (grpc:start-server (make-instance 'grpc:health-service) :listen "127.0.0.1:0")))
    (unwind-protect
         (call-with-unasked
          (lambda (ending)
            (funcall function ending
                     (program::make-reloader
                      ending server
                      (list (lambda ()
                              (sb-thread:signal-semaphore begun)
                              (sb-thread:wait-on-semaphore go-on :timeout 60))))
                     begun go-on)))
      (grpc:stop-server server))))

(defun passed-p (semaphore)
  (sb-thread:wait-on-semaphore semaphore :timeout 60))

(test errors-in-a-reload-are-logged
  "The other functions are called nevertheless."
  (let ((called nil))
    (with-logged (events)
      (with-replaced (('program::tell-serving #'list))
        (call-with-unasked (lambda (ending)
                             (program::reload ending nil
                                              (list #'error (lambda () (setf called t)))))))
      (is-true called)
      (is (equal '((:info :reloading) (:error :reload-error))
                 (mapcar (lambda (event) (subseq event 0 2)) (events)))))))

(test many-hang-ups-are-one-more-reload
  "While one is under way; and a signal after the last is not lost."
  (call-with-reloader
   (fn (_ending reloader begun go-on)
     (dotimes (round 2)
       (program::want-reload reloader)
       (is-true (passed-p begun))
       (dotimes (i 100) (program::want-reload reloader))
       (let ((threads (reload-threads)))
         (is (= 1 (length threads)))
         (sb-thread:signal-semaphore go-on)
         (is-true (passed-p begun))
         (is (equal threads (reload-threads)))
         (sb-thread:signal-semaphore go-on)
         (dolist (thread threads) (sb-thread:join-thread thread :timeout 60)))
       (is (eq :idle (program::reloader-state reloader)))
       (is (zerop (sb-thread:semaphore-count begun)))))))

(test no-reload-once-the-end-has-begun
  "No reload begins, whether it was requested before or by a later signal, and a service manager
that knows of the end is not told that the program is ready."
  (let ((lines '()))
    (with-replaced (('program::tell-manager
                     (fn (_function &rest more) (push (first more) lines))))
      (call-with-reloader
       (lambda (ending reloader begun go-on)
         (program::want-reload reloader)
         (is-true (passed-p begun))
         (program::want-reload reloader)
         (on-its-loop ending #'program::begin-end ending)
         (sb-thread:signal-semaphore go-on 2)
         (dolist (thread (reload-threads)) (sb-thread:join-thread thread :timeout 60))
         (is (equal '("RELOADING=1") (on-its-loop ending (lambda () lines))))
         (program::want-reload reloader)
         (dolist (thread (reload-threads)) (sb-thread:join-thread thread :timeout 60))
         (is (zerop (sb-thread:semaphore-count begun)))
         (is (equal '("RELOADING=1") (on-its-loop ending (lambda () lines)))))))))

(test a-reload-that-cannot-begin-is-no-last-one
  "If no thread can be made for it, the next signal reloads."
  (let ((left 1))
    (with-replaced (('program::start-reload
                     (lambda (function reloader)
                       (if (minusp (decf left))
                           (funcall function reloader)
                           (error "There is no room for a thread.")))))
      (call-with-reloader
       (fn (_ending reloader begun go-on)
         (signals error (program::want-reload reloader))
         (sb-thread:signal-semaphore go-on)
         (program::want-reload reloader)
         (is-true (passed-p begun))
         (dolist (thread (reload-threads)) (sb-thread:join-thread thread :timeout 60)))))))

(test a-reload-that-is-ended-by-force-is-no-last-one
  (with-replaced (('program::tell-serving #'list))
    (call-with-unasked
     (lambda (ending)
       (let ((reloader (program::make-reloader ending nil (list (lambda () (throw 'ended nil))))))
         (setf (program::reloader-state reloader) :under-way)
         (catch 'ended (program::reload-as-wanted reloader))
         (is (eq :idle (program::reloader-state reloader))))))))

(test sighup-without-anything-to-reload
  "It ends the process, as a closed terminal requires. The process that has started the tests may
ignore the signal, and a program of theirs would inherit that."
  (support:call-with-program
   (lambda (program)
     (support:server-address program)
     (support:signal-program program sb-unix:sighup)
     (last-lines program)
     (is (/= 0 (support:program-exit-code program))))
   "/usr/bin/env"
   (list* "--default-signal=HUP" (uiop:native-namestring sb-ext:*runtime-pathname*)
          (script-arguments "greeter.lisp" "--listen" "127.0.0.1:0"))))
