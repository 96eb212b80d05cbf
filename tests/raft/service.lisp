;;;; The service, as a client without peers meets it.

(in-package #:clgrpc.tests.raft)
(in-suite :clgrpc.raft)

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
         (channel (grpc:service-channel (raft:make-raft-service member
                                                                :max-snapshot-octets 100)))
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

(test a-new-stream-takes-the-place-of-the-old
  "The old one is refused at its next chunk, and the new one goes on behind what it has brought."
  (let* ((member (make-instance 'member))
         (data (some-octets 20))
         (good (header 20 :octets 20 :crc32c (raft:crc32c data))))
    (with-member (peer member)
      (let ((channel (raft:peer-channel peer)))
        (grpc:with-call (call (methods:install-snapshot channel :open :timeout 5))
          (grpc:send call (v1:make-install-snapshot-request :header good))
          (grpc:send call (v1:make-install-snapshot-request :chunk (chunk 0 (subseq data 0 10))))
          (is (zerop (v1:install-snapshot-response-offset (grpc:receive call))))
          (is-true (await-true (lambda () (member-chunks member))))
          (let ((responses (send-snapshot-parts channel good (chunk 10 (subseq data 10)))))
            (is (equal '(10 20) (mapcar #'v1:install-snapshot-response-offset responses))))
          (signals grpc:aborted
            (grpc:send call (v1:make-install-snapshot-request
                             :chunk (chunk 10 (subseq data 10))))
            (grpc:receive call)))
        (is (equalp data (received member)))
        (is (= 1 (member-installed member)))))))
