;;;; Snapshots as the service receives them: the streams, and the parts that they carry. Each part
;;;; names its snapshot and its receiver, as the header does.

(in-package #:clgrpc.raft)

;;; Streams

(defun end-snapshot-delivery (snapshot-delivery control &rest arguments)
  "End the stream of SNAPSHOT-DELIVERY, on which a thread may wait."
  (rpc:finish (snapshot-delivery-call snapshot-delivery) :status :aborted
                                                         :message (apply #'format nil control
                                                                         arguments)))

(defun watch-snapshot-delivery (snapshot-delivery seconds)
  "Check SNAPSHOT-DELIVERY again and again; end it when it has waited for a part for SECONDS."
  (let ((since-ns (snapshot-delivery-since-ns snapshot-delivery)))
    (if (and since-ns (<= (+ since-ns (seconds-ns seconds)) (loop:world-now)))
        (end-snapshot-delivery snapshot-delivery "no part of the snapshot was received for ~A s"
                               seconds)
        (rpc:after (snapshot-delivery-call snapshot-delivery) (/ seconds 4)
                   (lambda () (watch-snapshot-delivery snapshot-delivery seconds))))))

(defun receive-part (snapshot-delivery)
  "Two values: the next part of SNAPSHOT-DELIVERY's requests, and its kind, :header or :chunk; nil
at the end."
  (setf (snapshot-delivery-since-ns snapshot-delivery) (loop:world-now))
  (let ((request (rpc:receive (snapshot-delivery-call snapshot-delivery))))
    (setf (snapshot-delivery-since-ns snapshot-delivery) nil)
    (when request (v1:install-snapshot-request-part request))))

(defun answer-part (snapshot-delivery response offset installed)
  "Send RESPONSE on the stream of SNAPSHOT-DELIVERY, with OFFSET, the number of octets that are
kept, and INSTALLED."
  (setf (v1:install-snapshot-response-offset response) offset
        (v1:install-snapshot-response-installed response) installed)
  (rpc:send (snapshot-delivery-call snapshot-delivery) response))

;;; The parts

(defun snapshot-receiver-call (snapshot-receiver)
  (snapshot-delivery-call (snapshot-receiver-snapshot-delivery snapshot-receiver)))

(defun ask-to-begin (member snapshot-receiver)
  "The answer of MEMBER's state machine to the header of SNAPSHOT-RECEIVER."
  (let ((known nil))
    (unwind-protect
         (handler-case
             (multiple-value-prog1
                 (handle-install-snapshot (local-member-state member)
                                          (snapshot-receiver-header snapshot-receiver)
                                          (snapshot-receiver-offset snapshot-receiver)
                                          :call (snapshot-receiver-call snapshot-receiver))
               (setf known t))
           (status:rpc-error (error)
             (setf known t)
             (error error)))
      ;; after another error, or an interrupt, it is unknown which part of the snapshot under way
      ;; the state machine still has
      (unless known (setf (local-member-snapshot-receiver member) nil)))))

(defun begin-snapshot-receiver (member header snapshot-delivery max-octets)
  "Ask the state machine of MEMBER whether it wants the snapshot of HEADER. If the state machine
wants the snapshot, make SNAPSHOT-DELIVERY the only delivery that receives it. Return the snapshot
receiver, the response, and whether the snapshot is wanted."
  (when (> (v1:snapshot-header-octets header) max-octets)
    (refuse-address :resource-exhausted :snapshot-too-long (v1:snapshot-header-group header)
                    (v1:snapshot-header-sender header) (v1:snapshot-header-receiver header)
                    "a snapshot of ~D octets is longer than ~D" (v1:snapshot-header-octets header)
                    max-octets))
  (with-snapshot-receiver (member nil)
    (let* ((before (local-member-snapshot-receiver member))
           (snapshot-receiver (continue-snapshot-receiver before header snapshot-delivery
                                                          (local-member-state member)))
           (response (ask-to-begin member snapshot-receiver))
           (wanted (not (or (v1:install-snapshot-response-installed response)
                            (> (v1:install-snapshot-response-term response)
                               (v1:snapshot-header-term header))))))
      (when wanted
        (setf (local-member-snapshot-receiver member) snapshot-receiver)
        (when before
          (end-snapshot-delivery (snapshot-receiver-snapshot-delivery before)
                                 "the snapshot is now sent on another stream")))
      (values snapshot-receiver response wanted))))

(defun keep-chunk (member snapshot-receiver chunk)
  "Let the state machine keep CHUNK, a SnapshotChunk, for SNAPSHOT-RECEIVER."
  (with-snapshot-receiver (member snapshot-receiver)
    (check-chunk snapshot-receiver chunk)
    (handle-snapshot-chunk (local-member-state member) (snapshot-receiver-header snapshot-receiver)
                           (snapshot-receiver-offset snapshot-receiver)
                           (v1:snapshot-chunk-data chunk)
                           :call (snapshot-receiver-call snapshot-receiver))
    (note-chunk snapshot-receiver chunk)))

(defun end-snapshot-receiver (member snapshot-receiver)
  "Let the state machine install the complete snapshot of SNAPSHOT-RECEIVER. Forget the receiver in
any case; return the response."
  (with-snapshot-receiver (member snapshot-receiver)
    (setf (local-member-snapshot-receiver member) nil)
    (check-snapshot-receiver snapshot-receiver)
    (handle-snapshot-end (local-member-state member)
                         (snapshot-receiver-header snapshot-receiver)
                         :call (snapshot-receiver-call snapshot-receiver))))

(defun check-part (service member header chunk)
  "Refuse CHUNK unless it has the address of HEADER, of the snapshot for MEMBER, and MEMBER has not
been removed."
  (let ((group (v1:snapshot-chunk-group chunk)) (sender (v1:snapshot-chunk-sender chunk))
        (receiver (v1:snapshot-chunk-receiver chunk)))
    (unless (and (eq member (find-local-member service group sender receiver))
                 (string= sender (v1:snapshot-header-sender header)))
      (refuse-address :invalid-argument :sender-differs group sender receiver
                      "a part of the snapshot is not addressed as its header"))))

(defun receive-snapshot (service member snapshot-receiver snapshot-delivery)
  (loop until (snapshot-receiver-complete-p snapshot-receiver)
        do (multiple-value-bind (chunk kind) (receive-part snapshot-delivery)
             (unless (eq :chunk kind)
               (refuse :invalid-argument "~:[the snapshot ends too early~;~
                                          a second header comes within it~]"
                       chunk))
             (check-part service member (snapshot-receiver-header snapshot-receiver) chunk)
             (keep-chunk member snapshot-receiver chunk)))
  (let ((response (end-snapshot-receiver member snapshot-receiver)))
    (answer-part snapshot-delivery response (snapshot-receiver-offset snapshot-receiver) t)))

(defun admit-snapshot (service header call)
  "The local member that the snapshot of HEADER, sent on CALL, is meant for."
  (admit service (v1:snapshot-header-group header) (v1:snapshot-header-sender header)
         (v1:snapshot-header-receiver header) call))

(defmethod methods:install-snapshot ((service raft-service) stream &key call)
  (declare (ignore stream))
  (let ((snapshot-delivery (make-snapshot-delivery call)))
    (watch-snapshot-delivery snapshot-delivery (service-chunk-seconds service))
    (multiple-value-bind (header kind) (receive-part snapshot-delivery)
      (unless (eq :header kind)
        (refuse :invalid-argument "a snapshot begins with a header"))
      (let ((member (admit-snapshot service header call)))
        (multiple-value-bind (snapshot-receiver response wanted)
            (begin-snapshot-receiver member header snapshot-delivery
                                     (service-max-snapshot-octets service))
          (answer-part snapshot-delivery response
                       (if (v1:install-snapshot-response-installed response)
                           (v1:snapshot-header-octets header)
                           (snapshot-receiver-offset snapshot-receiver))
                       (v1:install-snapshot-response-installed response))
          (when wanted
            (receive-snapshot service member snapshot-receiver snapshot-delivery)))))))
