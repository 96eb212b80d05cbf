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

;;; Requests as a peer sends them

(defun addressed-vote (request group sender receiver)
  "REQUEST, a RequestVoteRequest, with an address."
  (v1:make-request-vote-request
   :term (v1:request-vote-request-term request) :sender sender
   :last-log-index (v1:request-vote-request-last-log-index request)
   :last-log-term (v1:request-vote-request-last-log-term request)
   :leadership-transfer (v1:request-vote-request-leadership-transfer request)
   :group group :receiver receiver))

(defun addressed-timeout (request group sender receiver)
  "REQUEST, a TimeoutNowRequest, with an address."
  (v1:make-timeout-now-request :term (v1:timeout-now-request-term request) :sender sender
                               :group group :receiver receiver))

(defun addressed-entries (request group sender receiver)
  "REQUEST, an AppendEntriesRequest, with an address. It shares the entries of REQUEST."
  (v1:make-append-entries-request
   :term (v1:append-entries-request-term request) :sender sender
   :prev-log-index (v1:append-entries-request-prev-log-index request)
   :prev-log-term (v1:append-entries-request-prev-log-term request)
   :leader-commit (v1:append-entries-request-leader-commit request)
   :entries (v1:append-entries-request-entries request)
   :group group :receiver receiver))
