;;;; The machine is the world of all threads outside of simulated worlds (world.lisp): its network
;;;; is the kernel's sockets and the system's resolver.

(in-package #:clgrpc.loop)

(defun open-by-kernel (family)
  "The machine's NETWORK-OPEN."
  (let ((socket (os:open-socket family)))
    (unless (or (os:failed-p socket) (= family os:+af-unix+))
      (os:set-socket-option socket os:+ipproto-tcp+ os:+tcp-nodelay+ 1))
    socket))

(defun failure-by-kernel (socket)
  "The machine's NETWORK-FAILURE."
  (os:socket-option socket os:+sol-socket+ os:+so-error+))

(defun listen-by-kernel (address options)
  "The machine's NETWORK-LISTEN."
  (let ((socket (os:open-socket (os:address-family address)))
        (unix (= os:+af-unix+ (os:address-family address))))
    (flet ((must (result)
             (when (os:failed-p result)
               (unless (os:failed-p socket) (os:close-descriptor socket))
               (return-from listen-by-kernel result))))
      (must socket)
      (cond (unix (must (bind-unix-socket socket address (options-unix-socket-mode options))))
            (t (must (os:set-socket-option socket os:+sol-socket+ os:+so-reuseaddr+ 1))
               (must (os:set-socket-option socket os:+ipproto-tcp+ os:+tcp-nodelay+ 1))
               (when (options-reuse-port options)
                 (must (os:set-socket-option socket os:+sol-socket+ os:+so-reuseport+ 1)))
               (must (os:bind-socket socket address))))
      (must (os:listen-socket socket (options-backlog options))))
    socket))

(defun retire-by-kernel (socket)
  "The machine's NETWORK-RETIRE. The kernel resets a connection that arrives at a socket after its
last accept and before it is closed. If several sockets share the port, drop the packets of such a
connection instead. The peer then sends them again, and another socket gets the connection."
  (unless (eql 0 (os:socket-option socket os:+sol-socket+ os:+so-reuseport+))
    (os:drop-new-connections socket)))

(defun limit-silence-by-kernel (socket seconds)
  "The machine's NETWORK-LIMIT-SILENCE. Sockets that are not TCP sockets refuse the option. They do
not need it, because their octets always arrive."
  (os:set-socket-option socket os:+ipproto-tcp+ os:+tcp-user-timeout+
                        (min #x7FFFFFFF (ceiling (* 1000 seconds)))))

;;; The world

(define-hot machine-ns () nanoseconds
  "The machine's WORLD-CLOCK."
  (declare (inline monotonic-ns))
  (monotonic-ns))

(setf *world*
      (make-world
       :clock #'machine-ns
       :make-poller 'make-poller-by-default
       ;; making a random state opens a file, which would stay open if the thread were unwound
       :make-random (lambda () (sb-sys:without-interrupts (sb-ext:seed-random-state t)))
       ;; functions by name, since tests replace functions of clgrpc.os for a while
       :network (make-network :open 'open-by-kernel :connect 'os:connect-socket
                              :failure 'failure-by-kernel :listen 'listen-by-kernel
                              :accept 'os:accept-socket :retire 'retire-by-kernel
                              :local-address 'os:socket-address
                              :close 'os:close-descriptor :byte-channel 'make-tcp-byte-channel
                              :limit-silence 'limit-silence-by-kernel
                              :open-datagram 'os:open-datagram-socket :send 'os:send-octets
                              :receive 'os:receive-octets
                              :resolve 'os:resolve-host)))
