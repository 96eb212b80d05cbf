;;;; The server's end of a call. The marks of the call have the time from which its handler could
;;;; start (WIRE:+DUE+); BEGAN-NS is the time when the handler started. If the handler does not run
;;;; on the loop at once, the call has a DEFERRED-START, which records where the call waits for its
;;;; handler. Few calls have a DEFERRED-START.

(in-package #:clgrpc.server)

(defstruct (deferred-start (:copier nil))
  "Data that only some calls need: a call whose handler does not run on the loop at once, a call
with a long request, or a call of another protocol than gRPC."
  ;; for a reserve thread: a list of the call, or NIL once the ticket is used, and of the function
  ;; that waits; NIL without a ticket
  (ticket '() :type list)
  ;; when the timer rings, the call has waited too long for a thread
  (timer nil :type (or null timer))
  (place nil :type (or null ring))      ; the call's place among the calls of its loop that wait for
                                        ; room
  (undecoded nil :type (or null wire:byte-buffer)) ; the call's request, if it is long
  (long nil :type boolean)              ; UNDECODED may be long once it is decompressed
  ;; T: the handler has returned the call, to answer later; :ANSWERED: REPLY was called. Atomic
  (later nil :type (member nil t :answered))
  ;; the plain request whose handler the call runs
  (http-request nil :type (or null exchange:http-request))
  (claim nil)                           ; the claim of a protocol other than gRPC, or nil
  (notes nil)                           ; the data of the claim's protocol for the call
  ;; whether the handler, which began on the loop and lost it, is charged to its link
  (late nil :type (member nil :charged :returned)))

(declaim (sb-ext:freeze-type deferred-start))

(defstruct (server-call (:include wire-call) (:constructor make-server-call) (:copier nil))
  "A call on a connection of a server's."
  (route nil :type (or null server-route)) ; the route of its path; NIL without a handler
  (request nil)                         ; the decoded request for the call's handler
  (accepted '() :type list)             ; the encodings that the client can read
  (began-ns 0 :type nanoseconds)        ; the time when the call's handler began; 0 before that
  ;; the rarely needed slots of the call, made when one of them is needed
  (deferred-start nil :type (or null deferred-start)))

(declaim (sb-ext:freeze-type server-call))

(defun ensure-deferred-start (call)
  "The DEFERRED-START of CALL, made now if it does not exist yet. From any thread."
  (or (server-call-deferred-start call)
      (let ((new (make-deferred-start)))
        (or (sb-ext:compare-and-swap (server-call-deferred-start call) nil new) new))))

(defun note-later (call &optional again)
  "Note that CALL's handler has returned CALL and will answer later; if AGAIN is true, note that a
REPLY was unwound, for example by a timeout. From any thread."
  (sb-ext:compare-and-swap (deferred-start-later (ensure-deferred-start call))
                           (if again :answered nil) t))

(defun note-reply (call)
  "Note that REPLY was called with CALL. Return false if REPLY was called before. From any thread."
  (loop with deferred-start = (ensure-deferred-start call)
        for old = (deferred-start-later deferred-start)
        until (eq :answered old)
          thereis (eq old (sb-ext:compare-and-swap (deferred-start-later deferred-start) old
                                                   :answered))))

(define-hot (server-call-undecoded :inline t) ((call server-call))
    (or null wire:byte-buffer)
  "The octets of the request for CALL's handler, if the handler's thread must decode them; else
nil."
  (let ((deferred-start (server-call-deferred-start call)))
    (and deferred-start (deferred-start-undecoded deferred-start))))

(defun note-undecoded (call item long)
  "Note ITEM, a byte buffer, as the request of CALL, which the handler's thread decodes. LONG is
true if the request may be long when it is decompressed."
  (let ((deferred-start (ensure-deferred-start call)))
    (setf (deferred-start-undecoded deferred-start) item
          (deferred-start-long deferred-start) long)))

(define-hot (long-request-p :inline t) ((call server-call)) boolean
  "True if CALL's request may be long once it is decompressed."
  (let ((deferred-start (server-call-deferred-start call)))
    (and deferred-start (deferred-start-long deferred-start))))

(define-hot (call-notes :inline t) ((call server-call)) t
  "The data of CALL's protocol for CALL, which has a claim. SETF changes them."
  (deferred-start-notes (the deferred-start (server-call-deferred-start call))))

(defun (setf call-notes) (notes call)
  (setf (deferred-start-notes (server-call-deferred-start call)) notes))

(define-hot (call-http-request :inline t) ((call server-call)) (or null exchange:http-request)
  "The plain request whose handler CALL runs; nil if CALL is a gRPC call."
  (let ((deferred-start (server-call-deferred-start call)))
    (and deferred-start (deferred-start-http-request deferred-start))))

(define-hot (call-claim :inline t) ((call server-call)) t
  "The claim of CALL if CALL belongs to a protocol other than gRPC; nil for a call of gRPC and for a
plain request."
  (let ((deferred-start (server-call-deferred-start call)))
    (and deferred-start (deferred-start-claim deferred-start))))

(define-hot (call-protocol-handler :inline t) ((call server-call)) protocol-handler
  "The protocol handler of CALL, which has a claim."
  (claim-handler (deferred-start-claim (the deferred-start (server-call-deferred-start call)))))

(define-hot call-protocol ((call server-call)) symbol
  "The operation PROTOCOL: the protocol by which CALL was received, a keyword such as :grpc; nil for
a plain request. From any thread."
  (cond ((call-claim call) (protocol-handler-name (call-protocol-handler call)))
        ((call-http-request call) nil)
        (t :grpc)))

(defun call-server (call)
  "The operation SERVER."
  (server-loop-server (server-call-endpoint call)))

(define-hot (over-http1-p :inline t) ((call server-call)) boolean
  "True if CALL, which is not gRPC's, was received over HTTP/1.1; or if its stream is closed."
  (null (server-call-stream call)))

(defun handler-began-ns (call)
  "The time when the handler of CALL began to run, in nanoseconds of the monotonic clock, or nil
before that."
  (let ((began-ns (server-call-began-ns call)))
    (and (plusp began-ns) began-ns)))

(define-hot (due-p :inline t) ((call server-call)) boolean
  "True once the handler of CALL could start. On the loop."
  (wire:marked-p call :due))

(define-hot (update-time-if-observed :inline t) ((call server-call)) null
  "Read the clock, so that the times noted for CALL in the rest of this turn are exact, not those of
the turn's beginning. The clock is not read for a unary call that nothing observes, because that
would cost too much. On the loop."
  (when (or (server-call-parts call)
            (tracing-p :call)
            (let ((route (server-call-route call)))
              (and route (route-interceptors route)))
            (let ((method (call-rpc-method call)))
              (and method (not (eq :unary (rpc-method-kind (the rpc-method method)))))))
    (loop:update-time (wire-call-loop call)))
  nil)

(define-hot server-elapsed-ns ((call server-call)) nanoseconds
  "The operation ELAPSED-NS. The clock is read, since the turn may have begun long before CALL's
handler returned."
  (let ((loop (wire-call-loop call)))
    (loop:update-time loop)
    (max 0 (- (loop:event-loop-now loop) (server-call-born-ns call)))))

(defun server-particulars (call)
  "The operation PARTICULARS."
  (list :peer (rpc:call-peer call)
        :stream (let ((stream (server-call-stream call))) (and stream (http2:stream-id stream)))
        :protocol (call-protocol call)
        :plain (null (call-protocol call))))

;;; The stages of a call

(defun server-stage (call)
  "The operation STAGE."
  (cond ((not (due-p call)) :receive)
        ((null (handler-began-ns call)) :queue)
        ((wire:marked-p call :headers) :send)
        (t :answer)))

(defun server-spans (call total headers due)
  "The SPANS of WIRE:LIST-STAGES."
  (let* ((began-ns (handler-began-ns call))
         (began (and began-ns (min total (- began-ns (server-call-born-ns call)))))
         (answered (and headers (min total headers))))
    (append (list (cons :receive (or due total)))
            (when due (list (cons :queue (- (or began total) due))))
            (when began (list (cons :answer (- (or answered total) began))))
            (when (and began answered) (list (cons :send (- total answered)))))))

(defun server-stages (call)
  "The operation STAGES."
  (wire:list-stages call #'server-spans 0))
