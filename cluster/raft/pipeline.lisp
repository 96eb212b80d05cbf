;;;; The pipeline: requests of entries that go to a peer one after the other, on one stream, without
;;;; waiting for the answers. Its guarantees:
;;;;
;;;; 1. The peer's state machine gets the requests in the order in which they were given, each at
;;;;    most once. Requests that wait because the window is full are joined if they follow each
;;;;    other (batch.lisp).
;;;; 2. For each accepted request its function is called once, in the order of the requests: with
;;;;    the answer, or with the error that has ended the stream. After an error the leader does not
;;;;    know which of the sent requests were handled: it asks for the end of the peer's log and
;;;;    continues there.
;;;; 3. When a stream breaks, all accepted requests end with its error, even those that were not
;;;;    sent. The next request begins a new stream; it is sent only after all these functions were
;;;;    called.
;;;; 4. If answers are awaited and none arrives for the peer's timeout, the stream is given up. The
;;;;    time counts from the last answer, or from the moment when the pipeline was last empty: a
;;;;    request that waits for others does not time out while these are answered in time.
;;;;
;;;; One thread at a time sends (PUMPING): the first that finds something to send, be it a thread
;;;; that adds a request or the loop that receives answers. The sender never waits for the stream: a
;;;; batch for which the stream has no room is HELD, and the stream reports when to try again. The
;;;; stream may report that between the refusal and the note of the refusal; RUNG records this. The
;;;; entries and octets of an answered request are subtracted from the sums before its function is
;;;; called, so that the function may add the next request.

(in-package #:clgrpc.raft)

(defun queued-request-weight (queued-request)
  "The entries that QUEUED-REQUEST counts against the bound, at least 1, even for a request without
entries."
  (max 1 (queued-request-entries queued-request)))

(defun room-p (peer pipe entries octets)
  "True if PIPE, of PEER, has room for ENTRIES more, with OCTETS of data. An empty pipe accepts a
request of any size."
  (or (pipe-closed pipe)
      (zerop (pipe-entries pipe))
      (and (<= (+ entries (pipe-entries pipe)) (peer-max-entries peer))
           (<= (+ octets (pipe-octets pipe)) (peer-max-octets peer)))))

(defun change-load (peer entries octets)
  "Add ENTRIES and OCTETS, which may be negative, to the sums of PEER's pipe. The caller must hold
the pipe's lock."
  (let ((pipe (peer-pipe peer)))
    (when (zerop (pipe-entries pipe)) (setf (pipe-since-ns pipe) (loop:world-now)))
    (incf (pipe-entries pipe) entries)
    (incf (pipe-octets pipe) octets)
    (note-queued (peer-meter peer) entries octets)))

(defun sum-of (queued-requests key)
  (reduce #'+ queued-requests :key key))

(defun conclude (peer queued-requests response error)
  "Call the functions of QUEUED-REQUESTS, which were removed from the pipe of PEER, with their
outcomes."
  (let ((pipe (peer-pipe peer)))
    (flet ((change-telling (delta)
             (incf (pipe-telling pipe) delta)
             (sb-thread:condition-broadcast (pipe-waitqueue pipe))))
      (sb-thread:with-mutex ((pipe-lock pipe))
        (change-load peer (- (sum-of queued-requests #'queued-request-weight))
                     (- (sum-of queued-requests #'queued-request-octets)))
        (change-telling 1))
      (unwind-protect (dolist (queued-request queued-requests)
                        ;; a function that fails does not affect the others
                        (loop:guarding (:raft-then-error)
                          (funcall (queued-request-then queued-request) response error)))
        (sb-thread:with-mutex ((pipe-lock pipe))
          (change-telling -1))))))

(defun note-batch (peer batch status)
  (note-answered (peer-meter peer) "pipeline-entries" status (batch-sent-ns batch)))

;;; Streams

(defun give-up-stream (peer call reason)
  "End CALL, the stream of PEER, because of REASON, a condition."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (when (and (eq call (pipe-call pipe)) (null (pipe-error pipe)))
        (setf (pipe-error pipe) reason))))
  (loop:cancel call))

(defun local-error (status control &rest arguments)
  (status:make-rpc-error status :ended-by :local :message (apply #'format nil control arguments)))

(defun take-answer (peer call response)
  "Take RESPONSE, received on CALL, a stream of PEER, as the answer to the oldest batch."
  (let* ((pipe (peer-pipe peer))
         (batch (sb-thread:with-mutex ((pipe-lock pipe))
                  (when (and (eq call (pipe-call pipe)) (plusp (pipe-sent-count pipe)))
                    (setf (pipe-since-ns pipe) (loop:world-now))
                    (decf (pipe-sent-count pipe))
                    (dequeue (pipe-sent pipe))))))
    (cond (batch
           (note-batch peer batch :ok)
           (conclude peer (batch-queued-requests batch) response nil)
           (pump peer))
          (t (give-up-stream peer call
                             (local-error :internal "~A has answered a request that was not sent"
                                          (peer-name peer)))))))

(defun end-error (peer call reason)
  "The error for the requests that were sent on CALL, which has ended for REASON."
  (or reason
      (and (not (eq :ok (rpc:call-status call))) (rpc:call-condition call))
      (local-error :unavailable "~A has ended the stream" (peer-name peer))))

(defun empty-pipe (pipe)
  "Remove all requests from PIPE, whose stream has ended. Return three values: the batches that were
sent, the queued requests that were not, and the reason why the stream was given up, or nil. The
caller must hold the lock of PIPE."
  (multiple-value-prog1 (values (fifo-items (pipe-sent pipe))
                                (append (and (pipe-held pipe)
                                             (batch-queued-requests (pipe-held pipe)))
                                        (fifo-items (pipe-waiting pipe)))
                                (pipe-error pipe))
    (setf (pipe-sent pipe) (make-fifo)
          (pipe-held pipe) nil
          (pipe-waiting pipe) (make-fifo)
          (pipe-sent-count pipe) 0
          (pipe-full pipe) nil
          (pipe-error pipe) nil
          (pipe-call pipe) nil
          (pipe-ending pipe) t)))

(defun end-pipe-stream (peer call)
  "Handle the end of CALL, a stream of PEER."
  (let ((pipe (peer-pipe peer)))
    (multiple-value-bind (batches queued-requests reason)
        (sb-thread:with-mutex ((pipe-lock pipe))
          (unless (eq call (pipe-call pipe)) (return-from end-pipe-stream))
          (empty-pipe pipe))
      (let ((error (end-error peer call reason)))
        (unwind-protect
             (progn (dolist (batch batches)
                      (note-batch peer batch (error-status error))
                      (conclude peer (batch-queued-requests batch) nil error))
                    (conclude peer queued-requests nil error))
          (sb-thread:with-mutex ((pipe-lock pipe))
            (setf (pipe-ending pipe) nil))
          (pump peer))))))

(defun due-ns (peer)
  "The time at which the stream of PEER is given up if no answer arrives; nil if no answer is
awaited."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (and (plusp (pipe-entries pipe))
           (+ (pipe-since-ns pipe) (seconds-ns (peer-timeout peer)))))))

(defun watch-stream (peer call)
  "Check CALL, the stream of PEER, again and again; give it up when no answer has arrived for too
long."
  (let ((due-ns (due-ns peer)) (now (loop:world-now)))
    (if (and due-ns (<= due-ns now))
        (give-up-stream peer call (local-error :deadline-exceeded "~A has not answered within ~A s"
                                               (peer-name peer) (peer-timeout peer)))
        (rpc:after call (if due-ns (ns-seconds (- due-ns now)) (peer-timeout peer))
                   (lambda () (watch-stream peer call))))))

(defun set-up-stream (peer call)
  "Make CALL the stream of PEER, which has no stream."
  (let ((pipe (peer-pipe peer)))
    (when (sb-thread:with-mutex ((pipe-lock pipe))
            (setf (pipe-call pipe) call
                  (pipe-since-ns pipe) (loop:world-now))
            (pipe-closed pipe))
      (loop:cancel call))
    (note-stream (peer-meter peer))
    (rpc:on-message call (lambda (response) (take-answer peer call response)))
    (rpc:on-writable call (lambda () (pump peer :room t)))
    (rpc:on-end call (lambda () (end-pipe-stream peer call)))
    (watch-stream peer call)))

(defun drop-stream (pipe call)
  "End CALL, which could not become the stream of PIPE, so that no thread uses it."
  (sb-thread:with-mutex ((pipe-lock pipe))
    (when (eq call (pipe-call pipe)) (setf (pipe-call pipe) nil)))
  (loop:cancel call))

(defun open-stream (peer)
  "Begin a stream to PEER, which has no stream. Only the thread that is pumping does this."
  (let ((call (methods:pipeline-entries (peer-channel peer) :open :wait-for-ready t))
        (unwound t))
    (unwind-protect (progn (set-up-stream peer call)
                           (setf unwound nil))
      (when unwound (drop-stream (peer-pipe peer) call)))))

;;; Sending

(defun next-batch (peer)
  "The batch to send to PEER now; nil if none can be sent now. The caller must hold the lock of
PEER's pipe."
  (let ((pipe (peer-pipe peer)))
    (and (pipe-call pipe)
         (null (pipe-error pipe))
         (not (pipe-full pipe))
         (< (pipe-sent-count pipe) (peer-window peer))
         (or (shiftf (pipe-held pipe) nil)
             (take-batch (pipe-waiting pipe) (peer-batch-entries peer)
                         (peer-batch-octets peer))))))

(defun needs-stream-p (pipe)
  "True if requests in PIPE wait for a stream, and one may be begun. The caller must hold the lock
of PIPE."
  (and (null (pipe-call pipe)) (fifo-items (pipe-waiting pipe)) (not (pipe-ending pipe))))

(defun next-step (peer)
  "Return the next action of the thread that is pumping: a batch and its stream; or :OPEN or :CLOSE;
or nil, after which the thread is not pumping any more. A batch counts as sent from now on."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (let ((batch (next-batch peer)))
        (cond (batch
               (enqueue batch (pipe-sent pipe))
               (incf (pipe-sent-count pipe))
               (setf (pipe-rung pipe) nil)
               (values batch (pipe-call pipe)))
              ((needs-stream-p pipe) (if (pipe-closed pipe) :close :open))
              (t (setf (pipe-pumping pipe) nil)))))))

(defun hold-batch (pipe call batch)
  "Put BATCH back, since it was not sent: CALL, the stream of PIPE, had no room."
  (sb-thread:with-mutex ((pipe-lock pipe))
    ;; unless the stream has ended meanwhile, and BATCH with it
    (when (and (eq call (pipe-call pipe)) (member batch (fifo-items (pipe-sent pipe))))
      (remove-from-fifo batch (pipe-sent pipe))
      (decf (pipe-sent-count pipe))
      (setf (pipe-held pipe) batch
            (pipe-full pipe) (not (pipe-rung pipe))))))

(defun proper-error (condition)
  (if (typep condition 'status:rpc-error)
      condition
      (local-error :internal "~A" (bounded-text condition))))

(defun send-batch (peer call batch)
  "Send BATCH on CALL, the stream of PEER, if the stream has room for BATCH."
  (handler-case
      (flet ((note ()
               (unless (shiftf (batch-noted batch) t)
                 (note-sent (peer-meter peer) "pipeline-entries" (batch-entries batch)
                            (batch-octets batch)))))
        (setf (batch-sent-ns batch) (loop:world-now))
        ;; noted before it is sent, since the answer may arrive at once; but the loop may still use
        ;; up the room first
        (when (rpc:room-p call) (note))
        (if (rpc:try-send call (batch-request batch (peer-group peer) (peer-sender peer)
                                              (peer-name peer)))
            (note)
            (hold-batch (peer-pipe peer) call batch)))
    (serious-condition (condition)
      ;; if the stream has ended, its end is reported later; the request may be too long
      (unless (rpc:call-status call) (give-up-stream peer call (proper-error condition))))))

(defun take-waiting (pipe)
  "Take the queued requests that wait for a stream out of PIPE. The caller must hold the lock of
PIPE."
  (when (needs-stream-p pipe) (nth-value 1 (empty-pipe pipe))))

(defun tell-waiting (peer queued-requests error)
  "Report ERROR to the functions of QUEUED-REQUESTS, which TAKE-WAITING has returned."
  (when queued-requests
    (let ((pipe (peer-pipe peer)))
      (unwind-protect (conclude peer queued-requests nil error)
        (sb-thread:with-mutex ((pipe-lock pipe))
          (setf (pipe-ending pipe) nil))))))

(defun fail-waiting (peer error)
  "Report to the requests that wait for a stream that no stream to PEER can be begun."
  (let ((pipe (peer-pipe peer)))
    (tell-waiting peer
                  (sb-thread:with-mutex ((pipe-lock pipe)) (take-waiting pipe))
                  error)))

(defun stop-pumping (peer claim)
  "Give the stream up: the thread that was pumping with CLAIM was unwound, and it is unknown which
requests that thread has sent."
  (let ((pipe (peer-pipe peer))
        (reason (local-error :aborted "the thread that sent to ~A was ended" (peer-name peer))))
    (multiple-value-bind (call queued-requests)
        (sb-thread:with-mutex ((pipe-lock pipe))
          ;; pumping may not have begun yet, or may have ended
          (unless (eq claim (pipe-pumping pipe)) (return-from stop-pumping))
          ;; at once, so that no other thread begins a stream in between, which would be forgotten
          (setf (pipe-pumping pipe) nil)
          (if (pipe-call pipe)
              (pipe-call pipe)
              (values nil (take-waiting pipe))))
      (cond (call (give-up-stream peer call reason))
            (t (tell-waiting peer queued-requests reason)
               ;; this sends requests that were given while functions of ended requests were called
               (pump peer))))))

(defun pump-on (peer)
  "Send the batches that may be sent to PEER, as the only sending thread."
  (loop (multiple-value-bind (step call) (next-step peer)
          (case step
            ((nil) (return))
            (:open (handler-case (open-stream peer)
                     (serious-condition (condition)
                       (fail-waiting peer (proper-error condition)))))
            (:close (fail-waiting peer (local-error :cancelled "~A is closed" (peer-name peer))))
            (t (send-batch peer call step))))))

(defun pump (peer &key room)
  "Send the batches that may be sent to PEER, unless another thread sends them. ROOM is true if its
stream has room again."
  (let ((pipe (peer-pipe peer)) (claim (list nil)) (unwound t))
    ;; an interrupt may come at any instruction
    (unwind-protect (progn
                      (when (sb-thread:with-mutex ((pipe-lock pipe))
                              (when room
                                (setf (pipe-rung pipe) t
                                      (pipe-full pipe) nil))
                              (unless (pipe-pumping pipe)
                                (setf (pipe-pumping pipe) claim)))
                        (pump-on peer))
                      (setf unwound nil))
      (when unwound (stop-pumping peer claim)))))

;;; Interface

(defun pipeline-entries (peer request then &key wait)
  "Send REQUEST, an AppendEntriesRequest, to PEER after the requests that were given before, without
waiting for their answers. (THEN response error) is called once, in the order of the requests: with
its AppendEntriesResponse and nil, or with nil and the RPC-ERROR that has ended the stream, and with
it all requests on it. THEN runs on a loop, so it must not wait. If no further stream can begin, the
function runs on the thread that detects this. A request may have been joined with others that
follow it; then the answer is the answer to the joint request. If the pipeline of PEER is full, wait
for room for WAIT seconds or, if that is nil, for the timeout of PEER; return false if there is
still no room. With 0 this never waits. Within THEN, WAIT must be 0, since no answer is received
while THEN waits. Otherwise return true. Do not change REQUEST afterwards; it is sent with the
address of PEER. From any thread; the requests of one thread are sent in the order in which it gave
them."
  (check-type request v1:append-entries-request)
  (check-type then function)
  (let* ((pipe (peer-pipe peer))
         (octets (data-octets request))
         (queued-request (make-queued-request request octets then))
         (entries (queued-request-weight queued-request))
         (end-ns (loop:notice-end (or wait (peer-timeout peer))))
         (taken nil))
    (unwind-protect
         (sb-thread:with-mutex ((pipe-lock pipe))
           (when (await-pipe pipe (lambda () (room-p peer pipe entries octets)) end-ns)
             (when (pipe-closed pipe) (misuse "~A is closed." (peer-name peer)))
             (setf taken t)
             (sb-sys:without-interrupts
               (enqueue queued-request (pipe-waiting pipe))
               (change-load peer entries octets))))
      ;; even if this is interrupted, requests that were taken are sent
      (when taken (pump peer)))
    taken))

(defun flush-pipeline (peer &key timeout)
  "Wait until all requests that were given to PEER's pipeline are answered or have failed, at most
TIMEOUT seconds or, if that is nil, the timeout of PEER; return true if all of them are. From any
thread but a loop's."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (await-pipe pipe (lambda () (and (zerop (pipe-entries pipe)) (zerop (pipe-telling pipe))))
                  (loop:notice-end (or timeout (peer-timeout peer)))))))

(defun close-peer (peer)
  "End PEER: the requests in its pipeline end with :cancelled. PEER's channel is closed unless the
user supplied it. Waits a second for functions that are being called. From any thread but a loop's."
  (let* ((pipe (peer-pipe peer))
         (call (sb-thread:with-mutex ((pipe-lock pipe))
                 (setf (pipe-closed pipe) t)
                 (sb-thread:condition-broadcast (pipe-waitqueue pipe))
                 (pipe-call pipe))))
    (when call (loop:cancel call))
    (pump peer)                         ; reports to the requests that wait for a stream
    (flush-pipeline peer :timeout 1)
    (when (peer-own-channel-p peer) (calling:close-channel (peer-channel peer)))
    nil))
