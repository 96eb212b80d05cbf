;;;; Datagrams between hosts, as with UDP. Each datagram travels alone, so one may overtake another.
;;;; A datagram that is lost, or meets a partition, never arrives; a datagram to a port without a
;;;; server is refused. The client has a socket; the server is a function of a host, see
;;;; SERVE-DATAGRAMS.

(in-package #:clgrpc.sim)

(defun open-datagram-socket (host)
  "Return a new socket of HOST for datagrams, as socket(2) does."
  (let ((socket (open-socket host)))
    (setf (socket-state socket) :datagrams
          (socket-port socket) (free-port host))
    (socket-descriptor socket)))

(defun carry-datagram (from to octets function)
  "Call FUNCTION with OCTETS when they arrive from the host FROM at the host TO; do not call it if
they are lost."
  (let ((simulation (host-simulation from)))
    (unless (or (parted-p simulation from to) (lost-p simulation))
      (add-plan (simulation-event-queue simulation)
                (+ (simulation-now simulation) (way-ns simulation))
                function octets))))

(defun send-datagram (socket octets start end)
  "Send a datagram on SOCKET, which is connected, as send(2) does: an earlier failure is reported
now."
  (let ((failure (shiftf (socket-failure socket) 0))
        (host (socket-host socket)))
    (cond ((plusp failure) (- failure))
          (t (carry-datagram host (socket-far-host socket) (subseq octets start end)
                             (lambda (octets) (datagram-arrives socket octets)))
             (- end start)))))

(defun datagram-arrives (socket octets)
  "Deliver OCTETS, which SOCKET has sent, at the port to which SOCKET is connected. Answers go
back."
  (let* ((host (socket-host socket))
         (far-host (socket-far-host socket))
         (service (and (host-up far-host)
                       (gethash (socket-far-port socket) (host-services far-host)))))
    (record-at far-host :datagram (host-name host) octets)
    (if service
        (dolist (answer (funcall (the function service) octets))
          (carry-datagram far-host host answer
                          (lambda (octets) (datagram-returns socket octets))))
        (carry-datagram far-host host octets
                        (lambda (octets)
                          (declare (ignore octets))
                          (datagram-refused socket))))))

(defun datagram-returns (socket octets)
  "Give SOCKET the OCTETS that have arrived for SOCKET."
  (unless (eq :closed (socket-state socket))
    (record-at (socket-host socket) :datagram (host-name (socket-far-host socket)) octets)
    (setf (socket-incoming socket) (append (socket-incoming socket) (list octets)))
    (tell socket loop:+readable+)))

(defun datagram-refused (socket)
  (unless (eq :closed (socket-state socket))
    (record-at (socket-host socket) :refused (host-name (socket-far-host socket)))
    (setf (socket-failure socket) os:+econnrefused+)
    (tell socket (logior loop:+readable+ loop:+failed+))))

(defun receive-datagram (socket octets start end)
  "Receive the next datagram, or the part of it that fits, as recv(2) does."
  (let ((failure (shiftf (socket-failure socket) 0)))
    (cond ((plusp failure) (- failure))
          ((null (socket-incoming socket)) (- os:+eagain+))
          (t (let ((datagram (pop (socket-incoming socket))))
               (replace octets datagram :start1 start :end1 end)
               (min (length datagram) (- end start)))))))
