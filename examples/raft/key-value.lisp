;;;; The service for clients. Commands go through the log; reads do not: the leader notes what is
;;;; committed, hears from a majority that it leads still, and answers when it has applied as much.

(in-package #:clgrpc.examples.raft)

(defconstant +most-proposals+ 1000 "Commands, and reads, that wait at a time.")
(defconstant +most-text+ 65536 "Characters of a key, or of a value.")

(defclass key-value (pb:key-value)
  ((node :initarg :node :reader key-value-node))
  (:documentation "The service of a node for its clients."))

(defun check-leads (node)
  "Refuse a call of a client's unless NODE leads."
  (unless (eq :leader (node-role node))
    (grpc:fail :unavailable (format nil "~A does not lead" (node-name node))
               :details (list (pb:make-not-leader :leader (or (node-leader node) ""))))))

(defun check-room (count)
  (when (>= count +most-proposals+) (grpc:fail :resource-exhausted "too many calls wait")))

(defun check-text (&rest texts)
  (when (some (lambda (text) (> (length text) +most-text+)) texts)
    (grpc:fail :invalid-argument "a key, or a value, is too long")))

(defun await-turn (node future)
  "What FUTURE, of a turn of NODE, brings."
  (ring node)
  (handler-case (loop:await future :timeout (getf (node-timing node) :patience))
    (loop:await-timeout () (grpc:fail :deadline-exceeded "no majority has answered"))))

(defmethod methods:change ((service key-value) command &key)
  (check-text (pb:command-key command) (pb:command-value command) (pb:command-expected command))
  (let ((node (key-value-node service)) (future (loop:make-future)))
    (with-disk (node)
      (check-leads node)
      (check-room (+ (hash-table-count (node-waiting node)) (length (node-proposals node))))
      (push (make-proposal (grpc:serialize command) future) (node-proposals node)))
    (await-turn node future)))

(defun begin-read (node future)
  "FUTURE is settled once what NODE has applied is not older than now."
  (let ((commit (node-commit node)))
    (check-leads node)
    (check-room (length (node-reads node)))
    ;; until then it does not know what others have committed before it (6.4)
    (unless (eql (node-term node) (term-at (node-log node) commit))
      (grpc:fail :unavailable "it has only begun to lead"))
    (push (make-pending-read future commit (incf (node-round node))) (node-reads node))))

(defmethod methods:read ((service key-value) request &key)
  (let ((node (key-value-node service)) (future (loop:make-future)))
    (with-disk (node) (begin-read node future))
    (await-turn node future)
    (with-disk (node)
      (pb:make-result :value (gethash (pb:read-request-key request) (store-pairs (node-store node))
                                      "")))))
