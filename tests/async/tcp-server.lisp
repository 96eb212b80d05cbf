;;;; Servers and clients for users: addresses, pipes, TLS, several loops, what can go wrong.

(in-package #:clgrpc.tests.async)

(defun push-safely (item cell)
  (sb-ext:atomic-push item (car cell)))

(defun ask-once (server)
  "A callback that closes its socket and SERVER, which echoes, when x has been answered."
  (lambda (socket octets)
    (is (equalp #(120) octets))
    (close-socket socket)
    (close-tcp-server server)))

(test addresses-of-servers
  (with-program ()
    (let ((any (tcp-server nil 0 #'list))
          (one (tcp-server "127.0.0.1" 0 #'list))
          (six (tcp-server "::1" 0 #'list)))
      (is (eql 0 (search "0.0.0.0:" (server-address any))))
      (is (eql 0 (search "[::1]:" (server-address six))))
      (is (string= (format nil "127.0.0.1:~D" (server-port one)) (server-address one)))
      (is (search (server-address one) (princ-to-string one)))
      (signals socket-address-in-use (tcp-server "127.0.0.1" (server-port one) #'list))
      (signals misuse (tcp-server "127.0.0.1" 65536 #'list))
      (dolist (server (list any one six))
        (is-false (tcp-server-closed server))
        (close-socket-server server)
        (close-tcp-server server)
        (is-true (tcp-server-closed server))))))

(test the-event-callback-may-stand-fourth
  (let ((told '()))
    (with-program ()
      (let ((server (tcp-server "127.0.0.1" 0 #'write-back
                                (lambda (event) (push (type-of event) told)))))
        (tcp-connect "127.0.0.1" (server-port server) (ask-once server)
                     (lambda (event) (push (type-of event) told))
                     :data "x")))
    (is (equal '(socket-eof) told))))

(test refused-connections
  (let ((told '()))
    (with-program ()
      (let* ((server (tcp-server "127.0.0.1" 0 #'list))
             (port (server-port server)))
        (close-tcp-server server)
        (tcp-connect "127.0.0.1" port #'list
                     :data "x"
                     :connect-cb (lambda (socket) (push socket told))
                     :event-cb (lambda (event)
                                 (push (type-of event) told)
                                 (is-true (socket-closed-p (socket event)))))
        ;; closed before it is connected
        (close-socket (tcp-connect "127.0.0.1" port #'list
                                   :event-cb (lambda (event) (push event told))))))
    (is (equal '(socket-refused) told))))

(test connect-time-outs-of-no-time
  "A wrong time-out is an error of the call, after which the loop does not wait for a connection.
Nil means no time-out."
  (with-program ()
    (signals misuse (tcp-connect "127.0.0.1" 1 #'list :connect-timeout -1))
    (is (= 0 (getf (stats) :uses)))
    (exit-event-loop))
  (let ((received nil))
    (with-program ()
      (let ((server (tcp-server "127.0.0.1" 0 #'write-back)))
        (tcp-connect "127.0.0.1" (server-port server)
                     (lambda (socket octets)
                       (setf received octets)
                       (close-socket socket)
                       (close-tcp-server server))
                     :data "x" :connect-timeout nil
                     :event-cb (lambda (event)
                                 (declare (ignore event))
                                 (close-tcp-server server)))))
    (is (equalp #(120) received))))

(test pipes
  (support:with-folder (folder)
    (let ((path (merge-pathnames "100%.sock" folder)))
      (with-program ()
        (let ((server (pipe-server path #'write-back)))
          (is-true (probe-file path))
          (pipe-connect (uiop:native-namestring path) (ask-once server) :data "x")))
      (is-false (probe-file path))
      (let ((told '()))
        (with-program ()
          (pipe-connect path #'list :event-cb (lambda (event) (push event told))))
        (is (typep (first told) 'connect-error))))))

(test sockets-dealt-to-several-loops
  (with-loops (a b) ()
    (let* ((seen (list '()))
           (server (tcp-server "127.0.0.1" 0
                               (lambda (socket octets)
                                 (push-safely *event-loop* seen)
                                 (write-socket-data socket octets))
                               :loops (list a b)))
           (left 4))
      (with-event-loop ()
        (dotimes (i 4)
          (tcp-connect "127.0.0.1" (server-port server)
                       (lambda (socket octets)
                         (is (equalp #(120) octets))
                         (when (zerop (decf left)) (close-tcp-server server))
                         (delay (lambda () (close-socket socket)) :time 0.02))
                       :data "x")))
      (is (= 2 (length (remove-duplicates (car seen))))))))

;;; TLS

(defun alpn-free-server (&rest arguments)
  (apply #'server-credentials :alpn nil arguments))

(test sockets-over-tls
  (let ((sessions (os:tls-session-count)))
    (dolist (alpn '(nil t))
      (with-program ()
        (let ((server (tcp-server "127.0.0.1" 0 #'write-back
                                  :tls (server-credentials :alpn alpn)))
              (received 0))
          (tcp-connect "127.0.0.1" (server-port server)
                       (lambda (socket octets)
                         (when (= 100000 (incf received (length octets)))
                           (close-socket socket)
                           (close-tcp-server server)))
                       :data (pattern 100000)
                       :tls (client-credentials :server-name "localhost" :alpn alpn)))))
    (is (= sessions (os:tls-session-count)))))

(test the-server-speaks-first-over-tls
  (with-program ()
    (let ((server (tcp-server "127.0.0.1" 0 #'list
                              :tls (alpn-free-server)
                              :connect-cb (lambda (socket)
                                            (write-socket-data socket "hello")
                                            (close-socket socket)))))
      (tcp-connect "127.0.0.1" (server-port server)
                   (lambda (socket octets)
                     (is (string= "hello" (octets-string octets)))
                     (close-socket socket)
                     (close-tcp-server server))
                   :tls (client-credentials :server-name "localhost" :alpn nil)))))

(test failed-handshakes-are-told
  (let ((told '()))
    (with-program ()
      (let ((server (tcp-server "127.0.0.1" 0 #'write-back
                                :tls (alpn-free-server)
                                :event-cb (lambda (event)
                                            (push (list :server (type-of event)) told)))))
        ;; whom the system trusts is not whom the test does
        (tcp-connect "127.0.0.1" (server-port server) #'list :data "x" :tls t
                     :event-cb (lambda (event)
                                 (push (list :client (type-of event)) told)
                                 (is (search "certificate" (princ-to-string event)))
                                 (close-tcp-server server)))
        (signals misuse (tcp-server "127.0.0.1" 0 #'list :tls (client-credentials)))
        (signals misuse (tcp-server "127.0.0.1" 0 #'list :streem t))))
    (is (null (set-exclusive-or '((:server socket-error) (:client socket-error)) told
                                :test #'equal)))))
