;;;; See src/http/http2/flow.lisp; conversations about windows are in
;;;; tests/support/dialogue/flow.lisp.

(in-package #:clgrpc.tests.http2)

(test raising-windows
  "A window ends at 2^31-1 and may come from below 0 (6.9.1, 6.9.2)."
  (is (= 5 (h2::raise-window -3 8)))
  (is (= #x7FFFFFFF (h2::raise-window 0 #x7FFFFFFF)))
  (is (= #x7FFFFFFF (h2::raise-window #x7FFFFFFE 1)))
  (is (null (h2::raise-window #x7FFFFFFF 1)))
  (is (null (h2::raise-window 1 #x7FFFFFFF)))
  (is (= -1 (h2::raise-window (- #x80000000) #x7FFFFFFF))))

(test changed-initial-window
  "The worked example of the docstring: 65535, of which 1000 were used, lowered to 100."
  (let ((*dialogue* (begin-dialogue :server '())))
    (shake-hands)
    (hears '(:headers 1 :get :end-stream))
    (respond 1 :ok)
    (h2:send-data (find-stream 1) (make-octets 1000) 0 1000 nil)
    (hears '(:settings (:initial-window-size 100)))
    (is (= -900 (h2::stream-send-window (find-stream 1))))
    (hears '(:settings (:initial-window-size 65535)))
    (is (= 64535 (h2::stream-send-window (find-stream 1))))))

(defun outstanding (connection streams)
  "The full window by the invariant of the connection's window."
  (+ (h2:connection-receive-window connection) (h2::connection-unreturned connection)
     (loop for stream in streams
           sum (- (h2::stream-unconsumed stream) (h2::stream-credited stream)))))

(test credited-windows
  "Octets credited to the connection are returned to it once, before or after the stream's end."
  (with-random (credited-windows)
    (let* ((streams '()) (held '())
           (server (connect-end
                    :server
                    :on-headers (fn (stream _list _end-p)
                                  (push stream streams)
                                  (push (cons stream 0) held))
                    :on-data (fn (stream _octets start end _end-p)
                               (incf (cdr (assoc stream held)) (- end start)))))
           (client (connect-end :client))
           (connection (end-connection server))
           (full nil))
      (pump client server)
      (let ((opened (loop repeat 4
                          collect (let ((stream (h2:open-stream (end-connection client))))
                                    (send-headers stream *request-fields* nil)
                                    stream))))
        (pump client server)
        (setf full (outstanding connection streams))
        (loop repeat 500
              do (let ((stream (elt opened (random 4)))
                       (cell (elt held (random 4))))
                   (case (random 4)
                     ((0 1) (h2:send-data stream (make-octets 5000) 0 5000 nil))
                     (2 (h2:credit-connection (car cell)))
                     (3 (let ((count (random (1+ (cdr cell)))))
                          (decf (cdr cell) count)
                          (h2:consume-data (car cell) count))))
                   (pump client server)
                   (unless (= full (outstanding connection streams))
                     (fail "~D of ~D" (outstanding connection streams) full))
                   (unless (<= 0 (h2::stream-credited (car cell))
                               (h2::stream-unconsumed (car cell)))
                     (fail "~D credited" (h2::stream-credited (car cell))))))
        (dolist (stream opened) (h2:reset-stream stream h2:+cancel+))
        (pump client server)
        (is (= full (outstanding connection '())))))))
