;;;; Snapshots: sent whole, and on behind a cut.

(in-package #:clgrpc.tests.raft)

(test a-snapshot-is-installed
  (over-transports (peer member (make-instance 'member))
    (let* ((octets (some-octets 100000))
           (response (raft:install-snapshot peer (header 100000) octets :chunk-octets 7000)))
      (is-true (v1:install-snapshot-response-installed response))
      (is (= 100000 (v1:install-snapshot-response-offset response)
             (member-last-index member)))
      (is (equalp octets (received member)))
      (is (= 15 (length (member-chunks member))))
      (is (= 1 (member-installed member))))
    (let ((response (raft:install-snapshot peer (header 1) (make-octets 0))))
      (is-true (v1:install-snapshot-response-installed response)))))

(test a-snapshot-of-a-file
  (uiop:with-temporary-file (:stream stream :pathname path :element-type '(unsigned-byte 8))
    (write-sequence (some-octets 5000) stream)
    (finish-output stream)
    (let ((member (make-instance 'member)))
      (with-member (peer member)
        (raft:install-snapshot peer (header 9) path :chunk-octets 999)
        (is (equalp (some-octets 5000) (received member)))))))

(test parts-of-a-snapshot-have-their-length
  (flet ((part (returned)
           (with-replaced (('raft:read-snapshot (fn (_function _source _offset _count) returned)))
             (raft::read-part :source 0 5))))
    (is (equalp (some-octets 5) (part (some-octets 5))))
    (dolist (returned (list (some-octets 4) (some-octets 6) '(1 2 3 4 5) nil))
      (signals error (part returned)))))

(test a-snapshot-is-refused
  "By a member of a later term, which is told by the response."
  (let ((member (make-instance 'member :term 9)))
    (with-member (peer member)
      (let ((response (raft:install-snapshot peer (header 1) (some-octets 10))))
        (is (= 9 (v1:install-snapshot-response-term response)))
        (is-false (v1:install-snapshot-response-installed response))
        (is (null (member-chunks member)))))))

(test a-snapshot-with-a-wrong-check-sum
  "Is tried again a few times, from its beginning, and then given up."
  (let ((member (make-instance 'member)))
    (with-member (peer member)
      (signals grpc:data-loss
        (raft:install-snapshot peer (header 1 :crc32c 7) (some-octets 10)))
      (is (equal '(0 0 0) (member-begins member)))
      (is (zerop (member-installed member))))))

(defclass idle-service (v1:raft) ()
  (:documentation "A service that takes a snapshot and installs nothing."))

(defmethod clgrpc.raft.v1.raft:install-snapshot ((service idle-service) stream &key call)
  (flet ((answer () (grpc:send call (v1:make-install-snapshot-response :term 1))))
    (grpc:receive stream)
    (answer)
    (loop while (grpc:receive stream))
    (answer)))

(test a-snapshot-that-is-not-installed
  "The last response must say that it is, or refuse it."
  (let* ((server (grpc:start-server (make-instance 'idle-service)))
         (peer (raft:make-peer "B" (grpc:server-address server) :group "G" :sender "A")))
    (unwind-protect (signals grpc:internal
                      (raft:install-snapshot peer (header 1) (some-octets 10)))
      (raft:close-peer peer)
      (grpc:stop-server server :drain 0))))

(defclass busy (member)
  ((refusals :initform '("the server's queue of calls is full" "no thread was free in time")
             :accessor busy-refusals)) ; texts of refusals that are to come
  (:documentation "A member that has too much to do at first."))

(defun be-busy (member)
  (let ((text (pop (busy-refusals member)))) (when text (grpc:fail :resource-exhausted text))))

(defmethod raft:handle-install-snapshot :before ((member busy) header offset \&key)
  (declare (ignore header))
  (when (zerop offset) (be-busy member)))

(defmethod raft:handle-snapshot-chunk :before ((member busy) header offset data \&key)
  (declare (ignore header data))
  (when (plusp offset) (be-busy member)))

(test a-snapshot-for-a-peer-with-too-much-to-do
  "Is sent again until the peer takes it; one that is too long is given up."
  (let ((member (make-instance 'busy)))
    (with-member (peer member)
      (is-true (v1:install-snapshot-response-installed
                (raft:install-snapshot peer (header 5) (some-octets 100) :chunk-octets 10)))
      (is (null (busy-refusals member)))
      (is (equalp (some-octets 100) (received member)))))
  (let* ((member (make-instance 'member))
         (channel (grpc:service-channel (member-service member :max-snapshot-octets 99)))
         (peer (raft:make-peer "B" channel :group "G" :sender "A")))
    (unwind-protect
         (with-signalled (error grpc:resource-exhausted
                          (raft:install-snapshot peer (header 5) (some-octets 100)))
           (is (eq :snapshot-too-long (raft:refusal-reason error))))
      (raft:close-peer peer)
      (grpc:close-channel channel))
    (is (null (member-begins member)))))

(defclass slow-source ()
  ((reads :initform 0 :accessor source-reads)) ; how often something was read
  (:documentation "A snapshot of 1000 octets, each of which takes 10 ms."))

(defmethod raft:snapshot-octets ((source slow-source)) 1000)

(defmethod raft:read-snapshot ((source slow-source) offset count)
  (incf (source-reads source))
  (sleep 1/100)
  (make-octets count))

(test a-snapshot-that-takes-long-to-read
  "The time counts for the check sum, too."
  (let ((source (make-instance 'slow-source)) (member (make-instance 'member)))
    (with-member (peer member)
      (signals grpc:deadline-exceeded
        (raft:install-snapshot peer (header 1) source :timeout 1/10 :chunk-octets 1))
      (is (< 0 (source-reads source) 50))
      (is (null (member-begins member))))))

(defun send-through (simulation member trouble check)
  "Send a snapshot to MEMBER over a slow network, and call CHECK with where its streams began.
TROUBLE, a function of the sender's host, MEMBER's, and a chance, says what happens meanwhile."
  (let* ((chance (sim:make-chance (sim:simulation-seed simulation)))
         (host (add-member member))
         (home (sim:add-host "a" (constantly '())))
         (peer (sim:on-host (home) (raft:make-peer "B" "b:7000" :group "G" :sender "A")))
         (octets (some-octets 200000)))
    (sim:slow host 100000)
    (funcall trouble home host chance)
    (unwind-protect
         (let ((response (raft:install-snapshot peer (header 5) octets :chunk-octets 5000
                                                                       :timeout 60)))
           (unless (v1:install-snapshot-response-installed response) (error "~S" response))
           (unless (equalp octets (received member)) (error "Something else came."))
           (unless (= 1 (member-installed member)) (error "It was installed twice."))
           ;; no chunk came twice
           (unless (= 40 (length (member-chunks member)))
             (error "~D chunks came." (length (member-chunks member))))
           (let ((begins (reverse (member-begins member))))
             (unless (funcall check begins) (error "The streams began at ~S." begins))
             (length begins)))
      (raft:close-peer peer))))

(defun cut-snapshot (simulation)
  "Connections are cut."
  (send-through simulation (make-instance 'member)
                (lambda (home host chance)
                  (dotimes (i 3)
                    (sim:at (/ (sim:between chance 2 20) 10) (lambda () (sim:cut home host)))))
                ;; no stream but the first began at 0 once something was there
                (lambda (begins) (apply #'<= 0 (member-if #'plusp begins)))))

(test a-snapshot-goes-on-behind-a-cut
  (is (= 30 (sim:run-seeds #'cut-snapshot :count 30 :latency '(1/1000 1/50)))))

(defun restarted-snapshot (simulation)
  "The member's process is killed and comes back: twice."
  (send-through simulation (make-instance 'keepalive)
                (fn (_home host chance)
                  (dolist (after '(1 3))
                    (sim:at (+ after (/ (sim:between chance 3 7) 10))
                            (lambda () (sim:restart-host host :down 1/10)))))
                (lambda (begins) (apply #'< 0 (rest begins)))))

(test a-snapshot-goes-on-behind-a-restart-of-the-member
  (is (= 30 (sim:run-seeds #'restarted-snapshot :count 30 :latency '(1/1000 1/50)))))

(test snapshots-to-one-peer-go-one-after-the-other
  "Two that took each other's place again and again would never end."
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member)
      (let ((threads (loop for last in '(20 30)
                           collect (let ((last last))
                                     (in-thread (raft:install-snapshot peer (header last)
                                                                       (some-octets (* 2 last))
                                                                       :chunk-octets last))))))
        (eventually (member-begins member))
        (sb-thread:signal-semaphore gate 100)
        (is (every #'v1:install-snapshot-response-installed
                   (mapcar #'sb-thread:join-thread threads)))
        (is (<= (length (member-begins member)) 2))
        (is (every #'zerop (member-begins member)))))))
