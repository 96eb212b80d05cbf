;;;; Snapshots that go out. A snapshot is sent on a stream in chunks, each with its CRC-32C. If the
;;;; stream breaks, another one continues from the octet that the receiver names, until the time is
;;;; over.

(in-package #:clgrpc.raft)

;;; Where snapshots come from

(defgeneric snapshot-octets (source)
  (:documentation "How many octets the snapshot SOURCE has. On the thread of INSTALL-SNAPSHOT.")
  (:method ((source vector)) (length (the octets source)))
  (:method ((source pathname))
    (with-open-file (stream source :element-type '(unsigned-byte 8)) (file-length stream))))

(defgeneric read-snapshot (source offset count)
  (:documentation "Return COUNT octets of the snapshot SOURCE from OFFSET on, as fresh octets. On
the thread of INSTALL-SNAPSHOT.")
  (:method ((source vector) offset count)
    (subseq (the octets source) offset (+ offset count)))
  (:method ((source pathname) offset count)
    (with-open-file (stream source :element-type '(unsigned-byte 8))
      (let ((octets (make-octets count)))
        (file-position stream offset)
        (unless (= count (read-sequence octets stream))
          (error "~A is shorter than it was." source))
        octets))))

(defun read-part (source offset count)
  (let ((octets (read-snapshot source offset count)))
    (unless (and (typep octets 'octets) (= count (length octets)))
      (error "~S returned something else than the ~D octets from ~D on." source count offset))
    octets))

(defun source-crc32c (source octets chunk-octets end-ns)
  "The CRC-32C of the first OCTETS octets of SOURCE. Signal an RPC-ERROR if END-NS is reached
first."
  (let ((crc 0))
    (loop for offset from 0 below octets by chunk-octets
          do (when (>= (loop:world-now) end-ns)
               (error (local-error :deadline-exceeded
                                   "the time was up before the snapshot was read")))
             (setf crc (crc32c (read-part source offset (min chunk-octets (- octets offset)))
                               :crc crc)))
    crc))

(defun complete-header (peer header source chunk-octets end-ns)
  "A copy of HEADER with the address of PEER, and the length and check sum of SOURCE. Signal an
RPC-ERROR if HEADER is not complete by END-NS."
  (let ((octets (snapshot-octets source)))
    (v1:make-snapshot-header
     :term (v1:snapshot-header-term header)
     :group (peer-group peer) :sender (peer-sender peer) :receiver (peer-name peer)
     :last-included-index (v1:snapshot-header-last-included-index header)
     :last-included-term (v1:snapshot-header-last-included-term header)
     :configuration (v1:snapshot-header-configuration header)
     :octets octets
     :crc32c (if (zerop (v1:snapshot-header-crc32c header))
                 (source-crc32c source octets chunk-octets end-ns)
                 (v1:snapshot-header-crc32c header)))))

;;; One stream

(defun send-part (call &rest part)
  "Send PART, :header or :chunk and its message, on CALL; return false if the peer accepts no more."
  (rpc:send call (apply #'v1:make-install-snapshot-request part)))

(defun send-chunks (peer call source offset octets chunk-octets)
  "Send SOURCE, which has OCTETS octets, from OFFSET on."
  (loop while (< offset octets)
        do (let* ((count (min chunk-octets (- octets offset)))
                  (data (read-part source offset count)))
             (note-sent (peer-meter peer) "install-snapshot" 0 count)
             (unless (send-part call :chunk (v1:make-snapshot-chunk :offset offset :data data
                                                                    :crc32c (crc32c data)
                                                                    :group (peer-group peer)
                                                                    :sender (peer-sender peer)
                                                                    :receiver (peer-name peer)))
               (return))
             (incf offset count))))

(defun receive-response (peer call)
  (or (rpc:receive call)
      (error (local-error :unavailable "~A has ended the stream" (peer-name peer)))))

(defun refused-p (response header)
  "True if RESPONSE has a term above that of HEADER, of a snapshot."
  (> (v1:install-snapshot-response-term response) (v1:snapshot-header-term header)))

(defun check-end (peer header response)
  "Return RESPONSE, PEER's answer to the last chunk of HEADER's snapshot. Signal an RPC-ERROR if
PEER has neither installed nor refused the snapshot."
  (unless (or (v1:install-snapshot-response-installed response) (refused-p response header))
    (error (local-error :internal "~A has received the snapshot and has not installed it"
                        (peer-name peer))))
  response)

(defun send-snapshot (peer header source chunk-octets seconds)
  "Send SOURCE on one stream, within SECONDS; return the last response."
  (rpc:with-call (call (methods:install-snapshot (peer-channel peer) :open
                                                 :timeout seconds :wait-for-ready t))
    (send-part call :header header)
    (let ((response (receive-response peer call))
          (octets (v1:snapshot-header-octets header)))
      (cond ((or (v1:install-snapshot-response-installed response) (refused-p response header))
             response)
            ((> (v1:install-snapshot-response-offset response) octets)
             (error (local-error :internal "~A claims to have more octets than the snapshot ~
                                            has"
                                 (peer-name peer))))
            (t (send-chunks peer call source (v1:install-snapshot-response-offset response) octets
                            chunk-octets)
               (rpc:close-send call)
               (check-end peer header (receive-response peer call)))))))

;;; Again and again

(defconstant +most-losses+ 3
  "How often the check sums of a snapshot may be wrong before the transfer is given up.")

(defun too-long-p (error)
  "True if ERROR, of :resource-exhausted, says that a snapshot or a chunk is longer than PEER
accepts. The status alone does not show this, because an overloaded peer also uses it."
  (or (eq :snapshot-too-long (refusal-reason error))
      (some (lambda (text) (search text (or (status:rpc-error-message error) "")))
            '("octets received, limit" "octets to send, limit"))))

(defun passing-p (error losses)
  "True if a transfer that failed with ERROR may be tried again; LOSSES is how often data were
lost."
  (case (status:rpc-error-status error)
    ((:unavailable :aborted :failed-precondition) t)
    (:resource-exhausted (not (too-long-p error)))
    (:data-loss (< losses +most-losses+))))

(defun pause (peer seconds)
  "Wait SECONDS, or until PEER is closed."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (await-pipe pipe (lambda () (pipe-closed pipe)) (loop:notice-end seconds)))))

(defun send-until-installed (peer header source chunk-octets end-ns)
  "Send SOURCE, on one stream after another, until END-NS; return the last response."
  (loop with losses = 0
        with pauses = (loop:make-pauses 1/20 1)
        do (handler-case
               (return (send-snapshot peer header source chunk-octets (loop:seconds-until end-ns)))
             (status:rpc-error (error)
               (when (eq :data-loss (status:rpc-error-status error)) (incf losses))
               (when (or (not (passing-p error losses))
                         (pause peer (min (loop:next-pause pauses) (loop:seconds-until end-ns)))
                         (>= (loop:world-now) end-ns))
                 (error error))))))

(defun install-snapshot (peer header source &key (timeout 600) (chunk-octets 262144))
  "Send the snapshot SOURCE to PEER and return its last InstallSnapshotResponse: one with INSTALLED,
or one with a term above that of HEADER, which refuses it. HEADER is a SnapshotHeader. The header's
address and length, and its check sum unless it has one, are filled in. SOURCE is octets, a
pathname, or any object with methods of SNAPSHOT-OCTETS and READ-SNAPSHOT. The snapshot is sent in
chunks of CHUNK-OCTETS. When the connection is lost, or PEER is overloaded, another stream continues
after the octets that PEER has kept, until TIMEOUT seconds are over. When they are over, or if PEER
refuses, signal the RPC-ERROR of the last stream. Snapshots that several threads send to PEER are
sent one after the other. From any thread but a loop's."
  (check-type chunk-octets (integer 1 16777216))
  (check-type timeout (real (0)))
  (let* ((began-ns (loop:world-now))
         (end-ns (+ began-ns (seconds-ns timeout)))
         (status :internal))
    (unwind-protect
         (handler-bind ((status:rpc-error (lambda (error)
                                            (setf status (status:rpc-error-status error)))))
           (with-turn (peer :install-snapshot end-ns)
             (prog1 (send-until-installed peer
                                          (complete-header peer header source chunk-octets end-ns)
                                          source chunk-octets end-ns)
               (setf status :ok))))
      (note-answered (peer-meter peer) "install-snapshot" status began-ns))))
