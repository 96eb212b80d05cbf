;;;; The data of a simulation: its hosts, their sockets, and the tasks that run on them.

(in-package #:clgrpc.sim)

(defstruct (simulation (:constructor %make-simulation) (:copier nil))
  "See WITH-SIMULATION."
  (seed 0 :type integer :read-only t)   ; determines the whole simulation
  (chance nil :type chance :read-only t) ; decides all that is decided by chance
  (now 0 :type nanoseconds)             ; the virtual time
  (event-queue (make-event-queue) :type event-queue :read-only t) ; plans of later events
  ;; the network
  (hosts '() :type list)                ; hosts in the order in which they were added
  (least-latency-ns 0 :type nanoseconds) ; the least time that a packet takes
  (most-latency-ns 0 :type nanoseconds) ; the longest time that a packet takes
  (losses 0 :type index)                ; packets, of a thousand, that are lost and sent again
  (partitions '() :type list)           ; pairs of hosts, (a . b), that cannot reach each other
  (stalled '() :type list)              ; sockets whose octets wait for the end of a partition
  (connections 0 :type index)           ; how many connections there have been
  ;; the scheduler's data
  (loops '() :type list)                ; RUNNING-LOOPs
  ;; tasks that have not ended, in the order in which they started
  (tasks '() :type list)
  (task nil :type (or null task))       ; the task that runs now, nil for the body
  (turn (os:make-futex) :type os:futex :read-only t) ; how often the body's turn has come
  (idle-threads '() :type list)         ; WORKERs without a task
  ;; a vector for temporary use
  (candidates (make-array 16 :adjustable t :fill-pointer 0) :type vector :read-only t)
  ;; limits
  (steps 0 :type index)
  (changes 0 :type index)               ; steps, and plans, that may have changed something
  ;; the number of steps after which the simulation counts as hanging
  (most-steps 0 :type index)
  (end-ns 0 :type nanoseconds)          ; if the body waits until later, that counts as a hang
  ;; history
  (history (make-history) :type history :read-only t))

(defstruct (host (:constructor %make-host) (:copier nil))
  "A machine of the virtual network, with a process of servers and channels. See ADD-HOST."
  (simulation nil :type simulation :read-only t) ; the simulation to which the host belongs
  (name "" :type string :read-only t)   ; the name by which others connect to it
  (number 0 :type (unsigned-byte 8) :read-only t) ; the host's address is 10.0.0.NUMBER
  (world nil :type (or null loop:world)) ; the world of its process
  (boot nil :type (or null function))   ; starts its servers
  (processes '() :type list)            ; servers and channels, which BOOT has returned
  (up nil :type boolean)                ; false while the host is down
  (leaving nil :type boolean)           ; the host is about to go down, or is down
  (epoch 0 :type index)                 ; how often its process was started
  (sockets (make-array 16 :initial-element nil) :type simple-vector) ; sockets by descriptor
  (ports (make-hash-table) :type hash-table :read-only t) ; maps a port to the listening socket
  ;; maps a port to the function that answers datagrams
  (services (make-hash-table) :type hash-table :read-only t)
  ;; the next port to be assigned to a program that chooses none
  (next-port 40000 :type (unsigned-byte 16))
  (octets-per-second nil :type (or null (integer 1)))) ; octets that the host reads, see SLOW

(defstruct (socket (:constructor make-socket (host descriptor)) (:copier nil))
  "A virtual socket: one end of a connection, a listening socket, or one for datagrams."
  (host nil :type host :read-only t)    ; the host to which the socket belongs
  (descriptor 0 :type index :read-only t) ; the socket's place among the sockets of HOST
  ;; the state that a socket of the kernel would have
  (state :new :type (member :new :listening :connecting :connected :datagrams :closed))
  (connection 0 :type index)            ; the number of the connection, for the trace
  (port 0 :type (unsigned-byte 16))     ; the socket's own port
  (far-host nil :type (or null host))   ; the host at the other end
  (far-port 0 :type (unsigned-byte 16)) ; the port at the other end
  (peer nil :type (or null socket))     ; the other end, once the connection has arrived there
  (backlog '() :type list)              ; sockets that a listening socket may accept, oldest first
  ;; the loop's interests
  (poller nil :type (or null loop:poller))
  (token 0)                             ; the token that the poller returns to the loop
  (flags 0 :type (unsigned-byte 32))    ; flags to report
  (failure 0 :type index)               ; a positive errno
  ;; arrived octets
  (incoming '() :type list)             ; vectors of octets, oldest first
  (incoming-start 0 :type index)        ; where the first of the arrived octets begins
  (ended nil :type boolean)             ; the peer sends no more
  ;; packets on their way to the peer
  (flight (make-fifo) :type fifo :read-only t) ; octets and keywords under way to the peer
  (last-due 0 :type nanoseconds)        ; when the last packet under way arrives
  (unread 0 :type index)                ; octets sent that the peer has not read
  (room 65536 :type index)              ; how many octets may be under way
  (blocked nil :type boolean)           ; a write found no room
  (shut nil :type boolean))             ; this end has sent all that it will send

(defstruct (pending (:constructor make-pending (host)) (:copier nil))
  "The state of a poller."
  (host nil :type host :read-only t)    ; the host whose loop polls
  (sockets '() :type list))             ; sockets that have flags to report, the newest first

(defstruct (running-loop (:constructor make-running-loop (loop host pending)) (:copier nil))
  "A LOOP that the simulation runs, for HOST's process; PENDING is the state of the loop's poller."
  (loop nil :type loop:event-loop :read-only t) ; the loop that the simulation runs
  (host nil :type host :read-only t)    ; the host of its process
  (pending nil :type pending :read-only t)) ; sockets that its poller has to report

(defstruct (task (:constructor make-task (name host function)) (:copier nil))
  "The work of a thread of a process. See START-TASK."
  (name "" :type string :read-only t)   ; the name for reports
  (host nil :type host :read-only t)    ; the host of its process
  (function nil :type function :read-only t) ; the task's work
  (state :new :type (member :new :waiting :running :done)) ; the task's state
  (worker nil :type (or null worker))   ; the thread that it has, or nil
  ;; the predicate that it waits for, see LOOP:WORLD
  (predicate nil :type (or null function)) ; true once the task may go on, or nil
  (end-ns nil :type (or null nanoseconds)) ; when the task continues in any case, or nil
  (seen 0 :type index)                  ; the CHANGES when the task began to wait
  (killed nil :type boolean))           ; true if the task must end as soon as it runs

(defstruct (worker (:copier nil))
  "A thread for tasks."
  (thread nil :type (or null sb-thread:thread)) ; nil until the thread is started
  (turn (os:make-futex) :type os:futex :read-only t) ; how often its turn has come
  (task nil :type (or null task)))      ; the task to run; nil to end

(declaim (sb-ext:freeze-type simulation host socket pending running-loop task worker))

(document-functions
  simulation-seed "The seed of SIMULATION."
  simulation-chance "Return the CHANCE by which SIMULATION decides. A scenario should take its own
random numbers from another CHANCE, made from the seed, because their sequence then remains the same
when the product changes."
  simulation-now "The virtual time in nanoseconds."
  simulation-steps "The number of turns of loops and of tasks that SIMULATION has made."
  host-name "The name of HOST, by which others connect to it."
  host-up "True unless HOST is down."
  host-processes "Return the list of the servers and channels of HOST's process, which the BOOT
function of ADD-HOST has returned.")

(defvar *simulation* nil "The simulation that this thread is in, or NIL.")

(define-printer (simulation simulation)
  "seed ~D, ~D steps, at ~,6F s" (simulation-seed simulation) (simulation-steps simulation)
  (elapsed-seconds simulation))

(define-printer (host host)
  "~A ~:[down~;up~]" (host-name host) (host-up host))

(define-printer (socket socket)
  "~A:~D ~(~A~)" (host-name (socket-host socket)) (socket-port socket) (socket-state socket))

(define-printer (pending pending)
  "~A" (host-name (pending-host pending)))

(define-printer (running running-loop)
  "~A of ~A" (loop:event-loop-name (running-loop-loop running))
  (host-name (running-loop-host running)))

(define-printer (task task)
  "~A ~(~A~)" (task-name task) (task-state task))

(define-printer (worker worker)
  "~@[~A~]" (worker-task worker))

(define-condition simulation-error (clgrpc-error)
  ((text :initarg :text :reader simulation-error-text)) ; the error
  (:report (lambda (condition stream) (write-string (simulation-error-text condition) stream)))
  (:documentation "The superclass of the errors that simulations signal."))

(define-condition simulation-hang (simulation-error) ()
  (:documentation "The body of a simulation waits for an event that does not happen."))

(defconstant +beginning-ns+ (* 1000 +ns-per-second+)
  "The clock's time at which a simulation begins, as on a machine that was started a while ago.")

(defun record-at (host event &rest arguments)
  (let ((simulation (host-simulation host)))
    (apply #'record (simulation-history simulation) (simulation-now simulation) (host-name host)
           event arguments)))

(defun elapsed-seconds (simulation)
  "The virtual seconds since SIMULATION began."
  (ns-seconds (- (simulation-now simulation) +beginning-ns+)))

(defun current-host ()
  "The host in whose process this thread runs."
  (find loop:*world* (simulation-hosts *simulation*) :key #'host-world))
