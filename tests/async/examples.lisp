;;;; The examples of users of the loop, run.

(in-package #:clgrpc.tests.async)

(test delayed-answers
  (let* ((answers '())
         (output
           (with-output-to-string (*standard-output*)
             (clgrpc.examples.delayed-answer:run
              :port 0 :request-delay 0.05 :requests 20 :report 0.1
              :on-start (lambda (server)
                          (dotimes (i 20)
                            (tcp-connect "127.0.0.1" (server-port server)
                                         (fn (_socket octets) (push (octets-string octets) answers))
                                         :data (format nil "GET /~%~%"))))))))
    (is (= 20 (length answers)))
    (is (every (lambda (answer) (search "later" answer)) answers))
    (is (search "answered: 20 of 20" output))))

;;; Servers in threads of their own

(defun call-with-example (function run)
  "Have RUN, called with an ON-START, run a server; call FUNCTION with its address, and end it."
  (let* ((started (sb-thread:make-semaphore)) (server nil) (failure nil)
         (thread (sb-thread:make-thread
                  (lambda (&aux (*error-output* (make-broadcast-stream)))
                    (handler-case (funcall run (lambda (value)
                                                 (setf server value)
                                                 (sb-thread:signal-semaphore started)))
                      (error (error) (setf failure error)))))))
    (unwind-protect (if (await started)
                        (funcall function (server-address server))
                        (fail "it does not start: ~A" failure))
      (when server (exit-event-loop :loop (clgrpc.async::handle-loop server)))
      (sb-thread:join-thread thread :default nil))
    (is (null failure))))

(defmacro with-example ((address run &rest arguments) &body body)
  `(call-with-example (lambda (,address) ,@body)
                      (lambda (on-start) (funcall #',run ,@arguments :port 0 :on-start on-start))))

(test echo-server-example
  (with-example (address clgrpc.examples.echo-server:run)
    (with-clients (a b) (address)
      (dolist (client (list a b a))
        (client-send client (pattern 100000))
        (is (equalp (pattern 100000) (client-receive client 100000)))))))

(defun line-from (client)
  (let ((octets (loop for octet = (read-byte (client-stream client) nil)
                      while (and octet (/= octet 10))
                      collect octet)))
    (map 'string #'code-char octets)))

(defun send-line (client text)
  (client-send client (string-octets (format nil "~A~%" text))))

(test chat-server-example
  (with-example (address clgrpc.examples.chat-server:run)
    (with-clients (ada bob silent) (address)
      (dolist (client (list ada bob silent))
        (is (string= "Who are you?" (line-from client))))
      (send-line ada "Ada")
      (is (string= "* Ada has come" (line-from ada)))
      (client-send bob (string-octets "Bo"))
      (send-line bob "b")
      (is (string= "* Bob has come" (line-from bob)))
      (is (string= "* Bob has come" (line-from ada)))
      (send-line bob (format nil "hello~%you"))
      (is (string= "Bob: hello" (line-from ada)))
      (is (string= "Bob: you" (line-from ada)))
      (client-send silent (make-octets 2000))
      (is-true (client-ended-p silent))
      (close-client bob)
      (is (string= "* Bob has gone" (line-from ada))))))

(test proxy-example
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (loop:make-handler :input #'echo)))
          (total 4000000))
      (multiple-value-bind (host port) (os:parse-address (loop:listener-address listener))
        (with-example (address clgrpc.examples.proxy:run host port)
          (with-clients (client other) (address)
            ;; more than the proxy holds, and nobody reads at first
            (let ((writer (in-thread (client-send client (pattern total)))))
              (client-send other (octets-of 1 2 3))
              (is (equalp #(1 2 3) (client-receive other 3)))
              (is (equalp (pattern total) (client-receive client total)))
              (sb-thread:join-thread writer))
            (loop:close-listener listener)
            (on-loop loop (lambda ()
                            (loop for source across (clgrpc.loop::event-loop-sources loop)
                                  when (typep source 'loop:connection)
                                    do (loop:close-connection source))))
            (is-true (client-ended-p client))
            (is-true (client-ended-p other))))))))

(test proxy-to-nobody
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (loop:make-handler :input #'echo))))
      (multiple-value-bind (host port) (os:parse-address (loop:listener-address listener))
        (loop:close-listener listener)
        (settle loop)
        (with-example (address clgrpc.examples.proxy:run host port)
          (with-clients (client) (address)
            (is-true (client-ended-p client))))))))

(test the-verbs-load-alone
  "In a fresh Lisp, without gRPC, HTTP/2 or any other library."
  (let ((output (uiop:run-program
                 (list sb-ext:*runtime-pathname* "--noinform" "--non-interactive" "--no-sysinit"
                       "--no-userinit" "--load" (namestring (support:root-file "scripts/load.lisp"))
                       "--eval" "(asdf:load-system \"clgrpc-async\")"
                       "--eval" "(clgrpc.async:with-event-loop ()
                                   (clgrpc.async:delay
                                    (lambda ()
                                      (print (list :alone
                                                   (remove nil (mapcar #'find-package
                                                                       '(:clgrpc.http2 :clgrpc.rpc
                                                                         :alexandria :cffi)))))
                                      (terpri))
                                    :time 0.01))")
                 :output :string :error-output :output)))
    (is (search "(:ALONE NIL)" output) "~A" output)))
