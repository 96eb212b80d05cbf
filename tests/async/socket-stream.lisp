;;;; Sockets as Gray streams: what is read and written, lines, back-pressure, the end.

(in-package #:clgrpc.tests.async)

(defun text-of (octets)
  (octets-string (coerce octets 'octets)))

(test streams-are-read-and-written
  (let ((seen '()) (answer nil))
    (with-server (server (lambda (socket stream)
                           (is (eq socket (stream-socket stream)))
                           (is (eq stream (socket-stream socket)))
                           (is-true (listen stream))
                           (push (read-byte stream) seen)
                           (let ((octets (make-octets 10)))
                             (is (= 3 (read-sequence octets stream :end 3)))
                             (push (subseq octets 0 3) seen)
                             (is (= 2 (read-sequence octets stream)))) ; no more has come
                           (is (not (listen stream)))
                           (is (eq :none (read-byte stream nil :none)))
                           (signals end-of-file (read-byte stream))
                           (format stream "~D é~%" 42)
                           (write-byte 7 stream)
                           (write-sequence (octets-of 1 2 3 4) stream :start 1 :end 3)
                           (write-sequence "xyz" stream :start 2)
                           (close stream))
                         :stream t
                         :event-cb (lambda (event) (fail "~A" event)))
      (let ((stream (call server (fn (_socket stream)
                                   (setf answer (read-line stream))
                                   (push (loop for octet = (read-byte stream nil)
                                               while octet collect octet)
                                         seen))
                          :stream t :data "abcdef"
                          :event-cb (lambda (event)
                                      (is (typep event 'socket-eof))
                                      (close-tcp-server server)))))
        (is (typep stream 'async-io-stream))
        (is-true (open-stream-p stream))
        (is (search "0 octets unread" (princ-to-string stream)))))
    (is (equal "42 é" answer))
    (is (equalp (list 97 (octets-of 98 99 100) (list 7 2 3 122)) (reverse seen)))))

(test lines-come-whole
  "Whatever pieces the octets come in; what the peer has not ended is read after it has closed."
  (let ((lines '()) (rest nil))
    (with-server (server (fn (_socket stream)
                           (loop for line = (read-line stream nil)
                                 while line do (push line lines)))
                         :stream t
                         :event-cb (lambda (event)
                                     (let ((stream (socket-stream (tcp-socket event))))
                                       (is (not (open-stream-p stream)))
                                       (setf rest (multiple-value-list (read-line stream)))
                                       (is (null (read-line stream nil))))
                                     (close-tcp-server server)))
      (let* ((octets (string-octets (format nil "one~%zwölf~%~%open é")))
             (at 0)
             (socket (call server #'list))
             (writer nil))
        (setf writer (with-interval (0.001)
                       (cond ((< at (length octets))
                              (write-socket-data socket octets :start at :end (incf at)))
                             (t (cancel writer)
                                (close-socket socket)))))))
    (is (equal '("one" "zwölf" "") (reverse lines)))
    (is (equal '("open é" t) rest))))

(test lines-are-searched-once
  "Octets that come one by one are not all searched each time for the end of their line."
  (with-program ()
    (let* ((socket (as::%make-socket :loop *event-loop* :settings (as::make-socket-settings)))
           (stream (make-instance 'async-io-stream :socket socket))
           (buffer (make-buffer)))
      (setf (as::stream-unread stream) buffer)
      (flet ((time-ns (function)
               (let ((begun (thread-time-ns)))
                 (dotimes (i 10000)
                   (append-octet buffer 97)
                   (funcall function stream))
                 (- (thread-time-ns) begun))))
        (let ((looking (time-ns #'listen)) (reading (time-ns (lambda (stream)
                                                                (read-line stream nil)))))
          (is (< reading (* 300 looking)) "~D ns to look, ~D to read" looking reading)))
      (append-octet buffer 10)
      (append-octet buffer 98)
      (is (= 20000 (length (read-line stream))))
      (append-octet buffer 10)
      (is (equal "b" (read-line stream)))
      (is (null (read-line stream nil))))))

(test unread-streams-hold-their-peer-up
  "What nobody reads stops at the high-water mark, and goes on when it is read."
  (let ((most 0) (total 0) (turns 0) (size 400000))
    (with-server (server nil
                         :stream t :high-water 10000 :low-water 100
                         :connect-cb
                         (lambda (socket)
                           (let ((stream (socket-stream socket)) (octets (make-octets 5000)))
                             (with-interval (0.001)
                               (when (< 5 (incf turns))
                                 (setf most (max most (clgrpc.async::unread-octets stream)))
                                 (incf total (read-sequence octets stream))
                                 (when (= total size) (exit-event-loop)))))))
      (call server #'list :data (make-octets size)))
    (is (= size total))
    ;; the mark, and one read of the loop
    (is (< 10000 most (+ 10000 clgrpc.loop::+read-octets+)) "~D octets were held" most)))

(test lines-too-long-come-in-pieces
  (let ((pieces '()) (line (make-string 30000 :initial-element #\é)))
    (with-server (server (lambda (socket stream)
                           (loop
                             (multiple-value-bind (piece missing) (read-line stream nil)
                               (unless piece (return))
                               (push piece pieces)
                               (unless missing
                                 (close-socket socket :force t)
                                 (close-tcp-server server)
                                 (return)))))
                         :stream t :high-water 1000)
      (call server #'list :stream t :data (format nil "~A~%" line)))
    (is (string= line (apply #'concatenate 'string (reverse pieces))))))

(test lines-that-are-no-text
  (let ((told '()))
    (with-server (server (lambda (socket stream)
                           (when (search (string-octets "good")
                                         (clgrpc.async::buffer-octets
                                          (clgrpc.async::stream-unread stream)))
                             (handler-case (read-line stream)
                               (invalid-utf8 () (push :bad told)))
                             (push (read-line stream) told)
                             (close-socket socket :force t)
                             (close-tcp-server server)))
                         :stream t)
      (call server #'list :data (octets-of 255 10 103 111 111 100 10)))
    (is (equal '("good" :bad) told))))

(test characters-that-are-not-whole-yet
  "Only the last one may be held back, and no octet of ASCII is."
  (loop for (text cut expected) in '(("ab" 2 2) ("a" 1 1) ("" 0 0) ("aé" 2 1) ("aé" 3 1) ("aéb" 4 4)
                                     ("a€" 3 1) ("a€" 4 1) ("éé" 3 2) ("é" 1 1) ("é" 2 2))
        do (is (= expected
                  (clgrpc.async::last-character (string-octets text) 0 cut))
               "~S ~D" text cut)))

(test sockets-without-streams
  (with-server (server #'list)
    (signals misuse (tcp-server "127.0.0.1" 0 #'list :stream t :in-place t))
    (let ((socket (call server #'list)))
      (signals misuse (socket-stream socket))
      (close-socket socket)
      (close-tcp-server server))))
