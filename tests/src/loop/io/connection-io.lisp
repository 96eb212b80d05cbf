;;;; Reading and writing: echo, half frames, slow readers, flushes, stop-reading, byte channels that
;;;; answer crosswise.

(in-package #:clgrpc.tests.loop)

(defun check-echo (address)
  (with-loops (loop) ()
    (let ((listener (listen-with (list loop) (make-handler :input #'echo) :address address)))
      (with-clients (client) ((listener-address listener))
        (dolist (count '(1 100 65536 1000000))
          (let* ((octets (pattern count))
                 (reader (in-thread (client-receive client count))))
            (client-send client octets)
            (is (equalp octets (sb-thread:join-thread reader)))))))))

(test echo-v4 (check-echo "127.0.0.1:0"))

(test echo-v6
  (if (handler-case (let ((loop (make-event-loop)))
                      (unwind-protect (listen-on "[::1]:0" (make-server-options) (list loop) #'list)
                        (stop-event-loop loop)))
        (socket-error () nil))
      (check-echo "[::1]:0")
      (support:skip-test "this machine has no IPv6")))

(test connections-are-dealt-to-the-least-loaded
  (with-loops (a b c) ()
    (let* ((made (sb-thread:make-semaphore))
           (listener (listen-with (list a b c) (make-handler :input #'echo)
                                  :on-connection (fn (_connection)
                                                   (sb-thread:signal-semaphore made)))))
      (with-clients (c1 c2 c3 c4 c5 c6) ((listener-address listener))
        (is-true (await made 6))
        (is (equal '(2 2 2) (mapcar #'event-loop-connections (list a b c))))
        (dolist (client (list c1 c2 c3 c4 c5 c6))
          (client-send client (octets-of 5 6))
          (is (equalp #(5 6) (client-receive client 2))))))))

(test addresses-of-a-connection
  (with-loops (loop) ()
    (let* ((made (sb-thread:make-semaphore)) (server nil)
           (listener (listen-with (list loop) (make-handler :input #'echo)
                                  :on-connection (lambda (connection)
                                                   (setf server connection)
                                                   (sb-thread:signal-semaphore made))
                                  :arguments '(:user :mine))))
      (with-clients (client) ((listener-address listener))
        (is-true (await made))
        (is (string= (listener-address listener)
                     (on-loop loop (lambda () (connection-local server)))))
        (is (string= (os:address-text (os:socket-address (client-descriptor client)))
                     (connection-peer server)))
        (is (eq :mine (connection-user server)))
        (is (search "127.0.0.1" (princ-to-string server)))))))

;;; Half frames

(defun frame-handler (on-frame)
  "A handler that consumes only complete frames: a length of 32 bits and as many octets."
  (make-handler
   :input (lambda (connection octets start end)
            (loop while (and (<= (+ start 4) end)
                             (<= (+ start 4 (u32be octets start)) end))
                  do (let ((next (+ start 4 (u32be octets start))))
                       (funcall on-frame connection (subseq octets (+ start 4) next))
                       (setf start next)))
            start)))

(defun frames-as-octets (frames)
  (let ((buffer (make-buffer)))
    (dolist (frame frames)
      (let ((head (make-octets 4)))
        (setf (u32be head 0) (length frame))
        (append-octets buffer head)
        (append-octets buffer frame)))
    (subseq (buffer-octets buffer) 0 (buffer-end buffer))))

(defun check-frames (sizes pieces)
  "Send frames of SIZES in pieces of the lengths PIECES, the last as long as needed."
  (with-loops (loop) ()
    (let* ((frames (mapcar #'pattern sizes)) (got '()) (leftover :unknown)
           (octets (frames-as-octets frames)) (done (sb-thread:make-semaphore)))
      (flet ((note-leftover (connection)
               (setf leftover (clgrpc.loop::connection-leftover connection))
               (sb-thread:signal-semaphore done)))
        (let* ((handler (frame-handler (lambda (connection frame)
                                         (push frame got)
                                         (when (= (length got) (length sizes))
                                           (defer loop #'note-leftover connection)))))
               (listener (listen-with (list loop) handler)))
          (with-clients (client) ((listener-address listener))
            (loop with at = 0
                  for piece in pieces
                  while (< at (length octets))
                  do (client-send client octets :start at :end (min (length octets) (+ at piece)))
                     (incf at piece)
                     (settle loop)
                  finally (when (< at (length octets))
                            (client-send client octets :start at)))
            (is-true (await done))
            (is (equalp frames (reverse got)))
            (is (null leftover) "an empty leftover is given back")))))))

(test frames-in-single-octets
  (check-frames '(0 1 5 0 30) (loop repeat 60 collect 1)))

(test frames-together
  (check-frames (loop for i below 3000 collect (mod (* i 7) 300)) '()))

(test frames-longer-than-the-input-area
  (check-frames '(10 300000 20 1000000 0 70000 40000 32768 32764 1) '(7 100 5000 40000 33000 1)))

(test frames-in-random-pieces
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed)))
    (format t "~&seed ~D~%" seed)
    (check-frames (loop repeat 40 collect (random (expt 10 (1+ (random 5 random))) random))
                  (loop repeat 60 collect (1+ (random (expt 10 (1+ (random 5 random))) random))))))

(defun one-frame-at-a-time (on-frame)
  "A handler like FRAME-HANDLER's, which leaves all frames but one for the next turn."
  (let ((inner (clgrpc.loop:handler-input (frame-handler on-frame))))
    (make-handler
     :input (lambda (connection octets start end)
              (let ((stop (if (<= (+ start 4) end)
                              (min end (+ start 4 (u32be octets start)))
                              end)))
                (let ((consumed (funcall inner connection octets start stop)))
                  (values consumed (and (> consumed start) (< consumed end)))))))))

(test postponed-frames
  "Octets that an owner postpones are passed again in the next turn, though no more are read; others
get turns meanwhile, and no octet is lost or reordered, even if reading is stopped."
  (with-loops (loop) ()
    (let* ((frames (loop for i below 300 collect (pattern (mod (* i 37) 400))))
           (got '()) (others 0) (at-most 0) (done (sb-thread:make-semaphore)) (turns '())
           (handler (one-frame-at-a-time
                     (lambda (connection frame)
                       (push frame got)
                       (push (event-loop-turns loop) turns)
                       (when (= 100 (length got))
                         (stop-reading connection)
                         (post loop (lambda () (start-reading connection))))
                       (when (= (length got) (length frames)) (sb-thread:signal-semaphore done)))))
           (other (make-handler :input (fn (_connection _octets _start end)
                                         (when (< (length got) (length frames))
                                           (setf at-most (length got))
                                           (incf others))
                                         end)))
           (subject nil)
           (listener (listen-with (list loop)
                                  (make-handler
                                   :input (lambda (connection octets start end)
                                            (funcall (clgrpc.loop:handler-input
                                                      (connection-user connection))
                                                     connection octets start end)))
                                  :on-connection
                                  (lambda (connection)
                                    (setf (connection-user connection)
                                          (if subject other handler)
                                          subject (or subject connection))
                                    (sb-thread:signal-semaphore done)))))
      (with-clients (client) ((listener-address listener))
        (is-true (await done))
        (with-clients (bystander) ((listener-address listener))
          (is-true (await done))
          ;; both are ready in the same turn
          (on-loop loop (lambda ()
                          (client-send client (frames-as-octets frames))
                          (client-send bystander (octets-of 1))))
          (is-true (await done))
          (is (equalp frames (reverse got)))
          (is (= 1 others))
          (is (< at-most 200) "The other was read after ~D frames." at-most)
          (is (= (length turns) (length (remove-duplicates turns))) "each turn reads one frame")
          (is (null (on-loop loop (lambda () (clgrpc.loop::connection-leftover subject))))))))))

;;; Output

(defun byte-channel-around (inner &key (read #'byte-channel-read)
                                    (write #'byte-channel-write))
  "A byte channel that reads and writes by functions that get INNER."
  (flet ((on-inner (function)
           (lambda (byte-channel &rest arguments)
             (apply function (byte-channel-state byte-channel) arguments))))
    (make-byte-channel (make-byte-channel-kind
                        :name "test"
                        :read (on-inner read) :write (on-inner write)
                        :shutdown (on-inner #'shut-byte-channel-down)
                        :close (on-inner #'close-byte-channel))
                       (byte-channel-descriptor inner) (byte-channel-peer inner) inner)))

(defun counting-byte-channel (inner writes)
  "A byte channel around INNER that adds the length of each write to the list in the car of WRITES."
  (byte-channel-around inner :write (lambda (&rest arguments)
                                      (let ((result (apply #'byte-channel-write arguments)))
                                        (push result (car writes))
                                        result))))

(defun call-with-counted-server (loop handler function)
  "Call FUNCTION with a connection on LOOP, a client of it, and a list whose car collects its
writes."
  (let* ((writes (list '())) (made (sb-thread:make-semaphore)) (connection nil)
         (listener (listen-on "127.0.0.1:0" (make-server-options) (list loop)
                              (fn (loop byte-channel _peer)
                                (setf connection
                                      (make-connection
                                       loop (counting-byte-channel byte-channel writes) handler))
                                (sb-thread:signal-semaphore made)))))
    (with-clients (client) ((listener-address listener))
      (await made)
      (funcall function connection client writes))))

(test one-write-per-turn
  (with-loops (loop) ()
    (call-with-counted-server
     loop (make-handler :input #'echo)
     (lambda (connection client writes)
       (is (equal '(t 100)
                  (on-loop loop (lambda ()
                                  (dotimes (i 100) (append-octet (connection-output connection) i))
                                  (list (connection-output-pending-p connection)
                                        (connection-unsent connection))))))
       (is (equalp (pattern 100) (client-receive client 100)))
       (settle loop)
       (is (equal '(100) (car writes)))
       (is-false (on-loop loop (lambda () (connection-output-pending-p connection))))))))

(defun check-last-words (sent)
  "A peer sends SENT octets and closes, with octets unread, before we have read them: our next write
fails. The octets arrive nevertheless, and then the end with its reason."
  (with-loops (loop) ()
    (let* ((got (make-buffer)) (ended (sb-thread:make-semaphore)) (reason nil)
           (handler (make-handler :input (fn (_connection octets start end)
                                           (append-octets got octets :start start :end end)
                                           end)
                                  :closed (fn (_connection why)
                                            (setf reason why)
                                            (sb-thread:signal-semaphore ended))
                                  :broken #'identity)))
      (call-with-counted-server
       loop handler
       (lambda (connection client writes)
         (on-loop loop (lambda ()
                         (append-octets (connection-output connection) (octets-of 1 2 3))
                         (flush-connection connection)
                         (client-send client (pattern sent))
                         (close-client client)
                         ;; two writes, since the first may still succeed
                         (dotimes (i 2)
                           (append-octets (connection-output connection) (octets-of 4))
                           (flush-connection connection))
                         (append-octets (connection-output connection) (octets-of 5))))
         (is-true (await ended))
         (is (minusp (first (car writes))))
         (is (= 1 (count-if #'minusp (car writes))) "nothing is written after a failed write")
         (is (equalp (pattern sent)
                     (subseq (buffer-octets got) (buffer-start got) (buffer-end got))))
         (is (typep reason 'socket-error)))))))

(test what-a-peer-sent-before-a-reset-is-read
  (mapc #'check-last-words '(0 10 30000 100000)))

(defun check-deaf-peer (poller broken)
  "A peer on a unix socket receives no more, but sends: a connection whose handler has the function
BROKEN, or nil, ends after it was read, with both pollers."
  (let* ((loop (make-event-loop :poller (funcall poller))) (ended (sb-thread:make-semaphore))
         (path (format nil "~Aclgrpc-deaf-~36R" (uiop:temporary-directory)
                       (random most-positive-fixnum (make-random-state t))))
         (reason nil) (most 0)
         (handler (make-handler :input (lambda (connection octets start end)
                                         (append-octets (connection-output connection) octets
                                                        :start start :end end)
                                         (setf most (max most (connection-unsent connection)))
                                         end)
                                :closed (fn (_connection why)
                                          (setf reason why)
                                          (sb-thread:signal-semaphore ended))
                                :broken broken))
         (address (format nil "unix:~A" path)))
    (launch-event-loop loop)
    (unwind-protect
         (progn
           (listen-on address (make-server-options) (list loop)
                      (fn (loop byte-channel _peer) (make-connection loop byte-channel handler)))
           (let ((socket (make-instance 'sb-bsd-sockets:local-socket :type :stream))
                 (piece (pattern 1000)))
             (sb-bsd-sockets:socket-connect socket path)
             (unwind-protect
                  (progn
                    (sb-bsd-sockets:socket-shutdown socket :direction :input)
                    (handler-case
                        (loop repeat 20000
                              until reason
                              do (sb-bsd-sockets:socket-send socket piece 1000 :nosignal t)
                              finally (is-true (await ended)))
                      (sb-bsd-sockets:socket-error () (is-true (await ended))))
                    (is (typep reason 'socket-error))
                    (is (< most 4000000)))
               (sb-bsd-sockets:socket-close socket))))
      (stop-event-loop loop)
      (uiop:delete-file-if-exists path))))

(test peers-that-receive-no-more-are-left
  (dolist (poller '(make-epoll-poller make-poll-poller))
    (dolist (broken (list nil #'identity))
      (check-deaf-peer poller broken))))

(test large-output-is-sent-within-the-turn
  (with-loops (loop) ()
    (call-with-counted-server
     loop (make-handler :input #'echo)
     (lambda (connection client writes)
       (let ((piece (pattern 1000)) (early nil) (done (sb-thread:make-semaphore)))
         (flet ((answer (last)
                  (append-octets (connection-output connection) piece)
                  (when last
                    (setf early (length (car writes)))
                    (sb-thread:signal-semaphore done))))
           (on-loop loop (lambda ()
                           (dotimes (i 500) (defer loop #'answer (= i 499)))))
           (is-true (await done))
           (is (= 500000 (length (client-receive client 500000))))
           (is (<= 4 early) "~D writes before the end of the turn" early)
           (is (>= 20 early) "~D writes before the end of the turn" early)))))))

(test flush-on-demand
  (with-loops (loop) ()
    (call-with-counted-server
     loop (make-handler :input #'echo)
     (lambda (connection client writes)
       (is (equal '(1)
                  (on-loop loop (lambda ()
                                  (append-octet (connection-output connection) 1)
                                  (flush-connection connection)
                                  (prog1 (car writes)
                                    (append-octet (connection-output connection) 2))))))
       (is (equalp #(1 2) (client-receive client 2)))
       (settle loop)
       (is (equal '(1 1) (car writes)))))))

(test fill-is-asked-until-it-has-no-more
  (with-loops (loop) ()
    (let ((left 0) (calls 0) (total 3000000) (largest 0))
      (call-with-counted-server
       loop (make-handler :input #'echo
                          :fill (lambda (connection)
                                  (incf calls)
                                  (let ((count (min left 60000)))
                                    (decf left count)
                                    (when (plusp count)
                                      (append-octets (connection-output connection)
                                                     (pattern count)))
                                    (setf largest (max largest (connection-unsent connection))))))
       (lambda (connection client writes)
         (on-loop loop (lambda ()
                         (setf left total)
                         (connection-output connection)))
         (is (= total (length (client-receive client total))))
         (settle loop)
         (is (= 0 left))
         (is (= 60000 largest) "unsent output is not piled up")
         (is (<= 50 (length (car writes))))
         (let ((before calls))
           (on-loop loop (lambda () (append-octet (connection-output connection) 1)))
           (client-receive client 1)
           (settle loop)
           (is (= (1+ before) calls) "FILL is called once per flush if it adds nothing")))))))

(test fill-that-asks-for-output-makes-no-turn
  (let ((counts (make-counts)))
    (with-loops (loop) (:poller (counting-poller counts))
      (call-with-counted-server
       loop (make-handler :input #'echo :fill (lambda (connection) (connection-output connection)))
       (fn (connection client _writes)
         (on-loop loop (lambda () (append-octet (connection-output connection) 1)))
         (client-receive client 1)
         (settle loop)
         (is (= 0 (on-loop loop (lambda () (clgrpc.loop::event-loop-dirty-count loop))))))))))

(test slow-reader
  (with-loops (loop) ()
    (let* ((total 6000000) (input 0) (made (sb-thread:make-semaphore)) (server nil)
           (listener (listen-with (list loop)
                                  (make-handler :input (fn (_connection _octets start end)
                                                         (incf input (- end start))
                                                         end))
                                  :arguments '(:max-unsent-octets 100000)
                                  :on-connection (lambda (connection)
                                                   (setf server connection)
                                                   (sb-thread:signal-semaphore made)))))
      (with-clients (client) ((listener-address listener))
        (await made)
        (on-loop loop (lambda () (append-octets (connection-output server) (pattern total))))
        (settle loop)
        (let ((unsent (on-loop loop (lambda () (connection-unsent server)))))
          (is (< 100000 unsent total) "~D unsent" unsent))
        (client-send client (octets-of 1 2 3))
        (settle loop)
        (is (= 0 input) "a connection that does not take its output is not read")
        (is (equalp (pattern total) (client-receive client total)))
        (loop until (= 3 input) do (settle loop))
        (is (= 3 input))
        (is (= 0 (on-loop loop (lambda () (connection-unsent server)))))))))

(test stop-reading-and-start
  (with-loops (loop) ()
    (let* ((input 0) (made (sb-thread:make-semaphore)) (got (sb-thread:make-semaphore)) (server nil)
           (listener (listen-with (list loop)
                                  (make-handler :input (fn (_connection _octets start end)
                                                         (incf input (- end start))
                                                         (sb-thread:signal-semaphore got)
                                                         end))
                                  :on-connection (lambda (connection)
                                                   (setf server connection)
                                                   (sb-thread:signal-semaphore made)))))
      (with-clients (client) ((listener-address listener))
        (await made)
        (on-loop loop (lambda () (stop-reading server)))
        (client-send client (pattern 10))
        (settle loop)
        (settle loop)
        (is (= 0 input))
        (on-loop loop (lambda () (start-reading server)))
        (is-true (await got))
        (is (= 10 input))
        (client-send client (pattern 5))
        (is-true (await got))
        (is (= 15 input))))))

;;; Byte channels

(defun echo-around (loop &rest around)
  "A listener on LOOP whose connections echo, each by a byte channel AROUND the accepted one."
  (listen-on "127.0.0.1:0" (make-server-options) (list loop)
             (fn (loop byte-channel _peer)
               (make-connection loop (apply #'byte-channel-around byte-channel around)
                                (make-handler :input #'echo)))))

(test reads-have-much-room
  "A read requests 128 KB, so that a long message takes few turns."
  (with-loops (loop) ()
    (let* ((rooms '())
           (listener (echo-around loop :read (lambda (byte-channel octets start end)
                                               (push (- end start) rooms)
                                               (byte-channel-read byte-channel octets start end)))))
      (with-clients (client) ((listener-address listener))
        (client-send client (pattern 1000))
        (is (equalp (pattern 1000) (client-receive client 1000)))
        (is (equal '(131072) (on-loop loop (lambda () (remove-duplicates rooms))))))
      (check-gone loop))))

(test byte-channel-that-answers-crosswise
  ;; as TLS may: the first read wants to write, the first write wants to read
  (with-loops (loop) ()
    (let* ((reads 0) (writes 0)
           (listener (echo-around loop
                                  :read (lambda (&rest arguments)
                                          (if (= 1 (incf reads))
                                              +wants-write+
                                              (apply #'byte-channel-read arguments)))
                                  :write (lambda (&rest arguments)
                                           (if (= 1 (incf writes))
                                               +wants-read+
                                               (apply #'byte-channel-write arguments))))))
      (with-clients (client) ((listener-address listener))
        (client-send client (octets-of 1))
        ;; each event reports both directions, so that the next octets set both free
        (loop until (<= 1 reads) do (settle loop))
        (client-send client (octets-of 2))
        (loop until (<= 1 writes) do (settle loop))
        (client-send client (octets-of 3))
        (is (equalp #(1 2 3) (client-receive client 3))))
      (check-gone loop))))
