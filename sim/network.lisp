;;;; The virtual network: octets that one host sends to another arrive after a random time, in order
;;;; on each connection, as with TCP. A lost packet arrives later, since TCP sends it again. Octets
;;;; between hosts that a partition separates wait until it is healed. A peer resets a connection
;;;; when the peer's process has ended, or when the peer closes the connection with unread octets.

(in-package #:clgrpc.sim)

(defconstant +resend-ns+ 200000000
  "The delay of a lost packet: the shortest time after which Linux sends a packet again.")

(defun record-for (socket event &rest arguments)
  (let ((host (socket-host socket)))
    (apply #'record-at host event :connection (socket-connection socket) arguments)))

;;; Sockets of a host, by descriptor

(defconstant +first-descriptor+ 3
  "The lowest descriptor of a socket, because a process uses lower descriptors for its standard
streams.")

(defun open-socket (host)
  "Return a new socket of HOST, with the lowest free descriptor."
  (let* ((sockets (host-sockets host))
         (free (or (position nil sockets :start +first-descriptor+) (length sockets))))
    (when (= free (length sockets))
      (setf sockets (replace (make-array (* 2 free) :initial-element nil) sockets)
            (host-sockets host) sockets))
    (let ((socket (make-socket host free)))
      (setf (socket-room socket) (ash 4096 (below (simulation-chance (host-simulation host)) 6))
            (svref sockets free) socket))))

(defun find-socket (host descriptor)
  (or (svref (host-sockets host) descriptor)
      (error "~A has no descriptor ~D." host descriptor)))

;;; Telling the loop

(defun tell (socket flags)
  "Report FLAGS, such as LOOP:+READABLE+, to the poller of SOCKET."
  (let ((poller (socket-poller socket)))
    (when (and poller (zerop (socket-flags socket)))
      (push socket (pending-sockets (loop:poller-state poller))))
    (setf (socket-flags socket) (logior flags (socket-flags socket)))))

(defun current-flags (socket)
  "The present events of SOCKET, for its poller."
  (logior (if (or (socket-incoming socket) (socket-ended socket) (socket-backlog socket)
                  (plusp (socket-failure socket)))
              loop:+readable+
              0)
          (if (socket-ended socket) loop:+ended+ 0)
          (if (plusp (socket-failure socket)) loop:+failed+ 0)
          (if (and (eq :connected (socket-state socket)) (< (socket-unread socket)
                                                            (socket-room socket)))
              loop:+writable+
              0)))

;;; Sending

(defun parted-p (simulation a b)
  "True if the hosts A and B cannot reach each other."
  (find-if (lambda (pair) (or (and (eq a (car pair)) (eq b (cdr pair)))
                              (and (eq b (car pair)) (eq a (cdr pair)))))
           (simulation-partitions simulation)))

(defun way-ns (simulation)
  "The time, random and in nanoseconds, that the next packet takes."
  (between (simulation-chance simulation) (simulation-least-latency-ns simulation)
           (simulation-most-latency-ns simulation)))

(defun lost-p (simulation)
  "True if the next packet is lost, which chance decides."
  (< (below (simulation-chance simulation) 1000) (simulation-losses simulation)))

(defun latency-ns (simulation)
  "The time, in nanoseconds, that the next packet of a connection takes, including the delay if it
is lost."
  (+ (way-ns simulation) (if (lost-p simulation) +resend-ns+ 0)))

(defun launch (socket octets)
  "Plan the arrival of the next packet of SOCKET's flight, which has OCTETS, after a random time."
  (let* ((simulation (host-simulation (socket-host socket)))
         (rate (host-octets-per-second (socket-far-host socket)))
         (now (simulation-now simulation))
         (due (+ (max (+ now (latency-ns simulation)) (socket-last-due socket))
                 (if rate (floor (* octets +ns-per-second+) rate) 0))))
    (setf (socket-last-due socket) due)
    (add-plan (simulation-event-queue simulation) due #'arrive socket)))

(defun transmit (socket item)
  "Send ITEM, octets or one of :connect, :accepted, :refused, :end and :reset, to SOCKET's peer."
  (enqueue item (socket-flight socket))
  (launch socket (if (symbolp item) 0 (length item))))

(defun resume-flights (simulation)
  "Resume the transmission of octets that waited because of a partition, unless another partition
separates the hosts. Plans that find no octets do nothing."
  (dolist (socket (reverse (shiftf (simulation-stalled simulation) '())))
    (dolist (item (fifo-items (socket-flight socket)))
      (launch socket (if (symbolp item) 0 (length item))))))

(defun arrive (socket)
  "Deliver the first packet that SOCKET has sent, unless a partition stops it."
  (let* ((host (socket-host socket))
         (simulation (host-simulation host)))
    (cond ((null (fifo-items (socket-flight socket))))
          ((parted-p simulation host (socket-far-host socket))
           (pushnew socket (simulation-stalled simulation)))
          (t (let ((item (dequeue (socket-flight socket))))
               (if (eq :connect item)
                   (arrive-at-listener socket)
                   (arrive-at-peer (socket-peer socket) socket item)))))))

(defun fail-socket (socket errno)
  (unless (eq :closed (socket-state socket))
    (setf (socket-failure socket) errno
          (socket-incoming socket) '()
          (socket-incoming-start socket) 0)
    (clear-fifo (socket-flight socket))
    (tell socket (logior loop:+readable+ loop:+writable+ loop:+failed+))))

(defun arrive-at-peer (peer sender item)
  "Deliver ITEM, sent by SENDER, to PEER."
  (cond ((symbolp item)
         (record-for peer item)
         (ecase item
           (:accepted
            (if (eq :closed (socket-state peer))
                (transmit peer :reset)
                (progn (setf (socket-state peer) :connected)
                       (tell peer loop:+writable+))))
           (:end
            (setf (socket-ended peer) t)
            (tell peer (logior loop:+readable+ loop:+ended+)))
           (:reset (fail-socket peer os:+econnreset+))))
        ((eq :closed (socket-state peer))
         (when (zerop (socket-failure sender)) (transmit peer :reset)))
        ((zerop (socket-failure peer))
         (record-for peer :octets item)
         (setf (socket-incoming peer) (nconc (socket-incoming peer) (list item)))
         (tell peer loop:+readable+))))

(defun arrive-at-listener (socket)
  "Accept or refuse the connection request of SOCKET, which has arrived at the other host."
  (let* ((host (socket-far-host socket))
         (listener (and (host-up host) (gethash (socket-far-port socket) (host-ports host)))))
    (cond (listener
           (let ((peer (open-socket host)))
             (setf (socket-peer socket) peer
                   (socket-peer peer) socket
                   (socket-state peer) :connected
                   (socket-connection peer) (socket-connection socket)
                   (socket-port peer) (socket-port listener)
                   (socket-far-host peer) (socket-host socket)
                   (socket-far-port peer) (socket-port socket)
                   (socket-backlog listener) (nconc (socket-backlog listener) (list peer)))
             (record-for peer :accepts)
             (tell listener loop:+readable+)
             (transmit peer :accepted)))
          (t
           ;; the process that could send this has ended
           (let ((simulation (host-simulation host)))
             (add-plan (simulation-event-queue simulation)
                       (+ (simulation-now simulation) (latency-ns simulation))
                       #'be-refused socket))))))

(defun be-refused (socket)
  (unless (eq :closed (socket-state socket))
    (record-for socket :refused)
    (fail-socket socket os:+econnrefused+)))

;;; Byte channels

(defun read-socket (byte-channel octets start end)
  "As recv(2)."
  (let* ((socket (loop:byte-channel-state byte-channel))
         (at start))
    (declare (type octets octets) (type index start end at))
    (cond ((plusp (socket-failure socket)) (- (socket-failure socket)))
          (t (loop while (and (< at end) (socket-incoming socket))
                   do (let* ((first (first (socket-incoming socket)))
                             (from (socket-incoming-start socket))
                             (count (min (- end at) (- (length first) from))))
                        (replace octets first :start1 at :start2 from :end2 (+ from count))
                        (incf at count)
                        (cond ((= (+ from count) (length first))
                               (pop (socket-incoming socket))
                               (setf (socket-incoming-start socket) 0))
                              (t (setf (socket-incoming-start socket) (+ from count))))))
             (cond ((< start at)
                    (note-read socket (- at start))
                    (- at start))
                   ((socket-ended socket) 0)
                   (t loop:+wants-read+))))))

(defun note-read (socket count)
  "Note that the process has read COUNT octets of SOCKET: the peer has room again, and is informed
if it waits for room."
  (let ((peer (socket-peer socket)))
    (decf (socket-unread peer) count)
    (when (shiftf (socket-blocked peer) nil)
      (let ((simulation (host-simulation (socket-host socket))))
        (add-plan (simulation-event-queue simulation)
                  (+ (simulation-now simulation) (latency-ns simulation))
                  #'become-writable peer)))))

(defun become-writable (socket)
  (unless (eq :closed (socket-state socket)) (tell socket loop:+writable+)))

(defun write-socket (byte-channel octets start end)
  "As send(2)."
  (declare (type octets octets) (type index start end))
  (let* ((socket (loop:byte-channel-state byte-channel))
         (count (min (- end start) (- (socket-room socket) (socket-unread socket)))))
    (cond ((plusp (socket-failure socket)) (- os:+epipe+))
          ((= start end) 0)
          ((not (plusp count))
           (setf (socket-blocked socket) t)
           loop:+wants-write+)
          (t (when (< count (- end start)) (setf (socket-blocked socket) t))
             (incf (socket-unread socket) count)
             (send-packets socket octets start (+ start count))
             count))))

(defun send-packets (socket octets start end)
  "Send OCTETS from START to END, now and then in pieces."
  (let ((chance (simulation-chance (host-simulation (socket-host socket)))))
    (loop while (< start end)
          do (let ((stop (if (chance-p chance 4)
                             (+ start 1 (below chance (- end start)))
                             end)))
               (transmit socket (subseq octets start stop))
               (setf start stop)))))

(defun shut-socket (byte-channel)
  (let ((socket (loop:byte-channel-state byte-channel)))
    (unless (or (shiftf (socket-shut socket) t) (plusp (socket-failure socket)))
      (transmit socket :end))))

(defun close-socket (socket)
  "As close(2)."
  (let ((host (socket-host socket)) (before (shiftf (socket-state socket) :closed)))
    (setf (svref (host-sockets host) (socket-descriptor socket)) nil
          (socket-poller socket) nil
          (socket-flags socket) 0)
    (case before
      (:listening
       (remhash (socket-port socket) (host-ports host))
       (dolist (peer (shiftf (socket-backlog socket) '())) (reset-socket peer)))
      (:connected
       (cond ((plusp (socket-failure socket)))
             ((socket-incoming socket) (transmit socket :reset))
             ((not (shiftf (socket-shut socket) t)) (transmit socket :end)))))
    0))

(defun reset-socket (socket)
  "Close SOCKET, which is connected, and inform its peer by a reset."
  (unless (eq :closed (socket-state socket))
    (clear-fifo (socket-flight socket))
    (when (and (socket-peer socket) (zerop (socket-failure socket))) (transmit socket :reset))
    (setf (socket-shut socket) t
          (socket-incoming socket) '())
    (close-socket socket)))

(defparameter *kind*
  (loop:make-byte-channel-kind :name "simulated" :read #'read-socket :write #'write-socket
                               :shutdown #'shut-socket
                               :close (lambda (byte-channel)
                                        (close-socket (loop:byte-channel-state byte-channel))))
  "The kind of all byte channels of simulations.")

;;; The network of a host

(defun host-address (host port)
  "The address, as the kernel's, of PORT of HOST."
  (os:make-address (format nil "10.0.0.~D" (host-number host)) port))

(defun find-host-at (simulation address)
  "The host of SIMULATION that has ADDRESS, or nil if no host has it."
  (and (= 10 (aref address 4))
       (find (aref address 7) (simulation-hosts simulation) :key #'host-number)))

(defconstant +first-port+ 40000 "The first port that a host chooses itself.")

(defun free-port (host)
  (loop for port = (setf (host-next-port host)
                         (if (= 65535 (host-next-port host))
                             +first-port+
                             (1+ (host-next-port host))))
        unless (gethash port (host-ports host)) return port))

(defun connect-socket (host descriptor address)
  "As connect(2)."
  (let* ((socket (find-socket host descriptor))
         (simulation (host-simulation host))
         (far-host (find-host-at simulation address)))
    (cond ((null far-host) (- os:+ehostunreach+))
          ((eq :datagrams (socket-state socket))
           (setf (socket-far-host socket) far-host
                 (socket-far-port socket) (os:address-port address))
           0)
          (t (setf (socket-state socket) :connecting
                   (socket-connection socket) (incf (simulation-connections simulation))
                   (socket-port socket) (free-port host)
                   (socket-far-host socket) far-host
                   (socket-far-port socket) (os:address-port address))
             (record-for socket :connects :to (host-name far-host) (os:address-port address))
             (transmit socket :connect)
             (- os:+einprogress+)))))

(defun listen-at (host address)
  "Listen on ADDRESS, as bind(2) and listen(2) do."
  (let ((port (if (zerop (os:address-port address)) (free-port host) (os:address-port address))))
    (cond ((not (or (zerop (aref address 4))
                    (eq host (find-host-at (host-simulation host) address))))
           (- os:+ehostunreach+))
          ((gethash port (host-ports host)) (- os:+eaddrinuse+))
          (t (let ((socket (open-socket host)))
               (setf (socket-state socket) :listening
                     (socket-port socket) port
                     (gethash port (host-ports host)) socket)
               (record-for socket :listens :port port)
               (socket-descriptor socket))))))

(defun accept-socket (host descriptor octets)
  "Accept a connection, as accept(2) does, and write the peer's address into OCTETS."
  (let* ((listener (find-socket host descriptor))
         (socket (pop (socket-backlog listener))))
    (cond (socket
           (replace octets (host-address (socket-far-host socket) (socket-far-port socket)))
           (socket-descriptor socket))
          (t (- os:+eagain+)))))

(defun resolve-name (host name port)
  "Return two values: the addresses of the host called NAME, each with PORT; and, if no host has
that name, the reason, a text."
  (let ((found (if (string= name "localhost")
                   host
                   (find name (simulation-hosts (host-simulation host))
                         :key #'host-name :test #'string=))))
    (if found
        (values (list (host-address found port)) nil)
        (values '() "no such host"))))

;;; Pollers

(defun watch-socket (poller descriptor token)
  (let ((socket (find-socket (pending-host (loop:poller-state poller)) descriptor)))
    (setf (socket-poller socket) poller
          (socket-token socket) token
          (socket-flags socket) 0)
    (let ((flags (current-flags socket)))
      (unless (zerop flags) (tell socket flags)))
    0))

(defun forget-socket (poller descriptor)
  (let* ((pending (loop:poller-state poller))
         (socket (svref (host-sockets (pending-host pending)) descriptor)))
    (when socket
      (setf (socket-poller socket) nil
            (socket-flags socket) 0
            (pending-sockets pending) (delete socket (pending-sockets pending))))
    0))

(defun report (poller timeout-ns)
  "Report some of the pending events, without waiting."
  (declare (ignore timeout-ns))
  (let* ((pending (loop:poller-state poller))
         (chance (simulation-chance (host-simulation (pending-host pending))))
         (count 0))
    (setf (pending-sockets pending) (remove-if-not #'socket-poller (pending-sockets pending)))
    (loop while (and (pending-sockets pending) (< count 64))
          do (let ((socket (pick chance (pending-sockets pending))))
               (setf (pending-sockets pending) (delete socket (pending-sockets pending))
                     (aref (loop:poller-tokens poller) count) (socket-token socket)
                     (aref (loop:poller-flags poller) count) (shiftf (socket-flags socket) 0))
               (incf count))
          until (chance-p chance 4))
    count))

(defun make-host-poller (host)
  (loop:make-poller :add #'watch-socket :remove #'forget-socket :wait #'report
                    :wake #'identity :close #'identity :state (make-pending host)))
