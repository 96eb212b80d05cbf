;;;; Faults of the network and of the hosts. Each fault is recorded in the trace.

(in-package #:clgrpc.sim)

(defun cut (a b)
  "Reset every connection between the hosts A and B, at both ends. New connections can be made. In a
simulation, on any of its threads."
  (record-at a :cut (host-name b))
  (dolist (host (list a b))
    (let ((other (if (eq host a) b a)))
      (loop for socket across (host-sockets host)
            when (and socket
                      (member (socket-state socket) '(:connected :connecting))
                      (eq other (socket-far-host socket)))
              do (fail-socket socket os:+econnreset+)))))

(defun partition (a b)
  "Let no octets through between the hosts A and B until HEAL. Connections stay open, and sent
octets wait. In a simulation, on any of its threads."
  (let ((simulation (host-simulation a)))
    (unless (parted-p simulation a b)
      (record-at a :partition (host-name b))
      (push (cons a b) (simulation-partitions simulation))))
  nil)

(defun heal (a b)
  "End the partition between the hosts A and B; octets that waited are delivered. In a simulation,
on any of its threads."
  (let* ((simulation (host-simulation a))
         (pair (parted-p simulation a b)))
    (when pair
      (record-at a :heal (host-name b))
      (setf (simulation-partitions simulation) (remove pair (simulation-partitions simulation)))
      (resume-flights simulation)))
  nil)

(defun slow (host octets-per-second)
  "From now on limit each connection of HOST to OCTETS-PER-SECOND; NIL removes the limit. In a
simulation, on any of its threads."
  (record-at host :slow octets-per-second)
  (setf (host-octets-per-second host) octets-per-second)
  nil)

(defun crash-host (host)
  "Reset HOST's connections and close its ports at once, as if its process had ended."
  (setf (host-up host) nil)
  (loop for socket across (copy-seq (host-sockets host))
        do (case (and socket (socket-state socket))
             ((:connected :connecting)
              (let ((flight (socket-flight socket)))
                (clear-fifo flight)
                (when (socket-peer socket) (transmit socket :reset))
                (setf (socket-failure socket) os:+econnreset+
                      (socket-incoming socket) '())
                (tell socket (logior loop:+readable+ loop:+failed+))))
             (:listening
              (dolist (peer (shiftf (socket-backlog socket) '())) (reset-socket peer))
              (remhash (socket-port socket) (host-ports host))))))

(defun stop-host (host &key (drain 10))
  "End HOST's process in the regular way: its servers give running calls DRAIN seconds. Wait for the
end of the host's process. In a simulation, on the thread of its body or of a task."
  (record-at host :stops :drain drain)
  (setf (host-leaving host) t)
  (end-processes host drain)
  (setf (host-up host) nil)
  nil)

(defun restart-host (host &key (down 1) drain)
  "End HOST's process, and start it again after DOWN virtual seconds. DRAIN, a number of seconds,
makes the process end in order, as STOP-HOST does. Without DRAIN the process ends as if it were
killed, and its connections are reset at once. Return at once: the value is the task that restarts
the process, or NIL if HOST is ending already. In a simulation, on any of its threads."
  (unless (shiftf (host-leaving host) t)
    (start-task (format nil "restart ~A" (host-name host))
                (lambda ()
                  (cond (drain (stop-host host :drain drain))
                        (t (record-at host :killed)
                           (crash-host host)
                           (end-processes host nil)))
                  (wait-for down)
                  (boot-host host))
                :host host)))
