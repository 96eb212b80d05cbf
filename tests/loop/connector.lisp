;;;; Connecting: success, refusal, time-out, names, and a loop that stops meanwhile. The owner is
;;;; called exactly once.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

(defun connect-and-wait (loop host port &key (seconds 10))
  "Connect; return the transport and the condition."
  (let ((done (sb-thread:make-semaphore)) (answers '()))
    (connect-to loop host port (seconds-ns seconds)
                (lambda (transport condition)
                  (push (list transport condition (in-event-loop-p loop)) answers)
                  (when transport (close-transport transport))
                  (sb-thread:signal-semaphore done)))
    (is-true (await done))
    (settle loop)
    (is (= 1 (length answers)))
    (is-true (third (first answers)) "not on the loop")
    (values-list (first answers))))

(defun port-of (listener)
  (nth-value 1 (os:parse-address (listener-address listener))))

(defun closed-port ()
  "A port on which nobody listens."
  (let ((socket (os:open-socket os:+af-inet+)))
    (os:bind-socket socket (os:make-address "127.0.0.1" 0))
    (prog1 (os:address-port (os:socket-address socket))
      (os:close-descriptor socket))))

(test connecting
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo))))
      (dolist (host '("127.0.0.1" "localhost"))
        (multiple-value-bind (transport condition) (connect-and-wait loop host (port-of listener))
          (is-false condition)
          (is (string= (listener-address listener) (transport-peer transport))))))))

(test connected-transport-carries-octets
  (with-loops (loop other) ()
    (let ((listener (listen-with (list other) (make-handler :input #'echo)))
          (done (sb-thread:make-semaphore)) (got nil) (no-delay nil))
      (connect-to loop "127.0.0.1" (port-of listener) (seconds-ns 10)
                  (lambda (transport condition)
                    (declare (ignore condition))
                    (let ((connection
                            (make-connection
                             loop transport
                             (make-handler :input (lambda (connection octets start end)
                                                    (declare (ignore connection))
                                                    (setf got (subseq octets start end))
                                                    (sb-thread:signal-semaphore done)
                                                    end)))))
                      (setf no-delay (os:socket-option (transport-descriptor transport)
                                                       os:+ipproto-tcp+ os:+tcp-nodelay+))
                      (append-octets (connection-output connection) (octets-of 1 2 3)))))
      (is-true (await done))
      (is (= 1 no-delay))
      (is (equalp #(1 2 3) got)))))

(test connection-is-refused
  (with-loops (loop) ()
    (dolist (host '("127.0.0.1" "localhost"))
      (let ((port (closed-port)))
        (multiple-value-bind (transport condition) (connect-and-wait loop host port)
          (is-false transport)
          (is (typep condition 'connect-error))
          (is (search "refused" (princ-to-string condition)))
          (is (search (format nil "~A:~D" host port) (princ-to-string condition))))))))

(test connecting-takes-too-long
  ;; a listener whose queue is full does not answer
  (with-loops (loop) ()
    (let ((listener (os:open-socket os:+af-inet+)) (fillers '()))
      (os:bind-socket listener (os:make-address "127.0.0.1" 0))
      (os:listen-socket listener 0)
      (let ((address (os:socket-address listener)))
        (unwind-protect
             (progn
               (dotimes (i 4)
                 (push (os:open-socket os:+af-inet+) fillers)
                 (os:connect-socket (first fillers) address))
               (multiple-value-bind (transport condition)
                   (connect-and-wait loop "127.0.0.1" (os:address-port address) :seconds 0.05)
                 (is-false transport)
                 (is (search "in time" (princ-to-string condition)))))
          (mapc #'os:close-descriptor (cons listener fillers)))))))

(test connecting-to-a-name
  ;; whatever this machine calls itself; its resolver may know it or not
  (with-loops (loop) ()
    (multiple-value-bind (transport condition)
        (connect-and-wait loop (machine-instance) (closed-port) :seconds 2)
      (is-false transport)
      (is (typep condition 'connect-error)))))

(test stopping-while-connecting
  (let ((answers '()))
    (with-loops (loop) ()
      (let ((held (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
        (post loop (lambda () (sb-thread:signal-semaphore held) (await release)))
        (await held)
        (connect-to loop "127.0.0.1" (closed-port) (seconds-ns 10)
                    (lambda (transport condition) (push (list transport condition) answers)))
        (stop-event-loop loop)
        (sb-thread:signal-semaphore release)
        (is-true (join-event-loop loop))))
    (is (= 1 (length answers)))
    (is (typep (second (first answers)) 'connect-error))))

(test connect-function-that-fails
  (with-events (events)
    (with-loops (loop) ()
      (let ((listener (listen-with (list loop) (make-handler :input #'echo)))
            (called (sb-thread:make-semaphore)))
        (connect-to loop "127.0.0.1" (port-of listener) (seconds-ns 10)
                    (lambda (transport condition)
                      (declare (ignore transport condition))
                      (sb-thread:signal-semaphore called)
                      (error "broken")))
        (is-true (await called))
        (settle loop)
        (check-gone loop)))
    (is (equal '(:connect-function-error) (mapcar #'second (events))))))
