;;;; A state machine for tests: it keeps what comes, in the order in which it comes, and answers as
;;;; a follower does that has nothing but its log.

(in-package #:clgrpc.tests.raft)

(defclass member ()
  ((term :initarg :term :initform 1 :accessor member-term)
   (last-index :initform 0 :accessor member-last-index) ; of its log
   (indices :initform '() :accessor member-indices) ; of all entries that came, the newest first
   (requests :initform 0 :accessor member-requests) ; with entries or without
   (data :initform nil :accessor member-data) ; of the last entry
   (delay :initarg :delay :initform nil :accessor member-delay) ; called with each request, or nil
   ;; of a snapshot: what came, (offset . octets), the newest first, and where streams began
   (chunks :initform '() :accessor member-chunks)
   (begins :initform '() :accessor member-begins)
   (installed :initform 0 :accessor member-installed)))

(defmethod raft:handle-pre-vote ((member member) request \&key)
  (v1:make-request-vote-response :term (member-term member)
                                 :granted (> (v1:request-vote-request-term request)
                                             (member-term member))))

(defmethod raft:handle-request-vote ((member member) request \&key)
  (let ((granted (> (v1:request-vote-request-term request) (member-term member))))
    (when granted (setf (member-term member) (v1:request-vote-request-term request)))
    (v1:make-request-vote-response :term (member-term member) :granted granted)))

(defmethod raft:handle-timeout-now ((member member) request \&key)
  (declare (ignore request))
  (v1:make-timeout-now-response :term (incf (member-term member))))

(defmethod raft:handle-append-entries ((member member) request \&key)
  (when (member-delay member) (funcall (member-delay member) request))
  (incf (member-requests member))
  (let ((success (= (v1:append-entries-request-prev-log-index request)
                    (member-last-index member))))
    (when success
      (loop for entry across (v1:append-entries-request-entries request)
            do (push (v1:entry-index entry) (member-indices member))
               (setf (member-data member) (v1:entry-data entry)
                     (member-last-index member) (v1:entry-index entry))))
    (v1:make-append-entries-response :term (member-term member) :success success
                                     :match-index (member-last-index member))))

(defmethod raft:handle-install-snapshot ((member member) header offset \&key)
  (push offset (member-begins member))
  (let ((has-it (<= (v1:snapshot-header-last-included-index header) (member-last-index member))))
    (unless (or has-it (plusp offset)
                (> (member-term member) (v1:snapshot-header-term header)))
      (setf (member-chunks member) '()))
    (v1:make-install-snapshot-response :term (member-term member) :installed has-it)))

(defmethod raft:handle-snapshot-chunk ((member member) header offset data \&key)
  (declare (ignore header))
  (when (member-delay member) (funcall (member-delay member) data))
  (push (cons offset data) (member-chunks member)))

(defmethod raft:handle-snapshot-end ((member member) header \&key)
  (setf (member-last-index member) (v1:snapshot-header-last-included-index header))
  (incf (member-installed member))
  (v1:make-install-snapshot-response :term (member-term member)))

(defun received (member)
  "The octets of the snapshot that MEMBER has received."
  (apply #'concatenate 'octets (mapcar #'cdr (reverse (member-chunks member)))))

;;; Members with a mind of their own

(defclass picky (member)
  ((ending :initform nil :accessor member-ending) ; called when a snapshot has come, or nil
   (inside :initform '() :accessor member-inside)) ; the methods for snapshots that have begun
  (:documentation "A member that does not take everybody's snapshots."))

(defmethod raft:handle-install-snapshot :around ((member picky) header offset \&key)
  (declare (ignore offset))
  (setf (member-inside member) (append (member-inside member) '(:begin)))
  (let ((leader (v1:snapshot-header-sender header)))
    (cond ((string= "mallory" leader) (grpc:fail :permission-denied "not from you"))
          ((string= "bug" leader) (error "This is a bug."))
          (t (call-next-method)))))

(defmethod raft:handle-snapshot-chunk :before ((member picky) header offset data \&key)
  (declare (ignore header offset data))
  (setf (member-inside member) (append (member-inside member) '(:chunk))))

(defmethod raft:handle-snapshot-end :before ((member picky) header \&key)
  (declare (ignore header))
  (setf (member-inside member) (append (member-inside member) '(:end)))
  (when (member-ending member) (funcall (member-ending member))))

(defclass forgetful (member) ()
  (:documentation "A member that does not say what it has."))

(defmethod raft:handle-install-snapshot :around ((member forgetful) header offset \&key)
  (declare (ignore header offset))
  (let ((response (call-next-method)))
    (setf (v1:install-snapshot-response-installed response) nil
          (member-chunks member) '())
    response))

(defclass keepalive (member)
  ((header :initform nil :accessor keepalive-header) ; of the snapshot that comes
   (lie :initform nil :accessor keepalive-lie)) ; the values to answer instead of the truth, or nil
  (:documentation "A member that knows, after a restart, what came of a snapshot."))

(defmethod raft:handle-install-snapshot :before ((member keepalive) header offset \&key)
  (declare (ignore offset))
  (setf (keepalive-header member) header))

(defmethod raft:kept-snapshot ((member keepalive) header \&key)
  (cond ((keepalive-lie member) (values-list (keepalive-lie member)))
        ((and (keepalive-header member)
              (= (v1:snapshot-header-crc32c header)
                 (v1:snapshot-header-crc32c (keepalive-header member))))
         (let ((octets (received member)))
           (values (length octets) (raft:crc32c octets))))
        (t (values 0 0))))

(defun runs-a-loop-p ()
  "True if this thread runs a loop, which waits for what it does."
  (and clgrpc.loop:*event-loop*
       (clgrpc.loop::own-lending clgrpc.loop:*event-loop*)
       t))

;;; Requests

(defun entry (index &optional (octets 10) (term 1))
  (v1:make-entry :index index :term term
                 :data (make-array octets :element-type '(unsigned-byte 8)
                                          :initial-element (mod index 256))))

(defun request (previous count &key (octets 10) (commit 0))
  "Entries PREVIOUS + 1 to PREVIOUS + COUNT, of so many OCTETS each."
  (v1:make-append-entries-request
   :term 1 :sender "A" :group "G" :receiver "B" :prev-log-index previous
   :prev-log-term (if (zerop previous) 0 1)
   :leader-commit commit
   :entries (loop for index from (1+ previous) to (+ previous count)
                  collect (entry index octets))))

(defun vote (term)
  (v1:make-request-vote-request :term term :sender "A" :group "G" :receiver "B"
                                :last-log-index 3 :last-log-term 1))

(defun header (octets &rest arguments)
  "A SnapshotHeader up to entry OCTETS."
  (apply #'v1:make-snapshot-header
         (append arguments (list :term 1 :sender "A" :group "G" :receiver "B"
                                 :last-included-index octets
                                 :last-included-term 1))))

(defun some-octets (count)
  "COUNT octets, no two stretches of them alike."
  (let ((octets (make-octets count)) (state 1))
    (dotimes (i count octets)
      (setf state (mod (+ (* state 1103515245) 12345) (expt 2 31))
            (aref octets i) (ldb (byte 8 16) state)))))

;;; Peers

(defun member-service (member &rest options)
  "A service, made with OPTIONS, at which MEMBER is the member B of the group G."
  (raft:add-group (apply #'raft:make-raft-service options) "G" "B" member))

(defun call-with-member (transport member function options)
  "Call FUNCTION with a peer for MEMBER over TRANSPORT, :tcp or :inproc."
  (let* ((server (grpc:start-server (member-service member) :listen "127.0.0.1:0"))
         (channel (and (eq :inproc transport) (grpc:server-channel server)))
         (peer (apply #'raft:make-peer "B" (or channel (grpc:server-address server))
                      (append options '(:group "G" :sender "A" :timeout 5)))))
    (unwind-protect (funcall function peer)
      (raft:close-peer peer)
      (when channel (grpc:close-channel channel))
      (grpc:stop-server server :drain 0))))

(defmacro with-member ((peer member &rest options) &body body)
  "Evaluate BODY with PEER bound to a peer for MEMBER, over TCP."
  `(call-with-member :tcp ,member (lambda (,peer) ,@body) (list ,@options)))

(defmacro over-transports ((peer member make-member &rest options) &body body)
  "Evaluate BODY for each transport, with MEMBER bound to what MAKE-MEMBER returns."
  `(dolist (transport '(:tcp :inproc))
     (let ((,member ,make-member))
       (call-with-member transport ,member (lambda (,peer) ,@body) (list ,@options)))))

;;; On the simulator

(defun add-member (member)
  "A host \"b\" on which MEMBER is served; what it has is kept when the host is restarted."
  (sim:add-host "b" (lambda ()
                      (grpc:start-server (member-service member) :listen "b:7000"))))

(defmacro with-simulated-member ((simulation peer host member options &rest peer-options)
                                 &body body)
  "Evaluate BODY in a SIMULATION with OPTIONS, where MEMBER is served on HOST."
  `(sim:with-simulation (,simulation ,@options)
     (let* ((,host (add-member ,member))
            (,peer (raft:make-peer "B" "b:7000" :group "G" :sender "A" ,@peer-options)))
       (declare (ignorable ,host))
       (unwind-protect (progn ,@body)
         (raft:close-peer ,peer)))))
