;;;; What a stub does on an in-process channel.
;;;;
;;;; A unary call whose handler runs here costs two copies and two objects. It has a LINE only in
;;;; rare cases, which are looked for when the handler has returned: it gave metadata or trailers,
;;;; it will answer later, or something else has ended the call.

(in-package #:clgrpc.inproc)

(defmethod method:invoke ((channel inproc-channel) method request &rest options
                       &key timeout deadline metadata wait-for-ready async call-credentials
                         compression values)
  (declare (ignore wait-for-ready) (dynamic-extent options))
  (when options
    (calling:check-call-options options)
    (rpc:check-compression compression))
  (let* ((site (channel-site channel))
         (deadline (if (or options *call*)
                       (calling:absolute-deadline timeout deadline
                                                 (if (or timeout deadline) (site-now site) 0))
                       0))
         (fields (if (or metadata call-credentials)
                     (status:metadata-entries
                      (append (status:check-metadata metadata)
                              (when call-credentials
                                (calling:credentials-metadata channel call-credentials method))))
                     (load-time-value (vector)))))
    (unless (site-open site) (misuse "~A is closed." channel))
    (if (and (eq :unary (rpc-method-kind method))
             (eq :caller (site-execution site))
             (null async))
        (multiple-value-bind (reply call) (call-unary site method request deadline fields values)
          (if (eq :ok (call-status call))
              (values reply call)
              (calling:fail-or-retry call channel method request (copy-list options))))
        (invoke-line channel site method request deadline fields values async
                     (copy-list options)))))

(define-hot call-unary ((site site) (method rpc-method) request (deadline status:deadline) fields
                        values)
    (values t inproc-call)
  "Run METHOD's handler here. Return its answer, if there is one, and the client's call, with
VALUES."
  (let* ((host (host-of site))
         (route (and host (route-to host method))))
    (if (and route
             (null values)
             (not (observed-p site host))
             (<= (protobuf:measure (method:rpc-method-request-type method)
                                   (calling:only-request method request))
                 (min (options-max-receive-octets (host-options host))
                      (options-max-send-octets (site-options site))))
             (not (and (plusp deadline) (<= deadline (site-now site)))))
        (call-handler-here site host route method (site-copy site request) deadline fields)
        (with-line (line (line-to site host route method deadline fields values))
          (send-only-request line request)
          (await-reply line)))))

(define-hot (answer-in-room :inline t) ((host host) (route inproc-route) request
                                        (call inproc-call))
    t
  "Call the handler of ROUTE, and the interceptors around it; return their answer. If answers of
ROUTE have been long lately, wait first until there is room for another and its copy."
  (let ((octets (serving:route-long-octets route)))
    (if (zerop octets)
        (serving:answer-of route request call)
        (rpc:call-with-room call (* 2 octets) (host-options host)
                            (lambda () (serving:answer-of route request call))))))

(defun copy-answer (site host route call answer size)
  "As SITE-COPY, for an ANSWER of SIZE octets that is long, or of a ROUTE that has given long ones
lately."
  (cond ((<= size rpc:+long-octets+)
         (serving:note-short-answer route)
         (site-copy site answer))
        (t (serving:note-long-answer route size)
           (copy-in-room site call answer size (host-options host)))))

(define-hot call-handler-here ((site site) (host host) (route inproc-route) (method rpc-method)
                               request (deadline status:deadline) fields)
    (values t inproc-call)
  "Call the handler of ROUTE with REQUEST, a message that is for it alone. Values as CALL-UNARY."
  (let* ((call (make-server-end method deadline fields site nil))
         (tally (host-tally host))
         (type (method:rpc-method-response-type method))
         (limit (min (options-max-send-octets (host-options host))
                     (options-max-receive-octets (site-options site))))
         (reply nil)
         (returned nil)
         (condition nil)
         (open nil))                    ; the call is counted as begun, and as not ended
    (declare (type index limit))
    (unwind-protect
         (progn
           (uninterrupted
             (count-begun tally)
             (setf open t))
           (setf condition
                 (with-clean-context ()
                   (with-user-code (call)
                     (setf returned (answer-in-room host route request call))
                     (unless (eq returned call)
                       (let ((size (protobuf:measure type returned)))
                         (when (<= size limit)
                           (setf reply (if (and (<= size rpc:+long-octets+)
                                                (zerop (serving:route-long-octets route)))
                                           (site-copy site returned)
                                           (copy-answer site host route call returned
                                                        size)))))))))
           (cond ((and reply
                       (null condition)
                       (null (inproc-call-line call))
                       (null (rpc:call-parts call))
                       (not (rpc:overdue-p call)))
                  (setf (call-status call) :ok)
                  (uninterrupted
                    (count-ended tally)
                    (setf open nil))
                  (values reply (make-client-end method deadline :ok site nil)))
                 (t (multiple-value-prog1 (await-outcome call returned condition)
                      (setf open nil)))))
      (when open
        (rpc:abort-as (line-client (call-line call)) :caller-interrupted)))))

(defun await-outcome (call returned condition)
  "The handler of CALL, a unary one, has RETURNED something or ended with CONDITION. Values as
CALL-UNARY."
  (let ((line (call-line call)))
    (look call)
    (conclude line returned condition)
    (await-reply line)))

(defun await-reply (line)
  "Wait for the end of the call of LINE. Return its reply, if there is one, and the client's call."
  (let ((client (line-client line)))
    (when (eq :waiting (line-phase line))
      (begin-for-receiver line))
    (rpc:wait-for-call client #'rpc:call-status)
    (values (line-reply line) client)))

;;; Calls with a line

(defun line-to (site host route method deadline fields &optional values)
  "Make a line to ROUTE of HOST, whose client has VALUES, as :values of a stub. If there is no such
host or route, the call of the line has ended with the status that says so."
  (if route
      (let ((line (open-line site host route method deadline fields values)))
        (look (line-server line))
        line)
      (let ((line (idle-line site host method deadline fields)))
        (when values (calling:begin-values (line-client line) values))
        (if host (end-unknown line) (end-absent line))
        line)))

(defun idle-line (site host method deadline fields)
  "A line with both ends, to no handler. Its call is about to end."
  (let ((line (make-line host nil nil)))
    (setf (line-client line) (make-client-end method deadline nil site line)
          (line-server line) (make-server-end method deadline fields site line)
          (line-phase line) :over
          (line-claim line) t)
    line))

(defun failed-line (site method deadline error)
  "A line whose call has ended with ERROR at its client's end, before anybody else knew of it."
  (let* ((line (idle-line site nil method deadline #()))
         (client (line-client line)))
    (setf (rpc:ending-trailer-fields (rpc:ensure-ending client))
          (status:metadata-entries (status:rpc-error-trailers error))
          (call-status (line-server line)) :cancelled)
    (rpc:end-call client (status:rpc-error-status error)
                  :message (status:rpc-error-message error)
                  :details (status:rpc-error-details-octets error) :ended-by :local :sent nil)
    line))

(defun end-unknown (line)
  "The host of LINE has no route for its call."
  (let ((tally (host-tally (line-host line))))
    (count-begun tally)
    (tell-begin line)
    (multiple-value-bind (status text) (rpc:verdict :unknown-method)
      (rpc:end-call (line-server line) status :message text :ended-by :local)
      (rpc:end-call (line-client line) status :message text)
      (tell-attempt-ended (line-client line)))
    (count-ended tally)))

(defun end-absent (line)
  "End the call of LINE, which has no host, for its client."
  (let ((client (line-client line)))
    (tell-begin line)
    (rpc:end-call client :unavailable :message (absence-text (call-site client))
                                      :ended-by :transport :sent nil)
    (tell-attempt-ended client)
    (setf (call-status (line-server line)) :cancelled)))

(defun send-only-request (line request)
  "Give the handler of LINE its only REQUEST. If that is left by an error or another non-local exit,
the call has ended."
  (let ((client (line-client line))
        (passed nil))
    (unless (call-status client)
      (with-undoing (nil (unless passed (operate leave client)))
        (handler-case
            (setf (line-request line)
                  (pass client (calling:only-request (rpc:call-rpc-method client) request))
                  passed t)
          (status:rpc-error (error)
            ;; one that the server has refused has ended the call; the caller's own limit is his
            ;; error
            (if (call-status client) (setf passed t) (error error))))))))

(defun invoke-line (channel site method request deadline fields values async options)
  "INVOKE for all but the plainest calls."
  (let* ((kind (rpc-method-kind method))
         (generator (and (member kind '(:client-streaming :bidi))
                         (not (eq request :open))
                         (calling:request-generator request)))
         (host (host-of site)))
    (with-line (line (line-to site host (and host (route-to host method)) method deadline fields
                              values))
      (setf (line-unattended line) (and async t))
      (begin-kind line kind channel method request generator options))))

(defun begin-kind (line kind channel method request generator options)
  "Begin the call of LINE, of KIND, whose requests GENERATOR gives if it is not nil. Return what
INVOKE returns."
  (let* ((client (line-client line))
         (site (call-site client))
         (async (line-unattended line)))
    (ecase kind
      (:unary
       (send-only-request line request)
       (cond (async (begin-elsewhere line) client)
             (t (finish-blocking line channel method request options))))
      (:server-streaming
       (send-only-request line request)
       (when (eq :threads (site-execution site)) (begin-elsewhere line))
       client)
      (:client-streaming
       (cond ((null generator)
              (setf (line-queued-reply line) t)
              (look-after line)
              client)
             (async
              (setf (line-source line) generator)
              (begin-elsewhere line)
              client)
             (t (if (eq :caller (site-execution site))
                    (setf (line-source line) generator
                          (line-consumer line) (this-context nil))
                    (progn
                      ;; what makes the requests may wait for the handler
                      (when (functionp request) (begin-elsewhere line))
                      (calling:send-requests client generator)))
                (finish-blocking line channel method request options))))
      (:bidi
       (setf (line-source line) generator)
       (if (eq :threads (site-execution site))
           (begin-elsewhere line)
           (look-after line))
       client))))

(defun finish-blocking (line channel method request options)
  "Wait for the reply of LINE's call, and return it and the call."
  (multiple-value-bind (reply client) (await-reply line)
    (cond ((eq :ok (call-status client)) (values reply client))
          ((functionp request) (error (rpc:call-condition client)))
          (t (calling:fail-or-retry client channel method request options)))))

;;; Futures

(loop:define-completions (call inproc-call) (line-completions (call-line call)))
