;;;; TCP over both protocols: octets in both directions, several buffers, would-block, the end,
;;;; errors.

(in-package #:clgrpc.tests.os)

(defun listening-socket (host)
  "A socket that listens on a free port of HOST, or NIL if this machine has no such address."
  (let* ((address (os:make-address host 0))
         (socket (os:open-socket (os:address-family address))))
    (unless (os:failed-p socket)
      (os:set-socket-option socket os:+ipproto-tcp+ os:+tcp-nodelay+ 1)
      (cond ((or (os:failed-p (os:bind-socket socket address))
                 (os:failed-p (os:listen-socket socket 16)))
             (os:close-descriptor socket)
             nil)
            (t socket)))))

(defun call-with-pair (host function)
  "Call FUNCTION with two connected sockets, the accepted one second. Return false if HOST has
none."
  (let ((listener (listening-socket host)) (peer (make-octets os:+address-octets+)))
    (when listener
      (let* ((address (os:socket-address listener))
             (client (os:open-socket (os:address-family address))))
        (is (member (os:connect-socket client address) (list 0 (- os:+einprogress+))))
        (wait-readable listener)
        (let ((server (os:accept-socket listener peer)))
          (unwind-protect
               (progn
                 (is (string= (os:address-text (os:socket-address client)) (os:address-text peer)))
                 (funcall function client server))
            (mapc #'os:close-descriptor (list client server listener))
            t))))))

(defmacro with-pair ((client server &key (host "127.0.0.1")) &body body)
  `(call-with-pair ,host (lambda (,client ,server) ,@body)))

(defun receive-all (socket count)
  "Receive COUNT octets, waiting for them."
  (let ((octets (make-octets count)) (at 0))
    (loop while (< at count)
          do (let ((result (os:receive-octets socket octets at count)))
               (cond ((plusp result) (incf at result))
                     ((= result (- os:+eagain+)) (wait-readable socket))
                     (t (return)))))
    (subseq octets 0 at)))

(defun check-exchange (client server)
  (let ((octets (make-octets 100)) (in (make-octets 100)))
    (is (= (- os:+eagain+) (os:receive-octets server in 0 100)))
    (replace octets #(1 2 3 4 5))
    (is (= 3 (os:send-octets client octets 1 4)))
    (is (equalp #(2 3 4) (receive-all server 3)))
    (is (= 5 (os:send-octets server octets 0 5)))
    (is (equalp #(1 2 3 4 5) (receive-all client 5)))
    (is (= 0 (os:shutdown-output client)))
    (is (wait-readable server))
    (is (= 0 (os:receive-octets server in 0 100)))))

(test exchange-v4
  (is-true (with-pair (client server) (check-exchange client server))))

(test exchange-v6
  (or (with-pair (client server :host "::1") (check-exchange client server))
      (support:skip-test "this machine has no IPv6")))

(test octets-that-collections-held-in-place
  ;; the collector may have protected their pages
  (with-pair (client server)
    (let ((octets (make-octets 70000)) (sent (octets-of 1 2 3)))
      (sb-sys:with-pinned-objects (octets)
        (dotimes (generation 3)
          (sb-ext:gc :gen generation)
          (dolist (at '(0 40000 69997))
            (is (= 3 (os:send-octets client sent 0 3)))
            (is-true (wait-readable server))
            (is (= 3 (os:receive-octets server octets at (+ at 3))))
            (is (equalp sent (subseq octets at (+ at 3))))))))))

(test sending-blocks
  (with-pair (client server)
    (let ((octets (make-octets 1000000)) (total 0))
      (is (= (- os:+eagain+)
             (loop for result = (os:send-octets client octets 0 1000000)
                   while (plusp result)
                   do (incf total result)
                   finally (return result))))
      (is (plusp total))
      (is (= total (length (receive-all server total)))))))

(test sending-to-nobody
  ;; an error, and no signal
  (with-pair (client server)
    (declare (ignore server))
    (os:shutdown-output client)
    (is (= (- os:+epipe+) (os:send-octets client (octets-of 1) 0 1)))))

(test socket-addresses
  (with-pair (client server)
    (is (equalp (os:peer-address client) (os:socket-address server))))
  (is-false (os:socket-address -1)))

(test bounds-are-checked
  (with-pair (client server)
    (declare (ignore server))
    (signals error (os:send-octets client (make-octets 4) 0 5))
    (signals error (os:receive-octets client (make-octets 4) 3 2))))

(test socket-options
  (with-pair (client server)
    (is (= 0 (os:socket-option client os:+sol-socket+ os:+so-error+)))
    (is (= 0 (os:socket-option client os:+ipproto-tcp+ os:+tcp-nodelay+)))
    (is (= 1 (os:socket-option server os:+ipproto-tcp+ os:+tcp-nodelay+)) "inherited")
    (is (= 0 (os:set-socket-option client os:+ipproto-tcp+ os:+tcp-nodelay+ 1)))
    (is (= 1 (os:socket-option client os:+ipproto-tcp+ os:+tcp-nodelay+))))
  (is (= (- os:+ebadf+) (os:socket-option -1 os:+sol-socket+ os:+so-error+))))

(test connection-refused
  (let* ((listener (listening-socket "127.0.0.1"))
         (address (os:socket-address listener))
         (client (os:open-socket (os:address-family (os:make-address "127.0.0.1" 0)))))
    (os:close-descriptor listener)
    (let ((result (os:connect-socket client address)))
      (when (= result (- os:+einprogress+))
        (wait-readable client)
        (setf result (- (os:socket-option client os:+sol-socket+ os:+so-error+))))
      (is (= (- os:+econnrefused+) result)))
    (os:close-descriptor client)))

(test descriptors-are-counted
  (let ((before (os:open-descriptor-count))
        (socket (os:open-socket (os:address-family (os:make-address "127.0.0.1" 0)))))
    (is (= (1+ before) (os:open-descriptor-count)))
    (is (member socket (os:open-descriptors)))
    (os:close-descriptor socket)
    (is (= before (os:open-descriptor-count)))
    (is (= (1+ before) (os:open-descriptor-count (sb-unix:unix-getpid))) "the listing needs one")
    (is (= 0 (os:open-descriptor-count 0)) "there is no such process")))

(test descriptors-are-counted-while-others-close-some
  "A server counts them when it starts, and other threads close theirs meanwhile."
  (let* ((before (os:open-descriptor-count))
         (family (os:address-family (os:make-address "127.0.0.1" 0)))
         (done nil)
         (other (in-thread (loop until done
                                 do (mapc #'os:close-descriptor
                                          (loop repeat 50 collect (os:open-socket family)))))))
    (unwind-protect (is (<= before (loop repeat 2000 minimize (os:open-descriptor-count))))
      (setf done t)
      (sb-thread:join-thread other))
    (is (= before (os:open-descriptor-count)))))

(test octets-move-without-allocating
  (with-pair (client server)
    (let ((octets (make-octets 1000)))
      (flet ((work ()
               (dotimes (i 500)
                 (os:send-octets client octets 0 1000)
                 (os:receive-octets server octets 0 1000))))
        (work)
        (is (> 1000 (loop repeat 3      ; other threads may allocate meanwhile
                          minimize (let ((before (sb-ext:get-bytes-consed)))
                                     (work)
                                     (- (sb-ext:get-bytes-consed) before)))))))))

(defun closed-on-exec-p (descriptor)
  "True if DESCRIPTOR is closed in programs that this process runs: O_CLOEXEC of its flags."
  (with-open-file (stream (format nil "/proc/self/fdinfo/~D" descriptor))
    (loop for line = (read-line stream)
          when (eql 0 (search "flags:" line))
            return (logtest #o2000000 (parse-integer line :start 6 :radix 8)))))

(test sockets-do-not-live-on-in-programs
  (let ((socket (os:open-socket (os:address-family (os:make-address "127.0.0.1" 0)))))
    (unwind-protect (is-true (closed-on-exec-p socket))
      (os:close-descriptor socket))))
