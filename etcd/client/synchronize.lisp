;;;; Endpoints from the list of members: a client that knows one of them learns the others and new
;;;; ones, and forgets removed ones.

(in-package #:clgrpc.etcd)

(defun member-endpoints (members secure)
  "The endpoints of the MEMBERS, plists of LIST-MEMBERS, that have started and have a vote; for TLS
if SECURE is true. The list may be empty."
  (let ((scheme (if secure "https://" "http://")))
    (loop for member in members
          unless (or (getf member :learner) (string= "" (getf member :name)))
            append (loop for url in (getf member :clients)
                         when (alexandria:starts-with-subseq scheme url)
                           collect (string-right-trim "/" (subseq url (length scheme)))))))

(defun synchronize-once (etcd timeout)
  "See SYNCHRONIZE-ENDPOINTS."
  (let ((endpoints (member-endpoints (list-members etcd :timeout timeout)
                                     (getf (etcd-options etcd) :credentials))))
    (when endpoints (set-endpoints (etcd-resolver etcd) endpoints))
    endpoints))

(defun keep-synchronizing (etcd seconds)
  "Make the endpoints of ETCD follow its members, every SECONDS."
  (let* ((cancellation-token (make-cancellation-token))
         (begun nil)
         (job (add-job
               etcd
               (lambda ()
                 (when (shiftf begun t)
                   (handler-case (with-cancellation-token (cancellation-token)
                                                          (synchronize-once etcd nil))
                     ;; the next time
                     (clgrpc-error (condition)
                       (log-event :info :etcd-endpoints-kept
                                  :condition (bounded-text condition)))))
                 seconds))))
    (add-ending etcd (lambda ()
                       (end-cancellation-token cancellation-token)
                       (loop:end-job job)))
    (loop:wake-job job)))

(define-keyword-function synchronize-endpoints (etcd &key every timeout)
  "Replace the endpoints of ETCD by the client addresses of all members that have started and have a
vote, as they announce them. With EVERY, in seconds, repeat this until CLOSE-ETCD. Return the
endpoints, a list. If the list is empty, because these members use no TLS and the client does, or
the reverse, the endpoints remain the same. The announced addresses must also be valid for this
client: localhost, or a name within a container, is not. Connections to members that stay are kept.
Signal MISUSE if ETCD has a channel of its user's, or an ETCD-ERROR. From any thread."
  (check-type every (or null (real (0))))
  (unless (etcd-resolver etcd)
    (misuse "A client that was made with :channel has no endpoints."))
  (let ((endpoints (synchronize-once etcd timeout)))
    (when every (keep-synchronizing etcd every))
    endpoints))
