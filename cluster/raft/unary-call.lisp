;;;; Messages that are sent alone: each is a call, which waits for a connection and for the answer
;;;; until its deadline. Only the messages of APPEND-ENTRIES are ordered among each other: a peer
;;;; has one of these under way at a time.

(in-package #:clgrpc.raft)

(defun data-octets (request)
  "The octets of data in the entries of REQUEST, an AppendEntriesRequest."
  (loop for entry across (v1:append-entries-request-entries request)
        sum (length (v1:entry-data entry)) of-type index))

(defun error-status (error)
  "The status for ERROR, a condition or nil."
  (typecase error
    (null :ok)
    (status:rpc-error (status:rpc-error-status error))
    (t :internal)))

(defun begin-unary-call (peer message stub request timeout entries octets)
  "Begin the call of STUB that sends REQUEST, a MESSAGE with ENTRIES and OCTETS of data, to PEER.
Return the future, and a function to be called with the error that ended it, or nil."
  (let ((meter (peer-meter peer))
        (began-ns (loop:world-now)))
    (note-sent meter message entries octets)
    (flet ((note (error) (note-answered meter message (error-status error) began-ns)))
      (values (handler-bind ((error #'note)) ; of a request that is not sent at all
                (calling:call-async stub (peer-channel peer) request
                                    :timeout (or timeout (peer-timeout peer)) :wait-for-ready t))
              #'note))))

(defun ask (peer message stub request timeout &optional (entries 0) (octets 0))
  "The answer of PEER to REQUEST."
  (let ((meter (peer-meter peer))
        (began-ns (loop:world-now))
        (status :internal))
    (note-sent meter message entries octets)
    (unwind-protect
         (handler-bind ((status:rpc-error (lambda (error)
                                            (setf status (status:rpc-error-status error)))))
           (prog1 (values (funcall (the function stub) (peer-channel peer) request
                                   :timeout (or timeout (peer-timeout peer)) :wait-for-ready t))
             (setf status :ok)))
      (note-answered meter message status began-ns))))

(defun ask-then (peer message stub request timeout then)
  "Send REQUEST to PEER and return; THEN is called with the answer."
  (multiple-value-bind (future done) (begin-unary-call peer message stub request timeout 0 0)
    (loop:attach future (lambda (response error)
                          (funcall (the function done) error)
                          (funcall (the function then) response error))))
  nil)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *unary-call-text*
    "~A REQUEST is ~A; return ~A. Waits for a connection and the answer, TIMEOUT seconds or, if that
is nil, the timeout of PEER. Signals an RPC-ERROR after that, or if PEER refuses; see
REFUSAL-REASON. The request is sent with the address of PEER; the group, sender and receiver in
REQUEST are ignored. With THEN, a function, return nil at once; (THEN response error) is called
later, on a thread of its own, with the response and nil, or nil and the RPC-ERROR. A REQUEST that
cannot be sent at all signals here. From any thread."
    "The documentation of a unary call: a format control for its purpose, its request and its
response."))

(defmacro define-unary-calls (&body rows)
  "Define functions (NAME peer request &key timeout then) that send a MESSAGE to a peer. Each row is
NAME, MESSAGE, the function that gives a request its address, a text with the purpose, and texts for
request and response."
  `(progn
     ,@(loop for (name message address meaning request response) in rows
             for stub = (intern (string name) '#:clgrpc.raft.v1.raft)
             collect
             `(defun ,name (peer request &key timeout then)
                ,(format nil *unary-call-text* meaning request response)
                (let ((request (,address request (peer-group peer) (peer-sender peer)
                                         (peer-name peer))))
                  (if then
                      (ask-then peer ,message #',stub request timeout then)
                      (ask peer ,message #',stub request timeout)))))))

(define-unary-calls
  (pre-vote "pre-vote" addressed-vote
            "Ask PEER whether it would vote for this member."
            "a RequestVoteRequest" "a RequestVoteResponse")
  (request-vote "request-vote" addressed-vote
                "Ask PEER for its vote."
                "a RequestVoteRequest" "a RequestVoteResponse")
  (timeout-now "timeout-now" addressed-timeout
               "Ask PEER to begin an election at once."
               "a TimeoutNowRequest" "a TimeoutNowResponse"))

;;; Messages sent one at a time

(defun await-pipe (pipe ready-p end-ns)
  "Wait until READY-P, a function, returns true, and return that value; return nil at END-NS, or if
this thread runs a loop that no other thread can run meanwhile. The caller must hold PIPE's lock."
  (declare (type function ready-p))
  (loop (let ((ready (funcall ready-p)))
          (when ready (return ready))
          (unless (and (< (loop:world-now) end-ns)
                       (loop:prepare-to-wait)
                       (loop:await-notice (pipe-waitqueue pipe) (pipe-lock pipe) end-ns))
            (return nil)))))

(defun take-turn (peer message end-ns)
  "Wait, at most until END-NS, for the moment at which no other MESSAGE to PEER is under way."
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (unless (await-pipe pipe (lambda () (not (member message (peer-turns peer)))) end-ns)
        (error (status:make-rpc-error
                :deadline-exceeded :ended-by :local :sent nil
                :message (format nil "an earlier ~(~A~) to ~A is not answered yet" message
                                 (peer-name peer)))))
      (push message (peer-turns peer)))))

(defun end-turn (peer message)
  (let ((pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((pipe-lock pipe))
      (setf (peer-turns peer) (remove message (peer-turns peer)))
      (sb-thread:condition-broadcast (pipe-waitqueue pipe)))))

(defmacro with-turn ((peer message end-ns) &body body)
  "Evaluate BODY while no other MESSAGE, a keyword, to PEER is under way. If one is under way, wait
until it is answered, at most until END-NS."
  `(progn (take-turn ,peer ,message ,end-ns)
          (unwind-protect (progn ,@body)
            (end-turn ,peer ,message))))

(defun append-entries (peer request &key timeout)
  "Send REQUEST, an AppendEntriesRequest, to PEER and return its AppendEntriesResponse. Requests of
several threads are sent one after the other, each after the answer to the previous one; they are
not ordered with the pipeline's requests. Waits TIMEOUT seconds in all or, if that is nil, the
timeout of PEER: for its turn, for a connection and for the answer. Signals an RPC-ERROR when the
time is over, or if PEER refuses; see REFUSAL-REASON. REQUEST is sent with the address of PEER. From
any thread."
  (check-type request v1:append-entries-request)
  (let ((end-ns (loop:notice-end (or timeout (peer-timeout peer)))))
    (with-turn (peer :append-entries end-ns)
      (ask peer "append-entries" #'methods:append-entries
           (addressed-entries request (peer-group peer) (peer-sender peer) (peer-name peer))
           (loop:seconds-until end-ns)
           (length (v1:append-entries-request-entries request)) (data-octets request)))))
