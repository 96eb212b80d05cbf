;;;; The address of a request: its group, the member that sends it and the one for which it is
;;;; meant. A peer puts it on all that it sends, and the service compares it before the state
;;;; machine sees anything. So a process that has taken over the address of another, or serves
;;;; another group, appends no stranger's entries.

(in-package #:clgrpc.raft)

(defun check-names (&rest names)
  "Signal MISUSE unless each of NAMES can be that of a group or a member."
  (dolist (name names)
    (unless (and (stringp name) (string/= "" name))
      (misuse "The name of a group, and of a member, is a string with characters, not ~S." name))))

(defun refuse-address (status reason group sender receiver control &rest arguments)
  "End the call that is being handled with STATUS, a text and a Refusal of REASON."
  (status:fail status (apply #'format nil control arguments)
               :details (list (v1:make-refusal :reason reason :group (printable-text group)
                                               :sender (printable-text sender)
                                               :receiver (printable-text receiver)))))

(defun refusal-reason (error)
  "Return why a service has refused a request before its state machine saw it: :group-unknown,
:receiver-differs, :sender-missing, :sender-denied or :sender-differs; nil if ERROR, the RPC-ERROR
that a call or a pipeline ended with, says something else. From any thread."
  (let ((refusal (status:rpc-error-detail error 'v1:refusal)))
    (and refusal (v1:refusal-reason refusal))))

;;; Requests as a peer sends them: copies, since its user may give the same one to others. What a
;;; request holds, such as entries, is shared.

(defun addressed-vote (request group sender receiver)
  "REQUEST, a RequestVoteRequest, with an address."
  (let ((copy (copy-structure request)))
    (setf (v1:request-vote-request-group copy) group
          (v1:request-vote-request-sender copy) sender
          (v1:request-vote-request-receiver copy) receiver)
    copy))

(defun addressed-timeout (request group sender receiver)
  "REQUEST, a TimeoutNowRequest, with an address."
  (let ((copy (copy-structure request)))
    (setf (v1:timeout-now-request-group copy) group
          (v1:timeout-now-request-sender copy) sender
          (v1:timeout-now-request-receiver copy) receiver)
    copy))

(defun addressed-entries (request group sender receiver)
  "REQUEST, an AppendEntriesRequest, with an address."
  (let ((copy (copy-structure request)))
    (setf (v1:append-entries-request-group copy) group
          (v1:append-entries-request-sender copy) sender
          (v1:append-entries-request-receiver copy) receiver)
    copy))
