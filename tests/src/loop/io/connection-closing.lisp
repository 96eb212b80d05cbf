;;;; The ends of connections: by us, by the peer, by errors; with output that is not sent yet.
;;;; CLOSED is called exactly once each time.

(in-package #:clgrpc.tests.loop)

(defstruct (watched (:constructor make-watched ()))
  "A connection whose end is watched."
  connection
  (made (sb-thread:make-semaphore))
  (closed (sb-thread:make-semaphore))
  (reasons '()))

(defun watching-handler (watched &key (input #'echo) (fill #'identity))
  (make-handler :input input :fill fill
                :closed (fn (_connection reason)
                          (push reason (watched-reasons watched))
                          (sb-thread:signal-semaphore (watched-closed watched)))))

(defun listen-watched (loop watched &rest arguments)
  (listen-with (list loop) (apply #'watching-handler watched arguments)
               :on-connection (lambda (connection)
                                (setf (watched-connection watched) connection)
                                (sb-thread:signal-semaphore (watched-made watched)))))

(defmacro with-watched ((loop watched client &rest arguments) &body body)
  (let ((listener (gensym)))
    `(let* ((,watched (make-watched))
            (,listener (listen-watched ,loop ,watched ,@arguments)))
       (with-clients (,client) ((listener-address ,listener))
         (is-true (await (watched-made ,watched)))
         ,@body))))

(defun check-closed (loop watched test)
  "Check that WATCHED's CLOSED was called once, with a reason for which TEST is true."
  (is-true (await (watched-closed watched)))
  (settle loop)
  (is (= 1 (length (watched-reasons watched))))
  (is-true (funcall test (first (watched-reasons watched))) "~S" (watched-reasons watched)))

(test peer-closes
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (client-send client (octets-of 1))
      (client-receive client 1)
      (close-client client)
      (check-closed loop watched #'null)
      (check-gone loop))))

(test peer-half-closes
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (client-send client (octets-of 1 2))
      (end-client-output client)
      (is (equalp #(1 2) (client-receive client 10)) "a half-closed peer still gets its answer")
      (check-closed loop watched #'null)
      (check-gone loop))))

(test peer-resets
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (on-loop loop (lambda () (append-octets (connection-output (watched-connection watched))
                                              (pattern 100))))
      ;; closing with octets unread is a reset
      (read-byte (client-stream client))
      (sb-alien:with-alien ((linger (array sb-alien:int 2)))
        (setf (sb-alien:deref linger 0) 1 (sb-alien:deref linger 1) 0)
        (sb-alien:alien-funcall
         (sb-alien:extern-alien "setsockopt" (function sb-alien:int sb-alien:int sb-alien:int
                                                       sb-alien:int (* (array sb-alien:int 2))
                                                       sb-alien:int))
         (client-descriptor client) os:+sol-socket+ 13 (sb-alien:addr linger) 8))
      (close-client client)
      (check-closed loop watched (lambda (reason) (typep reason 'socket-reset)))
      (check-gone loop))))

(test reset-while-reading-is-stopped
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (on-loop loop (lambda ()
                      (stop-reading (watched-connection watched))
                      (append-octets (connection-output (watched-connection watched))
                                     (pattern 100))))
      (is (= 1 (length (client-receive client 1))))
      (close-client client)             ; with octets in the stream's buffer, none in the kernel's
      (settle loop)
      (is (null (watched-reasons watched)) "half closed only, and there might be octets to read")
      (on-loop loop (lambda () (append-octets (connection-output (watched-connection watched))
                                              (pattern 100))))
      (check-closed loop watched (lambda (reason) (typep reason 'socket-error)))
      (check-gone loop))))

(test closing-sends-what-is-unsent
  "The connection lingers then. The loop's clock stands still, since lingering ends after two
seconds, in which a client on a busy machine may not have read everything."
  (with-loops (loop) (:clock (constantly +noon-ns+))
    (let ((total 12000000))
      (with-watched (loop watched client)
        (on-loop loop (lambda ()
                        (append-octets (connection-output (watched-connection watched))
                                       (pattern total))
                        (close-connection (watched-connection watched))
                        (close-connection (watched-connection watched))))
        ;; nobody reads these octets; they must not destroy the unsent output
        (client-send client (pattern 100))
        (settle loop)
        (is (null (watched-reasons watched)) "nothing ends before everything is sent")
        (is-true (equalp (pattern total) (client-receive client total)))
        (is-true (client-ended-p client))
        (check-closed loop watched #'null)
        (is (eq :lingering (connection-state (watched-connection watched))))
        (close-client client)
        (check-gone loop)))))

(test closing-at-once
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (is (null (on-loop loop (lambda ()
                                (append-octets (connection-output (watched-connection watched))
                                               (pattern 1000))
                                (close-connection (watched-connection watched) :abort t)
                                (watched-reasons watched))))
          "no reason is reported in the middle of a call")
      (is-true (client-ended-p client))
      (check-closed loop watched #'null)
      (is (eq :closed (connection-state (watched-connection watched))))
      (check-gone loop))))

(test closing-in-the-middle-of-input
  (with-loops (loop) ()
    (with-watched (loop watched client
                        :input (fn (connection _octets start _end)
                                 (close-connection connection :abort t)
                                 start))
      (client-send client (pattern 10))
      (is-true (client-ended-p client))
      (check-closed loop watched #'null)
      (check-gone loop))))

(test output-of-a-closed-connection-is-lost
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (close-client client)
      (check-closed loop watched #'null)
      (on-loop loop (lambda ()
                      (let ((connection (watched-connection watched)))
                        (append-octets (connection-output connection) (pattern 500000))
                        (append-octets (connection-output connection) (pattern 10))
                        (flush-connection connection)
                        (stop-reading connection)
                        (start-reading connection)
                        (close-connection connection)
                        (close-connection connection :abort t)
                        (connection-local connection))))
      (settle loop)
      (is (= 1 (length (watched-reasons watched))))
      (is (eq :alive (on-loop loop (constantly :alive)))))))

(test lingering-has-a-limit
  (multiple-value-bind (clock set-forward) (shiftable-clock)
    (with-loops (loop) (:clock clock)
      (with-watched (loop watched client)
        (on-loop loop (lambda () (close-connection (watched-connection watched))))
        (check-closed loop watched #'null)
        (is (= 1 (event-loop-connections loop)) "the connection waits for the peer")
        (funcall set-forward 5)
        (check-gone loop)
        (is-true (client-ended-p client))))))

(test closing-to-a-peer-that-does-not-read-has-a-limit
  (multiple-value-bind (clock set-forward) (shiftable-clock)
    (with-loops (loop) (:clock clock)
      (with-watched (loop watched client)
        (on-loop loop (lambda ()
                        (append-octets (connection-output (watched-connection watched))
                                       (pattern 10000000))
                        (close-connection (watched-connection watched))))
        (settle loop)
        (is (null (watched-reasons watched)))
        (funcall set-forward 5)
        (check-closed loop watched #'null)
        (check-gone loop)
        (is (> 10000000 (length (ignore-errors (client-receive client 10000000)))))))))

(test stopping-the-loop-closes-everything
  (let ((watched (make-watched)))
    (with-loops (loop) ()
      (let ((listener (listen-watched loop watched)))
        (with-clients (a b) ((listener-address listener))
          (is-true (await (watched-made watched) 2))
          (stop-event-loop loop)
          (is-true (join-event-loop loop))
          (is (equal '(nil nil) (watched-reasons watched)))
          (is-true (client-ended-p a))
          (is-true (client-ended-p b))
          (is (= 0 (event-loop-connections loop))))))))

;;; Errors of the owner

(defun check-owner-error (event-name &rest arguments)
  "A connection whose handler fails is closed with the condition, which is logged; others continue."
  (with-logged (events)
    (with-loops (loop) ()
      (let ((good (listen-with (list loop) (make-handler :input #'echo))))
        (with-clients (other) ((listener-address good))
          (let* ((watched (make-watched))
                 (listener (apply #'listen-watched loop watched arguments)))
            (with-clients (client) ((listener-address listener))
              (client-send client (octets-of 1))
              (is-true (client-ended-p client))
              (check-closed loop watched (lambda (reason)
                                           (search "broken" (princ-to-string reason))))))
          (client-send other (octets-of 7))
          (is (equalp #(7) (client-receive other 1))))
        (check-gone loop)))
    (is (equal (list event-name) (mapcar #'second (events))))
    (is (stringp (getf (cddr (first (events))) :backtrace)))))

(test input-that-fails
  (check-owner-error :connection-handler-error
                     :input (fn (&rest _arguments) (error "broken"))))

(test fill-that-fails
  (check-owner-error :connection-handler-error
                     :fill (fn (_connection) (error "broken"))))

(test closed-function-that-fails
  (with-logged (events)
    (with-loops (loop) ()
      (let ((listener (listen-with (list loop)
                                   (make-handler :input #'echo
                                                 :closed (fn (_connection _reason)
                                                           (error "broken"))))))
        (with-clients (client) ((listener-address listener))
          (client-send client (octets-of 1))
          (client-receive client 1))
        (check-gone loop)))
    (is (equal '(:closed-handler-error) (mapcar #'second (events))))))

;;; Descriptors that are used again

(test events-of-a-former-source-find-nobody
  (with-loops (loop) ()
    (with-watched (loop watched client)
      (let* ((connection (watched-connection watched))
             (old (clgrpc.loop::source-token connection)))
        (flet ((found (token) (clgrpc.loop::find-source loop token)))
          (is (equal (list connection nil nil connection)
                     (on-loop loop
                              (lambda ()
                                (list (found old)
                                      (progn (clgrpc.loop:remove-source connection)
                                             (found old))
                                      (progn (clgrpc.loop:add-source
                                              connection
                                              (byte-channel-descriptor
                                               (connection-byte-channel connection)))
                                             ;; the descriptor is the same, the generation another
                                             (found old))
                                      (found (clgrpc.loop::source-token connection)))))))))
      (client-send client (octets-of 1))
      (is (equalp #(1) (client-receive client 1))))))

(test lingering-connections-are-bounded
  "Peers that never close their side occupy a bounded number of descriptors, and none while
descriptors are short."
  (with-loops (loop) ()
    (let ((connections '()))
      (let ((listener (listen-on "127.0.0.1:0" (make-server-options) (list loop)
                                 (fn (loop byte-channel _peer)
                                   (let ((connection (make-connection
                                                      loop byte-channel
                                                      (make-handler :input #'echo))))
                                     (push connection connections)
                                     (close-connection connection))))))
        (with-clients (a b c d) ((listener-address listener))
          (loop until (= 4 (on-loop loop (lambda () (clgrpc.loop::event-loop-lingering loop))))
                do (sb-thread:thread-yield))
          (flet ((bound (most)
                   (on-loop loop (lambda () (clgrpc.loop::bound-lingering loop most)))
                   (settle loop)
                   (mapcar #'connection-state (reverse connections))))
            (is (equal '(:closed :lingering :lingering :lingering) (bound 3)))
            (is (equal '(:closed :closed :closed :closed) (bound 0)))
            (is (zerop (clgrpc.loop::event-loop-lingering loop)))
            (is (every #'client-ended-p (list a b c d)))))))))

(defun stopping-time-ns (count)
  "The processor time of stopping a loop with COUNT connections, whose descriptors are so high that
a search for them costs more than all else."
  (let ((loop (make-event-loop :name "still" :poller (still-poller #'identity))))
    (loop for descriptor from 1000001
          repeat count
          do (memory-connection loop descriptor #'takes-all))
    (let ((begun (thread-time-ns)))
      (stop-event-loop loop)
      (- (thread-time-ns) begun))))

(test stopping-a-loop-searches-once
  "It does not search once for each connection."
  (let ((few (stopping-time-ns 1)) (many (stopping-time-ns 300)))
    (is (< many (* 20 few)) "~D ns for 1, ~D for 300" few many)))

(test connections-that-linger-no-more-are-forgotten
  "This happens even while an older one lingers, and after it if no other begins to linger."
  (with-still-loop (loop :clock (constantly +noon-ns+))
    (let* ((pairs (loop for descriptor from 11 repeat 4
                        collect (multiple-value-list
                                 (memory-connection loop descriptor #'takes-all))))
           (connections (mapcar #'first pairs)))
      (flet ((lingering ()
               (copy-list (fifo-items (clgrpc.loop::event-loop-lingerers loop))))
             (end (connection peer)
               (setf (end-over peer) t)
               (clgrpc.loop::note-event connection (logior clgrpc.loop:+readable+
                                                           clgrpc.loop:+ended+))))
        (mapc #'close-connection connections)
        (make-turn-of loop)
        (is (equal connections (lingering)))
        (loop for pair in (rest pairs) do (apply #'end pair))
        (make-turn-of loop)
        (is (equal (list (first connections)) (lingering)))
        (is (= 1 (clgrpc.loop::event-loop-lingering loop)))
        (apply #'end (first pairs))
        (make-turn-of loop)
        (is (null (lingering)))))))

(test told-that-connections-have-gone
  "The function is called at the end of a turn in which a connection has ended; until then the
connection counts as closing."
  (with-loops (loop) ()
    (let ((told '()) (closing '()))
      (flet ((note (loop)
               (push (list (event-loop-connections loop) (connections-closing-p loop)) told))
             (close-at-once (connection)
               (push (connections-closing-p loop) closing)
               (close-connection connection)
               (push (connections-closing-p loop) closing)))
        (on-loop loop (lambda ()
                        (call-after-closing loop #'note)
                        (call-after-closing loop #'note)))
        (let ((listener (listen-with (list loop) (make-handler :input #'echo)
                                     :on-connection #'close-at-once)))
          (with-clients (client) ((listener-address listener))
            (is-true (client-ended-p client))
            (settle loop)
            ;; it lingers: the client has not closed its side
            (is (equal '(t nil) closing))
            (is-true (on-loop loop (lambda () (connections-closing-p loop))))
            (is (null told)))
          (check-gone loop)
          (settle loop)
          (is (equal '((0 nil)) told)))))))

(test lingering-connections-read-up-to-a-limit
  "If a peer does not stop sending to a connection that we close, the loop reads up to a limit, and
rests then."
  (with-still-loop (loop :clock (constantly +noon-ns+))
    (multiple-value-bind (connection peer) (memory-connection loop 11 #'takes-all)
      (let* ((arrived (end-arrived peer))
             (chunk (make-octets clgrpc.loop::+read-octets+))
             (chunks (floor clgrpc.loop::+most-discarded-octets+ (length chunk))))
        (flet ((send ()
                 (append-octets arrived chunk)
                 (clgrpc.loop::note-event connection clgrpc.loop:+readable+)
                 (make-turn-of loop)
                 (buffer-fill arrived)))
          (close-connection connection)
          (make-turn-of loop)
          (is (zerop (loop repeat chunks maximize (send))))
          (is (= (length chunk) (send)))
          (is (eq :lingering (connection-state connection)))
          (is (zerop (clgrpc.loop::event-loop-ready-count loop))))))))

(test lingering-connections-beyond-the-limit-end-with-their-peer
  "Once the peer has ended its side, or has failed, its octets are read to the end, and the
connection is closed before the lingering time is over."
  (loop for (over flag) in `((t ,clgrpc.loop:+ended+) (-104 ,clgrpc.loop:+failed+))
        do (with-still-loop (loop :clock (constantly +noon-ns+))
             (multiple-value-bind (connection peer) (memory-connection loop 11 #'takes-all)
               (close-connection connection)
               (make-turn-of loop)
               (setf (clgrpc.loop::connection-discarded connection)
                     clgrpc.loop::+most-discarded-octets+)
               (append-octets (end-arrived peer) (make-octets 10))
               (clgrpc.loop::note-event connection clgrpc.loop:+readable+)
               (make-turn-of loop)
               (is (= 10 (buffer-fill (end-arrived peer))))
               (setf (end-over peer) over)
               (clgrpc.loop::note-event connection flag)
               (loop repeat 3 do (make-turn-of loop))
               (is (zerop (buffer-fill (end-arrived peer))))
               (is (eq :closed (connection-state connection)) "~A" over)))))
