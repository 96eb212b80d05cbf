;;;; RUN-SERVER: processes, their output, and their exit codes.

(in-package #:clgrpc.tests.program)

(defun main-thread-waits-p (program)
  "True if the main thread of PROGRAM computes nothing, perhaps because it gets no processor."
  (let ((text (uiop:read-file-string (format nil "/proc/~D/stat" (support:program-pid program)))))
    (char= #\S (char text (+ 2 (position #\) text :from-end t))))))

(test a-program-ends-with-zero
  "SIGTERM and SIGINT: the drain and the end are logged, buffered output is written, cleanup forms
and exit hooks run."
  (dolist (signal (list sb-unix:sigterm sb-unix:sigint))
    (with-greeter (program address)
      ;; until then it may be about to forget what its stream of standard output held, and with it
      ;; what a handler puts there
      (support:eventually (main-thread-waits-p program))
      (grpc:with-channel (channel address)
        (is (string= "Hello, Ada!" (greet channel "Ada"))))
      (support:signal-program program signal)
      (let ((text (last-lines program)))
        (is (= 0 (support:program-exit-code program)))
        (dolist (expected '("greeting Ada, " "server-draining" "server-stopped" "unwound"
                            "exit hook"))
          (is (search expected text) "~A is not in ~A" expected text))))))

(test threads-of-a-program-can-be-interrupted
  "SBCL uses a signal for WITH-TIMEOUT and SLIME's C-c C-c, which a program leaves to it."
  (with-greeter (program address)
    (grpc:with-channel (channel address)
      (is (string= "Hello, in time!" (greet channel "in time" :timeout 90))))
    (support:signal-program program sb-unix:sigterm)
    (last-lines program)
    (is (= 0 (support:program-exit-code program)))))

(test origins-without-web
  "A program that sets its protocols itself accepts origins on its command line nevertheless."
  (is (equal '("https://app.example")
             (getf (program::server-arguments '(:listen ("127.0.0.1:0")
                                                :origins ("https://app.example"))
                                              '() nil '(:protocols (:connect)))
                   :origins))))

(defun open-p (path)
  "True if this process has the file at PATH open."
  (loop for descriptor from 3 below 1024
        thereis (equal path (sb-unix:unix-readlink (format nil "/proc/self/fd/~D" descriptor)))))

(test a-start-that-fails-leaves-no-binary-log-open
  (let ((server (grpc:start-server '() :listen "127.0.0.1:0"))
        (*error-output* (make-broadcast-stream)))
    (unwind-protect
         (uiop:with-temporary-file (:pathname path)
           (is (= 1 (grpc:run-server '() :exit nil :log-level nil
                                         :listen (grpc:server-address server)
                                         :binary-log (uiop:native-namestring path))))
           (is (not (open-p (uiop:native-namestring path)))))
      (grpc:stop-server server :drain 0))))

(test a-second-signal-ends-at-once
  (with-greeter (program address "--limits" "drain-seconds=600")
    (grpc:with-channel (channel address)
      (let ((call (grpc:call-async #'helloworld.greeter:say-hello channel
                                   (helloworld:make-hello-request :name "forever"))))
        (loop until (search "for ever" (support:program-line program)))
        (support:signal-program program sb-unix:sigterm)
        (loop until (search "server-draining" (support:program-line program)))
        (support:signal-program program sb-unix:sigterm)
        (let ((text (last-lines program)))
          (is (= (+ 128 sb-unix:sigterm) (support:program-exit-code program)))
          (is (search "ended-at-once" text))
          (is (null (search "server-stopped" text))))
        (signals grpc:unavailable (grpc:await call))))))

(test the-end-of-the-drain-ends-calls
  (with-greeter (program address "--limits" "drain-seconds=0")
    (grpc:with-channel (channel address)
      (let ((call (grpc:call-async #'helloworld.greeter:say-hello channel
                                   (helloworld:make-hello-request :name "forever"))))
        (loop until (search "for ever" (support:program-line program)))
        (support:signal-program program sb-unix:sigterm)
        (let ((text (last-lines program)))
          (is (= 0 (support:program-exit-code program)))
          (is (search "server-stopped" text)))
        (signals grpc:unavailable (grpc:await call))))))

(test an-end-that-takes-too-long-is-given-up
  (multiple-value-bind (code lines)
      (support:run-to-end sb-ext:*runtime-pathname* (script-arguments "late.lisp"))
    (is (= 1 code))
    (is (search "the end took too long" (format nil "~{~A~%~}" lines)))))

(test an-end-waits-for-no-reader-that-has-stopped
  "The standard error is a full pipe that is not read, like that of a pager that waits for a key:
SIGTERM ends the program nevertheless."
  (let ((process (sb-ext:run-program sb-ext:*runtime-pathname*
                                     (script-arguments "greeter.lisp" "--listen" "127.0.0.1:0"
                                                       "--access-log")
                                     :output :stream :error :stream :wait nil)))
    (unwind-protect
         (let ((address (loop with mark = "listening on "
                              for line = (read-line (sb-ext:process-output process))
                              when (uiop:string-prefix-p mark line)
                                return (subseq line (length mark)))))
           (grpc:with-channel (channel address)
             (loop repeat 1000 do (greet channel "Ada")))
           (sb-ext:process-kill process sb-unix:sigterm)
           (let ((waiter (in-thread (sb-ext:process-wait process))))
             (is-true (sb-thread:join-thread waiter :timeout 60 :default nil))
             (is (eql 0 (sb-ext:process-exit-code process)))))
      (when (sb-ext:process-alive-p process)
        (sb-ext:process-kill process sb-unix:sigkill))
      (sb-ext:process-wait process)
      (sb-ext:process-close process))))

(test the-flags-of-serve
  (with-greeter (program address "--metrics" "127.0.0.1:0" "--access-log" "--channelz"
                                 "--log-format" "json")
    (let ((lines (loop for line = (support:program-line program)
                       collect line
                       until (uiop:string-prefix-p "metrics at " line))))
      (is (find (format nil "channelz on ~A" address) lines :test #'string=))
      (grpc:with-channel (channel address)
        (greet channel "Ada"))
      (support:signal-program program sb-unix:sigterm)
      (is (search "\"event\":\"call\"" (last-lines program))))))

(test keywords-are-defaults-of-flags
  "The program sets 1,000 octets; a flag has priority."
  (flet ((longest (&rest arguments)
           (let ((program-arguments (apply #'script-arguments "greeter.lisp"
                                           "--listen" "127.0.0.1:0" arguments)))
             (support:call-with-program
              (lambda (program)
                (grpc:with-channel (channel (support:server-address program))
                  (handler-case (length (greet channel (make-string 2000 :initial-element #\a)))
                    (grpc:resource-exhausted () :refused))))
              sb-ext:*runtime-pathname* program-arguments))))
    (is (eq :refused (longest)))
    (is (= 2008 (longest "--max-receive-octets" "5000")))))

(test the-whole-command-line-is-taken
  "SB-EXT:*POSIX-ARGV* may be given unchanged; another list has no program's name."
  (flet ((code (argv arguments)
           (let* ((sb-ext:*posix-argv* argv)
                  (*standard-output* (make-broadcast-stream))
                  (*error-output* *standard-output*))
             (grpc:run-server '() :arguments arguments :exit nil))))
    (let ((argv (list "greeter" "--listne")))
      (is (= 2 (code argv argv))))
    (let ((argv (list "greeter" "--help")))
      (is (= 0 (code argv argv)))
      (is (= 0 (code argv (rest argv))))
      (is (= 2 (code argv (list "greeter" "--listne")))))))

(test wrong-command-lines
  (flet ((ended (&rest arguments)
           (multiple-value-bind (code lines)
               (support:run-to-end sb-ext:*runtime-pathname*
                                   (apply #'script-arguments "greeter.lisp" arguments))
             (list code (format nil "~{~A~%~}" lines)))))
    (destructuring-bind (code text) (ended "--listne" "127.0.0.1:0")
      (is (= 2 code))
      (is (search "there is no option --listne (is it --listen?)" text)))
    (destructuring-bind (code text) (ended "--register" "etcd://127.0.0.1:1/x")
      (is (= 2 code))
      (is (search "--register needs the system clgrpc-etcd/discovery" text)))
    (destructuring-bind (code text) (ended "--help")
      (is (= 0 code))
      (is (search "usage: " text)))
    (destructuring-bind (code text) (ended "--listen" "192.0.2.1:50051")
      (is (= 1 code))
      (is (search "192.0.2.1" text)))))
