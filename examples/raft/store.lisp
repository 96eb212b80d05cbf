;;;; The state machine: keys with values, and the sessions of clients. A command changes it by a
;;;; rule that asks for nothing but the store, the command and its index, so all members have the
;;;; same.
;;;;
;;;; A session keeps the result of its last command: sent again, the command does nothing and has
;;;; that result. Of too many sessions the one that was used least recently goes.

(in-package #:clgrpc.examples.raft)

(defconstant +most-sessions+ 1000)

(defstruct (session (:copier nil))
  "What the store knows of a client."
  (sequence 0)                          ; of its last command
  (result nil)                          ; of that
  (used 0))                             ; the index at which it was used last

(defstruct (store (:copier nil))
  "All that is replicated."
  (pairs (make-hash-table :test 'equal))  ; from a key to its value
  (sessions (make-hash-table)))           ; from its number to a session

(defmethod print-object ((store store) stream)
  (print-unreadable-object (store stream :type t)
    (format stream "~D keys, ~D sessions" (hash-table-count (store-pairs store))
            (hash-table-count (store-sessions store)))))

(defun change-pair (store command)
  "Do COMMAND to the pairs of STORE; return its Result."
  (let* ((pairs (store-pairs store)) (key (pb:command-key command))
         (value (pb:command-value command))
         (before (gethash key pairs "")) (changed t))
    (ecase (pb:command-kind command)
      (:put (setf (gethash key pairs) value))
      (:append (setf (gethash key pairs) (concatenate 'string before value)))
      (:delete (remhash key pairs))
      (:compare-and-set
       (if (string= before (pb:command-expected command))
           (setf (gethash key pairs) value)
           (setf changed nil))))
    (pb:make-result :changed changed :value (gethash key pairs ""))))

(defun drop-oldest-session (store)
  (let ((oldest nil) (least nil))
    (maphash (lambda (number session)
               (when (or (null least) (< (session-used session) least))
                 (setf oldest number
                       least (session-used session))))
             (store-sessions store))
    (remhash oldest (store-sessions store))))

(defun open-numbered-session (store index)
  "Open a session whose number is INDEX, of its command; return the Result."
  (let ((sessions (store-sessions store)))
    (when (>= (hash-table-count sessions) +most-sessions+) (drop-oldest-session store))
    (setf (gethash index sessions) (make-session :used index))
    (pb:make-result :session index)))

(defun apply-command (store command index)
  "Do COMMAND, which is committed at INDEX, to STORE; return its Result."
  (let ((session (gethash (pb:command-session command) (store-sessions store))))
    (cond ((eq :open (pb:command-kind command)) (open-numbered-session store index))
          ((null session) (pb:make-result :session-lost t))
          ((= (pb:command-sequence command) (session-sequence session)) (session-result session))
          ((< (pb:command-sequence command) (session-sequence session))
           (pb:make-result :session-lost t)) ; the client has gone on: nobody waits for this
          (t (setf (session-sequence session) (pb:command-sequence command)
                   (session-used session) index
                   (session-result session) (change-pair store command))))))

(defun sorted-values (table function predicate)
  (mapcar #'cdr (sort (loop for key being the hash-keys of table using (hash-value value)
                            collect (cons key (funcall function key value)))
                      predicate :key #'car)))

(defun store-snapshot (store)
  "STORE as octets. The same store is the same octets."
  (grpc:serialize
   (pb:make-contents
    :pairs (sorted-values (store-pairs store)
                          (lambda (key value) (pb:make-pair :key key :value value))
                          #'string<)
    :sessions (sorted-values (store-sessions store)
                             (lambda (number session)
                               (pb:make-open-session
                                :session number :sequence (session-sequence session)
                                :result (session-result session) :used (session-used session)))
                             #'<))))

(defun restored-store (octets)
  "The store that OCTETS, of STORE-SNAPSHOT, stand for."
  (let ((contents (grpc:parse-message 'pb:contents octets)) (store (make-store)))
    (loop for pair across (pb:contents-pairs contents)
          do (setf (gethash (pb:pair-key pair) (store-pairs store))
                   (pb:pair-value pair)))
    (loop for session across (pb:contents-sessions contents)
          do (setf (gethash (pb:open-session-session session) (store-sessions store))
                   (make-session :sequence (pb:open-session-sequence session)
                                 :result (pb:open-session-result session)
                                 :used (pb:open-session-used session))))
    store))

(defun store-digest (store)
  "A number that two stores have in common if they are the same."
  (raft:crc32c (store-snapshot store)))
