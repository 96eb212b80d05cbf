;;;; A simulation from its beginning to its end, and its hosts.

(in-package #:clgrpc.sim)

;;; Hosts

(defun make-host-network (host)
  "The network as HOST's process sees it."
  (loop:make-network
   :open (lambda (family)
           (declare (ignore family))
           (socket-descriptor (open-socket host)))
   :connect (lambda (descriptor address) (connect-socket host descriptor address))
   :open-datagram (lambda (family)
                    (declare (ignore family))
                    (open-datagram-socket host))
   :send (lambda (descriptor octets start end)
           (send-datagram (find-socket host descriptor) octets start end))
   :receive (lambda (descriptor octets start end)
              (receive-datagram (find-socket host descriptor) octets start end))
   :failure (lambda (descriptor) (socket-failure (find-socket host descriptor)))
   :listen (lambda (address options)
             (declare (ignore options))
             (listen-at host address))
   :accept (lambda (descriptor octets) (accept-socket host descriptor octets))
   :local-address (lambda (descriptor)
                    (host-address host (socket-port (find-socket host descriptor))))
   :close (lambda (descriptor) (close-socket (find-socket host descriptor)))
   :byte-channel (lambda (descriptor peer)
                   (loop:make-byte-channel *kind* descriptor peer (find-socket host descriptor)))
   :resolve (lambda (name port) (resolve-name host name port))))

(defun make-host-world (host)
  (let ((simulation (host-simulation host)))
    (loop:make-world
     :clock (lambda () (simulation-now simulation))
     :make-poller (lambda () (make-host-poller host))
     :make-random (lambda ()
                    (sb-ext:seed-random-state (below (simulation-chance simulation) (ash 1 32))))
     :network (make-host-network host)
     :start-loop (lambda (loop) (start-loop host loop))
     :start-thread (lambda (function name) (start-task name function :host host))
     :wait (lambda (predicate end-ns) (wait-in-simulation simulation predicate end-ns)))))

(defun start-loop (host loop)
  (let ((simulation (host-simulation host)))
    (setf (simulation-loops simulation)
          (append (simulation-loops simulation)
                  (list (make-running-loop loop host (loop:poller-state
                                                      (loop:event-loop-poller loop))))))))

(defun boot-host (host)
  "Start HOST's process."
  (record-at host :starts)
  (incf (host-epoch host))
  (setf (host-world host) (make-host-world host)
        (host-up host) t
        (host-leaving host) nil)
  (clrhash (host-services host))
  (when (host-boot host)
    (let ((loop:*world* (host-world host)))
      (let ((processes (funcall (host-boot host))))
        (setf (host-processes host) (if (listp processes) processes (list processes)))))))

(defun add-host (name &optional boot)
  "Return a new host in the simulation of this thread. NAME, a string, is its name for channels and
servers (\"NAME:PORT\"). BOOT, a function without arguments, is called now, and after each restart,
in the host's process. BOOT returns a server or channel that it has started, or a list of these;
they end with the process. The list may also have functions that end other objects. The argument of
such a function is the number of seconds that it may take, or nil if the process is killed."
  (let ((host (%make-host :simulation *simulation* :name name :boot boot
                          :number (1+ (length (simulation-hosts *simulation*))))))
    (setf (simulation-hosts *simulation*) (append (simulation-hosts *simulation*) (list host)))
    (boot-host host)
    host))

(defmacro on-host ((host) &body body)
  "Evaluate BODY in the process of HOST: channels and servers that BODY makes belong to that
process."
  `(let ((loop:*world* (host-world ,host))) ,@body))

;;; Events of the log are part of the trace

(defun note-log (simulation level event plist)
  (unless (eq :debug level)
    (let ((host (and (loop:simulated-p) (current-host))))
      (apply #'record (simulation-history simulation) (simulation-now simulation)
             (and host (host-name host)) event level
             (loop for (key value) on plist by #'cddr
                   unless (member key '(:backtrace :thread :tracer))
                     append (list key value))))))

(defun note (control &rest arguments)
  "Add to the trace the text that the format CONTROL makes of ARGUMENTS. In a simulation, on any of
its threads."
  (let ((host (current-host)))
    (record (simulation-history *simulation*) (simulation-now *simulation*)
            (and host (host-name host)) :note (apply #'format nil control arguments))))

(defun simulation-entries (simulation)
  "Return the history of SIMULATION as text, with a line for each event: the virtual time in
seconds, the host, the event. The same seed gives the same text of entries. On any of its threads,
or after its end."
  (with-output-to-string (stream)
    (loop for entry across (history-entries (simulation-history simulation))
          do (write-line (entry-line entry) stream))))

(defun simulation-digest (simulation)
  "Return a digest of the trace of SIMULATION, an integer that is equal for equal traces. On any of
its threads, or after its end."
  (history-digest (simulation-history simulation)))

(defun detail-p (entry)
  "True if ENTRY is a packet, or comes from a tracer."
  (or (eq :octets (entry-event entry))
      (eq :trace (first (entry-arguments entry)))))

(defun write-history (simulation &optional (stream *standard-output*) (most 200))
  "Write the history of SIMULATION to STREAM: the last MOST lines of its trace, after the earlier
lines that report neither packets nor tracers' events. On any of its threads, or after its end."
  (loop with entries = (history-entries (simulation-history simulation))
        with start = (- (length entries) most)
        for i from 0
        for entry across entries
        unless (and (< i start) (detail-p entry))
          do (write-line (entry-line entry) stream)))

;;; Life

(defun end-tasks (simulation)
  (loop for task = (first (simulation-tasks simulation))
        while task
        do (setf (task-killed task) t)
           (give-turn task)))

(defun end-threads (simulation)
  (dolist (worker (shiftf (simulation-idle-threads simulation) '()))
    (pass-turn (worker-turn worker))
    (sb-thread:join-thread (worker-thread worker) :default nil)))

(defun end-processes (host drain)
  "Stop HOST's servers, give running calls DRAIN seconds (none if it is nil), and close its
channels. Wait until all servers, calls and channels have ended."
  (let ((loop:*world* (host-world host)))
    (dolist (process (shiftf (host-processes host) '()))
      (typecase process
        (function (funcall process drain))
        (server:wire-server (server:stop-server process :drain (or drain 0)))
        (t (calling:close-channel process))))))

(defun close-simulation (simulation)
  "End all processes, tasks and loops of SIMULATION. Call this in SIMULATION."
  (unwind-protect
       (handler-case (dolist (host (simulation-hosts simulation)) (end-processes host 0))
         (simulation-error () nil))
    (end-tasks simulation)
    (dolist (running (copy-list (simulation-loops simulation)))
      (let ((loop:*world* (host-world (running-loop-host running))))
        (loop:stop-event-loop (running-loop-loop running))))
    (setf (simulation-loops simulation) '())
    (end-threads simulation)))

(defun make-simulation (&key (seed 1) (latency '(0.0001 0.002)) (losses 0) (limit 600)
                          (steps 1000000))
  "Return a new simulation, made with the options of WITH-SIMULATION; run it by CALL-IN-SIMULATION
and end it by CLOSE-SIMULATION. Programs that cannot do everything in the body of WITH-SIMULATION
need this."
  (%make-simulation :seed seed :chance (make-chance seed)
                    :now +beginning-ns+
                    :end-ns (+ +beginning-ns+ (seconds-ns limit))
                    :least-latency-ns (seconds-ns (first latency))
                    :most-latency-ns (seconds-ns (second latency))
                    :losses losses
                    :most-steps steps))

(defun call-in-simulation (simulation function)
  "Call FUNCTION with SIMULATION, which MAKE-SIMULATION returned, and return the values of FUNCTION.
Meanwhile this thread is in the simulation, on the host \"home\"."
  (when *simulation* (misuse "This thread is in a simulation already."))
  (let* ((*simulation* simulation)
         (*log-function* (lambda (level event &rest plist)
                           (note-log simulation level event plist)))
         (loop:*world* loop:*world*))
    (setf loop:*world* (host-world (or (first (simulation-hosts simulation)) (add-host "home"))))
    (funcall function simulation)))

(defun call-with-simulation (function &rest options)
  "See WITH-SIMULATION."
  (call-in-simulation (apply #'make-simulation options)
                      (lambda (simulation)
                        (unwind-protect (funcall function simulation)
                          (close-simulation simulation)))))

(defmacro with-simulation ((simulation &rest options) &body body)
  "Evaluate BODY with SIMULATION bound to a new simulation. This thread is in the simulation until
BODY ends; then everything in the simulation ends. Servers and channels that BODY makes are in the
virtual network, on the host \"home\" unless ON-HOST names another. Time passes while BODY waits,
for a call or by WAIT-FOR. OPTIONS are:

:SEED     an integer that determines all random decisions; 1 by default
:LATENCY  the minimum and maximum seconds that a packet takes, (0.0001 0.002) by default
:LOSSES   the number of packets in a thousand that are lost and sent again, 0 by default
:LIMIT    the virtual seconds after which a wait of BODY counts as a hang, 600 by default
:STEPS    the number of steps after which a wait counts as a hang, a million by default"
  (let ((function (gensym "BODY")))
    `(flet ((,function (,simulation)
              (declare (ignorable ,simulation))
              ,@body))
       (declare (dynamic-extent #',function))
       (call-with-simulation #',function ,@options))))

(defun idle-p (simulation)
  "True if SIMULATION has nothing left to do except the work of later timers."
  (and (zerop (event-queue-count (simulation-event-queue simulation)))
       (null (simulation-tasks simulation))
       (zerop (length (find-candidates simulation)))))

(defun settle (&key (timeout 1))
  "Let the simulation of this thread run, for at most TIMEOUT virtual seconds, until nothing is left
to do except the work of later timers. Return true if that state was reached. Code that a loop runs
must not call this."
  (wait-until (lambda () (idle-p *simulation*)) :timeout timeout))

(defun forget-history (simulation)
  "Empty the trace of SIMULATION. In a simulation, on any of its threads."
  (setf (fill-pointer (history-entries (simulation-history simulation))) 0))
