;;;; Requests that are for another group or member, or from a sender that proves nothing: none
;;;; reaches a state machine.

(in-package #:clgrpc.tests.raft)

(defclass witness (member)
  ((calls :initform '() :accessor witness-calls)) ; what each method was given as :CALL
  (:documentation "A member that keeps the calls that its methods were given."))

(macrolet ((define-witness (&rest rows)
             `(progn
                ,@(loop for (name . arguments) in rows
                        collect `(defmethod ,name :before ((member witness) ,@arguments &key call)
                                   (declare (ignore ,@arguments))
                                   (push call (witness-calls member)))))))
  (define-witness (raft:handle-pre-vote request) (raft:handle-request-vote request)
    (raft:handle-append-entries request) (raft:handle-timeout-now request)
    (raft:kept-snapshot header) (raft:handle-install-snapshot header offset)
    (raft:handle-snapshot-chunk header offset data) (raft:handle-snapshot-end header)))

(defun error-of (function)
  "The RPC-ERROR that FUNCTION signals, or nil."
  (handler-case (progn (funcall function) nil)
    (grpc:rpc-error (error) error)))

(defun pipeline-error (peer)
  "The error that a request of entries in the pipeline of PEER ends with, or nil."
  (let ((said nil))
    (raft:pipeline-entries peer (request 0 1) (fn (_response error) (setf said error)))
    (raft:flush-pipeline peer)
    said))

(defun errors-of-all (peer)
  "The errors, or nil, with which each kind of message to PEER ends."
  (append
   (mapcar #'error-of
           (list (lambda () (raft:pre-vote peer (vote 2)))
                 (lambda () (raft:request-vote peer (vote 2)))
                 (lambda () (raft:append-entries peer (request 0 1)))
                 (lambda () (raft:timeout-now peer (v1:make-timeout-now-request :term 2)))
                 (lambda () (raft:install-snapshot peer (header 9 :term 9) (some-octets 9)
                                                   :timeout 5))))
   (list (pipeline-error peer))))

(defmacro with-peer-of ((peer channel &optional (name "B") (group "G") (sender "A")) &body body)
  `(let ((,peer (raft:make-peer ,name ,channel :group ,group :sender ,sender :timeout 5)))
     (unwind-protect (progn ,@body)
       (raft:close-peer ,peer))))

(defun check-refused (member channel reason status name group sender)
  "See that each kind of message from SENDER to NAME of GROUP is refused for REASON with STATUS, and
that none reaches MEMBER."
  (with-peer-of (peer channel name group sender)
    (dolist (error (errors-of-all peer))
      (is (eq reason (raft:refusal-reason error)) "~A" error)
      (is (eq status (grpc:rpc-error-status error)))
      (let ((refusal (grpc:rpc-error-detail error 'v1:refusal)))
        (is (equal (list group sender name)
                   (list (v1:refusal-group refusal) (v1:refusal-sender refusal)
                         (v1:refusal-receiver refusal)))))))
  (is (null (witness-calls member))))

(test what-is-for-another-is-refused
  "A group that is not here, a member of another name, a sender that is the receiver: with every
kind of message, before the state machine is asked."
  (let* ((member (make-instance 'witness))
         (channel (grpc:service-channel (member-service member))))
    (unwind-protect
         (progn
           (check-refused member channel :group-unknown :not-found "B" "H" "A")
           (check-refused member channel :receiver-differs :not-found "C" "G" "A")
           (check-refused member channel :sender-missing :invalid-argument "B" "G" "B")
           ;; the other side of the bound: what is for it comes, with the call
           (with-peer-of (peer channel)
             (is (every #'null (errors-of-all peer)))
             (is (= 9 (length (witness-calls member))))
             (is (every (lambda (call) (and call (stringp (grpc:call-peer call))))
                        (witness-calls member)))))
      (grpc:close-channel channel))))

(test requests-of-another-program-say-whose-they-are
  "One without an address, as of a program that has none, is refused; a name of any length is told
in part only."
  (let* ((member (make-instance 'witness))
         (channel (grpc:service-channel (member-service member))))
    (flet ((reason (&rest arguments)
             (let ((error (error-of
                           (lambda ()
                             (methods:request-vote
                              channel (apply #'v1:make-request-vote-request arguments)
                              :timeout 5)))))
               (is (< (length (princ-to-string error)) 2000))
               (raft:refusal-reason error))))
      (unwind-protect
           (progn
             (is (eq :group-unknown (reason :sender "A")))
             (is (eq :group-unknown (reason :group (make-string 1000000 :initial-element #\g))))
             (is (eq :receiver-differs (reason :sender "A" :group "G")))
             (is (eq :sender-missing (reason :group "G" :receiver "B")))
             (is (null (raft:refusal-reason (error-of (lambda () (grpc:fail :not-found ""))))))
             (is (null (witness-calls member))))
        (grpc:close-channel channel)))))

(test each-request-of-a-stream-is-compared
  "A stream of entries and the parts of a snapshot: one that is for another ends it."
  (let* ((member (make-instance 'witness)) (data (some-octets 20))
         (channel (grpc:service-channel (member-service member))))
    (unwind-protect
         (flet ((reason (chunk)
                  (raft:refusal-reason
                   (error-of (lambda ()
                               (send-snapshot-parts
                                channel (header 20 :octets 20 :crc32c (raft:crc32c data))
                                chunk))))))
           (is (eq :sender-differs (reason (chunk 0 data :sender "D"))))
           (is (eq :receiver-differs (reason (chunk 0 data :receiver "C"))))
           (is (eq :group-unknown (reason (chunk 0 data :group "H"))))
           (is (null (member-chunks member)))
           (let ((other (request 1 1)))
             (setf (v1:append-entries-request-receiver other) "C")
             (grpc:with-call (call (methods:pipeline-entries channel :open :timeout 5))
               (grpc:send call (request 0 1))
               (is-true (v1:append-entries-response-success (grpc:receive call)))
               (grpc:send call other)
               (is (eq :receiver-differs
                       (raft:refusal-reason (error-of (lambda () (grpc:receive call))))))))
           (is (equal '(1) (member-indices member))))
      (grpc:close-channel channel))))

(test groups-of-one-service
  "Each has a state machine and snapshots of its own; what is removed is not there, also on a stream
that has begun."
  (let* ((one (make-instance 'witness)) (other (make-instance 'witness))
         (service (member-service one))
         (channel (grpc:service-channel service)))
    (unwind-protect
         (progn
           (is (eq service (raft:add-group service "H" "C" other)))
           (signals misuse (raft:add-group service "H" "D" other))
           (signals misuse (raft:add-group service "" "D" other))
           (is (eq other (raft:group-state service "H")))
           (is (null (raft:group-state service "I")))
           (let* ((data (some-octets 20))
                  (call (begin-snapshot channel (header 20 :octets 20 :crc32c (raft:crc32c data))
                                        (chunk 0 (subseq data 0 10)))))
             (eventually (member-chunks one))
             (with-peer-of (peer channel "C" "H" "A")
               (raft:pipeline-entries peer (request 0 3) #'list)
               (raft:flush-pipeline peer)
               (is (equal '(3 2 1) (member-indices other)))
               (is (null (member-indices one)))
               (raft:install-snapshot peer (header 30) (some-octets 7))
               (is-true (raft:remove-group service "H"))
               (is-false (raft:remove-group service "H"))
               (is (eq :group-unknown (raft:refusal-reason (pipeline-error peer)))))
             ;; that of the first group has gone on meanwhile
             (grpc:send call (v1:make-install-snapshot-request :chunk (chunk 10 (subseq data 10))))
             (is-true (v1:install-snapshot-response-installed (grpc:receive call)))
             (is (equalp data (received one)))))
      (grpc:close-channel channel))))

;;; Certificates

(defun call-with-tls-member (member options function)
  "Call FUNCTION with a function that returns a channel to MEMBER, whose service has OPTIONS, to
which it shows the certificate of a name, or none for nil."
  (flet ((file (name type)
           (namestring (support:certificate-file (format nil "~A.~A" name type)))))
    (let ((server (grpc:start-server
                   (apply #'member-service member options) :listen "127.0.0.1:0"
                   :credentials (grpc:tls-credentials
                                 :certificate (file "server" "pem") :key (file "server" "key")
                                 :roots (file "ca" "pem") :client-certificates :request))))
      (unwind-protect
           (funcall function
                    (lambda (name)
                      (grpc:make-channel
                       (grpc:server-address server)
                       :credentials (apply #'grpc:tls-credentials :roots (file "ca" "pem")
                                           (and name (list :certificate (file name "pem")
                                                           :key (file name "key")))))))
        (grpc:stop-server server :drain 1)))))

(defun reasons-by-certificate (member rows &rest options)
  "Why messages to MEMBER are refused, for each of ROWS, a list of a certificate and a sender."
  (call-with-tls-member
   member options
   (lambda (make-channel)
     (loop for (certificate sender) in rows
           collect (let ((channel (funcall make-channel certificate)))
                     (unwind-protect (with-peer-of (peer channel "B" "G" sender)
                                       (remove-duplicates
                                        (mapcar (lambda (error)
                                                  (and error (raft:refusal-reason error)))
                                                (errors-of-all peer))))
                       (grpc:close-channel channel)))))))

(test a-certificate-proves-the-sender
  "With TLS the sender is the member that the certificate names, without any setting; a pattern says
where in an identity the name is."
  (let ((member (make-instance 'witness)))
    (is (equal '((:sender-denied) (:sender-denied) (:sender-denied))
               (reasons-by-certificate member '(("elsewhere" "A") ("node-a" "a")
                                                (nil "elsewhere.example")))))
    (is (null (witness-calls member)))
    (is (equal '((nil)) (reasons-by-certificate member '(("elsewhere" "elsewhere.example"))))))
  (is (equal '((nil) (:sender-denied) (:sender-denied) (:sender-denied))
             (reasons-by-certificate (make-instance 'witness)
                                     '(("node-a" "a") ("node-a" "b") ("foreign" "a") (nil "a"))
                                     :allow '((:raft . "spiffe://test.example/node/{name}")))))
  (signals misuse (raft:make-raft-service :allow '((:vote . "*")))))

(test a-stream-proves-each-sender
  "A peer that was admitted as one member is not as another, on the same stream."
  (let ((member (make-instance 'witness)))
    (call-with-tls-member
     member '()
     (lambda (make-channel)
       (let ((channel (funcall make-channel "elsewhere")) (forged (request 1 1))
             (good (request 0 1)))
         (setf (v1:append-entries-request-sender good) "elsewhere.example")
         (unwind-protect
              (grpc:with-call (call (methods:pipeline-entries channel :open :timeout 5))
                (grpc:send call good)
                (is-true (v1:append-entries-response-success (grpc:receive call)))
                (grpc:send call forged)
                (is (eq :sender-denied
                        (raft:refusal-reason (error-of (lambda () (grpc:receive call)))))))
           (grpc:close-channel channel)))))
    (is (equal '(1) (member-indices member)))))

(test a-service-without-tls-says-so
  (with-logged (events :raft-access)
    (grpc:stop-server (grpc:start-server (raft:make-raft-service)) :drain 0)
    (is (equal '((:warning :raft-access :condition
                  "without TLS each peer that can connect may send as any member"))
               (events)))))
