;;;; Internal calls: streams of responses that the channel itself requests from one server, on a
;;;; link of a given subchannel: health (gRFC A17), load reports (gRFC A51). Internal calls bypass
;;;; the picker, are not retried, and have no method config. Internal calls do not count as calls of
;;;; the channel's users: observers do not see them, and they do not make a connection useful. An
;;;; internal call ends when its link gets no more calls, so that it does not delay the link's end.
;;;;
;;;; The messages of internal calls are reports, and each report makes the earlier ones obsolete.
;;;; The loop gets the newest report; earlier reports that it has not handled yet are skipped, since
;;;; a server can send reports faster than balancers can use them.
;;;;
;;;; Internal calls carry the channel's call credentials, as gRFC A17 asks. The credentials may have
;;;; to fetch a token. A function of a user among the credentials may wait, so a thread of the
;;;; reserve calls it. The call begins when the credentials have answered.

(in-package #:clgrpc.client)

(defun replace-newest (newest message)
  "Put MESSAGE, or nil, into the cell NEWEST. Return the message that waited before; nil if none
waited. From any thread."
  (declare (type cons newest))
  (loop
    (let ((old (car newest)))
      (when (eq old (compare-and-swap (car newest) old message)) (return old)))))

(defun make-internal-call (subchannel method on-message on-end)
  "A call of METHOD, which has not begun, for OPEN-INTERNAL-CALL."
  (declare (type function on-message on-end))
  (let* ((core (subchannel-core subchannel))
         (loop (core-loop core))
         (newest (list nil))            ; a message for ON-MESSAGE, which is posted, or nil
         (call (make-client-call :rpc-method method :endpoint core
                                 :operations **stream-operations**
                                 :born-ns (core-now core))))
    (setf (client-parts-internal (ensure-client-parts call)) t)
    (flet ((end ()
             (setf (subchannel-internal-calls subchannel)
                   (delete call (subchannel-internal-calls subchannel)))
             (funcall on-end (call-status call)))
           (tell-newest () (funcall on-message (replace-newest newest nil))))
      ;; callbacks run with the baton lent
      (rpc:on-message call (lambda (message)
                             (unless (replace-newest newest message)
                               (loop:post loop #'tell-newest))))
      (rpc:on-end call (lambda () (loop:post loop #'end))))
    (wire:mark-call call :closed)
    call))

(defun start-internal-call (call subchannel request)
  "Start CALL with REQUEST on a link of SUBCHANNEL; return nil if no stream is free now."
  (multiple-value-bind (stream link) (free-stream subchannel)
    (when stream
      (incf (client-link-internal-streams link))
      (decf (subchannel-picks subchannel))
      (push call (subchannel-internal-calls subchannel))
      (rpc:observe call-begun (client-observer call) call)
      (begin-attempt call link stream request)
      call)))

;;; With call credentials

(defun end-refused-call (call error)
  "End CALL, an internal call that has not begun, with ERROR, an RPC-ERROR."
  (end-client-call call (status:rpc-error-status error) (rpc-error-message error)
                   :ended-by :local :cause error :sent nil))

(defun start-with-metadata (call subchannel request metadata error)
  "If CALL has not ended meanwhile, start it with METADATA of the call credentials, or end it with
ERROR, an RPC-ERROR or nil."
  (unless (call-status call)
    (cond (error (end-refused-call call error))
          (t (setf (rpc:outgoing-metadata call) metadata)
             (unless (start-internal-call call subchannel request)
               (end-client-call call :resource-exhausted "the connection has no free stream"
                                :ended-by :local :sent nil))))))

(defun start-with-credentials (call subchannel request)
  "Start CALL once the channel's call credentials have given metadata for it."
  (let ((core (subchannel-core subchannel)))
    (handler-case (credentials:check-credentials (core-call-credentials core) core)
      (status:rpc-error (error) (end-refused-call call error))
      (:no-error (&rest values)
        (declare (ignore values))
        (ask-of call (core-call-credentials core)
                (lambda (metadata error)
                  (loop:post (core-loop core)
                             (lambda ()
                               (start-with-metadata call subchannel request metadata
                                                    error)))))))))

;;; Opening and closing

(defun open-internal-call (subchannel method request &key on-message on-end)
  "Call METHOD, which streams responses, with REQUEST on a link of SUBCHANNEL, which is ready.
ON-MESSAGE is called with the messages; some of them may be skipped, but never the last. ON-END is
called with the status. Both are called on the loop. Return the call, or nil if no link has a stream
now."
  (let ((call (make-internal-call subchannel method on-message on-end)))
    (cond ((core-call-credentials (subchannel-core subchannel))
           (start-with-credentials call subchannel request)
           call)
          (t (start-internal-call call subchannel request)))))

(defun close-internal-call (call)
  "End CALL, an internal call; after this only its end is reported."
  (unless (call-status call)
    (client-abort call :cancelled "the channel no longer needs this call" :local)))
