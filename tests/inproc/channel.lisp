;;;; Channels by name and by server: their states, their servers' ends, their options.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(defun server-at (address &rest handlers)
  (start-probe handlers :listen address))

(test channels-by-name
  "The name is looked up when a call is made; the server may come later, and another after it."
  (let ((channel (grpc:make-channel "inproc:channels-by-name")))
    (unwind-protect
         (flet ((try () (status-of-error (caught (ask channel (note 1))))))
           (is (eq :unavailable (try)))
           (signals grpc:unavailable (grpc:ensure-connected channel))
           (dotimes (i 2)
             (let ((server (server-at "inproc:channels-by-name" :ask #'double)))
               (unwind-protect
                    (progn
                      (is (equal '("inproc:channels-by-name") (grpc:server-addresses server)))
                      (is (eq channel (grpc:ensure-connected channel)))
                      (is (= 2 (number-of (ask channel (note 1)))))
                      (signals grpc:misuse (server-at "inproc:channels-by-name" :ask #'double)))
                 (grpc:stop-server server)))
             (is (eq :unavailable (try)))))
      (grpc:close-channel channel))))

(test several-entrances
  "A server may listen on names and on ports."
  (let ((server (start-probe (list :ask #'double)
                             :listen '("inproc:one" "127.0.0.1:0" "inproc:two"))))
    (unwind-protect
         (progn
           (is (find "inproc:one" (grpc:server-addresses server) :test #'string=))
           (dolist (target (list* "inproc:two" (grpc:server-addresses server)))
             (grpc:with-channel (channel target)
               (is (= 4 (number-of (ask channel (note 2))))))))
      (is-true (grpc:stop-server server)))))

(test states-of-channels
  (with-inproc (channel) (:ask #'double :chat #'echo)
    (is (eq :ready (grpc:channel-state channel)))
    (is (search "ready" (princ-to-string channel)))
    (is (null (grpc:wait-for-state-change channel :ready :timeout 0.01)))
    (let ((call (chat channel :open)))
      (grpc:send call (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (grpc:close-channel channel)
      (is (eq :cancelled (status-of-error (caught (grpc:receive call))))))
    (is (eq :shutdown (grpc:channel-state channel)))
    (is (eq :shutdown (grpc:wait-for-state-change channel :ready)))
    (grpc:close-channel channel)
    (signals grpc:misuse (ask channel (note 1)))
    (signals grpc:misuse (grpc:ensure-connected channel))))

(test options-of-channels
  (with-inproc (channel :server server) (:ask #'double)
    (dolist (wrong '((:messages :move) (:on 5) (:max-send-octets -1) (:no-such 1)
                     (:compression :lzma) (:interceptors 5)))
      (signals grpc:misuse (apply #'grpc:server-channel server wrong)))
    (signals grpc:misuse (grpc:make-channel "inproc:"))
    (let ((channel (grpc:server-channel
                    server :interceptors
                    (list (lambda (method request options next)
                            (declare (ignore method))
                            (funcall next (note (1+ (number-of request))) options))))))
      (is (= 4 (number-of (ask channel (note 1)))))
      (grpc:close-channel channel))))

(defun call-with-loop (attended function)
  "Call FUNCTION with a loop that runs, with a thread of its own unless it is ATTENDED."
  (let* ((reserve (loop:make-reserve))
         (event-loop (loop:make-event-loop :name "handlers" :reserve reserve
                                           :caller-driven attended)))
    (loop:launch-event-loop event-loop)
    (unwind-protect (funcall function event-loop)
      (loop:stop-event-loop event-loop)
      (loop:join-event-loop event-loop)
      (loop:close-reserve reserve 5))))

(test handlers-on-a-loop
  "One at a time, in the order of their calls, wherever they come from."
  (dolist (attended '(t nil))
    (call-with-loop
     attended
     (lambda (event-loop)
       (let ((running 0) (most 0))
         (with-inproc (channel :channel-options (list :on event-loop))
             (:ask (lambda (note call)
                     (declare (ignore call))
                     (setf most (max most (incf running)))
                     (decf running)
                     note)
              :watch #'count-up :collect #'add-up :chat #'echo)
           (check-loop-calls channel)
           (is (= 1 most))))))))

(defun check-loop-calls (channel)
  (is (= 1 (number-of (ask channel (note 1)))))
  (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
  (is (equal '(0 1) (numbers (chat channel (list (note 0) (note 1))))))
  (is (= 3 (number-of (collect channel (list (note 1) (note 2))))))
  (grpc:with-call (call (watch channel (note 2)))
    (is (= 0 (number-of (grpc:receive call)))))
  (is (every #'zerop
             (call-with-threads
              4 (lambda (i)
                  (loop repeat 100
                        count (/= i (number-of (ask channel (note i))))))))))

(test drivers-that-lose-their-loop
  "A caller whose handler overstays on the loop that it drives is overtaken; calls go on."
  (call-with-loop
   t
   (lambda (event-loop)
     (with-inproc (channel :channel-options (list :on event-loop))
         (:ask (lambda (note call)
                 (when (plusp (number-of note))
                   (let ((end (+ (monotonic-ns) 50000000)))
                     (wait-until (lambda () (> (monotonic-ns) end)))))
                 (when call note)))
       (dotimes (i 4)
         (is (= (mod i 2) (number-of (ask channel (note (mod i 2)))))))))))

(test timers-end-with-their-calls
  (let ((ran nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (grpc:after call 3600 (lambda () (setf ran t)))
                (grpc:after call 0.001 (lambda () (grpc:reply call note)))
                call))
      (is (= 1 (number-of (ask channel (note 1)))))
      (is (null ran)))))

(test too-many-calls
  "Of those that do not run on their callers' threads."
  (with-inproc (channel :options '(:max-calls 2)) (:chat #'echo)
    (let ((calls (loop repeat 3 collect (chat channel :open))))
      (flet ((try (call)
               (handler-case (progn (grpc:send call (note 1)) (number-of (grpc:receive call)))
                 (grpc:rpc-error (error) (status-of-error error)))))
        (is (equal '(1 1 :resource-exhausted) (mapcar #'try calls))))
      (mapc #'grpc:cancel calls))))

(test inproc-is-among-the-schemes
  (handler-case (grpc:make-channel "https://example.com")
    (grpc:misuse (misuse) (is (search "inproc" (princ-to-string misuse))))
    (:no-error (channel)
      (grpc:close-channel channel)
      (fail "there is no scheme https"))))
