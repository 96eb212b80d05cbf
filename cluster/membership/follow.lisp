;;;; Following a cluster from outside it: when a call of Watch breaks, the client asks the next node
;;;; that the channel reaches, from the same revision on.

(in-package #:clgrpc.cluster)

(defconstant +follow-pause-seconds+ 1/4 "How long a follower waits before it asks again.")

(defun response-members (response)
  "Return the members in RESPONSE, a MembersResponse, a list by name. From any thread."
  (map 'list #'message-member (pb:members-response-members response)))

(defun told-response (kind items revision)
  "Return a WatchResponse of KIND, ITEMS and REVISION, the arguments of FOLLOW-CLUSTER's function;
for instance to print its JSON. From any thread."
  (if (eq :members kind)
      (pb:make-watch-response :revision revision :snapshot t
                              :members (mapcar #'member-message items))
      (changes-response revision items)))

(defun take-response (function response)
  "Call FUNCTION with the members or changes in RESPONSE, of Watch; return the revision from which
to continue."
  (let ((revision (pb:watch-response-revision response)))
    (if (pb:watch-response-snapshot response)
        (funcall function :members
                 (map 'list #'message-member (pb:watch-response-members response)) revision)
        (funcall function :changes
                 (map 'list #'message-change (pb:watch-response-changes response)) revision))
    (1+ revision)))

(defun message-change (message)
  (make-change (case (pb:change-kind message)
                 (:change-kind-joined :joined)
                 (:change-kind-left :left)
                 (:change-kind-lost :lost)
                 (t :updated))
               (message-member (or (pb:change-member message) (pb:make-member)))))

(defun await-answer (call end-ns)
  "Wait for the headers of CALL. If no answer arrives before END-NS, cancel CALL, because the call
would not end while its node hangs."
  (let ((answered nil))
    (rpc:after call (loop:seconds-until end-ns)
               (lambda () (unless answered (rpc:cancel call))))
    (rpc:call-metadata call)
    (setf answered t)))

(defun follow-cluster (function channel &key (revision 0) (patience-seconds 60))
  "Follow the cluster of the node at CHANNEL: call FUNCTION, in this thread, with :members, a list
of all members by name, and their revision; or with :changes, a list of changes of one revision, and
that revision. With REVISION 0 FUNCTION gets the members first; otherwise the changes from that
revision on. When the node ends, the next node that CHANNEL reaches continues from there, so each
change is reported once, in order. If the store has compacted the next changes, or has gone back to
older data, FUNCTION gets all members again. FOLLOW-CLUSTER ends only by a non-local exit of
FUNCTION, an error in FUNCTION, or an RPC-ERROR. That is a permanent error; or, when no node has
answered for PATIENCE-SECONDS (60), the last error, or UNAVAILABLE if no error has occurred. Only
the keepalive-seconds of CHANNEL detect a node that hangs later. From any thread but a loop's."
  (let ((end nil)                       ; the time when patience ends; nil while a node answers
        (pauses (loop:make-pauses +follow-pause-seconds+ +follow-pause-seconds+)))
    (loop
      (unless end (setf end (loop:notice-end patience-seconds)))
      (handler-case
          (rpc:with-call (call (methods:watch channel (pb:make-watch-request :revision revision)))
            ;; a node that is asked answers at once, though nothing may happen for long
            (await-answer call end)
            (unless (rpc:call-status call) (setf end nil))
            (loop for response = (rpc:receive call)
                  while response
                  ;; errors of FUNCTION's own calls are not CALL's
                  do (setf revision (with-function-failed (status:rpc-error)
                                      (take-response function response))
                           end nil)))
        (function-failed (failure) (error (function-failed-cause failure)))
        (status:out-of-range (condition)
          (when (zerop revision) (error condition))
          (setf revision 0))
        ((or status:unavailable status:resource-exhausted status:cancelled) (condition)
          (unless end (setf end (loop:notice-end patience-seconds)))
          (when (<= end (loop:world-now))
            (if (typep condition 'status:cancelled)
                (error 'status:unavailable
                       :status :unavailable
                       :message (format nil "no node has answered for ~D s" patience-seconds))
                (error condition)))))
      (loop:world-sleep (loop:next-pause pauses)))))
