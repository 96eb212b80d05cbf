;;;; Unix sockets: files that are made, kept, replaced and removed, and their modes.

(in-package #:clgrpc.tests.loop)

(defun connect-once (loop target &key (seconds 10))
  "Connect to TARGET; return the peer's address of the byte channel, or the condition's text."
  (let ((done (sb-thread:make-semaphore)) (answer nil))
    (connect-to loop target (seconds-ns seconds)
                (lambda (byte-channel condition)
                  (setf answer (if byte-channel
                                   (byte-channel-peer byte-channel)
                                   (princ-to-string condition)))
                  (when byte-channel (close-byte-channel byte-channel))
                  (sb-thread:signal-semaphore done)))
    (is-true (await done))
    answer))

(defun file-mode (path)
  (logand #o777 (sb-posix:stat-mode (sb-posix:stat path))))

(test unix-listeners
  (support:with-folder (folder)
    (with-loops (loop) ()
      (let* ((path (format nil "~Aa.sock" folder))
             (target (format nil "unix:~A" path))
             (listener (listen-with (list loop) (make-handler :input #'echo) :address target)))
        (is (string= target (listener-address listener)))
        (is (= #o600 (file-mode path)))
        (is (string= target (connect-once loop target)))
        (is (string= target (connect-once loop (format nil "unix://~A" path))))
        (close-listener listener)
        (settle loop)
        (is (null (probe-file path)) "its file stays")
        (is (search "No such file" (connect-once loop target)))))))

(test unix-file-modes
  "The file of a unix socket has the mode of the option. The socket gets it before it is bound, so
that the file is made with it."
  (support:with-folder (folder)
    (with-loops (loop) ()
      (dolist (mode '(#o666 #o660 #o600 0))
        (let* ((path (format nil "~A~O.sock" folder mode))
               (listener (listen-with (list loop) (make-handler :input #'echo)
                                      :address (format nil "unix:~A" path)
                                      :options (make-server-options :unix-socket-mode mode))))
          (is (= mode (file-mode path)))
          (is (= mode (logand #o777 (sb-posix:stat-mode
                                     (sb-posix:fstat (loop::listener-socket listener)))))))))))

(test abandoned-unix-files-are-replaced
  (support:with-folder (folder)
    (with-loops (loop) ()
      (let* ((path (format nil "~Aa.sock" folder))
             (target (format nil "unix:~A" path))
             (dead (os:open-socket os:+af-unix+)))
        ;; what a server that was killed leaves
        (os:bind-socket dead (os:make-unix-address (string-octets path)))
        (os:close-descriptor dead)
        (is-true (probe-file path))
        (let ((descriptors (os:open-descriptor-count))
              (listener (listen-with (list loop) (make-handler :input #'echo) :address target)))
          (is (string= target (connect-once loop target)))
          ;; the socket of a running server is not replaced
          (let ((condition (nth-value 1 (ignore-errors
                                         (listen-with (list loop) (make-handler :input #'echo)
                                                      :address target)))))
            (is (typep condition 'socket-error))
            (is (search "in use" (princ-to-string condition))))
          (is (string= target (connect-once loop target)))
          (settle loop)
          (is-true (descriptors-become-p (1+ descriptors)))
          ;; a file that has taken the place of ours is not removed
          (delete-file path)
          (let ((other (os:open-socket os:+af-unix+)))
            (os:bind-socket other (os:make-unix-address (string-octets path)))
            (close-listener listener)
            (settle loop)
            (is-true (probe-file path))
            (os:close-descriptor other)))
        ;; a file that is not a socket is never removed
        (delete-file path)
        (with-open-file (stream path :direction :output) (write-line "precious" stream))
        (signals socket-error (listen-with (list loop) (make-handler :input #'echo)
                                           :address target))
        (is (string= "precious" (uiop:read-file-line path)))))))

(test abstract-unix-sockets
  (with-loops (loop) ()
    (let* ((target (format nil "unix-abstract:clgrpc%00~D"
                           (random (expt 2 60) (make-random-state t))))
           (listener (listen-with (list loop) (make-handler :input #'echo) :address target)))
      (is (string= target (listener-address listener)))
      (is (string= target (connect-once loop target)))
      (signals socket-error (listen-with (list loop) (make-handler :input #'echo) :address target))
      (close-listener listener)
      (settle loop)
      (is (search "refused" (connect-once loop target))))))

(test unix-sockets-carry-octets
  (support:with-folder (folder)
    (with-loops (loop other) ()
      (let* ((target (format nil "unix:~Aa.sock" folder))
             (listener (listen-with (list other) (make-handler :input #'echo) :address target))
             (done (sb-thread:make-semaphore)) (got 0))
        (is-true listener)
        (connect-to loop target (seconds-ns 10)
                    (fn (byte-channel _condition)
                      (let ((connection
                              (make-connection
                               loop byte-channel
                               (make-handler :input (fn (_connection _octets start end)
                                                      (when (= 500000 (incf got (- end start)))
                                                        (sb-thread:signal-semaphore done))
                                                      end)))))
                        (append-octets (connection-output connection) (make-octets 500000)))))
        (is-true (await done))
        (is (= 500000 got))))))
