;;;; Random sessions of our client with our server: for any windows, sizes, order of events and cuts
;;;; in the octets, every message arrives whole and every window is full at the end.

(in-package #:clgrpc.tests.http2)

(defstruct call
  "What a stream has sent and received so far."
  stream
  (sent (octets-of))
  (received '())
  (ended nil)
  (unread 0))

(defun received-octets (call)
  (apply #'concatenate 'octets (reverse (call-received call))))

(defun note-data (stream octets start end end-p)
  "The owner's side of ON-DATA: keep the octets, and give credit at random times."
  (let ((call (h2:stream-user stream)))
    (push (subseq-octets octets start end) (call-received call))
    (incf (call-unread call) (- end start))
    (when end-p (setf (call-ended call) t))
    (when (zerop (random 2)) (read-some call))))

(defun read-some (call)
  (let ((count (random (1+ (call-unread call)))))
    (h2:consume-data (call-stream call) count)
    (decf (call-unread call) count)))

(defun random-message ()
  (random-octets (expt 2 (random 16))))

(defun send-some (call end-p)
  "Send a random message on CALL."
  (let ((message (random-message)))
    (setf (call-sent call) (concatenate 'octets (call-sent call) message))
    (send-octets (call-stream call) message end-p)))

(defun random-options ()
  (list :stream-window-octets (+ 65535 (random 100000))
        :connection-window-octets (+ 65535 (random 200000))
        :max-frame-octets (+ 16384 (random 20000))
        :header-table-octets (random 8192)))

(defun make-echo-server ()
  "An END that answers each request with its own octets and trailers."
  (connect-end :server :options (random-options)
    :on-headers (fn (stream _list _end-p)
                  (setf (h2:stream-user stream) (make-call :stream stream))
                  (send-headers stream *response-fields* nil))
    :on-data (lambda (stream octets start end end-p)
               (note-data stream octets start end end-p)
               (h2:send-data stream (subseq-octets octets start end) 0 (- end start) nil)
               (when end-p
                 (h2:send-trailers-later
                  stream (lambda (stream) (send-headers stream *trailer-fields* t)))))
    :on-stream-closed #'h2:release-stream))

(defun make-recording-client ()
  (connect-end :client :options (random-options)
    :on-data #'note-data
    :on-trailers (fn (stream _list) (setf (call-ended (h2:stream-user stream)) t))))

(defun exchange-some (from to leftovers)
  "Carry octets from FROM to TO, cut at a random place, those left over first. Return the rest."
  (let* ((octets (concatenate 'octets leftovers (take-output from)))
         (cut (random (1+ (length octets))))
         (taken (give to (subseq octets 0 cut))))
    (subseq octets taken)))

(defun run-session (client server)
  "Run some calls at a time until all have ended; return them."
  (let ((calls '()) (open '()) (to-server (octets-of)) (to-client (octets-of)))
    (loop for turn from 0
          until (and (> turn 40) (every #'call-ended calls))
          do (assert (< turn 100000) () "The session hangs: ~S" calls)
             (when (and (< turn 40) (plusp (h2:available-streams (end-connection client))))
               (let* ((stream (h2:open-stream (end-connection client)))
                      (call (make-call :stream stream)))
                 (setf (h2:stream-user stream) call)
                 (send-headers stream *request-fields* nil)
                 (push call calls)
                 (push call open)))
             (dolist (call open)
               (case (random 4)
                 (0 (send-some call nil))
                 (1 (send-some call t)
                  (setf open (remove call open)))))
             (setf to-server (exchange-some client server to-server)
                   to-client (exchange-some server client to-client))
             (h2:map-streams (lambda (stream) (read-some (h2:stream-user stream)))
                             (end-connection server))
             (h2:map-streams (lambda (stream) (read-some (h2:stream-user stream)))
                             (end-connection client)))
    (give server to-server)
    (give client to-client)
    calls))

(defun windows-whole-p (end)
  (let ((connection (end-connection end)))
    (= (h2::connection-connection-window connection)
       (+ (h2:connection-receive-window connection) (h2::connection-unreturned connection)))))

(test random-sessions
  "Every octet arrives, and at the end all windows are full."
  (with-random (random-sessions)
    (loop repeat 5
          do (let* ((client (make-recording-client))
                    (server (make-echo-server))
                    (calls (progn (pump client server) (run-session client server))))
               (pump client server)
               (is (every (lambda (call) (equalp (call-sent call) (received-octets call))) calls))
               (is (zerop (h2:connection-stream-count (end-connection client))))
               (is (zerop (h2:connection-stream-count (end-connection server))))
               (is (windows-whole-p client))
               (is (windows-whole-p server))
               (is (zerop (h2:counters-queued-octets
                           (h2:connection-counters (end-connection server)))))))))
