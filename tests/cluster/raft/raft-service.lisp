;;;; The service, as a client without peers meets it.

(in-package #:clgrpc.tests.raft)

(defun send-snapshot-parts (channel &rest parts)
  "Send PARTS, messages, as a snapshot; return the responses."
  (let ((responses '()))
    (grpc:do-messages (response (methods:install-snapshot
                                 channel
                                 (mapcar (lambda (part)
                                           (v1:make-install-snapshot-request
                                            (if (typep part 'v1:snapshot-header) :header :chunk)
                                            part))
                                         parts)
                                 :timeout 5)
                       (reverse responses))
      (push response responses))))

(test snapshots-that-are-wrong-are-refused
  (let* ((member (make-instance 'member))
         (channel (grpc:service-channel (member-service member :max-snapshot-octets 100)))
         (data (some-octets 10))
         (good (header 10 :octets 10 :crc32c (raft:crc32c data))))
    (unwind-protect
         (progn
           (signals grpc:invalid-argument (send-snapshot-parts channel))
           (signals grpc:invalid-argument (send-snapshot-parts channel (chunk 0 data)))
           (signals grpc:invalid-argument (send-snapshot-parts channel good))
           (signals grpc:invalid-argument (send-snapshot-parts channel good good))
           (signals grpc:resource-exhausted (send-snapshot-parts channel (header 1 :octets 101)))
           (signals grpc:data-loss
             (send-snapshot-parts channel (header 10 :octets 10 :crc32c 1) (chunk 0 data)))
           (is (zerop (member-installed member)))
           (let ((responses (send-snapshot-parts channel good (chunk 0 data))))
             (is (equal '((0 nil) (10 t))
                        (mapcar (lambda (response)
                                  (list (v1:install-snapshot-response-offset response)
                                        (v1:install-snapshot-response-installed response)))
                                responses)))
             (is (= 1 (member-installed member)))
             (is (equalp data (received member)))))
      (grpc:close-channel channel))))

(defun begin-snapshot (channel &rest parts)
  "A stream on which PARTS were sent, and whose first response is there."
  (let ((call (methods:install-snapshot channel :open :timeout 20)))
    (dolist (part parts)
      (grpc:send call (v1:make-install-snapshot-request
                       (if (typep part 'v1:snapshot-header) :header :chunk) part)))
    (grpc:receive call)
    call))

(test a-new-stream-takes-the-place-of-the-old
  "The old one ends, though nothing comes by it; the new one goes on behind what it has brought."
  (over-transports (peer member (make-instance 'member))
    (let* ((data (some-octets 20))
           (good (header 20 :octets 20 :crc32c (raft:crc32c data)))
           (channel (raft:peer-channel peer))
           (old (begin-snapshot channel good (chunk 0 (subseq data 0 10)))))
      (eventually (member-chunks member))
      (let ((responses (send-snapshot-parts channel good (chunk 10 (subseq data 10)))))
        (is (equal '(10 20) (mapcar #'v1:install-snapshot-response-offset responses))))
      (signals grpc:aborted (grpc:receive old))
      (is (equalp data (received member)))
      (is (= 1 (member-installed member))))))

(test a-header-that-is-refused-takes-no-place
  "By its term, by FAIL or since its snapshot is there: what is under way goes on."
  (let ((member (make-instance 'picky)) (data (some-octets 20)))
    (with-member (peer member)
      (let* ((channel (raft:peer-channel peer))
             (good (header 20 :term 7 :octets 20 :crc32c (raft:crc32c data)))
             (call (begin-snapshot channel good (chunk 0 (subseq data 0 10)))))
        (eventually (member-chunks member))
        (setf (member-term member) 7)
        (is (equal '(7) (mapcar #'v1:install-snapshot-response-term
                                (send-snapshot-parts channel (header 30 :octets 9)))))
        (is (equal '(t) (mapcar #'v1:install-snapshot-response-installed
                                (send-snapshot-parts channel (header 0 :term 7 :octets 9)))))
        (signals grpc:permission-denied
          (send-snapshot-parts channel (header 40 :term 7 :octets 9 :sender "mallory")))
        (grpc:send call (v1:make-install-snapshot-request :chunk (chunk 10 (subseq data 10))))
        (is-true (v1:install-snapshot-response-installed (grpc:receive call)))
        (is (equalp data (received member)))))))

(test what-a-bug-leaves-is-not-gone-on-with
  "Where the state machine fails in asking, nobody knows what it has kept: it is asked from 0 on."
  (let ((member (make-instance 'picky)) (data (some-octets 20)))
    (with-member (peer member)
      (let* ((channel (raft:peer-channel peer))
             (good (header 20 :octets 20 :crc32c (raft:crc32c data))))
        (begin-snapshot channel good (chunk 0 (subseq data 0 10)))
        (eventually (member-chunks member))
        (signals grpc:internal
          (send-snapshot-parts channel (header 40 :octets 9 :sender "bug")))
        (grpc:cancel (begin-snapshot channel good))
        (is (equal '(0 0) (member-begins member)))))))

(defclass interrupted-state () ()
  (:documentation "A state machine that is interrupted when it is asked."))

(defmethod raft:handle-install-snapshot ((state interrupted-state) header offset \&key)
  (declare (ignore header offset))
  (throw 'interrupted nil))

(test an-interrupt-leaves-a-snapshot-receiver-to-others
  "A thread that is interrupted in asking, in keeping a chunk, or just as it has got the snapshot
receiver, leaves it to others; what the state machine was asked when it was interrupted is not gone
on with."
  (let* ((member (raft::make-local-member "G" "B" (make-instance 'picky)))
         (header (header 20 :octets 20))
         (snapshot-receiver (raft::make-snapshot-receiver header (delivery) 0 0)))
    (flet ((free-p () (null (raft::local-member-busy member))))
      (setf (raft::local-member-snapshot-receiver member) snapshot-receiver)
      (catch 'interrupted
        (raft::with-snapshot-receiver (member snapshot-receiver) (throw 'interrupted nil)))
      (is-true (free-p))
      (with-replaced (('raft::occupy-snapshot-receiver
                       (lambda (function &rest arguments)
                         (apply function arguments)
                         (throw 'interrupted nil))))
        (catch 'interrupted
          (raft::with-snapshot-receiver (member snapshot-receiver) nil)))
      (is-true (free-p))
      (is (eq snapshot-receiver (raft::local-member-snapshot-receiver member))))
    (let ((member (raft::make-local-member "G" "B" (make-instance 'interrupted-state))))
      (setf (raft::local-member-snapshot-receiver member) snapshot-receiver)
      (catch 'interrupted (raft::ask-to-begin member snapshot-receiver))
      (is (null (raft::local-member-snapshot-receiver member))))))

(test a-snapshot-that-is-installed-is-not-there-to-go-on-with
  "A leader that has not got the last response sends it again: all of it, unless the member has it."
  (dolist (class '(member forgetful))
    (let ((member (make-instance class)) (data (some-octets 20)))
      (with-member (peer member)
        (flet ((install ()
                 (mapcar #'v1:install-snapshot-response-installed
                         (send-snapshot-parts (raft:peer-channel peer)
                                              (header 20 :octets 20 :crc32c (raft:crc32c data))
                                              (chunk 0 data)))))
          (is (equal '(nil t) (install)))
          (is (equal (if (eq 'member class) '(t) '(nil t)) (install)))
          (is (equal '(0 0) (member-begins member)))
          (is (= (if (eq 'member class) 1 2) (member-installed member)))
          (is (equalp data (received member)))
          (is-true (v1:install-snapshot-response-installed
                    (raft:install-snapshot peer (header 20) data))))))))

(test a-snapshot-that-could-not-be-installed
  "It comes anew, from its beginning."
  (let* ((member (make-instance 'picky)) (data (some-octets 20))
         (good (header 20 :octets 20 :crc32c (raft:crc32c data))))
    (with-member (peer member)
      (setf (member-ending member) (lambda () (error "The disk is full.")))
      (signals grpc:internal (send-snapshot-parts (raft:peer-channel peer) good (chunk 0 data)))
      (setf (member-ending member) nil)
      (is-true (v1:install-snapshot-response-installed (raft:install-snapshot peer good data)))
      (is (equal '(0 0) (member-begins member)))
      (is (equalp data (received member))))))

(test one-thread-at-a-time-is-in-a-snapshot
  "Who begins waits for one that is being installed, and is asked afterwards."
  (let* ((gate (sb-thread:make-semaphore))
         (member (make-instance 'picky)) (data (some-octets 20))
         (good (header 20 :octets 20 :crc32c (raft:crc32c data))))
    (setf (member-ending member) (lambda () (sb-thread:wait-on-semaphore gate)))
    (with-member (peer member)
      (flet ((install ()
               (in-thread (send-snapshot-parts (raft:peer-channel peer) good (chunk 0 data)))))
        (let ((first (install)))
          (eventually (equal '(:begin :chunk :end) (member-inside member)))
          (let ((second (install)))
            ;; time enough to be asked, were it not for the first
            (wait-until (lambda () (rest (member-begins member))) :seconds 0.3)
            (is (equal '(:begin :chunk :end) (member-inside member)))
            (sb-thread:signal-semaphore gate 2)
            (is (= 2 (length (sb-thread:join-thread first))))
            (is (= 1 (length (sb-thread:join-thread second))) "it is there by then")
            (is (= 1 (member-installed member)))))))))

(test a-stream-that-brings-nothing-ends
  (let ((server (grpc:start-server (member-service (make-instance 'member)
                                                           :chunk-seconds 0.1)
                                   :listen "127.0.0.1:0")))
    (grpc:with-channel (channel (grpc:server-address server))
      (signals grpc:aborted (grpc:receive (methods:install-snapshot channel :open)))
      (signals grpc:aborted
        (grpc:receive (begin-snapshot channel (header 1 :octets 5 :crc32c 1)))))
    (grpc:stop-server server :drain 0)))

(test entries-of-a-stream-may-block
  "They are handled on a thread that runs no loop."
  (let* ((loops '())
         (member (make-instance 'member :delay (fn (_request) (push (runs-a-loop-p) loops))))
         (server (grpc:start-server (member-service member) :listen "127.0.0.1:0"
                                                                    :execution :blocking))
         (peer (raft:make-peer "B" (grpc:server-address server) :group "G" :sender "A"
                                   :timeout 20)))
    (give-entries peer 20)
    (is-true (raft:flush-pipeline peer))
    (is (equal '() (remove nil loops)))
    (is (plusp (length loops)))
    (raft:close-peer peer)
    (grpc:stop-server server :drain 0)))
