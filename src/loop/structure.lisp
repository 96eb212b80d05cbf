;;;; The data of a loop and of what lives on it. All turn state is in the EVENT-LOOP structure, so
;;;; that whichever thread runs the loop finds it there. Only that thread touches what is here,
;;;; except for the inbox, the poller's wake function and the atomic counts.
;;;;
;;;; A SOURCE is whatever has a descriptor on the loop. Its token, which events carry, is its
;;;; descriptor and above it a generation that no two sources of a loop share, so an event that was
;;;; fetched for a descriptor since closed and opened again finds nobody.
;;;;
;;;; States of a connection: :open → (:closing, output is sent) → (:lingering, the peer is waited
;;;; for) → :closed; :aborting stands for :closed until the flush at the end of the turn. A
;;;; connection is in READY at most once (QUEUED), in DIRTY at most once (DIRTY).

(in-package #:clgrpc.loop)

(defconstant +pool-buffers+ 1024
  "How many unused buffers a loop keeps.")

(defstruct (event-loop (:constructor %make-event-loop (name clock poller random)) (:copier nil))
  "See MAKE-EVENT-LOOP."
  (name "" :type string :read-only t)
  (clock nil :type function :read-only t)
  (poller nil :type poller :read-only t)
  (random nil :type random-state :read-only t) ; for what is left to chance on the loop
  (wheel (make-timer-wheel) :type timer-wheel :read-only t)
  (inbox (make-inbox) :type inbox :read-only t)
  (now 0 :type nanoseconds)
  (turns 0 :type (unsigned-byte 62))
  ;; life
  (state :new :type (member :new :running :stopped))
  (stopping nil :type boolean)
  (baton 0 :type sb-ext:word)           ; see baton.lisp
  (asked 0 :type sb-ext:word)           ; the baton, lent, that is to be overtaken
  (thread nil :type (or null sb-thread:thread)) ; that has the baton
  (user nil)                            ; whose user code ran last, see CALL-USER
  (runner nil :type (or null sb-thread:thread)) ; that LAUNCH-EVENT-LOOP made
  (overtaken nil :type boolean)         ; RUNNER is no more than a thread of RESERVE
  (reserve nil :type (or null reserve)) ; runs the loop when its thread cannot
  (blind nil :type boolean)             ; events were fetched and then lost
  ;; see watchdog.lisp
  (long-turn 0 :type (unsigned-byte 62)) ; the TURNS of one that two looks have seen
  (late-turn 0 :type (unsigned-byte 62)) ; the same, where it is one function's
  ;; see drive.lisp
  (attended nil :type boolean)          ; callers drive by turns; left alone, a reserve thread does
  (calls 0 :type sb-ext:word)           ; atomic
  (waiters 0 :type sb-ext:word)         ; atomic
  (candidate nil :type (or null function)) ; atomic
  (woke nil :type boolean)              ; somebody at the end of the last turn
  (served nil :type boolean)
  (crowded nil :type boolean)
  (driven-for nil)
  (yielding nil :type boolean)
  ;; see gather.lisp
  (sent-ns 0 :type nanoseconds)
  (burst 0 :type index)
  (gathered-ns 0 :type nanoseconds)
  (sweeper 0 :type sb-ext:word)         ; atomic
  (lock (sb-thread:make-mutex :name "clgrpc loop") :read-only t)
  (stopped (sb-thread:make-waitqueue) :read-only t)
  ;; sources, by descriptor
  (sources (make-array 64 :initial-element nil) :type simple-vector)
  (generation 0 :type (unsigned-byte 30))
  (unconnected '() :type list)          ; sources that are to be released but may have no descriptor
  (connections 0 :type sb-ext:word)     ; atomic: listeners on other loops count and compare
  ;; work of the turn
  (ready (make-array 64 :initial-element 0) :type simple-vector)
  (ready-count 0 :type index)
  (ready-spare (make-array 64 :initial-element 0) :type simple-vector)
  (dirty (make-array 64 :initial-element 0) :type simple-vector)
  (dirty-count 0 :type index)
  (dirty-spare (make-array 64 :initial-element 0) :type simple-vector)
  (ring (make-array 128 :initial-element 0) :type simple-vector)
  (ring-start 0 :type index)
  (ring-count 0 :type index)
  (current nil)                         ; the connection whose turn it is
  (flushed-at 0 :type nanoseconds)
  (last (make-array 64 :initial-element 0) :type simple-vector) ; for the end of the turn
  (last-count 0 :type index)
  ;; buffers
  (input (make-octets 0) :type octets)
  (pool (make-array +pool-buffers+ :initial-element nil) :type simple-vector :read-only t)
  (lingerers (make-fifo) :type fifo :read-only t) ; of connections; most linger no more
  (lingering 0 :type index)             ; how many do
  (pool-count 0 :type index)
  (pool-octets 0 :type index)
  (void (make-buffer :size 0) :type buffer)
  (tls-area nil :type (or null os:tls-area)) ; see tls.lisp
  ;; what a layer above has on it
  (datum nil)                           ; its own, of which the loop knows nothing
  (at-stop '() :type list)              ; functions, see CALL-AT-STOP
  (after-closing '() :type list))       ; functions, see CALL-AFTER-CLOSING

(declaim (sb-ext:freeze-type event-loop))

(document-functions
  event-loop-name "The name of LOOP, for people."
  event-loop-state "One of :new, :running and :stopped."
  event-loop-stopping "True once LOOP is to stop after the current turn, or has."
  event-loop-datum "What a layer above keeps with LOOP: anything, nil at first. SETFable."
  event-loop-now "When the turn began, or what NOTE-TIME has made of that, in nanoseconds of the
loop's clock. On the loop."
  event-loop-wheel "The timer wheel of LOOP, in its clock's time. On the loop."
  event-loop-random "The random-state for what is left to chance on LOOP. On the loop."
  event-loop-reserve "The reserve whose threads run LOOP when its own cannot, or NIL."
  event-loop-turns "How many turns LOOP has made; it grows only when there is something to do."
  event-loop-connections "How many connections LOOP has, with those just accepted for it.")

(define-hot note-time ((loop event-loop)) null
  "Have EVENT-LOOP-NOW be now, in the middle of a turn. On the loop."
  (setf (event-loop-now loop) (funcall (event-loop-clock loop)))
  nil)

(defun event-loop-running-p (loop)
  "True from the moment LOOP is started until it has stopped. From any thread."
  (eq :running (event-loop-state loop)))

(define-hot (in-event-loop-p :inline t) ((loop event-loop)) boolean
  "True if this thread runs LOOP, also while it has lent the baton and not lost it."
  (eq sb-thread:*current-thread* (event-loop-thread loop)))

(defmethod print-object ((loop event-loop) stream)
  (print-unreadable-object (loop stream :type t)
    (format stream "~A ~(~A~), ~D connections, ~D turns" (event-loop-name loop)
            (event-loop-state loop) (event-loop-connections loop) (event-loop-turns loop))))

;;; Sources

(defstruct (source (:constructor nil) (:copier nil))
  "ON-EVENT (source flags) is called with each event, ON-RELEASE (source) when the loop stops;
connections have their own way."
  (loop nil :type event-loop)
  (token 0 :type os:event-token)
  (on-event nil :type (or null function))
  (on-release nil :type (or null function)))

(defun grow-vector (vector length)
  "Return VECTOR, or if it is shorter than LENGTH a longer copy."
  (declare (type simple-vector vector) (type index length))
  (if (<= length (length vector))
      vector
      (replace (make-array (max length (* 2 (length vector))) :initial-element nil) vector)))

(define-hot (source-descriptor :inline t) ((source source)) (unsigned-byte 32)
  (ldb (byte 32 0) (source-token source)))

(defun add-source (source descriptor)
  "Have the loop of SOURCE watch DESCRIPTOR for it. Return a result as the kernel's calls do."
  (let* ((loop (source-loop source))
         (generation (setf (event-loop-generation loop)
                           (1+ (mod (event-loop-generation loop) (1- (ash 1 30))))))
         (token (logior (ash generation 32) descriptor))
         (result (funcall (poller-add (event-loop-poller loop)) (event-loop-poller loop)
                          descriptor token)))
    (unless (os:failed-p result)
      (setf (source-token source) token
            (event-loop-sources loop) (grow-vector (event-loop-sources loop) (1+ descriptor))
            (svref (event-loop-sources loop) descriptor) source))
    result))

(defun remove-source (source)
  "Undo ADD-SOURCE."
  (let ((loop (source-loop source))
        (descriptor (source-descriptor source)))
    (when (plusp (source-token source))
      (funcall (poller-remove (event-loop-poller loop)) (event-loop-poller loop) descriptor)
      (setf (svref (event-loop-sources loop) descriptor) nil
            (source-token source) 0))))

(defgeneric interest (source)
  (:documentation "What would be news of SOURCE's descriptor: +READABLE+ and so on together, or 0.
For pollers that are level-triggered.")
  (:method ((source source)) +readable+))

(define-hot find-source ((loop event-loop) (token os:event-token)) (or null source)
  "The source that TOKEN was given to, if it is still there."
  (let* ((sources (event-loop-sources loop))
         (descriptor (ldb (byte 32 0) token))
         (source (and (< descriptor (length sources)) (svref sources descriptor))))
    (declare (type (or null source) source))
    (and source
         (= token (source-token source))
         source)))

;;; Transports count among the connections of a loop from when they are dealt to it, or made a
;;; connection of, until they are closed.

(defun count-transport (transport loop)
  (unless (transport-loop transport)
    (setf (transport-loop transport) loop)
    (atomic-incf (event-loop-connections loop))))

(defun close-transport (transport)
  "Close TRANSPORT, which no connection has taken. Closing it again does nothing. On its loop."
  (unless (minusp (transport-descriptor transport))
    (let ((loop (shiftf (transport-loop transport) nil)))
      (funcall (transport-kind-close (transport-kind transport)) transport)
      (setf (transport-descriptor transport) -1)
      (when loop (atomic-decf (event-loop-connections loop)))))
  nil)

;;; Connections

(defstruct (handler (:copier nil))
  "What a kind of connections does, each called on the loop:
INPUT (connection octets start end) takes octets, valid only during the call, and returns the index
of the first that it did not consume; those come again, contiguous, with more behind them. How many
it leaves is limited by nothing but itself. If its second value is true it could have consumed more,
but others are to have their turn: what it left comes again in the next turn, alone.
FILL (connection) is called before what is in the output is sent, and again when all of it was sent
if it had appended some: it may append more. The buffer that CONNECTION-OUTPUT returned before is
not valid after it.
CLOSED (connection reason) is called exactly once; REASON is NIL if the peer or we closed in order,
otherwise a text or a condition.
SENT (connection octets start end), if there is one, is called with the octets that were sent while
a tracer of HTTP/2 frames is on."
  (input nil :type function :read-only t)
  (fill #'identity :type function :read-only t)
  (closed (constantly nil) :type function :read-only t)
  (sent nil :type (or null function) :read-only t))

(declaim (sb-ext:freeze-type handler))

(defmethod print-object ((handler handler) stream)
  (print-unreadable-object (handler stream :type t :identity t)))

(defstruct (connection (:include source) (:constructor %make-connection) (:copier nil))
  "See MAKE-CONNECTION."
  (transport nil :type transport :read-only t)
  (handler nil :type handler :read-only t)
  (user nil)
  (state :open :type (member :open :closing :lingering :aborting :closed))
  (reason nil)                          ; why it is aborted
  (flags 0 :type (unsigned-byte 11))
  (leftover nil :type (or null buffer))
  (buffer nil :type (or null buffer))
  (max-unsent 0 :type index)
  (timer nil :type (or null timer))
  (local-text nil :type (or null string)))

(declaim (sb-ext:freeze-type connection))

(define-flags connection flags
  told                                  ; the owner: that it has closed
  queued
  dirty
  readable                              ; nothing has said yet that a read would block
  ended                                 ; a short read is not the end of what can be read
  stopped
  throttled
  postponed                             ; the owner has left what it could have consumed
  blocked                               ; the last write would block, or did in part
  read-wants-write
  write-wants-read)

(document-functions
  make-handler "Return a handler with the functions given; INPUT is needed. See the type HANDLER."
  connection-loop "The loop of CONNECTION."
  connection-transport "The transport of CONNECTION."
  connection-user "The datum that CONNECTION's owner gave it. SETFable."
  connection-state "One of :open, :closing, :lingering, :aborting and :closed.")

(defmethod print-object ((connection connection) stream)
  (print-unreadable-object (connection stream :type t :identity t)
    (format stream "~A ~(~A~)" (connection-peer connection) (connection-state connection))))

(defmethod interest ((connection connection))
  (logior +failed+
          (if (or (connection-readable connection) (connection-ended connection))
              0
              (logior +readable+ +ended+))
          (if (or (connection-blocked connection) (connection-read-wants-write connection))
              +writable+
              0)))

(defun connection-peer (connection)
  "The address of CONNECTION's peer, as text."
  (transport-peer (connection-transport connection)))

(defun connection-local (connection)
  "The address of CONNECTION's own end, as text; empty if it is not known any more. On the loop."
  (or (connection-local-text connection)
      (let ((address (and (plusp (connection-token connection))
                          (os:socket-address (source-descriptor connection)))))
        (if address
            (setf (connection-local-text connection) (os:address-text address))
            ""))))
