;;;; Servers and clients for users: addresses, pipes, TLS, several loops, what can go wrong.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

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

(test pipes
  (with-directory (directory)
    (let ((path (merge-pathnames "100%.sock" directory)))
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
