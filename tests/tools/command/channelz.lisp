;;;; `channelz` and `top`, against servers of this process.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(defun call-with-channelz-server (function)
  "Call FUNCTION with the address of a server of the greeter and of channelz, which has greeted
once, and the channel that it was called on."
  (let ((server (grpc:start-server (list (make-instance 'clgrpc.examples:greeter)
                                         (make-instance 'grpc:channelz-service)))))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                         :timeout 10)
           (funcall function (grpc:server-address server) channel))
      (grpc:stop-server server :drain 0))))

(defun id-in-line (output text)
  "The number with which the line of OUTPUT begins that has TEXT, or nil."
  (with-input-from-string (stream output)
    (loop for line = (read-line stream nil)
          while line
          when (search text line)
            do (let ((number (parse-integer line :junk-allowed t)))
                 (when number (return (princ-to-string number)))))))

(test channelz-shows-what-there-is
  (call-with-channelz-server
   (lambda (address channel)
     (declare (ignore channel))
     (flet ((show (&rest arguments)
              (multiple-value-bind (code output) (apply #'run-line "channelz" address arguments)
                (is (= 0 code) "~S: ~A" arguments output)
                output)))
       (let* ((all (show))
              (server (id-in-line (show "servers") address))
              (channel (id-in-line (show "channels") address)))
         (is (search "servers:" all))
         (is (search "channels:" all))
         (is (search "listening on" (show "server" server)))
         (let* ((shown (show "channel" channel))
                (subchannel (id-in-line (subseq shown (search "subchannels:" shown)) "READY")))
           (is (search "state changed from CONNECTING to READY" shown))
           (let* ((shown (show "subchannel" subchannel))
                  (socket (id-in-line (subseq shown (search "sockets:" shown)) address)))
             (is (search "TCP_INFO" (show "socket" socket)))
             (is (search "1 started" (show "socket" socket)))))
         (is (id-in-line (show "sockets" server) address))
         (is (eql 0 (search "{" (show "server" server "--json")))))))))

(test channelz-says-what-is-wrong
  (call-with-channelz-server
   (lambda (address channel)
     (declare (ignore channel))
     (dolist (arguments '(("nothing") ("channel") ("channel" "x") ("servers" "1")))
       (is (= 2 (apply #'run-line "channelz" address arguments)) "~S" arguments))
     (is (= 1 (run-line "channelz" address "socket" "1000000000"))))))

(test top-in-a-pipe
  (call-with-channelz-server
   (lambda (address channel)
     (declare (ignore channel))
     (multiple-value-bind (code output) (run-line "top" address "--once" "--interval" "0.1")
       (is (= 0 code))
       (is (search "CALLS/S" output))
       (is (search "server" output))
       (is (search address output))))))

(test top-tells-rates
  (flet ((look (seconds started failed)
           (tools::make-look :ns (* seconds 1000000000)
                             :readings (list (tools::make-reading
                                              :kind "server" :number 7 :name "x"
                                              :started started :failed failed
                                              :succeeded (- started failed 1))))))
    (let ((row (first (tools::look-rows (look 3 120 10) (look 1 100 4)))))
      (is (equal '("server" 7 "10.0" "3.0" 1 120 10) (subseq row 0 7))))
    (is (string= "-" (third (first (tools::look-rows (look 3 120 10) nil)))))))

(test serve-channelz
  (with-serve (program address "greeter" "--channelz")
    (is (string= (format nil "channelz on ~A" address) (support:program-line program)))
    (multiple-value-bind (code output) (run-line "channelz" address "servers")
      (is (= 0 code))
      (is (search address output)))))
