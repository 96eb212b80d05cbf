;;;; A client: it finds the leader, and sends a command again until it knows its result. The session
;;;; makes that once. A client is used by one thread at a time.

(in-package #:clgrpc.examples.raft)

(define-condition gave-up (error)
  ((text :initarg :text :reader gave-up-text)) ; why
  (:report (lambda (condition stream) (write-string (gave-up-text condition) stream)))
  (:documentation "The time was up, or the session is lost: a command was perhaps done."))

(defclass client ()
  ((channels :initarg :channels :reader client-channels) ; an alist from the name of a member
   (attempt-seconds :initarg :attempt-seconds :reader client-attempt-seconds) ; for one member
   (leader :initform nil :accessor client-leader) ; a name, perhaps of one that leads no longer
   (session :initform nil :accessor client-session) ; its number
   (sequence :initform 0 :accessor client-sequence)) ; of the last command
  (:documentation "A client of the group: see MAKE-CLIENT."))

(defun make-client (addresses &key (attempt-seconds 1/2))
  "Return a client of the group whose members have ADDRESSES, an alist as for START-NODE.
It asks another after ATTEMPT-SECONDS without an answer."
  (make-instance 'client :attempt-seconds attempt-seconds
                         :channels (loop for (name . address) in addresses
                                         collect (cons name (grpc:make-channel address)))))

(defun close-client (client)
  (loop for (nil . channel) in (client-channels client) do (grpc:close-channel channel)))

(defun next-member (client)
  "The name of the member after the one that CLIENT has asked."
  (let ((names (mapcar #'car (client-channels client))))
    (or (second (member (client-leader client) names :test #'equal)) (first names))))

(defun note-failure (client error)
  "ERROR has come in place of a result: ask another."
  (let* ((detail (grpc:rpc-error-detail error 'pb:not-leader))
         (leader (and detail (pb:not-leader-leader detail))))
    (setf (client-leader client)
          (if (and leader (string/= leader (or (client-leader client) ""))
                   (assoc leader (client-channels client) :test #'string=))
              leader
              (next-member client)))))

(defun ask (client method request timeout)
  "What the leader answers to REQUEST of METHOD, within TIMEOUT seconds."
  (loop with end-ns = (loop:notice-end timeout)
        do (unless (client-leader client) (setf (client-leader client) (next-member client)))
           (handler-case
               (return (values (funcall method (cdr (assoc (client-leader client)
                                                           (client-channels client)
                                                           :test #'string=))
                                        request
                                        :timeout (min (client-attempt-seconds client) timeout))))
             (grpc:rpc-error (error)
               (note-failure client error)
               (when (>= (loop:world-now) end-ns)
                 (error 'gave-up :text (format nil "The time is up: ~A" error)))
               (loop:world-sleep 1/50)))))

(defun open-session (client &key (timeout 10))
  "Have the commands of CLIENT be done once each."
  (setf (client-session client)
        (pb:result-session (ask client #'methods:change (pb:make-command :kind :open) timeout))
        (client-sequence client) 0))

(defun change (client kind key value &key (expected "") (timeout 10))
  "Do to KEY what KIND, :put, :append, :compare-and-set or :delete, says, once; return the value
that it has then, and whether it was changed. Signal GAVE-UP after TIMEOUT seconds."
  (unless (client-session client) (open-session client :timeout timeout))
  (let ((result (ask client #'methods:change
                     (pb:make-command :kind kind :session (client-session client)
                                      :sequence (incf (client-sequence client))
                                      :key key :value value :expected expected)
                     timeout)))
    (when (pb:result-session-lost result)
      (setf (client-session client) nil)
      (error 'gave-up :text "The session is lost."))
    (values (pb:result-value result) (pb:result-changed result))))

(defun fetch (client key &key (timeout 10))
  "Return the value of KEY, \"\" if it has none: one that is not older than this call."
  (pb:result-value (ask client #'methods:read (pb:make-read-request :key key) timeout)))
