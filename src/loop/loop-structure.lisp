;;;; The data of a loop and of its connections. All turn state is in the EVENT-LOOP structure, so
;;;; that any thread that runs the loop finds it there. Only that thread touches these data, except
;;;; for the inbox, the poller's wake function and the atomic counts.
;;;;
;;;; A SOURCE is anything that has a descriptor on the loop. Events carry a source's token: the
;;;; descriptor and, in the bits above it, a generation that no two sources of a loop share. So an
;;;; event that was fetched before a descriptor was closed and opened again finds no source.
;;;;
;;;; A connection is in READY at most once (flag QUEUED), and in DIRTY at most once (flag DIRTY).
;;;; The states of a connection are in io/connection-closing.lisp.

(in-package #:clgrpc.loop)

(defconstant +pool-buffers+ 1024
  "The maximum number of unused buffers that a loop keeps.")

(defstruct (function-queue (:copier nil))
  "Functions to call once, in their order."
  (places (make-array 16 :initial-element 0) :type simple-vector) ; function, argument, …
  (count 0 :type index))                ; the number of places in use

(declaim (sb-ext:freeze-type function-queue))

(define-printer (function-queue function-queue)
  "~D" (ash (function-queue-count function-queue) -1))

(defstruct (driving (:copier nil))
  "The data of a caller-driven loop about its callers. See driving.lisp; the last four slots are for
coalescing.lisp."
  (calls 0 :type sb-ext:word)           ; calls under way; atomic
  (waiters 0 :type sb-ext:word)         ; sleeping threads, and calls no thread waits for; atomic
  (candidate nil :type (or null function)) ; wakes the waiter that could drive; atomic
  (woke nil :type boolean)              ; whether the last turn has woken a waiter
  (served nil :type boolean)            ; a call with a waiting thread has ended since STEP-BACK
  (crowded nil :type boolean)           ; true once a call has begun while another was under way
  (owner nil)                           ; the call of the present driver, or nil
  (yielding nil :type boolean)          ; user code of another call is due, so the driver leaves
  (sent-ns 0 :type nanoseconds)         ; when the last message was sent from outside the loop
  (burst 0 :type index)                 ; messages sent in a row, each soon after the one before
  (coalesced-ns 0 :type nanoseconds)    ; when coalesced output began to wait; 0 if none waits
  (flusher 0 :type sb-ext:word))        ; 1 while a flusher is there or about to come; atomic

(declaim (sb-ext:freeze-type driving))

(define-printer (driving driving)
  "~D calls, ~D waiters" (driving-calls driving) (driving-waiters driving))

(defstruct (event-loop (:constructor %make-event-loop
                           (name clock poller random reserve driving spin-state run))
                       (:copier nil))
  "See MAKE-EVENT-LOOP."
  (name "" :type string :read-only t)   ; a name for people
  (world *world* :type world :read-only t) ; the world that the loop was made in
  (clock nil :type function :read-only t) ; returns the time in nanoseconds
  (poller nil :type poller)             ; finds the ready descriptors
  (overtaken-waiters '() :type list)    ; threads overtaken while they waited with POLLER
  (random nil :type random-state :read-only t) ; a random state for choices on the loop
  (reserve nil :type (or null reserve) :read-only t) ; runs the loop when its own thread cannot
  (driving nil :type (or null driving) :read-only t) ; nil if the loop has a thread of its own
  (spin-state nil :type (or null spin-state)) ; nil if the loop always sleeps
  ;; (loop): runs the loop, for a thread that has taken its baton
  (run nil :type function :read-only t)
  (wheel (make-timer-wheel) :type timer-wheel :read-only t) ; the wheel of the loop's timers
  (inbox (make-inbox) :type inbox :read-only t) ; posted items
  (now 0 :type nanoseconds)             ; the time of the turn's start, or of the last UPDATE-TIME
  (turns 0 :type (unsigned-byte 62))    ; the number of turns so far
  ;; until this time, functions that deferred functions defer wait for the next turn, see turn.lisp
  (apart-until-ns 0 :type nanoseconds)
  ;; counts for the loop's statistics
  (lent 0 :type (unsigned-byte 62))     ; how often the baton was lent
  (lost 0 :type (unsigned-byte 62))     ; how often another thread took the baton while it was lent
  (octets-received 0 :type (unsigned-byte 62)) ; octets that connections have received
  (octets-sent 0 :type (unsigned-byte 62)) ; octets that connections have sent
  (timed nil :type boolean)             ; WAITED-NS is counted
  (waited-ns 0 :type (unsigned-byte 62)) ; how long the loop has waited for events
  ;; life
  (state :new :type (member :new :running :stopped))
  (stopping nil :type boolean)          ; the loop ends after this turn
  (baton 0 :type sb-ext:word)           ; the right to run the loop; see baton.lisp
  (asked 0 :type sb-ext:word)           ; the lent baton that a thread was last asked to overtake
  (thread nil :type (or null sb-thread:thread)) ; the thread that has the baton
  (user nil)                            ; the argument of the last CALL-USER
  (runner nil :type (or null sb-thread:thread)) ; the thread that LAUNCH-EVENT-LOOP has made
  (overtaken nil :type boolean)         ; RUNNER is now an ordinary thread of RESERVE
  ;; the loop's own thread has left the loop for good; guarded by RESERVE's lock
  (left nil :type boolean)
  (blind nil :type boolean)             ; events were fetched and then lost
  ;; guards STATE and OVERTAKEN-WAITERS
  (lock (sb-thread:make-mutex :name "clgrpc loop") :read-only t)
  ;; notified when STATE changes
  (stopped (sb-thread:make-waitqueue :name "clgrpc loop stopped") :read-only t)
  ;; turns that take long; see watchdog.lisp
  (long-turn 0 :type (unsigned-byte 62)) ; the TURNS of a turn that two looks have seen
  (late-turn 0 :type (unsigned-byte 62)) ; LONG-TURN, if both looks have seen the same function
  ;; sources
  (sources (make-array 64 :initial-element nil) :type simple-vector) ; sources by descriptor
  (generation 0 :type (unsigned-byte 30)) ; the generation of the last source
  (unconnected '() :type list)          ; sources to be released that may have no descriptor yet
  (connections 0 :type sb-ext:word)     ; other loops' listeners change and read it; atomic
  ;; work of the turn; while a vector is being processed, its SPARE vector collects new work
  (ready (make-array 64 :initial-element 0) :type simple-vector) ; connections to be read
  (ready-count 0 :type index)           ; how many connections are in READY
  ;; the other vector, for the next turn
  (ready-spare (make-array 64 :initial-element 0) :type simple-vector)
  (dirty (make-array 64 :initial-element 0) :type simple-vector) ; connections to be flushed
  (dirty-count 0 :type index)           ; how many connections are in DIRTY
  ;; the other vector, for the next turn
  (dirty-spare (make-array 64 :initial-element 0) :type simple-vector)
  ;; deferred functions: function, argument, …
  (ring (make-array 128 :initial-element 0) :type simple-vector)
  (ring-start 0 :type index)            ; where in RING the next function is
  (ring-count 0 :type index)            ; how many functions RING has
  (current nil)                         ; the connection that is being read or flushed
  (slow-turn 0 :type (unsigned-byte 62)) ; the TURNS of the turn to which SLOW-NS belongs
  (slow-ns 0 :type nanoseconds)         ; how long the turn has spent on slow work
  ;; see HANDSHAKE-MAY-CONTINUE-P
  (served '() :type list)               ; the peers that have had their handshake step
  (owed nil :type boolean)              ; a peer that is not in SERVED waits for the next turn
  (rival-turn 0 :type (unsigned-byte 62)) ; the last of TURNS in which several peers shook hands
  (flushed-at 0 :type nanoseconds)      ; when output was last sent, or the turn began
  (began-at 0 :type nanoseconds)        ; when the turn began
  (early (make-function-queue) :type function-queue :read-only t) ; functions of CALL-BEFORE-FLUSH
  (last (make-function-queue) :type function-queue :read-only t) ; functions of CALL-LAST
  ;; buffers
  (input (make-octets 0) :type octets)  ; the octets that connections read
  ;; unused buffers
  (pool (make-array +pool-buffers+ :initial-element nil) :type simple-vector :read-only t)
  (pool-count 0 :type index)            ; how many unused buffers are in POOL
  (pool-octets 0 :type index)           ; the length of these buffers together
  (discard-buffer (make-buffer :size 0) :type buffer) ; output of connections that are closed
  (tls-area nil :type (or null os:tls-area)) ; see tls-channel.lisp
  ;; connections that wait for their peer to close
  (lingerers (make-fifo) :type fifo :read-only t) ; the connections in the state :lingering
  (lingering 0 :type index)             ; the number of lingering connections
  ;; data of a layer above
  (datum nil)                           ; data of the layer above; the loop does not use them
  (at-stop '() :type list)              ; functions of CALL-AT-STOP
  (after-closing '() :type list))       ; functions of CALL-AFTER-CLOSING

(declaim (sb-ext:freeze-type event-loop))

(document-functions
  event-loop-name "The name of LOOP, for people."
  event-loop-world "The WORLD in which LOOP was made."
  event-loop-poller "The POLLER of LOOP."
  event-loop-state "Return one of :new, :running and :stopped."
  event-loop-stopping "True once LOOP will stop after the current turn, or has stopped."
  event-loop-datum "An object that a layer above has stored in LOOP by SETF; nil at first."
  event-loop-now "The time when the turn began, or when UPDATE-TIME was last called in it, in
nanoseconds of the loop's clock. On the loop."
  event-loop-wheel "The timer wheel of LOOP, in its clock's time. On the loop."
  event-loop-random "The random-state for random choices on LOOP. On the loop."
  event-loop-reserve "The reserve whose threads run LOOP when its own thread cannot, or NIL if it
has no reserve."
  event-loop-turns "The number of turns that LOOP has made; it grows only when the loop has work."
  event-loop-connections "The number of connections of LOOP, including connections that a listener
has accepted for it."
  event-loop-timed "True if LOOP measures the time that it waits for events. SETF is possible on the
loop.")

(define-hot (driving-of :inline t) ((loop event-loop)) driving
  "The data about callers of LOOP, a caller-driven one."
  (the driving (event-loop-driving loop)))

(define-hot (start-timer :inline t) ((loop event-loop) (timer timer) (due-ns nanoseconds)) null
  "Make TIMER ring on LOOP when its clock reaches DUE-NS. If TIMER is pending, move it. On the
loop."
  (schedule-timer (event-loop-wheel loop) timer due-ns))

(define-hot (stop-timer :inline t) ((loop event-loop) (timer (or null timer))) boolean
  "Stop TIMER, which may be nil, from ringing on LOOP. Return true if TIMER was pending. On the
loop."
  (and timer (cancel-timer (event-loop-wheel loop) timer)))

(defun event-loop-network (loop)
  (world-network (event-loop-world loop)))

(define-hot update-time ((loop event-loop)) null
  "Set EVENT-LOOP-NOW to the present time, in the middle of a turn. On the loop."
  (setf (event-loop-now loop) (funcall (event-loop-clock loop)))
  nil)

;;; Slow work: steps of handshakes, and the ends of connections with all their calls. Peers can
;;; cause a thousand of these at once, so a turn does only some of them, between other work.

(defconstant +slow-ns+ 3000000
  "The time in nanoseconds that a turn may spend on slow work before it leaves further slow work to
the next turn.")

(defconstant +most-served+ 64
  "When this number of peers have had their handshake step, all of them count as new again, so that
the search for a peer among them takes little time.")

(define-hot slow-work-left-p ((loop event-loop)) boolean
  "True if this turn of LOOP may do more slow work."
  (unless (= (event-loop-slow-turn loop) (event-loop-turns loop))
    (setf (event-loop-slow-turn loop) (event-loop-turns loop)
          (event-loop-slow-ns loop) 0)
    (unless (and (shiftf (event-loop-owed loop) nil)
                 (< (length (event-loop-served loop)) +most-served+))
      (setf (event-loop-served loop) '())))
  (< (event-loop-slow-ns loop) +slow-ns+))

(define-hot handshake-may-continue-p ((loop event-loop) peer) boolean
  "True if this turn of LOOP may do a step of a handshake with PEER, any object. While several peers
shake hands, half of the turn's time is for handshakes in the order of their arrival. The other half
is for peers without a step so far; if its time does not suffice for all of them, the rest come
first in that half of the next turn. So a peer with a thousand handshakes delays the others by a few
milliseconds, and very many peers do not prevent the first of them from finishing."
  (let ((left (slow-work-left-p loop)))
    (cond ((and (not left) (event-loop-owed loop)) nil)
          ((member peer (event-loop-served loop) :test #'eq)
           (and left
                (or (< (* 2 (event-loop-slow-ns loop)) +slow-ns+)
                    (< (1+ (event-loop-rival-turn loop)) (event-loop-turns loop)))))
          (t (when (event-loop-served loop)
               (setf (event-loop-rival-turn loop) (event-loop-turns loop)))
             (if left
                 (push peer (event-loop-served loop))
                 (setf (event-loop-owed loop) t))
             left))))

(define-hot note-slow-work ((loop event-loop) (began nanoseconds)) null
  "Note that this turn of LOOP, which may do slow work, has done some since BEGAN."
  (incf (event-loop-slow-ns loop)
        (max 0 (- (the nanoseconds (funcall (event-loop-clock loop))) began)))
  nil)

(defmacro with-slow-work ((loop) &body body)
  "Do BODY, slow work of LOOP, and return its values."
  (let ((began (gensym "BEGAN")))
    `(let ((,began (funcall (event-loop-clock ,loop))))
       (declare (type nanoseconds ,began))
       (multiple-value-prog1 (progn ,@body)
         (note-slow-work ,loop ,began)))))

(defun event-loop-running-p (loop)
  "True from the moment LOOP is started until it has stopped. From any thread."
  (eq :running (event-loop-state loop)))

(define-hot (in-event-loop-p :inline t) ((loop event-loop)) boolean
  "True if this thread runs LOOP. This remains true while the thread has lent the baton, until it
loses the baton."
  (eq sb-thread:*current-thread* (event-loop-thread loop)))

(define-printer (loop event-loop)
  "~A ~(~A~), ~D connections, ~D turns" (event-loop-name loop) (event-loop-state loop)
  (event-loop-connections loop) (event-loop-turns loop))

;;; Sources

(defstruct (source (:constructor nil) (:copier nil))
  "An object that has a descriptor on a loop. Connections do not use the two functions."
  (loop nil :type event-loop)           ; the source's loop
  (token 0 :type os:event-token)        ; 0 while LOOP does not watch the descriptor
  (on-event nil :type (or null function)) ; (source flags), called with each event
  (on-release nil :type (or null function))) ; (source), called when LOOP stops

(defun grow-vector (vector length)
  "Return VECTOR or, if it is shorter than LENGTH, a longer copy."
  (declare (type simple-vector vector) (type index length))
  (if (<= length (length vector))
      vector
      (replace (make-array (max length (* 2 (length vector))) :initial-element nil) vector)))

(define-hot (source-descriptor :inline t) ((source source)) (unsigned-byte 32)
  (ldb (byte 32 0) (source-token source)))

(defun add-source (source descriptor)
  "Register SOURCE for the events of DESCRIPTOR on its loop. Return a result like those of the
kernel's calls: a negative result is a negated errno."
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
  (:documentation "Return the events of SOURCE's descriptor that have not been reported to the loop
yet: a combination of +READABLE+ and similar flags, or 0. Level-triggered pollers call this.")
  (:method ((source source)) +readable+))

(define-hot find-source ((loop event-loop) (token os:event-token)) (or null source)
  "Return the source to which TOKEN was given, or nil if it does not exist any more."
  (let* ((sources (event-loop-sources loop))
         (descriptor (ldb (byte 32 0) token))
         (source (and (< descriptor (length sources)) (svref sources descriptor))))
    (declare (type (or null source) source))
    (and source
         (= token (source-token source))
         source)))

;;; A byte channel counts among the connections of a loop from the moment when a listener gives it
;;; to the loop, or it becomes a connection's channel, until it is closed.

(defun count-byte-channel (byte-channel loop)
  (unless (byte-channel-loop byte-channel)
    (setf (byte-channel-loop byte-channel) loop)
    (atomic-incf (event-loop-connections loop))))

(defun close-byte-channel (byte-channel)
  "Close BYTE-CHANNEL, which must not belong to a connection. Closing BYTE-CHANNEL again does
nothing. On its loop."
  (unless (minusp (byte-channel-descriptor byte-channel))
    (let ((loop (shiftf (byte-channel-loop byte-channel) nil)))
      (funcall (byte-channel-kind-close (byte-channel-kind byte-channel)) byte-channel)
      (setf (byte-channel-descriptor byte-channel) -1)
      (when loop (atomic-decf (event-loop-connections loop)))))
  nil)

;;; Connections

(defstruct (handler (:copier nil))
  "The functions of a kind of connections. Each function is called on the loop."
  ;; (connection octets start end) takes octets, which are valid only during the call, and returns
  ;; the index of the first octet that it did not consume. The octets from there on come again,
  ;; contiguous, with more octets after them; no limit is set to the octets that INPUT leaves. A
  ;; true second value means that INPUT could have consumed more but lets other connections go
  ;; first: the octets that it left come again, without further ones, in the next turn.
  (input nil :type function :read-only t)
  ;; (connection) is called before output is sent, to append more, and again after all output was
  ;; sent if FILL had appended some. A buffer that CONNECTION-OUTPUT returned before the call is not
  ;; valid after it.
  (fill #'identity :type function :read-only t)
  ;; (connection reason) is called exactly once. REASON is NIL if the peer or we closed in order,
  ;; otherwise a text or a condition.
  (closed (constantly nil) :type function :read-only t)
  ;; (connection octets start end), if not nil, is called with the octets that were sent while a
  ;; tracer of HTTP/2 frames is on.
  (sent nil :type (or null function) :read-only t)
  ;; (connection), if not nil, is called when a write has failed. Then all octets that the peer had
  ;; sent are read, and CONNECTION is aborted. Without BROKEN the connection is aborted at once.
  (broken nil :type (or null function) :read-only t))

(declaim (sb-ext:freeze-type handler))

(defmethod print-object ((handler handler) stream)
  (print-unreadable-object (handler stream :type t :identity t)))

(defmacro define-flags (structure slot &body names)
  "For each of NAMES define an accessor STRUCTURE-NAME of a boolean, for reading and for SETF. The
boolean is a bit of SLOT, a slot of STRUCTURE whose type (unsigned-byte N) must have enough bits.
Structures with many instances use such flags, because each boolean slot would take a word. Only one
thread at a time may set any of the flags."
  (flet ((accessor (name) (intern (format nil "~A-~A" structure name))))
    `(progn
       ,@(loop for name in names
               for bit from 0
               for place = `(,(accessor slot) object)
               collect `(declaim (inline ,(accessor name) (setf ,(accessor name))))
               collect `(defun ,(accessor name) (object)
                          (logtest ,(ash 1 bit) ,place))
               collect `(defun (setf ,(accessor name)) (value object)
                          (setf ,place (if value
                                           (logior ,place ,(ash 1 bit))
                                           (logandc2 ,place ,(ash 1 bit))))
                          value)))))

(defstruct (connection (:include source)
                       (:constructor %make-connection
                           (&key loop byte-channel handler user account max-unsent))
                       (:copier nil))
  "See MAKE-CONNECTION."
  (byte-channel nil :type byte-channel :read-only t) ; the byte channel that transports the
                                                     ; connection's octets
  (handler nil :type handler)           ; the owner's functions for the connection's events
  (user nil)                            ; the owner's datum
  ;; the progress of its end
  (state :open :type (member :open :closing :lingering :aborting :closed))
  (reason nil)                          ; why the connection is aborted, or was broken
  (flags 0 :type (unsigned-byte 13))    ; see DEFINE-FLAGS
  (leftover nil :type (or null buffer)) ; input that the handler has not consumed
  (buffer nil :type (or null buffer))   ; output that has not been sent
  (max-unsent 0 :type index)            ; the most unsent octets with which it is still read
  ;; UNSENT after the last read, unless there was other output before it; 0 after a flush
  (read-unsent 0 :type index)
  (account nil :type (or null account)) ; is charged for LEFTOVER and BUFFER
  (kept 0 :type index)                  ; the octets for which ACCOUNT is charged
  (discarded 0 :type index)             ; the octets read and dropped while it is being closed
  (timer nil :type (or null timer))     ; ends the wait for the peer while it is being closed
  (local-text nil :type (or null string))) ; see CONNECTION-LOCAL

(declaim (sb-ext:freeze-type connection))

(define-flags connection flags
  told                                  ; the owner knows that the connection has closed
  queued                                ; the connection is in the loop's READY
  dirty                                 ; the connection is in the loop's DIRTY
  readable                              ; no read would have blocked since the last event
  ended                                 ; the peer has ended, so a short read is not the last
  stopped                               ; see STOP-READING
  throttled                             ; the connection is not read because of unsent output
  postponed                             ; the handler has left input that it could have consumed
  blocked                               ; the last write would block, or was taken in part
  read-wants-write                      ; reading continues once the descriptor can be written
  broken                                ; a write has failed; octets that came before are read
  write-wants-read                      ; writing continues once the descriptor can be read
  filled)                               ; FILL was called since READ-UNSENT was set

(document-functions
  make-handler "Return a handler with these functions; only INPUT is required. See the type
HANDLER."
  handler-input "The function of HANDLER that receives octets."
  connection-loop "The loop of CONNECTION."
  connection-byte-channel "The byte channel of CONNECTION."
  connection-handler "The handler of CONNECTION. SETF is possible on its loop."
  connection-user "The object that CONNECTION's owner has stored in it; SETF replaces it."
  connection-max-unsent "The maximum number of unsent octets with which CONNECTION is still read;
SETF changes it."
  connection-kept "The number of octets that are charged to CONNECTION's account for its buffers."
  connection-account "The ACCOUNT that is charged with the memory of CONNECTION, or nil if there is
none."
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
  (byte-channel-peer (connection-byte-channel connection)))

(defun connection-local (connection)
  "The address of CONNECTION's own end, as text; empty if it is no longer known. On the loop."
  (or (connection-local-text connection)
      (let ((address (and (plusp (connection-token connection))
                          (funcall (network-local-address (event-loop-network
                                                          (connection-loop connection)))
                                (source-descriptor connection)))))
        (if address
            (setf (connection-local-text connection) (os:address-text address))
            ""))))

;;; The lists of connections to read and to flush

(define-hot mark-ready ((connection connection)) null
  "Schedule a read of CONNECTION in the next reading phase."
  (unless (connection-queued connection)
    (let* ((loop (connection-loop connection))
           (count (event-loop-ready-count loop)))
      (setf (connection-queued connection) t)
      (when (= count (length (event-loop-ready loop)))
        (setf (event-loop-ready loop) (grow-vector (event-loop-ready loop) (1+ count))))
      (setf (svref (event-loop-ready loop) count) connection
            (event-loop-ready-count loop) (1+ count))))
  nil)

(define-hot mark-dirty ((connection connection)) null
  "Schedule a flush of CONNECTION in the next flush phase."
  (unless (connection-dirty connection)
    (let* ((loop (connection-loop connection))
           (count (event-loop-dirty-count loop)))
      (setf (connection-dirty connection) t)
      (when (= count (length (event-loop-dirty loop)))
        (setf (event-loop-dirty loop) (grow-vector (event-loop-dirty loop) (1+ count))))
      (setf (svref (event-loop-dirty loop) count) connection
            (event-loop-dirty-count loop) (1+ count))))
  nil)
